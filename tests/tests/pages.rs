//! `/livez`, `/readyz`, `/metrics` and the status page, while something happens to talk about.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tailpost_testkit::consumer::QueueKind;
use tailpost_testkit::http;
use tailpost_testkit::ports::free_address;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Proxy, Tailpost, shared_rabbit};
use tailpost_tests::{LONG, QUEUE, Scene};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn event(kind: &str) -> String {
    format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '7', '{kind}', '{{}}');"
    )
}

async fn prepared() -> Result<Scene> {
    let scene = Scene::shared().await?;
    scene.prepare_with(QueueKind::Classic, &["order.created"]).await?;
    Ok(scene)
}

/// Waits until `/readyz` answers `status`, and returns what it says.
async fn readyz(tailpost: &Tailpost, status: u16, word: &str) -> Result<Value> {
    let what = format!("/readyz says {status} and {word}");
    let answer = until(&what, LONG, async || {
        let answer = tailpost.get("/readyz").await.ok();
        Ok(answer.filter(|answer| answer.status == status && answer.body.contains(word)))
    });
    Ok(serde_json::from_str(
        &answer.await.with_context(|| tailpost.stderr())?.body,
    )?)
}

/// A line of the status page, by its name.
async fn line(tailpost: &Tailpost, name: &str) -> Result<String> {
    let page = tailpost.get("/").await?;
    ensure!(
        page.status == 200 && page.body.starts_with("tailpost "),
        "{page:?}"
    );
    let line = page.body.lines().find_map(|line| line.strip_prefix(name));
    Ok(line
        .with_context(|| format!("no line {name} in {}", page.body))?
        .trim()
        .to_owned())
}

/// Every sample of `/metrics`.
async fn metrics(tailpost: &Tailpost) -> Result<BTreeMap<String, f64>> {
    let page = tailpost.get("/metrics").await?;
    ensure!(page.status == 200, "{page:?}");
    let samples = page
        .body
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    samples
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').context("no value")?;
            Ok((name.to_owned(), value.parse()?))
        })
        .collect()
}

