//! A promoted server goes on under a new timeline from where it had got to, and uses the places after that again. A position
//! from beyond there means nothing on it: to go on from it would skip what was committed meanwhile, in silence.

use anyhow::{Context, Result, ensure};
use tailpost_testkit::servers::kinds;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Postgres, Rabbit, Stop};
use tailpost_tests::{LONG, Offsets, Scene};

const INSERT: &str = "INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload) \
                      SELECT gen_random_uuid(), 'order', g::text, 'created', '{}' FROM generate_series(1, 5) g";

/// Copies the stopped server's data, or puts the copy in its place, to be promoted as it starts.
async fn shell(postgres: &Postgres, script: &str) -> Result<()> {
    let folder = postgres.folder().display().to_string();
    postgres
        .ctl(&["sh", "-ec", script, "sh", &folder])
        .await
        .map(drop)
}

/// A server restored to an earlier time and promoted, whose log has grown past the stored position again.
#[tokio::test(flavor = "multi_thread")]
async fn a_position_from_beyond_the_promotion_is_refused_and_nothing_is_skipped() -> Result<()> {
    let postgres = Postgres::start(&kinds()?.postgres, &[]).await?;
    let rabbit = Rabbit::start(&kinds()?.rabbit, &[]).await?;
    let scene = Scene::on(&postgres, &rabbit).await?.with_offsets(Offsets::File);
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let mut tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(INSERT).await?;
    consumer.wait_for(5, LONG).await?;
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());

    postgres.stop(Stop::Fast).await?;
    shell(&postgres, r#"cp -a "$1/data" "$1/data.then""#).await?;
    postgres.start_again().await?;
    let mut tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(INSERT).await?;
    consumer.wait_for(10, LONG).await?;
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    postgres.stop(Stop::Fast).await?;
    let restore = r#"rm -rf "$1/data"; mv "$1/data.then" "$1/data"; touch "$1/data/recovery.signal";
                     echo "restore_command = 'false'" >>"$1/data/postgresql.auto.conf""#;
    shell(&postgres, restore).await?;
    postgres.start_again().await?;

    // It answers as a standby until it is promoted.
    let client = scene.database.connect().await?;
    until("the server is promoted", LONG, async || {
        let recovers: bool = client.query_one("SELECT pg_is_in_recovery()", &[]).await?.get(0);
        Ok((!recovers).then_some(()))
    })
    .await?;

    // Committed on the new timeline, and then so much that its log is past the old position.
    scene.database.execute(INSERT).await?;
    let grow = "CREATE TABLE noise AS SELECT repeat('x', 1000) FROM generate_series(1, 10000)";
    scene.database.execute(grow).await?;
    scene.database.execute(INSERT).await?;
    let mut refused = scene.run(&[])?;
    let status = refused.wait(LONG).await?;
    ensure!(status.code() == Some(66), "{status}: {}", refused.stderr());
    ensure!(
        refused.stderr().contains("beyond the end"),
        "{}",
        refused.stderr()
    );

    // The operator decides: from where the slot of the restored server stands.
    let file = format!("file:{}", scene.offset_file().display());
    let slot = scene.verb("offset show", &[]).await?.success()?.stdout;
    let position = slot.lines().find_map(|line| line.strip_prefix("offset"));
    let position = position
        .and_then(|rest| rest.split_whitespace().next())
        .context("offset show names the position")?;
    scene
        .verb("offset set", &[position, "--yes", "--offsets", &file])
        .await?
        .success()?;
    let _tailpost = scene.run_ready(&[]).await?;
    consumer.wait_for(20, LONG).await?;
    Ok(())
}
