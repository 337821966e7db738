#![allow(missing_docs, clippy::print_stdout, clippy::print_stderr, clippy::large_futures)]
use std::ops::ControlFlow;
use std::sync::Arc;
use tailpost_database::postgres::SqlSession;
use tailpost_database::{Secret, SystemEnvironment};
use tailpost_postgres::args::SourceArgs;
use tailpost_postgres::backfill::Backfill;
use tailpost_postgres::check::{self, MappedColumns};
use tailpost_postgres::{PgConfig, PgError, SourceConfig, drop, init, offset, peek};
use tailpost_relay::{Failure, Item, OffsetStore, Source, Stream};

fn dump(path: &Option<String>, row: &tailpost_outbox::Row) {
    use std::io::Write as _;
    if let Some(path) = path {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        let text: Vec<String> = row
            .values
            .iter()
            .map(|v| match v {
                tailpost_outbox::Value::Null => "NULL".into(),
                tailpost_outbox::Value::Text(b) => String::from_utf8_lossy(b).into_owned(),
                tailpost_outbox::Value::Binary(b) => format!("bin{}", b.escape_ascii()),
            })
            .collect();
        writeln!(file, "{}", text.join("|")).unwrap();
    }
}

fn fail(error: PgError) -> ! {
    let failure = Failure::from(error);
    println!("ERROR {failure}\n  hint: {:?}\n  {:?}", failure.hint, failure.disposition);
    std::process::exit(1);
}

#[tokio::main]
async fn main() {
    let mut argv = std::env::args().skip(1);
    let verb = argv.next().unwrap();
    let source = argv.next().unwrap();
    let rest: Vec<String> = argv.collect();
    let has = |flag: &str| rest.iter().any(|a| a == flag);
    let opt = |flag: &str| rest.iter().position(|a| a == flag).map(|i| rest[i + 1].clone());
    let args = SourceArgs {
        source: Some(Secret::from(source.as_str())),
        source_password_file: None,
        table: vec![opt("--table").unwrap_or("outbox_event".into())],
        name: None,
        slot: opt("--slot").unwrap_or("tailpost".into()),
        publication: opt("--publication").into_iter().collect(),
    };
    let config = match PgConfig::parse(&args, "box", &SystemEnvironment) {
        Ok(config) => config,
        Err(faults) => {
            for f in faults {
                println!("FAULT {f} ({:?})", f.hint);
            }
            std::process::exit(2);
        }
    };
    let sql = match SqlSession::connect(&config.url, &config.application_name).await {
        Ok(sql) => sql,
        Err(error) => fail(error.into()),
    };
    let columns: Vec<String> = ["event_id", "aggregate_type", "aggregate_id", "event_type", "payload"].map(Into::into).into();
    let result: Result<(), PgError> = async {
        match verb.as_str() {
            "check" => {
                let findings = check::check(&sql, &config, MappedColumns { required: &columns, payload: Some("payload") }).await?;
                print!("{}", check::render_text(&findings));
            }
            "preflight" => {
                println!("{:?}", tailpost_postgres::preflight::verify(&sql, &config.wanted(columns.clone())).await?);
            }
            "init" => {
                let options = init::InitOptions {
                    create_table: has("--create-table"),
                    failover: has("--failover"),
                    backfill: has("--backfill"),
                    columns: &columns,
                };
                let plan = init::plan(&sql, &config, &options).await?;
                if has("--dry-run") {
                    print!("{}", plan.render());
                    return Ok(());
                }
                init::apply(&sql, &config, &plan, |step| println!("done {step:?}")).await?;
                if plan.has_backfill() {
                    backfill(&config, has("--failover"), opt("--die-at").map(|n| n.parse().unwrap()), has("--pause"), opt("--dump")).await?;
                }
            }
            "show" => print!("{}", offset::show(&sql, &config).await?),
            "set" => {
                let planned = offset::plan_set(&sql, &config, rest[0].parse().unwrap()).await?;
                println!("{planned}");
                println!("now at {}", offset::set(&sql, &planned).await?);
            }
            "drop" => {
                let plan = drop::plan(&sql, &config).await?;
                println!("{plan:#?}");
                drop::apply(&sql, &plan, |_| true, |what| println!("dropped {what}")).await?;
            }
            "peek" => {
                let source = SourceConfig {
                    url: config.url.clone(),
                    wanted: config.wanted(columns.clone()),
                    application_name: config.application_name.clone(),
                    max_message_bytes: 16 << 20,
                    slot_mode: true,
                    progress: Arc::default(),
                };
                let limit = opt("--limit").map(|n| n.parse().unwrap());
                let end = peek::peek(&source, limit, has("--follow"), |peeked| {
                    match peeked {
                        peek::Peeked::Row(row) => {
                            dump(&opt("--dump"), row);
                            if !has("--quiet") {
                                println!("{} {:?}", row.position(), row.values)
                            }
                        }
                        peek::Peeked::Oversized(what) => println!("OVERSIZED {what}"),
                    }
                    ControlFlow::Continue(())
                })
                .await;
                match end {
                    Ok(end) => println!("{end:?}"),
                    Err(failure) => println!("ERROR {failure} {:?}", failure.hint),
                }
            }
            other => panic!("{other}"),
        }
        Ok(())
    }
    .await;
    if let Err(error) = result {
        fail(error);
    }
}

async fn backfill(config: &PgConfig, failover: bool, die_at: Option<u64>, pause: bool, path: Option<String>) -> Result<(), PgError> {
    let backfill = Backfill::begin(config.clone(), 1 << 20).await?;
    if pause {
        println!("paused");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }
    let mut source = backfill.source();
    let mut store = backfill.store();
    let (_tx, rx) = tokio::sync::watch::channel(None);
    let mut rows = 0;
    'open: loop {
        let mut stream = source.open(None, rx.clone()).await.unwrap();
        println!("start {}", stream.start());
        loop {
            match stream.next().await {
                Ok(Item::Begin) => {}
                Ok(Item::Row(row)) => {
                    rows += 1;
                    dump(&path, &row);
                    if rows <= 3 {
                        println!("{} {} {:?}", row.position(), row.size, row.values);
                    }
                    if Some(rows) == die_at {
                        println!("dying");
                        std::process::exit(9);
                    }
                }
                Ok(Item::Oversized { what }) => println!("OVERSIZED {what}"),
                Ok(Item::End { position, .. }) => {
                    store.store(&position).await.unwrap();
                    if position.done {
                        println!("{position}; {:?}", backfill.rows());
                        break 'open;
                    }
                }
                Ok(Item::Keepalive { .. }) => unreachable!(),
                Err(failure) => {
                    println!("lost: {failure}");
                    continue 'open;
                }
            }
        }
    }
    backfill.all_stored().await;
    if pause {
        println!("read");
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).unwrap();
    }
    println!("slot at {}", backfill.complete(failover).await?);
    Ok(())
}
