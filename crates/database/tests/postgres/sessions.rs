//! SQL sessions with scripted servers: what refusals mean, and which server is chosen.

use std::sync::Arc;

use tailpost_database::postgres::{ConnectError, ConnectErrorKind, SqlSession};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::authorities::Authority;
use crate::scripted::{
    Server, accept_tls, answer_ssl_request, error, message, read_startup, trust_session, wait_for_end,
};
use crate::surroundings::url;

async fn trusting(standby: bool, read_only: bool) -> Server {
    Server::start(move |_, mut stream: TcpStream| async move {
        trust_session(&mut stream, standby, read_only).await;
        wait_for_end(&mut stream).await;
    })
    .await
}

async fn answering(answer: Vec<u8>) -> Server {
    Server::start(move |_, mut stream: TcpStream| {
        let answer = answer.clone();
        async move {
            read_startup(&mut stream).await;
            stream.write_all(&answer).await.expect("answered");
            wait_for_end(&mut stream).await;
        }
    })
    .await
}

async fn refusal(server: &Server, keys: &str) -> ConnectError {
    let error = SqlSession::connect(&url(&server.url(keys)), "tailpost/test@here")
        .await
        .expect_err("a refusal");
    assert!(
        !format!("{error:?} {error} {:?}", error.hint()).contains("canary"),
        "{error:?}"
    );
    error
}

#[tokio::test]
async fn each_refusal_of_a_server_is_sorted_with_its_hint() {
    use ConnectErrorKind::{Busy, Refused, Unreachable};
    let hba = "no pg_hba.conf entry for host \"::1\", user \"u\", database \"d\", no encryption";
    for (sqlstate, text, kind, hint) in [
        (
            "28P01",
            "password authentication failed for user \"u\"",
            Refused,
            "has this password",
        ),
        (
            "28000",
            "role \"u\" does not exist",
            Refused,
            "check that role \"u\" exists",
        ),
        (
            "28000",
            hba,
            Refused,
            "the keyword \"replication\" matches physical replication only",
        ),
        (
            "3D000",
            "database \"d\" does not exist",
            Refused,
            "create database \"d\"",
        ),
        (
            "53300",
            "sorry, too many clients already",
            Busy,
            "raise max_connections",
        ),
        ("57P03", "the database system is starting up", Busy, ""),
        (
            "57P01",
            "terminating connection due to administrator command",
            Busy,
            "",
        ),
        ("42501", "permission denied for database \"d\"", Refused, ""),
        ("53200", "out of memory", Busy, ""),
        ("08P01", "protocol violation", Unreachable, ""),
        ("XX000", "unexpected", Busy, ""),
    ] {
        let server = answering(error(sqlstate, text)).await;
        let error = refusal(&server, "sslmode=disable").await;
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(
            error.hint().unwrap_or_default().contains(hint),
            "{error:?}: {:?}",
            error.hint()
        );
        assert_eq!(server.connections(), 1);
    }
}

#[tokio::test]
async fn unacceptable_authentication_is_refused_before_a_password_is_sent() {
    let clear = message(b'R', &[0, 0, 0, 3]);
    let error = refusal(
        &answering(clear.clone()).await,
        "sslmode=disable&require_auth=scram-sha-256",
    )
    .await;
    assert!(matches!(error, ConnectError::AuthMethod { .. }), "{error:?}");
    let trusted = message(b'R', &[0; 4]);
    let error = refusal(
        &answering(trusted.clone()).await,
        "sslmode=disable&require_auth=!none",
    )
    .await;
    assert!(matches!(error, ConnectError::AuthMethod { .. }), "{error:?}");
    let error = refusal(&answering(trusted).await, "sslmode=allow&channel_binding=require").await;
    assert!(matches!(error, ConnectError::AuthMethod { .. }), "{error:?}");
    assert_eq!(error.kind(), ConnectErrorKind::Refused);
    let server = answering(clear).await;
    let without = format!(
        "postgres://u@127.0.0.1:{}/d?sslmode=disable",
        server.address.port()
    );
    let error = SqlSession::connect(&url(&without), "t")
        .await
        .expect_err("no password");
    assert!(matches!(error, ConnectError::NoPassword { .. }), "{error:?}");
}

