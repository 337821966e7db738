//! What goes wrong with PostgreSQL, what the relay does about it, and how an operator mends it.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use tailpost_database::postgres::{ConnectError, ConnectErrorKind};
use tailpost_pgoutput::quote::StartReplicationError;
use tailpost_pgoutput::{DecodeError, Lsn};
use tailpost_relay::{Cause, Disposition, Failure};

use crate::backfill::BackfillFault;
use crate::drop::DropFault;
use crate::init::InitFault;
use crate::offset::OffsetFault;
use crate::preflight::ServerFault;
use crate::publication::PublicationFault;
use crate::slot::SlotFault;
use crate::tables::TableFault;

mod server;

pub use server::{During, ServerError};

/// How long to stay away from a server that shuts down: coming back sooner arms its shutdown anew.
const SHUTDOWN_PAUSE: Duration = Duration::from_secs(10);

/// How to go on where the log holds changes that no publication shows: mending it does not change the past.
pub(crate) const PAST_THE_GAP: &str = "that does not show what was written before: either move past it with `tailpost postgres offset set LSN` (where \
     offsets are in a file, with --offsets file:PATH; SELECT pg_current_wal_flush_lsn() names an LSN once the publication is \
     there) and publish the rows of the gap from the table; or `tailpost postgres drop`, then `tailpost postgres init \
     --backfill`";

