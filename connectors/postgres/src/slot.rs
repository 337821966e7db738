//! The replication slot: what the server says of it, whether it is one of ours, and the offset that it keeps.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;
use tailpost_relay::{Cause, Disposition, Failure, OffsetStore};

use crate::PgError;
use crate::catalog::{Field, rows};
use crate::position::PgPosition;

/// A row of `pg_replication_slots`. Fields that the server's version does not have are as if they were unset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slot {
    /// Name.
    pub name: String,
    /// Output plugin; `None` for a physical slot.
    pub plugin: Option<String>,
    /// Database that it decodes; `None` for a physical slot.
    pub database: Option<String>,
    /// Ends with the session that made it.
    pub temporary: bool,
    /// Process that streams from it.
    pub active_pid: Option<i32>,
    /// Oldest log kept for it.
    pub restart_lsn: Option<Lsn>,
    /// All before it was confirmed. `None` while the slot is being made.
    pub confirmed_flush: Option<Lsn>,
    /// `reserved`, `extended`, `unreserved` or `lost`.
    pub wal_status: Option<String>,
    /// Bytes of log that may still be written before the slot is in danger.
    pub safe_wal_size: Option<i64>,
    /// Decodes prepared transactions at PREPARE.
    pub two_phase: bool,
    /// A standby invalidated it (PostgreSQL 16 and later).
    pub conflicting: bool,
    /// Why it was invalidated (PostgreSQL 17 and later).
    pub invalidation_reason: Option<String>,
    /// Synchronized to standbys (PostgreSQL 17 and later).
    pub failover: bool,
    /// A standby's copy of the primary's slot (PostgreSQL 17 and later).
    pub synced: bool,
}

/// What makes a slot unfit for us, though it exists and is valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotFault {
    /// A slot for physical replication.
    #[error("slot {slot:?} is physical, a logical one is needed")]
    Physical {
        /// Its name.
        slot: String,
    },
    /// Ends with a session.
    #[error("slot {slot:?} is temporary: it ends with the session that made it")]
    Temporary {
        /// Its name.
        slot: String,
    },
    /// Decodes with another plugin.
    #[error("slot {slot:?} has plugin {plugin:?}, pgoutput is needed")]
    Plugin {
        /// Its name.
        slot: String,
        /// Its plugin.
        plugin: String,
    },
    /// Decodes another database.
    #[error("slot {slot:?} belongs to database {database:?}, not to {ours:?}")]
    Database {
        /// Its name.
        slot: String,
        /// Its database.
        database: String,
        /// The session's.
        ours: String,
    },
    /// Rows would come at PREPARE, and be rolled back later.
    #[error("slot {slot:?} has two_phase set: rows would come before they are committed")]
    TwoPhase {
        /// Its name.
        slot: String,
    },
    /// A standby's copy.
    #[error("slot {slot:?} is synced: this server is a standby that copies it from its primary")]
    Synced {
        /// Its name.
        slot: String,
    },
    /// Not made to the end.
    #[error("slot {slot:?} has no confirmed_flush_lsn: its creation did not end")]
    Unfinished {
        /// Its name.
        slot: String,
    },
}

impl SlotFault {
    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        const OTHER: &str = "choose another name with --slot and make it with `tailpost postgres init`";
        match self {
            Self::Physical { .. } | Self::Temporary { .. } | Self::Plugin { .. } | Self::TwoPhase { .. } => {
                OTHER.into()
            }
            Self::Database { database, .. } => format!(
                "give database {database:?} in --source, or {OTHER}: slot names are unique in the whole server"
            ),
            Self::Synced { .. } => "connect to the primary: target_session_attrs=primary in --source".into(),
            Self::Unfinished { slot } => format!(
                "wait for the transactions that it waits for, or drop it: SELECT pg_catalog.pg_drop_replication_slot('{slot}')"
            ),
        }
    }
}

/// Reads the slot's row; `None` where there is no such slot.
///
/// # Errors
/// What reading the catalog raises.
pub async fn read(sql: &SqlSession, name: &str, server_version: i32) -> Result<Option<Slot>, PgError> {
    let found = rows(sql, &query(server_version), &[&name]).await?;
    let Some(row) = found.first() else { return Ok(None) };
    Ok(Some(Slot {
        name: row.field(0)?,
        plugin: row.field(1)?,
        database: row.field(2)?,
        temporary: row.field(3)?,
        active_pid: row.field(4)?,
        restart_lsn: row.lsn(5)?,
        confirmed_flush: row.lsn(6)?,
        wal_status: row.field(7)?,
        safe_wal_size: row.field(8)?,
        two_phase: row.field(9)?,
        conflicting: row.field(10)?,
        invalidation_reason: row.field(11)?,
        failover: row.field(12)?,
        synced: row.field(13)?,
    }))
}

