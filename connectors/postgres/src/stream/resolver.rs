//! Judges an announced relation: is it one of ours, and what do its columns hold? What the stream does not say, the
//! catalog does, asked once at each announcement and never for a row.

use std::collections::BTreeSet;
use std::sync::Arc;

use tailpost_outbox::ColumnKind;
use tailpost_pgoutput::Relation;
use tokio::sync::Mutex;
use tracing::warn;

use crate::PgError;
use crate::relations::Relations;
use crate::side::Side;
use crate::tables::{OutboxTable, TableSet};

/// The catalog's side of relations.
#[derive(Debug)]
pub(crate) struct Resolver {
    pub(crate) side: Arc<Side>,
    /// Grows over all streams of the source: a partition that was dropped meanwhile is known by the name it had.
    pub(crate) tables: Arc<Mutex<TableSet>>,
}

impl Resolver {
    /// Tells whether `relation` is an outbox table, and if so teaches `relations` its types. Cancel-safe: it may be asked
    /// again.
    ///
    /// # Errors
    /// The SQL session's, and faults of the tables found anew.
    pub(crate) async fn judge(
        &self,
        relation: &Relation,
        relations: &mut Relations,
    ) -> Result<bool, PgError> {
        if !self.is_ours(relation).await? {
            return Ok(false);
        }
        let unknown = relations.unknown_types(relation);
        if unknown.is_empty() {
            return Ok(true);
        }
        let kinds = self.side.kinds(&unknown).await?;
        for oid in unknown {
            if !kinds.contains_key(&oid) {
                warn!(
                    table = %format_args!("{}.{}", relation.namespace, relation.name),
                    type_oid = oid,
                    "the type of a column was dropped; its text is taken as it is"
                );
            }
            relations.learn(oid, kinds.get(&oid).copied().unwrap_or(ColumnKind::Other));
        }
        Ok(true)
    }

    async fn is_ours(&self, relation: &Relation) -> Result<bool, PgError> {
        let mut tables = self.tables.lock().await;
        if tables.matches(&relation.namespace, &relation.name) {
            return Ok(true);
        }
        // It may be a partition that was attached since.
        tables.refresh(&*self.side.session().await?).await?;
        if tables.matches(&relation.namespace, &relation.name) {
            return Ok(true);
        }
        let Some(parent) = tables
            .tables()
            .iter()
            .find(|table| may_be_partition(table, relation))
        else {
            return Ok(false);
        };
        let dropped = !self.side.exists(relation.id).await?;
        let name = format_args!("{}.{}", relation.namespace, relation.name);
        if dropped {
            warn!(relation = %name, table = %parent.asked, "a table that was dropped since has the columns of the partitioned outbox table; \
                   its rows are published as those of a partition");
        } else {
            warn!(relation = %name, table = %parent.asked, "a table has the columns of the partitioned outbox table and is none of its \
                   partitions; its rows are passed");
        }
        Ok(dropped)
    }
}

/// Rows of a partition that was detached or dropped may still be in the log. All that is left to know it by is its shape.
fn may_be_partition(table: &OutboxTable, relation: &Relation) -> bool {
    let names: BTreeSet<&str> = relation
        .columns
        .iter()
        .map(|column| column.name.as_str())
        .collect();
    table.partitioned() && names == table.columns.iter().map(|column| column.name.as_str()).collect()
}
