//! Each path over a real connection, with requests written by hand.

use serde_json::{Value, json};
use tailpost_relay::Link;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

use super::*;

const STALL_AFTER: Duration = Duration::from_secs(60);

fn server(progress: &Arc<Progress>) -> Server {
    Server::bind(([127, 0, 0, 1], 0).into(), Arc::clone(progress), STALL_AFTER).unwrap()
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// Sends `request` as it is and reads until the server closes.
async fn exchange(server: &Server, request: &str) -> Answer {
    let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_lowercase(),
        body: body.into(),
    }
}

async fn ask(server: &Server, method: &str, path: &str) -> Answer {
    exchange(
        server,
        &format!("{method} {path} HTTP/1.1\r\nHost: tailpost\r\n\r\n"),
    )
    .await
}

fn connected(progress: &Progress) {
    progress.update(|state| {
        state.source = Link::Connected;
        state.sink = Link::Connected;
    });
}

async fn readyz(server: &Server) -> (u16, Value) {
    let answer = ask(server, "GET", "/readyz").await;
    assert!(
        answer.head.contains("content-type: application/json"),
        "{}",
        answer.head
    );
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

#[tokio::test]
async fn livez_answers_whatever_the_relay_does() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    progress.update(|state| state.halted = Some("poison".into()));
    let answer = ask(&server, "GET", "/livez").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "alive\n"));
}

#[tokio::test]
async fn readyz_tells_the_true_reason_in_each_state() {
    type Change = fn(&mut tailpost_relay::State);
    let not_ready: [(&str, Change); 8] = [
        ("connecting to the source", |state| state.source = Link::Starting),
        ("no broker: refused", |state| {
            state.sink = Link::Retrying {
                why: "refused".into(),
            }
        }),
        ("the broker blocks publishers: low on memory", |state| {
            state.blocked = Some("low on memory".into())
        }),
        ("the offset cannot be stored: disk full", |state| {
            state.store_failing = Some("disk full".into())
        }),
        ("order/4711 is returned", |state| {
            state.holding = Some("order/4711 is returned".into())
        }),
        ("stopping", |state| state.draining = true),
        ("halted: poison", |state| state.halted = Some("poison".into())),
        ("halted: poison", |state| {
            state.halted = Some("poison".into());
            state.source = Link::Standby { holder: "b".into() };
        }),
    ];
    for (reason, change) in not_ready {
        let progress = Arc::new(Progress::default());
        let server = server(&progress);
        assert_eq!(readyz(&server).await.0, 503, "nothing is connected yet");
        connected(&progress);
        assert_eq!(
            readyz(&server).await,
            (200, json!({"ready": true, "role": "active"}))
        );
        progress.update(change);
        let expected = json!({"ready": false, "role": "active", "reason": reason});
        assert_eq!(readyz(&server).await, (503, expected));
    }
}

#[tokio::test]
async fn a_standby_is_ready_and_names_the_holder() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    progress.update(|state| {
        state.source = Link::Standby {
            holder: "process 7 on host db1".into(),
        }
    });
    let expected = json!({"ready": true, "role": "standby", "holder": "process 7 on host db1"});
    assert_eq!(readyz(&server).await, (200, expected));
}

#[tokio::test]
async fn a_stall_is_not_ready() {
    let progress = Arc::new(Progress::default());
    let server = Server::bind(([127, 0, 0, 1], 0).into(), Arc::clone(&progress), Duration::ZERO).unwrap();
    connected(&progress);
    progress.update(|state| state.last_confirm = Some(Instant::now()));
    assert_eq!(readyz(&server).await.0, 200, "nothing is in flight");
    progress.in_flight.set(1);
    progress.update(|state| state.busy_since = Some(Instant::now()));
    let (status, answer) = readyz(&server).await;
    assert_eq!(
        (status, &answer["reason"]),
        (503, &json!("nothing was confirmed for 0 s"))
    );
}

