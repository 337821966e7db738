//! What needs no database: `schema`, help, version, `--print-config`.

use anyhow::{Context, Result, ensure};
use tailpost_testkit::Tailpost;
use tailpost_tests::Scene;

use crate::{assert_code, said};

#[tokio::test(flavor = "multi_thread")]
async fn schema_prints_statements_that_make_a_table_that_fits_and_may_be_run_twice() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.database.execute("CREATE SCHEMA \"My Sales\"").await?;
    let table = ["--table", "\"My Sales\".\"Out\"\"box\""];
    let printed = Tailpost::command(&["postgres", "schema", table[0], table[1]])
        .await?
        .success()?
        .stdout;
    scene.database.execute(&printed).await?;
    scene.database.execute(&printed).await?;
    scene.verb("init", &table).await?.success()?;
    scene.verb("check", &table).await?.success()?;
    let refused = Tailpost::command(&["postgres", "schema", "--table", "a.b.c"]).await?;
    assert_code(&refused, 2, &["--table", "more than two parts"])
}

#[tokio::test]
async fn every_verb_explains_itself_and_tells_its_version() -> Result<()> {
    let verbs = [
        "run",
        "init",
        "check",
        "peek",
        "offset",
        "offset show",
        "offset set",
        "drop",
        "schema",
    ];
    let commands = ["".to_owned(), "postgres".to_owned()]
        .into_iter()
        .chain(verbs.map(|verb| format!("postgres {verb}")));
    for command in commands {
        let with = |flag| {
            command
                .split(' ')
                .filter(|word| !word.is_empty())
                .chain([flag])
                .collect::<Vec<_>>()
        };
        for flag in ["--help", "-h"] {
            let help = Tailpost::command(&with(flag)).await?;
            assert_code(&help, 0, &[&format!("Usage: tailpost {command}")])
                .with_context(|| command.clone())?;
            ensure!(help.stderr.is_empty(), "{}", help.stderr);
        }
        let version = Tailpost::command(&with("--version")).await?;
        assert_code(&version, 0, &[env!("CARGO_PKG_VERSION")]).with_context(|| command.clone())?;
    }
    for verb in [
        "offset show",
        "offset set",
        "drop",
        "check",
        "peek",
        "init",
        "run",
    ] {
        let args: Vec<_> = ["postgres"]
            .into_iter()
            .chain(verb.split(' '))
            .chain(["--help"])
            .collect();
        let help = Tailpost::command(&args).await?.success()?.stdout;
        ensure!(
            help.contains("--source") && help.contains("--slot"),
            "{verb} --help does not name its flags: {help}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn print_config_shows_what_was_understood_without_secrets_and_without_a_connection() -> Result<()> {
    let args = [
        "postgres",
        "run",
        "--source",
        "postgres://app:canary-source@127.0.0.1:1/shop?sslmode=require",
        "--broker",
        "amqp://app:canary-broker@127.0.0.1:1/x,amqp://app:canary-broker@127.0.0.2:1/x",
        "--slot",
        "orders",
        "--table",
        "a",
        "--table",
        "sales.\"B\"",
        "--in-flight-bytes",
        "2MiB",
        "--order",
        "commit",
        "--offsets",
        "file:/tmp/o",
        "--print-config",
    ];
    let env = [
        ("TAILPOST_ROUTING_KEY", "{event_type}"),
        ("TAILPOST_DRAIN_TIMEOUT", "90s"),
        ("TAILPOST_SLOT", "not-taken"),
    ];
    let shown = Tailpost::command_with(&args, &env).await?;
    let words = [
        "orders",
        "a, sales.\"B\"",
        "{event_type}",
        "2.0 MiB",
        "commit",
        "file:/tmp/o",
        "1m 30s",
        "127.0.0.2:1",
        "sslmode=require",
    ];
    assert_code(&shown, 0, &words)?;
    ensure!(!said(&shown).contains("canary"), "{}", said(&shown));
    ensure!(
        !shown.stdout.contains("not-taken"),
        "the command line did not win: {}",
        shown.stdout
    );
    Ok(())
}