/// What went wrong with the source. Names slots, publications, tables, places and settings; never a value of a row, never
/// a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PgError {
    /// There is no session.
    #[error("could not open a session")]
    Connect(#[from] ConnectError),
    /// The SQL session was lost, or its client failed before the server saw the statement.
    #[error("SQL session failed: {0}")]
    Session(String),
    /// The replication connection broke.
    #[error("replication connection was lost")]
    Io(#[from] io::Error),
    /// The server closed the replication connection without a word.
    #[error("replication connection was closed by the server")]
    Closed,
    /// The server took too long over one step.
    #[error("server did not {what} within {} s", after.as_secs())]
    Timeout {
        /// What it should have done.
        what: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// Nothing was heard, not even a keepalive.
    #[error("replication connection was silent for {} s", after.as_secs())]
    Silent {
        /// How long.
        after: Duration,
    },
    /// The server reported an error.
    #[error("server refused to {}", during.what())]
    Server {
        /// What it was doing.
        during: During,
        /// Its words.
        source: Box<ServerError>,
    },
    /// The server is shutting down.
    #[error("server is shutting down")]
    ShuttingDown,
    /// Two sessions to one URL reached two servers.
    #[error("the SQL session and the replication session reached different servers")]
    TwoServers,
    /// Authentication could not be completed.
    #[error("authentication failed: {0}")]
    Authentication(String),
    /// The server asked for a clear password on an unencrypted connection.
    #[error("server {host:?} asks for the password in clear text over an unencrypted connection")]
    ClearPassword {
        /// Which server.
        host: String,
    },
    /// A session setting that decides the text of values is not as asked.
    #[error("setting {name:?} is {got:?} instead of {want:?} in the replication session")]
    Setting {
        /// Which.
        name: String,
        /// What was asked for.
        want: String,
        /// What is in force; empty where the server does not say.
        got: String,
    },
    /// The server sent what the protocol does not allow.
    #[error("server broke the protocol: {0}")]
    Protocol(String),
    /// A message of the stream was not understood.
    #[error("message of the replication stream at or after {lsn} is not understood")]
    Decode {
        /// The message's place, or the last known place before it.
        lsn: Lsn,
        /// What is wrong with it.
        source: DecodeError,
    },
    /// A message of the stream does not fit what was sent before it.
    #[error("replication stream at or after {lsn}: {what}")]
    Stream {
        /// The message's place, or the last known place before it.
        lsn: Lsn,
        /// What does not fit.
        what: String,
    },
    /// The server fails at the same place again and again.
    #[error("server failed {times} times to decode the log after {lsn}")]
    Stuck {
        /// The last place read before the failure.
        lsn: Lsn,
        /// How often.
        times: u32,
        /// Its last words.
        source: Box<ServerError>,
    },
    /// A name cannot be put into `START_REPLICATION`.
    #[error(transparent)]
    Name(#[from] StartReplicationError),
    /// The server is unfit.
    #[error(transparent)]
    Unfit(#[from] ServerFault),
    /// A table is unfit.
    #[error(transparent)]
    Table(#[from] TableFault),
    /// A publication does not publish every insert whole.
    #[error(transparent)]
    Publication(#[from] PublicationFault),
    /// The slot is of the wrong kind.
    #[error(transparent)]
    Slot(#[from] SlotFault),
    /// `init` refuses.
    #[error(transparent)]
    Init(#[from] InitFault),
    /// `drop` refuses.
    #[error(transparent)]
    Drop(#[from] DropFault),
    /// A backfill came to nothing.
    #[error(transparent)]
    Backfill(#[from] BackfillFault),
    /// A slot cannot be moved there.
    #[error(transparent)]
    Offset(#[from] OffsetFault),
    /// The slot does not exist.
    #[error("slot {slot:?} does not exist")]
    SlotMissing {
        /// Its name.
        slot: String,
    },
    /// The server invalidated the slot.
    #[error("slot {slot:?} is invalidated: {reason}")]
    SlotInvalidated {
        /// Its name.
        slot: String,
        /// The server's reason.
        reason: String,
    },
    /// Somebody else streams from the slot.
    #[error("slot {slot:?} is in use by {holder}")]
    SlotBusy {
        /// Its name.
        slot: String,
        /// Who.
        holder: String,
    },
    /// The slot begins after the stored position.
    #[error(
        "slot {slot:?} was moved or made anew by someone else: it stands at {confirmed}, past the stored position {stored}"
    )]
    SlotAdvanced {
        /// Its name.
        slot: String,
        /// Our position.
        stored: Lsn,
        /// The slot's.
        confirmed: Lsn,
    },
    /// The log ends before the stored position.
    #[error("position {stored} is beyond the end of the server's log {end}")]
    BeyondEnd {
        /// Our position.
        stored: Lsn,
        /// The end of the log.
        end: Lsn,
    },
    /// The server is another one than before.
    #[error("server has another {what} than before: {now} instead of {before}")]
    IdentityChanged {
        /// `system identifier` or `database`.
        what: &'static str,
        /// As it was.
        before: String,
        /// As it is.
        now: String,
    },
    /// A publication does not exist, or did not at the log's place.
    #[error("publication is missing: {message}")]
    PublicationMissing {
        /// The server's words, or the name.
        message: String,
    },
}

impl PgError {
    /// Decides what the relay does.
    pub fn disposition(&self) -> Disposition {
        const RETRY: Disposition = Disposition::Retry { after: None };
        match self {
            Self::Connect(error) => match error.kind() {
                ConnectErrorKind::Refused => Disposition::Setup,
                ConnectErrorKind::Unreachable | ConnectErrorKind::Busy => RETRY,
            },
            Self::Session(_)
            | Self::Io(_)
            | Self::Closed
            | Self::Timeout { .. }
            | Self::Silent { .. }
            | Self::TwoServers => RETRY,
            Self::Server { during, source } => source.disposition(*during),
            Self::ShuttingDown => Disposition::Retry {
                after: Some(SHUTDOWN_PAUSE),
            },
            Self::Authentication(_)
            | Self::ClearPassword { .. }
            | Self::Name(_)
            | Self::Unfit(_)
            | Self::Table(_)
            | Self::Slot(_)
            | Self::Init(_)
            | Self::Drop(_)
            | Self::Offset(_) => Disposition::Setup,
            // Not mended by waiting: what is written meanwhile is hidden from the slot for good, so somebody must look.
            Self::Publication(_) | Self::PublicationMissing { .. } | Self::Setting { .. } => {
                Disposition::Halt(Cause::Setup)
            }
            Self::Backfill(_) => RETRY,
            Self::Protocol(_) | Self::Decode { .. } | Self::Stream { .. } => {
                Disposition::Halt(Cause::Unexpected)
            }
            Self::Stuck { .. } => Disposition::Halt(Cause::Poison),
            Self::SlotBusy { holder, .. } => Disposition::Standby {
                holder: holder.clone(),
            },
            Self::SlotMissing { .. }
            | Self::SlotInvalidated { .. }
            | Self::SlotAdvanced { .. }
            | Self::BeyondEnd { .. }
            | Self::IdentityChanged { .. } => Disposition::Halt(Cause::PositionLost),
        }
    }
}

impl PgError {
    /// Says how to mend it, where anything can be said.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Server { during, source } => source.remedy(*during),
            Self::Setting { name, .. } => Some(format!(
                "values would be printed in another form; remove what sets {name} for this connection (a connection \
                 pooler, or the server's own defaults)"
            )),
            Self::ClearPassword { .. } => Some(
                "use sslmode=verify-full, or set password_encryption = 'scram-sha-256' on the server and its \
                 pg_hba.conf method to scram-sha-256"
                    .into(),
            ),
            Self::Authentication(_) => Some("check user, password and the server's pg_hba.conf".into()),
            Self::TwoServers => {
                Some("give one host, or target_session_attrs=primary, so that both reach the same server".into())
            }
            Self::Stuck { lsn, .. } => Some(format!(
                "a value there is too large for the server to print as text, or its log is damaged; read the server's \
                 log, publish what follows {lsn} by hand from the table, then move past it with \
                 `tailpost postgres offset set LSN` (where offsets are in a file, with --offsets file:PATH)"
            )),
            Self::SlotMissing { .. } => Some(
                "check --slot and the database in --source; if both are right the slot was dropped, and what was \
                 committed since is only in the table: create a new slot with `tailpost postgres init`, with --backfill \
                 to publish the rows of the table"
                    .into(),
            ),
            Self::SlotInvalidated { .. } => Some(
                "the server removed log that was not read yet; drop the slot with `tailpost postgres drop`, then \
                 `tailpost postgres init --backfill`"
                    .into(),
            ),
            Self::SlotAdvanced { confirmed, .. } => Some(format!(
                "it was advanced by another consumer, or dropped and made again; what lies between was not published by \
                 this relay: once it is published (by the other one, by `init --backfill`, or from the table), accept \
                 the slot's position with `tailpost postgres offset set {confirmed} --offsets file:PATH`"
            )),
            Self::BeyondEnd { .. } => Some(
                "the server was restored to an earlier time, or is a standby that lagged at its promotion; check what \
                 it lost, then give a position with `tailpost postgres offset set LSN --offsets file:PATH`, or begin anew \
                 with `tailpost postgres drop` and `tailpost postgres init --backfill`"
                    .into(),
            ),
            Self::IdentityChanged { .. } => {
                Some("a position of one server means nothing on another; check --source, or start anew with `tailpost postgres init`".into())
            }
            Self::PublicationMissing { .. } => Some(format!(
                "create it again (`tailpost postgres check` prints the statement); {PAST_THE_GAP}"
            )),
            Self::Protocol(_) | Self::Decode { .. } | Self::Stream { .. } => {
                Some("nothing was skipped; report this with the server's version".into())
            }
            Self::Connect(error) => error.hint(),
            Self::Unfit(fault) => Some(fault.hint()),
            Self::Table(fault) => Some(fault.hint()),
            Self::Publication(fault) => Some(fault.hint()),
            Self::Slot(fault) => Some(fault.hint()),
            Self::Init(fault) => Some(fault.hint()),
            Self::Drop(fault) => Some(fault.hint()),
            Self::Backfill(fault) => Some(fault.hint()),
            Self::Offset(fault) => Some(fault.hint()),
            Self::Session(_)
            | Self::Io(_)
            | Self::Closed
            | Self::Timeout { .. }
            | Self::Silent { .. }
            | Self::ShuttingDown
            | Self::Name(_)
            | Self::SlotBusy { .. } => None,
        }
    }
}

/// Prints an error with its causes, for the log.
pub(crate) struct Chain<'a>(pub(crate) &'a PgError);

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(f, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// Keeps code and text of a server's error; a detail may quote values, so it goes.
impl From<tokio_postgres::Error> for PgError {
    fn from(error: tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(error) => Self::Server {
                during: During::Command,
                source: Box::new(error.into()),
            },
            None if error.is_closed() => Self::Session("connection was closed".into()),
            None => Self::Session(error.to_string()),
        }
    }
}

impl From<PgError> for Failure {
    fn from(error: PgError) -> Self {
        let (disposition, hint) = (error.disposition(), error.hint());
        Self {
            error: Box::new(error),
            disposition,
            hint,
        }
    }
}
