//! The relay loop between a source and a sink: at-least-once, in order, within bounded memory.
//!
//! The laws, each held by tests that bear its number (`law_1_…`):
//!
//! 1. A position is stored only when every event at or before it is settled: confirmed, or parked with its reason.
//! 2. What is reported to the source never passes what is stored. A keepalive between transactions is an entry of the
//!    tracker like a transaction's end; inside a transaction it moves nothing.
//! 3. A stored position never moves backward.
//! 4. With [`Order::Aggregate`] first deliveries of one aggregate are in commit order, also across nack, return, retry and
//!    reconnect. With [`Order::Commit`], of all events, across reconnect only.
//! 5. One relay per name. A second one stands by; who loses the lock stops publishing before it tries again.
//! 6. Nothing is skipped in silence: an event is confirmed, parked with its reason, or holds the position.
//! 7. Bytes out are bytes in: the body is never touched here.
//! 8. Memory is bounded by [`Options::in_flight_bytes`]: everything unsettled and buffered counts.
//! 9. An `Ack` without a return is the only confirm; a confirm of a dead generation moves nothing.
//! 10. Only committed transactions are published; a position is stored only where no transaction is open.
//!
//! [`run`] is the loop. `core` decides (a plain value with injected time: `tracker`, `gate`, `ledger`), `intake` reads the
//! source, `publisher` drives the sink, `keeper` stores. Everything a connector or a sink must promise stands at the
//! traits [`Source`], [`Stream`], [`Sink`] and [`OffsetStore`]; every error comes with its [`Disposition`].

mod backoff;
mod budget;
mod core;
#[cfg(test)]
mod core_tests;
mod disposition;
mod gate;
mod intake;
mod keeper;
mod ledger;
mod options;
mod progress;
mod publisher;
mod run;
#[cfg(test)]
mod simulation;
mod sink;
mod source;
mod store;
mod tracker;

pub use disposition::{Cause, Disposition, Failure};
pub use options::{OnHalt, Options, Order};
pub use progress::{Counter, Gauge, Link, Progress, Readiness, State};
pub use run::{Ending, run};
pub use sink::{Outcome, Seq, Sink};
pub use source::{Item, Position, Source, Stream};
pub use store::OffsetStore;
