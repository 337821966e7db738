//! Whether the publications show every insert into the tables, whole.
//!
//! PostgreSQL 18 skips a missing publication with no more than a warning, older servers fail late and for good, and all of
//! them hide rows and columns in silence where a publication says so. So this is asked at every open and each minute.
//! Publications are read as they were at the log's place: mending one does not bring back what was written before.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::quote::quote_identifier;

use crate::PgError;
use crate::catalog::{Field, rows};
use crate::tables::{Generated, Member, OutboxTable, TableSet, list};

/// What keeps inserts from being published whole. Each names the statement that mends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublicationFault {
    /// No such publication in this database.
    #[error("publication {publication:?} does not exist in this database")]
    Missing {
        /// Its name.
        publication: String,
        /// The tables that it should publish, as SQL; `None` where none of them exists.
        tables: Option<String>,
    },
    /// It exists, but inserts are not among what it publishes.
    #[error("publication {publication:?} does not publish inserts")]
    NoInsert {
        /// Its name.
        publication: String,
        /// What it publishes and should go on to publish.
        publish: String,
    },
    /// A table, or some of its partitions, are not in it.
    #[error("publication {publication:?} does not cover {what}")]
    NotCovered {
        /// Its name; the first of several.
        publication: String,
        /// The table, or the partitions that are missing.
        what: String,
        /// The table to add, as SQL.
        table: String,
    },
    /// A `WHERE` hides rows.
    #[error("publication {publication:?} publishes only some rows of table {table}")]
    RowFilter {
        /// Its name.
        publication: String,
        /// Which table, as SQL.
        table: String,
    },
    /// A column list hides columns that are mapped.
    #[error("publication {publication:?} leaves out column {columns} of table {table}")]
    ColumnList {
        /// Its name.
        publication: String,
        /// Which table, as SQL.
        table: String,
        /// Which columns.
        columns: String,
    },
    /// Two publications list different columns, which the server refuses to decode.
    #[error("publications {first:?} and {second:?} list different columns of table {table}")]
    ListsDiffer {
        /// The one.
        first: String,
        /// The other.
        second: String,
        /// Which table, as SQL.
        table: String,
    },
    /// A mapped column is computed by the server and not in the log.
    #[error("column {column:?} of table {table} is generated: the log does not carry it")]
    Generated {
        /// Which column.
        column: String,
        /// Which table.
        table: String,
        /// A publication that could carry it: PostgreSQL 18 and a stored column.
        publication: Option<String>,
    },
}

impl PublicationFault {
    /// The statement that mends it, where one does.
    pub fn statement(&self) -> Option<String> {
        let name = |publication: &String| quote_identifier(publication);
        Some(match self {
            Self::Missing {
                publication,
                tables: Some(tables),
            } => {
                format!(
                    "CREATE PUBLICATION {} FOR TABLE {tables} WITH (publish = 'insert')",
                    name(publication)
                )
            }
            Self::NoInsert { publication, publish } => {
                format!(
                    "ALTER PUBLICATION {} SET (publish = '{publish}')",
                    name(publication)
                )
            }
            Self::NotCovered {
                publication, table, ..
            } => {
                format!("ALTER PUBLICATION {} ADD TABLE {table}", name(publication))
            }
            Self::RowFilter { publication, table }
            | Self::ColumnList {
                publication, table, ..
            } => {
                let publication = name(publication);
                format!(
                    "BEGIN; ALTER PUBLICATION {publication} DROP TABLE {table}; \
                     ALTER PUBLICATION {publication} ADD TABLE {table}; COMMIT"
                )
            }
            Self::Generated {
                publication: Some(publication),
                ..
            } => {
                format!(
                    "ALTER PUBLICATION {} SET (publish_generated_columns = stored)",
                    name(publication)
                )
            }
            Self::Missing { tables: None, .. }
            | Self::Generated {
                publication: None, ..
            }
            | Self::ListsDiffer { .. } => return None,
        })
    }

    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        const BEFORE: &str =
            "what was written meanwhile stays hidden from this slot: publish it from the table";
        const GAP: &str = crate::error::PAST_THE_GAP;
        match (self, self.statement()) {
            (Self::Missing { .. }, Some(statement)) => format!("{statement}; {GAP}"),
            (_, Some(statement)) => format!("{statement}; {BEFORE}"),
            (Self::ListsDiffer { .. }, None) => {
                format!("give both publications one column list, or name one of them only; {BEFORE}")
            }
            (Self::Missing { .. }, None) => {
                "`tailpost postgres init --create-table` makes table and publication".into()
            }
            (_, None) => "map another column with --column: this one never reaches the log".into(),
        }
    }
}

