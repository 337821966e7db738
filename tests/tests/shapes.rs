//! Tables of every shape, changes of shape in mid-stream, and transactions of every sort.

use std::time::Duration;

use anyhow::{Result, ensure};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Delivery, Postgres, Tailpost, Writer, WriterOptions, shared_rabbit};
use tailpost_tests::{LONG, QUEUE, Scene};

/// Columns of a small outbox table, those that the testkit's ledger reads among them.
const COLUMNS: &str = "event_id uuid NOT NULL DEFAULT gen_random_uuid(), aggregate_type text NOT NULL DEFAULT 'order', \
                       aggregate_id text DEFAULT '7', event_type text NOT NULL DEFAULT 'created', payload jsonb NOT NULL DEFAULT '{}'";

/// Publication and slot by `init`, exchange and queue, for tables that exist.
async fn prepare(scene: &Scene, init: &[&str]) -> Result<Consumer> {
    scene.verb("init", init).await?.success()?;
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    scene.consume().await
}

/// A scene with the table of `init --create-table`, and its consumer.
async fn standard() -> Result<(Scene, Consumer)> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    Ok((scene, consumer))
}

/// Inserts an event into `table`; its type is `what`, which tells it from others.
fn insert(table: &str, what: &str) -> String {
    format!(
        "INSERT INTO {table} (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '7', '{what}', '{{\"what\":\"{what}\"}}');"
    )
}

fn types(deliveries: &[Delivery]) -> Vec<String> {
    deliveries
        .iter()
        .map(|delivery| delivery.event_type.clone().unwrap_or_default().into_string())
        .collect()
}

/// Waits for `count` events, makes sure that no more come, and returns their types in order of arrival.
async fn arrived(consumer: &Consumer, count: usize) -> Result<Vec<String>> {
    consumer.wait_for(count, LONG).await?;
    consumer.wait_quiet(Duration::from_millis(200), LONG).await?;
    Ok(types(&consumer.since(0)))
}

async fn ended(mut tailpost: Tailpost) -> Result<(Option<i32>, String)> {
    let status = tailpost.wait(LONG).await?;
    Ok((status.code(), tailpost.stderr()))
}

/// A table partitioned by the type of event, with a partition for all types but `shipped`, and one to be attached for that.
fn partitioned() -> String {
    format!(
        "CREATE SEQUENCE ids;
         CREATE TABLE outbox_event (id bigint NOT NULL DEFAULT nextval('ids'), {COLUMNS}) PARTITION BY LIST (event_type);
         CREATE TABLE outbox_a PARTITION OF outbox_event FOR VALUES IN ('created');
         CREATE TABLE outbox_b PARTITION OF outbox_event FOR VALUES IN ('paid') PARTITION BY HASH (aggregate_id);
         CREATE TABLE outbox_b0 PARTITION OF outbox_b FOR VALUES WITH (MODULUS 2, REMAINDER 0);
         CREATE TABLE outbox_b1 PARTITION OF outbox_b FOR VALUES WITH (MODULUS 2, REMAINDER 1);
         CREATE TABLE later (id bigint NOT NULL DEFAULT nextval('ids'), {COLUMNS})"
    )
}

