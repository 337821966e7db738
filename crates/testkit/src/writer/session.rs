//! One session of a writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use fastrand::Rng;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::{Client, Statement};

use super::{WriterOptions, Written, event_id};
use crate::ledger::column_type;
use crate::servers::connect;

/// How long a server may be away.
const AWAY_LIMIT: Duration = Duration::from_secs(120);

pub(super) struct Session {
    url: String,
    options: WriterOptions,
    number: u32,
    total: Arc<AtomicU64>,
    random: Rng,
    /// Next `seq` of each aggregate of this session.
    seqs: Vec<u64>,
    /// Events so far, for their ids.
    count: u64,
    open: Option<(Client, Statement)>,
    /// Connections so far, for their names.
    generation: u32,
    written: Written,
}

/// What became of a transaction.
enum Fate {
    Committed,
    RolledBack,
    Unknown,
}

/// Columns of the rows of one INSERT.
#[derive(Default)]
struct Rows {
    ids: Vec<String>,
    aggregates: Vec<String>,
    types: Vec<String>,
    payloads: Vec<String>,
}

impl Session {
    pub(super) fn new(url: &str, options: WriterOptions, number: u32, total: Arc<AtomicU64>) -> Self {
        let sessions = options.sessions.max(1);
        let share = (options.aggregates + sessions - 1 - number) / sessions;
        Self {
            url: url.to_owned(),
            random: Rng::with_seed(options.seed.wrapping_add(u64::from(number))),
            seqs: vec![0; usize::try_from(share.max(1)).unwrap_or(1)],
            options,
            number,
            total,
            count: 0,
            open: None,
            generation: 0,
            written: Written::default(),
        }
    }

    pub(super) async fn run(mut self, stopped: watch::Receiver<bool>) -> anyhow::Result<Written> {
        let mut due = Instant::now();
        let sessions = u64::from(self.options.sessions.max(1));
        let quota = self.options.events.map(|events| events.div_ceil(sessions));
        while !*stopped.borrow() && quota.is_none_or(|quota| self.count < quota) {
            let left = quota.map_or(u64::MAX, |quota| quota - self.count);
            let size = u64::from(self.random.u32(1..=self.options.transaction_max.max(1))).min(left);
            self.transaction(size).await?;
            if let Some(rate) = self.options.rate {
                due += Duration::from_secs_f64((size * sessions) as f64 / f64::from(rate.max(1)));
                // What was not written while the server was away is not made up for by a burst.
                due = due.max(Instant::now() - Duration::from_millis(200));
                sleep_until(due).await;
            }
        }
        Ok(self.written)
    }

    /// Connects, and prepares the INSERT for the types that the table has.
    pub(super) async fn open(&mut self) -> anyhow::Result<()> {
        let client = connect(&self.url).await?;
        let table = &self.options.table;
        let (id, payload) = (
            column_type(&client, table, "event_id"),
            column_type(&client, table, "payload"),
        );
        let (id, payload) = (id.await?, payload.await?);
        let payload = if payload == "bytea" {
            "convert_to(p, 'UTF8')".to_owned()
        } else {
            format!("p::{payload}")
        };
        let insert = format!(
            "INSERT INTO {table} (event_id, aggregate_type, aggregate_id, event_type, payload) \
             SELECT e::{id}, $5, a, t, {payload} \
             FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) WITH ORDINALITY AS r (e, a, t, p, n) ORDER BY n"
        );
        self.generation += 1;
        client
            .batch_execute(&format!(
                "SET application_name = '{}'",
                self.name(self.generation)
            ))
            .await?;
        let statement = client.prepare(&insert).await?;
        self.open = Some((client, statement));
        Ok(())
    }

    fn name(&self, generation: u32) -> String {
        format!("writer {:08x} {} {generation}", self.options.run, self.number)
    }

    async fn transaction(&mut self, size: u64) -> anyhow::Result<()> {
        let rows = self.rows(size);
        let roll_back = self.random.f64() < self.options.rollbacks;
        let savepoint = !roll_back && self.random.f64() < self.options.rollbacks / 2.0;
        let lost = if savepoint { Some(self.rows(1)) } else { None };
        let fate = self.write(&rows, lost.as_ref(), roll_back).await;
        let returned = Instant::now();
        let fate = match fate {
            Ok(fate) => fate,
            Err(error) => {
                self.come_back(error).await?;
                Fate::Unknown
            }
        };
        self.written
            .rolled_back
            .extend(lost.into_iter().flat_map(|rows| rows.ids));
        match fate {
            Fate::Committed => {
                self.total.fetch_add(size, Ordering::Relaxed);
                self.written
                    .committed
                    .extend(rows.ids.into_iter().map(|id| (id, returned)));
            }
            Fate::RolledBack => self.written.rolled_back.extend(rows.ids),
            Fate::Unknown if roll_back => self.written.rolled_back.extend(rows.ids),
            Fate::Unknown => self.written.unknown.extend(rows.ids),
        }
        Ok(())
    }

