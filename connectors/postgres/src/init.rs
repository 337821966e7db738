//! `tailpost postgres init`: makes the first position. Publication first, then the slot: a slot never shows what was
//! written before its publication existed.
//!
//! Everything is planned before anything is made, and each step leaves what fits already as it is: a second run after one
//! that broke off goes on where it stopped.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::quote::{quote_identifier, quote_literal};
use tracing::info;

use crate::PgError;
use crate::catalog::{Field, row, rows};
use crate::check::Role;
use crate::config::PgConfig;
use crate::preflight::{Server, ServerFault};
use crate::publication::{self, PublicationFault};
use crate::schema;
use crate::session::Session;
use crate::slot::{self, Slot};
use crate::tables::{TableFault, TableName, TableSet, list, resolve};

/// What `init` is to make.
#[derive(Clone, Copy, Debug, Default)]
pub struct InitOptions<'a> {
    /// Make the tables that are missing.
    pub create_table: bool,
    /// Make a failover slot.
    pub failover: bool,
    /// Publish the rows that are there already.
    pub backfill: bool,
    /// Nothing is made: a right that the role lacks is a note of the plan, not a fault.
    pub dry_run: bool,
    /// Columns that the mapping cannot do without.
    pub columns: &'a [String],
}

/// Why `init` refuses, though each thing by itself may be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InitFault {
    /// The slot is older than its publication would be.
    #[error("slot {slot:?} exists, but publication {publication:?} does not")]
    SlotWithoutPublication {
        /// Its name.
        slot: String,
        /// Which publication.
        publication: String,
    },
    /// Rows before the slot's position were the business of whoever made it.
    #[error("slot {slot:?} exists already, so that --backfill cannot begin where it begins")]
    BackfillAfterSlot {
        /// Its name.
        slot: String,
    },
    /// The table that `init` makes does not have what the mapping reads.
    #[error(
        "table {table} cannot be made: the mapping needs {columns}, which the table that init makes lacks"
    )]
    ColumnsNotMade {
        /// Which table.
        table: String,
        /// Which columns.
        columns: String,
    },
    /// PostgreSQL before 17.
    #[error("server has version {version}, failover slots need PostgreSQL 17 or later")]
    FailoverVersion {
        /// Its version, as it prints it.
        version: String,
    },
}

impl InitFault {
    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        match self {
            Self::SlotWithoutPublication { .. } => {
                "the slot cannot show what was written before the publication exists, and older servers fail on it: \
                 `tailpost postgres drop`, then `tailpost postgres init --backfill`"
                    .into()
            }
            Self::BackfillAfterSlot { .. } => {
                "leave --backfill out to keep the slot; to publish the whole table again, `tailpost postgres drop` first"
                    .into()
            }
            Self::ColumnsNotMade { .. } => {
                "nothing was made: make the table by hand with these columns and leave --create-table out, or leave \
                 --preset and --column out, so that the mapping is that of the table that init makes"
                    .into()
            }
            Self::FailoverVersion { .. } => "leave --failover out, or upgrade the server".into(),
        }
    }
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is there and fits.
    Kept {
        /// What.
        what: String,
    },
    /// A statement for an SQL session.
    Sql {
        /// What it makes.
        what: String,
        /// The statement, without a semicolon.
        statement: String,
    },
    /// A command for a replication session.
    Replication {
        /// What it makes.
        what: String,
        /// The command.
        statement: String,
    },
    /// The backfill: a temporary slot, the rows, and the slot as its copy. See [`crate::backfill`].
    Backfill {
        /// What is run, in order.
        statements: Vec<String>,
    },
}

/// What `init` would do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order; a [`Step::Backfill`] is the last.
    pub steps: Vec<Step>,
    /// What keeps this role from doing it; a dry run only.
    pub notes: Vec<String>,
}

impl Plan {
    /// Whether the last step is a backfill, which [`apply`] leaves to its caller.
    pub fn has_backfill(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Backfill { .. }))
    }

    /// Prints the plan as SQL, for `--dry-run`: every statement, and as comments what stays as it is.
    pub fn render(&self) -> String {
        let mut text: String = self
            .notes
            .iter()
            .map(|note| format!("-- note: {note}\n"))
            .collect();
        for step in &self.steps {
            match step {
                Step::Kept { what } => text.push_str(&format!("-- {what} is there and fits\n")),
                Step::Sql { what, statement } => text.push_str(&format!("-- {what}\n{statement};\n")),
                Step::Replication { what, statement } => {
                    text.push_str(&format!("-- {what} (replication session)\n{statement};\n"));
                }
                Step::Backfill { statements } => {
                    text.push_str("-- backfill (replication session, and a transaction beside it)\n");
                    text.extend(statements.iter().map(|statement| format!("{statement};\n")));
                }
            }
        }
        text
    }
}

