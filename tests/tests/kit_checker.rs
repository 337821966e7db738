//! The whole of the kit, with a relay of ten lines in the place of Tailpost: a good one is found clean, bad ones are found
//! out.

use std::time::Duration;

use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::{
    Consumer, Database, Ledger, Verdict, Vhost, Writer, WriterOptions, check, shared_postgres, shared_rabbit,
};

const TABLE: &str = "CREATE TABLE outbox_event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid UNIQUE, \
                     aggregate_type text, aggregate_id text, event_type text, payload jsonb)";
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_relay_that_does_its_job_is_found_clean() -> anyhow::Result<()> {
    let verdict = run(|_| {}).await?;
    verdict.assert_clean()?;
    assert_eq!(verdict.duplicates, 0);
    Ok(())
}

#[tokio::test]
async fn a_relay_that_drops_repeats_and_swaps_is_found_out() -> anyhow::Result<()> {
    let verdict = run(|rows| {
        rows.remove(7);
        let last = rows[rows.len() - 1].clone();
        rows.push(last);
        let first = rows
            .iter()
            .position(|row| row.aggregate == rows[0].aggregate && row.id != rows[0].id);
        rows.swap(0, first.unwrap());
        rows[20].payload.push(' ');
        rows[30].id = "a phantom".to_owned();
    })
    .await?;
    assert!(verdict.assert_clean().is_err());
    assert_eq!(
        (verdict.lost.len(), verdict.duplicates, verdict.altered.len()),
        (2, 1, 1),
        "{verdict}"
    );
    assert_eq!(verdict.phantom, ["a phantom"]);
    assert!(!verdict.inversions.is_empty());
    Ok(())
}

#[derive(Clone)]
struct Row {
    id: String,
    aggregate: String,
    kind: String,
    payload: String,
}

/// Writes 100 events, lets `harm` change what the relay read, publishes, consumes and checks.
async fn run(harm: impl FnOnce(&mut Vec<Row>)) -> anyhow::Result<Verdict> {
    let (postgres, rabbit) = (shared_postgres().await?, shared_rabbit().await?);
    let (database, vhost) = (postgres.create_database().await?, rabbit.create_vhost().await?);
    database.execute(TABLE).await?;
    declare(&vhost.url(), "events", "all", QueueKind::Classic, &["order.*"]).await?;
    let consumer = Consumer::start(&vhost.url(), "all", 50).await?;
    let options = WriterOptions {
        aggregates: 5,
        rate: None,
        events: Some(100),
        seed: 1,
        ..WriterOptions::default()
    };
    let written = Writer::start(&database.url(), options).await?.finish().await?;
    assert!(written.unknown.is_empty() && !written.rolled_back.is_empty());
    let mut rows = read(&database).await?;
    harm(&mut rows);
    for row in &rows {
        publish(&vhost, row).await?;
    }
    let mut unique: Vec<_> = rows.iter().map(|row| &row.id).collect();
    unique.sort();
    unique.dedup();
    consumer.wait_for(unique.len(), LONG).await?;
    consumer.wait_quiet(Duration::from_millis(200), LONG).await?;
    let ledger = Ledger::read(&database.connect().await?, "outbox_event").await?;
    Ok(check(&ledger, &consumer.stop().await?))
}

async fn read(database: &Database) -> anyhow::Result<Vec<Row>> {
    let sql = "SELECT event_id::text, aggregate_id, event_type, payload::text FROM outbox_event ORDER BY id";
    let rows = database.connect().await?.query(sql, &[]).await?;
    Ok(rows
        .iter()
        .map(|row| Row {
            id: row.get(0),
            aggregate: row.get(1),
            kind: row.get(2),
            payload: row.get(3),
        })
        .collect())
}

async fn publish(vhost: &Vhost, row: &Row) -> anyhow::Result<()> {
    let body = serde_json::json!({
        "routing_key": format!("order.{}", row.kind),
        "payload": row.payload,
        "payload_encoding": "string",
        "properties": {
            "message_id": row.id,
            "headers": {
                "aggregate_type": "order",
                "aggregate_id": row.aggregate,
                "tailpost_position": format!("{}:0", row.id)
            }
        }
    });
    let answer = vhost
        .api("POST".parse()?, "exchanges", "/events/publish", &body.to_string())
        .await?;
    anyhow::ensure!(answer.contains("true"), "{} was not routed", row.id);
    Ok(())
}
