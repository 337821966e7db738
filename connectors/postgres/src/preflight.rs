//! What must hold before a stream is opened: the server, the tables, the publications, the slot.
//!
//! Run at every open. It reads catalogs only, so that it takes no lock that an application would notice.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;

use crate::PgError;
use crate::catalog::{Field, row};
use crate::tables::{TableName, TableSet};
use crate::{publication, slot, tables};

/// The oldest server that is supported, as `server_version_num`.
pub const SERVER_VERSION_MIN: i32 = 140_000;
/// The first server version that was not tested, as `server_version_num`.
pub const SERVER_VERSION_UNTESTED: i32 = 190_000;

/// What a stream is to be opened on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Slot.
    pub slot: String,
    /// Publications that between them publish the tables.
    pub publications: Vec<String>,
    /// Tables.
    pub tables: Vec<TableName>,
    /// Columns that the mapping cannot do without.
    pub columns: Vec<String>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Verified {
    /// All before it was confirmed.
    pub confirmed_flush: Lsn,
    /// Oldest log kept for the slot.
    pub restart_lsn: Lsn,
    /// Process that streams from the slot now; [`slot::holder`] names it.
    pub active_pid: Option<i32>,
    /// `server_version_num`, as 180006.
    pub server_version: i32,
    /// The tables.
    pub tables: TableSet,
}

/// What is wrong with the server for our purpose.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServerFault {
    /// Too old.
    #[error("server has version {version}, PostgreSQL 14 or later is needed")]
    Version {
        /// Its version, as it prints it.
        version: String,
    },
    /// A standby.
    #[error("server is a standby (in recovery)")]
    InRecovery,
    /// Logs no rows.
    #[error("server has wal_level = {value}, logical is needed")]
    WalLevel {
        /// The setting.
        value: String,
    },
    /// No slot can be made.
    #[error("server has all {max} replication slots in use")]
    NoSlotFree {
        /// The setting.
        max: i64,
    },
    /// No stream can be opened.
    #[error("server has all {max} WAL senders in use")]
    NoSenderFree {
        /// The setting.
        max: i64,
    },
    /// The role may not stream.
    #[error("role {role:?} has no right to replication")]
    NoReplication {
        /// Which role.
        role: String,
    },
    /// The role may not make the publication.
    #[error("role {role:?} cannot make publication {publication:?}: it needs {needs}")]
    NoPublicationRight {
        /// Which role.
        role: String,
        /// Which publication.
        publication: String,
        /// Which right, on what.
        needs: String,
    },
}

impl ServerFault {
    /// The statement that mends it, where one does.
    pub fn statement(&self) -> Option<String> {
        let quote = tailpost_pgoutput::quote::quote_identifier;
        Some(match self {
            Self::WalLevel { .. } => "ALTER SYSTEM SET wal_level = logical".into(),
            Self::NoSlotFree { max } => format!("ALTER SYSTEM SET max_replication_slots = {}", max + 10),
            Self::NoSenderFree { max } => format!("ALTER SYSTEM SET max_wal_senders = {}", max + 10),
            Self::NoReplication { role } => format!("ALTER ROLE {} REPLICATION", quote(role)),
            Self::Version { .. } | Self::InRecovery | Self::NoPublicationRight { .. } => return None,
        })
    }

    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        match (self, self.statement()) {
            (Self::WalLevel { .. }, Some(statement)) => format!(
                "{statement}; then restart the server (on a managed service set its parameter for logical replication, \
                 rds.logical_replication or cloudsql.logical_decoding)"
            ),
            (Self::NoReplication { role }, Some(statement)) => format!(
                "{statement} (on Amazon RDS: GRANT rds_replication TO {})",
                tailpost_pgoutput::quote::quote_identifier(role)
            ),
            (_, Some(statement)) => format!("{statement}; then restart the server, or drop what is unused"),
            (Self::InRecovery, None) => {
                "connect to the primary: list all hosts in --source with target_session_attrs=primary".into()
            }
            (Self::NoPublicationRight { .. }, None) => {
                "run init as the owner of the database and of the table, or let a superuser make the publication \
                 (init --dry-run prints the statement) and run init again"
                    .into()
            }
            (_, None) => "upgrade the server".into(),
        }
    }
}

