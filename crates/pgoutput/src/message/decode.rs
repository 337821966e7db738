//! Bytes to messages.

use bytes::Bytes;

use super::{Message, OldTuple, Relation, RelationColumn, ReplicaIdentity, Tuple, TupleValue};
use crate::DecodeError;
use crate::peek::Tag;
use crate::reader::Reader;

pub(super) fn message(data: &Bytes) -> Result<Message, DecodeError> {
    let mut reader = Reader::new(data)?;
    let tag = Tag::from_byte(reader.tag()).ok_or(DecodeError::UnknownTag { tag: reader.tag() })?;
    let message = body(tag, &mut reader)?;
    reader.end()?;
    Ok(message)
}

// Fields of a struct expression are evaluated in the order written: the order of the wire.
fn body(tag: Tag, reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    Ok(match tag {
        Tag::Begin => Message::Begin {
            final_lsn: reader.lsn()?,
            timestamp: reader.i64()?,
            xid: reader.u32()?,
        },
        Tag::Commit => Message::Commit {
            flags: reader.u8()?,
            commit_lsn: reader.lsn()?,
            end_lsn: reader.lsn()?,
            timestamp: reader.i64()?,
        },
        Tag::Origin => Message::Origin {
            commit_lsn: reader.lsn()?,
            name: reader.name()?,
        },
        Tag::Relation => Message::Relation(relation(reader)?),
        Tag::Type => Message::Type {
            id: reader.u32()?,
            namespace: namespace(reader)?,
            name: reader.name()?,
        },
        Tag::Insert => Message::Insert {
            relation_id: reader.u32()?,
            new: new_tuple(reader)?,
        },
        Tag::Update => update(reader)?,
        Tag::Delete => delete(reader)?,
        Tag::Truncate => truncate(reader)?,
        Tag::Message => logical_message(reader)?,
    })
}

fn relation(reader: &mut Reader<'_>) -> Result<Relation, DecodeError> {
    Ok(Relation {
        id: reader.u32()?,
        namespace: namespace(reader)?,
        name: reader.name()?,
        replica_identity: replica_identity(reader)?,
        columns: columns(reader)?,
    })
}

/// The server leaves out `pg_catalog`.
fn namespace(reader: &mut Reader<'_>) -> Result<String, DecodeError> {
    let name = reader.name()?;
    Ok(if name.is_empty() {
        "pg_catalog".to_owned()
    } else {
        name
    })
}

fn replica_identity(reader: &mut Reader<'_>) -> Result<ReplicaIdentity, DecodeError> {
    let unexpected = unexpected_marker(reader);
    match reader.u8()? {
        b'd' => Ok(ReplicaIdentity::Default),
        b'n' => Ok(ReplicaIdentity::Nothing),
        b'f' => Ok(ReplicaIdentity::Full),
        b'i' => Ok(ReplicaIdentity::Index),
        _ => Err(unexpected),
    }
}

fn columns(reader: &mut Reader<'_>) -> Result<Vec<RelationColumn>, DecodeError> {
    /// Flags, the NUL of an empty name, type, modifier.
    const LEAST: usize = 1 + 1 + 4 + 4;
    let count = reader.count16(LEAST)?;
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        columns.push(RelationColumn {
            is_key: reader.u8()? & 1 != 0,
            name: reader.name()?,
            type_oid: reader.u32()?,
            type_modifier: reader.i32()?,
        });
    }
    Ok(columns)
}

fn update(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let relation_id = reader.u32()?;
    let unexpected = unexpected_marker(reader);
    let (old, new) = match reader.u8()? {
        b'N' => (None, tuple(reader)?),
        b'K' => (Some(OldTuple::Key(tuple(reader)?)), new_tuple(reader)?),
        b'O' => (Some(OldTuple::Full(tuple(reader)?)), new_tuple(reader)?),
        _ => return Err(unexpected),
    };
    Ok(Message::Update {
        relation_id,
        old,
        new,
    })
}

fn delete(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let relation_id = reader.u32()?;
    let unexpected = unexpected_marker(reader);
    let old = match reader.u8()? {
        b'K' => OldTuple::Key(tuple(reader)?),
        b'O' => OldTuple::Full(tuple(reader)?),
        _ => return Err(unexpected),
    };
    Ok(Message::Delete { relation_id, old })
}

fn truncate(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    const CASCADE: u8 = 1;
    const RESTART_IDENTITY: u8 = 2;
    let count = reader.count32(size_of::<u32>())?;
    let options = reader.u8()?;
    let mut relation_ids = Vec::with_capacity(count);
    for _ in 0..count {
        relation_ids.push(reader.u32()?);
    }
    Ok(Message::Truncate {
        relation_ids,
        cascade: options & CASCADE != 0,
        restart_identity: options & RESTART_IDENTITY != 0,
    })
}

fn logical_message(reader: &mut Reader<'_>) -> Result<Message, DecodeError> {
    let flags = reader.u8()?;
    let (lsn, prefix, length) = (reader.lsn()?, reader.name()?, reader.length()?);
    Ok(Message::Message {
        transactional: flags & 1 != 0,
        lsn,
        prefix,
        content: reader.bytes(length)?,
    })
}

fn new_tuple(reader: &mut Reader<'_>) -> Result<Tuple, DecodeError> {
    let unexpected = unexpected_marker(reader);
    match reader.u8()? {
        b'N' => tuple(reader),
        _ => Err(unexpected),
    }
}

fn tuple(reader: &mut Reader<'_>) -> Result<Tuple, DecodeError> {
    let count = reader.count16(1)?;
    let mut values = Vec::with_capacity(count);
    for _ in 0..count {
        values.push(value(reader)?);
    }
    Ok(values)
}

fn value(reader: &mut Reader<'_>) -> Result<TupleValue, DecodeError> {
    let unknown = DecodeError::UnknownTupleKind {
        tag: reader.tag(),
        offset: reader.offset(),
    };
    match reader.u8()? {
        b'n' => Ok(TupleValue::Null),
        b'u' => Ok(TupleValue::Unchanged),
        b't' => sized(reader).map(TupleValue::Text),
        b'b' => sized(reader).map(TupleValue::Binary),
        _ => Err(unknown),
    }
}

fn sized(reader: &mut Reader<'_>) -> Result<Bytes, DecodeError> {
    let length = reader.length()?;
    reader.bytes(length)
}

/// The error for the marker that is read next.
fn unexpected_marker(reader: &Reader<'_>) -> DecodeError {
    DecodeError::UnexpectedMarker {
        tag: reader.tag(),
        offset: reader.offset(),
    }
}
