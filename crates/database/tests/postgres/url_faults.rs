//! What is said of wrong URLs, and what is never said.

use proptest::prelude::*;
use tailpost_database::postgres::{Url, UrlFault};

use crate::surroundings::{Surroundings, faults, faults_in};

#[test]
fn each_fault_names_the_thing_and_the_remedy() {
    for (text, expected) in [
        ("host=db user=u", "not a URL of the form postgres://"),
        ("https://h", "not a URL of the form postgres://"),
        ("", "not a URL of the form postgres://"),
        ("mysql://h", "a \"mysql\" URL"),
        ("amqps://h", "belongs to --broker"),
        (
            "postgres://h:x",
            "\"port\" in the URL is not a whole number from 1 to 65535",
        ),
        (
            "postgres://h:0",
            "\"port\" in the URL is not a whole number from 1 to 65535",
        ),
        (
            "postgres://h:65536",
            "\"port\" in the URL is not a whole number from 1 to 65535",
        ),
        ("postgres://::1/d", "write an IPv6 address in brackets"),
        ("postgres://[::1/d", "opens a bracket and does not close it"),
        ("postgres://[]/d", "has nothing between its brackets"),
        ("postgres://[::1]x/d", "goes on after its closing bracket"),
        ("postgres://a b/d", "holds a character that no host name has"),
        ("postgres://h/d?sslmode", "holds a key without \"=\""),
        (
            "postgres://h/d?sslmod=require",
            "unknown key \"sslmod\" in the URL: did you mean \"sslmode\"?",
        ),
        ("postgres://h/d?zzz=1", "unknown key \"zzz\" in the URL"),
        (
            "postgres://h/d?sslmode=on",
            "is none of disable, allow, prefer, require, verify-ca, verify-full: \"on\"",
        ),
        ("postgres://h/d?sslpassword=x", "give a key file without one"),
        ("postgres://h/d?sslcrl=x", "revocation lists are not checked"),
        ("postgres://h/d?replication=database", "Tailpost decides itself"),
        ("postgres://h/d?gssencmode=require", "is none of disable, prefer"),
        ("postgres://h/d?client_encoding=LATIN1", "must be UTF8 or auto"),
        ("postgres://h/d?require_auth=gss", "leaves no method"),
        ("postgres://h/d?require_auth=md5,!none", "mixes methods"),
        ("postgres://h/d?require_auth=magic", "names a method other than"),
        (
            "postgres://h/d?sslrootcert=system&sslmode=require",
            "sslrootcert=system needs sslmode=verify-full",
        ),
        (
            "postgres://h/d?sslnegotiation=direct",
            "sslnegotiation=direct needs sslmode=require",
        ),
        (
            "postgres://h/d?channel_binding=require&sslmode=disable",
            "channel_binding=require needs TLS",
        ),
        ("postgres://a,b?port=1,2,3", "another number of ports"),
        ("postgres://a,b?hostaddr=192.0.2.1", "another number of hosts"),
        ("postgres://h?hostaddr=name", "holds what is no IP address"),
        ("postgres://h?connect_timeout=soon", "is not a whole number"),
        ("postgres:///?host=@abstract", "abstract Unix socket"),
        ("postgres://h/%zz", "\"dbname\" is not percent-encoded UTF-8"),
        ("postgres://h/%ff", "\"dbname\" is not percent-encoded UTF-8"),
        ("postgres://h/%00", "\"dbname\" is not percent-encoded UTF-8"),
        ("postgres://h?service=none", "service \"none\" is not defined"),
        ("postgres://u:p@ss@h/d", "must be percent-encoded"),
        ("postgres://u:p/ss@h/d", "must be percent-encoded"),
    ] {
        let found = faults(text);
        assert!(
            found.len() == 1 && found[0].contains(expected),
            "{text}: {found:?}"
        );
    }
}

#[test]
fn all_faults_are_reported_at_once() {
    let surroundings = Surroundings::default().with("PGSSLMODE", "sometimes").nameless();
    let found = faults_in(
        "postgres://h:x/d?unknown=1&connect_timeout=soon&sslcrl=y",
        &surroundings,
    );
    assert_eq!(found.len(), 6, "{found:#?}");
    assert!(
        found
            .iter()
            .any(|fault| fault.contains("the environment (PGSSLMODE)")),
        "{found:#?}"
    );
    assert!(
        found.iter().any(|fault| fault.contains("names no user")),
        "{found:#?}"
    );
}

