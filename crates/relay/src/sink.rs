//! What the relay asks of a sink.

use std::future::Future;
use std::sync::Arc;

use tailpost_outbox::Message;

use crate::Failure;

/// The relay's number of an event; unique for the life of the process.
pub type Seq = u64;

/// What became of one published event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The broker has it: an `Ack` without a return (law 9), judged safely.
    Confirmed(Seq),
    /// The broker could not route it; `reason` is the broker's text (`NO_ROUTE`), which names no payload.
    Returned {
        /// Which event.
        seq: Seq,
        /// The broker's words.
        reason: String,
    },
    /// The broker refused it.
    Nacked(Seq),
    /// The broker stopped reading (`connection.blocked`): nothing is wrong, confirms have no deadline meanwhile.
    Blocked {
        /// The broker's words.
        reason: String,
    },
    /// The broker reads again.
    Unblocked,
}

/// A broker connection that publishes with confirms. One instance lives as long as the relay; each
/// [`connect`](Sink::connect) begins a new generation, and nothing of an older one is ever reported after it (law 9, a
/// dead generation's confirm moves nothing).
pub trait Sink: Send + 'static {
    /// Opens a new generation, dropping the old one. Dropping the future leaves no connection behind.
    fn connect(&mut self) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Says what makes `message` impossible to publish, before it is sent: size, properties over a frame, names over
    /// 255 bytes. The text names no content.
    fn refuse(&self, message: &Message) -> Option<String>;

    /// Hands over a message; messages leave in the order of the calls. Each call of a generation is answered by exactly
    /// one `Confirmed`, `Returned` or `Nacked` unless the generation ends before. Must not be called without a
    /// generation.
    fn publish(&mut self, seq: Seq, message: Arc<Message>);

    /// Drives the connection, and appends what happened to `outcomes` (at least one entry when `Ok`). `Err` ends the
    /// generation: all that was not answered is unknown. Pends for ever when there is no generation. Cancel-safe.
    fn next(&mut self, outcomes: &mut Vec<Outcome>) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Drops the generation at once: nothing more of it is sent or listened to.
    fn abandon(&mut self);

    /// Closes in order, within a second or so, also while blocked.
    fn close(&mut self) -> impl Future<Output = ()> + Send;
}
