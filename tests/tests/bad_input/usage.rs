//! The command line and the environment: status 2.

use anyhow::{Context, Result, ensure};
use tailpost_testkit::Tailpost;

use crate::assert_words;

/// A command line, an environment, and the words that the answer must have.
type Usage = (
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
    &'static [&'static str],
);

const SOURCE: &str = "postgres://app@127.0.0.1:1/shop";
const BROKER: &str = "amqp://app@127.0.0.1:1/shop";

// One case a line.
#[rustfmt::skip]
/// Put behind `postgres run --source … --broker …`; a flag that is given again is left out there.
const RUN: [Usage; 48] = [
    (&["--source", "mysql://u@h/d"], &[], &["mysql", "MySQL and MariaDB are not read yet"]),
    (&["--source", "mariadb://u@h/d"], &[], &["mariadb", "not read yet"]),
    (&["--source", "psotgres://u@h/d"], &[], &["did you mean postgres://?"]),
    (&["--source", "amqp://u@h/d"], &[], &["belongs to --broker"]),
    (&["--source", "shop"], &[], &["--source", "postgres://USER@HOST:PORT/DATABASE"]),
    (&["--source", "postgres://h/d?sslmod=require"], &[], &["sslmod", "did you mean \"sslmode\""]),
    (&["--source", "postgres://h/d?sslmode=maybe"], &[], &["sslmode", "verify-full"]),
    (&["--source", "postgres://u:p@w@h/d"], &[], &["percent-encoded", "%40"]),
    (&["--source", "postgres://h:port/d"], &[], &["--source", "port"]),
    (&["--broker", "postgres://h/d"], &[], &["--broker", "amqp:// or amqps://"]),
    (&["--broker", "amqp://h/v?heartbeet=5"], &[], &["heartbeet", "did you mean heartbeat"]),
    (&["--broker", "amqp://h/v?cacertfile=/x"], &[], &["cacertfile", "write amqps://"]),
    (&["--broker", "amqp://h:0/v"], &[], &["port of the broker URL"]),
    (&["--broker", "amqp://h/a,amqp://h/b/c"], &[], &["broker URL 2"]),
    (&["--exchange", "events.{aggregate_type"], &[], &["--exchange", "character 8", "no closing brace"]),
    (&["--routing-key", "a}b"], &[], &["--routing-key", "character 2"]),
    (&["--routing-key", "{ event_type }"], &[], &["white space", "{event_type}"]),
    (&["--routing-key", "{payload}"], &[], &["routing key template", "holds the payload"]),
    (&["--column", "evnt_id=x"], &[], &["--column", "evnt_id", "nearest is \"event_id\""]),
    (&["--column", "event_id"], &[], &["FIELD=COLUMN"]),
    (&["--column", "payload="], &[], &["payload", "every event needs one"]),
    (&["--column", "event_id=a", "--column", "event_id=b"], &[], &["event_id", "two columns"]),
    (&["--header", "x-delay=c"], &[], &["x-delay", "reserved"]),
    (&["--header", "Cc=c"], &[], &["Cc", "reserved"]),
    (&["--header", "tailpost_position=c"], &[], &["reserved"]),
    (&["--header", "aggregate_id=c"], &[], &["written from field aggregate_id already"]),
    (&["--header", "tenant"], &[], &["NAME=COLUMN"]),
    (&["--preset", "debesium"], &[], &["debesium", "nearest is \"debezium\""]),
    (&["--body", "xml"], &[], &["--body", "known are payload, envelope"]),
    (&["--max-message-bytes", "0"], &[], &["--max-message-bytes", "8MiB or 512KiB"]),
    (&["--max-message-bytes", "many"], &[], &["--max-message-bytes", "many"]),
    (&["--in-flight-bytes", "8 bananas"], &[], &["--in-flight-bytes", "8 bananas"]),
    (&["--in-flight", "0"], &[], &["--in-flight", "at least 1"]),
    (&["--in-flight", "-5"], &[], &["-5"]),
    (&["--max-ahead", "0"], &[], &["--max-ahead", "at least 1"]),
    (&["--drain-timeout", "8"], &[], &["--drain-timeout", "8s, 500ms or 2m"]),
    (&["--confirm-timeout", "0s"], &[], &["--confirm-timeout", "0s"]),
    (&["--confirm-timeout", "500000000000y"], &[], &["--confirm-timeout"]),
    (&["--drain-timeout", "500000000000y"], &[], &["--drain-timeout"]),
    (&["--stall-after", "500000000000y"], &[], &["--stall-after"]),
    (&["--stall-after", "soon"], &[], &["--stall-after", "soon"]),
    (&["--order", "random"], &[], &["--order", "aggregate", "commit"]),
    (&["--offsets", "file:"], &[], &["--offsets", "slot or file:PATH"]),
    (&["--listen", "9464"], &[], &["--listen", "0.0.0.0:9464"]),
    (&["--log", "loud=x=y"], &[], &["--log"]),
    (&["--table", "a.b.c"], &[], &["--table", "more than two parts"]),
    (&["--table", "ob", "--table", "OB"], &[], &["--table", "given twice"]),
    (&["--slot", "Bad-Slot"], &[], &["--slot", "contains 'B'"]),
];

