//! The set-up: status 78, or 66 where the position is gone.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::servers::{kinds, unique_name};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Postgres, Tailpost, shared_postgres, shared_rabbit};
use tailpost_tests::{LONG, QUEUE, Scene};

use crate::{assert_words, ends, event, prepared, run_as, run_ends, verb_as};

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_of_another_kind_is_refused_with_the_field_that_is_wrong() -> Result<()> {
    let scene = prepared().await?;
    let other = shared_postgres().await?.create_database().await?;
    let make = |function: &str, arguments: &str| format!("SELECT {function}('{}'{arguments})", scene.slot);
    let logical = "pg_create_logical_replication_slot";
    let cases: [(&str, String, &[&str]); 4] = [
        (
            "physical",
            make("pg_create_physical_replication_slot", ""),
            &["is physical", "--slot"],
        ),
        (
            "plugin",
            make(logical, ", 'test_decoding'"),
            &["test_decoding", "pgoutput is needed", "--slot"],
        ),
        (
            "two_phase",
            make(logical, ", 'pgoutput', false, true"),
            &["two_phase", "--slot"],
        ),
        (
            "database",
            make(logical, ", 'pgoutput'"),
            &["belongs to database", other.name(), scene.database.name()],
        ),
    ];
    for (which, sql, words) in cases {
        scene
            .database
            .execute(&format!("SELECT pg_drop_replication_slot('{}')", scene.slot))
            .await
            .or_else(|error| {
                // A slot of another database is dropped below.
                if which == "physical" { Err(error) } else { Ok(()) }
            })?;
        let database = if which == "database" {
            &other
        } else {
            &scene.database
        };
        database.execute(&sql).await?;
        run_ends(&scene, &[], 78, words).await.context(which)?;
        let check = scene.verb("check", &[]).await?;
        ensure!(check.code() == Some(1), "{which}: {}", check.stdout);
        assert_words(&check.stdout, words).context(which)?;
        for verb in ["init", "peek", "offset show", "drop"] {
            // A two-phase slot of ours may be dropped.
            if (which, verb) == ("two_phase", "drop") {
                continue;
            }
            let refused = scene.verb(verb, &[]).await?;
            ensure!(refused.code() == Some(78), "{which}, {verb}: {refused:?}");
        }
    }
    other
        .execute(&format!("SELECT pg_drop_replication_slot('{}')", scene.slot))
        .await?;
    run_ends(
        &scene,
        &[],
        66,
        &["does not exist", &scene.slot, "tailpost postgres init"],
    )
    .await
    .map(drop)
}

/// Makes a role with these attributes for `test`, which gets the URL of the scene's database for it.
async fn with_role(
    scene: &Scene,
    attributes: &str,
    test: impl AsyncFnOnce(&str, &str) -> Result<()>,
) -> Result<()> {
    let role = unique_name();
    scene
        .database
        .execute(&format!("CREATE ROLE {role} LOGIN {attributes}"))
        .await?;
    let url = scene.database.url().replace("postgres@", &format!("{role}@"));
    let result = test(&role, &url).await;
    // The server is shared: a role outlives its database.
    scene
        .database
        .execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}"))
        .await?;
    result
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_without_replication_is_refused_with_the_statement_that_gives_it() -> Result<()> {
    let scene = prepared().await?;
    with_role(&scene, "", async |role, url| {
        let statement = format!("ALTER ROLE \"{role}\" REPLICATION");
        ends(run_as(&scene, url)?, 78, &[&statement]).await?;
        let check = verb_as(&scene, url, "check", &[]).await?;
        ensure!(check.code() == Some(1), "{}", check.stdout);
        assert_words(&check.stdout, &["no REPLICATION", &statement])?;
        let init = verb_as(&scene, url, "init", &[]).await?;
        ensure!(init.code() == Some(78), "{init:?}");
        assert_words(&init.stderr, &[&statement])?;
        scene.database.execute(&statement).await?;
        let check = verb_as(&scene, url, "check", &[]).await?;
        ensure!(check.code() == Some(0), "{}", check.stdout);
        Ok(())
    })
    .await
}