/// What the catalog says of the publications.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Publications {
    /// Those that exist.
    pub found: Vec<Publication>,
    /// What they cover.
    pub covered: Vec<Covered>,
}

/// A publication.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publication {
    /// Name.
    pub name: String,
    /// `FOR ALL TABLES`.
    pub all_tables: bool,
    /// Publishes inserts.
    pub insert: bool,
    /// Publishes other changes too, by their names.
    pub others: Vec<&'static str>,
    /// Names the root of a partitioned table rather than the leaf.
    pub via_root: bool,
}

/// A relation that a publication covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Covered {
    /// Publication.
    pub publication: String,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Columns shown; `None` before PostgreSQL 15, which shows all.
    pub columns: Option<Vec<String>>,
    /// The server's text of the row filter.
    pub row_filter: Option<String>,
}

const FOUND: &str = "
SELECT p.pubname::text, p.puballtables, p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate, p.pubviaroot
  FROM pg_catalog.pg_publication p WHERE p.pubname = ANY($1) ORDER BY p.pubname";

const COVERED: &str = "
SELECT t.pubname::text, t.schemaname::text, t.tablename::text, t.attnames::text[], t.rowfilter
  FROM pg_catalog.pg_publication_tables t WHERE t.pubname = ANY($1) ORDER BY t.pubname";

const COVERED_14: &str = "
SELECT t.pubname::text, t.schemaname::text, t.tablename::text, NULL::text[], NULL::text
  FROM pg_catalog.pg_publication_tables t WHERE t.pubname = ANY($1) ORDER BY t.pubname";

/// Reads the publications named.
///
/// # Errors
/// What reading the catalog raises.
pub async fn read(sql: &SqlSession, names: &[String], server_version: i32) -> Result<Publications, PgError> {
    let mut publications = Publications::default();
    for row in &rows(sql, FOUND, &[&names]).await? {
        let mut others = Vec::new();
        for (at, name) in [(3, "update"), (4, "delete"), (5, "truncate")] {
            if row.field(at)? {
                others.push(name);
            }
        }
        publications.found.push(Publication {
            name: row.field(0)?,
            all_tables: row.field(1)?,
            insert: row.field(2)?,
            others,
            via_root: row.field(6)?,
        });
    }
    let covered = if server_version >= 150_000 {
        COVERED
    } else {
        COVERED_14
    };
    for row in &rows(sql, covered, &[&names]).await? {
        publications.covered.push(Covered {
            publication: row.field(0)?,
            schema: row.field(1)?,
            name: row.field(2)?,
            columns: row.field(3)?,
            row_filter: row.field(4)?,
        });
    }
    Ok(publications)
}

/// Verifies that `names` exist, and between them publish every insert into `tables` with the columns in `columns`. Run at
/// every open, and each minute while streaming.
///
/// # Errors
/// The first [`PublicationFault`], and what reading the catalog raises.
pub async fn verify(
    sql: &SqlSession,
    names: &[String],
    tables: &TableSet,
    columns: &[String],
    server_version: i32,
) -> Result<(), PgError> {
    let publications = read(sql, names, server_version).await?;
    match publications
        .faults(names, tables, columns, server_version)
        .into_iter()
        .next()
    {
        Some(fault) => Err(fault.into()),
        None => Ok(()),
    }
}

