//! The outbox tables: their names as typed, and what the catalog says of them.
//!
//! A partitioned table stands for its whole tree: the stream names the leaf that a row went to, or the root where the
//! publication says `publish_via_partition_root`. Both names match.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::str::FromStr;

use tailpost_database::postgres::SqlSession;
use tailpost_outbox::ColumnKind;
use tailpost_pgoutput::quote::quote_identifier;

use crate::PgError;
use crate::catalog::{Field, rows};
use crate::relations::user_kind;

/// A table's name as an operator types it: `outbox_event`, `sales.outbox_event`, `"My Schema"."T"`. Without quotes it is
/// folded to lower case, as PostgreSQL does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TableName {
    /// Schema; `None` is resolved by the role's `search_path`.
    pub schema: Option<String>,
    /// Name.
    pub name: String,
}

/// Why a text is not a table's name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableNameError {
    /// A part is empty.
    #[error("a part of the table name is empty")]
    Empty,
    /// A quote is open at the end.
    #[error("the table name has an open double quote")]
    OpenQuote,
    /// More than schema and name.
    #[error("the table name has more than two parts")]
    TooManyParts,
    /// A part is over the length that PostgreSQL keeps.
    #[error("a part of the table name is {length} bytes long, at most 63 are allowed")]
    TooLong {
        /// Its length, bytes.
        length: usize,
    },
    /// A character that needs quotes.
    #[error("the table name contains {character:?}, which only a name in double quotes may")]
    NeedsQuotes {
        /// The first such.
        character: char,
    },
}

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<Self, TableNameError> {
        let mut parts = split_parts(text.trim_matches(|c: char| c.is_ascii_whitespace()))?;
        let name = parts.pop().ok_or(TableNameError::Empty)?;
        let schema = parts.pop();
        if !parts.is_empty() {
            return Err(TableNameError::TooManyParts);
        }
        Ok(Self { schema, name })
    }
}

impl fmt::Display for TableName {
    /// Prints it so that PostgreSQL and [`TableName::from_str`] read the same name again, with quotes only where needed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{}.", plain_or_quoted(schema))?;
        }
        f.write_str(&plain_or_quoted(&self.name))
    }
}

impl TableName {
    /// Returns the name as SQL, every part quoted.
    pub fn to_sql(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quote_identifier(schema), quote_identifier(&self.name)),
            None => quote_identifier(&self.name),
        }
    }
}

/// One relation of a table's tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Object id.
    pub oid: u32,
    /// Schema.
    pub schema: String,
    /// Name.
    pub name: String,
    /// Rows live in it: it is not partitioned itself.
    pub leaf: bool,
    /// The relation that it is a partition of, inside the tree or above it.
    pub parent: Option<u32>,
}

impl Member {
    /// Returns schema and name as SQL, quoted.
    pub fn to_sql(&self) -> String {
        format!(
            "{}.{}",
            quote_identifier(&self.schema),
            quote_identifier(&self.name)
        )
    }

    /// Returns schema and name for people, quoted only where needed.
    pub fn label(&self) -> String {
        format!(
            "{}.{}",
            plain_or_quoted(&self.schema),
            plain_or_quoted(&self.name)
        )
    }
}

/// A column as the catalog has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableColumn {
    /// Name.
    pub name: String,
    /// Type, as `format_type` prints it.
    pub type_name: String,
    /// Type's object id; a domain's own.
    pub type_oid: u32,
    /// Object id of the type below all domains; else as `type_oid`.
    pub base_type_oid: u32,
    /// What it holds.
    pub kind: ColumnKind,
    /// Its values differ in length.
    pub variable: bool,
    /// Computed by the server.
    pub generated: Generated,
}

/// Whether the server computes a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generated {
    /// It does not.
    No,
    /// When the row is written.
    Stored,
    /// When the row is read; never in the log.
    Virtual,
}