fn assert_metrics(found: &BTreeMap<String, f64>, wanted: &[(&str, f64)]) -> Result<()> {
    for (name, value) in wanted {
        ensure!(
            found.get(*name) == Some(value),
            "{name}: {:?} instead of {value}",
            found.get(*name)
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn readyz_is_503_with_the_reason_until_the_broker_is_up_and_again_while_it_is_away() -> Result<()> {
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    proxy.refuse();
    let tailpost = scene.run_by(&scene.vhost.url_by(proxy.address()), &[])?;
    let said = readyz(&tailpost, 503, "no broker: ").await?;
    ensure!(said["ready"] == false && said["role"] == "active", "{said}");
    ensure!(tailpost.get("/livez").await?.status == 200);
    ensure!(line(&tailpost, "ready").await?.starts_with("no: no broker"));
    let down = [
        ("tailpost_ready", 0.0),
        ("tailpost_broker_connected", 0.0),
        ("tailpost_active", 1.0),
        ("tailpost_halted", 0.0),
    ];
    assert_metrics(&metrics(&tailpost).await?, &down)?;
    proxy.accept();
    ensure!(readyz(&tailpost, 200, "").await? == json!({ "ready": true, "role": "active" }));
    let up = [
        ("tailpost_ready", 1.0),
        ("tailpost_broker_connected", 1.0),
        ("tailpost_source_connected", 1.0),
    ];
    assert_metrics(&metrics(&tailpost).await?, &up)?;
    ensure!(line(&tailpost, "broker").await? == "connected" && line(&tailpost, "ready").await? == "yes");
    scene.database.execute(&event("created")).await?;
    consumer.wait_for(1, LONG).await?;
    proxy.refuse();
    readyz(&tailpost, 503, "no broker: ").await?;
    scene.database.execute(&event("created")).await?;
    proxy.accept();
    readyz(&tailpost, 200, "").await?;
    assert_metrics(
        &metrics(&tailpost).await?,
        &[("tailpost_broker_connection_losses_total", 1.0)],
    )?;
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_counters_of_metrics_are_what_happened() -> Result<()> {
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    let before = metrics(&tailpost).await?;
    ensure!(
        !before.contains_key("tailpost_last_confirm_age_seconds"),
        "{before:?}"
    );
    for _ in 0..20 {
        scene.database.execute(&event("created").repeat(5)).await?;
    }
    scene
        .database
        .execute("CREATE TABLE other (id int); INSERT INTO other VALUES (1)")
        .await?;
    consumer.wait_for(100, LONG).await?;
    let now = until("all are counted and stored", LONG, async || {
        let now = metrics(&tailpost).await?;
        let done =
            now["tailpost_messages_confirmed_total"] >= 100.0 && now["tailpost_events_unsettled"] == 0.0;
        Ok(
            (done && now["tailpost_offset_stores_total"] > before["tailpost_offset_stores_total"])
                .then_some(now),
        )
    });
    let now = now.await?;
    let wanted = [
        ("tailpost_rows_read_total", 100.0),
        ("tailpost_messages_published_total", 100.0),
        ("tailpost_messages_confirmed_total", 100.0),
        ("tailpost_messages_returned_total", 0.0),
        ("tailpost_messages_nacked_total", 0.0),
        ("tailpost_broker_connection_losses_total", 0.0),
        ("tailpost_source_connection_losses_total", 0.0),
        ("tailpost_messages_in_flight", 0.0),
        ("tailpost_unsettled_bytes", 0.0),
        ("tailpost_events_held", 0.0),
        ("tailpost_broker_blocked", 0.0),
        ("tailpost_intake_held", 0.0),
        ("tailpost_offset_store_failing", 0.0),
        ("tailpost_draining", 0.0),
    ];
    assert_metrics(&now, &wanted)?;
    ensure!(
        now["tailpost_transactions_read_total"] >= 20.0 && now["tailpost_resident_memory_bytes"] > 1e6,
        "{now:?}"
    );
    ensure!(line(&tailpost, "confirmed").await? == "100" && line(&tailpost, "role").await? == "active");
    // A message that no queue takes, and the one behind it.
    scene
        .database
        .execute(&format!("{} {}", event("unroutable"), event("created")))
        .await?;
    until("it is returned, and returned again", LONG, async || {
        let now = metrics(&tailpost).await?;
        let held = now["tailpost_events_held"];
        ensure!(held <= 1.0, "{held} events are held, and one waits for another");
        let again = now["tailpost_messages_returned_total"] >= 2.0 && now["tailpost_events_unsettled"] == 2.0;
        Ok((again && held == 1.0).then_some(()))
    })
    .await?;
    scene.vhost.bind("events", QUEUE, "#").await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(verdict.committed == 102 && verdict.duplicates == 0, "{verdict}");
    until("all are confirmed", LONG, async || {
        let now = metrics(&tailpost).await?;
        Ok((now["tailpost_messages_confirmed_total"] == 102.0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_has_a_help_text_and_a_type_and_counters_end_in_total() -> Result<()> {
    let scene = prepared().await?;
    let tailpost = scene.run_ready(&[]).await?;
    let page = tailpost.get("/metrics").await?.body;
    let of = |prefix: &str| -> BTreeMap<String, String> {
        let lines = page
            .lines()
            .filter_map(|line| line.strip_prefix(prefix)?.split_once(' '));
        lines
            .map(|(name, rest)| (name.to_owned(), rest.to_owned()))
            .collect()
    };
    let (help, types) = (of("# HELP "), of("# TYPE "));
    let samples: BTreeSet<String> = metrics(&tailpost)
        .await?
        .into_keys()
        .map(|name| name.split('{').next().unwrap_or_default().to_owned())
        .collect();
    ensure!(samples.len() > 20, "{page}");
    for name in &samples {
        ensure!(
            help.get(name).is_some_and(|text| text.len() > 20),
            "no help for {name}: {page}"
        );
        let kind = types.get(name).with_context(|| format!("no type for {name}"))?;
        ensure!(
            name.starts_with("tailpost_") && (kind == "counter") == name.ends_with("_total"),
            "{name} is a {kind}"
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_told_to_stop_is_unready_and_says_why_until_it_ends_with_75() -> Result<()> {
    let scene = prepared().await?;
    let mut tailpost = scene.run_ready(&["--drain-timeout", "2s"]).await?;
    scene.database.execute(&event("unroutable")).await?;
    until("it is returned", LONG, async || {
        Ok(tailpost
            .metric("tailpost_messages_returned_total")
            .await?
            .filter(|count| *count > 0.0))
    })
    .await?;
    tailpost.sigterm()?;
    let said = readyz(&tailpost, 503, "stopping").await?;
    ensure!(said["reason"] == "stopping", "{said}");
    ensure!(tailpost.metric("tailpost_draining").await? == Some(1.0));
    let status = tailpost.wait(LONG).await?;
    ensure!(
        status.code() == Some(75) && tailpost.stderr().contains("1 events were not settled"),
        "{status}: {}",
        tailpost.stderr()
    );
    Ok(())
}

/// Sends bytes as they are, and returns all of the answer.
async fn raw(address: SocketAddr, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_path_is_404_with_the_known_ones_and_only_reading_is_allowed() -> Result<()> {
    let scene = prepared().await?;
    let tailpost = scene.run_ready(&[]).await?;
    for path in ["/nothing", "/readyz/", "/metrics/x", "/../etc/passwd", "//"] {
        let answer = tailpost.get(path).await?;
        ensure!(answer.status == 404, "{path}: {answer:?}");
        ensure!(
            ["/livez", "/readyz", "/metrics"]
                .iter()
                .all(|known| answer.body.contains(known)),
            "{answer:?}"
        );
    }
    ensure!(tailpost.get("/readyz?verbose").await?.status == 200);
    let address = tailpost.listen().context("it does not listen")?;
    for method in ["POST", "DELETE", "PUT"] {
        let answer = raw(
            address,
            &format!("{method} /readyz HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"),
        )
        .await?;
        ensure!(answer.starts_with("HTTP/1.1 405"), "{method}: {answer}");
    }
    let head = raw(address, "HEAD /livez HTTP/1.1\r\nhost: x\r\n\r\n").await?;
    ensure!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    // Nonsense harms nobody.
    let garbage = raw(address, "\u{16}\u{3}\u{1} nonsense\r\n\r\n")
        .await
        .unwrap_or_default();
    ensure!(!garbage.starts_with("HTTP/1.1 200"), "{garbage}");
    ensure!(tailpost.get("/livez").await?.status == 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn listen_says_where_and_off_means_nowhere() -> Result<()> {
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    let address = free_address()?;
    let text = address.to_string();
    let mut tailpost = scene.run(&["--listen", &text])?;
    until("it is ready", LONG, async || {
        Ok(http::get(address, "/readyz")
            .await
            .ok()
            .filter(|answer| answer.status == 200)
            .map(drop))
    })
    .await
    .with_context(|| tailpost.stderr())?;
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    let tailpost = scene.run(&["--listen", "off"])?;
    scene.database.execute(&event("created")).await?;
    consumer.wait_for(1, LONG).await?;
    // Of the sockets that listen on this machine, none is the process's.
    let listening = listening_inodes()?;
    let own = std::fs::read_dir(format!("/proc/{}/fd", tailpost.pid()))?;
    let own: BTreeSet<String> = own
        .filter_map(|entry| {
            Some(
                std::fs::read_link(entry.ok()?.path())
                    .ok()?
                    .to_string_lossy()
                    .into_owned(),
            )
        })
        .collect();
    ensure!(
        listening
            .iter()
            .all(|inode| !own.contains(&format!("socket:[{inode}]"))),
        "it listens: {}",
        tailpost.stderr()
    );
    Ok(())
}

/// Inodes of all listening TCP sockets, by proc(5).
fn listening_inodes() -> Result<Vec<String>> {
    const LISTEN: &str = "0A";
    let tables = [
        std::fs::read_to_string("/proc/net/tcp")?,
        std::fs::read_to_string("/proc/net/tcp6").unwrap_or_default(),
    ];
    let fields = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let sockets = tables.iter().flat_map(|table| table.lines().skip(1)).map(fields);
    let inodes: Vec<String> = sockets
        .filter(|socket| socket.get(3).is_some_and(|state| state == LISTEN))
        .filter_map(|socket| socket.get(9).cloned())
        .collect();
    ensure!(
        !inodes.is_empty(),
        "nobody listens at all: this is not read right"
    );
    Ok(inodes)
}
