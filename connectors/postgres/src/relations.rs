//! What the stream has told of tables: which of them are outbox tables, and what their columns hold.
//!
//! Relations are announced anew in every stream and whenever they change, so this lives as long as one stream. Columns
//! are known by name, as of the place in the log, never by position in the catalog of today.

use std::collections::HashMap;
use std::sync::Arc;

use tailpost_outbox::{Column, ColumnKind, Table};
use tailpost_pgoutput::Relation;

/// A relation of the stream.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// Not one of ours: its changes are dropped unread.
    Foreign,
    /// An outbox table, or a partition of one.
    Outbox(Arc<Table>),
}

/// The relations of one stream, by OID.
#[derive(Debug, Default)]
pub(crate) struct Relations {
    entries: HashMap<u32, Entry>,
    /// What types that are not built in hold.
    kinds: HashMap<u32, ColumnKind>,
}

impl Relations {
    /// Finds a relation; `None` where the stream has not announced it.
    pub(crate) fn get(&self, id: u32) -> Option<&Entry> {
        self.entries.get(&id)
    }

    /// Whether it is an outbox table.
    pub(crate) fn is_outbox(&self, id: u32) -> bool {
        matches!(self.get(id), Some(Entry::Outbox(_)))
    }

    /// The types of `relation` that are neither built in nor learned, each once.
    pub(crate) fn unknown_types(&self, relation: &Relation) -> Vec<u32> {
        let known =
            |oid: &u32| builtin(*oid).is_some() || *oid < FIRST_USER_OID || self.kinds.contains_key(oid);
        let mut oids: Vec<u32> = relation.columns.iter().map(|column| column.type_oid).collect();
        oids.retain(|oid| !known(oid));
        oids.sort_unstable();
        oids.dedup();
        oids
    }

    /// Notes what a type holds.
    pub(crate) fn learn(&mut self, oid: u32, kind: ColumnKind) {
        self.kinds.insert(oid, kind);
    }

    /// Notes a relation that is not ours.
    pub(crate) fn insert_foreign(&mut self, id: u32) {
        self.entries.insert(id, Entry::Foreign);
    }

    /// Notes an outbox table. Announced again in the same shape it keeps its pointer, by which mapping caches.
    pub(crate) fn insert_outbox(&mut self, relation: Relation) {
        let columns = relation
            .columns
            .into_iter()
            .map(|column| Column {
                kind: self.kind(column.type_oid),
                name: column.name,
            })
            .collect();
        let table = Table {
            schema: relation.namespace,
            name: relation.name,
            columns,
        };
        match self.entries.get(&relation.id) {
            Some(Entry::Outbox(known)) if **known == table => {}
            _ => {
                self.entries.insert(relation.id, Entry::Outbox(Arc::new(table)));
            }
        }
    }

    fn kind(&self, oid: u32) -> ColumnKind {
        builtin(oid)
            .or_else(|| self.kinds.get(&oid).copied())
            .unwrap_or(ColumnKind::Other)
    }
}

/// Types below are the server's own and have the same OID everywhere (`FirstNormalObjectId`).
const FIRST_USER_OID: u32 = 16384;

/// What a type of the server's own holds.
///
/// Source: PostgreSQL's `pg_type.dat`; these OIDs never change.
pub(crate) fn builtin(oid: u32) -> Option<ColumnKind> {
    Some(match oid {
        16 => ColumnKind::Boolean,
        17 => ColumnKind::Bytes,
        // int8, int2, int4
        20 | 21 | 23 => ColumnKind::Integer,
        // float4, float8
        700 | 701 => ColumnKind::Float,
        // "char", name, text, bpchar, varchar
        18 | 19 | 25 | 1042 | 1043 => ColumnKind::Text,
        // json, jsonb
        114 | 3802 => ColumnKind::Json,
        // timestamp, timestamptz
        1114 | 1184 => ColumnKind::Timestamp,
        2950 => ColumnKind::Uuid,
        _ => return None,
    })
}

/// What a type that is not built in holds, by its row in `pg_type`: `base` is the type below all domains, `typtype` and
/// `typcategory` are that type's. An enum is text; so is an extension's string type such as citext.
pub(crate) fn user_kind(base: u32, typtype: &str, typcategory: &str) -> ColumnKind {
    match (builtin(base), typtype, typcategory) {
        (Some(kind), _, _) => kind,
        (None, "e", _) | (None, "b", "S") => ColumnKind::Text,
        _ => ColumnKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use tailpost_pgoutput::{RelationColumn, ReplicaIdentity};

    use super::*;

    fn relation(id: u32, name: &str, columns: &[(&str, u32)]) -> Relation {
        let column = |&(name, type_oid): &(&str, u32)| RelationColumn {
            is_key: false,
            name: name.into(),
            type_oid,
            type_modifier: -1,
        };
        Relation {
            id,
            namespace: "public".into(),
            name: name.into(),
            replica_identity: ReplicaIdentity::Default,
            columns: columns.iter().map(column).collect(),
        }
    }

    fn table(relations: &Relations, id: u32) -> Arc<Table> {
        match relations.get(id) {
            Some(Entry::Outbox(table)) => Arc::clone(table),
            other => panic!("no outbox table: {other:?}"),
        }
    }

    #[test]
    fn a_table_announced_again_in_the_same_shape_keeps_its_pointer() {
        let mut relations = Relations::default();
        relations.insert_outbox(relation(1, "ob", &[("id", 20), ("payload", 114)]));
        let first = table(&relations, 1);
        relations.insert_outbox(relation(1, "ob", &[("id", 20), ("payload", 114)]));
        assert!(Arc::ptr_eq(&first, &table(&relations, 1)));
        relations.insert_outbox(relation(1, "ob", &[("id", 20), ("body", 114)]));
        assert!(!Arc::ptr_eq(&first, &table(&relations, 1)));
        assert_eq!(table(&relations, 1).columns[1].name, "body");
    }

    #[test]
    fn a_relation_that_is_no_outbox_any_more_is_forgotten_as_one() {
        let mut relations = Relations::default();
        relations.insert_outbox(relation(1, "ob", &[("id", 20)]));
        relations.insert_foreign(1);
        assert!(!relations.is_outbox(1));
    }

    #[test]
    fn only_types_that_are_not_the_servers_own_are_looked_up_and_only_once() {
        let mut relations = Relations::default();
        let relation = relation(
            1,
            "ob",
            &[
                ("a", 20_000),
                ("b", 20_000),
                ("c", 1700),
                ("d", 17),
                ("e", 20_001),
            ],
        );
        assert_eq!(relations.unknown_types(&relation), [20_000, 20_001]);
        relations.learn(20_000, user_kind(17, "b", "U"));
        relations.learn(20_001, user_kind(3802, "b", "U"));
        assert!(relations.unknown_types(&relation).is_empty());
        relations.insert_outbox(relation);
        let kinds: Vec<ColumnKind> = table(&relations, 1)
            .columns
            .iter()
            .map(|column| column.kind)
            .collect();
        assert_eq!(
            kinds,
            [
                ColumnKind::Bytes,
                ColumnKind::Bytes,
                ColumnKind::Other,
                ColumnKind::Bytes,
                ColumnKind::Json
            ]
        );
    }

    #[test]
    fn enums_and_string_types_of_extensions_are_text_and_composites_are_not() {
        assert_eq!(user_kind(20_000, "e", "E"), ColumnKind::Text);
        assert_eq!(user_kind(20_000, "b", "S"), ColumnKind::Text);
        assert_eq!(user_kind(20_000, "c", "C"), ColumnKind::Other);
    }
}
