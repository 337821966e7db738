//! The broker killed, cut off, unbound, full, blocked and wrongly set up. Each test ends with everything delivered once,
//! in order: by Tailpost itself, without a hand from outside.
#![expect(
    clippy::print_stdout,
    reason = "the figures of a run, for those who read its log"
)]

use std::time::Duration;

use anyhow::{Result, ensure};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::servers::kinds;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Postgres, Proxy, Rabbit, Sampler, Tailpost, Writer, WriterOptions};
use tailpost_testkit::{shared_postgres, shared_rabbit};
use tailpost_tests::load::{
    Resident, Rows, assert_memory, assert_memory_with, commit_marker, ends_with, kill_repeatedly, metric,
    round_trip, seed, some_time, wait_metric,
};
use tailpost_tests::{LONG, QUEUE, RECOVERY, Scene, scale};
use tokio::time::{Instant, sleep};

const RETURNED: &str = "tailpost_messages_returned_total";
const NACKED: &str = "tailpost_messages_nacked_total";
const CONFIRMED: &str = "tailpost_messages_confirmed_total";
const BLOCKED: &str = "tailpost_broker_blocked";
const LOSSES: &str = "tailpost_broker_connection_losses_total";
const SOURCE_LOSSES: &str = "tailpost_source_connection_losses_total";

fn rate() -> u32 {
    u32::try_from(scale("RATE", 500)).unwrap_or(u32::MAX)
}

fn load() -> WriterOptions {
    WriterOptions {
        rate: Some(rate()),
        transaction_max: 10,
        ..WriterOptions::default()
    }
}

async fn scene_with_load() -> Result<(Scene, Consumer, Writer)> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    Ok((scene, consumer, writer))
}

