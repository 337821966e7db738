//! Rows that no message can be made of: status 65.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_tests::{LONG, QUEUE, Scene};

use crate::{arrived, assert_words, event, prepared, run_ends, unsent};

/// `bytes` beyond twice the limit and some are not even read into memory.
async fn a_payload_over_the_limit(bytes: usize, words: &[&str]) -> Result<()> {
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    for _ in 0..3 {
        scene.database.execute(&event("before")).await?;
    }
    let big = event("big").replace(
        "'{}'",
        &format!("jsonb_build_object('pad', repeat('x', {bytes}))"),
    );
    scene
        .database
        .execute(&format!("{} {big}", event("with")))
        .await?;
    scene.database.execute(&event("after")).await?;
    let log = run_ends(
        &scene,
        &["--max-message-bytes", "10KB"],
        65,
        &["outbox_event", "hint"],
    )
    .await?;
    assert_words(&log, words)?;
    // The row's own place, as its message would have had it.
    let peeked = scene.verb("peek", &["--format", "json"]).await?.success()?;
    let line = peeked
        .stdout
        .lines()
        .find(|line| line.contains("\"order.big\""))
        .context("peek does not show it")?;
    let message: Value = serde_json::from_str(line)?;
    let position = message["headers"]["tailpost_position"]
        .as_str()
        .context("no position")?;
    let (commit, index) = position.rsplit_once(':').context("no index")?;
    ensure!(
        log.contains(commit) && index == "1",
        "{position} is not named: {log}"
    );
    // What was read before it was published, and the position stands before its transaction.
    ensure!(arrived(&consumer, 4).await? == ["before", "before", "before", "with"]);
    ensure!(
        unsent(&scene).await? == ["with", "big", "after"],
        "{:?}",
        unsent(&scene).await?
    );
    // Again the same, as often as it is started; then the remedy.
    run_ends(&scene, &["--max-message-bytes", "10KB"], 65, words).await?;
    let _tailpost = scene.run_ready(&[]).await?;
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_payload_over_the_limit_halts_with_65_before_it_and_nothing_is_lost() -> Result<()> {
    a_payload_over_the_limit(
        20_000,
        &["20011 bytes", "--max-message-bytes 10000", "public.outbox_event"],
    )
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_too_large_to_be_read_halts_with_65_before_it_and_nothing_is_lost() -> Result<()> {
    a_payload_over_the_limit(3_000_000, &["bytes on the wire", "public.outbox_event"]).await
}

/// Rows that no message can be made of: what is wrong with them, and the words that say so.
const POISON: [(&str, &[&str]); 9] = [
    ("payload = NULL", &["column \"payload\" is NULL"]),
    (
        "headers = '{\"x-delay\":5}'",
        &["column \"headers\"", "\"x-delay\"", "reserved"],
    ),
    ("headers = '{\"cc\":[\"queue\"]}'", &["\"cc\"", "reserved"]),
    (
        "headers = '{\"tailpost_position\":1}'",
        &["\"tailpost_position\"", "reserved"],
    ),
    (
        "headers = '{\"aggregate_id\":\"8\"}'",
        &["\"aggregate_id\"", "written from another column"],
    ),
    ("headers = '[1]'", &["column \"headers\"", "no JSON object"]),
    (
        "event_type = NULL",
        &["routing key template", "\"event_type\"", "NULL"],
    ),
    (
        "routing_key = repeat('k', 256)",
        &["routing key is 256 bytes long"],
    ),
    ("event_id = ''", &["column \"event_id\" is empty"]),
];

/// Each is given up as the manual says: `offset set` to a place after its transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_no_message_can_be_made_of_halts_with_65_and_can_be_given_up_by_offset_set() -> Result<()>
{
    let scene = Scene::shared().await?;
    scene
        .database
        .execute(
            "CREATE TABLE outbox_event (event_id text, aggregate_type text, aggregate_id text, event_type text, payload text, headers text, routing_key text)",
        )
        .await?;
    scene.verb("init", &[]).await?.success()?;
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let consumer = scene.consume().await?;
    let client = scene.database.connect().await?;
    for (number, (fault, words)) in POISON.into_iter().enumerate() {
        let (column, value) = fault.split_once(" = ").context("no column")?;
        let row = |kind: &str, id: String| {
            format!("INSERT INTO outbox_event SELECT '{id}', 'order', '7', '{kind}', '{{}}', NULL, NULL;")
        };
        let broken = [
            "event_id",
            "aggregate_type",
            "aggregate_id",
            "event_type",
            "payload",
            "headers",
            "routing_key",
        ]
        .map(|name| match name {
            name if name == column => value.to_owned(),
            "headers" | "routing_key" => "NULL".to_owned(),
            name => format!("'{name}-{number}'"),
        });
        client
            .batch_execute(&row("fine", format!("before-{number}")))
            .await?;
        client
            .batch_execute(&format!(
                "INSERT INTO outbox_event VALUES ({})",
                broken.join(", ")
            ))
            .await?;
        let place: String = client
            .query_one("SELECT pg_current_wal_flush_lsn()::text", &[])
            .await?
            .get(0);
        client
            .batch_execute(&row("fine", format!("after-{number}")))
            .await?;
        let log = run_ends(&scene, &[], 65, words).await.context(fault)?;
        assert_words(&log, &["public.outbox_event", "the position stands before it"])?;
        consumer.wait_for(2 * number + 1, LONG).await?;
        let peeked = scene.verb("peek", &["--format", "json"]).await?;
        ensure!(peeked.code() == Some(65), "{fault}: {peeked:?}");
        scene.verb("offset set", &[&place, "--yes"]).await?.success()?;
        let mut tailpost = scene.run_ready(&[]).await?;
        consumer.wait_for(2 * number + 2, LONG).await?;
        tailpost.sigterm()?;
        ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    }
    let got: Vec<String> = consumer
        .stop()
        .await?
        .into_iter()
        .map(|delivery| delivery.message_id.into())
        .collect();
    let expected: Vec<String> = (0..POISON.len())
        .flat_map(|n| [format!("before-{n}"), format!("after-{n}")])
        .collect();
    ensure!(got == expected, "{got:?}");
    Ok(())
}
