//! The messages of `pgoutput` made into items. A plain value without I/O.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tailpost_outbox::{ColumnKind, Row, Table, Value};
use tailpost_pgoutput::{Lsn, Message, Relation, Tag, TupleValue, decode_bytea, peek_change};
use tailpost_relay::{Item, Progress};
use tokio::time::Instant;
use tracing::warn;

use crate::PgError;
use crate::position::PgPosition;
use crate::relations::{Entry, Relations};

/// Rows up to this size are copied out of the read buffer: a few bytes of it would keep all of it (law 8). Larger ones
/// have a buffer of their own.
const COPY_MAX: usize = 256 << 10;
/// The least pause between two warnings of one kind.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// What a message means.
#[derive(Debug)]
pub(crate) enum Change {
    /// Nothing for us.
    Nothing,
    /// An item.
    Item(Item<PgPosition>),
    /// A table was announced: to be judged, then given to [`Changes::announce`], before the next message.
    Announced(Relation),
    /// The open transaction ended; the log may be resumed here.
    End(Lsn),
}

#[derive(Debug)]
struct Open {
    commit: Lsn,
    /// Text of `commit`, made for the first row.
    label: Option<Arc<str>>,
    rows: u64,
}

/// The open transaction and the tables known.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) relations: Relations,
    open: Option<Open>,
    progress: Arc<Progress>,
    warned: Option<Instant>,
}

impl Changes {
    pub(crate) fn new(progress: Arc<Progress>) -> Self {
        Self {
            relations: Relations::default(),
            open: None,
            progress,
            warned: None,
        }
    }

    /// Takes a message. `at` is its place, or the last known one before it.
    ///
    /// # Errors
    /// A message that is not understood, or does not fit those before it.
    pub(crate) fn take(&mut self, at: Lsn, data: Bytes) -> Result<Change, PgError> {
        if let Some((tag, relation)) = peek_change(&data) {
            let Some(table) = self.outbox(at, relation)? else {
                return Ok(Change::Nothing);
            };
            return match tag {
                Tag::Insert => self.insert(at, &table, data).map(Change::Item),
                _ => self.pass(tag, &table),
            };
        }
        match Message::parse(&data).map_err(|source| PgError::Decode { lsn: at, source })? {
            Message::Begin { final_lsn, .. } => self.begin(at, final_lsn),
            Message::Commit {
                commit_lsn, end_lsn, ..
            } => self.commit(at, commit_lsn, end_lsn),
            Message::Relation(relation) => Ok(Change::Announced(relation)),
            Message::Truncate { relation_ids, .. } => {
                let ours = relation_ids
                    .iter()
                    .filter(|id| self.relations.is_outbox(**id))
                    .count();
                self.progress.passed_truncates.add(ours as u64);
                Ok(Change::Nothing)
            }
            Message::Origin { .. } | Message::Type { .. } | Message::Message { .. } => Ok(Change::Nothing),
            // Peeked at already.
            Message::Insert { .. } | Message::Update { .. } | Message::Delete { .. } => {
                Err(broken(at, "a change without a table"))
            }
        }
    }

    /// Takes the head of a message of `length` bytes that was too large to buffer.
    ///
    /// # Errors
    /// A message that is not understood.
    pub(crate) fn oversized(&mut self, at: Lsn, head: &[u8], length: usize) -> Result<Change, PgError> {
        let Some((tag, relation)) = peek_change(head) else {
            // A logical message may be of any size, and nobody asked for it.
            return match head.first().copied().map(Tag::from_byte) {
                Some(Some(Tag::Message)) => Ok(Change::Nothing),
                _ => Err(broken(
                    at,
                    format!("a message of {length} bytes that is no change of a row"),
                )),
            };
        };
        let Some(table) = self.outbox(at, relation)? else {
            return Ok(Change::Nothing);
        };
        if tag != Tag::Insert {
            return self.pass(tag, &table);
        }
        let open = self
            .open
            .as_mut()
            .ok_or_else(|| broken(at, "a change outside of a transaction"))?;
        let what = format!(
            "row {} of transaction {} in table {}.{} at {at}: {length} bytes on the wire",
            open.rows, open.commit, table.schema, table.name
        );
        open.rows += 1;
        Ok(Change::Item(Item::Oversized { what }))
    }

    /// Notes an announced relation.
    pub(crate) fn announce(&mut self, relation: Relation, ours: bool) {
        if ours {
            self.relations.insert_outbox(relation);
        } else {
            if let Some(Entry::Outbox(table)) = self.relations.get(relation.id) {
                warn!(
                    was = %format_args!("{}.{}", table.schema, table.name),
                    now = %format_args!("{}.{}", relation.namespace, relation.name),
                    "the outbox table was renamed; from here on its rows are passed"
                );
            }
            self.relations.insert_foreign(relation.id);
        }
    }

