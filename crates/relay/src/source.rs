//! What the relay asks of a source.

use std::fmt;
use std::future::Future;

use tailpost_outbox::Row;
use tokio::sync::watch;

use crate::Failure;

/// A place in a source's log, opaque to the relay. `PartialOrd` is the source's own rule; two positions that it cannot
/// compare are never "later" than each other.
pub trait Position: Clone + PartialOrd + fmt::Display + fmt::Debug + Send + Sync + 'static {}
impl<T: Clone + PartialOrd + fmt::Display + fmt::Debug + Send + Sync + 'static> Position for T {}

/// What a stream yields, in log order.
#[derive(Debug)]
pub enum Item<P> {
    /// A transaction opens. Every row until its [`Item::End`] is committed already (law 10).
    Begin,
    /// An insert into an outbox table.
    Row(Row),
    /// An insert that must never be buffered, being over the limit: poison (law 8).
    Oversized {
        /// What it was and where, for the operator: table, position, size; no content.
        what: String,
    },
    /// The transaction's end.
    End {
        /// A place at which the log may be resumed.
        position: P,
        /// The source wants the position stored soon (it asked, or moved far).
        urgent: bool,
    },
    /// All before `position` was sent. Inside a transaction it moves nothing (law 2); the relay sees to that.
    Keepalive {
        /// A place at which the log may be resumed.
        position: P,
        /// The source wants the position stored soon (it asked, or moved far).
        urgent: bool,
    },
}

/// Opens streams.
pub trait Source: Send + 'static {
    /// A place in this source's log.
    type Position: Position;
    /// An open stream.
    type Stream: Stream<Position = Self::Position>;

    /// Opens the stream after `resume`, or where the source itself keeps it when `None`. Before it streams, it checks
    /// that the log is the one that `resume` belongs to and still holds what follows it.
    ///
    /// `stored` is what the relay has stored; the stream reports nothing beyond it (law 2), by itself, while
    /// nobody reads from it. It bounds its own time, for only it knows what it waits for. Dropping the future leaves nothing
    /// behind but a closed connection.
    fn open(
        &mut self,
        resume: Option<Self::Position>,
        stored: watch::Receiver<Option<Self::Position>>,
    ) -> impl Future<Output = Result<Self::Stream, Failure>> + Send;
}

/// An open stream: one generation of the source's connection.
pub trait Stream: Send + 'static {
    /// A place in this source's log.
    type Position: Position;

    /// Where it began. Later than the `resume` asked for only where the source's own keeper of the position moved on
    /// without us (another relay held the slot): the relay then forgets what it had read.
    fn start(&self) -> &Self::Position;

    /// Yields the next item. Cancel-safe: a dropped call loses nothing.
    fn next(&mut self) -> impl Future<Output = Result<Item<Self::Position>, Failure>> + Send;

    /// Reports what is stored, waits until the server has taken it, and closes in order.
    fn finish(self) -> impl Future<Output = Result<(), Failure>> + Send;
}
