//! Every exit status, in one place (`docs/operating-postgresql.md` lists them for operators).

use std::process::ExitCode;

use tailpost_relay::{Cause, Disposition, Failure};

/// How the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or drained after a signal.
    Done = 0,
    /// Something unexpected, or `check` found faults.
    Unexpected = 1,
    /// The command line or the environment is wrong.
    Usage = 2,
    /// An event cannot be published.
    Poison = 65,
    /// The position is gone, or there is none.
    PositionLost = 66,
    /// The offset cannot be read or written.
    Offsets = 74,
    /// Stopped before all was confirmed; safe, it repeats.
    Incomplete = 75,
    /// The set-up is wrong.
    Setup = 78,
}

impl Exit {
    /// The status of a failure that ended a command.
    pub(crate) fn of(failure: &Failure) -> Self {
        match failure.disposition {
            Disposition::Halt(Cause::Poison) => Self::Poison,
            Disposition::Halt(Cause::PositionLost) => Self::PositionLost,
            Disposition::Halt(Cause::Offsets) => Self::Offsets,
            Disposition::Halt(Cause::Setup) | Disposition::Setup => Self::Setup,
            Disposition::Halt(Cause::Unexpected) => Self::Unexpected,
            // A command that does not wait (`check`, `init`, `peek`) met what `run` would have retried.
            Disposition::Retry { .. } | Disposition::Standby { .. } | Disposition::Park => Self::Unexpected,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
