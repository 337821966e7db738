//! `Debug` without content: rows and logical messages are the application's secrets.

use std::fmt;

use super::{Message, TupleValue};

/// Shows the length of a logical message's content, not the content.
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin {
                final_lsn,
                timestamp,
                xid,
            } => f
                .debug_struct("Begin")
                .field("final_lsn", final_lsn)
                .field("timestamp", timestamp)
                .field("xid", xid)
                .finish(),
            Self::Commit {
                flags,
                commit_lsn,
                end_lsn,
                timestamp,
            } => f
                .debug_struct("Commit")
                .field("flags", flags)
                .field("commit_lsn", commit_lsn)
                .field("end_lsn", end_lsn)
                .field("timestamp", timestamp)
                .finish(),
            Self::Origin { commit_lsn, name } => f
                .debug_struct("Origin")
                .field("commit_lsn", commit_lsn)
                .field("name", name)
                .finish(),
            Self::Relation(relation) => relation.fmt(f),
            Self::Type { id, namespace, name } => f
                .debug_struct("Type")
                .field("id", id)
                .field("namespace", namespace)
                .field("name", name)
                .finish(),
            Self::Insert { relation_id, new } => f
                .debug_struct("Insert")
                .field("relation_id", relation_id)
                .field("new", new)
                .finish(),
            Self::Update {
                relation_id,
                old,
                new,
            } => f
                .debug_struct("Update")
                .field("relation_id", relation_id)
                .field("old", old)
                .field("new", new)
                .finish(),
            Self::Delete { relation_id, old } => f
                .debug_struct("Delete")
                .field("relation_id", relation_id)
                .field("old", old)
                .finish(),
            Self::Truncate {
                relation_ids,
                cascade,
                restart_identity,
            } => f
                .debug_struct("Truncate")
                .field("relation_ids", relation_ids)
                .field("cascade", cascade)
                .field("restart_identity", restart_identity)
                .finish(),
            Self::Message {
                transactional,
                lsn,
                prefix,
                content,
            } => f
                .debug_struct("Message")
                .field("transactional", transactional)
                .field("lsn", lsn)
                .field("prefix_len", &prefix.len())
                .field("content_len", &content.len())
                .finish(),
        }
    }
}

/// Shows lengths, never content.
impl fmt::Debug for TupleValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("Null"),
            Self::Unchanged => f.write_str("Unchanged"),
            Self::Text(value) => write!(f, "Text({} bytes)", value.len()),
            Self::Binary(value) => write!(f, "Binary({} bytes)", value.len()),
        }
    }
}