/// Plans: reads what is there, and finds every reason why it could not work before anything is made.
///
/// # Errors
/// The server, the role, or what is there does not fit: [`ServerFault`], [`InitFault`], [`TableFault`],
/// [`PublicationFault`], [`crate::slot::SlotFault`].
pub async fn plan(sql: &SqlSession, config: &PgConfig, options: &InitOptions<'_>) -> Result<Plan, PgError> {
    let server = Server::read(sql).await?;
    server.judge()?;
    if options.failover && server.version_num < 170_000 {
        return Err(InitFault::FailoverVersion {
            version: server.version,
        }
        .into());
    }
    let role = Role::read(sql).await?;
    let mut notes = Vec::new();
    note(role.judge(), options, &mut notes)?;
    let slot = slot::read(sql, &config.slot, server.version_num).await?;
    let mut steps = Vec::new();
    let (found, missing) = tables(sql, config, options, &mut steps).await?;
    let publication = Publishing {
        sql,
        config,
        server: &server,
        role: &role,
        slot: slot.as_ref(),
    };
    if publication
        .plan(&found, &missing, options.columns, &mut steps)
        .await?
    {
        note(publication.may_publish(&found).await?, options, &mut notes)?;
    }
    match slot {
        Some(slot) => keep_slot(&slot, &server, options, &mut steps)?,
        None => make_slot(sql, config, options, &found, &mut steps).await?,
    }
    Ok(Plan { steps, notes })
}

/// Refuses what the role may not do; a dry run, whose statements another role may run, only notes it.
fn note(
    judged: Result<(), ServerFault>,
    options: &InitOptions<'_>,
    notes: &mut Vec<String>,
) -> Result<(), PgError> {
    match judged {
        Err(fault) if options.dry_run => notes.push(format!("{fault}; {}", fault.hint())),
        judged => judged?,
    }
    Ok(())
}

/// Runs the plan but for a backfill, telling `done` after each step. It stops at the first error; run again it goes on.
/// Making a slot waits, without limit, for transactions that are writing now.
///
/// # Errors
/// The server's.
pub async fn apply(
    sql: &SqlSession,
    config: &PgConfig,
    plan: &Plan,
    mut done: impl FnMut(&Step),
) -> Result<(), PgError> {
    for step in &plan.steps {
        match step {
            Step::Kept { .. } => {}
            Step::Sql { statement, .. } if makes_slot(statement) => {
                tell_who_is_writing(sql).await?;
                sql.client().batch_execute("SET statement_timeout = 0").await?;
                let made = sql.client().batch_execute(statement).await;
                sql.client().batch_execute("RESET statement_timeout").await?;
                made?;
            }
            Step::Sql { statement, .. } => sql.client().batch_execute(statement).await?,
            Step::Replication { statement, .. } => {
                let mut session =
                    Session::connect(&config.url, Some(sql.host()), &config.application_name).await?;
                session.simple_query(statement).await?;
            }
            Step::Backfill { .. } => continue,
        }
        done(step);
    }
    Ok(())
}

fn makes_slot(statement: &str) -> bool {
    statement.contains("pg_create_logical_replication_slot")
}

/// Logs which transactions a new slot will wait for.
pub(crate) async fn tell_who_is_writing(sql: &SqlSession) -> Result<(), PgError> {
    // Every role may see the lock that a transaction with a number holds on it; the rest of pg_stat_activity not.
    const WRITING: &str = "
        SELECT l.pid, extract(epoch FROM pg_catalog.clock_timestamp() - a.xact_start)::pg_catalog.int8
          FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
         WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted
           AND l.pid <> pg_catalog.pg_backend_pid()
         ORDER BY a.xact_start LIMIT 5";
    for row in &rows(sql, WRITING, &[]).await? {
        let (pid, seconds): (i32, Option<i64>) = (row.field(0)?, row.field(1)?);
        let holder = slot::holder(sql, pid).await?;
        info!(%holder, open_seconds = seconds, "the new slot waits for the end of a transaction that writes");
    }
    Ok(())
}

/// Finds the tables, and plans those that are missing.
async fn tables(
    sql: &SqlSession,
    config: &PgConfig,
    options: &InitOptions<'_>,
    steps: &mut Vec<Step>,
) -> Result<(TableSet, Vec<TableName>), PgError> {
    let mut found = Vec::new();
    let mut missing = Vec::new();
    for name in &config.tables {
        match (
            resolve(sql, std::slice::from_ref(name)).await,
            options.create_table,
        ) {
            (Ok(_), _) => found.push(name.clone()),
            (Err(PgError::Table(TableFault::Missing { .. })), true) => {
                let what = format!("table {name}");
                let statement = schema::statements(name)
                    .trim_end()
                    .trim_end_matches(';')
                    .to_owned();
                has_columns(name, &statement, options.columns)?;
                steps.push(Step::Sql { what, statement });
                missing.push(name.clone());
            }
            (Err(error), _) => return Err(error),
        }
    }
    let set = resolve(sql, &found).await?;
    steps.extend(set.tables().iter().map(|table| Step::Kept {
        what: format!("table {}", table.root.label()),
    }));
    Ok((set, missing))
}

