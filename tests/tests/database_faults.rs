//! The database killed, shut down, restored and away; its slot taken, dropped and moved; two Tailposts on one slot.
#![expect(
    clippy::print_stdout,
    reason = "the figures of a run, for those who read its log"
)]

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tailpost_testkit::servers::{connect, kinds};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Postgres, Proxy, Sampler, Stop, Tailpost, Writer, WriterOptions};
use tailpost_testkit::{shared_postgres, shared_rabbit};
use tailpost_tests::load::{
    Rows, commit_marker, ends_with, kill_repeatedly, metric, round_trip, seed, some_time, wait_metric,
};
use tailpost_tests::{LONG, Offsets, RECOVERY, Scene, scale};
use tokio::time::Instant;

const ROWS: &str = "tailpost_rows_read_total";
const UNSETTLED: &str = "tailpost_events_unsettled";
const UNSETTLED_BYTES: &str = "tailpost_unsettled_bytes";
const LOSSES: &str = "tailpost_source_connection_losses_total";
/// Shutting PostgreSQL down never waits longer for us.
const SHUTDOWN: Duration = Duration::from_secs(30);

fn load() -> WriterOptions {
    WriterOptions {
        rate: Some(u32::try_from(scale("RATE", 500)).unwrap_or(u32::MAX)),
        transaction_max: 10,
        ..WriterOptions::default()
    }
}

async fn private_postgres(args: &[&str]) -> Result<Postgres> {
    Postgres::start(&kinds()?.postgres, args).await
}

async fn scene_on(postgres: &Postgres, offsets: Offsets) -> Result<(Scene, Consumer)> {
    let scene = Scene::on(postgres, &shared_rabbit().await?)
        .await?
        .with_offsets(offsets);
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    Ok((scene, consumer))
}

