//! `tailpost postgres offset show|set` where the slot keeps the offset. An offset file is `tailpost-offsets`' matter.
//!
//! A slot moves forward only, and what it passes is never published: the operator's decision, so all is said before.

use std::fmt;

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;
use tailpost_pgoutput::quote::quote_identifier;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::PgLsn;

use crate::PgError;
use crate::catalog::{Field, row};
use crate::check::human_bytes;
use crate::config::PgConfig;
use crate::preflight::Server;
use crate::slot;

/// Where a slot stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotOffset {
    /// Its name.
    pub slot: String,
    /// All before it was confirmed.
    pub confirmed_flush: Lsn,
    /// Oldest log kept for it.
    pub restart_lsn: Lsn,
    /// End of the server's log.
    pub end: Lsn,
    /// Who streams from it.
    pub holder: Option<String>,
}

impl SlotOffset {
    /// Bytes of log after the offset.
    pub fn lag_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.confirmed_flush.0)
    }

    /// Bytes of log that the server keeps for the slot.
    pub fn retained_bytes(&self) -> u64 {
        self.end.0.saturating_sub(self.restart_lsn.0)
    }
}

impl fmt::Display for SlotOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "slot          {}", self.slot)?;
        writeln!(f, "offset        {} (confirmed_flush_lsn)", self.confirmed_flush)?;
        writeln!(
            f,
            "not confirmed {} up to {}",
            human_bytes(self.lag_bytes()),
            self.end
        )?;
        writeln!(
            f,
            "log kept      {} from {} (restart_lsn)",
            human_bytes(self.retained_bytes()),
            self.restart_lsn
        )?;
        writeln!(f, "in use by     {}", self.holder.as_deref().unwrap_or("nobody"))
    }
}

/// Why a slot cannot be moved there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OffsetFault {
    /// Not after where it stands.
    #[error("slot {slot:?} stands at {from}: it cannot be moved back to {to}")]
    Backward {
        /// Its name.
        slot: String,
        /// Where it stands.
        from: Lsn,
        /// Where it should go.
        to: Lsn,
    },
    /// After the end of the log.
    #[error("position {to} is after the end of the server's log {end}")]
    BeyondEnd {
        /// Where it should go.
        to: Lsn,
        /// The end of the log.
        end: Lsn,
    },
}

impl OffsetFault {
    /// The sentence that tells how to go on.
    pub fn hint(&self) -> String {
        match self {
            Self::Backward { .. } => {
                "PostgreSQL moves slots forward only, and may have removed the log before; what is still in the table \
                 is published again by `tailpost postgres drop` and `tailpost postgres init --backfill`"
                    .into()
            }
            Self::BeyondEnd { end, .. } => format!("{end} skips everything that is committed now"),
        }
    }
}

/// A move that can be made, for the operator to agree to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffsetMove {
    /// Its name.
    pub slot: String,
    /// Where it stands.
    pub from: Lsn,
    /// Where it goes.
    pub to: Lsn,
    /// Inserts into published tables that would never be published.
    pub inserts_skipped: Skipped,
}

/// How many inserts a move skips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// As many.
    Inserts(u64),
    /// Too many to count in time.
    TooMany,
    /// Nobody can tell: a publication did not exist at some place between, where the server refuses to decode.
    Unknown,
}

impl fmt::Display for OffsetMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = human_bytes(self.to.0.saturating_sub(self.from.0));
        write!(
            f,
            "slot {} moves from {} to {} ({bytes} of log)",
            self.slot, self.from, self.to
        )?;
        match self.inserts_skipped {
            Skipped::Inserts(0) => f.write_str("; no published insert lies between"),
            Skipped::Inserts(1) => f.write_str("; 1 insert between is never published"),
            Skipped::Inserts(count) => write!(f, "; {count} inserts between are never published"),
            Skipped::TooMany => {
                f.write_str("; the inserts between, too many to count now, are never published")
            }
            Skipped::Unknown => f.write_str(
                "; the inserts between are never published, and cannot be counted, since a publication did not exist \
                 there: publish them from the table",
            ),
        }
    }
}

/// Reads where the slot stands.
///
/// # Errors
/// The slot is missing or unfit; what the queries raise.
pub async fn show(sql: &SqlSession, config: &PgConfig) -> Result<SlotOffset, PgError> {
    const END: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";
    let server = Server::read(sql).await?;
    server.judge()?;
    let slot = slot::read(sql, &config.slot, server.version_num).await?;
    let slot = slot.ok_or_else(|| PgError::SlotMissing {
        slot: config.slot.clone(),
    })?;
    let (confirmed_flush, restart_lsn) = slot.judge(&server.database)?;
    let holder = match slot.active_pid {
        Some(pid) => Some(slot::holder(sql, pid).await?),
        None => None,
    };
    let end = row(sql, END, &[]).await?.lsn(0)?.unwrap_or(confirmed_flush);
    Ok(SlotOffset {
        slot: slot.name,
        confirmed_flush,
        restart_lsn,
        end,
        holder,
    })
}