/// Refuses a mapping that the table to be made would not fit: what was made would halt the relay at its first event.
fn has_columns(table: &TableName, statement: &str, columns: &[String]) -> Result<(), InitFault> {
    let made: Vec<&str> = statement
        .lines()
        .filter_map(|line| line.trim_start().split_once(' '))
        .map(|(first, _)| first)
        .collect();
    let lacking: Vec<String> = columns
        .iter()
        .filter(|column| !made.contains(&column.as_str()))
        .map(|column| format!("{column:?}"))
        .collect();
    match &lacking[..] {
        [] => Ok(()),
        [only] => Err((format!("column {only}"), table)),
        several => Err((format!("columns {}", several.join(", ")), table)),
    }
    .map_err(|(columns, table)| InitFault::ColumnsNotMade {
        table: table.to_string(),
        columns,
    })
}

/// What planning the publication looks at.
struct Publishing<'a> {
    sql: &'a SqlSession,
    config: &'a PgConfig,
    server: &'a Server,
    role: &'a Role,
    slot: Option<&'a Slot>,
}

impl Publishing<'_> {
    /// Returns whether it is to be made.
    async fn plan(
        &self,
        found: &TableSet,
        missing: &[TableName],
        columns: &[String],
        steps: &mut Vec<Step>,
    ) -> Result<bool, PgError> {
        let names = &self.config.publications;
        let there = publication::read(self.sql, names, self.server.version_num).await?;
        match (&there.found[..], &names[..]) {
            ([], [only]) => self.make(only, found, missing, steps).map(|()| true),
            _ => {
                let faults = there.faults(names, found, columns, self.server.version_num);
                if let Some(fault) = faults.into_iter().next() {
                    return Err(fault.into());
                }
                let covers_all = there.found.iter().any(|p| p.all_tables && p.insert);
                if let (Some(table), false) = (missing.first(), covers_all) {
                    // It cannot cover a table that is still to be made.
                    return Err(PublicationFault::NotCovered {
                        publication: names.first().cloned().unwrap_or_default(),
                        what: format!("table {table}"),
                        table: table.to_sql(),
                    }
                    .into());
                }
                steps.push(Step::Kept {
                    what: format!("publication {}", names.join(", ")),
                });
                Ok(false)
            }
        }
    }

    fn make(
        &self,
        name: &str,
        found: &TableSet,
        missing: &[TableName],
        steps: &mut Vec<Step>,
    ) -> Result<(), PgError> {
        if self.slot.is_some() {
            return Err(InitFault::SlotWithoutPublication {
                slot: self.config.slot.clone(),
                publication: name.to_owned(),
            }
            .into());
        }
        let tables = found.tables().iter().map(|table| table.root.to_sql());
        let tables = list(tables.chain(missing.iter().map(TableName::to_sql)));
        // Under the root's name the rows of a partition are known even when it is gone by the time they are read.
        let root = if found.tables().iter().any(|table| table.partitioned()) {
            ", publish_via_partition_root = true"
        } else {
            ""
        };
        steps.push(Step::Sql {
            what: format!("publication {name}"),
            statement: format!(
                "CREATE PUBLICATION {} FOR TABLE {tables} WITH (publish = 'insert'{root})",
                quote_identifier(name)
            ),
        });
        Ok(())
    }

    /// Whether the role may make the publication of `tables`.
    async fn may_publish(&self, tables: &TableSet) -> Result<Result<(), ServerFault>, PgError> {
        const OWNER: &str = "
            SELECT pg_catalog.pg_has_role(c.relowner, 'USAGE') FROM pg_catalog.pg_class c WHERE c.oid = $1";
        let refuse = |needs: String| ServerFault::NoPublicationRight {
            role: self.role.name.clone(),
            publication: self.config.publications.first().cloned().unwrap_or_default(),
            needs,
        };
        if self.role.superuser {
            return Ok(Ok(()));
        }
        if !self.role.creates {
            return Ok(Err(refuse(format!(
                "CREATE on database {:?}",
                self.server.database
            ))));
        }
        for table in tables.tables() {
            if !row(self.sql, OWNER, &[&table.root.oid]).await?.field::<bool>(0)? {
                return Ok(Err(refuse(format!("to own table {}", table.root.label()))));
            }
        }
        Ok(Ok(()))
    }
}

