//! Memory is bounded: by a backlog, by one large transaction, by a slow broker, by large messages.
#![expect(
    clippy::print_stdout,
    reason = "the figures of a run, for those who read its log"
)]

use std::time::Duration;

use anyhow::{Result, ensure};
use tailpost_testkit::{Proxy, shared_rabbit};
use tailpost_tests::load::{Resident, Rows, assert_memory, metric};
use tailpost_tests::{LONG, Scene, scale};
use tokio::time::Instant;

/// Delivers `rows` that are there before Tailpost starts, and demands that memory stays under the bound.
async fn stays_small(what: &str, rows: Rows) -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    rows.insert(&scene.database).await?;
    let consumer = scene.consume().await?;
    let began = Instant::now();
    let tailpost = scene.run(&[])?;
    let events = usize::try_from(rows.events)?;
    consumer.wait_for(events, LONG * 8).await?;
    let took = began.elapsed().as_secs_f64();
    let peak = assert_memory(&tailpost)?;
    let verdict = scene.settle(consumer).await?;
    ensure!(
        verdict.duplicates == 0,
        "without a fault nothing is repeated: {verdict}"
    );
    let per_second = rows.events as f64 / took;
    println!(
        "{what}: {} events in {took:.1} s, {per_second:.0} events/s, peak {peak} KiB: {verdict}",
        rows.events
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_stays_under_40_mebibytes() -> Result<()> {
    stays_small("backlog", Rows::backlog(scale("MEMORY_BACKLOG", 60_000))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_transaction_of_many_rows_stays_under_40_mebibytes() -> Result<()> {
    let rows = Rows::one_transaction(scale("MEMORY_TRANSACTION", 100_000));
    stays_small("one transaction", rows).await
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_16_kilobytes_stay_under_40_mebibytes() -> Result<()> {
    let rows = Rows {
        padding: 16_000,
        transaction: 10,
        ..Rows::backlog(scale("MEMORY_LARGE", 4_000))
    };
    stays_small("16 kB messages", rows).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_broker_stays_under_40_mebibytes() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let rows = Rows {
        padding: 970,
        ..Rows::backlog(scale("MEMORY_SLOW", 20_000))
    };
    rows.insert(&scene.database).await?;
    let consumer = scene.consume().await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    proxy.limit(Some(500_000));
    let tailpost = scene.run_by(&scene.vhost.url_by(proxy.address()), &[])?;
    consumer.wait_for(500, LONG).await?;
    let resident = Resident::watch(&tailpost, Duration::from_secs(scale("MEMORY_SLOW_SECONDS", 5))).await?;
    ensure!(
        consumer.unique() < usize::try_from(rows.events)?,
        "the broker was not slow"
    );
    let unsettled = metric(&tailpost, "tailpost_unsettled_bytes").await?;
    ensure!(
        resident.growth() < 4096,
        "resident memory is not flat: {resident:?}"
    );
    proxy.limit(None);
    let verdict = scene.settle(consumer).await?;
    let peak = assert_memory(&tailpost)?;
    println!("slow broker: {resident:?}, {unsettled} bytes unsettled, peak {peak} KiB: {verdict}");
    Ok(())
}
