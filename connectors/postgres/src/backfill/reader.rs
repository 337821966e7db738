//! Reads the rows of the snapshot, table by table, through a cursor.
//!
//! A task of its own, so that a dropped call of the relay loses nothing; it reads on only as the relay takes.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures_util::{StreamExt, pin_mut};
use tailpost_outbox::{Column, ColumnKind, Row, Table, Value};
use tailpost_pgoutput::decode_bytea;
use tailpost_pgoutput::quote::quote_identifier;
use tailpost_relay::Item;
use tokio::sync::{mpsc, watch};
use tokio_postgres::{SimpleQueryMessage, SimpleQueryRow};

use super::snapshot::Snapshot;
use super::{BackfillFault, BackfillPosition, Batch, Shared};
use crate::PgError;
use crate::tables::{Generated, OutboxTable, TableColumn};

/// Rows between two places at which the frontier may stand.
const FETCH_ROWS: usize = 500;
/// Bytes handed over at once.
const BATCH_BYTES: usize = 256 << 10;
/// What a row may have beside the payload: names, headers, the other columns, bytes.
const ROW_OVERHEAD: usize = 64 << 10;

/// How far the attempt is.
pub(super) struct Total {
    pub(super) position: BackfillPosition,
    pub(super) shared: Arc<Shared>,
}

pub(super) struct Reader {
    snapshot: Snapshot,
    /// Closes when the temporary slot is lost: what is read from then on would be for nothing.
    alive: watch::Receiver<()>,
    total: Total,
    label: Arc<str>,
    /// The longest row, bytes of its text.
    row_max: usize,
    out: mpsc::Sender<Batch>,
    batch: Vec<Item<BackfillPosition>>,
    batch_bytes: usize,
}

/// Nobody takes the rows any more.
struct Gone;

enum End {
    Gone,
    Failed(PgError),
}

impl From<Gone> for End {
    fn from(_: Gone) -> Self {
        Self::Gone
    }
}

impl<E: Into<PgError>> From<E> for End {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

impl Reader {
    pub(super) fn new(
        snapshot: Snapshot,
        alive: watch::Receiver<()>,
        total: Total,
        max_message_bytes: usize,
        out: mpsc::Sender<Batch>,
    ) -> Self {
        // No transaction of the log has such a name, so that no position is given twice.
        let label = format!("backfill/{}", snapshot.lsn).into();
        let row_max = max_message_bytes.saturating_mul(2).saturating_add(ROW_OVERHEAD);
        Self {
            snapshot,
            alive,
            total,
            label,
            row_max,
            out,
            batch: Vec::new(),
            batch_bytes: 0,
        }
    }

    pub(super) async fn run(mut self) {
        match self.read_all().await {
            Ok(()) | Err(End::Gone) => {}
            // Where nobody listens any more, nobody wants to know.
            Err(End::Failed(error)) => drop(self.out.send(Err(error)).await),
        }
    }

    async fn read_all(&mut self) -> Result<(), End> {
        for table in self.snapshot.tables.tables().to_vec() {
            self.read_table(&table).await?;
        }
        self.snapshot.sql.client().batch_execute("COMMIT").await?;
        self.total.position.done = true;
        self.batch.push(Item::Begin);
        self.end_chunk().await?;
        Ok(())
    }

    async fn read_table(&mut self, table: &OutboxTable) -> Result<(), End> {
        let columns: Vec<TableColumn> = table
            .columns
            .iter()
            .filter(|column| column.generated == Generated::No)
            .cloned()
            .collect();
        let shape = Arc::new(Table {
            schema: table.root.schema.clone(),
            name: table.root.name.clone(),
            columns: columns
                .iter()
                .map(|c| Column {
                    name: c.name.clone(),
                    kind: c.kind,
                })
                .collect(),
        });
        let select = select(table, &columns, self.row_max);
        let declare = format!("DECLARE tailpost_backfill NO SCROLL CURSOR FOR {select}");
        self.snapshot.sql.client().batch_execute(&declare).await?;
        while self.fetch(&shape).await? == FETCH_ROWS {}
        self.snapshot
            .sql
            .client()
            .batch_execute("CLOSE tailpost_backfill")
            .await?;
        Ok(())
    }

    /// Reads up to [`FETCH_ROWS`] rows, and returns how many there were.
    async fn fetch(&mut self, shape: &Arc<Table>) -> Result<usize, End> {
        if self.alive.has_changed().is_err() {
            return Err(BackfillFault::SlotLost.into());
        }
        let fetch = format!("FETCH {FETCH_ROWS} FROM tailpost_backfill");
        let answer = self.snapshot.sql.client().simple_query_raw(&fetch).await?;
        pin_mut!(answer);
        let mut count = 0;
        while let Some(message) = answer.next().await {
            let SimpleQueryMessage::Row(row) = message? else {
                continue;
            };
            if count == 0 {
                self.batch.push(Item::Begin);
            }
            count += 1;
            self.take(shape, &row)?;
            if self.batch_bytes >= BATCH_BYTES {
                self.hand_over().await?;
            }
        }
        if count > 0 {
            self.end_chunk().await?;
        }
        Ok(count)
    }

