//! Reads the ledger: the database alone knows which commits of unknown outcome took place.

use anyhow::Context;
use futures_util::{TryStreamExt, pin_mut};
use tokio_postgres::{Client, Row};

use crate::checker::{Committed, Ledger, digest};

impl Ledger {
    /// Reads all events of a table with the columns of `tailpost postgres init --create-table`, in order of insertion.
    /// `table` is written as in SQL. The payload may be json, jsonb, text or bytea.
    ///
    /// # Errors
    /// The table cannot be read.
    pub async fn read(client: &Client, table: &str) -> anyhow::Result<Self> {
        let sql = format!(
            "SELECT event_id::text, aggregate_type::text, aggregate_id::text, {} FROM {table} ORDER BY id",
            payload_text(client, table).await?
        );
        let rows = client.query_raw(&sql, std::iter::empty::<i32>()).await?;
        pin_mut!(rows);
        let mut events = Vec::new();
        while let Some(row) = rows.try_next().await? {
            events.push(event(&row)?);
        }
        Ok(Self(events))
    }

    /// The same events, with bodies that are not compared: for `--body envelope`.
    #[must_use]
    pub fn without_bodies(mut self) -> Self {
        self.0.iter_mut().for_each(|event| event.digest = None);
        self
    }
}

fn event(row: &Row) -> anyhow::Result<Committed> {
    let (kind, id): (String, Option<String>) = (row.try_get(1)?, row.try_get(2)?);
    let payload: Option<Vec<u8>> = row.try_get(3)?;
    Ok(Committed {
        id: row.try_get(0)?,
        aggregate: id.map(|id| format!("{kind}/{id}")),
        digest: Some(digest(&payload.unwrap_or_default())),
    })
}

/// The expression that yields the bytes that a message's body must have.
async fn payload_text(client: &Client, table: &str) -> anyhow::Result<&'static str> {
    match column_type(client, table, "payload").await?.as_str() {
        "bytea" => Ok("payload"),
        _ => Ok("convert_to(payload::text, 'UTF8')"),
    }
}

/// The type of a column, as SQL writes it.
pub(crate) async fn column_type(client: &Client, table: &str, column: &str) -> anyhow::Result<String> {
    let sql = "SELECT format_type(atttypid, atttypmod) FROM pg_attribute \
               WHERE attrelid = to_regclass($1) AND attname = $2 AND NOT attisdropped";
    let row = client.query_opt(sql, &[&table, &column]).await?;
    let row = row.with_context(|| format!("table {table} has no column {column}"))?;
    Ok(row.try_get(0)?)
}
