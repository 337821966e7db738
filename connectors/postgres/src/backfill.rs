//! `init --backfill`: publishes the rows that are in the tables already, and then makes the slot so that it begins where
//! they end.
//!
//! ```text
//! begin     temporary slot with an exported snapshot        (keeper: owns its session, keeps it awake)
//! read      rows of the snapshot, in id order --> relay --> broker
//! complete  when all is confirmed: the slot, as a copy of the temporary one
//! ```
//!
//! What it promises:
//! - Every row that was committed before the slot's position is read, and none after it: the snapshot is the slot's own.
//! - The slot is made last. Breaking off at any moment leaves no slot behind, only messages that come again: a second run
//!   begins anew.
//! - A value is the text that the stream would give for it: the same session settings, the server's own output.
//! - When the server is lost midway, the source begins again by itself with a new temporary slot.
//!
//! What it does not: commit order. Rows come by `id` where that is a number, else by `created_at`, else as they lie in the
//! table; what was committed while the slot was made comes before all that follows it.

use std::cmp::Ordering;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

use tailpost_pgoutput::Lsn;
use tailpost_pgoutput::quote::{quote_identifier, quote_literal};
use tailpost_relay::{Failure, Item, OffsetStore, Source, Stream};
use tokio::sync::{Mutex, mpsc, watch};
use tracing::info;

use crate::PgError;
use crate::config::PgConfig;
use crate::tasks::Task;

mod keeper;
mod reader;
mod snapshot;

use keeper::Keeper;
use reader::{Reader, Total};
use snapshot::Snapshot;

/// A place in a backfill: how many rows of which attempt were read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackfillPosition {
    /// Which attempt; a lost server begins the next.
    pub attempt: u64,
    /// Rows read.
    pub rows: u64,
    /// There are no more.
    pub done: bool,
}

impl PartialOrd for BackfillPosition {
    /// A later attempt is later than all of an earlier one.
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some((self.attempt, self.rows, self.done).cmp(&(other.attempt, other.rows, other.done)))
    }
}

impl fmt::Display for BackfillPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backfill {}, row {}", self.attempt, self.rows)?;
        if self.done {
            f.write_str(" (the last)")
        } else {
            Ok(())
        }
    }
}

/// Why a backfill came to nothing. No slot was made; run again it begins anew.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackfillFault {
    /// Stopped before the broker had confirmed all.
    #[error("backfill was stopped after {rows} rows, before all was confirmed: no slot was made")]
    Unfinished {
        /// Rows confirmed.
        rows: u64,
    },
    /// The session of the temporary slot ended, and the slot with it.
    #[error("the session of the backfill's temporary slot was lost")]
    SlotLost,
    /// The server's answer to making the temporary slot is not understood.
    #[error("server gave no snapshot for the backfill")]
    NoSnapshot,
}

impl BackfillFault {
    /// The sentence that tells how to go on.
    pub fn hint(&self) -> String {
        "run `tailpost postgres init --backfill` again: it publishes all rows once more, and nothing is left out".into()
    }
}

/// A backfill under way. Dropping it lets the server drop the temporary slot.
#[derive(Debug)]
pub struct Backfill {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PgConfig,
    max_message_bytes: usize,
    state: Mutex<State>,
    stored: watch::Sender<Option<BackfillPosition>>,
    rows_read: AtomicU64,
    rows_estimated: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    attempt: u64,
    keeper: Option<Keeper>,
    /// Made by [`Backfill::begin`], not read yet.
    snapshot: Option<Snapshot>,
}

impl Backfill {
    /// Makes the temporary slot and takes its snapshot. This waits, without limit, for transactions that are writing now.
    /// `max_message_bytes` is the largest payload that is published.
    ///
    /// # Errors
    /// The server's; a table or publication that does not fit is [`crate::init::plan`]'s to find.
    pub async fn begin(config: PgConfig, max_message_bytes: usize) -> Result<Self, PgError> {
        let shared = Shared {
            config,
            max_message_bytes,
            state: Mutex::default(),
            stored: watch::Sender::new(None),
            rows_read: AtomicU64::new(0),
            rows_estimated: AtomicU64::new(0),
        };
        shared.prepare(&mut *shared.state.lock().await).await?;
        Ok(Self {
            shared: Arc::new(shared),
        })
    }

