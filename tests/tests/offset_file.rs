//! `--offsets file:` as an operator meets it: a file that is damaged, of somebody else, gone or in use. Every length and
//! every bit is a unit test of the store; here the real binary meets some of each.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Ended, Tailpost, Verdict, Writer, WriterOptions};
use tailpost_tests::{LONG, Offsets, Scene};

fn event() -> &'static str {
    "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) VALUES ('order', '7', 'created', '{}')"
}

/// A stopped relay whose file has a generation before, and events that wait to be published.
async fn stopped() -> Result<(Scene, Consumer)> {
    let scene = Scene::shared().await?.with_offsets(Offsets::File);
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let mut tailpost = scene.run_ready(&[]).await?;
    for n in 1..=3 {
        scene.database.execute(event()).await?;
        consumer.wait_for(n, LONG).await?;
        let before = n as f64;
        until("it is stored", LONG, async || {
            Ok(tailpost
                .metric("tailpost_offset_stores_total")
                .await?
                .filter(|stores| *stores >= before))
        })
        .await?;
    }
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    ensure!(previous(&scene).is_file(), "there is no generation before");
    scene.database.execute(event()).await?;
    Ok((scene, consumer))
}

fn beside(scene: &Scene, end: &str) -> PathBuf {
    let mut path = scene.offset_file().into_os_string();
    path.push(end);
    path.into()
}

fn previous(scene: &Scene) -> PathBuf {
    beside(scene, ".previous")
}

fn flag(scene: &Scene) -> String {
    format!("file:{}", scene.offset_file().display())
}

async fn offset(scene: &Scene, verb: &str, extra: &[&str]) -> Result<Ended> {
    let file = flag(scene);
    scene
        .verb(
            &format!("offset {verb}"),
            &[&["--offsets", &file], extra].concat(),
        )
        .await
}

/// `run` ends with 74, and names the file and what else there must be.
async fn refused(scene: &Scene, words: &[&str]) -> Result<String> {
    let mut tailpost = scene.run(&[])?;
    let status = tailpost.wait(LONG).await?;
    let log = tailpost.stderr();
    ensure!(status.code() == Some(74), "{status}: {log}");
    let file = scene.offset_file();
    ensure!(
        log.contains(file.to_str().context("no UTF-8")?),
        "the file is not named: {log}"
    );
    let missing: Vec<_> = words.iter().filter(|word| !log.contains(**word)).collect();
    ensure!(missing.is_empty(), "{missing:?} not in: {log}");
    Ok(log)
}

