//! Tailpost killed and stopped at random moments under load: the promise itself.
#![expect(clippy::print_stdout, reason = "the figures of a run are its output")]

use std::time::Duration;

use anyhow::{Result, ensure};
use tailpost_testkit::{Writer, WriterOptions};
use tailpost_tests::{LONG, Offsets, Scene, scale};
use tokio::time::sleep;

fn load() -> WriterOptions {
    let rate = u32::try_from(scale("RATE", 1000)).unwrap_or(u32::MAX);
    WriterOptions {
        rate: Some(rate),
        sessions: 4,
        aggregates: 200,
        transaction_max: 20,
        ..WriterOptions::default()
    }
}

/// Kills it with -9 at random moments 0 to 1.5 s after its start, checking each time that the slot passed nothing that was
/// not delivered.
async fn survives_kills(offsets: Offsets, kills: u64) -> Result<()> {
    let scene = Scene::shared().await?.with_offsets(offsets);
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    for kill in 0..kills {
        let mut tailpost = scene.run(&[])?;
        // The moment is the test's random choice, not a wait for something.
        sleep(Duration::from_millis(fastrand::u64(0..1500))).await;
        tailpost.kill9().await?;
        if kill % 5 == 0 {
            scene.assert_position_is_safe(&consumer).await?;
        }
    }
    let written = writer.stop().await?;
    let _last = scene.run_ready(&[]).await?;
    let verdict = scene.settle(consumer).await?;
    println!("{offsets:?}: {kills} kills, {verdict}");
    ensure!(
        verdict.committed > 0 && !written.rolled_back.is_empty(),
        "the load was none"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_reordered_when_tailpost_is_killed_with_the_offset_in_the_slot() -> Result<()> {
    survives_kills(Offsets::Slot, scale("KILLS", 10)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_reordered_when_tailpost_is_killed_with_the_offset_in_a_file() -> Result<()> {
    survives_kills(Offsets::File, scale("KILLS", 10)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orderly_stop_repeats_nothing() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    let stops = scale("STOPS", 8);
    for _ in 0..stops {
        let mut tailpost = scene.run_ready(&[]).await?;
        sleep(Duration::from_millis(fastrand::u64(0..1000))).await;
        tailpost.sigterm()?;
        let status = tailpost.wait(LONG).await?;
        ensure!(status.success(), "{status}: {}", tailpost.stderr());
    }
    writer.stop().await?;
    let _last = scene.run_ready(&[]).await?;
    let verdict = scene.settle(consumer).await?;
    println!("{stops} stops, {verdict}");
    ensure!(verdict.duplicates == 0, "{verdict}");
    Ok(())
}