    /// The rows, as a source for the relay.
    pub fn source(&self) -> BackfillSource {
        BackfillSource {
            shared: Arc::clone(&self.shared),
        }
    }

    /// The store that goes with it: it only remembers.
    pub fn store(&self) -> BackfillStore {
        BackfillStore {
            shared: Arc::clone(&self.shared),
        }
    }

    /// Completes when every row is settled and stored: the relay's signal to stop.
    pub fn all_stored(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut stored = self.shared.stored.subscribe();
        async move {
            // The sender lives as long as the store; when it is gone nothing more will come either.
            drop(
                stored
                    .wait_for(|position| position.is_some_and(|position| position.done))
                    .await,
            );
        }
    }

    /// Rows read so far in this attempt, and the server's estimate of how many there are, where it has one.
    pub fn rows(&self) -> (u64, Option<u64>) {
        let estimate = self.shared.rows_estimated.load(Relaxed);
        (
            self.shared.rows_read.load(Relaxed),
            (estimate > 0).then_some(estimate),
        )
    }

    /// Makes the slot, as a copy of the temporary one, and returns its position. To be called when the relay has drained.
    ///
    /// # Errors
    /// [`BackfillFault::Unfinished`] where not all was confirmed; the server's. A slot whose failover could not be set
    /// stays: a second `init --failover` sets it.
    pub async fn complete(self, failover: bool) -> Result<Lsn, PgError> {
        let mut state = self.shared.state.lock().await;
        let stored = *self.shared.stored.borrow();
        match (stored, state.keeper.take()) {
            (Some(position), Some(keeper)) if position.done && position.attempt == state.attempt => {
                keeper.complete(&self.shared.config.slot, failover).await
            }
            (position, _) => Err(BackfillFault::Unfinished {
                rows: position.map_or(0, |position| position.rows),
            }
            .into()),
        }
    }
}

impl Shared {
    /// Begins an attempt: a temporary slot, its keeper, its snapshot.
    async fn prepare(&self, state: &mut State) -> Result<(), PgError> {
        // The session of a lost attempt goes first, and its slot with it.
        state.keeper = None;
        let (keeper, snapshot) = snapshot::take(&self.config).await?;
        state.attempt += 1;
        self.rows_read.store(0, Relaxed);
        self.rows_estimated.store(snapshot.rows_estimated, Relaxed);
        info!(from = %keeper.lsn, rows_estimated = snapshot.rows_estimated, "backfill begins");
        state.keeper = Some(keeper);
        state.snapshot = Some(snapshot);
        Ok(())
    }
}

/// The rows of a backfill.
#[derive(Debug)]
pub struct BackfillSource {
    shared: Arc<Shared>,
}

impl Source for BackfillSource {
    type Position = BackfillPosition;
    type Stream = BackfillStream;

    /// Begins reading. An exported snapshot cannot be taken up again, so that each call after the first begins a new attempt
    /// from the first row on, and starts later than any position of those before.
    async fn open(
        &mut self,
        _resume: Option<BackfillPosition>,
        _stored: watch::Receiver<Option<BackfillPosition>>,
    ) -> Result<BackfillStream, Failure> {
        let mut state = self.shared.state.lock().await;
        if state.snapshot.is_none() {
            self.shared.prepare(&mut state).await?;
        }
        let (Some(snapshot), Some(keeper)) = (state.snapshot.take(), &state.keeper) else {
            return Err(PgError::from(BackfillFault::SlotLost).into());
        };
        let start = BackfillPosition {
            attempt: state.attempt,
            rows: 0,
            done: false,
        };
        let (out, items) = mpsc::channel(1);
        let total = Total {
            position: start,
            shared: Arc::clone(&self.shared),
        };
        let reader = Reader::new(
            snapshot,
            keeper.alive(),
            total,
            self.shared.max_message_bytes,
            out,
        );
        Ok(BackfillStream {
            start,
            items,
            ready: Vec::new().into_iter(),
            ended: false,
            _reader: Task::spawn(reader.run()),
        })
    }
}

