//! An `ErrorResponse` or `NoticeResponse`, and what its SQLSTATE means for us.
//!
//! Source: PostgreSQL manual, "Error and Notice Message Fields" and "PostgreSQL Error Codes". The text is in the server's
//! language, so nothing is decided by it: the code, the step, and the name of the routine that raised it decide.

use std::fmt;

use bytes::Bytes;
use tailpost_relay::{Cause, Disposition};

use super::{PAST_THE_GAP, SHUTDOWN_PAUSE};

/// What the server was asked for when it answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    /// The start of a session.
    Connect,
    /// An SQL statement or a replication command.
    Command,
    /// `START_REPLICATION`.
    Start,
    /// The stream itself.
    Stream,
}

impl During {
    pub(super) fn what(self) -> &'static str {
        match self {
            Self::Connect => "open a session",
            Self::Command => "run a command",
            Self::Start => "start the replication stream",
            Self::Stream => "go on with the replication stream",
        }
    }
}

/// The words of a server. `Display` shows severity, text and code; the detail, which may hold values of a row, is never
/// kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerError {
    /// `ERROR`, `FATAL`, `PANIC`, or of a notice `WARNING`, …, in English.
    pub severity: String,
    /// SQLSTATE.
    pub code: String,
    /// Text, in the server's language.
    pub message: String,
    /// The server's own advice, if any.
    pub hint: Option<String>,
    /// Routine of the server's source that raised it.
    pub routine: String,
}

impl ServerError {
    /// Reads the fields of a message body: each a type byte and a text that ends with a zero. Takes what is there; bytes
    /// that are not UTF-8 (an error before the encoding is agreed) are replaced.
    pub(crate) fn parse(body: &Bytes) -> Self {
        let mut error = Self::default();
        for field in body.split(|&byte| byte == 0).filter(|field| !field.is_empty()) {
            let text = String::from_utf8_lossy(&field[1..]).into_owned();
            match field[0] {
                b'S' if error.severity.is_empty() => error.severity = text,
                b'V' => error.severity = text,
                b'C' => error.code = text,
                b'M' => error.message = text,
                b'H' => error.hint = Some(text),
                b'R' => error.routine = text,
                _ => {}
            }
        }
        error
    }

    /// Tells a warning that a publication is skipped (PostgreSQL 18): rows are lost from then on.
    pub(crate) fn is_skipped_publication(&self) -> bool {
        self.routine == "LoadPublications" || self.message.contains("skipped loading publication")
    }

    /// Tells that decoding failed for a reason that may lie in the log itself: a value too large to print, a broken
    /// record.
    pub(crate) fn may_be_stuck(&self) -> bool {
        matches!(self.code.as_str(), "XX000" | "54000" | "XX001")
    }

    /// Decides by SQLSTATE.
    pub(crate) fn disposition(&self, during: During) -> Disposition {
        let code = self.code.as_str();
        match code {
            "57P01" => Disposition::Retry {
                after: Some(SHUTDOWN_PAUSE),
            },
            // Seen here only where nobody could name the holder.
            "55006" => Disposition::Standby {
                holder: "another session".into(),
            },
            "55000" if during == During::Start && !self.is_wal_level() => {
                Disposition::Halt(Cause::PositionLost)
            }
            "55000" if during != During::Stream => Disposition::Setup,
            "58P01" if during != During::Connect => Disposition::Halt(Cause::PositionLost),
            "42704" if during == During::Start => Disposition::Halt(Cause::PositionLost),
            "42704" if during == During::Stream => Disposition::Halt(Cause::Setup),
            // A failed decode is tried again; the source counts, and halts at the third in one place.
            "54000" | "XX000" | "XX001" => Disposition::Retry { after: None },
            _ => self.by_class(),
        }
    }

    fn by_class(&self) -> Disposition {
        match self.code.get(..2).unwrap_or_default() {
            // Connection, rollback, resources, limits, operator, system: they pass.
            "08" | "40" | "53" | "54" | "55" | "57" | "58" | "XX" => Disposition::Retry { after: None },
            // Unsupported, bad value, credentials, no such database, no such schema, no such name or no right.
            "0A" | "22" | "28" | "3D" | "3F" | "42" => Disposition::Setup,
            _ => Disposition::Retry { after: None },
        }
    }

    fn is_wal_level(&self) -> bool {
        matches!(
            self.routine.as_str(),
            "CheckLogicalDecodingRequirements" | "CheckSlotRequirements"
        )
    }

    /// Tells that a slot or a replication command was refused, rather than an object of the database.
    fn is_slot_right(&self) -> bool {
        matches!(
            self.routine.as_str(),
            "check_permissions" | "CheckSlotPermissions" | "InitPostgres"
        )
    }

