//! The store task: stores the positions that the relay hands it, and only then lets the source report them (law 2). This
//! is the one place where a position is stored.

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::{Disposition, Failure, OffsetStore};

/// What became of a store.
pub(crate) enum Stored<P> {
    /// It is durable.
    Done(P),
    /// It failed and is being tried again; the old offset stands.
    Failing(Failure),
    /// It failed for good.
    Refused(Failure),
}

pub(crate) struct Keeper<P> {
    positions: mpsc::Sender<P>,
    pub(crate) results: mpsc::Receiver<Stored<P>>,
    task: JoinHandle<()>,
}

impl<P: crate::Position> Keeper<P> {
    /// Starts the task; `stored` is what the source reports from.
    pub(crate) fn start<O: OffsetStore<Position = P>>(store: O, stored: watch::Sender<Option<P>>) -> Self {
        let (positions, queue) = mpsc::channel(1);
        let (results_out, results) = mpsc::channel(4);
        let task = tokio::spawn(keep(store, stored, queue, results_out));
        Self {
            positions,
            results,
            task,
        }
    }

    /// Hands over a position; the last one must have been answered. Tells whether the task took it.
    pub(crate) fn store(&self, position: P) -> bool {
        self.positions.try_send(position).is_ok()
    }
}

impl<P> Drop for Keeper<P> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep<O: OffsetStore>(
    mut store: O,
    stored: watch::Sender<Option<O::Position>>,
    mut queue: mpsc::Receiver<O::Position>,
    results: mpsc::Sender<Stored<O::Position>>,
) {
    while let Some(position) = queue.recv().await {
        let mut backoff = Backoff::default();
        let result = loop {
            match store.store(&position).await {
                Ok(()) => {
                    stored.send_replace(Some(position.clone()));
                    break Stored::Done(position);
                }
                Err(failure) => match failure.disposition {
                    Disposition::Retry { after } => {
                        if results.send(Stored::Failing(failure)).await.is_err() {
                            return;
                        }
                        sleep(backoff.next(after)).await;
                    }
                    Disposition::Standby { .. }
                    | Disposition::Park
                    | Disposition::Setup
                    | Disposition::Halt(_) => {
                        break Stored::Refused(failure);
                    }
                },
            }
        };
        if results.send(result).await.is_err() {
            return;
        }
    }
}
