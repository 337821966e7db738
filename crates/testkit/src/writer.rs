//! Writes events as applications do: in transactions of several sizes, some rolled back, from several sessions.
//!
//! Each session owns its aggregates, and never has two transactions open: so the commit order of an aggregate is the
//! order of insertion. A commit whose outcome is unknown, because the server went away, is left to the
//! [`Ledger`](crate::Ledger) to decide; the session makes sure that it is decided before it writes on.

mod session;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::wait::until;
use session::Session;

/// What to write.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Table, as SQL writes it. Its columns are those of `tailpost postgres init --create-table`.
    pub table: String,
    /// Number of the run, part of every event id: different runs on one table need different ones.
    pub run: u32,
    /// Aggregate type.
    pub aggregate_type: String,
    /// Aggregates, over all sessions.
    pub aggregates: u32,
    /// Event types, taken in turn. One that no queue is bound for makes unroutable events.
    pub event_types: Vec<String>,
    /// Events a second, over all sessions; `None` is as fast as it goes.
    pub rate: Option<u32>,
    /// The largest transaction, in events. They are of random size.
    pub transaction_max: u32,
    /// Share of transactions that are rolled back. Half as many roll back to a savepoint.
    pub rollbacks: f64,
    /// Bytes of padding in each payload.
    pub padding: usize,
    /// Sessions.
    pub sessions: u32,
    /// Stops by itself after so many events, rolled back ones included.
    pub events: Option<u64>,
    /// Seed of all that is random.
    pub seed: u64,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            table: "outbox_event".to_owned(),
            run: fastrand::u32(..),
            aggregate_type: "order".to_owned(),
            aggregates: 100,
            event_types: ["created", "paid", "shipped"].map(str::to_owned).to_vec(),
            rate: Some(500),
            transaction_max: 5,
            rollbacks: 0.1,
            padding: 200,
            sessions: 2,
            events: None,
            seed: fastrand::u64(..),
        }
    }
}

/// A running writer. Dropping it stops it in the middle of a transaction.
#[derive(Debug)]
pub struct Writer {
    stop: watch::Sender<bool>,
    committed: Arc<AtomicU64>,
    sessions: JoinSet<anyhow::Result<Written>>,
}

/// What was written, as far as the writer knows.
#[derive(Clone, Debug, Default)]
pub struct Written {
    /// Events whose COMMIT returned, with the time when it did.
    pub committed: Vec<(String, Instant)>,
    /// Events that were rolled back: they must never be delivered.
    pub rolled_back: Vec<String>,
    /// Events of commits that failed: only the database knows.
    pub unknown: Vec<String>,
}

impl Writer {
    /// Starts to write to the database of `url`, and goes on across restarts of the server until it is stopped.
    ///
    /// # Errors
    /// The database cannot be reached at first, or has no such table.
    pub async fn start(url: &str, options: WriterOptions) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let committed = Arc::new(AtomicU64::new(0));
        let mut sessions = JoinSet::new();
        for number in 0..options.sessions.max(1) {
            let mut session = Session::new(url, options.clone(), number, Arc::clone(&committed));
            session.open().await?;
            let stopped = stopped.clone();
            sessions.spawn(async move { session.run(stopped).await });
        }
        Ok(Self {
            stop,
            committed,
            sessions,
        })
    }

    /// How many events were committed so far.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// Waits until so many events were committed.
    ///
    /// # Errors
    /// They were not within `limit`.
    pub async fn wait_committed(&self, events: u64, limit: Duration) -> anyhow::Result<()> {
        let what = format!("{events} events are committed");
        until(&what, limit, async || {
            Ok((self.committed() >= events).then_some(()))
        })
        .await
    }

    /// Stops at the end of the open transactions.
    ///
    /// # Errors
    /// A session failed for another reason than a server that is away.
    pub async fn stop(self) -> anyhow::Result<Written> {
        self.stop.send_replace(true);
        self.finish().await
    }

    /// Waits for the end that [`WriterOptions::events`] sets.
    ///
    /// # Errors
    /// As [`stop`](Self::stop).
    pub async fn finish(mut self) -> anyhow::Result<Written> {
        let mut all = Written::default();
        while let Some(session) = self.sessions.join_next().await {
            let Written {
                committed,
                rolled_back,
                unknown,
            } = session?.context("a writing session failed")?;
            all.committed.extend(committed);
            all.rolled_back.extend(rolled_back);
            all.unknown.extend(unknown);
        }
        Ok(all)
    }
}

/// The id of event `n` of session `session` in run `run`: a UUID, the same at every call.
pub fn event_id(run: u32, session: u32, n: u64) -> String {
    // The digits 4 and 8 make it a UUID of version 4 to those who look.
    format!(
        "{run:08x}-{:04x}-4000-8000-{:012x}",
        session & 0xffff,
        n & 0xffff_ffff_ffff
    )
}