#[tokio::test]
async fn text_from_outside_cannot_leave_its_json_string_or_line() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    let hostile = "\",\"ready\":true,\n\x1b[2J\u{202e}<script>";
    progress.update(|state| state.halted = Some(hostile.into()));
    let answer = ask(&server, "GET", "/readyz").await;
    assert_eq!(
        answer
            .body
            .matches(|char: char| char.is_control() || char == '\u{202e}')
            .count(),
        1,
        "{}",
        answer.body
    );
    let parsed: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!(
        (&parsed["ready"], &parsed["reason"]),
        (&json!(false), &json!(format!("halted: {hostile}")))
    );
    let page = ask(&server, "GET", "/").await;
    assert!(
        page.head.contains("content-type: text/plain")
            && page.head.contains("x-content-type-options: nosniff")
    );
    assert!(
        page.body
            .contains("ready        no: halted: \",\"ready\":true,\\n\\u{1b}[2J\\u{202e}<script>\n"),
        "{}",
        page.body
    );
}

#[tokio::test]
async fn metrics_are_scraped_in_the_format_asked_for() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    progress.confirmed.add(42);
    let answer = ask(&server, "GET", "/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.head.contains("content-type: text/plain; version=0.0.4"),
        "{}",
        answer.head
    );
    assert!(
        answer.body.contains("\ntailpost_messages_confirmed_total 42\n"),
        "{}",
        answer.body
    );
    let request =
        "GET /metrics HTTP/1.1\r\nHost: t\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n";
    let answer = exchange(&server, request).await;
    assert!(
        answer.head.contains("content-type: application/openmetrics-text"),
        "{}",
        answer.head
    );
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn the_status_page_shows_the_relay() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    connected(&progress);
    progress.update(|state| state.stored = Some("16/B374D848".into()));
    let answer = ask(&server, "GET", "/?refresh=1").await;
    assert_eq!(answer.status, 200);
    assert!(
        answer.body.starts_with("tailpost ") && answer.body.contains("stored       16/B374D848\n"),
        "{}",
        answer.body
    );
}

#[tokio::test]
async fn other_paths_and_methods_are_told_what_there_is() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    let answer = ask(&server, "GET", "/healthz").await;
    assert_eq!(answer.status, 404);
    assert!(
        PATHS
            .iter()
            .all(|path| answer.body.lines().any(|line| line == *path)),
        "{}",
        answer.body
    );
    for path in PATHS {
        let answer = ask(&server, "POST", path).await;
        assert_eq!(answer.status, 405, "{path}");
        assert!(answer.head.contains("allow: get, head"), "{}", answer.head);
        let answer = ask(&server, "HEAD", path).await;
        assert!(
            [200, 503].contains(&answer.status) && answer.body.is_empty(),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_taken_port_is_a_clear_error() {
    let progress = Arc::new(Progress::default());
    let first = server(&progress);
    let error = Server::bind(first.local_addr(), progress, STALL_AFTER).unwrap_err();
    let failure = Failure::from(error);
    assert_eq!(failure.disposition, Disposition::Setup);
    assert!(
        failure
            .to_string()
            .starts_with(&format!("could not listen on {}: ", first.local_addr())),
        "{failure}"
    );
    assert!(failure.hint.unwrap().contains("--listen off"));
}

#[tokio::test]
async fn more_clients_than_room_wait_and_slow_ones_are_cut_off() {
    let progress = Arc::new(Progress::default());
    let server = server(&progress);
    let mut idle = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut stream = TcpStream::connect(server.local_addr()).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost:").await.unwrap();
        idle.push(stream);
    }
    let began = Instant::now();
    let answer = ask(&server, "GET", "/livez").await;
    assert_eq!(answer.status, 200);
    assert!(
        began.elapsed() >= HEADER_TIMEOUT - Duration::from_secs(1),
        "it waited for room: {:?}",
        began.elapsed()
    );
    assert!(
        began.elapsed() < LIFETIME,
        "half a request kept its room for {:?}",
        began.elapsed()
    );
    for stream in &mut idle {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(!rest.starts_with(b"HTTP/1.1 200"), "half a request was answered");
    }
}

#[tokio::test]
async fn a_dropped_server_frees_its_port_and_ends_its_connections() {
    let progress = Arc::new(Progress::default());
    let first = server(&progress);
    let addr = first.local_addr();
    let mut open = TcpStream::connect(addr).await.unwrap();
    assert_eq!(
        ask(&first, "GET", "/livez").await.status,
        200,
        "so the connection before was accepted too"
    );
    drop(first);
    let mut rest = Vec::new();
    // Reset or closed: either way it ends.
    let ended = timeout(Duration::from_secs(5), open.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "the connection outlived its server");
    let second = Server::bind(addr, progress, STALL_AFTER).unwrap();
    assert_eq!(ask(&second, "GET", "/livez").await.status, 200);
}
