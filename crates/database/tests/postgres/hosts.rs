//! Several hosts: which is tried, in which order, and what is said when none will do.

use std::time::Duration;

use tailpost_database::postgres::{ConnectError, ConnectErrorKind, connect};
use tokio::net::{TcpListener, TcpStream};

use crate::scripted::{Server, answer_ssl_request, wait_for_end};
use crate::surroundings::url;

/// A port on which nobody listens.
async fn dead_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address").port()
}

async fn silent() -> Server {
    Server::start(|_, mut stream: TcpStream| async move { wait_for_end(&mut stream).await }).await
}

#[tokio::test]
async fn hosts_are_tried_in_order_until_one_answers() {
    let (dead, alive) = (dead_port().await, silent().await);
    let port = alive.address.port();
    let text = format!("postgres://u@127.0.0.1:{dead},127.0.0.1:{port}/d?sslmode=disable");
    assert_eq!(connect(&url(&text)).await.expect("the second").host.port(), port);
}

#[tokio::test]
async fn all_hosts_are_named_when_none_answers() {
    let (one, two) = (dead_port().await, dead_port().await);
    let error = connect(&url(&format!(
        "postgres://u:canary@127.0.0.1:{one},127.0.0.1:{two}/d?sslmode=disable"
    )))
    .await;
    let error = error.expect_err("nobody there");
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
    let text = error.to_string();
    assert!(
        text.contains(&one.to_string()) && text.contains(&two.to_string()) && !text.contains("canary"),
        "{text}"
    );
    let alone = connect(&url(&format!("postgres://u@127.0.0.1:{one}/d")))
        .await
        .expect_err("nobody there");
    assert!(matches!(alone, ConnectError::Reach { .. }), "{alone:?}");
}

#[tokio::test]
async fn refusal_that_waiting_does_not_mend_ends_the_search() {
    let stripping = Server::start(|_, mut stream| async move {
        answer_ssl_request(&mut stream, b"N").await;
        wait_for_end(&mut stream).await;
    })
    .await;
    let next = silent().await;
    let (one, two) = (stripping.address.port(), next.address.port());
    let text = format!("postgres://u@127.0.0.1:{one},127.0.0.1:{two}/d?sslmode=require");
    let error = connect(&url(&text)).await.expect_err("no TLS");
    assert!(matches!(error, ConnectError::Tls { .. }), "{error:?}");
    assert_eq!(next.connections(), 0);
}

#[tokio::test]
async fn host_that_accepts_and_says_nothing_is_given_up_after_connect_timeout() {
    let server = silent().await;
    let error = connect(&url(&server.url("sslmode=require&connect_timeout=1")))
        .await
        .expect_err("silence");
    assert!(
        matches!(error, ConnectError::Timeout { limit, .. } if limit == Duration::from_secs(1)),
        "{error:?}"
    );
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
}

#[tokio::test]
async fn name_that_does_not_resolve_is_unreachable() {
    let error = connect(&url("postgres://no-such-host.invalid/d"))
        .await
        .expect_err("no address");
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
    assert!(
        matches!(error, ConnectError::Resolve { .. } | ConnectError::Timeout { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn missing_unix_socket_is_unreachable_and_names_its_path() {
    let error = connect(&url("postgres://%2Fnonexistent:7/d"))
        .await
        .expect_err("no socket");
    assert_eq!(
        error.to_string(),
        "could not connect to \"/nonexistent/.s.PGSQL.7\""
    );
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
}

#[tokio::test]
async fn missing_password_file_is_found_before_anything_is_sent() {
    let server = silent().await;
    let url = url(&server.url("sslmode=disable")).with_password_file("/nonexistent/password".into());
    let error = connect(&url).await.expect_err("no file");
    assert!(matches!(error, ConnectError::PasswordFile { .. }), "{error:?}");
    assert_eq!(server.connections(), 0);
}
