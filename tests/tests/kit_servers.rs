//! The test kit itself, against real servers: what the other tests rely on.

use std::time::Duration;

use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::servers::{connect, kinds};
use tailpost_testkit::{
    Consumer, Ledger, Postgres, Proxy, Rabbit, Sampler, Stop, Writer, WriterOptions, shared_postgres,
    shared_rabbit,
};

const TABLE: &str = "CREATE TABLE outbox_event (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id uuid UNIQUE, \
                     aggregate_type text, aggregate_id text, event_type text, payload jsonb)";
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_killed_postgres_comes_back_with_its_data_and_goes_with_its_handle() -> anyhow::Result<()> {
    let postgres = Postgres::start(&kinds()?.postgres, &["-c", "wal_sender_timeout=5s"]).await?;
    let folder = postgres.folder().to_owned();
    let client = connect(&postgres.url("postgres")).await?;
    client
        .batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1)")
        .await?;
    postgres.stop(Stop::Kill).await?;
    assert!(client.query("SELECT 1", &[]).await.is_err());
    postgres.start_again().await?;
    postgres.stop(Stop::Fast).await?;
    postgres.start_again().await?;
    let client = connect(&postgres.url("postgres")).await?;
    assert_eq!(
        client
            .query_one("SELECT n FROM kept", &[])
            .await?
            .get::<_, i32>(0),
        1
    );
    let timeout: String = client.query_one("SHOW wal_sender_timeout", &[]).await?.get(0);
    assert_eq!(timeout, "5s", "arguments are kept over a restart");
    assert!(
        postgres
            .ctl(&["pg_ctl", "status"])
            .await?
            .contains("server is running")
    );
    assert!(postgres.ctl(&["false"]).await.is_err());
    assert!(postgres.version().contains('.'));
    drop(postgres);
    assert!(!folder.exists());
    Ok(())
}

#[tokio::test]
async fn a_consumer_comes_back_when_its_broker_was_killed_and_finds_what_was_queued() -> anyhow::Result<()> {
    let rabbit = Rabbit::start(&kinds()?.rabbit, &[]).await?;
    let vhost = rabbit.create_vhost().await?;
    declare(&vhost.url(), "events", "all", QueueKind::Classic, &["#"]).await?;
    let consumer = Consumer::start(&vhost.url(), "all", 10).await?;
    publish(&vhost, "one").await?;
    consumer.wait_for(1, LONG).await?;
    rabbit.sync().await?;
    rabbit.stop(Stop::Kill).await?;
    rabbit.start_again().await?;
    publish(&vhost, "two").await?;
    consumer.wait_for(2, LONG).await?;
    assert!(
        rabbit
            .ctl(&["rabbitmqctl", "-q", "list_vhosts"])
            .await?
            .contains(vhost.name())
    );
    let deliveries = consumer.stop().await?;
    let mut first: Vec<_> = deliveries.iter().map(|delivery| &*delivery.message_id).collect();
    first.dedup();
    assert_eq!(first, ["one", "two"]);
    assert_eq!(deliveries[0].aggregate.as_deref(), Some("order/1"));
    assert_eq!(deliveries[0].position.as_deref(), Some("0/1:one"));
    assert_eq!(
        (deliveries[0].seq, &*deliveries[0].routing_key),
        (Some(5), "order.created")
    );
    Ok(())
}

#[tokio::test]
async fn a_shared_server_cannot_be_stopped_and_gives_each_test_its_own_place() -> anyhow::Result<()> {
    let postgres = shared_postgres().await?;
    assert!(postgres.stop(Stop::Kill).await.is_err());
    let (one, two) = (
        postgres.create_database().await?,
        postgres.create_database().await?,
    );
    assert_ne!(one.name(), two.name());
    let slot = format!(
        "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
        one.name()
    );
    one.execute(&slot).await?;
    let name = one.name().to_owned();
    drop(one);
    let admin = connect(&postgres.url("postgres")).await?;
    let left = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE slot_name = $1) \
                + (SELECT count(*) FROM pg_database WHERE datname = $1)";
    assert_eq!(admin.query_one(left, &[&name]).await?.get::<_, i64>(0), 0);

    let rabbit = shared_rabbit().await?;
    assert!(rabbit.stop(Stop::Fast).await.is_err());
    let vhost = rabbit.create_vhost().await?;
    declare(&vhost.url(), "events", "all", QueueKind::Quorum, &["#", "a.*"]).await?;
    vhost.unbind("events", "all", "#").await?;
    vhost.bind("events", "all", "#").await?;
    assert!(vhost.unbind("events", "all", "none").await.is_err());
    Ok(())
}