#[test]
fn urls_of_other_connectors_and_brokers_are_told_apart() {
    let first = |text| {
        Url::parse(text, &Surroundings::default())
            .expect_err("a fault")
            .remove(0)
    };
    assert_eq!(
        first("MariaDB://h"),
        UrlFault::Mysql {
            scheme: "mariadb".into()
        }
    );
    assert_eq!(
        first("mysql://u:canary@h"),
        UrlFault::Mysql {
            scheme: "mysql".into()
        }
    );
    assert_eq!(
        first("amqp://u:canary@h"),
        UrlFault::Broker {
            scheme: "amqp".into()
        }
    );
}

/// Everything that a user may see of a parsed or refused URL.
fn visible(text: &str) -> String {
    match Url::parse(text, &Surroundings::default()) {
        Ok(url) => {
            let hosts: Vec<String> = url.hosts().iter().map(ToString::to_string).collect();
            format!(
                "{url:?} {} {:?} {}",
                url.redacted(),
                url.security_notes(),
                hosts.join(" ")
            )
        }
        Err(faults) => faults.iter().map(|fault| format!("{fault} {fault:?} ")).collect(),
    }
}

/// Passwords pasted as they are, so that a piece of them looks like something else.
#[test]
fn pieces_of_a_mistyped_password_are_not_shown() {
    for text in [
        "postgres://user:canary",
        "postgres://user:canary/db",
        "postgres://user:canary/x?y=1@host/db",
        "postgres://user:1/x?canary=1@host/db",
        "postgres://user:1/x?sslmode=canary@host/db",
        "postgres://user:1/x?y=canary&z@host/db",
        "postgres://user:1/canary@host/db",
        "postgres://user:x@canary@host/db",
    ] {
        let found = faults(text);
        assert!(
            found.iter().all(|fault| !fault.contains("canary")),
            "{text}: {found:?}"
        );
    }
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "(postgres://)?[ -~]{0,60}") {
        visible(&text);
    }

    #[test]
    fn parsing_never_panics_on_any_text(text: String) {
        visible(&text);
        visible(&format!("postgres://{text}"));
    }

    /// The password is percent-encoded as it must be, and something else may be wrong.
    #[test]
    fn encoded_password_is_in_no_output(password in "[a-z0-9]{3}[!-~]{5,20}", rest in "[!-~]{0,20}", key in "[a-z_]{1,12}") {
        let encoded = percent_encoding::utf8_percent_encode(&password, percent_encoding::NON_ALPHANUMERIC);
        for text in [
            format!("postgres://user:{encoded}@host/db"),
            format!("postgres://user:{encoded}@{rest}"),
            format!("postgres://user:{encoded}@host/db?{key}={rest}"),
            format!("postgres://host/db?password={encoded}&{key}=1"),
            format!("mysql://user:{encoded}@host/db"),
            format!("user:{encoded}@host/db"),
        ] {
            let visible = visible(&text);
            prop_assert!(!visible.contains(&password), "{text}: {visible}");
            prop_assert!(!visible.contains(&encoded.to_string()), "{text}: {visible}");
        }
    }

    /// The password was pasted as it is: whatever it is taken for, no piece of four characters of it may be shown.
    #[test]
    fn pasted_password_is_in_no_fault(password in "[QXZ0-9@/?:&=%#]{8,20}") {
        let text = format!("postgres://user:{password}@host/db?sslmod=1");
        if let Err(faults) = Url::parse(&text, &Surroundings::default()) {
            let shown: String = faults.iter().map(|fault| format!("{fault} {fault:?} ")).collect();
            for piece in password.as_bytes().windows(4) {
                let piece = std::str::from_utf8(piece).expect("ASCII");
                let tells = piece.chars().any(|c| "QXZ".contains(c));
                prop_assert!(!tells || !shown.contains(piece), "{text}: {shown}");
            }
        }
    }
}