/// Columns by version: `conflicting` since 16, `invalidation_reason`, `failover` and `synced` since 17.
fn query(server_version: i32) -> String {
    let conflicting = if server_version >= 160_000 {
        "coalesce(s.conflicting, false)"
    } else {
        "false"
    };
    let since_17 = if server_version >= 170_000 {
        "s.invalidation_reason, s.failover, s.synced"
    } else {
        "NULL::text, false, false"
    };
    format!(
        "SELECT s.slot_name::text, s.plugin::text, s.database::text, s.temporary, s.active_pid, s.restart_lsn, \
         s.confirmed_flush_lsn, s.wal_status, s.safe_wal_size, s.two_phase, {conflicting}, {since_17} \
         FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1::text::pg_catalog.name"
    )
}

impl Slot {
    /// Why the server will never stream from it again, if so.
    pub fn invalidated(&self) -> Option<String> {
        match (
            &self.invalidation_reason,
            self.wal_status.as_deref(),
            self.conflicting,
        ) {
            (Some(reason), _, _) => Some(match reason.as_str() {
                "wal_removed" => {
                    "wal_removed (the log that it needs went beyond max_slot_wal_keep_size)".into()
                }
                "idle_timeout" => {
                    "idle_timeout (unused for longer than idle_replication_slot_timeout)".into()
                }
                "rows_removed" => "rows_removed (a standby removed rows that it needs)".into(),
                "wal_level_insufficient" => "wal_level_insufficient (wal_level was lowered)".into(),
                other => other.to_owned(),
            }),
            (None, Some("lost"), _) => {
                Some("wal_status lost (the log that it needs went beyond max_slot_wal_keep_size)".into())
            }
            (None, _, true) => Some("conflicting (it conflicts with recovery)".into()),
            (None, _, false) => None,
        }
    }

    /// Lists which fields make it unfit to stream database `ours` from.
    pub fn faults(&self, ours: &str) -> Vec<SlotFault> {
        let slot = || self.name.clone();
        let Some(plugin) = self.plugin.clone() else {
            return vec![SlotFault::Physical { slot: slot() }];
        };
        let mut faults = Vec::new();
        if plugin != "pgoutput" {
            faults.push(SlotFault::Plugin { slot: slot(), plugin });
        }
        if let Some(database) = self.database.clone().filter(|database| database != ours) {
            faults.push(SlotFault::Database {
                slot: slot(),
                database,
                ours: ours.into(),
            });
        }
        if self.temporary {
            faults.push(SlotFault::Temporary { slot: slot() });
        }
        if self.two_phase {
            faults.push(SlotFault::TwoPhase { slot: slot() });
        }
        if self.synced {
            faults.push(SlotFault::Synced { slot: slot() });
        }
        if self.confirmed_flush.is_none() && faults.is_empty() && self.invalidated().is_none() {
            faults.push(SlotFault::Unfinished { slot: slot() });
        }
        faults
    }

    /// Judges whether database `ours` can be streamed from it, and returns its `confirmed_flush_lsn` and `restart_lsn`.
    /// Whether it is in use is not looked at.
    ///
    /// # Errors
    /// [`SlotFault`], or that it is invalidated.
    pub fn judge(&self, ours: &str) -> Result<(Lsn, Lsn), PgError> {
        if let Some(fault) = self.faults(ours).into_iter().next() {
            return Err(fault.into());
        }
        match (self.invalidated(), self.confirmed_flush, self.restart_lsn) {
            (Some(reason), ..) => Err(PgError::SlotInvalidated {
                slot: self.name.clone(),
                reason,
            }),
            (None, Some(confirmed), Some(restart)) => Ok((confirmed, restart)),
            (None, None, _) => Err(SlotFault::Unfinished {
                slot: self.name.clone(),
            }
            .into()),
            (None, Some(_), None) => Err(PgError::SlotInvalidated {
                slot: self.name.clone(),
                reason: "restart_lsn is unset (its log is gone)".into(),
            }),
        }
    }
}

/// Names the session `pid` as far as the role may see it: `pid 4711 (tailpost/orders@host, user app, from 10.0.0.1)`.
///
/// # Errors
/// What reading the catalog raises.
pub async fn holder(sql: &SqlSession, pid: i32) -> Result<String, PgError> {
    const HOLDER: &str = "
        SELECT nullif(a.application_name, ''), a.usename::text, pg_catalog.host(a.client_addr)
          FROM pg_catalog.pg_stat_activity a WHERE a.pid = $1";
    let mut known = Vec::new();
    if let Some(row) = rows(sql, HOLDER, &[&pid]).await?.first() {
        let (application, user, address): (Option<String>, Option<String>, Option<String>) =
            (row.field(0)?, row.field(1)?, row.field(2)?);
        known.extend(application.map(|application| application.escape_debug().to_string()));
        known.extend(user.map(|user| format!("user {}", user.escape_debug())));
        known.extend(address.map(|address| format!("from {address}")));
    }
    Ok(if known.is_empty() {
        format!("pid {pid}")
    } else {
        format!("pid {pid} ({})", known.join(", "))
    })
}

