//! Keeps the session of the temporary slot: the slot lives as long as it does.

use std::time::Duration;

use tailpost_pgoutput::Lsn;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::sleep;
use tracing::warn;

use super::{BackfillFault, copy_statement};
use crate::PgError;
use crate::init::failover_statement;
use crate::session::Session;
use crate::tasks::Task;

/// How often the session is used, so that nothing between takes it for dead.
const WAKE_EVERY: Duration = Duration::from_secs(10);

/// A task that owns the session. Dropping it closes the session.
#[derive(Debug)]
pub(super) struct Keeper {
    /// Where the slot begins.
    pub(super) lsn: Lsn,
    orders: mpsc::Sender<Order>,
    alive: watch::Receiver<()>,
    _task: Task,
}

/// To make the slot.
#[derive(Debug)]
struct Order {
    slot: String,
    failover: bool,
    answer: oneshot::Sender<Result<(), PgError>>,
}

impl Keeper {
    pub(super) fn spawn(session: Session, temporary: String, lsn: Lsn) -> Self {
        let (orders, taken) = mpsc::channel(1);
        let (living, alive) = watch::channel(());
        Self {
            lsn,
            orders,
            alive,
            _task: Task::spawn(keep(session, temporary, taken, living)),
        }
    }

    /// A channel that closes when the session is lost.
    pub(super) fn alive(&self) -> watch::Receiver<()> {
        self.alive.clone()
    }

    /// Makes `slot` of the temporary slot, and ends.
    pub(super) async fn complete(self, slot: &str, failover: bool) -> Result<Lsn, PgError> {
        let (answer, answered) = oneshot::channel();
        let order = Order {
            slot: slot.into(),
            failover,
            answer,
        };
        self.orders
            .send(order)
            .await
            .map_err(|_| BackfillFault::SlotLost)?;
        answered.await.map_err(|_| BackfillFault::SlotLost)??;
        Ok(self.lsn)
    }
}

/// Nothing is cancelled in the middle of a query: the select only waits.
async fn keep(
    mut session: Session,
    temporary: String,
    mut orders: mpsc::Receiver<Order>,
    living: watch::Sender<()>,
) {
    loop {
        tokio::select! {
            order = orders.recv() => {
                if let Some(Order { slot, failover, answer }) = order {
                    let made = make(&mut session, &temporary, &slot, failover).await;
                    // Nobody waits any more where the caller was dropped.
                    drop(answer.send(made));
                }
                return;
            }
            () = sleep(WAKE_EVERY) => {
                if let Err(error) = session.simple_query("SELECT 1").await {
                    warn!(%error, "the session of the temporary slot is lost");
                    drop(living);
                    return;
                }
            }
        }
    }
}

async fn make(session: &mut Session, temporary: &str, slot: &str, failover: bool) -> Result<(), PgError> {
    session.simple_query(&copy_statement(temporary, slot)).await?;
    if failover {
        session.simple_query(&failover_statement(slot)).await?;
    }
    Ok(())
}
