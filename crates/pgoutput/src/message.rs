//! The messages of the output plugin `pgoutput`, protocol version 1.
//!
//! Source: PostgreSQL manual, "Logical Replication Message Formats".

use bytes::Bytes;

use crate::{DecodeError, Lsn};

mod debug;
mod decode;

/// One message of `pgoutput`. Timestamps are microseconds since 2000-01-01; those of a transaction with an origin are the
/// origin's.
#[derive(Clone, PartialEq, Eq)]
pub enum Message {
    /// A transaction opens. It is committed already: version 1 sends no others.
    Begin {
        /// Where its commit record stands: [`Message::Commit`]'s `commit_lsn`.
        final_lsn: Lsn,
        /// When it was committed.
        timestamp: i64,
        /// Its number.
        xid: u32,
    },
    /// The transaction's end.
    Commit {
        /// No use is defined for them yet.
        flags: u8,
        /// Where its commit record stands.
        commit_lsn: Lsn,
        /// The place after the commit record: the log may be resumed here.
        end_lsn: Lsn,
        /// When it was committed.
        timestamp: i64,
    },
    /// The transaction was itself replicated here from another server.
    Origin {
        /// Its commit on that server.
        commit_lsn: Lsn,
        /// The origin's name.
        name: String,
    },
    /// What the next changes of a table look like.
    Relation(Relation),
    /// The name of a type that is not built in. A domain comes under its own OID with the name of its base type.
    Type {
        /// Its OID.
        id: u32,
        /// Its schema.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A row was inserted.
    Insert {
        /// The table, announced by a [`Relation`].
        relation_id: u32,
        /// The row.
        new: Tuple,
    },
    /// A row was updated.
    Update {
        /// The table, announced by a [`Relation`].
        relation_id: u32,
        /// What is known of the row as it was; nothing, while the replica identity is unchanged.
        old: Option<OldTuple>,
        /// The row as it is.
        new: Tuple,
    },
    /// A row was deleted.
    Delete {
        /// The table, announced by a [`Relation`].
        relation_id: u32,
        /// What is known of the row.
        old: OldTuple,
    },
    /// Tables were emptied.
    Truncate {
        /// The tables.
        relation_ids: Vec<u32>,
        /// `CASCADE` was given.
        cascade: bool,
        /// `RESTART IDENTITY` was given.
        restart_identity: bool,
    },
    /// `pg_logical_emit_message`. Not sent unless asked for.
    Message {
        /// It belongs to the open transaction.
        transactional: bool,
        /// Its place.
        lsn: Lsn,
        /// Whose it is.
        prefix: String,
        /// What it says.
        content: Bytes,
    },
}

impl Message {
    /// Parses one message. Row values and a logical message's content are slices of `data`.
    ///
    /// # Errors
    /// Anything but exactly one well-formed message of protocol version 1.
    pub fn parse(data: &Bytes) -> Result<Self, DecodeError> {
        decode::message(data)
    }
}

/// What a table looks like. Sent before its first change, and again when it changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    /// Its OID. Of a partition, unless the publication publishes via the root.
    pub id: u32,
    /// Its schema. The empty one of the wire is `pg_catalog` here.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What identifies a row of it.
    pub replica_identity: ReplicaIdentity,
    /// The published columns, in the order of tuples. Generated columns are absent, unless the publication has them.
    pub columns: Vec<RelationColumn>,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationColumn {
    /// It is part of the replica identity.
    pub is_key: bool,
    /// Its name.
    pub name: String,
    /// Its type's OID.
    pub type_oid: u32,
    /// Its type's modifier (`atttypmod`); -1 for none.
    pub type_modifier: i32,
}

/// What identifies a row (`pg_class.relreplident`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicaIdentity {
    /// The primary key, if any.
    Default,
    /// Nothing.
    Nothing,
    /// All columns.
    Full,
    /// A unique index.
    Index,
}

/// A row, a value for each column of its [`Relation`].
pub type Tuple = Vec<TupleValue>;

/// What is known of a row before its update or delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OldTuple {
    /// The columns of the replica identity; the others are [`TupleValue::Null`].
    Key(Tuple),
    /// The whole row (`REPLICA IDENTITY FULL`).
    Full(Tuple),
}

/// A column's value.
#[derive(Clone, PartialEq, Eq)]
pub enum TupleValue {
    /// SQL's NULL.
    Null,
    /// A stored-out-of-line (TOAST) value that the update did not touch: it is not sent.
    Unchanged,
    /// The text that the database prints, in the session's encoding.
    Text(Bytes),
    /// The type's binary form. Not sent unless asked for.
    Binary(Bytes),
}