#[tokio::test]
async fn server_that_talks_nonsense_gives_no_session() {
    let error = refusal(
        &answering(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await,
        "sslmode=disable",
    )
    .await;
    assert!(matches!(
        error,
        ConnectError::AuthMethod { .. } | ConnectError::Protocol { .. } | ConnectError::Broken { .. }
    ));
}

#[tokio::test]
async fn target_session_attrs_chooses_among_hosts() {
    let (standby, primary) = (trusting(true, false).await, trusting(false, false).await);
    let (first, second) = (standby.address.port(), primary.address.port());
    for (target, port) in [
        ("any", first),
        ("primary", second),
        ("read-write", second),
        ("standby", first),
        ("read-only", first),
    ] {
        let text = format!(
            "postgres://u@127.0.0.1:{first},127.0.0.1:{second}/d?sslmode=disable&target_session_attrs={target}"
        );
        let session = SqlSession::connect(&url(&text), "t").await.expect(target);
        assert_eq!(session.host().port(), port, "{target}");
    }
    let alone = format!("postgres://u@127.0.0.1:{second}/d?sslmode=disable&target_session_attrs=");
    let error = SqlSession::connect(&url(&format!("{alone}standby")), "t")
        .await
        .expect_err("no standby");
    assert!(matches!(error, ConnectError::WrongServer { .. }), "{error:?}");
    assert_eq!(error.kind(), ConnectErrorKind::Busy);
    SqlSession::connect(&url(&format!("{alone}prefer-standby")), "t")
        .await
        .expect("any will do");
}

/// With TLS pg_hba.conf has no line, in plaintext it has.
#[tokio::test]
async fn prefer_tries_plaintext_when_only_that_has_an_hba_line() {
    let config = Authority::new().issue(&["localhost"]).server();
    let server = Server::start(move |before, mut stream| {
        let config = Arc::clone(&config);
        async move {
            if before == 0 {
                let mut stream = accept_tls(stream, config).await.expect("a handshake");
                read_startup(&mut stream).await;
                let refusal = error("28000", "no pg_hba.conf entry for host \"h\", SSL encryption");
                stream.write_all(&refusal).await.expect("answered");
                wait_for_end(&mut stream).await;
            } else {
                trust_session(&mut stream, false, false).await;
                wait_for_end(&mut stream).await;
            }
        }
    })
    .await;
    SqlSession::connect(&url(&server.url("sslmode=prefer")), "t")
        .await
        .expect("in plaintext");
    assert_eq!(server.connections(), 2);
}

/// In plaintext pg_hba.conf has no line, with TLS it has.
#[tokio::test]
async fn allow_tries_tls_when_plaintext_is_refused() {
    let config = Authority::new().issue(&["localhost"]).server();
    let server = Server::start(move |before, mut stream| {
        let config = Arc::clone(&config);
        async move {
            if before == 0 {
                read_startup(&mut stream).await;
                let refusal = error("28000", "no pg_hba.conf entry for host \"h\", no encryption");
                stream.write_all(&refusal).await.expect("answered");
                wait_for_end(&mut stream).await;
            } else {
                let mut stream = accept_tls(stream, config).await.expect("a handshake");
                trust_session(&mut stream, false, false).await;
                wait_for_end(&mut stream).await;
            }
        }
    })
    .await;
    SqlSession::connect(&url(&server.url("sslmode=allow")), "t")
        .await
        .expect("with TLS");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn wrong_password_is_not_tried_in_the_other_encryption() {
    let server = Server::start(move |_, mut stream| async move {
        answer_ssl_request(&mut stream, b"N").await;
        read_startup(&mut stream).await;
        stream
            .write_all(&error("28P01", "password authentication failed"))
            .await
            .expect("answered");
        wait_for_end(&mut stream).await;
    })
    .await;
    assert!(matches!(
        refusal(&server, "sslmode=prefer").await,
        ConnectError::Credentials { .. }
    ));
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn end_of_a_session_tells_the_servers_last_word() {
    let server = Server::start(move |_, mut stream: TcpStream| async move {
        trust_session(&mut stream, false, false).await;
        let last = error("57P01", "terminating connection due to administrator command");
        stream.write_all(&last).await.expect("said");
    })
    .await;
    let session = SqlSession::connect(&url(&server.url("sslmode=disable")), "t")
        .await
        .expect("a session");
    let closed = session.closed().await;
    assert_eq!(closed.sqlstate.as_deref(), Some("57P01"));
    assert_eq!(session.closed().await, closed);
}

#[tokio::test]
async fn broken_connection_ends_a_session_without_sqlstate() {
    let server = Server::start(move |_, mut stream: TcpStream| async move {
        trust_session(&mut stream, false, false).await
    })
    .await;
    let session = SqlSession::connect(&url(&server.url("sslmode=disable")), "t")
        .await
        .expect("a session");
    assert_eq!(session.closed().await.sqlstate, None);
}

#[tokio::test]
async fn closing_ends_the_connection_in_order() {
    let (tell, told) = tokio::sync::oneshot::channel();
    let tell = std::sync::Mutex::new(Some(tell));
    let server = Server::start(move |_, mut stream: TcpStream| {
        let tell = tell.lock().expect("not poisoned").take().expect("one connection");
        async move {
            trust_session(&mut stream, false, false).await;
            let mut rest = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest)
                .await
                .expect("an orderly end");
            tell.send(rest).expect("the test listens");
        }
    })
    .await;
    let session = SqlSession::connect(&url(&server.url("sslmode=disable")), "t")
        .await
        .expect("a session");
    session.close().await;
    assert_eq!(told.await.expect("the end"), message(b'X', b""));
}

#[tokio::test]
async fn client_certificate_that_the_server_misses_is_a_refusal() {
    let authority = Authority::new();
    let config = authority.demanding(&authority.issue(&["localhost"]));
    let server = Server::start(move |_, mut stream| {
        let acceptor = TlsAcceptor::from(Arc::clone(&config));
        async move {
            answer_ssl_request(&mut stream, b"S").await;
            // The socket stays open, so that the alert is not lost to a reset.
            if let Err((_refused, mut stream)) = acceptor.accept(stream).into_fallible().await {
                wait_for_end(&mut stream).await;
            }
        }
    })
    .await;
    let error = refusal(&server, "sslmode=require").await;
    assert_eq!(error.kind(), ConnectErrorKind::Refused, "{error:?}");
    assert!(error.hint().expect("a hint").contains("sslcert"), "{error:?}");
}