/// What a reader hands over at once.
type Batch = Result<Vec<Item<BackfillPosition>>, PgError>;

/// An open backfill.
#[derive(Debug)]
pub struct BackfillStream {
    start: BackfillPosition,
    items: mpsc::Receiver<Batch>,
    ready: std::vec::IntoIter<Item<BackfillPosition>>,
    ended: bool,
    _reader: Task,
}

impl Stream for BackfillStream {
    type Position = BackfillPosition;

    fn start(&self) -> &BackfillPosition {
        &self.start
    }

    /// After the last row it pends for ever: [`Backfill::all_stored`] tells when to stop.
    async fn next(&mut self) -> Result<Item<BackfillPosition>, Failure> {
        loop {
            if let Some(item) = self.ready.next() {
                self.ended = matches!(
                    item,
                    Item::End {
                        position: BackfillPosition { done: true, .. },
                        ..
                    }
                );
                return Ok(item);
            }
            if self.ended {
                std::future::pending::<()>().await;
            }
            match self.items.recv().await {
                Some(Ok(batch)) => self.ready = batch.into_iter(),
                Some(Err(error)) => return Err(error.into()),
                None => return Err(PgError::Closed.into()),
            }
        }
    }

    async fn finish(self) -> Result<(), Failure> {
        Ok(())
    }
}

/// Remembers the position of a backfill; nothing of it outlives the process, since nothing of the snapshot does.
#[derive(Debug)]
pub struct BackfillStore {
    shared: Arc<Shared>,
}

impl OffsetStore for BackfillStore {
    type Position = BackfillPosition;

    async fn load(&mut self) -> Result<Option<BackfillPosition>, Failure> {
        Ok(None)
    }

    async fn store(&mut self, position: &BackfillPosition) -> Result<(), Failure> {
        self.shared.stored.send_replace(Some(*position));
        Ok(())
    }
}

/// A name for a temporary slot that no other process chooses.
pub(crate) fn temporary_name(purpose: &str) -> String {
    let nanoseconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    format!(
        "tailpost_{purpose}_{}_{:x}",
        std::process::id(),
        nanoseconds & 0xFFFF_FFFF_FFFF
    )
}

/// The command that makes the temporary slot; the old spelling, which PostgreSQL 14 knows too.
pub(crate) fn create_statement(temporary: &str) -> String {
    format!(
        "CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT",
        quote_identifier(temporary)
    )
}

/// The statement that makes `slot` of the temporary one.
pub(crate) fn copy_statement(temporary: &str, slot: &str) -> String {
    format!(
        "SELECT pg_catalog.pg_copy_logical_replication_slot({}, {}, false)",
        quote_literal(temporary),
        quote_literal(slot)
    )
}

#[cfg(test)]
mod tests {
    use tailpost_pgoutput::quote::valid_slot_name;

    use super::*;

    #[test]
    fn a_later_attempt_is_later_than_all_of_an_earlier_one() {
        let at = |attempt, rows, done| BackfillPosition { attempt, rows, done };
        assert!(at(2, 0, false) > at(1, 5_000, true));
        assert!(at(1, 5_000, true) > at(1, 5_000, false));
        assert!(at(1, 5_000, false) > at(1, 4_999, false));
    }

    #[test]
    fn a_temporary_slot_has_a_valid_name() {
        assert_eq!(valid_slot_name(&temporary_name("backfill")), Ok(()));
        assert_ne!(temporary_name("peek"), temporary_name("peek"));
    }
}
