//! Wrong input of every sort: a status that tells what sort, and words that name the thing and the remedy. Nothing is lost.

mod poison;
mod setup;
mod usage;
mod waiting;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tailpost_testkit::{Consumer, Ended, Tailpost};
use tailpost_tests::{LONG, Scene};

fn assert_words(text: &str, words: &[&str]) -> Result<()> {
    let missing: Vec<_> = words.iter().filter(|word| !text.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} not in: {text}");
    Ok(())
}

/// Runs `run` until it ends by itself, with this status and these words.
async fn run_ends(scene: &Scene, extra: &[&str], code: i32, words: &[&str]) -> Result<String> {
    ends(scene.run(extra)?, code, words).await
}

async fn ends(mut tailpost: Tailpost, code: i32, words: &[&str]) -> Result<String> {
    let status = tailpost.wait(LONG).await?;
    let log = tailpost.stderr();
    ensure!(status.code() == Some(code), "wanted {code}, got {status}: {log}");
    assert_words(&log, words)?;
    Ok(log)
}

async fn prepared() -> Result<Scene> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    Ok(scene)
}

fn event(kind: &str) -> String {
    format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '7', '{kind}', '{{}}');"
    )
}

async fn verb_as(scene: &Scene, url: &str, verb: &str, extra: &[&str]) -> Result<Ended> {
    let mut args = vec!["postgres"];
    args.extend(verb.split(' '));
    args.extend(["--source", url, "--slot", &scene.slot]);
    args.extend(extra);
    Tailpost::command(&args).await
}

fn run_as(scene: &Scene, url: &str) -> Result<Tailpost> {
    let broker = scene.vhost.url();
    Tailpost::spawn(&[
        "postgres",
        "run",
        "--source",
        url,
        "--slot",
        &scene.slot,
        "--broker",
        &broker,
    ])
}

/// What `peek` says would be sent: the types of the events.
async fn unsent(scene: &Scene) -> Result<Vec<String>> {
    let peeked = scene.verb("peek", &["--format", "json"]).await?;
    peeked
        .stdout
        .lines()
        .map(|line| {
            let message: Value = serde_json::from_str(line)?;
            Ok(message["properties"]["type"]
                .as_str()
                .unwrap_or("poison")
                .to_owned())
        })
        .collect()
}

async fn arrived(consumer: &Consumer, count: usize) -> Result<Vec<String>> {
    consumer.wait_for(count, LONG).await?;
    consumer.wait_quiet(Duration::from_millis(200), LONG).await?;
    let types = consumer
        .since(0)
        .into_iter()
        .map(|delivery| delivery.event_type.unwrap_or_default());
    Ok(types.map(Into::into).collect())
}
