//! What the loop does about the store, and when time has passed.

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::time::Instant;

use super::relay::Relay;
use super::report::describe;
use crate::backoff::GAUGES;
use crate::keeper::Stored;
use crate::publisher::Publisher;
use crate::{Disposition, Failure, Sink};

impl<P: crate::Position, M: FnMut(&Row) -> Result<Mapped, MapError>> Relay<P, M> {
    pub(crate) fn on_stored(&mut self, result: Stored<P>) {
        match result {
            Stored::Done(position) => {
                self.has_offset = true;
                self.core.ledger.stored();
                self.progress.stores.add(1);
                self.progress.update(|state| {
                    state.stored = Some(position.to_string());
                    state.store_failing = None;
                });
            }
            Stored::Failing(failure) => {
                tracing::warn!(error = %failure, "the offset could not be stored; trying again");
                self.core.ledger.failed();
                self.progress
                    .update(|state| state.store_failing = Some(describe(&failure)));
            }
            Stored::Refused(failure) => {
                self.core.ledger.refused();
                self.halt(failure);
            }
        }
    }

    pub(crate) fn on_tick<K: Sink>(&mut self, publisher: &mut Publisher<K>) {
        let now = Instant::now();
        if self.core.confirm_is_overdue(now) && publisher.up().is_some() {
            publisher.take_down();
            let seconds = self.options.confirm_timeout.as_secs();
            let failure = Failure::new(
                format!("a confirm did not come within {seconds} s"),
                Disposition::Retry { after: None },
            );
            self.progress.sink_losses.add(1);
            self.lose(&failure);
            self.on_sink_failure(failure, false, publisher);
        }
        if now >= self.next_gauges {
            self.next_gauges = now + GAUGES;
            self.show_gauges();
        }
    }

    pub(crate) fn show_gauges(&mut self) {
        let progress = &self.progress;
        progress.in_flight.set(self.core.in_flight() as u64);
        progress.unsettled.set(self.core.unsettled() as u64);
        progress.unsettled_bytes.set(self.budget.taken());
        progress.held.set(self.core.held() as u64);
        progress.ahead.set(self.core.ahead() as u64);
        let holding = self.core.holding(self.budget.is_exhausted());
        let mut changed = false;
        let (busy, trouble) = (self.core.unsettled() > 0, self.core.trouble());
        progress.update(|state| {
            state.busy_since = state.busy_since.or(Some(Instant::now())).filter(|_| busy);
            state.trouble = trouble;
            changed = state.holding.is_none() && holding.is_some();
            state.holding.clone_from(&holding);
        });
        if let Some(why) = holding.filter(|_| changed) {
            tracing::warn!("{why}");
        }
    }
}
