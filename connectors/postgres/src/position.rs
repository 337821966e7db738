//! A place in PostgreSQL's log, as the relay carries it.

use std::fmt;
use std::str::FromStr;

use tailpost_pgoutput::{Lsn, ParseLsnError};

/// A place in the write-ahead log at which a stream may be resumed: the end of a transaction, or a keepalive's `walEnd`.
/// Prints and parses as `16/B374D848`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgPosition(pub Lsn);

impl fmt::Display for PgPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for PgPosition {
    type Err = ParseLsnError;

    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        text.parse().map(Self)
    }
}

impl From<Lsn> for PgPosition {
    fn from(lsn: Lsn) -> Self {
        Self(lsn)
    }
}