/// Judges a move of the slot to `to`, and counts what it would skip. Moves nothing.
///
/// # Errors
/// [`OffsetFault`]; [`PgError::SlotBusy`] while a relay runs; as [`show`].
pub async fn plan_set(sql: &SqlSession, config: &PgConfig, to: Lsn) -> Result<OffsetMove, PgError> {
    let now = show(sql, config).await?;
    if let Some(holder) = now.holder {
        return Err(PgError::SlotBusy {
            slot: now.slot,
            holder,
        });
    }
    if to < now.confirmed_flush {
        return Err(OffsetFault::Backward {
            slot: now.slot,
            from: now.confirmed_flush,
            to,
        }
        .into());
    }
    if to > now.end {
        return Err(OffsetFault::BeyondEnd { to, end: now.end }.into());
    }
    let inserts_skipped = count_inserts(sql, config, to).await?;
    Ok(OffsetMove {
        slot: now.slot,
        from: now.confirmed_flush,
        to,
        inserts_skipped,
    })
}

/// Makes the move, and returns where the slot stands now. The server writes it down at its next checkpoint: a crash before
/// may undo it, which repeats and skips nothing.
///
/// # Errors
/// The server's; it refuses a slot that came into use meanwhile.
pub async fn set(sql: &SqlSession, planned: &OffsetMove) -> Result<Lsn, PgError> {
    const ADVANCE: &str = "
        SELECT a.end_lsn FROM pg_catalog.pg_replication_slot_advance($1::text::pg_catalog.name, $2) a";
    if planned.to == planned.from {
        return Ok(planned.from);
    }
    // It reads all of the log between.
    sql.client().batch_execute("SET statement_timeout = 0").await?;
    let moved = row(sql, ADVANCE, &[&planned.slot, &PgLsn::from(planned.to.0)]).await;
    sql.client().batch_execute("RESET statement_timeout").await?;
    Ok(moved?.lsn(0)?.unwrap_or(planned.to))
}

/// Counts the inserts of transactions that are committed before `to`. The server decodes them again for it, within the
/// session's `statement_timeout`.
async fn count_inserts(sql: &SqlSession, config: &PgConfig, to: Lsn) -> Result<Skipped, PgError> {
    // A message begins with its tag: I (73) is an insert, C (67) a commit, whose place of commit is in bytes 2 to 9. Only a
    // transaction whose commit lies before `to` is skipped.
    const COUNT: &str = "
        WITH m AS (
            SELECT pg_catalog.get_byte(p.data, 0) AS tag, p.xid,
                   pg_catalog.max(p.lsn) FILTER (WHERE pg_catalog.get_byte(p.data, 0) = 67)
                       OVER (PARTITION BY p.xid::text) AS commit_end
              FROM pg_catalog.pg_logical_slot_peek_binary_changes($1::text::pg_catalog.name, $2, NULL,
                   'proto_version', '1', 'publication_names', $3) p)
        SELECT pg_catalog.count(*) FROM m WHERE m.tag = 73 AND m.commit_end <= $2";
    let names: Vec<String> = config
        .publications
        .iter()
        .map(|name| quote_identifier(name))
        .collect();
    match sql
        .client()
        .query_one(COUNT, &[&config.slot, &PgLsn::from(to.0), &names.join(",")])
        .await
    {
        Ok(row) => Ok(Skipped::Inserts(
            u64::try_from(row.field::<i64>(0)?).unwrap_or_default(),
        )),
        Err(error) if error.code() == Some(&SqlState::QUERY_CANCELED) => Ok(Skipped::TooMany),
        // The slot was found just now, so this names a publication. The move itself decodes nothing, and so works.
        Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => Ok(Skipped::Unknown),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_says_what_it_skips() {
        let planned = |inserts_skipped| OffsetMove {
            slot: "s".into(),
            from: Lsn(0x10),
            to: Lsn(0x410),
            inserts_skipped,
        };
        assert_eq!(
            planned(Skipped::Inserts(3)).to_string(),
            "slot s moves from 0/10 to 0/410 (1.0 KiB of log); 3 inserts between are never published"
        );
        for (skipped, words) in [
            (Skipped::Inserts(0), "no published insert lies between"),
            (Skipped::Inserts(1), "1 insert between is never published"),
            (Skipped::TooMany, "too many to count"),
            (Skipped::Unknown, "cannot be counted"),
        ] {
            assert!(planned(skipped).to_string().contains(words), "{skipped:?}");
        }
    }
}
