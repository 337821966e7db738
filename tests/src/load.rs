//! What tests of faults share: rows by the thousand, an event that shows that delivery goes on, and figures.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tailpost_testkit::servers::{Instance, unique_name};
use tailpost_testkit::wait::until;
use tailpost_testkit::{Consumer, Database, Stop, Tailpost, lsn};
use tokio::time::{Instant, sleep};

use crate::{LONG, RECOVERY, Scene, scale};

/// Seeds all that is random in this test: with `TAILPOST_TEST_SEED`, else with a random number. Returns the seed, to be
/// printed with the figures.
pub fn seed() -> u64 {
    let seed = scale("SEED", fastrand::u64(..));
    fastrand::seed(seed);
    seed
}

/// Rows that the server makes itself: quicker than any writer.
#[derive(Clone, Copy, Debug)]
pub struct Rows {
    /// How many.
    pub events: u64,
    /// Bytes of padding in each payload.
    pub padding: usize,
    /// Aggregates, taken in turn.
    pub aggregates: u64,
    /// Rows of one transaction.
    pub transaction: u64,
}

impl Rows {
    /// A backlog of small transactions over 1,000 aggregates, with payloads of half a kilobyte.
    pub fn backlog(events: u64) -> Self {
        Self {
            events,
            padding: 470,
            aggregates: 1000,
            transaction: 50,
        }
    }

    /// The same in one transaction.
    pub fn one_transaction(events: u64) -> Self {
        Self {
            transaction: events.max(1),
            ..Self::backlog(events)
        }
    }

    /// Inserts them, and returns when all are committed.
    ///
    /// # Errors
    /// The database refuses.
    pub async fn insert(&self, database: &Database) -> Result<()> {
        let Self {
            events,
            padding,
            aggregates,
            transaction,
        } = self;
        let last = events.div_ceil(*transaction).saturating_sub(1);
        // A CTE would let the planner choose; generate_series alone yields in order, and so do the ids.
        let sql = format!(
            "DO $$ BEGIN FOR i IN 0..{last} LOOP
                 INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload)
                 SELECT 'row', (n % {aggregates})::text, 'made', jsonb_build_object('n', n, 'pad', repeat('x', {padding}))
                   FROM generate_series(i * {transaction} + 1, least((i + 1) * {transaction}, {events})) n;
                 COMMIT;
             END LOOP; END $$"
        );
        database.execute(&sql).await
    }
}

/// Commits one event of type `marker.TYPE` and an aggregate of its own. Returns its id, and a place in the log at or after
/// its commit's end.
///
/// # Errors
/// The database cannot be reached.
pub async fn commit_marker(database: &Database, event_type: &str) -> Result<(String, u64)> {
    let client = database.connect().await?;
    let sql = "INSERT INTO outbox_event (aggregate_type, aggregate_id, event_type, payload) \
               VALUES ('marker', $1, $2, '{}') RETURNING event_id::text";
    let id = client
        .query_one(sql, &[&unique_name(), &event_type])
        .await?
        .try_get(0)?;
    let place = client.query_one("SELECT pg_current_wal_lsn()::text", &[]).await?;
    Ok((id, lsn(place.try_get(0)?)?))
}

/// Commits one event and waits until it is delivered, at most `limit`: what was written before it and holds it up counts.
///
/// # Errors
/// It was not delivered.
pub async fn round_trip(scene: &Scene, consumer: &Consumer, limit: Duration) -> Result<Duration> {
    let mut looked = consumer.len();
    let began = Instant::now();
    let (id, _) = commit_marker(&scene.database, "seen").await?;
    let what = format!("delivery goes on: event {id} arrives");
    until(&what, limit, async || {
        let new = consumer.since(looked);
        looked += new.len();
        Ok(new
            .iter()
            .any(|delivery| *delivery.message_id == *id)
            .then_some(()))
    })
    .await?;
    Ok(began.elapsed())
}

/// Lets a random time pass: the moment of a fault, not a wait for something.
pub async fn some_time(milliseconds: std::ops::Range<u64>) {
    sleep(Duration::from_millis(fastrand::u64(milliseconds))).await;
}

