//! What does not end: `--on-halt stay`, and what cannot be reached.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tailpost_testkit::Tailpost;
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::ports::free_address;
use tailpost_testkit::wait::until;
use tailpost_tests::{LONG, QUEUE, Scene};
use tokio::time::{Instant, sleep};

use crate::{arrived, assert_words, event, prepared, run_as, unsent, verb_as};

/// Waits for a 503 whose reason has these words.
async fn unready(tailpost: &mut Tailpost, words: &[&str]) -> Result<()> {
    let what = format!("unready because of {words:?}");
    let waited = until(&what, LONG, async || {
        if let Some(status) = tailpost.ended()? {
            anyhow::bail!("it ended: {status}");
        }
        let Ok(answer) = tailpost.get("/readyz").await else {
            return Ok(None);
        };
        let json: Value = serde_json::from_str(&answer.body)?;
        let reason = json["reason"].as_str().unwrap_or_default().to_owned();
        let found =
            answer.status == 503 && json["ready"] == false && words.iter().all(|word| reason.contains(word));
        Ok(found.then_some(()))
    });
    let waited = waited.await;
    waited.with_context(|| tailpost.stderr())?;
    ensure!(tailpost.get("/livez").await?.status == 200);
    Ok(())
}

/// The server would end a connection that does not answer its keepalives within a second.
#[tokio::test(flavor = "multi_thread")]
async fn with_on_halt_stay_it_stays_up_unready_with_the_reason_and_its_walsender() -> Result<()> {
    let scene = prepared().await?;
    let setting = format!(
        "ALTER ROLE postgres IN DATABASE {} SET wal_sender_timeout = '1s'",
        scene.database.name()
    );
    scene.database.execute(&setting).await?;
    let consumer = scene.consume().await?;
    let poison = event("poison")
        .replace("payload)", "payload, headers)")
        .replace("'{}'", "'{}', '{\"x-a\":1}'");
    for step in [event("before"), poison, event("after")] {
        scene.database.execute(&step).await?;
    }
    let mut tailpost = scene.run(&["--on-halt", "stay"])?;
    unready(&mut tailpost, &["halted", "x-a", "the position stands before it"]).await?;
    ensure!(arrived(&consumer, 1).await? == ["before"]);
    let holder = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    let client = scene.database.connect().await?;
    let pid: Option<i32> = client.query_one(holder, &[&scene.slot]).await?.get(0);
    ensure!(pid.is_some(), "the walsender is gone: {}", tailpost.stderr());
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(3) {
        let now: Option<i32> = client.query_one(holder, &[&scene.slot]).await?.get(0);
        ensure!(now == pid, "the walsender changed: {}", tailpost.stderr());
        sleep(Duration::from_millis(100)).await;
    }
    ensure!(tailpost.metric("tailpost_halted").await? == Some(1.0));
    ensure!(
        unsent(&scene).await? == ["poison", "after"],
        "{:?}",
        unsent(&scene).await?
    );
    tailpost.sigterm()?;
    let status = tailpost.wait(LONG).await?;
    ensure!(status.code() == Some(65), "{status}: {}", tailpost.stderr());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn with_on_halt_stay_a_wrong_set_up_stays_up_too_until_it_is_stopped() -> Result<()> {
    let scene = Scene::shared().await?;
    // The broker is as it should be, so that the slot is the one fault.
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let mut tailpost = scene.run(&["--on-halt", "stay"])?;
    unready(
        &mut tailpost,
        &["halted", "does not exist", "tailpost postgres init"],
    )
    .await?;
    tailpost.sigterm()?;
    let status = tailpost.wait(LONG).await?;
    ensure!(status.code() == Some(66), "{status}: {}", tailpost.stderr());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_reached_is_waited_for_unready_with_the_reason() -> Result<()> {
    let scene = prepared().await?;
    let nobody = free_address()?;
    let source = scene.database.url_by(nobody);
    let file = format!("file:{}", scene.offset_file().display());
    let mut no_source = run_as(&scene, &source)?;
    let mut no_source_file = {
        let broker = scene.vhost.url();
        Tailpost::spawn(&[
            "postgres",
            "run",
            "--source",
            &source,
            "--slot",
            &scene.slot,
            "--broker",
            &broker,
            "--offsets",
            &file,
        ])?
    };
    let mut no_broker = scene.run_by(&scene.vhost.url_by(nobody), &[])?;
    unready(&mut no_source, &["no source", "Connection refused"]).await?;
    unready(&mut no_source_file, &["no source", "Connection refused"]).await?;
    unready(&mut no_broker, &["no broker", "Connection refused"]).await?;
    // One after the other: a second relay of one name would be a standby, and ready.
    drop(no_broker);
    let mut no_name = scene.run_by("amqp://guest:guest@no-such-host.invalid/x", &[])?;
    unready(&mut no_name, &["no broker", "no-such-host.invalid"]).await?;
    for mut tailpost in [no_source, no_source_file, no_name] {
        ensure!(tailpost.ended()?.is_none(), "{}", tailpost.stderr());
        tailpost.sigterm()?;
        let status = tailpost.wait(LONG).await?;
        ensure!(status.code() == Some(0), "{status}: {}", tailpost.stderr());
    }
    // A command does not wait: it says so.
    for verb in ["check", "init", "peek", "offset show", "drop"] {
        let ended = verb_as(&scene, &source, verb, &[]).await?;
        ensure!(ended.code() == Some(1), "{verb}: {ended:?}");
        assert_words(&ended.stderr, &["Connection refused"])?;
    }
    Ok(())
}