    async fn write(
        &self,
        rows: &Rows,
        lost: Option<&Rows>,
        roll_back: bool,
    ) -> Result<Fate, tokio_postgres::Error> {
        let Some((client, insert)) = &self.open else {
            return Ok(Fate::Unknown);
        };
        client.batch_execute("BEGIN").await?;
        self.insert(client, insert, rows).await?;
        if let Some(lost) = lost {
            client.batch_execute("SAVEPOINT s").await?;
            self.insert(client, insert, lost).await?;
            client.batch_execute("ROLLBACK TO SAVEPOINT s").await?;
        }
        if roll_back {
            client.batch_execute("ROLLBACK").await?;
            return Ok(Fate::RolledBack);
        }
        client.batch_execute("COMMIT").await?;
        Ok(Fate::Committed)
    }

    async fn insert(
        &self,
        client: &Client,
        insert: &Statement,
        rows: &Rows,
    ) -> Result<(), tokio_postgres::Error> {
        let Rows {
            ids,
            aggregates,
            types,
            payloads,
        } = rows;
        client
            .execute(
                insert,
                &[ids, aggregates, types, payloads, &self.options.aggregate_type],
            )
            .await
            .map(drop)
    }

    /// After an error: connects again, and waits until the old session is gone, so that its last commit is decided
    /// before anything later of these aggregates is written.
    async fn come_back(&mut self, error: tokio_postgres::Error) -> anyhow::Result<()> {
        if error
            .as_db_error()
            .is_some_and(|db| !is_shutdown(db.code().code()))
        {
            return Err(error).context("the database refused an insert");
        }
        let old = self.name(self.generation);
        self.open = None;
        let began = Instant::now();
        while let Err(error) = self.open().await {
            if began.elapsed() > AWAY_LIMIT {
                bail!("the database is away for {AWAY_LIMIT:?}: {error:#}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        let Some((client, _)) = &self.open else {
            return Ok(());
        };
        let sql = "SELECT 1 FROM pg_stat_activity WHERE application_name = $1";
        // An error means that the server went away again: then no session of before is left either.
        while client
            .query(sql, &[&old])
            .await
            .is_ok_and(|left| !left.is_empty())
        {
            if began.elapsed() > AWAY_LIMIT {
                bail!("the session that was lost still runs after {AWAY_LIMIT:?}");
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    fn rows(&mut self, size: u64) -> Rows {
        let mut rows = Rows::default();
        for _ in 0..size {
            let own = self.random.usize(..self.seqs.len());
            self.seqs[own] += 1;
            let aggregate = own as u64 * u64::from(self.options.sessions.max(1)) + u64::from(self.number);
            let types = &self.options.event_types;
            let kind = types
                .get(self.count as usize % types.len().max(1))
                .cloned()
                .unwrap_or_default();
            let at = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_micros();
            let padding = "x".repeat(self.options.padding);
            rows.payloads.push(format!(
                r#"{{"aggregate":"{aggregate}","seq":{},"at":{at},"pad":"{padding}"}}"#,
                self.seqs[own]
            ));
            rows.ids.push(event_id(self.options.run, self.number, self.count));
            rows.aggregates.push(aggregate.to_string());
            rows.types.push(kind);
            self.count += 1;
        }
        rows
    }
}

/// 57P01 to 57P03: shut down, crashed, not up yet; class 08: the connection.
fn is_shutdown(code: &str) -> bool {
    code.starts_with("57P") || code.starts_with("08")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: u32) -> Session {
        let options = WriterOptions {
            run: 7,
            aggregates: 5,
            sessions: 2,
            seed: 1,
            ..WriterOptions::default()
        };
        Session::new("postgres://none", options, number, Arc::default())
    }

    #[test]
    fn sessions_share_no_aggregate_and_no_event_id() {
        let (mut one, mut two) = (session(0), session(1));
        let (one, two) = (one.rows(500), two.rows(500));
        assert!(
            one.aggregates
                .iter()
                .all(|aggregate| !two.aggregates.contains(aggregate))
        );
        assert!(one.ids.iter().all(|id| !two.ids.contains(id)));
        let all: std::collections::BTreeSet<_> = one.aggregates.iter().chain(&two.aggregates).collect();
        assert_eq!(all.len(), 5);
    }

    #[test]
    fn each_aggregate_counts_up_without_a_gap() {
        let rows = session(0).rows(200);
        let mut seqs = std::collections::HashMap::new();
        for (aggregate, payload) in rows.aggregates.iter().zip(&rows.payloads) {
            let payload: serde_json::Value = serde_json::from_str(payload).unwrap();
            let seq = seqs.entry(aggregate).or_insert(0);
            *seq += 1;
            assert_eq!(payload["seq"], *seq);
            assert_eq!(payload["aggregate"], **aggregate);
        }
    }
}