/// The offsets of `--offsets slot`: the slot itself keeps them.
///
/// Storing and reporting are one act here. [`OffsetStore::store`] only accepts the position; the relay then shows it to the
/// stream, whose feedback makes the server keep it. The laws hold as with any other store:
///
/// 1. The relay stores only what is settled, and nothing else reaches the feedback.
/// 2. The feedback sends what was accepted, never more. Between accepting and the server's own write lies a gap in which a
///    crash, of either side, leaves the slot at an *older* position: events repeat, none is skipped. A server writes its
///    slots at checkpoints, so the same holds for a crash of the server after it took the feedback.
/// 3. A position before the last one accepted is refused; the server on its side never moves a slot backward.
///
/// Law 5 needs no lock of its own: the server lets one session stream from a slot, and feedback goes over that session.
#[derive(Debug)]
pub struct SlotOffsets {
    accepted: Option<PgPosition>,
}

/// A store was asked to go backward.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("position {asked} is before {accepted}, which is stored already")]
struct Backward {
    asked: PgPosition,
    accepted: PgPosition,
}

impl SlotOffsets {
    /// Starts where `confirmed_flush` says the slot stands. `None` leaves it to the source, which begins where the slot
    /// itself says at the moment that it opens: the right choice where another relay may still be moving it.
    pub fn new(confirmed_flush: Option<Lsn>) -> Self {
        Self {
            accepted: confirmed_flush.map(PgPosition),
        }
    }
}

impl OffsetStore for SlotOffsets {
    type Position = PgPosition;

    async fn load(&mut self) -> Result<Option<PgPosition>, Failure> {
        Ok(self.accepted)
    }

    async fn store(&mut self, position: &PgPosition) -> Result<(), Failure> {
        match self.accepted {
            Some(accepted) if *position < accepted => Err(Failure::new(
                Backward {
                    asked: *position,
                    accepted,
                },
                Disposition::Halt(Cause::Unexpected),
            )),
            _ => {
                self.accepted = Some(*position);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit() -> Slot {
        Slot {
            name: "tailpost".into(),
            plugin: Some("pgoutput".into()),
            database: Some("shop".into()),
            restart_lsn: Some(Lsn(1)),
            confirmed_flush: Some(Lsn(2)),
            wal_status: Some("reserved".into()),
            ..Slot::default()
        }
    }

    #[test]
    fn a_fit_slot_gives_its_places() {
        assert!(matches!(fit().judge("shop"), Ok((Lsn(2), Lsn(1)))));
    }

    #[test]
    fn each_wrong_field_of_a_slot_is_named() {
        let physical = Slot {
            plugin: None,
            database: None,
            ..fit()
        };
        assert!(matches!(
            physical.faults("shop")[..],
            [SlotFault::Physical { .. }]
        ));
        let foreign = Slot {
            plugin: Some("wal2json".into()),
            ..fit()
        };
        assert!(matches!(foreign.faults("shop")[..], [SlotFault::Plugin { .. }]));
        assert!(matches!(fit().faults("other")[..], [SlotFault::Database { .. }]));
        let temporary = Slot {
            temporary: true,
            ..fit()
        };
        assert!(matches!(
            temporary.faults("shop")[..],
            [SlotFault::Temporary { .. }]
        ));
        let two_phase = Slot {
            two_phase: true,
            ..fit()
        };
        assert!(matches!(
            two_phase.faults("shop")[..],
            [SlotFault::TwoPhase { .. }]
        ));
        let synced = Slot {
            synced: true,
            ..fit()
        };
        assert!(matches!(synced.faults("shop")[..], [SlotFault::Synced { .. }]));
        let unfinished = Slot {
            confirmed_flush: None,
            ..fit()
        };
        assert!(matches!(
            unfinished.faults("shop")[..],
            [SlotFault::Unfinished { .. }]
        ));
    }

    #[test]
    fn an_invalidated_slot_is_lost_with_its_reason_whichever_version_says_so() {
        let lost = Slot {
            wal_status: Some("lost".into()),
            restart_lsn: None,
            ..fit()
        };
        let reason = Slot {
            invalidation_reason: Some("idle_timeout".into()),
            ..fit()
        };
        let conflicting = Slot {
            conflicting: true,
            ..fit()
        };
        for (slot, word) in [
            (lost, "lost"),
            (reason, "idle_timeout"),
            (conflicting, "conflicting"),
        ] {
            let error = slot.judge("shop").expect_err("invalidated");
            assert!(matches!(&error, PgError::SlotInvalidated { reason, .. } if reason.contains(word)));
            assert_eq!(error.disposition(), Disposition::Halt(Cause::PositionLost));
        }
    }

    #[tokio::test]
    async fn slot_offsets_refuse_to_go_backward_and_name_both_positions() {
        let mut offsets = SlotOffsets::new(None);
        assert_eq!(offsets.load().await.expect("load"), None);
        offsets.store(&PgPosition(Lsn(20))).await.expect("first");
        offsets.store(&PgPosition(Lsn(20))).await.expect("the same again");
        let failure = offsets.store(&PgPosition(Lsn(19))).await.expect_err("backward");
        assert_eq!(
            failure.to_string(),
            "position 0/13 is before 0/14, which is stored already"
        );
        assert_eq!(offsets.load().await.expect("load"), Some(PgPosition(Lsn(20))));
    }
}