impl Publications {
    /// Lists all that keeps inserts into `tables` from being published whole.
    pub fn faults(
        &self,
        names: &[String],
        tables: &TableSet,
        columns: &[String],
        server_version: i32,
    ) -> Vec<PublicationFault> {
        let all = list(tables.tables().iter().map(|table| table.root.to_sql()));
        let all = (!all.is_empty()).then_some(all);
        let mut faults: Vec<_> = names
            .iter()
            .filter(|name| !self.found.iter().any(|publication| publication.name == **name))
            .map(|name| PublicationFault::Missing {
                publication: name.clone(),
                tables: all.clone(),
            })
            .collect();
        if let (true, Some(first)) = (faults.is_empty(), names.first()) {
            for table in tables.tables() {
                self.judge(table, first, columns, server_version, &mut faults);
            }
        }
        // Partitions of one table share their faults.
        faults.dedup();
        faults
    }

    fn judge(
        &self,
        table: &OutboxTable,
        first: &str,
        columns: &[String],
        version: i32,
        faults: &mut Vec<PublicationFault>,
    ) {
        let carriers: Vec<&Member> = table
            .members
            .iter()
            .filter(|m| !self.of(m, true).is_empty())
            .collect();
        let uncovered: Vec<&Member> = table
            .leaves()
            .filter(|leaf| !covers(table, &carriers, leaf))
            .collect();
        if !uncovered.is_empty() {
            faults.push(self.uncovered(table, first, &uncovered));
        }
        for carrier in &carriers {
            self.judge_rows(table, carrier, faults);
            self.judge_columns(table, carrier, columns, faults);
        }
        self.judge_generated(table, first, &carriers, columns, version, faults);
    }

    /// What covers `member` under its own name; only by publications of inserts, or by any.
    fn of(&self, member: &Member, inserts: bool) -> Vec<&Covered> {
        let publishes = |name: &str| {
            self.found
                .iter()
                .any(|publication| publication.name == name && publication.insert)
        };
        self.covered
            .iter()
            .filter(|covered| covered.schema == member.schema && covered.name == member.name)
            .filter(|covered| !inserts || publishes(&covered.publication))
            .collect()
    }

    fn uncovered(&self, table: &OutboxTable, first: &str, missing: &[&Member]) -> PublicationFault {
        let without_insert = table
            .members
            .iter()
            .flat_map(|member| self.of(member, false))
            .find_map(|covered| {
                self.found
                    .iter()
                    .find(|p| p.name == covered.publication && !p.insert)
            });
        if let Some(publication) = without_insert {
            let mut publish = vec!["insert"];
            publish.extend(&publication.others);
            return PublicationFault::NoInsert {
                publication: publication.name.clone(),
                publish: publish.join(", "),
            };
        }
        let partial = table.partitioned() && missing.len() < table.leaves().count();
        PublicationFault::NotCovered {
            publication: first.to_owned(),
            what: if partial {
                format!("partition {}", list(missing.iter().map(|member| member.label())))
            } else {
                format!("table {}", table.root.label())
            },
            table: table.root.to_sql(),
        }
    }

    fn judge_rows(&self, table: &OutboxTable, carrier: &Member, faults: &mut Vec<PublicationFault>) {
        let covered = self.of(carrier, true);
        // The server shows a row that any of the publications shows.
        if let (Some(one), true) = (covered.first(), covered.iter().all(|c| c.row_filter.is_some())) {
            faults.push(PublicationFault::RowFilter {
                publication: one.publication.clone(),
                table: table.root.to_sql(),
            });
        }
    }

    fn judge_columns(
        &self,
        table: &OutboxTable,
        carrier: &Member,
        columns: &[String],
        faults: &mut Vec<PublicationFault>,
    ) {
        let covered = self.of(carrier, true);
        let Some(one) = covered.first() else { return };
        if let Some(other) = covered.iter().find(|other| other.columns != one.columns) {
            faults.push(PublicationFault::ListsDiffer {
                first: one.publication.clone(),
                second: other.publication.clone(),
                table: table.root.to_sql(),
            });
        }
        let Some(shown) = &one.columns else { return };
        let plain = |name: &&String| {
            table
                .column(name)
                .is_some_and(|column| column.generated == Generated::No)
        };
        let hidden: Vec<_> = columns
            .iter()
            .filter(plain)
            .filter(|name| !shown.contains(name))
            .collect();
        if !hidden.is_empty() {
            faults.push(PublicationFault::ColumnList {
                publication: one.publication.clone(),
                table: table.root.to_sql(),
                columns: list(hidden.into_iter().map(|name| format!("{name:?}"))),
            });
        }
    }