#[rustfmt::skip]
/// Whole command lines.
const OTHERS: [Usage; 17] = [
    (&["postgres", "run"], &[], &["--source: no database is given", "TAILPOST_SOURCE", "--broker: no broker is given", "TAILPOST_BROKER"]),
    (&["postgres", "run"], &[("TAILPOST_SUORCE", SOURCE)], &["TAILPOST_SUORCE; did you mean TAILPOST_SOURCE?"]),
    (&["postgres", "schema"], &[("TAILPOST_XYZ", "1")], &["TAILPOST_XYZ"]),
    (&["postgres", "check"], &[("TAILPOST_SOURCE", "mysql://u@h/d")], &["not read yet"]),
    (&["postgres", "run", "--sloot", "x"], &[], &["--sloot", "'--slot'"]),
    (&["postgres", "chekc"], &[], &["chekc", "'check'"]),
    (&["postgres"], &[], &["run", "init", "check", "peek"]),
    (&[], &[], &["Usage: tailpost"]),
    (&["postgres", "init", "--source", SOURCE, "--backfill"], &[], &["--broker: no broker is given"]),
    (&["postgres", "init", "--source", SOURCE, "--declare-exchange", "topic"], &[], &["--broker: no broker is given"]),
    (&["postgres", "init", "--source", SOURCE, "--broker", BROKER, "--declare-exchange", "topic", "--exchange", "e.{event_type}"], &[], &["--declare-exchange", "template"]),
    (&["postgres", "peek", "--source", SOURCE, "--limit", "few"], &[], &["--limit", "few"]),
    (&["postgres", "peek", "--source", SOURCE, "--routing-key", "{"], &[], &["--routing-key"]),
    (&["postgres", "offset", "set", "--source", SOURCE], &[], &["LSN"]),
    (&["postgres", "offset", "set", "1234", "--source", SOURCE], &[], &["LSN"]),
    (&["postgres", "drop", "--source", SOURCE, "--publication", "a.b"], &[], &["--publication", "a.b"]),
    (&["postgres", "run", "--source", SOURCE, "--broker", BROKER], &[("TAILPOST_IN_FLIGHT", "lots")], &["lots"]),
];

#[tokio::test]
async fn a_wrong_flag_or_variable_ends_with_2_and_words_that_name_it_and_the_remedy() -> Result<()> {
    for (args, env, words) in RUN {
        // It ends in any case: what is accepted by mistake is printed.
        let mut line = vec!["postgres", "run", "--print-config"];
        for given in [["--source", SOURCE], ["--broker", BROKER]] {
            line.extend(given.iter().filter(|_| !args.contains(&given[0])));
        }
        line.extend(args);
        refuses(&line, env, words).await?;
    }
    for (args, env, words) in OTHERS {
        refuses(args, env, words).await?;
    }
    Ok(())
}

async fn refuses(args: &[&str], env: &[(&str, &str)], words: &[&str]) -> Result<()> {
    let ended = Tailpost::command_with(args, env).await?;
    let what = || {
        format!(
            "{args:?} {env:?}: {:?}: {}{}",
            ended.code(),
            ended.stdout,
            ended.stderr
        )
    };
    ensure!(ended.code() == Some(2), "{}", what());
    ensure!(ended.stdout.is_empty(), "{}", what());
    assert_words(&ended.stderr, words).with_context(what)
}

#[tokio::test]
async fn all_faults_of_a_configuration_are_reported_at_once() -> Result<()> {
    let args = [
        ["postgres", "run"],
        ["--source", "mysql://u:canary@h/d"],
        ["--slot", "Bad-Slot"],
        ["--table", "a.b.c"],
        ["--broker", "http://u:canary@h"],
        ["--exchange", "{a"],
        ["--routing-key", "}"],
        ["--column", "nofield=x"],
        ["--header", "noequals"],
        ["--preset", "none"],
        ["--max-message-bytes", "0"],
        ["--in-flight-bytes", "lots"],
        ["--in-flight", "0"],
        ["--drain-timeout", "soon"],
        ["--stall-after", "late"],
        ["--offsets", "disk"],
        ["--listen", "nowhere"],
        ["--log", "a=b=c"],
    ];
    let flags = args.iter().skip(1).map(|pair| format!("{}:", pair[0]));
    let mut words: Vec<String> = flags.collect();
    words.push("TAILPOST_SLTO; did you mean TAILPOST_SLOT?".to_owned());
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let ended = Tailpost::command_with(&args.concat(), &[("TAILPOST_SLTO", "x")]).await?;
    ensure!(ended.code() == Some(2), "{ended:?}");
    assert_words(&ended.stderr, &words)?;
    ensure!(!ended.stderr.contains("canary"), "{}", ended.stderr);
    Ok(())
}

#[tokio::test]
async fn variables_that_kubernetes_sets_for_a_service_named_tailpost_are_no_fault() -> Result<()> {
    let env = [
        ("TAILPOST_PORT", "tcp://10.0.0.1:9464"),
        ("TAILPOST_PORT_9464_TCP_ADDR", "10.0.0.1"),
        ("TAILPOST_SERVICE_HOST", "10.0.0.1"),
        ("TAILPOST_SERVICE_PORT_METRICS", "9464"),
    ];
    let args = [
        "postgres",
        "run",
        "--source",
        SOURCE,
        "--broker",
        BROKER,
        "--print-config",
    ];
    Tailpost::command_with(&args, &env).await?.success().map(drop)
}
