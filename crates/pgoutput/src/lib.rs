//! PostgreSQL's logical replication stream, from bytes: the messages of the replication protocol and, inside them, those
//! of the output plugin `pgoutput` (protocol version 1, text format). Also the few texts that go the other way: the
//! standby status update, `START_REPLICATION` and quoting.
//!
//! ```text
//! CopyData payload --> ReplicationMessage --XLogData.data--> Message --> Relation, Tuple
//!                                 \--> Keepalive               \ peek_change: tag and relation only
//! ```
//!
//! What it promises:
//! - No input makes it panic. All reads go through one checked reader.
//! - A message is taken whole or refused: a short, long or unknown one is a [`DecodeError`], never a guess.
//! - Row values are slices of the input, never copied. Names are checked UTF-8.
//! - No count from the wire is believed beyond what the rest of the message can hold.
//! - Neither an error nor a `Debug` output shows a row's or a logical message's content.
//!
//! What it does not: I/O, the framing of `CopyData`, remembering relations, SQL types other than `bytea`.

mod error;
mod hex;
mod lsn;
pub mod message;
mod peek;
pub mod quote;
mod reader;
pub mod replication;

pub use error::DecodeError;
pub use hex::decode_bytea;
pub use lsn::{Lsn, ParseLsnError};
pub use message::{Message, OldTuple, Relation, RelationColumn, ReplicaIdentity, Tuple, TupleValue};
pub use peek::{Tag, peek_change};
pub use replication::{ReplicationMessage, StandbyStatus};

/// PostgreSQL's epoch, 2000-01-01T00:00:00Z, in microseconds after the Unix epoch. All clocks and timestamps here count
/// microseconds from it.
pub const EPOCH_UNIX_US: i64 = 946_684_800_000_000;
