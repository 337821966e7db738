//! What the relay does about an error. Every crate's error enum decides it in one exhaustive `match` and converts itself
//! into a [`Failure`]; the relay asks nothing else.

use std::error::Error;
use std::fmt;
use std::time::Duration;

/// Why publishing stopped for good. The binary turns it into an exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// An event cannot be published (65).
    Poison,
    /// The position is gone, or there is none (66).
    PositionLost,
    /// The offset cannot be read or written (74).
    Offsets,
    /// The set-up is wrong (78).
    Setup,
    /// A broken invariant, or bytes that nobody understands (1).
    Unexpected,
}

/// What to do about a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disposition {
    /// Back off and try again, for ever. `after` sets the least delay.
    Retry {
        /// The least delay before the next try, where the failure knows better than the backoff.
        after: Option<Duration>,
    },
    /// Somebody else holds the lock: wait as a standby.
    Standby {
        /// Who holds it, for the operator.
        holder: String,
    },
    /// The broker closed the channel over a message: one of those in flight can perhaps never go. They are sent alone
    /// until the culprit shows; one that is refused three times while alone is poison.
    Park,
    /// Wrong at start (exit 78); found after the first confirm it is retried, unready: somebody is changing it.
    Setup,
    /// Stop publishing, keep the position, say why.
    Halt(Cause),
}

/// An error with its disposition and, where there is one, a sentence that tells the operator how to mend it.
#[derive(Debug)]
pub struct Failure {
    /// What happened. Its `Display` shows one level; [`Failure`]'s own prints the chain.
    pub error: Box<dyn Error + Send + Sync>,
    /// What to do about it.
    pub disposition: Disposition,
    /// How to mend it.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure without a hint.
    pub fn new(error: impl Into<Box<dyn Error + Send + Sync>>, disposition: Disposition) -> Self {
        Self {
            error: error.into(),
            disposition,
            hint: None,
        }
    }

    /// Adds the sentence that tells how to mend it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.error)?;
        let mut source = self.error.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

impl Error for Failure {}
