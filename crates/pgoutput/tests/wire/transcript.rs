//! Recorded bytes as lines that a person can compare with the scenario. What differs from run to run (object ids of
//! users' own types and tables, transaction ids, positions, times) is left out; recorded.rs checks it.

use std::collections::HashMap;
use std::fmt::Write;

use bytes::Bytes;
use tailpost_pgoutput::{Message, OldTuple, Relation, Tuple, TupleValue};

/// The first object id that is not PostgreSQL's own.
const FIRST_USER_OID: u32 = 16_384;

/// From here on a value's length is shown instead of it, bytes.
const LONG: usize = 1_000;

/// The lines of a `.hex` file, without its comments.
pub(crate) fn lines(file: &str) -> Vec<Bytes> {
    file.lines()
        .filter(|line| !line.starts_with('#'))
        .map(unhex)
        .collect()
}

fn unhex(line: &str) -> Bytes {
    assert!(line.len().is_multiple_of(2), "{line}");
    let byte = |at| u8::from_str_radix(&line[at..at + 2], 16).expect("hexadecimal digits");
    (0..line.len()).step_by(2).map(byte).collect()
}

/// Renders messages a line each, with the columns' names from the relations among them.
pub(crate) fn transcript(messages: &[Message]) -> String {
    let mut relations = HashMap::new();
    let mut text = String::new();
    for message in messages {
        if let Message::Relation(relation) = message {
            relations.insert(relation.id, relation);
        }
        writeln!(text, "{}", line(message, &relations)).expect("writing to a string");
    }
    text
}

fn line(message: &Message, relations: &HashMap<u32, &Relation>) -> String {
    let table = |id: &u32| format!("{}.{}", relations[id].namespace, relations[id].name);
    let row = |id: &u32, tuple: &Tuple| row(relations[id], tuple);
    let old_row = |id: &u32, old: &OldTuple| match old {
        OldTuple::Key(tuple) => format!("key {}", row(id, tuple)),
        OldTuple::Full(tuple) => format!("full {}", row(id, tuple)),
    };
    match message {
        Message::Begin { .. } => "begin".to_owned(),
        Message::Commit { flags, .. } => format!("commit flags={flags}"),
        Message::Origin { commit_lsn, name } => format!("origin {name} {commit_lsn}"),
        Message::Relation(relation) => describe(relation),
        Message::Type { namespace, name, .. } => format!("type {namespace}.{name}"),
        Message::Insert { relation_id, new } => {
            format!("insert {} {}", table(relation_id), row(relation_id, new))
        }
        Message::Update {
            relation_id,
            old,
            new,
        } => {
            let old = old
                .as_ref()
                .map_or("none".to_owned(), |old| old_row(relation_id, old));
            format!(
                "update {} old {old} new {}",
                table(relation_id),
                row(relation_id, new)
            )
        }
        Message::Delete { relation_id, old } => {
            format!("delete {} {}", table(relation_id), old_row(relation_id, old))
        }
        Message::Truncate {
            relation_ids,
            cascade,
            restart_identity,
        } => {
            let tables: Vec<_> = relation_ids.iter().map(table).collect();
            format!(
                "truncate {} cascade={cascade} restart_identity={restart_identity}",
                tables.join(" ")
            )
        }
        Message::Message {
            transactional,
            prefix,
            content,
            ..
        } => {
            format!(
                "message transactional={transactional} {prefix} {}",
                content.escape_ascii()
            )
        }
    }
}

fn describe(relation: &Relation) -> String {
    let mut text = format!(
        "relation {}.{} {:?}",
        relation.namespace, relation.name, relation.replica_identity
    );
    for column in &relation.columns {
        let key = if column.is_key { "*" } else { "" };
        let type_oid = match column.type_oid {
            oid if oid < FIRST_USER_OID => oid.to_string(),
            _ => "user".to_owned(),
        };
        write!(text, " {}{key}:{type_oid}", column.name).expect("writing to a string");
        if column.type_modifier != -1 {
            write!(text, "({})", column.type_modifier).expect("writing to a string");
        }
    }
    text
}

fn row(relation: &Relation, tuple: &Tuple) -> String {
    assert_eq!(
        relation.columns.len(),
        tuple.len(),
        "columns of {}",
        relation.name
    );
    let values = relation
        .columns
        .iter()
        .zip(tuple)
        .map(|(column, value)| match value {
            TupleValue::Null => format!("{}=NULL", column.name),
            TupleValue::Unchanged => format!("{}=UNCHANGED", column.name),
            TupleValue::Text(value) if value.len() > LONG => format!("{}={} bytes", column.name, value.len()),
            TupleValue::Text(value) => {
                format!(
                    "{}={:?}",
                    column.name,
                    str::from_utf8(value).expect("text is UTF-8")
                )
            }
            TupleValue::Binary(value) => format!("{}=<{}>", column.name, value.escape_ascii()),
        });
    values.collect::<Vec<_>>().join(" ")
}
