//! The relay loop between a source and a sink.

mod disposition;
mod progress;
mod sink;
mod source;
mod store;

pub use disposition::{Cause, Disposition, Failure};
pub use progress::{Counter, Gauge, Link, Progress, Readiness, State};
pub use sink::{Outcome, Seq, Sink};
pub use source::{Item, Position, Source, Stream};
pub use store::OffsetStore;