/// A table that was asked for, found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutboxTable {
    /// As asked for.
    pub asked: TableName,
    /// The table itself: a plain table, or the root that was named.
    pub root: Member,
    /// The root and, where it is partitioned, everything below it.
    pub members: Vec<Member>,
    /// Columns of the root, in order.
    pub columns: Vec<TableColumn>,
}

impl OutboxTable {
    /// The relations that rows live in.
    pub fn leaves(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.leaf)
    }

    /// Whether it is partitioned.
    pub fn partitioned(&self) -> bool {
        !self.root.leaf
    }

    /// Finds a column.
    pub fn column(&self, name: &str) -> Option<&TableColumn> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// What makes a table unfit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TableFault {
    /// No such table, for this role.
    #[error("table {table} does not exist in this database")]
    Missing {
        /// As asked for.
        table: String,
    },
    /// A view, a foreign table, a sequence.
    #[error("{table} is a {kind}: its rows are not in the log")]
    Kind {
        /// Which.
        table: String,
        /// What it is.
        kind: &'static str,
    },
    /// Unlogged or temporary.
    #[error("table {table} is {persistence}: its rows are not in the log")]
    Persistence {
        /// Which, quoted as SQL.
        table: String,
        /// What it is.
        persistence: &'static str,
    },
    /// Columns that the mapping cannot do without are not there.
    #[error("table {table} has no column {columns}")]
    Columns {
        /// Which.
        table: String,
        /// The names, separated by commas.
        columns: String,
    },
    /// Two `--table`s share a relation.
    #[error("tables {first} and {second} are one table, or one is a partition of the other")]
    Overlap {
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
}

impl TableFault {
    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        match self {
            Self::Missing { .. } => {
                "check --table (schema-qualify it unless it is in the role's search_path) and the database in --source, \
                 or make it with `tailpost postgres init --create-table`"
                    .into()
            }
            Self::Kind { .. } => "name a table whose rows are stored here with --table".into(),
            Self::Persistence { table, persistence: "unlogged" } => {
                format!("make its inserts part of the log: ALTER TABLE {table} SET LOGGED")
            }
            Self::Persistence { .. } => "name a permanent table with --table".into(),
            Self::Columns { .. } => {
                "name the columns with --column FIELD=COLUMN and in the templates, or choose the --preset that fits the table".into()
            }
            Self::Overlap { .. } => "name each table once; a partitioned table stands for its partitions".into(),
        }
    }
}

/// The tables that were asked for, resolved: which relations of the stream are ours.
#[derive(Clone, Debug, Default)]
pub struct TableSet {
    tables: Vec<OutboxTable>,
    /// Schema -> names. Only grows: a partition that was detached and dropped may still be named by the backlog.
    names: HashMap<String, HashSet<String>>,
}

impl TableSet {
    /// Demands that each table has all of `columns`.
    ///
    /// # Errors
    /// [`TableFault::Columns`] for the first that has not.
    pub fn demand(&self, columns: &[String]) -> Result<(), TableFault> {
        for table in &self.tables {
            let missing = list(
                columns
                    .iter()
                    .filter(|name| table.column(name).is_none())
                    .cloned(),
            );
            if !missing.is_empty() {
                return Err(TableFault::Columns {
                    table: table.root.label(),
                    columns: missing,
                });
            }
        }
        Ok(())
    }

    /// Whether the relation is one of the tables or of their partitions.
    pub fn matches(&self, schema: &str, name: &str) -> bool {
        self.names.get(schema).is_some_and(|names| names.contains(name))
    }

    /// The tables, in the order that they were asked for.
    pub fn tables(&self) -> &[OutboxTable] {
        &self.tables
    }