    /// Before PostgreSQL 18 generated columns are never sent; since then a stored one is where the publication says so.
    fn judge_generated(
        &self,
        table: &OutboxTable,
        first: &str,
        carriers: &[&Member],
        columns: &[String],
        version: i32,
        faults: &mut Vec<PublicationFault>,
    ) {
        for column in table
            .columns
            .iter()
            .filter(|column| columns.contains(&column.name))
        {
            let can = version >= 180_000 && column.generated == Generated::Stored;
            let shown =
                |covered: &Covered| covered.columns.as_ref().is_some_and(|c| c.contains(&column.name));
            let sent = can
                && carriers
                    .iter()
                    .all(|carrier| self.of(carrier, true).into_iter().all(shown));
            if column.generated != Generated::No && !sent {
                faults.push(PublicationFault::Generated {
                    column: column.name.clone(),
                    table: table.root.label(),
                    publication: can.then(|| first.to_owned()),
                });
            }
        }
    }
}

/// Whether `leaf`'s rows are published: under its own name or that of a partitioned table above it.
fn covers(table: &OutboxTable, carriers: &[&Member], leaf: &Member) -> bool {
    let mut at = Some(leaf.oid);
    while let Some(oid) = at {
        if carriers.iter().any(|carrier| carrier.oid == oid) {
            return true;
        }
        at = table
            .members
            .iter()
            .find(|member| member.oid == oid)
            .and_then(|member| member.parent);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{TableColumn, TableName};

    fn member(oid: u32, name: &str, parent: Option<u32>, leaf: bool) -> Member {
        Member {
            oid,
            schema: "public".into(),
            name: name.into(),
            leaf,
            parent,
        }
    }

    fn column(name: &str, generated: Generated) -> TableColumn {
        TableColumn {
            name: name.into(),
            type_name: "text".into(),
            type_oid: 25,
            base_type_oid: 25,
            kind: tailpost_outbox::ColumnKind::Text,
            variable: true,
            generated,
        }
    }

    fn set(members: Vec<Member>, columns: Vec<TableColumn>) -> TableSet {
        let mut set = TableSet::default();
        let asked = TableName {
            schema: None,
            name: members[0].name.clone(),
        };
        set.add(OutboxTable {
            asked,
            root: members[0].clone(),
            members,
            columns,
        });
        set
    }

    fn plain() -> TableSet {
        set(
            vec![member(1, "ob", None, true)],
            vec![
                column("id", Generated::No),
                column("payload", Generated::No),
                column("g", Generated::Stored),
            ],
        )
    }

    fn partitioned() -> TableSet {
        let members = vec![
            member(1, "ob", None, false),
            member(2, "ob_a", Some(1), true),
            member(3, "ob_b", Some(1), false),
            member(4, "ob_b1", Some(3), true),
        ];
        set(members, vec![column("id", Generated::No)])
    }

    fn publication(name: &str) -> Publication {
        Publication {
            name: name.into(),
            all_tables: false,
            insert: true,
            others: vec![],
            via_root: false,
        }
    }

    fn covered(publication: &str, name: &str) -> Covered {
        Covered {
            publication: publication.into(),
            schema: "public".into(),
            name: name.into(),
            columns: Some(vec!["id".into(), "payload".into()]),
            row_filter: None,
        }
    }

    fn faults(
        publications: &Publications,
        tables: &TableSet,
        columns: &[&str],
        version: i32,
    ) -> Vec<PublicationFault> {
        let names: Vec<String> = publications.found.iter().map(|p| p.name.clone()).collect();
        let columns: Vec<String> = columns.iter().map(|name| (*name).to_owned()).collect();
        publications.faults(&names, tables, &columns, version)
    }

    #[test]
    fn a_publication_that_is_not_there_is_named_with_the_statement_that_makes_it() {
        let found = Publications::default().faults(&["a\"b".into()], &plain(), &[], 180_000);
        assert_eq!(
            found[0].statement().as_deref(),
            Some(r#"CREATE PUBLICATION "a""b" FOR TABLE "public"."ob" WITH (publish = 'insert')"#)
        );
    }

    #[test]
    fn a_publication_without_inserts_keeps_what_else_it_publishes_when_mended() {
        let mut p = publication("p");
        p.insert = false;
        p.others = vec!["update", "delete"];
        let all = Publications {
            found: vec![p],
            covered: vec![covered("p", "ob")],
        };
        let found = faults(&all, &plain(), &["id"], 150_000);
        assert_eq!(
            found[0].statement().as_deref(),
            Some(r#"ALTER PUBLICATION "p" SET (publish = 'insert, update, delete')"#)
        );
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn a_row_filter_is_a_fault_unless_another_publication_shows_all_rows() {
        let mut filtered = covered("p", "ob");
        filtered.row_filter = Some("(id > 5)".into());
        let mut all = Publications {
            found: vec![publication("p")],
            covered: vec![filtered],
        };
        assert!(matches!(
            faults(&all, &plain(), &["id"], 150_000)[..],
            [PublicationFault::RowFilter { .. }]
        ));
        all.found.push(publication("q"));
        all.covered.push(covered("q", "ob"));
        assert_eq!(faults(&all, &plain(), &["id"], 150_000), []);
    }

    #[test]
    fn a_hidden_column_is_a_fault_only_when_it_is_mapped() {
        let mut short = covered("p", "ob");
        short.columns = Some(vec!["id".into()]);
        let all = Publications {
            found: vec![publication("p")],
            covered: vec![short],
        };
        assert_eq!(faults(&all, &plain(), &["id", "absent"], 150_000), []);
        let found = faults(&all, &plain(), &["id", "payload"], 150_000);
        assert!(
            matches!(&found[..], [PublicationFault::ColumnList { columns, .. }] if columns == "\"payload\"")
        );
    }

    #[test]
    fn two_column_lists_of_one_table_are_a_fault() {
        let mut short = covered("q", "ob");
        short.columns = Some(vec!["id".into()]);
        let all = Publications {
            found: vec![publication("p"), publication("q")],
            covered: vec![covered("p", "ob"), short],
        };
        assert!(matches!(
            faults(&all, &plain(), &["id"], 150_000)[..],
            [PublicationFault::ListsDiffer { .. }]
        ));
    }

    #[test]
    fn a_partition_is_covered_under_its_own_name_or_that_of_any_parent() {
        let all = |names: &[&str]| Publications {
            found: vec![publication("p")],
            covered: names.iter().map(|name| covered("p", name)).collect(),
        };
        assert_eq!(faults(&all(&["ob"]), &partitioned(), &["id"], 150_000), []);
        assert_eq!(
            faults(&all(&["ob_a", "ob_b1"]), &partitioned(), &["id"], 150_000),
            []
        );
        assert_eq!(
            faults(&all(&["ob_a", "ob_b"]), &partitioned(), &["id"], 150_000),
            []
        );
        let found = faults(&all(&["ob_a"]), &partitioned(), &["id"], 150_000);
        assert!(
            matches!(&found[..], [PublicationFault::NotCovered { what, .. }] if what == "partition public.ob_b1")
        );
    }

    #[test]
    fn a_generated_column_is_a_fault_unless_postgresql_18_publishes_it() {
        let mut shown = covered("p", "ob");
        shown.columns = Some(vec!["id".into(), "payload".into(), "g".into()]);
        let all = Publications {
            found: vec![publication("p")],
            covered: vec![shown],
        };
        assert!(matches!(
            faults(&all, &plain(), &["g"], 170_000)[..],
            [PublicationFault::Generated { .. }]
        ));
        assert_eq!(faults(&all, &plain(), &["g"], 180_000), []);
        let all = Publications {
            found: vec![publication("p")],
            covered: vec![covered("p", "ob")],
        };
        let found = faults(&all, &plain(), &["g"], 180_000);
        assert_eq!(
            found[0].statement().as_deref(),
            Some(r#"ALTER PUBLICATION "p" SET (publish_generated_columns = stored)"#)
        );
    }
}
