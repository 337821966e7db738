//! No password and no payload gets out: not into a log at its most talkative, a page, an error or `ps`.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailpost_testkit::consumer::QueueKind;
use tailpost_testkit::servers::kinds;
use tailpost_testkit::wait::until;
use tailpost_testkit::{Postgres, Proxy, Tailpost, shared_rabbit};
use tailpost_tests::{LONG, QUEUE, Scene};

/// Stands where a password should.
const PASSWORD: &str = "canary-pa55word";
/// Stands in payloads and headers.
const PAYLOAD: &str = "canary-payl0ad";
const TRACE: [&str; 2] = ["--log", "trace"];

async fn assert_silent(tailpost: &Tailpost) -> Result<()> {
    let leaked = tailpost.leaked(&[PASSWORD, PAYLOAD]).await?;
    ensure!(
        leaked.is_empty(),
        "{leaked:?} in: {}{}",
        tailpost.stdout(),
        tailpost.stderr()
    );
    ensure!(
        !tailpost.stderr().is_empty(),
        "it said nothing, so nothing was tested"
    );
    Ok(())
}

/// Waits until `/readyz` gives a reason with `word`; leaks are looked for meanwhile and after.
async fn silent_while_unready(mut tailpost: Tailpost, word: &str) -> Result<()> {
    let what = format!("unready because of {word}");
    let waited = until(&what, LONG, async || {
        if let Some(status) = tailpost.ended()? {
            anyhow::bail!("it ended: {status}");
        }
        assert_silent_page(&tailpost).await?;
        let answer = tailpost.get("/readyz").await.ok();
        Ok(answer
            .filter(|answer| answer.status == 503 && answer.body.contains(word))
            .map(drop))
    });
    let waited = waited.await;
    waited.with_context(|| tailpost.stderr())?;
    assert_silent(&tailpost).await?;
    tailpost.sigterm()?;
    tailpost.wait(LONG).await?;
    assert_silent(&tailpost).await
}

async fn assert_silent_page(tailpost: &Tailpost) -> Result<()> {
    let leaked = tailpost.leaked(&[PASSWORD, PAYLOAD]).await?;
    // The command line holds it until the process has executed itself anew; that has a test of its own.
    let started = !tailpost.stderr().is_empty();
    ensure!(
        !started || leaked.is_empty(),
        "{leaked:?} in: {}",
        tailpost.stderr()
    );
    Ok(())
}

fn event(kind: &str) -> String {
    format!(
        "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload, headers) \
         VALUES ('order', '7', '{kind}', '{{\"secret\":\"{PAYLOAD}\"}}', '{{\"token\":\"{PAYLOAD}\"}}');"
    )
}

async fn prepared() -> Result<Scene> {
    let scene = Scene::shared().await?;
    scene.prepare_with(QueueKind::Classic, &["order.created"]).await?;
    Ok(scene)
}

