//! Prints the items of a slot. For experiments: TAIL_STORE=now|never, TAIL_PAUSE_MS between items, TAIL_MODE=slot|file.
#![expect(clippy::print_stdout, reason = "that is its purpose")]
use std::sync::Arc;
use std::time::{Duration, Instant};

use tailpost_database::SystemEnvironment;
use tailpost_database::postgres::Url;
use tailpost_postgres::preflight::Wanted;
use tailpost_postgres::{PgPosition, PgSource, SourceConfig};
use tailpost_relay::{Disposition, Item, Progress, Source, Stream};
use tokio::sync::watch;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    tracing_subscriber::fmt().with_env_filter("info").with_writer(std::io::stdout).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let env = |name: &str| std::env::var(name).unwrap_or_default();
    let url = Url::parse(&args[0], &SystemEnvironment).expect("url");
    let progress = Arc::new(Progress::default());
    let mut source = PgSource::new(SourceConfig {
        url,
        wanted: Wanted {
            slot: args[1].clone(),
            publications: vec![args[2].clone()],
            tables: vec![args[3].parse().expect("table")],
            columns: vec![],
        },
        application_name: "tailpost/tail@lab".into(),
        max_message_bytes: env("TAIL_MAX").parse().unwrap_or(16 << 20),
        slot_mode: env("TAIL_MODE") != "file",
        progress: Arc::clone(&progress),
    });
    let (store, stored) = watch::channel(None::<PgPosition>);
    let mut resume: Option<PgPosition> = env("TAIL_FROM").parse().ok();
    if resume.is_some() { store.send_replace(resume); }
    let began = Instant::now();
    let at = || format!("[{:7.3}]", began.elapsed().as_secs_f64());
    let pause: u64 = env("TAIL_PAUSE_MS").parse().unwrap_or(0);
    let mut interrupt = Box::pin(tokio::signal::ctrl_c());
    let quiet = !env("TAIL_QUIET").is_empty();
    let mut rows = 0_u64;
    loop {
        let failure = match source.open(resume, stored.clone()).await {
            Ok(mut stream) => {
                println!("{} OPEN start={}", at(), stream.start());
                loop {
                    let item = tokio::select! {
                        item = stream.next() => item,
                        _ = &mut interrupt => {
                            let clock = Instant::now();
                            let end = stream.finish().await;
                            println!("{} FINISH {end:?} in {:?}; rows {rows}", at(), clock.elapsed());
                            println!("lag {} retained {} updates {} deletes {} truncates {}", progress.lag_bytes.value(), progress.retained_bytes.value(),
                                progress.passed_updates.value(), progress.passed_deletes.value(), progress.passed_truncates.value());
                            return;
                        }
                    };
                    match item {
                        Ok(item) => {
                            match &item {
                                Item::Row(row) => {
                                    rows += 1;
                                    if !quiet {
                                        let values: Vec<String> = row.values.iter().zip(&row.table.columns).map(|(v, c)| { let t = format!("{v:?}"); format!("{}:{:?}={}", c.name, c.kind, &t[..t.len().min(60)]) }).collect();
                                        println!("{} ROW {} {}.{} {} bytes {}", at(), row.position(), row.table.schema, row.table.name, row.size, values.join(" "));
                                    }
                                    if pause > 0 { tokio::time::sleep(Duration::from_millis(pause)).await; }
                                }
                                Item::End { position, urgent } | Item::Keepalive { position, urgent } => {
                                    if !quiet { println!("{} {} {position} urgent={urgent}", at(), if matches!(item, Item::End{..}) {"END"} else {"KEEPALIVE"}); }
                                    resume = Some(*position);
                                    if env("TAIL_STORE") != "never" { store.send_replace(Some(*position)); }
                                }
                                other => if !quiet { println!("{} {other:?}", at()) },
                            }
                        }
                        Err(failure) => break failure,
                    }
                }
            }
            Err(failure) => failure,
        };
        println!("{} FAILURE {failure} -> {:?} hint {:?} (rows {rows})", at(), failure.disposition, failure.hint);
        let after = match failure.disposition {
            Disposition::Retry { after } => after.unwrap_or(Duration::from_millis(500)),
            Disposition::Standby { .. } => Duration::from_secs(1),
            _ => return,
        };
        tokio::time::sleep(after).await;
    }
}
