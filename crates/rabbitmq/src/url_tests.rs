use proptest::prelude::*;

use super::*;

fn parsed(text: &str) -> BrokerUrl {
    BrokerUrl::parse(text).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

fn faults(text: &str) -> Vec<String> {
    BrokerUrls::parse(text)
        .unwrap_err()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn host_alone_takes_every_default() {
    let url = parsed("amqp://broker");
    assert_eq!(
        (url.host.as_str(), url.port, url.vhost.as_str()),
        ("broker", 5672, "/")
    );
    assert_eq!((url.user.as_str(), url.password.expose()), ("guest", "guest"));
    assert_eq!(
        (url.heartbeat, url.channel_max, url.connection_timeout),
        (20, 0, None)
    );
    assert_eq!(url.mechanisms, [Mechanism::Plain]);
    assert!(url.tls.is_none());
    assert_eq!(parsed("amqps://broker").port, 5671);
}

#[test]
fn virtual_host_follows_the_uri_specification() {
    for (text, vhost) in [
        ("amqp://h", "/"),
        ("amqp://h/", ""),
        ("amqp://h/%2f", "/"),
        ("amqp://h/orders", "orders"),
        ("amqp://h/a%2Fb?heartbeat=5", "a/b"),
        ("amqp://h?heartbeat=5", "/"),
    ] {
        assert_eq!(parsed(text).vhost, vhost, "{text}");
    }
}

#[test]
fn credentials_are_percent_decoded_and_an_at_sign_in_them_is_harmless() {
    let url = parsed("amqp://us%40er:p%3Aw%2F%C3%A4@h:1234");
    assert_eq!(
        (url.user.as_str(), url.password.expose(), url.port),
        ("us@er", "p:w/ä", 1234)
    );
    assert_eq!(parsed("amqp://u:p@ss@h").password.expose(), "p@ss");
    assert_eq!(parsed("amqp://u:@h").password.expose(), "");
    assert_eq!(parsed("amqp://u@h").password.expose(), "guest");
}

#[test]
fn ipv6_address_stands_in_brackets() {
    let url = parsed("amqps://u@[::1]:5000/v");
    assert_eq!((url.host.as_str(), url.port), ("::1", 5000));
    assert_eq!(url.address(), "[::1]:5000");
    assert_eq!(parsed("amqp://[fe80::1]").port, 5672);
    assert_eq!(faults("amqp://[fe80::1/v").len(), 1);
}

#[test]
fn query_keys_of_rabbitmq_are_understood() {
    let url = parsed(
        "amqps://h/v?cacertfile=/etc/ca%20file.pem&certfile=c.pem&keyfile=k.pem&verify=verify_none\
         &server_name_indication=inside&auth_mechanism=external&auth_mechanism=plain&heartbeat=5\
         &connection_timeout=1500&channel_max=8",
    );
    let tls = url.tls.unwrap();
    assert_eq!(tls.cacertfile.unwrap().to_str(), Some("/etc/ca file.pem"));
    assert_eq!(tls.identity, Some(("c.pem".into(), "k.pem".into())));
    assert_eq!(
        (tls.verify_peer, tls.server_name.as_deref()),
        (false, Some("inside"))
    );
    assert_eq!(url.mechanisms, [Mechanism::External, Mechanism::Plain]);
    assert_eq!((url.heartbeat, url.channel_max), (5, 8));
    assert_eq!(url.connection_timeout, Some(Duration::from_millis(1500)));
}

#[test]
fn unknown_key_names_the_nearest() {
    assert_eq!(
        faults("amqp://h?hartbeat=5"),
        ["the broker URL has the unknown key hartbeat, did you mean heartbeat?"]
    );
    assert!(faults("amqp://h?frame_max=1")[0].contains("known are cacertfile, certfile"));
    assert!(faults("amqps://h?cacert=x")[0].ends_with("did you mean cacertfile?"));
}

#[test]
fn all_faults_are_reported_at_once() {
    let found = faults(
        "amqp://u%zz:p%@h:99999/v?verify=no&heartbeat=-1&heartbeat=2&colour=red&auth_mechanism=external",
    );
    assert_eq!(found.len(), 9, "{found:#?}");
}

#[test]
fn faults_of_a_list_tell_their_url() {
    let found = faults("amqp://a,http://b,amqp://:5672");
    assert_eq!(
        found,
        [
            "broker URL 2: a broker URL begins with amqp:// or amqps://",
            "broker URL 3: the broker URL has no host",
        ]
    );
    let urls = BrokerUrls::parse("amqp://u:a,b@one, amqps://two").unwrap();
    assert_eq!(urls.urls().len(), 2);
    assert_eq!(urls.urls()[0].password.expose(), "a,b");
}

#[test]
fn tls_settings_without_tls_are_faults() {
    assert_eq!(faults("amqp://h?cacertfile=a").len(), 1);
    assert_eq!(
        faults("amqps://h?certfile=a"),
        ["the broker URL needs certfile and keyfile together"]
    );
    assert_eq!(faults("amqps://h?auth_mechanism=external").len(), 1);
}

#[test]
fn no_output_holds_a_password() {
    for text in [
        "amqp://u:canary@h/v",
        "amqp://u:ca/canary@h/v",
        "amqp://u:ca?canary@h/v",
        "amqp://u:ca#canary@h/v",
        "amqp://u:canary",
        "amqp://u:canary%@h?canary=1&verify=canary",
        "amqp:/u:canary@h",
        "amqp://u:p@h/x@canary",
        "amqp://u:1canary@h:canary/v",
    ] {
        let text = text.replace("?canary=1&", "?a=1&");
        match BrokerUrls::parse(&text) {
            Ok(urls) => {
                assert!(!format!("{urls:?}").contains("canary"));
                assert!(!urls.urls()[0].redacted().contains("canary"));
            }
            Err(faults) => {
                for fault in faults {
                    assert!(
                        !format!("{fault} {fault:?}").contains("canary"),
                        "{text}: {fault}"
                    );
                }
            }
        }
    }
    assert_eq!(
        parsed("amqp://us%20er:p@h/a%2fb").redacted(),
        "amqp://us%20er:***@h:5672/a%2Fb"
    );
    assert_eq!(parsed("amqp://h").redacted(), "amqp://guest@h:5672/%2F");
}

#[test]
fn plain_login_over_the_open_network_is_noted() {
    for (text, notes) in [
        ("amqp://localhost", 0),
        ("amqp://127.0.0.9", 0),
        ("amqp://[::1]", 0),
        ("amqp://broker", 1),
        ("amqps://broker", 0),
        ("amqps://broker?verify=verify_none", 1),
    ] {
        assert_eq!(parsed(text).security_notes().len(), notes, "{text}");
    }
}

#[tokio::test]
async fn password_file_is_read_at_each_connect_without_its_line_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let urls = BrokerUrls::parse("amqp://u:old@a,amqp://u@b")
        .unwrap()
        .with_password_file(file.path());
    for (text, password) in [
        ("one\n", "one"),
        ("two\r\n", "two"),
        ("", ""),
        (" three ", " three "),
    ] {
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(urls.at(0).await.unwrap().password.expose(), password);
    }
    assert_eq!(urls.at(3).await.unwrap().host, "b");
    drop(file);
    assert!(matches!(urls.at(0).await, Err(SinkError::PasswordFile { .. })));
}

proptest! {
    #[test]
    fn encoded_parts_come_back_as_they_were(
        user in "\\PC{1,20}", password in "\\PC{0,20}", vhost in "\\PC{0,20}", port in 1u16..,
    ) {
        let encode = |text: &str| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string();
        let text = format!("amqp://{}:{}@h:{port}/{}", encode(&user), encode(&password), encode(&vhost));
        let url = parsed(&text);
        prop_assert_eq!((&url.user, url.password.expose(), &url.vhost, url.port), (&user, password.as_str(), &vhost, port));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(amqps?://)?[ -~äß]{0,60}") {
        if let Err(faults) = BrokerUrls::parse(&text) {
            prop_assert!(!faults.is_empty());
        }
    }
}
