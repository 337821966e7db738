//! Takes the snapshot at which the temporary slot begins.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;
use tailpost_pgoutput::quote::quote_literal;

use super::keeper::Keeper;
use super::{BackfillFault, create_statement, temporary_name};
use crate::PgError;
use crate::catalog::{Field, row};
use crate::config::PgConfig;
use crate::init::tell_who_is_writing;
use crate::session::{Session, settings};
use crate::tables::{OutboxTable, TableSet, resolve};

/// A transaction that sees what was committed before the slot's position.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// In the transaction.
    pub(super) sql: SqlSession,
    pub(super) tables: TableSet,
    /// Where the slot begins.
    pub(super) lsn: Lsn,
    /// The server's estimate; 0 where it has none.
    pub(super) rows_estimated: u64,
}

/// Makes a temporary slot and opens a transaction under its snapshot, on the same server.
pub(super) async fn take(config: &PgConfig) -> Result<(Keeper, Snapshot), PgError> {
    let sql = SqlSession::connect(&config.url, &config.application_name).await?;
    let mut session = Session::connect(&config.url, Some(sql.host()), &config.application_name).await?;
    // It stands idle in the transaction of the snapshot, and then idle for as long as the backfill takes.
    session
        .simple_query("SET idle_in_transaction_session_timeout = 0")
        .await?;
    session.simple_query("SET idle_session_timeout = 0").await?;
    tell_who_is_writing(&sql).await?;
    let temporary = temporary_name("backfill");
    let made = session.simple_query(&create_statement(&temporary)).await?;
    let Some([_, Some(lsn), Some(snapshot), ..]) = made.first().map(Vec::as_slice) else {
        return Err(BackfillFault::NoSnapshot.into());
    };
    let lsn: Lsn = lsn.parse().map_err(|_| BackfillFault::NoSnapshot)?;
    // The snapshot can be taken until the next command of the session that exports it.
    begin(&sql, snapshot).await?;
    let keeper = Keeper::spawn(session, temporary, lsn);
    let tables = resolve(&sql, &config.tables).await?;
    let rows_estimated = estimate(&sql, &tables).await?;
    Ok((
        keeper,
        Snapshot {
            sql,
            tables,
            lsn,
            rows_estimated,
        },
    ))
}

async fn begin(sql: &SqlSession, snapshot: &str) -> Result<(), PgError> {
    let mut statements = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {};
         SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0;",
        quote_literal(snapshot)
    );
    for (name, value) in settings::PINNED {
        statements.push_str(&format!("SET LOCAL {name} = {};", quote_literal(value)));
    }
    sql.client().batch_execute(&statements).await?;
    // Since PostgreSQL 17.
    const UNLIMITED: &str = "
        SELECT pg_catalog.set_config(s.name, '0', true) FROM pg_catalog.pg_settings s WHERE s.name = 'transaction_timeout'";
    sql.client().batch_execute(UNLIMITED).await?;
    Ok(())
}

async fn estimate(sql: &SqlSession, tables: &TableSet) -> Result<u64, PgError> {
    const ESTIMATE: &str = "
        SELECT coalesce(pg_catalog.sum(greatest(c.reltuples, 0)), 0)::pg_catalog.int8
          FROM pg_catalog.pg_class c WHERE c.oid = ANY($1)";
    let leaves: Vec<u32> = tables
        .tables()
        .iter()
        .flat_map(OutboxTable::leaves)
        .map(|leaf| leaf.oid)
        .collect();
    let rows: i64 = row(sql, ESTIMATE, &[&leaves]).await?.field(0)?;
    Ok(u64::try_from(rows).unwrap_or_default())
}
