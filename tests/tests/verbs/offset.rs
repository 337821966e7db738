//! `offset show` and `offset set` of a slot; those of a file: `offset_file.rs`.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailpost_testkit::Tailpost;
use tailpost_tests::LONG;

use crate::{assert_code, confirmed_flush, event, one_text, prepared};

#[tokio::test(flavor = "multi_thread")]
async fn offset_show_prints_where_the_slot_stands_and_who_uses_it() -> Result<()> {
    let scene = prepared().await?;
    let at = confirmed_flush(&scene).await?.context("no slot")?;
    assert_code(
        &scene.verb("offset show", &[]).await?,
        0,
        &[&scene.slot, &at, "nobody"],
    )?;
    let tailpost = scene.run_ready(&[]).await?;
    let holder = format!("tailpost/{}@", scene.slot);
    assert_code(&scene.verb("offset show", &[]).await?, 0, &[&scene.slot, &holder])?;
    drop(tailpost);
    let missing = Tailpost::command(&[
        "postgres",
        "offset",
        "show",
        "--source",
        &scene.database.url(),
        "--slot",
        "no_such",
    ])
    .await?;
    assert_code(
        &missing,
        66,
        &["no_such", "check --slot and the database", "init"],
    )?;
    let file = format!("file:{}", scene.offset_file().display());
    let shown = scene.verb("offset show", &["--offsets", &file]).await?;
    assert_code(&shown, 0, &["offset        none: no such file"])?;
    let folder = scene.offset_file();
    std::fs::create_dir(&folder)?;
    for file in [file.clone(), format!("{file}/")] {
        let shown = scene.verb("offset show", &["--offsets", &file]).await?;
        assert_code(&shown, 74, &["it is a folder: name a file in it"]).context(file)?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn offset_set_says_what_it_skips_asks_and_moves_a_slot_forward_only() -> Result<()> {
    let scene = prepared().await?;
    let before = confirmed_flush(&scene).await?.context("no slot")?;
    scene
        .database
        .execute(&format!("{} {}", event("skipped"), event("skipped")))
        .await?;
    scene.database.execute(&event("skipped")).await?;
    let end = one_text(&scene, "SELECT pg_current_wal_flush_lsn()::text")
        .await?
        .context("no end")?;
    scene.database.execute(&event("kept")).await?;
    let asked = scene.verb("offset set", &[&end]).await?;
    assert_code(&asked, 2, &["3 inserts between are never published", "--yes"])?;
    ensure!(
        confirmed_flush(&scene).await?.as_ref() == Some(&before),
        "moved without a yes"
    );
    assert_code(&scene.verb("offset set", &[&end, "--yes"]).await?, 0, &[&end])?;
    assert_code(
        &scene.verb("offset set", &[&before, "--yes"]).await?,
        78,
        &["cannot be moved back", &before],
    )?;
    assert_code(
        &scene.verb("offset set", &["FF/FFFFFFFF", "--yes"]).await?,
        78,
        &["after the end of the server's log"],
    )?;
    assert_code(
        &scene.verb("offset set", &["no-lsn", "--yes"]).await?,
        2,
        &["LSN"],
    )?;
    assert_code(
        &scene.verb("offset set", &["--previous"]).await?,
        2,
        &["a slot keeps no previous generation"],
    )?;
    let consumer = scene.consume().await?;
    let tailpost = scene.run_ready(&[]).await?;
    consumer.wait_for(1, LONG).await?;
    let busy = scene.verb("offset set", &[&end, "--yes"]).await?;
    assert_code(
        &busy,
        1,
        &[
            "in use by",
            &format!("tailpost/{}@", scene.slot),
            "stop the relay first",
        ],
    )?;
    consumer.wait_quiet(Duration::from_millis(200), LONG).await?;
    let got = consumer.stop().await?;
    ensure!(
        got.len() == 1 && got[0].event_type.as_deref() == Some("kept"),
        "{got:?}"
    );
    drop(tailpost);
    Ok(())
}

/// What was written while the publication was missing cannot be decoded: neither streamed nor counted. The way past it
/// that the halt names must work all the same.
#[tokio::test(flavor = "multi_thread")]
async fn offset_set_moves_past_a_time_without_the_publication_as_the_halt_says() -> Result<()> {
    let scene = prepared().await?;
    let version = "SELECT current_setting('server_version_num')";
    let version: u32 = one_text(&scene, version).await?.context("no version")?.parse()?;
    let drop_it = format!("DROP PUBLICATION \"{}\"", scene.slot);
    scene.database.execute(&drop_it).await?;
    scene.database.execute(&event("hidden")).await?;
    let mut halted = scene.run(&[])?;
    let status = halted.wait(LONG).await?;
    let log = halted.stderr();
    ensure!(
        status.code() == Some(78) && log.contains("offset set LSN"),
        "{status}: {log}"
    );
    let statement = log
        .split("CREATE PUBLICATION")
        .nth(1)
        .and_then(|rest| rest.split(';').next());
    let statement = statement.with_context(|| format!("no statement in {log}"))?;
    scene
        .database
        .execute(&format!("CREATE PUBLICATION{statement}"))
        .await?;
    let mut halted = scene.run(&[])?;
    let status = halted.wait(LONG).await?;
    let log = halted.stderr();
    ensure!(
        status.code() == Some(78) && log.contains("offset set LSN") && log.contains("init --backfill"),
        "{status}: {log}"
    );
    let end = one_text(&scene, "SELECT pg_current_wal_flush_lsn()::text")
        .await?
        .context("no end")?;
    // PostgreSQL 18 skips what it cannot tell, with a warning, and so counts none.
    let words = if version >= 180_000 {
        "no published insert"
    } else {
        "cannot be counted"
    };
    assert_code(&scene.verb("offset set", &[&end]).await?, 2, &[words, "--yes"])?;
    assert_code(&scene.verb("offset set", &[&end, "--yes"]).await?, 0, &[&end])?;
    scene.database.execute(&event("shown")).await?;
    let consumer = scene.consume().await?;
    let _tailpost = scene.run_ready(&[]).await?;
    consumer.wait_for(1, LONG).await?;
    let got = consumer.stop().await?;
    ensure!(
        got.len() == 1 && got[0].event_type.as_deref() == Some("shown"),
        "{got:?}"
    );
    Ok(())
}