async fn not_ready(tailpost: &Tailpost, because: &str) -> Result<()> {
    until(&format!("not ready because of {because}"), LONG, async || {
        let answer = tailpost.get("/readyz").await?;
        Ok((answer.status == 503 && answer.body.contains(because)).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_by_itself_each_time_the_broker_is_killed() -> Result<()> {
    let seed = seed();
    let rabbit = Rabbit::start(&kinds()?.rabbit, &[]).await?;
    let scene = Scene::on(&shared_postgres().await?, &rabbit).await?;
    scene.prepare().await?;
    rabbit.sync().await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    let kills = scale("BROKER_KILLS", 2);
    let worst = kill_repeatedly(&rabbit, kills, &scene, &consumer).await?;
    writer.stop().await?;
    let losses = metric(&tailpost, LOSSES).await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(
        losses >= kills as f64,
        "{losses} connections were lost at {kills} kills"
    );
    println!(
        "{} kills of {}, delivering again after {worst:.1?} at most: {verdict}; seed {seed}",
        kills,
        rabbit.version()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_written_while_the_queue_was_unbound_arrives_and_the_position_waits_for_it() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer) = scene_with_load().await?;
    let tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let sampler = Sampler::start(&scene.database.url(), &scene.slot);

    scene.vhost.unbind("events", QUEUE, "#").await?;
    let (_, place) = commit_marker(&scene.database, "unbound").await?;
    wait_metric(&tailpost, RETURNED, |returned| returned > 0.0).await?;
    consumer.wait_quiet(Duration::from_millis(200), LONG).await?;
    let before = consumer.len();
    sleep(Duration::from_secs(scale("UNBOUND_SECONDS", 3))).await;
    ensure!(
        consumer.len() == before,
        "something was delivered to an unbound queue"
    );
    sampler.never_reached(place)?;

    scene.vhost.bind("events", QUEUE, "#").await?;
    let again = round_trip(&scene, &consumer, RECOVERY).await?;
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    // The same look that never saw the position there sees it now.
    until("the position passes what was unbound", LONG, async || {
        Ok(sampler.latest().filter(|position| *position >= place))
    })
    .await?;
    sampler.finish().await?;
    println!("unbound, delivering again after {again:.1?}: {verdict}; seed {seed}");
    Ok(())
}

/// Of ten event types, each with its own aggregates, the last has no queue.
#[tokio::test(flavor = "multi_thread")]
async fn one_unroutable_event_type_holds_up_no_other_and_no_memory_beyond_its_own_events() -> Result<()> {
    const AHEAD: u64 = 400_000;
    const FLAGS: [&str; 4] = ["--max-ahead", "400000", "--in-flight-bytes", "32MiB"];
    const IN_FLIGHT: u64 = 1000;
    let seed = seed();
    let scene = Scene::shared().await?;
    let bound: Vec<String> = (0..9).map(|kind| format!("type{kind}.#")).collect();
    let keys: Vec<&str> = bound.iter().map(String::as_str).collect();
    scene.prepare_with(QueueKind::Classic, &keys).await?;
    let consumer = scene.consume().await?;
    let mut tailpost = scene.run_ready(&FLAGS).await?;
    let mut writers = Vec::new();
    for kind in 0..10 {
        let options = WriterOptions {
            aggregate_type: format!("type{kind}"),
            aggregates: 20,
            sessions: 1,
            rate: Some(rate() / 10),
            padding: 50,
            ..load()
        };
        writers.push(Writer::start(&scene.database.url(), options).await?);
    }
    wait_metric(&tailpost, RETURNED, |returned| returned > 0.0).await?;
    sleep(Duration::from_secs(2)).await;
    let first = tailpost.rss_kib()?;
    let mut most = first;
    for second in 0..scale("UNROUTABLE_SECONDS", 10) {
        let before = consumer.unique();
        most = most.max(Resident::watch(&tailpost, Duration::from_secs(1)).await?.most);
        ensure!(
            consumer.unique() > before,
            "the others stand still in second {second}"
        );
    }
    let ready = tailpost.get("/readyz").await?;
    let held = metric(&tailpost, "tailpost_unsettled_bytes").await?;
    let ahead = metric(&tailpost, "tailpost_events_ahead").await?;
    ensure!(
        ready.status == 200,
        "not ready while the others flow: {}",
        ready.body
    );
    // What is held is counted by --in-flight-bytes, and is all that grew.
    let allowed = first as f64 + 2.0 * held / 1024.0 + 4096.0;
    println!("resident {first} KiB at first, {most} KiB at most; {held} bytes held, {ahead} events ahead");
    ensure!(
        (most as f64) < allowed,
        "{most} KiB were resident, {allowed:.0} explained"
    );

    let delivered = consumer.len();
    tailpost.kill9().await?;
    let tailpost = scene.run_ready(&FLAGS).await?;
    for writer in writers {
        writer.stop().await?;
    }
    scene.vhost.bind("events", QUEUE, "type9.#").await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(verdict.duplicates as u64 <= AHEAD + IN_FLIGHT, "{verdict}");
    ensure!(
        verdict.duplicates as f64 <= ahead + 2.0 * f64::from(rate()) + IN_FLIGHT as f64,
        "more than was ahead: {verdict}"
    );
    ensure!(verdict.duplicates <= delivered, "{verdict}");
    // The figure is that of the default bounds: what the larger one admits comes on top.
    assert_memory_with(&tailpost, 32 - 8)?;
    println!(
        "one of ten unroutable with {}: {verdict}; seed {seed}",
        FLAGS.join(" ")
    );
    Ok(())
}

async fn watermark(rabbit: &Rabbit, args: &[&str]) -> Result<()> {
    let command = [&["rabbitmqctl", "-q", "set_vm_memory_high_watermark"], args].concat();
    rabbit.ctl(&command).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_memory_alarm_costs_no_walsender_no_memory_and_no_event() -> Result<()> {
    let seed = seed();
    let kinds = kinds()?;
    let (postgres, rabbit) = tokio::try_join!(
        Postgres::start(&kinds.postgres, &["-c", "wal_sender_timeout=5s"]),
        Rabbit::start(&kinds.rabbit, &[])
    )?;
    let scene = Scene::on(&postgres, &rabbit).await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    let writer = Writer::start(&scene.database.url(), load()).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let walsender = walsender(&scene).await?;

    watermark(&rabbit, &["0.00001"]).await?;
    wait_metric(&tailpost, BLOCKED, |blocked| blocked == 1.0).await?;
    let megabytes = scale("ALARM_MB", 24);
    let backlog = Rows {
        padding: 970,
        ..Rows::backlog(megabytes * 1000)
    };
    backlog.insert(&scene.database).await?;
    let filled = "tailpost_unsettled_bytes";
    wait_metric(&tailpost, filled, |bytes| bytes > 7.9 * 1024.0 * 1024.0).await?;
    let resident = Resident::watch(&tailpost, Duration::from_secs(scale("ALARM_SECONDS", 12))).await?;
    let (blocked, losses) = (
        metric(&tailpost, BLOCKED).await?,
        metric(&tailpost, SOURCE_LOSSES).await?,
    );
    ensure!(blocked == 1.0, "the alarm had no effect");
    ensure!(losses == 0.0, "{losses} disconnects from PostgreSQL");
    ensure!(
        self::walsender(&scene).await? == walsender,
        "PostgreSQL has another walsender"
    );
    ensure!(
        resident.growth() < 2048,
        "resident memory is not flat: {resident:?}"
    );

    watermark(&rabbit, &["absolute", "1GB"]).await?;
    wait_metric(&tailpost, BLOCKED, |blocked| blocked == 0.0).await?;
    let again = round_trip(&scene, &consumer, LONG * 3).await?;
    let peak = assert_memory(&tailpost)?;
    ensure!(
        self::walsender(&scene).await? == walsender,
        "PostgreSQL has another walsender"
    );

    let stop = stop_while_blocked(&rabbit, tailpost).await?;
    writer.stop().await?;
    let _last = scene.run_ready(&[]).await?;
    let verdict = scene.settle(consumer).await?;
    println!(
        "alarm with {megabytes} MB waiting: {resident:?}, peak {peak} KiB, delivered {again:.1?} after it, stopped in {stop:.1?} during the next: {verdict}; seed {seed}"
    );
    Ok(())
}

async fn walsender(scene: &Scene) -> Result<i32> {
    let client = scene.database.connect().await?;
    let sql = "SELECT active_pid FROM pg_replication_slots WHERE slot_name = $1";
    Ok(client.query_one(sql, &[&scene.slot]).await?.try_get(0)?)
}

/// SIGTERM under an alarm: safe, and soon.
async fn stop_while_blocked(rabbit: &Rabbit, mut tailpost: Tailpost) -> Result<Duration> {
    watermark(rabbit, &["0.00001"]).await?;
    wait_metric(&tailpost, BLOCKED, |blocked| blocked == 1.0).await?;
    wait_metric(&tailpost, "tailpost_messages_in_flight", |in_flight| {
        in_flight > 0.0
    })
    .await?;
    let began = Instant::now();
    tailpost.sigterm()?;
    let status = tailpost.wait(LONG).await?;
    let took = began.elapsed();
    watermark(rabbit, &["absolute", "1GB"]).await?;
    ensure!(status.code() == Some(75), "{status}: {}", tailpost.stderr());
    ensure!(
        took < Duration::from_secs(10),
        "it took {took:?}: {}",
        tailpost.stderr()
    );
    Ok(took)
}

#[tokio::test(flavor = "multi_thread")]
async fn delivery_goes_on_each_time_an_operator_closes_all_connections() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer) = scene_with_load().await?;
    let tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    let rabbit = shared_rabbit().await?;
    let closes = scale("CLOSES", 3);
    let mut worst = Duration::ZERO;
    for close in 1..=closes {
        some_time(0..700).await;
        let reason = "a test closes it";
        rabbit
            .ctl(&[
                "rabbitmqctl",
                "-q",
                "close_all_connections",
                "-p",
                scene.vhost.name(),
                reason,
            ])
            .await?;
        wait_metric(&tailpost, LOSSES, |losses| losses >= close as f64).await?;
        worst = worst.max(round_trip(&scene, &consumer, RECOVERY).await?);
    }
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    println!(
        "{closes} times all connections closed, delivering again after {worst:.1?} at most: {verdict}; seed {seed}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchange_that_is_deleted_while_running_is_waited_for() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer) = scene_with_load().await?;
    let mut tailpost = scene.run_ready(&[]).await?;
    round_trip(&scene, &consumer, LONG).await?;
    scene
        .vhost
        .api("DELETE".parse()?, "exchanges", "/events", "")
        .await?;
    not_ready(&tailpost, "events").await?;
    ensure!(tailpost.ended()?.is_none(), "it ended: {}", tailpost.stderr());
    some_time(1000..2000).await;
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let again = round_trip(&scene, &consumer, RECOVERY).await?;
    tailpost.wait_ready(RECOVERY).await?;
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    println!("exchange deleted and declared, delivering again after {again:.1?}: {verdict}; seed {seed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_broker_at_the_start_ends_it_with_78_and_its_name() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    commit_marker(&scene.database, "first").await?;
    let missing = scene.run(&["--exchange", "nowhere"])?;
    ends_with(missing, 78, LONG, &["nowhere"]).await?;
    let wrong = scene.vhost.url().replace("guest:guest@", "guest:canary-4711@");
    let refused = scene.run_by(&wrong, &[])?;
    until("the wrong password is refused", LONG, async || {
        Ok(refused.stderr().contains("halted").then_some(()))
    })
    .await?;
    let leaked = refused.leaked(&["canary-4711"]).await?;
    ensure!(leaked.is_empty(), "the password is in what it says");
    ends_with(refused, 78, LONG, &["guest"]).await?;
    let nobody = scene.vhost.url().replace(scene.vhost.name(), "no-such-vhost");
    ends_with(scene.run_by(&nobody, &[])?, 78, LONG, &["no-such-vhost"]).await?;
    let _last = scene.run_ready(&[]).await?;
    let verdict = scene.settle(consumer).await?;
    println!("missing exchange, wrong password, missing vhost: 78 each; mended: {verdict}");
    Ok(())
}

/// The queue takes ten messages, refuses more, and its consumer is slow.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_full_queue_refuses_arrives_in_order() -> Result<()> {
    let seed = seed();
    let scene = Scene::shared().await?;
    let url = scene.vhost.url();
    let init = ["--create-table", "--broker", &url, "--declare-exchange", "topic"];
    scene.verb("init", &init).await?.success()?;
    let queue = r#"{"durable":true,"arguments":{"x-max-length":10,"x-overflow":"reject-publish"}}"#;
    scene
        .vhost
        .api("PUT".parse()?, "queues", &format!("/{QUEUE}"), queue)
        .await?;
    scene.vhost.bind("events", QUEUE, "#").await?;
    let tailpost = scene.run_ready(&[]).await?;
    let events = scale("FULL_EVENTS", 1500);
    let options = WriterOptions {
        events: Some(events),
        aggregates: 20,
        rollbacks: 0.0,
        ..load()
    };
    let writer = Writer::start(&scene.database.url(), options).await?;
    wait_metric(&tailpost, NACKED, |nacked| nacked > 0.0).await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    proxy.limit(Some(200_000));
    let consumer = Consumer::start(&scene.vhost.url_by(proxy.address()), QUEUE, 5).await?;
    writer.finish().await?;
    let verdict = scene.settle(consumer).await?;
    let nacked = metric(&tailpost, NACKED).await?;
    println!("a queue of ten, {nacked} refusals: {verdict}; seed {seed}");
    Ok(())
}

/// A scene whose Tailpost reaches the broker by a proxy; the consumer does not.
async fn by_proxy(flags: &[&str]) -> Result<(Scene, Consumer, Writer, Proxy, Tailpost)> {
    let (scene, consumer, writer) = scene_with_load().await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    let mut tailpost = scene.run_by(&scene.vhost.url_by(proxy.address()), flags)?;
    tailpost.wait_ready(LONG).await?;
    round_trip(&scene, &consumer, LONG).await?;
    Ok((scene, consumer, writer, proxy, tailpost))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_falls_silent_is_left_at_the_confirm_timeout() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer, proxy, tailpost) = by_proxy(&["--confirm-timeout", "2s"]).await?;
    proxy.pause();
    let began = Instant::now();
    wait_metric(&tailpost, LOSSES, |losses| losses > 0.0).await?;
    let noticed = began.elapsed();
    ensure!(noticed < Duration::from_secs(5), "noticed after {noticed:?} only");
    some_time(1000..2000).await;
    proxy.resume();
    let again = round_trip(&scene, &consumer, RECOVERY).await?;
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    println!(
        "silent broker left after {noticed:.1?}, delivering again {again:.1?} after its return: {verdict}; seed {seed}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_to_the_broker_cut_at_random_lose_and_reorder_nothing() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer, proxy, tailpost) = by_proxy(&[]).await?;
    let cuts = scale("CUTS", 10);
    for _ in 0..cuts {
        some_time(0..500).await;
        proxy.cut();
    }
    // In the middle of a frame, too: each connection ends after so many bytes of confirms.
    proxy.cut_after(Some(fastrand::u64(600..3000)));
    proxy.cut();
    some_time(3000..4000).await;
    proxy.cut_after(None);
    let again = round_trip(&scene, &consumer, RECOVERY).await?;
    writer.stop().await?;
    let losses = metric(&tailpost, LOSSES).await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(losses >= 2.0, "{losses} connections were lost");
    println!("{losses} connections cut, delivering again after {again:.1?}: {verdict}; seed {seed}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thin_line_to_the_broker_is_backpressure_and_no_fault() -> Result<()> {
    let seed = seed();
    let (scene, consumer, writer, proxy, tailpost) = by_proxy(&["--confirm-timeout", "10s"]).await?;
    proxy.limit(Some(60_000));
    let seconds = scale("THIN_SECONDS", 6);
    let confirmed = metric(&tailpost, CONFIRMED).await?;
    Rows {
        padding: 970,
        ..Rows::backlog(500)
    }
    .insert(&scene.database)
    .await?;
    let resident = Resident::watch(&tailpost, Duration::from_secs(seconds)).await?;
    let flowed = metric(&tailpost, CONFIRMED).await? - confirmed;
    ensure!(flowed > 0.0, "nothing was confirmed in {seconds} s");
    proxy.limit(None);
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    let peak = assert_memory(&tailpost)?;
    println!(
        "60 kB/s for {seconds} s: {flowed} confirmed, {resident:?}, peak {peak} KiB: {verdict}; seed {seed}"
    );
    Ok(())
}