/// A URL of the scene's database with the canary as its password, which the server does not ask for.
fn source_with_password(scene: &Scene) -> String {
    scene
        .database
        .url()
        .replace("postgres@", &format!("postgres:{PASSWORD}@"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_on_the_command_line_is_out_of_ps_within_a_second() -> Result<()> {
    let scene = prepared().await?;
    let (source, broker) = (
        source_with_password(&scene),
        scene
            .vhost
            .url()
            .replace("guest:guest", &format!("guest:{PASSWORD}")),
    );
    let with_equals = [format!("--source={source}"), format!("--broker={broker}")];
    let lines: [Vec<&str>; 2] = [
        vec![
            "postgres",
            "run",
            "--source",
            &source,
            "--broker",
            &broker,
            "--slot",
            &scene.slot,
            "--on-halt",
            "stay",
        ],
        vec![
            "postgres",
            "run",
            &with_equals[0],
            &with_equals[1],
            "--slot",
            &scene.slot,
            "--on-halt",
            "stay",
        ],
    ];
    for line in lines {
        let mut tailpost = Tailpost::spawn(&line)?;
        let cmdline = format!("/proc/{}/cmdline", tailpost.pid());
        until("the command line is clean", Duration::from_secs(1), async || {
            let text = String::from_utf8_lossy(&fs::read(&cmdline)?).into_owned();
            Ok((text.contains("postgres") && !text.contains(PASSWORD)).then_some(()))
        })
        .await?;
        // It was understood all the same: the broker refuses it.
        until("it tried the password", LONG, async || {
            let answer = tailpost.get("/readyz").await.ok();
            Ok(answer.filter(|answer| answer.body.contains("halted")).map(drop))
        })
        .await
        .with_context(|| tailpost.stderr())?;
        let text = String::from_utf8_lossy(&fs::read(&cmdline)?).into_owned();
        ensure!(text.contains(&scene.slot) && !text.contains(PASSWORD), "{text}");
        assert_silent(&tailpost).await?;
        tailpost.sigterm()?;
        tailpost.wait(LONG).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_in_no_error_whoever_refuses_it_and_wherever_it_came_from() -> Result<()> {
    let postgres = Postgres::start(
        &kinds()?.postgres,
        &["--hba", "host all app 127.0.0.1/32 scram-sha-256"],
    )
    .await?;
    let scene = Scene::on(&postgres, &shared_rabbit().await?).await?;
    scene.prepare().await?;
    scene
        .database
        .execute("CREATE ROLE app LOGIN REPLICATION PASSWORD 'right'")
        .await?;
    let (source, broker) = (scene.database.url(), scene.vhost.url());
    let (by_url, user) = (
        source.replace("postgres@", &format!("app:{PASSWORD}@")),
        source.replace("postgres@", "app@"),
    );
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("password");
    fs::write(&file, format!("{PASSWORD}\n"))?;
    let file = file.to_str().context("no UTF-8")?;
    let (by_key, stay) = (
        format!("{user}?password={PASSWORD}"),
        ["--on-halt", "stay", "--log", "trace", "--slot", &scene.slot],
    );
    let broker_user = broker.replace("guest:guest", "guest");
    let lines: [Vec<&str>; 5] = [
        vec!["--source", &by_url, "--broker", &broker],
        vec!["--source", &by_key, "--broker", &broker],
        vec![
            "--source",
            &user,
            "--source-password-file",
            file,
            "--broker",
            &broker,
        ],
        vec![
            "--source",
            &source,
            "--broker",
            &broker_user,
            "--broker-password-file",
            file,
        ],
        vec!["--source", &user, "--broker", &broker],
    ];
    for (number, line) in lines.into_iter().enumerate() {
        let args = [&["postgres", "run"], &line[..], &stay].concat();
        // The last one finds it where psql would.
        let env: &[(&str, &str)] = if number == 4 {
            &[("PGPASSWORD", PASSWORD)]
        } else {
            &[]
        };
        silent_while_unready(Tailpost::spawn_with(&args, env)?, "halted")
            .await
            .with_context(|| format!("{line:?}"))?;
    }
    for verb in ["check", "init", "peek", "drop"] {
        let args = [
            "postgres",
            verb,
            "--source",
            &by_url,
            "--slot",
            &scene.slot,
            "--log",
            "trace",
        ];
        let ended = Tailpost::command(&args).await?;
        ensure!(ended.code().is_some_and(|code| code != 0), "{verb}: {ended:?}");
        ensure!(
            !format!("{}{}", ended.stdout, ended.stderr).contains(PASSWORD),
            "{verb}: {ended:?}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_password_in_a_url_that_cannot_be_understood_is_not_repeated() -> Result<()> {
    let urls = [
        "postgres://u:SECRET/x@h/d",
        "postgres://u:SECRET@x@h/d",
        "postgres://u:SECRET%zz@h/d",
        "postgres://u:SECRET#x@h/d",
        "postgres://u:SECRET?x@h/d",
        "postgres://u:SECRET@h:SECRET/d",
        "postgres://u@h/d?password=SECRET&pasword=SECRET",
        "postgres://u@h/d?pasword=SECRET",
        "mysql://u:SECRET@h/d",
        "amqp://u:SECRET@h/d",
        "http://u:SECRET@h/d",
        "u:SECRET@h/d",
        "host=h password=SECRET",
        "postgres//u:SECRET@h",
    ];
    for url in urls {
        let url = url.replace("SECRET", PASSWORD);
        let brokers = [
            url.clone(),
            url.replace("postgres", "amqp"),
            url.replace("postgres", "amqps"),
        ];
        for args in [
            ["--source", &url],
            ["--broker", &brokers[0]],
            ["--broker", &brokers[1]],
            ["--broker", &brokers[2]],
        ] {
            let line = [
                &["postgres", "run", "--log", "trace", "--print-config"],
                &args[..],
            ]
            .concat();
            let ended = Tailpost::command(&line).await?;
            ensure!(ended.code() == Some(2), "{args:?}: {ended:?}");
            ensure!(
                !format!("{}{}", ended.stdout, ended.stderr).contains(PASSWORD),
                "{args:?}: {ended:?}"
            );
        }
    }
    // A value of a variable that clap itself refuses.
    let env = [
        ("TAILPOST_SOURCE", "postgres://u:canary-pa55word@h/d"),
        ("TAILPOST_IN_FLIGHT", "x"),
    ];
    let ended = Tailpost::command_with(&["postgres", "run"], &env).await?;
    ensure!(
        ended.code() == Some(2) && !ended.stderr.contains(PASSWORD),
        "{ended:?}"
    );
    // And help, which shows what variables hold.
    let ended = Tailpost::command_with(&["postgres", "run", "--help"], &env[..1]).await?;
    ensure!(
        ended.code() == Some(0) && !ended.stdout.contains(PASSWORD),
        "{}",
        ended.stdout
    );
    Ok(())
}

/// Returned, held, confirmed, cut off in the middle of frames, sent again; and read anew after the source was lost.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_and_header_values_are_in_no_log_and_on_no_page_whatever_becomes_of_them() -> Result<()> {
    let scene = prepared().await?;
    let consumer = scene.consume().await?;
    let source = Proxy::start(
        scene
            .database
            .url()
            .split(['@', '/'])
            .nth(3)
            .context("no address")?
            .parse()?,
    )
    .await?;
    let broker = Proxy::start(shared_rabbit().await?.address()).await?;
    let (url, broker_url) = (
        scene
            .database
            .url_by(source.address())
            .replace("postgres@", &format!("postgres:{PASSWORD}@")),
        scene.vhost.url_by(broker.address()),
    );
    let file = format!("file:{}", scene.offset_file().display());
    let args = [
        "postgres",
        "run",
        "--source",
        &url,
        "--broker",
        &broker_url,
        "--slot",
        &scene.slot,
        "--offsets",
        &file,
    ];
    let mut tailpost = Tailpost::spawn(&[&args[..], &TRACE].concat())?;
    tailpost.wait_ready(LONG).await?;
    scene.database.execute(&event("created")).await?;
    consumer.wait_for(1, LONG).await?;
    scene.database.execute(&event("unroutable")).await?;
    until("it is returned", LONG, async || {
        Ok(tailpost
            .metric("tailpost_messages_returned_total")
            .await?
            .filter(|count| *count > 0.0))
    })
    .await?;
    assert_silent(&tailpost).await?;
    broker.cut();
    source.cut();
    for metric in [
        "tailpost_broker_connection_losses_total",
        "tailpost_source_connection_losses_total",
    ] {
        until(metric, LONG, async || {
            Ok(tailpost.metric(metric).await?.filter(|count| *count > 0.0))
        })
        .await?;
    }
    scene
        .database
        .execute("UPDATE outbox_event SET payload = payload; DELETE FROM outbox_event WHERE event_type = 'x'")
        .await?;
    scene.vhost.bind("events", QUEUE, "#").await?;
    consumer.wait_for(2, LONG).await?;
    assert_silent(&tailpost).await?;
    tailpost.sigterm()?;
    ensure!(tailpost.wait(LONG).await?.success(), "{}", tailpost.stderr());
    assert_silent(&tailpost).await
}

#[tokio::test(flavor = "multi_thread")]
async fn poison_is_named_without_its_content() -> Result<()> {
    let scene = prepared().await?;
    let wrong = [
        ("payload", format!("repeat('{PAYLOAD}', 1000)")),
        ("payload", format!("repeat('{PAYLOAD}', 100000)")),
        ("headers", format!("'{{\"x-a\":\"{PAYLOAD}\"}}'")),
        ("headers", format!("'{{\"aggregate_id\":\"{PAYLOAD}\"}}'")),
    ];
    for (column, value) in wrong {
        let insert = format!("INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, {column}");
        let insert = match column {
            "payload" => format!("{insert}) VALUES ('order', '7', 'created', to_jsonb({value}))"),
            _ => format!("{insert}, payload) VALUES ('order', '7', 'created', {value}, '\"{PAYLOAD}\"')"),
        };
        scene.database.execute(&insert).await?;
        let place = scene
            .database
            .connect()
            .await?
            .query_one("SELECT pg_current_wal_flush_lsn()::text", &[])
            .await?;
        let limit = ["--max-message-bytes", "5KB", "--on-halt", "stay"];
        silent_while_unready(scene.run(&[&limit[..], &TRACE].concat())?, "halted: ")
            .await
            .context(value)?;
        let peeked = scene.verb("peek", &[&limit[..2], &TRACE].concat()).await?;
        ensure!(
            peeked.code() == Some(65) && !peeked.stderr.contains(PAYLOAD),
            "{peeked:?}"
        );
        ensure!(!peeked.stdout.contains(PAYLOAD), "{peeked:?}");
        scene
            .verb("offset set", &[place.get(0), "--yes"])
            .await?
            .success()?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn verbs_that_read_rows_log_none_of_them() -> Result<()> {
    let scene = Scene::shared().await?;
    let schema = Tailpost::command(&["postgres", "schema"]).await?.success()?;
    scene
        .database
        .execute(&format!("{} {}", schema.stdout, event("created")))
        .await?;
    tailpost_testkit::consumer::declare(&scene.vhost.url(), "events", QUEUE, QueueKind::Classic, &["#"])
        .await?;
    let source = source_with_password(&scene);
    let broker = scene.vhost.url();
    let init = ["init", "--broker", &broker, "--backfill"];
    let lines: [&[&str]; 5] = [
        &[&init[..], &["--dry-run"]].concat(),
        &init,
        &["check", "--broker", &broker],
        &["offset", "show"],
        &["drop"],
    ];
    for line in lines {
        let args = [
            &["postgres"],
            line,
            &["--source", &source, "--slot", &scene.slot],
            &TRACE,
        ]
        .concat();
        let ended = Tailpost::command(&args).await?;
        // drop has no terminal to ask on.
        let expected = if line[0] == "drop" { 2 } else { 0 };
        ensure!(ended.code() == Some(expected), "{line:?}: {ended:?}");
        let all = format!("{}{}", ended.stdout, ended.stderr);
        ensure!(
            !all.contains(PASSWORD) && !all.contains(PAYLOAD),
            "{line:?}: {all}"
        );
        let reads = line.contains(&"--backfill") && !line.contains(&"--dry-run");
        ensure!(
            !reads || ended.stderr.contains("DEBUG") || ended.stderr.contains("TRACE"),
            "{line:?} logged nothing: {all}"
        );
    }
    Ok(())
}