    /// Resolves the same names again, for partitions attached meanwhile. Returns whether a name is new. Names once seen
    /// stay. When it fails nothing changes.
    ///
    /// # Errors
    /// As [`resolve`].
    pub async fn refresh(&mut self, sql: &SqlSession) -> Result<bool, PgError> {
        let asked: Vec<TableName> = self.tables.iter().map(|table| table.asked.clone()).collect();
        let fresh = resolve(sql, &asked).await?;
        let before = self.count();
        for (schema, names) in fresh.names {
            self.names.entry(schema).or_default().extend(names);
        }
        self.tables = fresh.tables;
        Ok(self.count() > before)
    }

    /// Adds a table and its members' names.
    pub(crate) fn add(&mut self, table: OutboxTable) {
        for member in &table.members {
            self.names
                .entry(member.schema.clone())
                .or_default()
                .insert(member.name.clone());
        }
        self.tables.push(table);
    }

    fn count(&self) -> usize {
        self.names.values().map(HashSet::len).sum()
    }
}

/// Finds the tables and their partitions, and refuses what never reaches the log.
///
/// # Errors
/// [`TableFault`], and what reading the catalog raises.
pub async fn resolve(sql: &SqlSession, asked: &[TableName]) -> Result<TableSet, PgError> {
    let mut set = TableSet::default();
    let mut owners: BTreeMap<u32, String> = BTreeMap::new();
    for name in asked {
        let table = resolve_one(sql, name).await?;
        for member in &table.members {
            if let Some(first) = owners.insert(member.oid, name.to_string()) {
                return Err(TableFault::Overlap {
                    first,
                    second: name.to_string(),
                }
                .into());
            }
        }
        set.add(table);
    }
    Ok(set)
}

// A qualified name is looked up by join: to_regclass would want USAGE on the schema, which reading the log does not.
const QUALIFIED: &str = "
SELECT c.oid FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname = $1 AND c.relname = $2";

const UNQUALIFIED: &str = "SELECT pg_catalog.to_regclass($1)::pg_catalog.oid";

const RELATIONS: &str = "
SELECT c.oid, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text, i.inhparent
  FROM pg_catalog.pg_class c
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid AND c.relispartition
 WHERE c.oid = $1 OR c.oid IN (SELECT t.relid FROM pg_catalog.pg_partition_tree($1::pg_catalog.oid::pg_catalog.regclass) t)
 ORDER BY c.oid = $1 DESC, n.nspname, c.relname";

const COLUMNS: &str = "
SELECT a.attname::text, pg_catalog.format_type(a.atttypid, a.atttypmod), a.atttypid, a.attgenerated::text,
       b.oid, b.typtype::text, b.typcategory::text, b.typlen < 0
  FROM pg_catalog.pg_attribute a
 CROSS JOIN LATERAL (
       WITH RECURSIVE below(oid) AS (
            SELECT a.atttypid
            UNION ALL
            SELECT t.typbasetype FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid WHERE t.typtype = 'd')
       SELECT t.oid, t.typtype, t.typcategory, t.typlen
         FROM below JOIN pg_catalog.pg_type t ON t.oid = below.oid WHERE t.typtype <> 'd') b
 WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
 ORDER BY a.attnum";

async fn resolve_one(sql: &SqlSession, asked: &TableName) -> Result<OutboxTable, PgError> {
    let missing = || TableFault::Missing {
        table: asked.to_string(),
    };
    let oid = find(sql, asked).await?.ok_or_else(missing)?;
    let found = rows(sql, RELATIONS, &[&oid]).await?;
    let mut members = Vec::with_capacity(found.len());
    for row in &found {
        let (kind, persistence): (String, String) = (row.field(3)?, row.field(4)?);
        let member = Member {
            oid: row.field(0)?,
            schema: row.field(1)?,
            name: row.field(2)?,
            leaf: kind != "p",
            parent: row.field(5)?,
        };
        judge_relation(&member, &kind, &persistence)?;
        members.push(member);
    }
    let root = members.first().cloned().ok_or_else(missing)?;
    let mut columns = Vec::new();
    for row in &rows(sql, COLUMNS, &[&root.oid]).await? {
        columns.push(TableColumn {
            name: row.field(0)?,
            type_name: row.field(1)?,
            type_oid: row.field(2)?,
            base_type_oid: row.field(4)?,
            kind: user_kind(row.field(4)?, row.field(5)?, row.field(6)?),
            variable: row.field(7)?,
            generated: match row.field::<String>(3)?.as_str() {
                "" => Generated::No,
                "v" => Generated::Virtual,
                _ => Generated::Stored,
            },
        });
    }
    Ok(OutboxTable {
        asked: asked.clone(),
        root,
        members,
        columns,
    })
}

