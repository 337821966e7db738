//! What the role may do.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::quote::quote_identifier;

use super::{Finding, Status};
use crate::PgError;
use crate::catalog::{Field, row};
use crate::preflight::ServerFault;
use crate::tables::OutboxTable;

/// The role of a session, and what it may do to the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) superuser: bool,
    /// It has REPLICATION, or is a member of `rds_replication`.
    pub(crate) replication: bool,
    /// It may create publications in this database.
    pub(crate) creates: bool,
}

impl Role {
    pub(crate) async fn read(sql: &SqlSession) -> Result<Self, PgError> {
        const ROLE: &str = "
            SELECT r.rolname::text, r.rolsuper,
                   r.rolreplication OR EXISTS (
                       SELECT FROM pg_catalog.pg_roles g
                        WHERE g.rolname = 'rds_replication' AND pg_catalog.pg_has_role(r.oid, g.oid, 'MEMBER')),
                   pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')
              FROM pg_catalog.pg_roles r WHERE r.rolname = current_user";
        let row = row(sql, ROLE, &[]).await?;
        Ok(Self {
            name: row.field(0)?,
            superuser: row.field(1)?,
            replication: row.field(2)?,
            creates: row.field(3)?,
        })
    }

    /// Refuses a role that may not stream.
    pub(crate) fn judge(&self) -> Result<(), ServerFault> {
        if self.superuser || self.replication {
            Ok(())
        } else {
            Err(ServerFault::NoReplication {
                role: self.name.clone(),
            })
        }
    }
}

pub(super) async fn replication(sql: &SqlSession) -> Result<Vec<Finding>, PgError> {
    let role = Role::read(sql).await?;
    let value = match (role.superuser, role.replication) {
        (true, _) => "superuser",
        (false, true) => "REPLICATION",
        (false, false) => "no REPLICATION",
    };
    let what = format!("role {}", role.name);
    let mut findings = vec![match role.judge() {
        Ok(()) => Finding::new(Status::Ok, what, value, "REPLICATION"),
        Err(fault) => Finding::new(Status::Fault, what, value, "REPLICATION").mend(fault.hint()),
    }];
    if role.superuser {
        findings.push(
            Finding::new(Status::Warn, "privileges", "superuser", "no more than it needs")
                .mend("CREATE ROLE tailpost LOGIN REPLICATION; GRANT SELECT on the outbox tables to it"),
        );
    }
    Ok(findings)
}

pub(super) async fn select(sql: &SqlSession, table: &OutboxTable) -> Result<Finding, PgError> {
    const SELECT: &str = "
        SELECT pg_catalog.has_table_privilege(c.oid, 'SELECT')
               AND pg_catalog.has_schema_privilege(c.relnamespace, 'USAGE'), current_user::text
          FROM pg_catalog.pg_class c WHERE c.oid = $1";
    let row = row(sql, SELECT, &[&table.root.oid]).await?;
    let (may, role): (bool, String) = (row.field(0)?, row.field(1)?);
    let value = if may { "granted" } else { "not granted" };
    let role = quote_identifier(&role);
    Ok(Finding::test(
        may,
        Status::Warn,
        format!("SELECT on {}", table.root.label()),
        value,
        "granted, for --backfill",
    )
    .mend(format!(
        "GRANT USAGE ON SCHEMA {} TO {role}; GRANT SELECT ON {} TO {role}",
        quote_identifier(&table.root.schema),
        table.root.to_sql()
    )))
}
