//! `init`: the first position, and the backfill before it.

use anyhow::{Context, Result, ensure};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Proxy, Tailpost, Writer, WriterOptions, check, shared_rabbit};
use tailpost_tests::load::Rows;
use tailpost_tests::{LONG, QUEUE, Scene};

use crate::{assert_code, bare, confirmed_flush, event, inventory, one_text, verb_as, with_role};

#[tokio::test(flavor = "multi_thread")]
async fn init_makes_what_is_missing_and_a_second_run_leaves_all_as_it_is() -> Result<()> {
    let scene = Scene::shared().await?;
    let broker = scene.vhost.url();
    let args = [
        "--create-table",
        "--broker",
        &broker,
        "--declare-exchange",
        "topic",
    ];
    assert_code(
        &scene.verb("init", &args).await?,
        0,
        &["made table", "made publication", "made slot"],
    )?;
    let (things, position) = (inventory(&scene).await?, confirmed_flush(&scene).await?);
    ensure!(things.len() == 3 && position.is_some(), "{things:?}");
    let publishes = "SELECT concat(pubinsert, pubupdate, pubdelete, pubtruncate) FROM pg_publication";
    ensure!(one_text(&scene, publishes).await?.as_deref() == Some("tfff"));
    scene.database.execute(&event("created")).await?;
    let second = scene.verb("init", &args).await?;
    assert_code(&second, 0, &[])?;
    ensure!(!second.stdout.contains("made "), "{}", second.stdout);
    ensure!(inventory(&scene).await? == things && confirmed_flush(&scene).await? == position);
    scene
        .verb("check", &["--broker", &broker])
        .await?
        .success()
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn init_dry_run_changes_nothing_and_prints_statements_that_do_the_same_by_hand() -> Result<()> {
    let scene = Scene::shared().await?;
    let broker = scene.vhost.url();
    let args = [
        "--create-table",
        "--broker",
        &broker,
        "--declare-exchange",
        "topic",
        "--dry-run",
    ];
    let planned = scene.verb("init", &args).await?.success()?;
    ensure!(
        inventory(&scene).await?.is_empty(),
        "{:?}",
        inventory(&scene).await?
    );
    ensure!(
        planned.stdout.contains("declare durable exchange \"events\""),
        "{}",
        planned.stdout
    );
    // Statement by statement, as psql would: a slot cannot be made in a transaction that has written.
    let client = scene.database.connect().await?;
    let mut statement = String::new();
    for line in planned.stdout.lines().filter(|line| !line.starts_with("-- ")) {
        statement.push_str(line);
        statement.push('\n');
        let code = line.split("--").next().unwrap_or_default();
        if code.trim_end().ends_with(';') {
            client
                .batch_execute(&statement)
                .await
                .with_context(|| statement.clone())?;
            statement.clear();
        }
    }
    ensure!(statement.trim().is_empty(), "a statement has no end: {statement}");
    scene.verb("check", &[]).await?.success()?;
    // And what is there by now is told.
    let again = scene.verb("init", &["--dry-run"]).await?.success()?;
    ensure!(
        again.stdout.matches("is there and fits").count() == 3,
        "{}",
        again.stdout
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn init_refuses_a_slot_that_is_older_than_its_publication() -> Result<()> {
    let scene = bare().await?;
    let slot = format!(
        "SELECT pg_create_logical_replication_slot('{}', 'pgoutput')",
        scene.slot
    );
    scene.database.execute(&slot).await?;
    let before = inventory(&scene).await?;
    assert_code(
        &scene.verb("init", &[]).await?,
        78,
        &[&scene.slot, "drop", "--backfill"],
    )?;
    ensure!(inventory(&scene).await? == before);
    // The remedy that it names works.
    scene.verb("drop", &["--yes"]).await?.success()?;
    scene.verb("init", &[]).await?.success()?;
    let refused = scene
        .verb("init", &["--backfill", "--broker", &scene.vhost.url()])
        .await?;
    assert_code(&refused, 78, &["--backfill", "exists already"])
}

#[tokio::test(flavor = "multi_thread")]
async fn init_makes_no_table_that_the_mapping_does_not_fit_and_none_in_a_schema_that_is_missing() -> Result<()>
{
    let scene = Scene::shared().await?;
    for more in [&[][..], &["--dry-run"]] {
        let args = [&["--create-table", "--preset", "debezium"], more].concat();
        let refused = scene.verb("init", &args).await?;
        let words = ["cannot be made", "\"aggregatetype\"", "\"type\"", "by hand"];
        assert_code(&refused, 78, &words)?;
        ensure!(
            !refused.stderr.contains("\"payload\"") && refused.stdout.is_empty(),
            "{}{}",
            refused.stdout,
            refused.stderr
        );
    }
    let nowhere = scene
        .verb("init", &["--create-table", "--table", "no_such.outbox_event"])
        .await?;
    assert_code(&nowhere, 78, &["create the schema first"])?;
    ensure!(inventory(&scene).await?.is_empty(), "something was made");
    // The table of a hand, and the same mapping.
    let table = "CREATE TABLE outbox_event (id uuid PRIMARY KEY, aggregatetype text NOT NULL, aggregateid text NOT NULL,
                 type text NOT NULL, payload jsonb)";
    scene.database.execute(table).await?;
    scene
        .verb("init", &["--preset", "debezium"])
        .await?
        .success()
        .map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn init_dry_run_by_a_role_without_rights_notes_them_and_prints_the_statements() -> Result<()> {
    let scene = bare().await?;
    with_role(&scene, "", async |role| {
        let planned = verb_as(&scene, role, "init", &["--dry-run"]).await?;
        let words = [
            "-- note: ",
            role,
            "CREATE PUBLICATION",
            "pg_create_logical_replication_slot",
        ];
        assert_code(&planned, 0, &words)?;
        let notes: Vec<_> = planned
            .stdout
            .lines()
            .filter(|line| line.starts_with("-- note: "))
            .collect();
        ensure!(
            notes.len() == 2 && notes[0].contains("REPLICATION") && notes[1].contains("CREATE on database"),
            "{notes:?}"
        );
        assert_code(&verb_as(&scene, role, "init", &[]).await?, 78, &["REPLICATION"])?;
        ensure!(inventory(&scene).await? == ["table outbox_event"]);
        Ok(())
    })
    .await
}

async fn for_backfill(rows: u64) -> Result<(Scene, Consumer)> {
    let scene = bare().await?;
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let consumer = scene.consume().await?;
    let rows = Rows {
        aggregates: 50,
        ..Rows::backlog(rows)
    };
    rows.insert(&scene.database).await?;
    Ok((scene, consumer))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_and_the_stream_after_it_cover_every_row_exactly_once() -> Result<()> {
    let (scene, consumer) = for_backfill(1000).await?;
    let options = WriterOptions {
        aggregate_type: "written-meanwhile".into(),
        ..WriterOptions::default()
    };
    let writer = Writer::start(&scene.database.url(), options).await?;
    writer.wait_committed(20, LONG).await?;
    let backfill = scene
        .verb("init", &["--backfill", "--broker", &scene.vhost.url()])
        .await?;
    assert_code(&backfill, 0, &["rows of the table; made slot"])?;
    let published: usize = backfill
        .stdout
        .split("published ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next())
        .context("it does not say how many")?
        .parse()?;
    consumer.wait_for(published, LONG).await?;
    ensure!(
        published >= 1020 && consumer.unique() == published,
        "{published} of {}",
        consumer.unique()
    );
    let after = writer.committed();
    writer.wait_committed(after + 100, LONG).await?;
    let _tailpost = scene.run_ready(&[]).await?;
    writer.stop().await?;
    let verdict = scene.settle(consumer).await?;
    ensure!(
        verdict.duplicates == 0 && verdict.committed > published,
        "{verdict}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_that_is_killed_leaves_no_slot_and_a_second_one_leaves_nothing_out() -> Result<()> {
    let (scene, consumer) = for_backfill(3000).await?;
    let proxy = Proxy::start(shared_rabbit().await?.address()).await?;
    proxy.limit(Some(200_000));
    let broker = scene.vhost.url_by(proxy.address());
    let args = scene.args("init", &["--backfill", "--broker", &broker]);
    let mut backfill = Tailpost::spawn(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    consumer.wait_for(100, LONG).await?;
    backfill.kill9().await?;
    ensure!(consumer.unique() < 3000, "it was over before it was killed");
    until("the temporary slot is gone", LONG, async || {
        let left = inventory(&scene).await?;
        Ok((!left.iter().any(|thing| thing.starts_with("slot"))).then_some(()))
    })
    .await?;
    let backfill = scene
        .verb("init", &["--backfill", "--broker", &scene.vhost.url()])
        .await?;
    assert_code(&backfill, 0, &["published 3000 rows"])?;
    let ledger = scene.ledger().await?;
    consumer.wait_for(ledger.0.len(), LONG).await?;
    // A second backfill has a snapshot of its own, and so other positions: its repeats are told by their message_id.
    let mut deliveries = consumer.stop().await?;
    deliveries
        .iter_mut()
        .for_each(|delivery| delivery.position = None);
    let verdict = check(&ledger, &deliveries);
    ensure!(verdict.duplicates >= 100, "{verdict}");
    verdict.assert_clean()
}