async fn find(sql: &SqlSession, asked: &TableName) -> Result<Option<u32>, PgError> {
    let found = match &asked.schema {
        Some(schema) => rows(sql, QUALIFIED, &[schema, &asked.name]).await?,
        None => rows(sql, UNQUALIFIED, &[&asked.to_sql()]).await?,
    };
    found.first().map_or(Ok(None), |row| row.field(0))
}

fn judge_relation(member: &Member, kind: &str, persistence: &str) -> Result<(), TableFault> {
    let table = member.label();
    let kind = match kind {
        "r" | "p" => None,
        "v" => Some("view"),
        "m" => Some("materialized view"),
        "f" => Some("foreign table"),
        "S" => Some("sequence"),
        _ => Some("relation without rows"),
    };
    if let Some(kind) = kind {
        return Err(TableFault::Kind { table, kind });
    }
    let table = member.to_sql();
    match persistence {
        "p" => Ok(()),
        "u" => Err(TableFault::Persistence {
            table,
            persistence: "unlogged",
        }),
        _ => Err(TableFault::Persistence {
            table,
            persistence: "temporary",
        }),
    }
}

/// Splits at the dots outside quotes, unquotes, folds what is not quoted.
fn split_parts(text: &str) -> Result<Vec<String>, TableNameError> {
    let mut parts = Vec::new();
    let mut rest = text;
    loop {
        let (part, after) = take_part(rest)?;
        if part.len() > 63 {
            return Err(TableNameError::TooLong { length: part.len() });
        }
        parts.push(part);
        match after.chars().next() {
            None => return Ok(parts),
            Some('.') => rest = &after[1..],
            Some(character) => return Err(TableNameError::NeedsQuotes { character }),
        }
    }
}

fn take_part(text: &str) -> Result<(String, &str), TableNameError> {
    if let Some(quoted) = text.strip_prefix('"') {
        return take_quoted(quoted);
    }
    let end = text.find(|c: char| !plain(c)).unwrap_or(text.len());
    let (part, after) = text.split_at(end);
    match (part.chars().next(), after.chars().next()) {
        (None, None | Some('.')) => Err(TableNameError::Empty),
        (None, Some(character)) => Err(TableNameError::NeedsQuotes { character }),
        (Some(first), _) if first.is_ascii_digit() || first == '$' => {
            Err(TableNameError::NeedsQuotes { character: first })
        }
        // PostgreSQL folds ASCII letters only, in the encodings that are in use.
        _ => Ok((part.to_ascii_lowercase(), after)),
    }
}

fn take_quoted(text: &str) -> Result<(String, &str), TableNameError> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"').ok_or(TableNameError::OpenQuote)?;
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                part.push('"');
                rest = after;
            }
            None if part.is_empty() => return Err(TableNameError::Empty),
            None => return Ok((part, rest)),
        }
    }
}

fn plain(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '$' || !c.is_ascii()
}

fn plain_or_quoted(name: &str) -> String {
    let first_plain = name.starts_with(|c: char| plain(c) && !c.is_ascii_digit() && c != '$');
    if first_plain && name.chars().all(|c| plain(c) && !c.is_ascii_uppercase()) {
        name.to_owned()
    } else {
        quote_identifier(name)
    }
}

