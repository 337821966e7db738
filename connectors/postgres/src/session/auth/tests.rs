use super::*;

fn url(query: &str) -> tailpost_database::postgres::Url {
    use tailpost_database::postgres::Url;
    struct Nothing;
    impl tailpost_database::Environment for Nothing {
        fn variable(&self, _: &str) -> Option<String> {
            None
        }
        fn home(&self) -> Option<std::path::PathBuf> {
            None
        }
        fn user(&self) -> Option<String> {
            None
        }
    }
    Url::parse(
        &format!("postgres://app:pw@db.example/shop?sslmode=require{query}"),
        &Nothing,
    )
    .expect("a valid URL")
}

fn credentials() -> Credentials {
    Credentials {
        host: "db.example:5432".into(),
        user: "app".into(),
        password: Some("canary".into()),
        server_end_point: Some(vec![1; 32]),
        tls: true,
        private: true,
        channel_binding: ChannelBinding::Prefer,
        require: url("").require_auth(),
    }
}

/// An authentication message of kind `code`.
fn message(code: u32, rest: &[u8]) -> Message {
    let mut raw = BytesMut::from(&b"R"[..]);
    raw.extend_from_slice(&u32::try_from(8 + rest.len()).expect("short").to_be_bytes());
    raw.extend_from_slice(&code.to_be_bytes());
    raw.extend_from_slice(rest);
    Message::parse(&mut raw).expect("well formed").expect("whole")
}

const PLUS: &[u8] = b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0";
const PLAIN: &[u8] = b"SCRAM-SHA-256\0\0";

fn sent(step: Step) -> Vec<u8> {
    match step {
        Step::Send(bytes) => bytes.to_vec(),
        other => panic!("nothing to send: {other:?}"),
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

#[test]
fn channel_binding_is_used_where_both_ends_can_and_its_absence_is_told() {
    let first = |credentials: Credentials, offered: &[u8]| {
        let step = Login::new(credentials)
            .answer(&message(10, offered))
            .expect("acceptable");
        sent(step)
    };
    let bound = first(credentials(), PLUS);
    assert!(contains(&bound, b"SCRAM-SHA-256-PLUS\0") && contains(&bound, b"p=tls-server-end-point,,"));
    // Somebody may have taken the offer away: the server learns that we could have.
    assert!(contains(&first(credentials(), PLAIN), b"y,,n="));
    let disabled = Credentials {
        channel_binding: ChannelBinding::Disable,
        ..credentials()
    };
    assert!(contains(&first(disabled, PLUS), b"n,,n="));
    let unable = Credentials {
        server_end_point: None,
        ..credentials()
    };
    assert!(contains(&first(unable, PLUS), b"n,,n="));
}

#[test]
fn required_channel_binding_is_never_done_without() {
    let required = || {
        Login::new(Credentials {
            channel_binding: ChannelBinding::Require,
            ..credentials()
        })
    };
    assert!(required().answer(&message(10, PLAIN)).is_err());
    assert!(required().answer(&message(0, b"")).is_err());
    assert!(required().answer(&message(10, PLUS)).is_ok());
}

#[test]
fn an_offer_of_channel_binding_without_encryption_is_refused() {
    let plain = Credentials {
        tls: false,
        server_end_point: None,
        ..credentials()
    };
    assert!(Login::new(plain).answer(&message(10, PLUS)).is_err());
}

/// Brings a login to the point where the server has to show its signature.
fn until_final() -> Login {
    let mut login = Login::new(credentials());
    let first = sent(login.answer(&message(10, PLAIN)).expect("acceptable"));
    let nonce = String::from_utf8_lossy(&first)
        .split("r=")
        .nth(1)
        .expect("a nonce")
        .to_owned();
    let reply = format!("r={nonce}server,s=c2FsdHNhbHQ=,i=4096");
    let proof = sent(login.answer(&message(11, reply.as_bytes())).expect("our nonce"));
    assert!(contains(&proof, b",p="));
    login
}

#[test]
fn a_server_that_cannot_prove_that_it_knows_the_password_is_refused() {
    let wrong = format!("v={}=", "A".repeat(43));
    assert!(until_final().answer(&message(12, wrong.as_bytes())).is_err());
    assert!(until_final().answer(&message(12, b"e=invalid-proof")).is_err());
    // Without any signature at all.
    assert!(until_final().answer(&message(0, b"")).is_err());
}

#[test]
fn a_nonce_that_is_not_ours_and_an_endless_iteration_count_are_refused() {
    for reply in ["r=foreign,s=c2FsdA==,i=4096", "r=OURS1,s=c2FsdA==,i=2147483647"] {
        let mut login = Login::new(credentials());
        let first = sent(login.answer(&message(10, PLAIN)).expect("acceptable"));
        let nonce = String::from_utf8_lossy(&first)
            .split("r=")
            .nth(1)
            .expect("a nonce")
            .to_owned();
        let error = login
            .answer(&message(11, reply.replace("OURS", &nonce).as_bytes()))
            .expect_err("refused");
        assert!(matches!(error, PgError::Authentication(_)), "{error}");
    }
}

#[test]
fn a_clear_password_goes_only_where_nobody_else_can_read_it() {
    let sent = sent(
        Login::new(credentials())
            .answer(&message(3, b""))
            .expect("private"),
    );
    assert_eq!(sent, b"p\0\0\0\x0bcanary\0");
    let open = Credentials {
        tls: false,
        private: false,
        ..credentials()
    };
    let error = Login::new(open).answer(&message(3, b"")).expect_err("refused");
    assert!(matches!(error, PgError::ClearPassword { .. }));
}

#[test]
fn md5_hashes_password_user_and_salt() {
    let sent = sent(
        Login::new(credentials())
            .answer(&message(5, b"salt"))
            .expect("acceptable"),
    );
    let inner = postgres_protocol::authentication::md5_hash(b"app", b"canary", *b"salt");
    assert_eq!(sent[5..sent.len() - 1], *inner.as_bytes());
}

#[test]
fn a_method_that_require_auth_rules_out_is_refused() {
    let only = |methods: &str| Credentials {
        require: url(&format!("&require_auth={methods}")).require_auth(),
        ..credentials()
    };
    for (code, rest, methods) in [
        (0, &b""[..], "scram-sha-256"),
        (3, b"", "scram-sha-256,md5"),
        (5, b"salt", "password"),
        (10, PLAIN, "md5"),
    ] {
        assert!(
            Login::new(only(methods)).answer(&message(code, rest)).is_err(),
            "{code}"
        );
    }
}

#[test]
fn a_second_method_or_a_message_out_of_turn_is_refused() {
    let mut login = Login::new(credentials());
    assert!(login.answer(&message(5, b"salt")).is_ok());
    assert!(
        login.answer(&message(3, b"")).is_err(),
        "md5 first, then the clear password"
    );
    assert!(Login::new(credentials()).answer(&message(11, b"r=x")).is_err());
    assert!(
        Login::new(credentials()).answer(&message(7, b"")).is_err(),
        "GSSAPI"
    );
}

#[test]
fn no_error_shows_the_password() {
    let open = || Credentials {
        tls: false,
        private: false,
        ..credentials()
    };
    for code in [0, 2, 3, 7, 9] {
        if let Err(error) = Login::new(open()).answer(&message(code, b"")) {
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
    }
    assert!(!format!("{:?}", credentials()).contains("canary"));
}