/// The stream needs no right on the table; `check` tells that a backfill would.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_with_replication_alone_can_run_and_check_prints_the_grant_that_a_backfill_needs() -> Result<()>
{
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    with_role(&scene, "REPLICATION", async |role, url| {
        let grant = format!("GRANT SELECT ON \"public\".\"outbox_event\" TO \"{role}\"");
        let check = verb_as(&scene, url, "check", &[]).await?;
        ensure!(check.code() == Some(0), "{}", check.stdout);
        assert_words(&check.stdout, &["not granted", &grant])?;
        let mut tailpost = run_as(&scene, url)?;
        tailpost.wait_ready(LONG).await?;
        scene.database.execute(&event("created")).await?;
        consumer.wait_for(1, LONG).await?;
        scene.database.execute(&grant).await?;
        let check = verb_as(&scene, url, "check", &[]).await?;
        ensure!(!check.stdout.contains("not granted"), "{}", check.stdout);
        drop(tailpost);
        until("the slot is free", LONG, async || {
            let free = scene.verb("offset show", &[]).await?.success()?;
            Ok(free.stdout.contains("nobody").then_some(()))
        })
        .await
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn init_by_a_role_that_may_not_make_the_publication_is_refused_before_anything_is_made() -> Result<()> {
    let scene = Scene::shared().await?;
    let schema = Tailpost::command(&["postgres", "schema"]).await?.success()?;
    scene.database.execute(&schema.stdout).await?;
    with_role(&scene, "REPLICATION", async |role, url| {
        let init = verb_as(&scene, url, "init", &[]).await?;
        ensure!(init.code() == Some(78), "{init:?}");
        assert_words(&init.stderr, &["cannot make publication", role, "CREATE on database"])?;
        let made = "SELECT 1 FROM pg_replication_slots WHERE database = current_database() UNION ALL SELECT 1 FROM pg_publication";
        ensure!(scene.database.connect().await?.query(made, &[]).await?.is_empty());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_up_that_is_wrong_at_the_start_ends_with_78_and_names_what_mends_it() -> Result<()> {
    let scene = prepared().await?;
    let wrong_database = scene.database.url().replace(scene.database.name(), "no_such_db");
    ends(
        run_as(&scene, &wrong_database)?,
        78,
        &["no database \"no_such_db\"", "create database"],
    )
    .await?;
    let publication = format!("CREATE PUBLICATION \"{}\"", unique_name());
    let name = publication.split('"').nth(1).context("no name")?;
    run_ends(
        &scene,
        &["--publication", name],
        78,
        &["does not exist", &publication],
    )
    .await?;
    run_ends(
        &scene,
        &["--table", "no_such"],
        78,
        &["table no_such does not exist", "--table"],
    )
    .await?;
    scene
        .database
        .execute("CREATE VIEW seen AS SELECT * FROM outbox_event")
        .await?;
    run_ends(&scene, &["--table", "seen"], 78, &["public.seen is a view"]).await?;
    let taken = TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    run_ends(
        &scene,
        &["--listen", &address],
        78,
        &["could not listen", &address, "--listen"],
    )
    .await?;
    // The broker's side.
    let bad = scene.vhost.url().replace(scene.vhost.name(), "no_such_vhost");
    ends(scene.run_by(&bad, &[])?, 78, &["no_such_vhost"]).await?;
    let bad = scene.vhost.url().replace("guest:guest", "guest:wrong");
    ends(scene.run_by(&bad, &[])?, 78, &["guest"]).await?;
    // Nothing of all that has touched the position.
    scene.database.execute(&event("created")).await?;
    run_ends(
        &scene,
        &["--exchange", "nowhere"],
        78,
        &["nowhere", "--declare-exchange"],
    )
    .await?;
    let consumer = scene.consume().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    scene.settle(consumer).await.map(drop)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_logs_no_rows_is_refused_by_every_verb_with_the_setting_to_change() -> Result<()> {
    let postgres = Postgres::start(&kinds()?.postgres, &["-c", "wal_level=replica"]).await?;
    let scene = Scene::on(&postgres, &shared_rabbit().await?).await?;
    declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"]).await?;
    let words = ["wal_level", "ALTER SYSTEM SET wal_level = logical", "restart"];
    run_ends(&scene, &[], 78, &words).await?;
    for (verb, code) in [("init", 78), ("check", 1), ("peek", 78), ("offset show", 78)] {
        let ended = scene.verb(verb, &[]).await?;
        ensure!(ended.code() == Some(code), "{verb}: {ended:?}");
        assert_words(&format!("{}{}", ended.stdout, ended.stderr), &words).context(verb)?;
    }
    Ok(())
}
