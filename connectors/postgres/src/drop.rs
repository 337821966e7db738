//! `tailpost postgres drop`: removes the slot, so that the server keeps no more log for it, and then the publication. The
//! table stays.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::quote::{quote_identifier, quote_literal};

use crate::PgError;
use crate::catalog::{Field, row};
use crate::check::Role;
use crate::config::PgConfig;
use crate::preflight::Server;
use crate::publication;
use crate::slot::{self, SlotFault};
use crate::tables::{TableName, list};

/// What there is to drop.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DropPlan {
    /// What is dropped and the statement that does it, in order.
    pub steps: Vec<(String, String)>,
    /// What is named and stays, with the reason.
    pub kept: Vec<String>,
}

/// Why nothing is dropped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DropFault {
    /// The publication would be left over, and the slot be gone.
    #[error("role {role:?} cannot drop publication {publication:?}: it belongs to role {owner:?}")]
    NotOwner {
        /// The session's role.
        role: String,
        /// Which publication.
        publication: String,
        /// Whose it is.
        owner: String,
    },
}

impl DropFault {
    /// The sentence that tells how to mend it.
    pub fn hint(&self) -> String {
        match self {
            Self::NotOwner {
                publication, owner, ..
            } => format!(
                "nothing was dropped: run drop as role {owner:?} with REPLICATION, or as a superuser; or let one of them \
                 run DROP PUBLICATION {} and run drop again",
                quote_identifier(publication)
            ),
        }
    }
}

/// Finds what `config` names, and judges whether it may go and whether the role may drop all of it: a plan that would
/// break off half-way is refused.
///
/// # Errors
/// [`PgError::SlotBusy`] while somebody streams from the slot; a slot that is not ours ([`SlotFault`]); a role that may
/// not drop the slot ([`crate::preflight::ServerFault`]) or the publication ([`DropFault`]); what the queries raise.
pub async fn plan(sql: &SqlSession, config: &PgConfig) -> Result<DropPlan, PgError> {
    let server = Server::read(sql).await?;
    let role = Role::read(sql).await?;
    let mut plan = DropPlan::default();
    match slot::read(sql, &config.slot, server.version_num).await? {
        None => plan.kept.push(format!("slot {} does not exist", config.slot)),
        Some(slot) => {
            if let Some(pid) = slot.active_pid {
                let holder = slot::holder(sql, pid).await?;
                return Err(PgError::SlotBusy {
                    slot: slot.name,
                    holder,
                });
            }
            // One of another plugin, database or kind is somebody else's.
            let foreign = |fault: &SlotFault| {
                !matches!(fault, SlotFault::TwoPhase { .. } | SlotFault::Unfinished { .. })
            };
            if let Some(fault) = slot.faults(&server.database).into_iter().find(foreign) {
                return Err(fault.into());
            }
            role.judge()?;
            let statement = format!(
                "SELECT pg_catalog.pg_drop_replication_slot({})",
                quote_literal(&slot.name)
            );
            plan.steps.push((format!("slot {}", slot.name), statement));
        }
    }
    publications(sql, config, &server, &role, &mut plan).await?;
    Ok(plan)
}

async fn publications(
    sql: &SqlSession,
    config: &PgConfig,
    server: &Server,
    role: &Role,
    plan: &mut DropPlan,
) -> Result<(), PgError> {
    let there = publication::read(sql, &config.publications, server.version_num).await?;
    for name in &config.publications {
        let Some(publication) = there.found.iter().find(|found| found.name == *name) else {
            plan.kept.push(format!("publication {name} does not exist"));
            continue;
        };
        let ours = ours(sql, config).await?;
        let others = there
            .covered
            .iter()
            .filter(|covered| covered.publication == *name)
            .map(|covered| (covered.schema.clone(), covered.name.clone()))
            .filter(|table| !ours.contains(table));
        let others = list(others.map(|(schema, name)| {
            TableName {
                schema: Some(schema),
                name,
            }
            .to_string()
        }));
        if publication.all_tables || !others.is_empty() {
            let what = if publication.all_tables {
                "all tables"
            } else {
                &others
            };
            plan.kept
                .push(format!("publication {name} stays: it covers {what} too"));
        } else {
            owned(sql, name, role).await?;
            let statement = format!("DROP PUBLICATION {}", quote_identifier(name));
            plan.steps.push((format!("publication {name}"), statement));
        }
    }
    Ok(())
}

/// Refuses a publication that the role may not drop.
async fn owned(sql: &SqlSession, publication: &str, role: &Role) -> Result<(), PgError> {
    const OWNER: &str = "
        SELECT pg_catalog.pg_has_role(p.pubowner, 'USAGE'), pg_catalog.pg_get_userbyid(p.pubowner)::text
          FROM pg_catalog.pg_publication p WHERE p.pubname = $1::text::pg_catalog.name";
    let row = row(sql, OWNER, &[&publication]).await?;
    if role.superuser || row.field(0)? {
        return Ok(());
    }
    Err(DropFault::NotOwner {
        role: role.name.clone(),
        publication: publication.to_owned(),
        owner: row.field(1)?,
    }
    .into())
}

/// Schema and name of every relation of our tables that still exists.
async fn ours(sql: &SqlSession, config: &PgConfig) -> Result<Vec<(String, String)>, PgError> {
    let mut ours = Vec::new();
    for name in &config.tables {
        match crate::tables::resolve(sql, std::slice::from_ref(name)).await {
            Ok(set) => ours.extend(
                set.tables()
                    .iter()
                    .flat_map(|table| &table.members)
                    .map(|m| (m.schema.clone(), m.name.clone())),
            ),
            // A table that is gone or unfit is in no publication.
            Err(PgError::Table(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(ours)
}

/// Drops, in order, telling `done` after each step.
///
/// # Errors
/// The server's; what was dropped before stays dropped, and a second run goes on.
pub async fn apply(sql: &SqlSession, plan: &DropPlan, mut done: impl FnMut(&str)) -> Result<(), PgError> {
    for (what, statement) in &plan.steps {
        sql.client().batch_execute(statement).await?;
        done(what);
    }
    Ok(())
}
