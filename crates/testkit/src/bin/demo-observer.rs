//! The demo's shop and its customer in one: writes orders to PostgreSQL, prints each message that arrives from RabbitMQ
//! with its latency, and compares both at the end. Run by `scripts/demo`.
//!
//! The last line is `committed N delivered N duplicates N lost N`; the exit status is 1 unless nothing was lost, made up
//! or out of order.
#![expect(clippy::print_stdout, reason = "printing is what this program is for")]

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::servers::connect;
use tailpost_testkit::{Consumer, Delivery, Ledger, check};
use tokio::time::{Instant, interval, sleep};
use tokio_postgres::Client;

const QUEUE: &str = "demo";
const EXCHANGE: &str = "events";
/// Transactions a second.
const RATE: u64 = 20;
/// Each transaction with this number is rolled back: one in the whole demo.
const ROLLED_BACK: u64 = 2 * RATE;
/// How long the last messages may take: Tailpost may just be starting again.
const ARRIVAL_LIMIT: Duration = Duration::from_secs(60);

/// When the COMMIT of an event returned.
type Commits = Arc<Mutex<HashMap<String, Instant>>>;

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [source, broker, seconds] = args.as_slice() else {
        bail!("usage: demo-observer SOURCE-URL BROKER-URL SECONDS");
    };
    let seconds: u64 = seconds.parse().context("SECONDS is no whole number")?;
    declare(broker, EXCHANGE, QUEUE, QueueKind::Classic, &["#"]).await?;
    let consumer = Arc::new(Consumer::start(broker, QUEUE, 100).await?);
    let commits = Commits::default();
    let printer = tokio::spawn(print_arrivals(Arc::clone(&consumer), Arc::clone(&commits)));

    let shop = connect(source).await?;
    write_orders(&shop, seconds * RATE, &commits).await?;
    let ledger = Ledger::read(&shop, "outbox_event").await?;
    // What does not arrive is counted below.
    drop(consumer.wait_for(ledger.0.len(), ARRIVAL_LIMIT).await);
    consumer.wait_quiet(Duration::from_secs(1), ARRIVAL_LIMIT).await?;
    printer.abort();

    let verdict = check(&ledger, &consumer.since(0));
    if let Err(fault) = verdict.assert_clean() {
        println!("not as it should be: {fault:#}");
    }
    println!(
        "committed {} delivered {} duplicates {} lost {}",
        verdict.committed,
        verdict.delivered_unique,
        verdict.duplicates,
        verdict.lost.len()
    );
    Ok(if verdict.assert_clean().is_ok() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Each order is one row of the shop's own table and one event, in one transaction; every third is paid in a
/// transaction of its own later.
async fn write_orders(shop: &Client, transactions: u64, commits: &Commits) -> anyhow::Result<()> {
    shop.batch_execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, state text NOT NULL)")
        .await?;
    let mut tick = interval(Duration::from_millis(1000 / RATE));
    let mut order = 0;
    for number in 1..=transactions {
        tick.tick().await;
        let (state, sql) = if number % 4 == 0 && order > 2 {
            ("paid", "UPDATE orders SET state = $2 WHERE id = $1")
        } else {
            order += 1;
            ("created", "INSERT INTO orders (id, state) VALUES ($1, $2)")
        };
        let id = if state == "paid" { order - 2 } else { order };
        shop.batch_execute("BEGIN").await?;
        shop.execute(sql, &[&id, &state]).await?;
        let event = insert_event(shop, id, state).await?;
        if number == ROLLED_BACK {
            shop.batch_execute("ROLLBACK").await?;
            println!("rolled back order.{state} order/{id}: it must not arrive");
            order -= i64::from(state == "created");
        } else {
            shop.batch_execute("COMMIT").await?;
            commits
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(event, Instant::now());
        }
    }
    Ok(())
}

async fn insert_event(shop: &Client, order: i64, state: &str) -> anyhow::Result<String> {
    let sql = "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) \
               VALUES ('order', $1::bigint::text, $2, jsonb_build_object('order', $1::bigint, 'state', $2::text)) \
               RETURNING event_id::text";
    Ok(shop.query_one(sql, &[&order, &state]).await?.try_get(0)?)
}

async fn print_arrivals(consumer: Arc<Consumer>, commits: Commits) {
    let mut printed = 0;
    let mut seen = std::collections::HashSet::new();
    loop {
        for delivery in consumer.since(printed) {
            printed += 1;
            let again = !seen.insert(delivery.message_id.clone());
            println!(
                "{}",
                describe(&delivery, again, committed_at(&delivery, &commits).await)
            );
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// The message may be quicker than the answer to COMMIT: so it is given a second.
async fn committed_at(delivery: &Delivery, commits: &Commits) -> Option<Instant> {
    for _ in 0..1000 {
        let at = commits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&*delivery.message_id)
            .copied();
        if at.is_some() {
            return at;
        }
        sleep(Duration::from_millis(1)).await;
    }
    None
}

fn describe(delivery: &Delivery, again: bool, committed: Option<Instant>) -> String {
    let key = &delivery.routing_key;
    let aggregate = delivery.aggregate.as_deref().unwrap_or("?");
    match committed {
        _ if again => format!("arrived {key} {aggregate} again, a duplicate"),
        Some(at) => {
            let latency = delivery.arrived.saturating_duration_since(at).as_secs_f64() * 1000.0;
            format!("arrived {key} {aggregate} in {latency:.1} ms")
        }
        None => format!("arrived {key} {aggregate}, and was never committed"),
    }
}