/// Kills a server so many times at random moments and starts it again. Returns the longest time until delivery went on.
///
/// # Errors
/// Delivery did not go on within [`RECOVERY`].
pub async fn kill_repeatedly(
    server: &Instance,
    kills: u64,
    scene: &Scene,
    consumer: &Consumer,
) -> Result<Duration> {
    let mut worst = Duration::ZERO;
    for _ in 0..kills {
        some_time(500..2000).await;
        server.stop(Stop::Kill).await?;
        some_time(0..2000).await;
        server.start_again().await?;
        worst = worst.max(round_trip(scene, consumer, RECOVERY).await?);
    }
    Ok(worst)
}

/// Waits until a metric fulfils `wanted`, and returns it. One that is not there yet does not.
///
/// # Errors
/// It did not within a minute; the error holds the log.
pub async fn wait_metric(tailpost: &Tailpost, name: &str, wanted: impl Fn(f64) -> bool) -> Result<f64> {
    let what = format!("{name} is as wanted");
    let waited = until(&what, LONG, async || {
        let value = tailpost.metric(name).await?;
        Ok(value.filter(|value| wanted(*value)))
    });
    waited
        .await
        .with_context(|| format!("tailpost's log:\n{}", tailpost.stderr()))
}

/// The value of a metric that has to be there.
///
/// # Errors
/// It is not.
pub async fn metric(tailpost: &Tailpost, name: &str) -> Result<f64> {
    let value = tailpost.metric(name).await?;
    value.with_context(|| format!("/metrics shows no {name}"))
}

/// Demands that it ended by itself with `code`, and that its log says all of `words`.
///
/// # Errors
/// It did not.
pub async fn ends_with(mut tailpost: Tailpost, code: i32, limit: Duration, words: &[&str]) -> Result<()> {
    let status = tailpost.wait(limit).await?;
    let log = tailpost.stderr();
    ensure!(status.code() == Some(code), "{status}, and not {code}:\n{log}");
    for word in words {
        ensure!(log.contains(word), "the log does not say \"{word}\":\n{log}");
    }
    Ok(())
}

/// The resident set over a time.
#[derive(Clone, Copy, Debug)]
pub struct Resident {
    /// At its begin, in KiB.
    pub first: u64,
    /// The most, in KiB.
    pub most: u64,
}

impl Resident {
    /// Watches it for `time`.
    ///
    /// # Errors
    /// The process ended.
    pub async fn watch(tailpost: &Tailpost, time: Duration) -> Result<Self> {
        let first = tailpost.rss_kib()?;
        let mut seen = Self { first, most: first };
        let until = Instant::now() + time;
        while Instant::now() < until {
            sleep(Duration::from_millis(100)).await;
            seen.most = seen.most.max(tailpost.rss_kib()?);
        }
        Ok(seen)
    }

    /// By how much it grew, in KiB.
    pub fn growth(&self) -> u64 {
        self.most - self.first
    }
}

/// The most memory that it ever had resident, in KiB.
///
/// # Errors
/// It is gone.
pub fn peak_kib(tailpost: &Tailpost) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", tailpost.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    Ok(number.context("/proc shows no VmHWM")?.parse()?)
}

/// The figure of the product: resident memory stays under this, in KiB.
pub const RSS_MAX_KIB: u64 = 40 << 10;

/// Demands [`RSS_MAX_KIB`], and returns the peak.
///
/// # Errors
/// It had more.
pub fn assert_memory(tailpost: &Tailpost) -> Result<u64> {
    assert_memory_with(tailpost, 0)
}

/// The same where `--in-flight-bytes` is larger than its default by so many MiB.
///
/// # Errors
/// It had more.
pub fn assert_memory_with(tailpost: &Tailpost, more_mib: u64) -> Result<u64> {
    let peak = peak_kib(tailpost)?;
    let most = RSS_MAX_KIB + more_mib * 1024;
    ensure!(peak < most, "{peak} KiB were resident; {most} are allowed");
    Ok(peak)
}
