//! A committed outbox insert, as a source read it.
//!
//! `Debug` of a [`Value`] shows its size only: a value may be a payload.

use std::fmt;
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
#[derive(Clone, PartialEq, Eq)]
pub enum Value {
    /// SQL NULL.
    Null,
    /// The text that the database itself prints, in UTF-8.
    Text(Bytes),
    /// Raw bytes of a [`ColumnKind::Bytes`] column.
    Binary(Bytes),
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Text(bytes) => write!(f, "Text({} bytes)", bytes.len()),
            Self::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// A committed insert into an outbox table. Its `Debug` names the table and shows the sizes of its values.
#[derive(Clone)]
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

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field(
                "table",
                &format_args!("{:?}.{:?}", self.table.schema, self.table.name),
            )
            .field("position", &format_args!("{}:{}", self.transaction, self.index))
            .field("values", &self.values)
            .field("size", &self.size)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_row_shows_no_value() {
        let table = Table {
            schema: "public".into(),
            name: "outbox_event".into(),
            columns: Vec::new(),
        };
        let canary = Bytes::from_static(b"canary");
        let values = vec![Value::Text(canary.clone()), Value::Binary(canary), Value::Null];
        let row = Row {
            table: Arc::new(table),
            values,
            transaction: "0/1".into(),
            index: 3,
            size: 40,
        };
        let text = format!("{row:?}");
        assert!(!text.contains("canary") && !text.contains("99"), "{text}");
        assert!(
            text.contains("Text(6 bytes)") && text.contains("0/1:3") && text.contains("outbox_event"),
            "{text}"
        );
    }
}