async fn partitions_are_published(root: bool) -> Result<()> {
    let scene = Scene::shared().await?;
    scene.database.execute(&partitioned()).await?;
    if !root {
        let publication = format!(
            "CREATE PUBLICATION {} FOR TABLE outbox_event WITH (publish = 'insert')",
            scene.slot
        );
        scene.database.execute(&publication).await?;
    }
    let consumer = prepare(&scene, &[]).await?;
    let client = scene.database.connect().await?;
    let via_root: bool = client
        .query_one(
            "SELECT pubviaroot FROM pg_publication WHERE pubname = $1",
            &[&scene.slot],
        )
        .await?
        .get(0);
    ensure!(via_root == root, "not the set-up that this test is for");
    let options = WriterOptions {
        event_types: ["created", "paid"].map(str::to_owned).to_vec(),
        ..WriterOptions::default()
    };
    let writer = Writer::start(&scene.database.url(), options.clone()).await?;
    let _tailpost = scene.run_ready(&[]).await?;
    writer.wait_committed(100, LONG).await?;
    scene
        .database
        .execute("ALTER TABLE outbox_event ATTACH PARTITION later FOR VALUES IN ('shipped')")
        .await?;
    // Other aggregates than those of the first writer, so that each has one session.
    let shipped = WriterOptions {
        run: options.run.wrapping_add(1),
        aggregate_type: "parcel".into(),
        event_types: vec!["shipped".into()],
        ..options
    };
    let second = Writer::start(&scene.database.url(), shipped).await?;
    second.wait_committed(100, LONG).await?;
    writer.stop().await?;
    second.stop().await?;
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_published_under_their_own_names_also_one_attached_in_mid_stream() -> Result<()> {
    partitions_are_published(false).await
}

#[tokio::test(flavor = "multi_thread")]
async fn partitions_are_published_under_the_name_of_their_root_also_one_attached_in_mid_stream() -> Result<()>
{
    partitions_are_published(true).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_aggregate_whose_events_are_in_two_tables_keeps_its_commit_order() -> Result<()> {
    let scene = Scene::shared().await?;
    let table = |name: &str| format!("CREATE TABLE {name} ({COLUMNS});");
    scene
        .database
        .execute(&format!(
            "CREATE SCHEMA \"Sales\"; {} {}",
            table("one"),
            table("\"Sales\".\"Two\"")
        ))
        .await?;
    let tables = ["--table", "one", "--table", "\"Sales\".\"Two\""];
    let consumer = prepare(&scene, &tables).await?;
    let _tailpost = scene.run_ready(&tables).await?;
    let client = scene.database.connect().await?;
    let mut expected = Vec::new();
    for n in 0..100 {
        let what = format!("n{n}");
        client
            .batch_execute(&insert(["one", "\"Sales\".\"Two\""][n % 2], &what))
            .await?;
        expected.push(what);
    }
    let got = arrived(&consumer, 100).await?;
    ensure!(got == expected, "{got:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn unused_columns_may_be_added_dropped_and_renamed_in_the_middle_of_a_backlog() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let one = insert("outbox_event", "created");
    let changes = [
        "ALTER TABLE outbox_event ADD before_all text DEFAULT 'x'",
        "ALTER TABLE outbox_event DROP last_error",
        "ALTER TABLE outbox_event RENAME status TO state",
        "ALTER TABLE outbox_event DROP traceparent",
        "ALTER TABLE outbox_event ALTER aggregate_id TYPE varchar(100)",
    ];
    for change in changes {
        scene.database.execute(&format!("{one} {change}; {one}")).await?;
    }
    // A table whose shape changes while it streams is announced anew, too.
    let _tailpost = scene.run_ready(&[]).await?;
    consumer.wait_for(2 * changes.len(), LONG).await?;
    scene
        .database
        .execute(&format!(
            "{one} ALTER TABLE outbox_event ADD later int, DROP retry_count; {one}"
        ))
        .await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(
        verdict.committed == 2 * changes.len() + 2 && verdict.duplicates == 0,
        "{verdict}"
    );
    Ok(())
}

/// The log keeps the names as they were: what was written under the new name is published with `--column`, and what was
/// written after renaming it back without.
#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_mapped_column_halts_naming_it_and_nothing_is_lost() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(&insert("outbox_event", "before")).await?;
    let with_body = insert("outbox_event", "renamed").replace("payload)", "body)");
    scene
        .database
        .execute(&format!(
            "ALTER TABLE outbox_event RENAME payload TO body; {with_body}"
        ))
        .await?;
    let (code, log) = ended(tailpost).await?;
    ensure!(code == Some(78), "{code:?}: {log}");
    for word in [
        "no column \"payload\"",
        "public.outbox_event",
        "--column payload=COLUMN",
    ] {
        ensure!(log.contains(word), "{word}: {log}");
    }
    ensure!(arrived(&consumer, 1).await? == ["before"]);
    let tailpost = scene.run(&["--column", "payload=body"])?;
    consumer.wait_for(2, LONG).await?;
    scene
        .database
        .execute(&format!(
            "ALTER TABLE outbox_event RENAME body TO payload; {}",
            insert("outbox_event", "back")
        ))
        .await?;
    let (code, log) = ended(tailpost).await?;
    ensure!(
        code == Some(78) && log.contains("no column \"body\""),
        "{code:?}: {log}"
    );
    let _tailpost = scene.run_ready(&[]).await?;
    ensure!(arrived(&consumer, 3).await? == ["before", "renamed", "back"]);
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_dropped_and_made_again_is_published_before_and_after() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let again = format!(
        "BEGIN; DROP TABLE outbox_event; CREATE TABLE outbox_event (id bigint GENERATED ALWAYS AS IDENTITY, {COLUMNS});
         ALTER PUBLICATION {} ADD TABLE outbox_event; COMMIT;",
        scene.slot
    );
    let backlog = [
        insert("outbox_event", "unread"),
        again.clone(),
        insert("outbox_event", "second"),
    ];
    for step in &backlog {
        scene.database.execute(step).await?;
    }
    let _tailpost = scene.run_ready(&[]).await?;
    consumer.wait_for(2, LONG).await?;
    scene.database.execute(&again).await?;
    scene.database.execute(&insert("outbox_event", "third")).await?;
    let got = arrived(&consumer, 3).await?;
    ensure!(got == ["unread", "second", "third"], "{got:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_that_is_inserted_and_deleted_in_one_transaction_is_published() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    let insert = insert("outbox_event", "created");
    scene
        .database
        .execute(&format!(
            "BEGIN; {insert} {insert} DELETE FROM outbox_event; COMMIT"
        ))
        .await?;
    let got = arrived(&consumer, 2).await?;
    ensure!(
        got == ["created", "created"] && scene.ledger().await?.0.is_empty(),
        "{got:?}"
    );
    Ok(())
}

/// A publication of everything, so that the server sends what Tailpost passes.
#[tokio::test(flavor = "multi_thread")]
async fn updates_deletes_and_truncates_are_counted_and_passed_and_an_upsert_warns() -> Result<()> {
    let scene = Scene::shared().await?;
    scene
        .database
        .execute(&format!(
            "CREATE TABLE outbox_event (id bigint GENERATED ALWAYS AS IDENTITY, {COLUMNS}, UNIQUE (event_id));
             ALTER TABLE outbox_event REPLICA IDENTITY FULL;
             CREATE TABLE other (id int PRIMARY KEY);
             CREATE PUBLICATION {} FOR ALL TABLES",
            scene.slot
        ))
        .await?;
    let consumer = prepare(&scene, &[]).await?;
    let tailpost = scene.run_ready(&[]).await?;
    let upsert = "INSERT INTO outbox_event (event_id, event_type) VALUES ('00000000-0000-4000-8000-000000000001', 'upserted') \
                  ON CONFLICT (event_id) DO UPDATE SET payload = '{\"again\":true}';";
    scene
        .database
        .execute(&format!(
            "{upsert} {upsert} {}
             UPDATE outbox_event SET payload = '{{\"late\":true}}';
             DELETE FROM outbox_event WHERE event_type = 'upserted';
             TRUNCATE outbox_event, other;
             INSERT INTO other VALUES (1); UPDATE other SET id = 2; DELETE FROM other; TRUNCATE other;
             {}",
            insert("outbox_event", "plain"),
            insert("outbox_event", "last")
        ))
        .await?;
    // One batch is one transaction: all of it has been read when the last event is here.
    let got = arrived(&consumer, 3).await?;
    ensure!(got.len() == 3 && got.contains(&"upserted".to_owned()), "{got:?}");
    let wanted = [
        ("tailpost_outbox_updates_passed_total", 3.0),
        ("tailpost_outbox_deletes_passed_total", 1.0),
        ("tailpost_outbox_truncates_passed_total", 1.0),
        ("tailpost_rows_read_total", 3.0),
        ("tailpost_messages_confirmed_total", 3.0),
    ];
    for (metric, value) in wanted {
        let found = tailpost.metric(metric).await?;
        ensure!(found == Some(value), "{metric}: {found:?}");
    }
    ensure!(
        tailpost.stderr().contains("ON CONFLICT DO UPDATE"),
        "{}",
        tailpost.stderr()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_rolled_back_never_arrives_wherever_the_rollback_is() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    let one = |what: &str| insert("outbox_event", what);
    let client = scene.database.connect().await?;
    for step in [
        format!("BEGIN; {} ROLLBACK", one("lost")),
        format!(
            "BEGIN; {} SAVEPOINT a; {} SAVEPOINT b; {} ROLLBACK TO a; {} RELEASE a; {} COMMIT",
            one("kept1"),
            one("lost"),
            one("lost"),
            one("kept2"),
            one("kept3")
        ),
        format!(
            "DO $$ BEGIN {} BEGIN {} RAISE EXCEPTION 'x'; EXCEPTION WHEN OTHERS THEN NULL; END; END $$",
            one("kept4"),
            one("lost")
        ),
    ] {
        client.batch_execute(&step).await?;
    }
    let failed = client
        .batch_execute(&format!("BEGIN; {} SELECT 1/0; COMMIT", one("lost")))
        .await;
    ensure!(failed.is_err(), "a division by zero went well");
    client
        .batch_execute(&format!("ROLLBACK; {}", one("kept5")))
        .await?;
    let got = arrived(&consumer, 5).await?;
    ensure!(got == ["kept1", "kept2", "kept3", "kept4", "kept5"], "{got:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn interleaved_transactions_arrive_in_the_order_of_their_commits() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    let (first, second) = (scene.database.connect().await?, scene.database.connect().await?);
    let one = |what: &str| insert("outbox_event", what);
    first.batch_execute(&format!("BEGIN; {}", one("first1"))).await?;
    second
        .batch_execute(&format!("BEGIN; {}", one("second1")))
        .await?;
    first.batch_execute(&one("first2")).await?;
    second
        .batch_execute(&format!("{} COMMIT", one("second2")))
        .await?;
    first.batch_execute(&format!("{} COMMIT", one("first3"))).await?;
    let got = arrived(&consumer, 5).await?;
    ensure!(
        got == ["second1", "second2", "first1", "first2", "first3"],
        "{got:?}"
    );
    Ok(())
}

/// COPY writes its rows to the log many at a time, in a record of its own kind.
#[tokio::test(flavor = "multi_thread")]
async fn copied_rows_are_published_each_once_and_in_order() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let tailpost = scene.run_ready(&[]).await?;
    scene
        .database
        .execute(&format!(
            "DO $$ DECLARE file text := current_setting('data_directory') || '/{}.copy'; BEGIN
                 EXECUTE format('COPY (SELECT ''order'', n %% 50, ''created'', jsonb_build_object(''n'', n) FROM generate_series(1, 5000) n) TO %L', file);
                 EXECUTE format('COPY outbox_event (aggregate_type, aggregate_id, event_type, payload) FROM %L', file);
             END $$",
            scene.slot
        ))
        .await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(verdict.committed == 5000 && verdict.duplicates == 0, "{verdict}");
    until("all are counted", LONG, async || {
        let confirmed = tailpost.metric("tailpost_messages_confirmed_total").await?;
        Ok((confirmed == Some(5000.0)).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn logical_messages_are_passed_and_the_position_goes_on_over_them() -> Result<()> {
    let (scene, consumer) = standard().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    let one = |what: &str| insert("outbox_event", what);
    let client = scene.database.connect().await?;
    for step in [
        "SELECT pg_logical_emit_message(false, 'outbox', 'not of a transaction')".to_owned(),
        "SELECT pg_logical_emit_message(true, 'outbox', 'alone')".to_owned(),
        format!(
            "BEGIN; SELECT pg_logical_emit_message(true, 'p', 'first'); {} SELECT pg_logical_emit_message(false, 'p', repeat('x', 1000000)); \
             SELECT pg_logical_emit_message(true, 'p', repeat('y', 1000000)); {} COMMIT",
            one("one"),
            one("two")
        ),
    ] {
        client.batch_execute(&step).await?;
    }
    let got = arrived(&consumer, 2).await?;
    ensure!(got == ["one", "two"], "{got:?}");
    let end: String = client
        .query_one("SELECT pg_current_wal_insert_lsn()::text", &[])
        .await?
        .get(0);
    let passed =
        "SELECT confirmed_flush_lsn >= $1::text::pg_lsn FROM pg_replication_slots WHERE slot_name = $2";
    client
        .batch_execute("SELECT pg_logical_emit_message(true, 'p', 'last')")
        .await?;
    until("the position passes the messages", LONG, async || {
        let row = client.query_one(passed, &[&end, &scene.slot]).await?;
        Ok(row.get::<_, bool>(0).then_some(()))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prepared_transaction_is_published_when_it_commits_and_never_when_it_is_rolled_back() -> Result<()>
{
    let kind = tailpost_testkit::servers::kinds()?.postgres;
    let postgres = Postgres::start(&kind, &["-c", "max_prepared_transactions=10"]).await?;
    let scene = Scene::on(&postgres, &shared_rabbit().await?).await?;
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    let one = |what: &str| insert("outbox_event", what);
    let client = scene.database.connect().await?;
    for step in [
        format!("BEGIN; {} PREPARE TRANSACTION 'kept'", one("kept")),
        format!("BEGIN; {} PREPARE TRANSACTION 'lost'", one("lost")),
        one("between"),
        "ROLLBACK PREPARED 'lost'".to_owned(),
        "COMMIT PREPARED 'kept'".to_owned(),
        one("after"),
    ] {
        client.batch_execute(&step).await?;
    }
    let got = arrived(&consumer, 3).await?;
    ensure!(got == ["between", "kept", "after"], "{got:?}");
    Ok(())
}