    fn outbox(&self, at: Lsn, relation: u32) -> Result<Option<Arc<Table>>, PgError> {
        match self.relations.get(relation) {
            Some(Entry::Outbox(table)) => Ok(Some(Arc::clone(table))),
            Some(Entry::Foreign) => Ok(None),
            None => Err(broken(
                at,
                format!("a change of relation {relation}, which was not announced"),
            )),
        }
    }

    fn begin(&mut self, at: Lsn, commit: Lsn) -> Result<Change, PgError> {
        if let Some(open) = &self.open {
            return Err(broken(
                at,
                format!("a transaction opens inside of transaction {}", open.commit),
            ));
        }
        self.open = Some(Open {
            commit,
            label: None,
            rows: 0,
        });
        Ok(Change::Item(Item::Begin))
    }

    fn commit(&mut self, at: Lsn, commit: Lsn, end: Lsn) -> Result<Change, PgError> {
        match self.open.take() {
            Some(open) if open.commit == commit && end > commit => Ok(Change::End(end)),
            Some(open) => Err(broken(
                at,
                format!("transaction {} ends as {commit}, at {end}", open.commit),
            )),
            None => Err(broken(at, format!("transaction {commit} ends and was not open"))),
        }
    }

    fn insert(&mut self, at: Lsn, table: &Arc<Table>, data: Bytes) -> Result<Item<PgPosition>, PgError> {
        let size = data.len();
        let data = if size <= COPY_MAX {
            Bytes::copy_from_slice(&data)
        } else {
            data
        };
        let message = Message::parse(&data).map_err(|source| PgError::Decode { lsn: at, source })?;
        let Message::Insert { new, .. } = message else {
            return Err(broken(at, "an insert that is none"));
        };
        if new.len() != table.columns.len() {
            let (got, want) = (new.len(), table.columns.len());
            return Err(broken(
                at,
                format!(
                    "a row of {got} values for {}, which has {want} columns",
                    table.name
                ),
            ));
        }
        let mut values = Vec::with_capacity(new.len());
        for (value, column) in new.into_iter().zip(&table.columns) {
            values.push(self::value(value, column.kind).map_err(|what| match what {
                Fault::Decode(source) => PgError::Decode { lsn: at, source },
                Fault::Kind(kind) => broken(
                    at,
                    format!(
                        "{kind} in column {:?} of an insert into {}",
                        column.name, table.name
                    ),
                ),
            })?);
        }
        let open = self
            .open
            .as_mut()
            .ok_or_else(|| broken(at, "a change outside of a transaction"))?;
        let transaction = Arc::clone(open.label.get_or_insert_with(|| open.commit.to_string().into()));
        let index = open.rows;
        open.rows += 1;
        Ok(Item::Row(Row {
            table: Arc::clone(table),
            values,
            transaction,
            index,
            size,
        }))
    }

    fn pass(&mut self, tag: Tag, table: &Table) -> Result<Change, PgError> {
        if tag == Tag::Update {
            self.progress.passed_updates.add(1);
            let now = Instant::now();
            if self.warned.is_none_or(|last| now - last >= WARN_EVERY) {
                self.warned = Some(now);
                warn!(
                    table = %format_args!("{}.{}", table.schema, table.name),
                    "an update of the outbox table is passed; if it was INSERT ... ON CONFLICT DO UPDATE, its event is not \
                     published: use plain INSERT"
                );
            }
        } else {
            self.progress.passed_deletes.add(1);
        }
        Ok(Change::Nothing)
    }
}

enum Fault {
    Decode(tailpost_pgoutput::DecodeError),
    Kind(&'static str),
}

fn value(value: TupleValue, kind: ColumnKind) -> Result<Value, Fault> {
    match value {
        TupleValue::Null => Ok(Value::Null),
        TupleValue::Text(text) if kind == ColumnKind::Bytes => {
            decode_bytea(&text).map(Value::Binary).map_err(Fault::Decode)
        }
        TupleValue::Text(text) => Ok(Value::Text(text)),
        TupleValue::Unchanged => Err(Fault::Kind("an unchanged value")),
        TupleValue::Binary(_) => Err(Fault::Kind("a binary value, which was not asked for,")),
    }
}

fn broken(lsn: Lsn, what: impl Into<String>) -> PgError {
    PgError::Stream {
        lsn,
        what: what.into(),
    }
}

#[cfg(test)]
mod tests;