async fn survives_kills_of_the_database(offsets: Offsets) -> Result<()> {
    let seed = seed();
    let postgres = private_postgres(&[]).await?;
    let (scene, consumer) = scene_on(&postgres, offsets).await?;
    let tailpost = scene.run_ready(&[]).await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    let sampler = Sampler::start(&scene.database.url(), &scene.slot);
    let kills = scale("DATABASE_KILLS", 2);
    let worst = kill_repeatedly(&postgres, kills, &scene, &consumer).await?;
    writer.stop().await?;
    sampler.finish().await?;
    let losses = metric(&tailpost, LOSSES).await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(
        losses >= kills as f64,
        "{losses} connections were lost at {kills} kills"
    );
    println!(
        "{offsets:?}: {kills} kills of {}, delivering again after {worst:.1?} at most: {verdict}; seed {seed}",
        postgres.version()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_by_itself_each_time_the_database_is_killed_with_the_offset_in_the_slot()
-> Result<()> {
    survives_kills_of_the_database(Offsets::Slot).await
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_by_itself_each_time_the_database_is_killed_with_the_offset_in_a_file() -> Result<()>
{
    survives_kills_of_the_database(Offsets::File).await
}

/// A shutdown waits for its WAL senders, and these for us: we must go although the broker takes nothing, whether we have
/// read all (ten events) or are stuck at the memory bound with the socket full.
async fn shuts_down_fast(pending: u64, is_stuck: impl Fn(f64) -> bool, gauge: &str) -> Result<()> {
    let postgres = private_postgres(&[]).await?;
    let (scene, consumer) = scene_on(&postgres, Offsets::Slot).await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    let mut tailpost = scene.run_by(&scene.vhost.url_by(proxy.address()), &[])?;
    tailpost.wait_ready(LONG).await?;
    round_trip(&scene, &consumer, LONG).await?;
    proxy.refuse();
    wait_metric(&tailpost, "tailpost_broker_connected", |up| up == 0.0).await?;
    Rows {
        padding: 970,
        transaction: 1.max(pending / 100),
        ..Rows::backlog(pending)
    }
    .insert(&scene.database)
    .await?;
    wait_metric(&tailpost, gauge, is_stuck).await?;
    let began = Instant::now();
    postgres.stop(Stop::Fast).await?;
    let took = began.elapsed();
    ensure!(
        took < SHUTDOWN,
        "the shutdown took {took:?}; tailpost's log:\n{}",
        tailpost.stderr()
    );
    ensure!(
        tailpost.ended()?.is_none(),
        "tailpost ended: {}",
        tailpost.stderr()
    );
    postgres.start_again().await?;
    proxy.accept();
    // Delivering again is the figure; the whole backlog takes the time that it takes.
    let (before, back) = (consumer.unique(), Instant::now());
    consumer.wait_for(before + 1, RECOVERY).await?;
    let again = back.elapsed();
    let verdict = scene.settle(consumer).await?;
    println!(
        "fast shutdown with {pending} events pending took {took:.1?}, delivering again after {again:.1?}: {verdict}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_shuts_down_soon_while_ten_events_are_pending() -> Result<()> {
    shuts_down_fast(10, |unsettled| unsettled >= 10.0, UNSETTLED).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_database_shuts_down_soon_while_nobody_reads_its_socket() -> Result<()> {
    let full = |bytes| bytes > 7.9 * 1024.0 * 1024.0;
    shuts_down_fast(scale("STOP_BACKLOG", 30_000), full, UNSETTLED_BYTES).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_walsender_ended_in_the_middle_of_a_large_transaction_loses_and_reorders_nothing() -> Result<()> {
    let seed = seed();
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    let mut tailpost = scene.run_by(&scene.vhost.url_by(proxy.address()), &[])?;
    tailpost.wait_ready(LONG).await?;
    proxy.limit(Some(3_000_000)); // so that it takes its time
    let events = scale("LARGE_TRANSACTION", 20_000);
    Rows {
        aggregates: 50,
        ..Rows::one_transaction(events)
    }
    .insert(&scene.database)
    .await?;
    let ends = scale("WALSENDER_ENDS", 1);
    let mut seen = 0;
    for end in 1..=ends {
        let share = usize::try_from(events / 4 / ends * end + fastrand::u64(1..500))?;
        consumer.wait_for(share, LONG).await?;
        seen = consumer.unique();
        let client = scene.database.connect().await?;
        let sql = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = $1 AND active";
        client.execute(sql, &[&scene.slot]).await?;
        wait_metric(&tailpost, LOSSES, |losses| losses >= end as f64).await?;
        wait_metric(&tailpost, "tailpost_source_connected", |up| up == 1.0).await?;
    }
    ensure!(
        (seen as u64) < events,
        "the transaction was over before the walsender was ended"
    );
    proxy.limit(None);
    let verdict = scene.settle(consumer).await?;
    println!("walsender ended {ends} times, the last after {seen} of {events} rows: {verdict}; seed {seed}");
    Ok(())
}

async fn wait_standby(tailpost: &Tailpost) -> Result<String> {
    until("it stands by", LONG, async || {
        // It may not listen yet.
        let Ok(answer) = tailpost.get("/readyz").await else {
            return Ok(None);
        };
        let page: Value = serde_json::from_str(&answer.body)?;
        let stands_by = answer.status == 200 && page["role"] == "standby";
        Ok(stands_by
            .then(|| page["holder"].as_str().map(str::to_owned))
            .flatten())
    })
    .await
    .with_context(|| format!("tailpost's log:\n{}", tailpost.stderr()))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_ready_names_the_holder_and_takes_over_when_it_is_killed() -> Result<()> {
    let seed = seed();
    let (scene, consumer) = scene_on(&shared_postgres().await?, Offsets::Slot).await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    let mut holder = scene.run_ready(&[]).await?;
    let takeovers = scale("TAKEOVERS", 3);
    let mut worst = Duration::ZERO;
    for _ in 0..takeovers {
        let standby = scene.run(&[])?;
        let named = wait_standby(&standby).await?;
        ensure!(named.contains("tailpost/"), "the holder is not named: {named}");
        some_time(200..1000).await;
        holder.kill9().await?;
        worst = worst.max(round_trip(&scene, &consumer, RECOVERY).await?);
        holder = standby;
        wait_metric(&holder, "tailpost_active", |active| active == 1.0).await?;
    }
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(worst < Duration::from_secs(10), "a takeover took {worst:?}");
    println!("{takeovers} takeovers, delivering again after {worst:.1?} at most: {verdict}; seed {seed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_hung_becomes_the_standby_and_neither_loses_nor_reorders() -> Result<()> {
    let seed = seed();
    let postgres = private_postgres(&["-c", "wal_sender_timeout=3s"]).await?;
    let (scene, consumer) = scene_on(&postgres, Offsets::Slot).await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    let mut holder = scene.run_ready(&[]).await?;
    let mut standby = scene.run(&[])?;
    let hangs = scale("HANGS", 2);
    for _ in 0..hangs {
        wait_standby(&standby).await?;
        round_trip(&scene, &consumer, LONG).await?;
        holder.signal(Signal::STOP)?;
        wait_metric(&standby, "tailpost_active", |active| active == 1.0).await?;
        round_trip(&scene, &consumer, RECOVERY).await?;
        some_time(0..1000).await;
        holder.signal(Signal::CONT)?;
        std::mem::swap(&mut holder, &mut standby);
        ensure!(standby.ended()?.is_none(), "it ended: {}", standby.stderr());
    }
    wait_standby(&standby).await?;
    // The one that hung holds nothing of then: it takes over where the other stops.
    holder.kill9().await?;
    round_trip(&scene, &consumer, RECOVERY).await?;
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    println!("{hangs} hangs: {verdict}; seed {seed}");
    Ok(())
}

/// A scene in which something was delivered and Tailpost was stopped in order.
async fn stopped_scene(postgres: &Postgres, offsets: Offsets) -> Result<(Scene, Consumer)> {
    let (scene, consumer) = scene_on(postgres, offsets).await?;
    deliver_and_stop(&scene, &consumer).await?;
    Ok((scene, consumer))
}

async fn deliver_and_stop(scene: &Scene, consumer: &Consumer) -> Result<()> {
    let tailpost = scene.run_ready(&[]).await?;
    Rows::backlog(200).insert(&scene.database).await?;
    round_trip(scene, consumer, LONG).await?;
    tailpost.sigterm()?;
    ends_with(tailpost, 0, LONG, &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_dropped_is_not_made_anew_but_refused_with_66() -> Result<()> {
    for offsets in [Offsets::Slot, Offsets::File] {
        let (scene, consumer) = stopped_scene(&shared_postgres().await?, offsets).await?;
        let client = scene.database.connect().await?;
        client
            .execute("SELECT pg_drop_replication_slot($1)", &[&scene.slot])
            .await?;
        ends_with(
            scene.run(&[])?,
            66,
            LONG,
            &[&scene.slot, "tailpost postgres init"],
        )
        .await?;
        let verdict = scene.settle(consumer).await?;
        println!("{offsets:?}: slot dropped: 66; {verdict}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_somebody_else_advanced_is_refused_with_66_where_a_file_knows_better() -> Result<()> {
    let (scene, consumer) = stopped_scene(&shared_postgres().await?, Offsets::File).await?;
    let (_, place) = commit_marker(&scene.database, "skipped").await?;
    let client = scene.database.connect().await?;
    let sql = "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())";
    client.execute(sql, &[&scene.slot]).await?;
    ends_with(scene.run(&[])?, 66, LONG, &["advanced", "offset set"]).await?;
    // The event is in the table, and nobody may claim that it was delivered.
    let ledger = scene.ledger().await?;
    ensure!(consumer.unique() + 1 == ledger.0.len(), "something was published");
    println!("slot advanced to {place:X} by someone else: 66");
    Ok(())
}

/// The folder of a stopped server, copied with its owners.
async fn copy_data(postgres: &Postgres, from: &str, to: &str) -> Result<()> {
    let command = format!("rm -rf {to} && cp -a {from} {to}");
    let folder = postgres.folder().to_owned();
    let script = tokio::task::spawn_blocking(move || {
        std::process::Command::new("sh")
            .args(["-c", &command])
            .current_dir(folder)
            .status()
    });
    ensure!(script.await??.success(), "could not copy {from} to {to}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restored_to_an_earlier_time_is_refused_with_66() -> Result<()> {
    let postgres = private_postgres(&[]).await?;
    let (scene, consumer) = stopped_scene(&postgres, Offsets::File).await?;
    postgres.stop(Stop::Fast).await?;
    copy_data(&postgres, "data", "backup").await?;
    postgres.start_again().await?;
    deliver_and_stop(&scene, &consumer).await?;
    scene
        .database
        .execute("CREATE TABLE filler AS SELECT repeat('x', 900) FROM generate_series(1, 20000)")
        .await?;
    deliver_and_stop(&scene, &consumer).await?;
    let verdict = scene.settle(consumer).await?;
    postgres.stop(Stop::Fast).await?;
    copy_data(&postgres, "backup", "data").await?;
    postgres.start_again().await?;
    ends_with(scene.run(&[])?, 66, LONG, &["beyond the end", "offset set"]).await?;
    println!("restored to an earlier time: 66; before that: {verdict}");
    Ok(())
}

/// The same address, database, slot and publication, and another cluster: a position of the first means nothing here.
#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_made_anew_under_the_same_names_is_refused_with_the_file_of_the_old_one() -> Result<()> {
    let postgres = private_postgres(&[]).await?;
    let (scene, consumer) = stopped_scene(&postgres, Offsets::File).await?;
    let verdict = scene.settle(consumer).await?;
    postgres.stop(Stop::Fast).await?;
    let data = postgres.folder().join("data").display().to_string();
    // Servers of tests are copies of one template, with one system identifier: this one is not.
    let anew =
        format!("rm -rf {data}/* && initdb -D {data} -U postgres -A trust -E UTF8 --locale=C --no-sync");
    postgres.ctl(&["sh", "-c", &anew]).await?;
    postgres.start_again().await?;
    let admin = connect(&postgres.url("postgres")).await?;
    admin
        .batch_execute(&format!("CREATE DATABASE {}", scene.database.name()))
        .await?;
    scene.verb("init", &["--create-table"]).await?.success()?;
    ends_with(scene.run(&[])?, 74, LONG, &["system_id", "offset set"]).await?;
    println!("a cluster made anew: 74; before that: {verdict}");
    Ok(())
}

/// What is written while there is no publication is hidden from the slot for good: that must be said, not passed.
#[tokio::test(flavor = "multi_thread")]
async fn a_publication_that_is_dropped_while_running_halts_with_78() -> Result<()> {
    let (scene, consumer) = scene_on(&shared_postgres().await?, Offsets::Slot).await?;
    let tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let sampler = Sampler::start(&scene.database.url(), &scene.slot);
    let before = scene.settle(consumer).await?;
    scene
        .database
        .execute(&format!("DROP PUBLICATION {}", scene.slot))
        .await?;
    let (_, place) = commit_marker(&scene.database, "hidden").await?;
    // PostgreSQL 18 goes on without it and only warns; the latest look is that of every minute.
    let began = Instant::now();
    ends_with(tailpost, 78, Duration::from_secs(90), &["publication"]).await?;
    let halted = began.elapsed();
    sampler.never_reached(place)?;
    ends_with(scene.run(&[])?, 78, LONG, &["publication", &scene.slot]).await?;
    println!("publication dropped: 78 after {halted:.1?}, and again at the start; before that: {before}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_at_the_start_is_waited_for() -> Result<()> {
    for offsets in [Offsets::Slot, Offsets::File] {
        let postgres = private_postgres(&[]).await?;
        let (scene, consumer) = scene_on(&postgres, offsets).await?;
        Rows::backlog(200).insert(&scene.database).await?;
        postgres.stop(Stop::Fast).await?;
        let mut tailpost = scene.run(&[])?;
        until("it is up, and not ready", LONG, async || {
            let Ok(answer) = tailpost.get("/readyz").await else {
                return Ok(None);
            };
            Ok((answer.status == 503 && answer.body.contains("no source")).then_some(()))
        })
        .await?;
        ensure!(tailpost.get("/livez").await?.status == 200, "it is not alive");
        some_time(1000..2000).await;
        ensure!(tailpost.ended()?.is_none(), "it ended: {}", tailpost.stderr());
        ensure!(
            metric(&tailpost, ROWS).await? == 0.0,
            "it read rows of a server that is down"
        );
        postgres.start_again().await?;
        let began = Instant::now();
        tailpost.wait_ready(RECOVERY).await?;
        let ready = began.elapsed();
        let verdict = scene.settle(consumer).await?;
        println!("{offsets:?}: database down at the start, ready {ready:.1?} after it came: {verdict}");
    }
    Ok(())
}
