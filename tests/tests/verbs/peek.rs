//! `peek`: what would be published, without moving anything.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tailpost_testkit::consumer::QueueKind;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Ended, Tailpost, Writer, WriterOptions};
use tailpost_tests::{LONG, QUEUE, Scene};
use tokio::time::timeout;

use crate::{assert_code, confirmed_flush, event, inventory, prepared};

fn messages(ended: &Ended) -> Result<Vec<Value>> {
    ended
        .stdout
        .lines()
        .map(|line| Ok(serde_json::from_str(line)?))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn peek_prints_what_would_be_published_and_moves_nothing() -> Result<()> {
    let scene = prepared().await?;
    scene
        .database
        .execute(&format!(
            "{} {} {}",
            event("created"),
            event("paid"),
            event("shipped")
        ))
        .await?;
    let (before, things) = (confirmed_flush(&scene).await?, inventory(&scene).await?);
    let json = ["--format", "json"];
    let peeked = messages(&scene.verb("peek", &json).await?.success()?)?;
    ensure!(peeked.len() == 3, "{peeked:?}");
    let keys: Vec<_> = peeked[0]
        .as_object()
        .context("no object")?
        .keys()
        .map(String::as_str)
        .collect();
    ensure!(
        keys == ["body", "exchange", "headers", "properties", "routing_key"],
        "{keys:?}"
    );
    ensure!(
        peeked[1]["exchange"] == "events" && peeked[1]["routing_key"] == "order.paid",
        "{peeked:?}"
    );
    ensure!(peeked[1]["body"] == r#"{"a": 1.50}"#, "{peeked:?}");
    ensure!(
        peeked[1]["headers"]["aggregate_id"] == "7" && peeked[1]["properties"]["type"] == "paid",
        "{peeked:?}"
    );
    let limited = scene
        .verb("peek", &["--format", "json", "--limit", "2"])
        .await?
        .success()?;
    ensure!(messages(&limited)? == peeked[..2], "{}", limited.stdout);
    let other = [
        "--format",
        "json",
        "--exchange",
        "x.{aggregate_id}",
        "--routing-key",
        "{event_type}!",
        "--body",
        "envelope",
    ];
    let other = messages(&scene.verb("peek", &other).await?.success()?)?;
    ensure!(
        other[0]["exchange"] == "x.7" && other[0]["routing_key"] == "created!",
        "{other:?}"
    );
    ensure!(
        other[0]["body"]
            .as_str()
            .is_some_and(|body| body.ends_with(r#","payload":{"a": 1.50}}"#)),
        "{other:?}"
    );
    let text = scene.verb("peek", &[]).await?.success()?.stdout;
    ensure!(
        text.contains("\"order.shipped\"") && text.contains("aggregate_id: \"7\""),
        "{text}"
    );
    ensure!(confirmed_flush(&scene).await? == before, "the position moved");
    ensure!(inventory(&scene).await? == things, "something was left behind");
    // And all of it is still to come.
    let consumer = scene.consume().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn peek_beside_a_running_relay_shows_what_is_held_and_disturbs_nothing() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare_with(QueueKind::Classic, &["order.created"]).await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(&event("unroutable")).await?;
    until("it is returned", LONG, async || {
        let returned = tailpost.metric("tailpost_messages_returned_total").await?;
        Ok(returned.filter(|returned| *returned > 0.0))
    })
    .await?;
    let before = confirmed_flush(&scene).await?;
    let peeked = messages(&scene.verb("peek", &["--format", "json"]).await?.success()?)?;
    ensure!(
        peeked.len() == 1 && peeked[0]["routing_key"] == "order.unroutable",
        "{peeked:?}"
    );
    ensure!(confirmed_flush(&scene).await? == before);
    ensure!(tailpost.metric("tailpost_source_connection_losses_total").await? == Some(0.0));
    scene.vhost.bind("events", QUEUE, "#").await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(verdict.duplicates == 0, "{verdict}");
    until("nothing is left to peek at", LONG, async || {
        let left = messages(&scene.verb("peek", &["--format", "json"]).await?.success()?)?;
        Ok(left.is_empty().then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn peek_ends_at_what_was_committed_when_it_began_unless_it_follows() -> Result<()> {
    let scene = prepared().await?;
    let writer = Writer::start(&scene.database.url(), WriterOptions::default()).await?;
    writer.wait_committed(50, LONG).await?;
    let peeked = timeout(LONG, scene.verb("peek", &["--format", "json"]))
        .await
        .context("peek did not end")??;
    let peeked = messages(&peeked.success()?)?.len();
    ensure!(peeked >= 50, "{peeked}");
    let args = scene.args("peek", &["--format", "json", "--follow"]);
    let mut follows = Tailpost::spawn(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    until("peek --follow goes on", LONG, async || {
        Ok((follows.stdout().lines().count() > peeked + 100).then_some(()))
    })
    .await?;
    ensure!(follows.ended()?.is_none(), "{}", follows.stderr());
    follows.sigterm()?;
    ensure!(follows.wait(LONG).await?.success(), "{}", follows.stderr());
    writer.stop().await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn peek_names_what_run_would_halt_at_and_goes_on_behind_it() -> Result<()> {
    let scene = prepared().await?;
    scene
        .database
        .execute(&format!(
            "ALTER TABLE outbox_event ALTER payload DROP NOT NULL; {} INSERT INTO outbox_event (aggregate_type, event_type) VALUES ('order', 'x'); {}",
            event("created"),
            event("paid")
        ))
        .await?;
    let ended = scene.verb("peek", &["--format", "json"]).await?;
    assert_code(&ended, 65, &["is NULL"])?;
    let peeked = messages(&ended)?;
    ensure!(
        peeked.len() == 3 && peeked[1]["error"].is_string() && peeked[2]["routing_key"] == "order.paid",
        "{peeked:?}"
    );
    Ok(())
}