#[tokio::test]
async fn the_writer_rides_through_a_kill_of_its_database_and_the_ledger_decides() -> anyhow::Result<()> {
    let postgres = Postgres::start(&kinds()?.postgres, &[]).await?;
    let database = postgres.create_database().await?;
    database.execute(TABLE).await?;
    let options = WriterOptions {
        rate: Some(2000),
        rollbacks: 0.3,
        ..WriterOptions::default()
    };
    let sampler = Sampler::start(&database.url(), "none");
    let writer = Writer::start(&database.url(), options).await?;
    for kill in 1..=3 {
        writer.wait_committed(kill * 500, LONG).await?;
        postgres.stop(Stop::Kill).await?;
        postgres.start_again().await?;
    }
    writer.wait_committed(2000, LONG).await?;
    let written = writer.stop().await?;
    let ledger = Ledger::read(&database.connect().await?, "outbox_event").await?;
    let has = |id: &String| ledger.0.iter().any(|event| event.id == *id);
    assert!(
        written.committed.iter().all(|(id, _)| has(id)),
        "a committed event is in the table"
    );
    assert!(!written.rolled_back.iter().any(has), "a rolled back event is not");
    let undecided = written.unknown.iter().filter(|id| has(id)).count();
    assert_eq!(ledger.0.len(), written.committed.len() + undecided);
    assert!(
        written.rolled_back.len() > 100,
        "{} were rolled back",
        written.rolled_back.len()
    );
    assert!(
        sampler.finish().await.is_err(),
        "a slot that is not there was never seen"
    );
    Ok(())
}

#[tokio::test]
async fn the_sampler_sees_a_slot_move_through_a_proxy() -> anyhow::Result<()> {
    let postgres = shared_postgres().await?;
    let database = postgres.create_database().await?;
    let proxy = Proxy::start(postgres.address()).await?;
    let client = database.connect().await?;
    let make = "SELECT pg_create_logical_replication_slot($1, 'pgoutput')";
    client.query(make, &[&database.name()]).await?;
    let sampler = Sampler::start(&database.url_by(proxy.address()), database.name());
    let seen = |sampler: &Sampler| sampler.latest();
    let first = tailpost_testkit::wait::until("the slot is seen", LONG, async || Ok(seen(&sampler))).await?;
    proxy.cut();
    sampler.never_reached(first + 1)?;
    client
        .batch_execute("CREATE TABLE t (n int); INSERT INTO t VALUES (1)")
        .await?;
    client
        .query(
            "SELECT pg_replication_slot_advance($1, pg_current_wal_lsn())",
            &[&database.name()],
        )
        .await?;
    let moved = async || Ok(seen(&sampler).filter(|position| *position > first));
    tailpost_testkit::wait::until("the slot's move is seen", LONG, moved).await?;
    assert!(sampler.never_reached(first + 1).is_err());
    assert!(sampler.finish().await?.len() >= 2);
    Ok(())
}

/// Publishes by the management API, which tells when no queue took it.
async fn publish(vhost: &tailpost_testkit::Vhost, id: &str) -> anyhow::Result<()> {
    let body = serde_json::json!({
        "routing_key": "order.created",
        "payload": r#"{"seq":5}"#,
        "payload_encoding": "string",
        "properties": {
            "message_id": id,
            "delivery_mode": 2,
            "headers": { "aggregate_type": "order", "aggregate_id": "1", "tailpost_position": format!("0/1:{id}") }
        }
    });
    let answer = vhost
        .api("POST".parse()?, "exchanges", "/events/publish", &body.to_string())
        .await?;
    anyhow::ensure!(answer.contains("true"), "{id} was not routed");
    Ok(())
}