/// Runs it, and waits until all that is committed was delivered.
async fn all_is_published(scene: &Scene, consumer: Consumer) -> Result<Verdict> {
    let _tailpost = scene.run_ready(&[]).await?;
    scene.settle(consumer).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_refused_with_74_and_offset_set_previous_mends_it_without_a_loss() -> Result<()> {
    let (scene, consumer) = stopped().await?;
    let file = scene.offset_file();
    let intact = fs::read(&file)?;
    let kept = fs::read(previous(&scene))?;
    for length in [
        0,
        1,
        7,
        8,
        10,
        40,
        intact.len() / 2,
        intact.len() - 4,
        intact.len() - 1,
    ] {
        fs::write(&file, &intact[..length])?;
        refused(&scene, &["cannot be used", "generation before", "--previous"])
            .await
            .with_context(|| format!("{length} bytes"))?;
    }
    for _ in 0..8 {
        let (byte, bit) = (fastrand::usize(..intact.len()), fastrand::u8(..8));
        let mut flipped = intact.clone();
        flipped[byte] ^= 1 << bit;
        fs::write(&file, &flipped)?;
        refused(&scene, &["cannot be used", "--previous"])
            .await
            .with_context(|| format!("bit {bit} of byte {byte}"))?;
        let shown = offset(&scene, "show", &[]).await?;
        ensure!(
            shown.code() == Some(74) && shown.stdout.contains("previous"),
            "{shown:?}"
        );
    }
    fs::write(&file, [&intact[..], b"\n"].concat())?;
    refused(&scene, &["cannot be used"]).await?;
    ensure!(
        fs::read(previous(&scene))? == kept,
        "the generation before was touched"
    );
    // It asks; then it takes the older offset, and at worst repeats.
    let asked = offset(&scene, "set", &["--previous"]).await?;
    ensure!(
        asked.code() == Some(2) && asked.stderr.contains("--yes"),
        "{asked:?}"
    );
    ensure!(offset(&scene, "set", &["--previous", "--yes"]).await?.code() == Some(0));
    let shown = offset(&scene, "show", &[]).await?;
    ensure!(shown.code() == Some(0), "{shown:?}");
    // Where the slot stands after the older offset, the slot's place was stored before it was reported: that is taken.
    let verdict = all_is_published(&scene, consumer).await?;
    ensure!(verdict.committed == 4, "{verdict}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_another_slot_name_or_database_is_refused_and_not_touched() -> Result<()> {
    let (scene, consumer) = stopped().await?;
    let bytes = fs::read(scene.offset_file())?;
    // Another name on the same slot.
    let mut tailpost = scene.run(&["--name", "somebody-else"])?;
    let status = tailpost.wait(LONG).await?;
    ensure!(status.code() == Some(74), "{status}: {}", tailpost.stderr());
    for word in ["belongs to another relay", "somebody-else", "a file of its own"] {
        ensure!(tailpost.stderr().contains(word), "{word}: {}", tailpost.stderr());
    }
    // Another scene's file in place of one's own: another database and slot.
    let (other, other_consumer) = stopped().await?;
    fs::copy(scene.offset_file(), other.offset_file())?;
    refused(&other, &["belongs to another relay"]).await?;
    ensure!(
        fs::read(other.offset_file())? == bytes,
        "a foreign file was written"
    );
    // `offset set` does not write over somebody's offset either.
    let set = offset(&other, "set", &["0/1", "--yes"]).await?;
    ensure!(
        set.code() == Some(74) && set.stderr.contains("belongs to another relay"),
        "{set:?}"
    );
    ensure!(fs::read(scene.offset_file())? == bytes && fs::read(other.offset_file())? == bytes);
    all_is_published(&scene, consumer).await?;
    drop(other_consumer);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_was_deleted_is_missed_and_never_means_begin_from_now() -> Result<()> {
    let (scene, consumer) = stopped().await?;
    let file = scene.offset_file();
    let bytes = fs::read(&file)?;
    fs::remove_file(&file)?;
    refused(
        &scene,
        &[
            "it is gone, though an offset was stored there before",
            "--previous",
        ],
    )
    .await?;
    // Without the generation before the lock file still remembers.
    let kept = fs::read(previous(&scene))?;
    fs::remove_file(previous(&scene))?;
    refused(&scene, &["it is gone, though an offset was stored there before"]).await?;
    ensure!(!file.exists(), "a file was made up");
    // A file that cannot be read, and one that others may write.
    fs::write(previous(&scene), &kept)?;
    fs::create_dir(&file)?;
    refused(&scene, &["no regular file", "it is a folder"]).await?;
    fs::remove_dir(&file)?;
    fs::write(&file, &bytes)?;
    set_mode(&file, 0o666)?;
    refused(&scene, &["others may write it", "chmod 600"]).await?;
    set_mode(&file, 0o600)?;
    let verdict = all_is_published(&scene, consumer).await?;
    ensure!(verdict.duplicates == 0, "{verdict}");
    Ok(())
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_file_is_closed_to_others_and_a_folder_that_is_missing_is_named() -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let (scene, _consumer) = stopped().await?;
    for path in [scene.offset_file(), previous(&scene)] {
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        ensure!(mode == 0o600, "{}: {mode:o}", path.display());
    }
    let nowhere = scene
        .offset_file()
        .with_file_name("no-such-folder")
        .join("offset");
    let at = format!("file:{}", nowhere.display());
    let args = scene.args("run", &["--broker", &scene.vhost.url(), "--offsets", &at]);
    let mut tailpost = Tailpost::spawn(&args.iter().map(String::as_str).collect::<Vec<_>>())?;
    let status = tailpost.wait(LONG).await?;
    ensure!(status.code() == Some(74), "{status}: {}", tailpost.stderr());
    ensure!(
        tailpost.stderr().contains("create folder"),
        "{}",
        tailpost.stderr()
    );
    Ok(())
}

/// Runs the command that the text of the halt names.
async fn accept(scene: &Scene, log: &str) -> Result<()> {
    let command = log
        .split("offset set ")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .context("no remedy")?;
    let (position, flags) = command.split_once(' ').context("no flag")?;
    ensure!(flags == "--offsets file:PATH", "{flags}");
    let set = offset(scene, "set", &[position, "--yes"]).await?;
    ensure!(set.code() == Some(0), "{set:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_was_made_anew_with_a_backfill_goes_on_once_its_position_is_in_the_old_file() -> Result<()>
{
    let (scene, consumer) = stopped().await?;
    scene.verb("drop", &["--yes"]).await?.success()?;
    scene
        .verb("init", &["--backfill", "--broker", &scene.vhost.url()])
        .await?
        .success()?;
    let mut tailpost = scene.run(&[])?;
    let status = tailpost.wait(LONG).await?;
    let log = tailpost.stderr();
    ensure!(
        status.code() == Some(66) && log.contains("made anew"),
        "{status}: {log}"
    );
    accept(&scene, &log).await?;
    let _tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(event()).await?;
    // Three were repeated: each counts once.
    consumer.wait_for(5, LONG).await?;
    ensure!(scene.ledger().await?.0.len() == 5);
    Ok(())
}

/// The operator's `set` takes any place that the slot still has; what is behind the slot is noticed, never guessed.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_somebody_else_moved_is_noticed_and_its_position_can_be_accepted() -> Result<()> {
    let (scene, consumer) = stopped().await?;
    scene
        .database
        .execute(&format!(
            "SELECT pg_replication_slot_advance('{}', pg_current_wal_flush_lsn())",
            scene.slot
        ))
        .await?;
    let mut tailpost = scene.run(&[])?;
    let status = tailpost.wait(LONG).await?;
    let log = tailpost.stderr();
    ensure!(
        status.code() == Some(66) && log.contains("by someone else"),
        "{status}: {log}"
    );
    accept(&scene, &log).await?;
    let _tailpost = scene.run_ready(&[]).await?;
    scene.database.execute(event()).await?;
    consumer.wait_for(4, LONG).await?;
    let deliveries = consumer.stop().await?;
    // The fourth of five was skipped by whoever moved the slot.
    ensure!(
        deliveries.len() == 4 && scene.ledger().await?.0.len() == 5,
        "{deliveries:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_with_one_file_are_one_active_and_one_standby_that_takes_over() -> Result<()> {
    let scene = Scene::shared().await?.with_offsets(Offsets::File);
    scene.prepare().await?;
    let consumer = scene.consume().await?;
    let mut first = scene.run_ready(&[]).await?;
    let writer = Writer::start(&scene.database.url(), WriterOptions::default()).await?;
    writer.wait_committed(50, LONG).await?;
    let mut second = scene.run_ready(&[]).await?;
    let answer: Value = serde_json::from_str(&second.get("/readyz").await?.body)?;
    ensure!(answer["role"] == "standby", "{answer}");
    let holder = format!("process {}", first.pid());
    ensure!(
        answer["holder"]
            .as_str()
            .is_some_and(|text| text.contains(&holder)),
        "{answer}"
    );
    let busy = offset(&scene, "set", &["0/1", "--yes"]).await?;
    ensure!(
        busy.code() == Some(1) && busy.stderr.contains(&holder),
        "{busy:?}"
    );
    ensure!(second.metric("tailpost_active").await? == Some(0.0));
    ensure!(second.metric("tailpost_rows_read_total").await? == Some(0.0));
    first.kill9().await?;
    until("the standby takes over", LONG, async || {
        Ok(second
            .metric("tailpost_messages_confirmed_total")
            .await?
            .filter(|count| *count > 0.0))
    })
    .await?;
    writer.stop().await?;
    scene.settle(consumer).await?;
    second.sigterm()?;
    ensure!(second.wait(LONG).await?.success(), "{}", second.stderr());
    Ok(())
}
