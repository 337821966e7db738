//! A committed outbox insert, as a source read it.

use std::sync::Arc;

use bytes::Bytes;

/// What a column holds, as far as mapping needs to know. Sources translate their own types to these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColumnKind {
    /// Text, varchar, char, enums, domains over them.
    Text,
    /// A JSON document whose text is sent as the database prints it.
    Json,
    /// Raw bytes (bytea, BLOB, BINARY): the values are [`Value::Binary`].
    Bytes,
    /// A whole number in decimal text.
    Integer,
    /// A floating-point number in decimal text.
    Float,
    /// A boolean; the text is `t`/`f`, `true`/`false` or `1`/`0`.
    Boolean,
    /// A UUID in its hyphenated text.
    Uuid,
    /// A point in time in ISO text, `2024-02-03 09:35:06.123456+00`; without an offset it is UTC.
    Timestamp,
    /// Anything else (numeric, arrays, ranges, composites): the database's own text.
    Other,
}

/// One column of a table as the source's stream describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name, as the database spells it.
    pub name: String,
    /// What it holds.
    pub kind: ColumnKind,
}

/// The shape of a table at one point of the log. A change of shape is a new `Table`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Schema (PostgreSQL) or database (MySQL).
    pub schema: String,
    /// Name; for a partition the partition's own.
    pub name: String,
    /// Columns in the order of the values of a [`Row`].
    pub columns: Vec<Column>,
}

/// One value of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// The text that the database itself prints, in UTF-8.
    Text(Bytes),
    /// Raw bytes of a [`ColumnKind::Bytes`] column.
    Binary(Bytes),
}

/// A committed insert into an outbox table.
#[derive(Clone, Debug)]
pub struct Row {
    /// Shape at the time of the insert. Equal pointers mean an equal shape, so that mapping caches by pointer.
    pub table: Arc<Table>,
    /// One value for each column of `table`.
    pub values: Vec<Value>,
    /// Text of the position of the transaction's commit (commit LSN or GTID), shared by its rows.
    pub transaction: Arc<str>,
    /// Place among the outbox rows of its transaction, from 0. With `transaction` it is unique, and the same at
    /// every repeat.
    pub index: u64,
    /// Bytes that it took on the wire; what it counts against the memory bound, less a fixed overhead.
    pub size: usize,
}

impl Row {
    /// Returns the row's place in the log: `COMMIT:INDEX`, the header `tailpost_position`.
    pub fn position(&self) -> String {
        format!("{}:{}", self.transaction, self.index)
    }
}