    fn take(&mut self, shape: &Arc<Table>, row: &SimpleQueryRow) -> Result<(), PgError> {
        let index = self.total.position.rows;
        self.total.position.rows += 1;
        self.total
            .shared
            .rows_read
            .store(self.total.position.rows, Relaxed);
        let size: usize = row
            .try_get(0)?
            .and_then(|text| text.parse().ok())
            .ok_or(BackfillFault::NoSnapshot)?;
        if size > self.row_max {
            let what = format!(
                "row {index} of the backfill, in table {}.{}: {size} bytes as text",
                shape.schema, shape.name
            );
            self.batch.push(Item::Oversized { what });
            return Ok(());
        }
        let mut values = Vec::with_capacity(shape.columns.len());
        let mut bytes = 0;
        for (at, column) in shape.columns.iter().enumerate() {
            let text = row.try_get(at + 1)?;
            bytes += text.map_or(0, str::len) + 5;
            values.push(value(column, text)?);
        }
        self.batch_bytes += bytes;
        let transaction = Arc::clone(&self.label);
        self.batch.push(Item::Row(Row {
            table: Arc::clone(shape),
            values,
            transaction,
            index,
            size: bytes,
        }));
        Ok(())
    }

    /// Marks a place at which the frontier may stand, and hands over.
    async fn end_chunk(&mut self) -> Result<(), Gone> {
        let position = self.total.position;
        self.batch.push(Item::End {
            position,
            urgent: position.done,
        });
        self.hand_over().await
    }

    async fn hand_over(&mut self) -> Result<(), Gone> {
        self.batch_bytes = 0;
        self.out
            .send(Ok(std::mem::take(&mut self.batch)))
            .await
            .map_err(|_| Gone)
    }
}

fn value(column: &Column, text: Option<&str>) -> Result<Value, PgError> {
    Ok(match (text, column.kind) {
        (None, _) => Value::Null,
        (Some(text), ColumnKind::Bytes) => {
            Value::Binary(decode_bytea(text.as_bytes()).map_err(|error| {
                PgError::Protocol(format!("column {:?} is not bytea: {error}", column.name))
            })?)
        }
        (Some(text), _) => Value::Text(Bytes::copy_from_slice(text.as_bytes())),
    })
}

/// The query of a table: the length of the row's text, then its columns. Of a row that is longer than `row_max` the server
/// sends the length only, so that it is never buffered here.
///
/// `OFFSET 0` keeps the server from computing the length once for each column.
fn select(table: &OutboxTable, columns: &[TableColumn], row_max: usize) -> String {
    let lengths: Vec<String> = columns
        .iter()
        .filter(|column| column.variable)
        .map(|column| {
            format!(
                "coalesce(pg_catalog.octet_length(t.{}::pg_catalog.text), 0)::pg_catalog.int8",
                quote_identifier(&column.name)
            )
        })
        .collect();
    let length = if lengths.is_empty() {
        "0::pg_catalog.int8".to_owned()
    } else {
        lengths.join(" + ")
    };
    let outer: String = columns
        .iter()
        .enumerate()
        .map(|(at, _)| format!(", CASE WHEN q.length <= {row_max} THEN q.c{at} END"))
        .collect();
    let inner: String = columns
        .iter()
        .enumerate()
        .map(|(at, column)| format!(", t.{} AS c{at}", quote_identifier(&column.name)))
        .collect();
    let order = order(columns).map_or_else(String::new, |by| format!(" ORDER BY {by}"));
    format!(
        "SELECT q.length{outer} FROM (SELECT {length} AS length{inner} FROM {} t{order} OFFSET 0) q",
        table.root.to_sql()
    )
}

/// `id` where it is a number; else by the time of the row; else `None`, as they lie in the table.
fn order(columns: &[TableColumn]) -> Option<String> {
    let of = |name: &str, kind| {
        columns
            .iter()
            .any(|column| column.name == name && column.kind == kind)
    };
    if of("id", ColumnKind::Integer) {
        return Some("t.\"id\"".into());
    }
    ["created_at", "occurred_at", "timestamp"]
        .into_iter()
        .find(|name| of(name, ColumnKind::Timestamp))
        .map(|name| format!("t.{}", quote_identifier(name)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Member, TableName};

    fn column(name: &str, kind: ColumnKind, variable: bool) -> TableColumn {
        TableColumn {
            name: name.into(),
            type_name: String::new(),
            type_oid: 0,
            base_type_oid: 0,
            kind,
            variable,
            generated: Generated::No,
        }
    }

    #[test]
    fn the_query_sends_no_column_of_a_row_that_is_too_long() {
        let root = Member {
            oid: 1,
            schema: "public".into(),
            name: "ob".into(),
            leaf: true,
            parent: None,
        };
        let asked = TableName {
            schema: None,
            name: "ob".into(),
        };
        let table = OutboxTable {
            asked,
            members: vec![root.clone()],
            root,
            columns: Vec::new(),
        };
        let columns = [
            column("id", ColumnKind::Integer, false),
            column("a\"b", ColumnKind::Json, true),
        ];
        assert_eq!(
            select(&table, &columns, 100),
            "SELECT q.length, CASE WHEN q.length <= 100 THEN q.c0 END, CASE WHEN q.length <= 100 THEN q.c1 END \
             FROM (SELECT coalesce(pg_catalog.octet_length(t.\"a\"\"b\"::pg_catalog.text), 0)::pg_catalog.int8 AS length, \
             t.\"id\" AS c0, t.\"a\"\"b\" AS c1 FROM \"public\".\"ob\" t ORDER BY t.\"id\" OFFSET 0) q"
        );
    }

    #[test]
    fn rows_come_by_number_else_by_time_else_as_they_lie() {
        let uuid = column("id", ColumnKind::Uuid, false);
        assert_eq!(
            order(&[column("id", ColumnKind::Integer, false)]).as_deref(),
            Some("t.\"id\"")
        );
        let timed = [uuid.clone(), column("created_at", ColumnKind::Timestamp, false)];
        assert_eq!(order(&timed).as_deref(), Some("t.\"created_at\""));
        assert_eq!(order(&[uuid]), None);
    }
}