/// What the server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// `server_version_num`.
    pub version_num: i32,
    /// `server_version`, for people.
    pub version: String,
    /// `wal_level`.
    pub wal_level: String,
    /// It is a standby.
    pub in_recovery: bool,
    /// The session's database.
    pub database: String,
}

impl Server {
    /// Asks.
    ///
    /// # Errors
    /// What the query raises.
    pub async fn read(sql: &SqlSession) -> Result<Self, PgError> {
        const SERVER: &str = "
            SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
                   pg_catalog.current_setting('server_version'),
                   pg_catalog.current_setting('wal_level'),
                   pg_catalog.pg_is_in_recovery(),
                   pg_catalog.current_database()::text";
        let row = row(sql, SERVER, &[]).await?;
        Ok(Self {
            version_num: row.field(0)?,
            version: row.field(1)?,
            wal_level: row.field(2)?,
            in_recovery: row.field(3)?,
            database: row.field(4)?,
        })
    }

    /// Lists what makes it unfit.
    pub fn faults(&self) -> Vec<ServerFault> {
        let mut faults = Vec::new();
        if self.version_num < SERVER_VERSION_MIN {
            faults.push(ServerFault::Version {
                version: self.version.clone(),
            });
        }
        if self.in_recovery {
            faults.push(ServerFault::InRecovery);
        }
        if self.wal_level != "logical" {
            faults.push(ServerFault::WalLevel {
                value: self.wal_level.clone(),
            });
        }
        faults
    }

    /// Refuses a server that is unfit.
    ///
    /// # Errors
    /// The first [`ServerFault`].
    pub fn judge(&self) -> Result<(), PgError> {
        self.faults()
            .into_iter()
            .next()
            .map_or(Ok(()), |fault| Err(fault.into()))
    }
}

/// Verifies all that a stream needs, and says where the slot stands. A slot in use is no error here: the caller waits for
/// it. Cancel-safe; changes nothing.
///
/// # Errors
/// The first fault: server, slot, tables, publications, in this order; and what reading the catalogs raises.
pub async fn verify(sql: &SqlSession, want: &Wanted) -> Result<Verified, PgError> {
    let server = Server::read(sql).await?;
    server.judge()?;
    let slot = slot::read(sql, &want.slot, server.version_num).await?;
    let slot = slot.ok_or_else(|| PgError::SlotMissing {
        slot: want.slot.clone(),
    })?;
    let (confirmed_flush, restart_lsn) = slot.judge(&server.database)?;
    let tables = tables::resolve(sql, &want.tables).await?;
    publication::verify(
        sql,
        &want.publications,
        &tables,
        &want.columns,
        server.version_num,
    )
    .await?;
    Ok(Verified {
        confirmed_flush,
        restart_lsn,
        active_pid: slot.active_pid,
        server_version: server.version_num,
        tables,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> Server {
        Server {
            version_num: 150_018,
            version: "15.18".into(),
            wal_level: "logical".into(),
            in_recovery: false,
            database: "shop".into(),
        }
    }

    #[test]
    fn a_server_that_logs_no_rows_or_replays_another_ones_log_is_refused() {
        assert_eq!(server().faults(), []);
        let replica = Server {
            wal_level: "replica".into(),
            ..server()
        };
        assert_eq!(
            replica.faults()[0].statement().as_deref(),
            Some("ALTER SYSTEM SET wal_level = logical")
        );
        assert_eq!(
            Server {
                in_recovery: true,
                ..server()
            }
            .faults(),
            [ServerFault::InRecovery]
        );
        let old = Server {
            version_num: 130_012,
            ..server()
        };
        assert!(matches!(old.faults()[..], [ServerFault::Version { .. }]));
    }
}