    /// Says how to mend it.
    pub(crate) fn remedy(&self, during: During) -> Option<String> {
        let ours = match (self.code.as_str(), during) {
            ("28000", _) => {
                "add a line to pg_hba.conf that names this database (or all), the user and this address: the word \
                 `replication` there does not match logical replication"
            }
            ("28P01", _) => "check the password",
            ("3D000", _) => "check the database's name in --source",
            ("3F000", _) => "create the schema first (CREATE SCHEMA), or check --table",
            ("42501", During::Command) if !self.is_slot_right() => {
                "run it as the owner of what the text names, or as a superuser, or let one of them grant the right"
            }
            ("42501", _) => "the role needs REPLICATION and LOGIN",
            ("42704", During::Stream) => {
                return Some(format!(
                    "a publication did not exist when the log was written; create it again; {PAST_THE_GAP}"
                ));
            }
            ("42704", During::Start) | ("55000" | "58P01", During::Start | During::Stream) => {
                "the slot or its log is gone; `tailpost postgres check` says why, `tailpost postgres init --backfill` \
                 begins anew from the table"
            }
            ("53300", _) => "raise max_connections or max_wal_senders, or end unused sessions",
            ("53400", _) => "raise max_replication_slots",
            _ => return self.hint.clone(),
        };
        Some(ours.into())
    }
}

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.severity, self.message, self.code)
    }
}

impl From<&tokio_postgres::error::DbError> for ServerError {
    fn from(error: &tokio_postgres::error::DbError) -> Self {
        Self {
            severity: error.severity().into(),
            code: error.code().code().into(),
            message: error.message().into(),
            hint: error.hint().map(Into::into),
            routine: error.routine().unwrap_or_default().into(),
        }
    }
}

impl std::error::Error for ServerError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: &str, routine: &str) -> ServerError {
        ServerError {
            code: code.into(),
            routine: routine.into(),
            ..ServerError::default()
        }
    }

    #[test]
    fn what_passes_is_tried_again_and_a_server_that_goes_is_given_time() {
        let retry = Disposition::Retry { after: None };
        for code in [
            "08006", "53300", "57014", "57P03", "58030", "40001", "XX000", "54000", "P0001", "",
        ] {
            for during in [During::Connect, During::Command, During::Start, During::Stream] {
                assert_eq!(error(code, "").disposition(during), retry, "{code} {during:?}");
            }
        }
        let later = Disposition::Retry {
            after: Some(SHUTDOWN_PAUSE),
        };
        assert_eq!(
            error("57P01", "ProcessInterrupts").disposition(During::Stream),
            later
        );
    }

    #[test]
    fn credentials_rights_and_names_are_the_set_up() {
        for code in ["28000", "28P01", "3D000", "3F000", "42501", "0A000", "22023"] {
            assert_eq!(
                error(code, "").disposition(During::Connect),
                Disposition::Setup,
                "{code}"
            );
        }
        let wal_level = error("55000", "CheckLogicalDecodingRequirements");
        assert_eq!(wal_level.disposition(During::Start), Disposition::Setup);
    }

    #[test]
    fn a_right_that_is_missing_is_named_by_what_was_refused() {
        let remedy = |routine, during| error("42501", routine).remedy(during).unwrap_or_default();
        assert!(remedy("InitPostgres", During::Connect).contains("REPLICATION"));
        assert!(remedy("CheckSlotPermissions", During::Command).contains("REPLICATION"));
        let object = remedy("aclcheck_error", During::Command);
        assert!(
            object.contains("owner") && !object.contains("REPLICATION"),
            "{object}"
        );
    }

    #[test]
    fn a_lost_slot_and_a_lost_publication_halt_each_in_its_way() {
        let lost = Disposition::Halt(Cause::PositionLost);
        assert_eq!(
            error("42704", "ReplicationSlotAcquire").disposition(During::Start),
            lost
        );
        assert_eq!(
            error("55000", "CreateDecodingContext").disposition(During::Start),
            lost
        );
        assert_eq!(
            error("58P01", "XLogReadDetermineTimeline").disposition(During::Stream),
            lost
        );
        assert_eq!(
            error("42704", "GetPublicationByName").disposition(During::Stream),
            Disposition::Halt(Cause::Setup)
        );
    }

    #[test]
    fn the_detail_which_may_quote_a_row_is_never_kept() {
        let body = Bytes::from_static(
            b"SFEHLER\0VERROR\0CXX000\0Minvalid memory alloc request size 1174405123\0Dcanary\0Hask\0Rpalloc\0\0",
        );
        let error = ServerError::parse(&body);
        assert_eq!(
            error.to_string(),
            "ERROR: invalid memory alloc request size 1174405123 (XX000)"
        );
        assert_eq!(
            (error.hint.as_deref(), error.routine.as_str()),
            (Some("ask"), "palloc")
        );
        assert!(!format!("{error:?}").contains("canary") && error.may_be_stuck());
    }

    proptest::proptest! {
        #[test]
        fn no_body_makes_the_parser_panic(body: Vec<u8>) {
            ServerError::parse(&Bytes::from(body));
        }
    }
}