fn keep_slot(
    slot: &Slot,
    server: &Server,
    options: &InitOptions<'_>,
    steps: &mut Vec<Step>,
) -> Result<(), PgError> {
    slot.judge(&server.database)?;
    if options.backfill {
        return Err(InitFault::BackfillAfterSlot {
            slot: slot.name.clone(),
        }
        .into());
    }
    steps.push(Step::Kept {
        what: format!("slot {}", slot.name),
    });
    if options.failover && !slot.failover {
        steps.push(failover_step(&slot.name));
    }
    Ok(())
}

async fn make_slot(
    sql: &SqlSession,
    config: &PgConfig,
    options: &InitOptions<'_>,
    tables: &TableSet,
    steps: &mut Vec<Step>,
) -> Result<(), PgError> {
    free_places(sql, if options.backfill { 2 } else { 1 }).await?;
    let name = quote_literal(&config.slot);
    if options.backfill {
        let mut statements = vec![
            crate::backfill::create_statement("tailpost_backfill"),
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY".to_owned(),
            "SET TRANSACTION SNAPSHOT '(the exported snapshot)'".to_owned(),
        ];
        statements.extend(
            tables
                .tables()
                .iter()
                .map(|table| format!("SELECT * FROM {}", table.root.to_sql())),
        );
        statements.push("-- when the broker has confirmed every row:\nCOMMIT".to_owned());
        statements.push(crate::backfill::copy_statement("tailpost_backfill", &config.slot));
        if options.failover {
            statements.push(failover_statement(&config.slot));
        }
        steps.push(Step::Backfill { statements });
        return Ok(());
    }
    let arguments = if options.failover {
        format!("{name}, 'pgoutput', false, false, true")
    } else {
        format!("{name}, 'pgoutput'")
    };
    steps.push(Step::Sql {
        what: format!("slot {}", config.slot),
        statement: format!("SELECT pg_catalog.pg_create_logical_replication_slot({arguments})"),
    });
    Ok(())
}

fn failover_step(slot: &str) -> Step {
    Step::Replication {
        what: format!("slot {slot}: failover"),
        statement: failover_statement(slot),
    }
}

pub(crate) fn failover_statement(slot: &str) -> String {
    format!(
        "ALTER_REPLICATION_SLOT {} (FAILOVER true)",
        quote_identifier(slot)
    )
}

async fn free_places(sql: &SqlSession, slots: i64) -> Result<(), PgError> {
    const PLACES: &str = "
        SELECT pg_catalog.current_setting('max_replication_slots')::pg_catalog.int8,
               (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots),
               pg_catalog.current_setting('max_wal_senders')::pg_catalog.int8,
               (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication)";
    let row = row(sql, PLACES, &[]).await?;
    let (max_slots, used_slots, max_senders, senders): (i64, i64, i64, i64) =
        (row.field(0)?, row.field(1)?, row.field(2)?, row.field(3)?);
    if used_slots + slots > max_slots {
        return Err(ServerFault::NoSlotFree { max: max_slots }.into());
    }
    if senders >= max_senders {
        return Err(ServerFault::NoSenderFree { max: max_senders }.into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dry_run_prints_every_statement_and_what_is_kept() {
        let plan = Plan {
            notes: vec!["the role lacks a right".into()],
            steps: vec![
                Step::Kept {
                    what: "table public.ob".into(),
                },
                Step::Sql {
                    what: "publication p".into(),
                    statement: "CREATE PUBLICATION \"p\"".into(),
                },
                failover_step("s"),
            ],
        };
        assert_eq!(
            plan.render(),
            "-- note: the role lacks a right\n-- table public.ob is there and fits\n-- publication p\nCREATE PUBLICATION \"p\";\n\
             -- slot s: failover (replication session)\nALTER_REPLICATION_SLOT \"s\" (FAILOVER true);\n"
        );
        assert!(!plan.has_backfill());
    }

    #[test]
    fn a_mapping_that_the_table_to_be_made_does_not_fit_is_refused_with_the_columns() {
        let table = TableName {
            schema: None,
            name: "ob".into(),
        };
        let statement = schema::statements(&table);
        let columns = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let fits = columns(&["event_id", "aggregate_type", "payload"]);
        assert_eq!(has_columns(&table, &statement, &fits), Ok(()));
        let error = has_columns(
            &table,
            &statement,
            &columns(&["payload", "type", "aggregatetype"]),
        );
        let text = error.expect_err("two are missing").to_string();
        assert!(text.contains("columns \"type\", \"aggregatetype\","), "{text}");
    }
}
