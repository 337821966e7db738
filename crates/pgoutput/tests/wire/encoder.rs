//! The other direction, for round trips only. Written from the manual, as the decoder was.

use bytes::{BufMut, Bytes};
use tailpost_pgoutput::{Message, OldTuple, Relation, ReplicaIdentity, Tuple, TupleValue};

pub(crate) fn encode(message: &Message) -> Bytes {
    let mut out = Vec::new();
    match message {
        Message::Begin {
            final_lsn,
            timestamp,
            xid,
        } => {
            out.put_u8(b'B');
            out.put_u64(final_lsn.0);
            out.put_i64(*timestamp);
            out.put_u32(*xid);
        }
        Message::Commit {
            flags,
            commit_lsn,
            end_lsn,
            timestamp,
        } => {
            out.extend([b'C', *flags]);
            out.put_u64(commit_lsn.0);
            out.put_u64(end_lsn.0);
            out.put_i64(*timestamp);
        }
        Message::Origin { commit_lsn, name } => {
            out.put_u8(b'O');
            out.put_u64(commit_lsn.0);
            put_name(&mut out, name);
        }
        Message::Relation(relation) => put_relation(&mut out, relation),
        Message::Type { id, namespace, name } => {
            out.put_u8(b'Y');
            out.put_u32(*id);
            put_namespace(&mut out, namespace);
            put_name(&mut out, name);
        }
        Message::Insert { relation_id, new } => {
            put_head(&mut out, b'I', *relation_id);
            put_tuple(&mut out, b'N', new);
        }
        Message::Update {
            relation_id,
            old,
            new,
        } => {
            put_head(&mut out, b'U', *relation_id);
            if let Some(old) = old {
                put_old(&mut out, old);
            }
            put_tuple(&mut out, b'N', new);
        }
        Message::Delete { relation_id, old } => {
            put_head(&mut out, b'D', *relation_id);
            put_old(&mut out, old);
        }
        Message::Truncate {
            relation_ids,
            cascade,
            restart_identity,
        } => {
            out.put_u8(b'T');
            out.put_i32(relation_ids.len().try_into().expect("few tables"));
            out.put_u8(u8::from(*cascade) | u8::from(*restart_identity) << 1);
            relation_ids.iter().for_each(|&id| out.put_u32(id));
        }
        Message::Message {
            transactional,
            lsn,
            prefix,
            content,
        } => {
            out.extend([b'M', u8::from(*transactional)]);
            out.put_u64(lsn.0);
            put_name(&mut out, prefix);
            put_sized(&mut out, content);
        }
    }
    out.into()
}

fn put_head(out: &mut Vec<u8>, tag: u8, relation_id: u32) {
    out.put_u8(tag);
    out.put_u32(relation_id);
}

fn put_name(out: &mut Vec<u8>, name: &str) {
    out.extend(name.as_bytes());
    out.put_u8(0);
}

fn put_namespace(out: &mut Vec<u8>, name: &str) {
    put_name(out, if name == "pg_catalog" { "" } else { name });
}

fn put_relation(out: &mut Vec<u8>, relation: &Relation) {
    put_head(out, b'R', relation.id);
    put_namespace(out, &relation.namespace);
    put_name(out, &relation.name);
    out.put_u8(match relation.replica_identity {
        ReplicaIdentity::Default => b'd',
        ReplicaIdentity::Nothing => b'n',
        ReplicaIdentity::Full => b'f',
        ReplicaIdentity::Index => b'i',
    });
    out.put_i16(relation.columns.len().try_into().expect("few columns"));
    for column in &relation.columns {
        out.put_u8(column.is_key.into());
        put_name(out, &column.name);
        out.put_u32(column.type_oid);
        out.put_i32(column.type_modifier);
    }
}

fn put_old(out: &mut Vec<u8>, old: &OldTuple) {
    match old {
        OldTuple::Key(tuple) => put_tuple(out, b'K', tuple),
        OldTuple::Full(tuple) => put_tuple(out, b'O', tuple),
    }
}

fn put_tuple(out: &mut Vec<u8>, marker: u8, tuple: &Tuple) {
    out.put_u8(marker);
    out.put_i16(tuple.len().try_into().expect("few columns"));
    for value in tuple {
        match value {
            TupleValue::Null => out.put_u8(b'n'),
            TupleValue::Unchanged => out.put_u8(b'u'),
            TupleValue::Text(bytes) => {
                out.put_u8(b't');
                put_sized(out, bytes);
            }
            TupleValue::Binary(bytes) => {
                out.put_u8(b'b');
                put_sized(out, bytes);
            }
        }
    }
}

fn put_sized(out: &mut Vec<u8>, bytes: &Bytes) {
    out.put_i32(bytes.len().try_into().expect("short values"));
    out.extend(bytes);
}
