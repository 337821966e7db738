//! Reading rows of the catalog: nothing of a row is believed to be there.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, PgLsn, ToSql};

use crate::PgError;

/// Runs a query. Cancel-safe; the session's `statement_timeout` applies.
pub(crate) async fn rows(
    sql: &SqlSession,
    text: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Vec<Row>, PgError> {
    Ok(sql.client().query(text, parameters).await?)
}

/// Runs a query that answers exactly one row.
pub(crate) async fn row(
    sql: &SqlSession,
    text: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<Row, PgError> {
    Ok(sql.client().query_one(text, parameters).await?)
}

/// Takes a field by its place.
pub(crate) trait Field {
    /// Takes field `at`; fails where its type is another.
    fn field<'a, T: FromSql<'a>>(&'a self, at: usize) -> Result<T, PgError>;

    /// Takes a `pg_lsn`.
    fn lsn(&self, at: usize) -> Result<Option<Lsn>, PgError>;
}

impl Field for Row {
    fn field<'a, T: FromSql<'a>>(&'a self, at: usize) -> Result<T, PgError> {
        Ok(self.try_get(at)?)
    }

    fn lsn(&self, at: usize) -> Result<Option<Lsn>, PgError> {
        Ok(self.field::<Option<PgLsn>>(at)?.map(|lsn| Lsn(lsn.into())))
    }
}
