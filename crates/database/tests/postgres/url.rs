//! What right URLs mean.

use std::time::Duration;

use tailpost_database::postgres::{AuthMethod, ChannelBinding, SslMode, TargetSession, Url};

use crate::surroundings::{Surroundings, url, url_in};

/// `USER HOSTS DATABASE`, as one line.
fn summary(url: &Url) -> String {
    let hosts: Vec<String> = url.hosts().iter().map(ToString::to_string).collect();
    format!("{} {} {}", url.user(), hosts.join(","), url.database())
}

#[test]
fn urls_mean_what_libpq_takes_them_to_mean() {
    for (text, expected) in [
        ("postgres://", "me /run/pg/.s.PGSQL.5432 me"),
        ("postgresql://localhost", "me localhost:5432 me"),
        ("POSTGRES://h", "me h:5432 me"),
        ("postgres://h:5433", "me h:5433 me"),
        ("postgres://h:/", "me h:5432 me"),
        ("postgres://h/shop", "me h:5432 shop"),
        ("postgres://u@h/shop", "u h:5432 shop"),
        ("postgres://u:@h", "u h:5432 u"),
        ("postgres://u@", "u /run/pg/.s.PGSQL.5432 u"),
        ("postgres://u:p%40:w@h", "u h:5432 u"),
        ("postgres://u:p?w@h/d", "u h:5432 d"),
        ("postgres://u%40x:p@h/a%2Fb%20c", "u@x h:5432 a/b c"),
        ("postgres://a,b:1,c/d", "me a:5432,b:1,c:5432 d"),
        (
            "postgres://[::1]:5433,[2001:db8::1]/d",
            "me [::1]:5433,[2001:db8::1]:5432 d",
        ),
        ("postgres://%2Fvar%2Frun:5433/d", "me /var/run/.s.PGSQL.5433 d"),
        ("postgres:///d?host=/srv/pg", "me /srv/pg/.s.PGSQL.5432 d"),
        ("postgres:///d?host=a,b&port=1,2", "me a:1,b:2 d"),
        ("postgres:///d?host=a,b&port=7", "me a:7,b:7 d"),
        ("postgres://u@h/d?user=other&dbname=e&port=9", "other h:9 e"),
        ("postgres://h/d?user=u@tenant", "u@tenant h:5432 d"),
        // As in libpq: an "@" before any "/" ends the credentials.
        ("postgres://h?user=u@tenant", "h?user=u tenant:5432 h?user=u"),
        ("postgres://h?hostaddr=192.0.2.7", "me h:5432 me"),
        ("postgres://?hostaddr=192.0.2.7", "me 192.0.2.7:5432 me"),
        ("postgres://h/d?", "me h:5432 d"),
        ("postgres://h/d?application_name=", "me h:5432 d"),
    ] {
        assert_eq!(summary(&url(text)), expected, "{text}");
    }
}

#[test]
fn gaps_are_filled_from_the_environment_and_the_url_wins() {
    let surroundings = Surroundings::default()
        .with("PGHOST", "envhost")
        .with("PGPORT", "6000")
        .with("PGUSER", "envuser")
        .with("PGDATABASE", "envdb")
        .with("PGSSLMODE", "require")
        .with("PGAPPNAME", "envapp")
        .with("PGOPTIONS", "-c geqo=off")
        .with("PGCONNECT_TIMEOUT", "3")
        .with("PGCHANNELBINDING", "require")
        .with("PGREQUIREAUTH", "scram-sha-256")
        .with("PGTARGETSESSIONATTRS", "primary");
    let from_environment = url_in("postgres://", &surroundings);
    assert_eq!(summary(&from_environment), "envuser envhost:6000 envdb");
    assert_eq!(from_environment.ssl_mode(), SslMode::Require);
    assert_eq!(from_environment.application_name(), Some("envapp"));
    assert_eq!(from_environment.options(), Some("-c geqo=off"));
    assert_eq!(from_environment.connect_timeout(), Some(Duration::from_secs(3)));
    assert_eq!(from_environment.channel_binding(), ChannelBinding::Require);
    assert_eq!(from_environment.target_session(), TargetSession::Primary);
    assert!(!from_environment.require_auth().allows(AuthMethod::Md5));
    let mine = url_in(
        "postgres://u@h:1/d?sslmode=verify-ca&target_session_attrs=any",
        &surroundings,
    );
    assert_eq!(summary(&mine), "u h:1 d");
    assert_eq!(mine.ssl_mode(), SslMode::VerifyCa);
    assert_eq!(mine.target_session(), TargetSession::Any);
}

#[test]
fn empty_parts_are_gaps_and_empty_keys_are_not() {
    let surroundings = Surroundings::default()
        .with("PGUSER", "envuser")
        .with("PGPORT", "6000")
        .with("PGDATABASE", "envdb")
        .with("PGAPPNAME", "envapp");
    let summary_of = |text| summary(&url_in(text, &surroundings));
    assert_eq!(summary_of("postgres://@h/"), "envuser h:6000 envdb");
    assert_eq!(summary_of("postgres://a,b"), "envuser a:5432,b:5432 envdb");
    assert_eq!(summary_of("postgres://a?dbname="), "envuser a:6000 envuser");
    assert_eq!(
        url_in("postgres://h?application_name=", &surroundings).application_name(),
        None
    );
    assert_eq!(
        url_in("postgres://h", &surroundings).application_name(),
        Some("envapp")
    );
}

