//! The PostgreSQL source: a logical replication slot read through `pgoutput`, and the SQL around it (set-up, checks,
//! slot, publication).
//!
//! ```text
//! PgSource::open: side SQL session -> preflight -> replication session -> START_REPLICATION
//!
//!            +--> PgStream (reads)  -- items --> relay
//! socket ----+
//!            +--> feedback (writes) <-- stored -- relay
//! watcher: side SQL session; sees a shutdown, a changed publication, the lag, also while nobody reads
//! ```
//!
//! What it promises:
//! - Nothing beyond what is stored is ever reported to the server (law 2), and reporting needs no read: a slow reader is
//!   backpressure, never a disconnect.
//! - Only committed rows come out, in commit order, each value the text that the server prints (laws 7 and 10).
//! - A row over the limit is never buffered (law 8). No length from the wire is believed before its bytes arrive.
//! - What it does not understand, and what it cannot find any more, halts with the place and the remedy.
//!
//! What it does not: publish, store offsets, decide when to retry.

mod error;
mod feedback;
mod identity;
mod position;
mod relations;
mod session;
mod side;
mod source;
mod stream;
mod tasks;
mod watcher;

pub use error::{During, PgError, ServerError};
pub use identity::{Identity, KnownIdentity};
pub use position::PgPosition;
pub use source::{PgSource, SourceConfig};
pub use stream::PgStream;

// The SQL half.
pub mod args;
pub mod backfill;
mod catalog;
pub mod check;
pub mod config;
pub mod drop;
pub mod init;
pub mod offset;
pub mod peek;
pub mod preflight;
pub mod publication;
pub mod schema;
pub mod slot;
pub mod tables;

pub use config::{ConfigFault, PgConfig};
