//! An outbox that nobody writes to must not make the server keep its log; one event that cannot go must.
#![expect(
    clippy::print_stdout,
    reason = "the figures of a run, for those who read its log"
)]

use std::time::Duration;

use anyhow::Result;
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Database, Sampler, shared_postgres};
use tailpost_tests::load::{Rows, commit_marker, round_trip, wait_metric};
use tailpost_tests::{LONG, Offsets, QUEUE, Scene, scale};
use tokio::time::{Instant, sleep};

/// What the server may have to keep for an idle outbox, bytes.
const LAG_MAX: i64 = 32 << 20;
const SOON: Duration = Duration::from_secs(30);
/// A position that moved without an event is stored this often.
const STORE_IDLE: Duration = Duration::from_secs(10);

/// Writes so many bytes of log, and a little more, in transactions of a megabyte.
async fn write_log(database: &Database, megabytes: u64) -> Result<()> {
    database
        .execute("CREATE TABLE IF NOT EXISTS filler (text text)")
        .await?;
    let megabyte = "INSERT INTO filler SELECT repeat(md5(n::text), 28) FROM generate_series(1, 1100) n";
    let sql = format!("DO $$ BEGIN FOR i IN 1..{megabytes} LOOP {megabyte}; COMMIT; END LOOP; END $$");
    database.execute(&sql).await?;
    database.execute("TRUNCATE filler").await
}

async fn lag(scene: &Scene) -> Result<i64> {
    let client = scene.database.connect().await?;
    let place = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?;
    behind(scene, place.try_get(0)?).await
}

/// How far the position stands behind a place in the log, in bytes.
async fn behind(scene: &Scene, place: &str) -> Result<i64> {
    let client = scene.database.connect().await?;
    let sql = "SELECT pg_wal_lsn_diff($2::text::pg_lsn, confirmed_flush_lsn)::int8 \
               FROM pg_replication_slots WHERE slot_name = $1";
    Ok(client.query_one(sql, &[&scene.slot, &place]).await?.try_get(0)?)
}

async fn lets_the_log_go(offsets: Offsets) -> Result<()> {
    let postgres = shared_postgres().await?;
    let scene = Scene::shared().await?.with_offsets(offsets);
    let other = postgres.create_database().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let megabytes = scale("IDLE_MB", 60);
    // The other database last: of its log not even an empty transaction is decoded.
    write_log(&scene.database, megabytes / 2).await?;
    write_log(&other, megabytes / 2).await?;
    let client = scene.database.connect().await?;
    let place = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?;
    let written: String = place.try_get(0)?;
    let began = Instant::now();
    let lag = until("the lag falls", SOON, async || {
        let lag = lag(&scene).await?;
        Ok((lag < LAG_MAX).then_some(lag))
    });
    let (lag, took) = (lag.await?, began.elapsed());
    // All of what was written above, and not only what the bound demands; other tests write to this server meanwhile.
    let rest = until("all of that log is let go", SOON, async || {
        let rest = behind(&scene, &written).await?;
        Ok((rest < 1 << 20).then_some(()))
    });
    rest.await?;
    let all = began.elapsed();
    drop(tailpost);
    let _again = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let verdict = scene.settle(consumer).await?;
    println!(
        "{offsets:?}: {megabytes} MB of log beside the outbox: lag {lag} bytes after {took:.1?}, all of it let go after {all:.1?}: {verdict}"
    );
    Ok(())
}

/// Both at once: each takes what time the positions that move without an event are given.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_outbox_holds_back_no_log_with_the_offset_in_the_slot_or_in_a_file() -> Result<()> {
    tokio::try_join!(lets_the_log_go(Offsets::Slot), lets_the_log_go(Offsets::File)).map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_event_that_cannot_be_routed_holds_the_position_whatever_log_follows() -> Result<()> {
    let scene = Scene::shared().await?;
    scene
        .prepare_with(QueueKind::Classic, &["row.#", "marker.seen"])
        .await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let sampler = Sampler::start(&scene.database.url(), &scene.slot);
    let (_, place) = commit_marker(&scene.database, "unbound").await?;
    wait_metric(&tailpost, "tailpost_messages_returned_total", |returned| {
        returned > 0.0
    })
    .await?;
    // Events that can go, and log without events: keepalives come with places far beyond.
    Rows::backlog(1000).insert(&scene.database).await?;
    let megabytes = scale("IDLE_MB", 60);
    write_log(&scene.database, megabytes).await?;
    consumer.wait_for(1001, LONG).await?;
    sleep(STORE_IDLE + Duration::from_secs(2)).await;
    sampler.never_reached(place)?;
    let lag = lag(&scene).await?;
    anyhow::ensure!(
        lag > i64::try_from(megabytes)? << 20,
        "the lag is {lag} bytes only"
    );

    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let verdict = scene.settle(consumer).await?;
    until("the position passes it", SOON, async || {
        Ok(sampler.latest().filter(|position| *position >= place))
    })
    .await?;
    sampler.finish().await?;
    println!("one event unroutable: the position stood before it, {lag} bytes behind: {verdict}");
    Ok(())
}