#[test]
fn service_stands_between_url_and_environment() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = "[orders]\nhost=svc\nport=7000\nuser=svcuser\nsslmode=verify-full\n";
    std::fs::write(folder.path().join(".pg_service.conf"), service).expect("written");
    let surroundings = Surroundings::default()
        .at_home(folder.path())
        .with("PGHOST", "env")
        .with("PGDATABASE", "envdb");
    let by_key = url_in("postgres://u@?service=orders", &surroundings);
    assert_eq!(summary(&by_key), "u svc:7000 envdb");
    assert_eq!(by_key.ssl_mode(), SslMode::VerifyFull);
    let by_variable = url_in("postgres://", &surroundings.with("PGSERVICE", "orders"));
    assert_eq!(summary(&by_variable), "svcuser svc:7000 envdb");
    let elsewhere = folder.path().join("other");
    std::fs::write(&elsewhere, "[orders]\nhost=elsewhere\n").expect("written");
    let named = format!("postgres:///d?service=orders&servicefile={}", elsewhere.display());
    assert_eq!(summary(&url(&named)), "me elsewhere:5432 d");
}

#[test]
fn tls_and_time_keys_are_read() {
    assert_eq!(url("postgres://h").ssl_mode(), SslMode::Prefer);
    assert_eq!(url("postgres://h?ssl=true").ssl_mode(), SslMode::Require);
    assert_eq!(
        url("postgres://h?sslrootcert=system").ssl_mode(),
        SslMode::VerifyFull
    );
    assert_eq!(
        url("postgres://h").connect_timeout(),
        Some(Duration::from_secs(10))
    );
    assert_eq!(url("postgres://h?connect_timeout=0").connect_timeout(), None);
    assert_eq!(url("postgres://h?connect_timeout=-1").connect_timeout(), None);
    let auth = url("postgres://h?require_auth=!password,!md5").require_auth();
    assert!(auth.allows(AuthMethod::ScramSha256) && auth.allows(AuthMethod::None));
    assert!(!auth.allows(AuthMethod::Password) && !auth.allows(AuthMethod::Md5));
}

#[test]
fn loopback_and_unix_hosts_draw_no_security_note() {
    for text in [
        "postgres://",
        "postgres://localhost",
        "postgres://127.0.0.1?sslmode=disable",
        "postgres://[::1]",
    ] {
        assert_eq!(url(text).security_notes(), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn each_weak_sslmode_draws_its_security_note() {
    for (keys, note) in [
        ("", "sslmode=prefer, which is the default, goes on in plaintext"),
        ("?sslmode=prefer", "sslmode=prefer goes on in plaintext"),
        ("?sslmode=disable", "can be read and changed on the way"),
        ("?sslmode=require", "does not verify the certificate"),
        (
            "?sslmode=require&sslrootcert=/ca",
            "does not verify that the certificate is of",
        ),
        ("?sslmode=verify-ca", "does not verify that the certificate is of"),
    ] {
        let notes = url(&format!("postgres://localhost,db.example{keys}")).security_notes();
        assert!(
            notes.len() == 1 && notes[0].contains(note) && notes[0].contains("db.example:5432"),
            "{keys}: {notes:?}"
        );
    }
    assert_eq!(
        url("postgres://db.example?sslmode=verify-full").security_notes(),
        Vec::<String>::new()
    );
}

#[test]
fn ignored_password_file_draws_a_security_note() {
    let folder = tempfile::tempdir().expect("a folder");
    // A fresh file of mode 0644, as an editor makes it.
    let path = folder.path().join(".pgpass");
    std::fs::write(&path, "*:*:*:*:canary").expect("written");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).expect("mode set");
    let surroundings = Surroundings::default().at_home(folder.path());
    let notes = url_in("postgres://localhost", &surroundings).security_notes();
    assert!(
        notes.len() == 1 && notes[0].contains("chmod 0600") && !notes[0].contains("canary"),
        "{notes:?}"
    );
    assert_eq!(
        url_in("postgres://u:p@localhost", &surroundings).security_notes(),
        Vec::<String>::new()
    );
}

#[test]
fn redacted_url_is_a_url_again_without_the_password() {
    let full = url("postgres://u%40x:canary@[::1]:1,%2Frun%2Fpg/a%2Fb?sslmode=require&password=canary");
    let redacted = full.redacted();
    assert_eq!(
        redacted,
        "postgres://u%40x@[::1]:1,%2Frun%2Fpg:5432/a%2Fb?sslmode=require"
    );
    assert_eq!(summary(&url(&redacted)), summary(&full));
    assert_eq!(format!("{full:?}"), format!("Url({redacted})"));
}
