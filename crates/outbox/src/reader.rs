//! A row's values as text, and errors that say where the row is.

use std::fmt::Display;

use crate::label::escaped;
use crate::layout::{column_name, table_name};
use crate::{ColumnKind, MapError, Row, Value};

/// Characters of an event's id in an error.
const ID_CHARS: usize = 64;

/// Reads one row.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    row: &'a Row,
    position: String,
    event_id: Option<&'a str>,
}

impl<'a> Reader<'a> {
    /// Begins to read a row, with the event's id: all later errors name it.
    pub(crate) fn new(row: &'a Row, event_id: usize) -> Result<(Self, &'a str), MapError> {
        let mut reader = Self {
            row,
            position: row.position(),
            event_id: None,
        };
        let (values, columns) = (row.values.len(), row.table.columns.len());
        if values != columns {
            return Err(reader.poison(format_args!("the row has {values} values for {columns} columns")));
        }
        let id = match reader.text(event_id)? {
            Some("") => return Err(reader.column_poison(event_id, "is empty, and every event needs an id")),
            None => return Err(reader.column_poison(event_id, "is NULL, and every event needs an id")),
            Some(id) => id,
        };
        reader.event_id = Some(id);
        Ok((reader, id))
    }

    /// The row's place in the log.
    pub(crate) fn position(&self) -> &str {
        &self.position
    }

    /// The value of a column; the count of values was checked.
    pub(crate) fn value(&self, index: usize) -> &'a Value {
        self.row.values.get(index).unwrap_or(&Value::Null)
    }

    /// The kind of a column.
    pub(crate) fn kind(&self, index: usize) -> ColumnKind {
        self.row
            .table
            .columns
            .get(index)
            .map_or(ColumnKind::Other, |column| column.kind)
    }

    /// The text of a column; `None` is NULL. Text that is not UTF-8 is poison.
    pub(crate) fn text(&self, index: usize) -> Result<Option<&'a str>, MapError> {
        match self.value(index) {
            Value::Null => Ok(None),
            Value::Text(bytes) | Value::Binary(bytes) => std::str::from_utf8(bytes)
                .map(Some)
                .map_err(|_| self.column_poison(index, "is not UTF-8")),
        }
    }

    /// This row can never be published: `what` is wrong with the column.
    pub(crate) fn column_poison(&self, index: usize, what: impl Display) -> MapError {
        self.poison(format_args!(
            "column \"{}\" {what}",
            column_name(&self.row.table, index)
        ))
    }

    /// This row can never be published, and why.
    pub(crate) fn poison(&self, what: impl Display) -> MapError {
        let (table, position) = (table_name(&self.row.table), &self.position);
        let id = self
            .event_id
            .map(|id| format!(", event \"{}\"", escaped(id, ID_CHARS)))
            .unwrap_or_default();
        MapError::Poison {
            what: format!("{what} (table {table}, row {position}{id})"),
        }
    }
}