/// Joins names for a message, sorted, each once.
pub(crate) fn list(names: impl IntoIterator<Item = String>) -> String {
    names
        .into_iter()
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(text: &str) -> Result<(Option<String>, String), TableNameError> {
        text.parse::<TableName>().map(|table| (table.schema, table.name))
    }

    #[test]
    fn an_unquoted_name_is_folded_and_a_quoted_one_kept() {
        assert_eq!(parse("Outbox_Event"), Ok((None, "outbox_event".into())));
        assert_eq!(parse("Sales.Outbox"), Ok((Some("sales".into()), "outbox".into())));
        assert_eq!(
            parse(r#""My Schema"."T""#),
            Ok((Some("My Schema".into()), "T".into()))
        );
        assert_eq!(parse(r#"sales."a.b""#), Ok((Some("sales".into()), "a.b".into())));
        assert_eq!(parse(r#""a""b""#), Ok((None, r#"a"b"#.into())));
    }

    #[test]
    fn a_blank_beyond_ascii_belongs_to_the_name_as_in_sql() {
        assert_eq!(parse(" a\u{85} "), Ok((None, "a\u{85}".into())));
        assert_eq!(parse("\u{a0}"), Ok((None, "\u{a0}".into())));
    }

    #[test]
    fn what_sql_would_not_take_as_a_name_is_refused() {
        assert_eq!(parse(""), Err(TableNameError::Empty));
        assert_eq!(parse("a."), Err(TableNameError::Empty));
        assert_eq!(parse(".a"), Err(TableNameError::Empty));
        assert_eq!(parse(r#""""#), Err(TableNameError::Empty));
        assert_eq!(parse("a.b.c"), Err(TableNameError::TooManyParts));
        assert_eq!(parse(r#""a"#), Err(TableNameError::OpenQuote));
        assert_eq!(
            parse(r#""a"b"#),
            Err(TableNameError::NeedsQuotes { character: 'b' })
        );
        assert_eq!(
            parse("a; drop table b"),
            Err(TableNameError::NeedsQuotes { character: ';' })
        );
        assert_eq!(parse("1a"), Err(TableNameError::NeedsQuotes { character: '1' }));
        assert_eq!(
            parse(&"a".repeat(64)),
            Err(TableNameError::TooLong { length: 64 })
        );
    }

    proptest! {
        #[test]
        fn a_printed_name_reads_as_the_same_name(schema in prop::option::of("[^\0]{1,12}"), name in "[^\0]{1,12}") {
            let table = TableName { schema, name };
            prop_assert_eq!(table.to_string().parse::<TableName>(), Ok(table.clone()));
            prop_assert_eq!(table.to_sql().parse::<TableName>(), Ok(table));
        }
    }

    fn member(name: &str, leaf: bool) -> Member {
        Member {
            oid: 1,
            schema: "public".into(),
            name: name.into(),
            leaf,
            parent: None,
        }
    }

    #[test]
    fn a_partition_matches_under_its_root_and_its_own_name() {
        let mut set = TableSet::default();
        set.add(OutboxTable {
            asked: TableName {
                schema: None,
                name: "ob".into(),
            },
            root: member("ob", false),
            members: vec![member("ob", false), member("ob_2024", true)],
            columns: Vec::new(),
        });
        assert!(set.matches("public", "ob") && set.matches("public", "ob_2024"));
        assert!(!set.matches("public", "ob_2025") && !set.matches("other", "ob"));
    }

    #[test]
    fn a_relation_whose_rows_never_reach_the_log_is_refused() {
        assert_eq!(judge_relation(&member("ob", true), "r", "p"), Ok(()));
        assert!(matches!(
            judge_relation(&member("ob", true), "v", "p"),
            Err(TableFault::Kind { .. })
        ));
        assert!(matches!(
            judge_relation(&member("ob", true), "r", "u"),
            Err(TableFault::Persistence { .. })
        ));
        assert!(matches!(
            judge_relation(&member("ob", true), "r", "t"),
            Err(TableFault::Persistence { .. })
        ));
    }
}
