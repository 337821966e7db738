//! What the loop does about the sink: answers and losses.

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::time::Instant;

use super::relay::Relay;
use super::report::{describe, poison_failure};
use crate::backoff::COMPLAINTS;
use crate::core::Loss;
use crate::publisher::{Happened, Publisher};
use crate::{Disposition, Failure, Link, Outcome, Sink};

impl<P: crate::Position, M: FnMut(&Row) -> Result<Mapped, MapError>> Relay<P, M> {
    pub(crate) fn on_sink<K: Sink>(
        &mut self,
        happened: Happened,
        outcomes: &mut Vec<Outcome>,
        publisher: &mut Publisher<K>,
    ) {
        match happened {
            Happened::Outcomes => self.on_outcomes(outcomes),
            Happened::Opened => {
                self.sink_opened_once = true;
                self.sink_complained = None;
                self.progress.update(|state| state.sink = Link::Connected);
            }
            Happened::Failed(failure) => {
                let at_start = !self.sink_opened_once;
                self.on_sink_failure(failure, at_start, publisher);
            }
            Happened::Lost(failure) => {
                // What was answered before the loss counts.
                self.on_outcomes(outcomes);
                self.progress.sink_losses.add(1);
                self.lose(&failure);
                let at_start = !self.core.confirmed_once();
                self.on_sink_failure(failure, at_start, publisher);
            }
        }
    }

    pub(crate) fn on_outcomes(&mut self, outcomes: &mut Vec<Outcome>) {
        let now = Instant::now();
        let mut confirmed = 0;
        for outcome in outcomes.drain(..) {
            match &outcome {
                Outcome::Confirmed(_) => confirmed += 1,
                Outcome::Returned { seq, reason } => {
                    self.progress.returned.add(1);
                    self.complain(*seq, reason, now);
                }
                Outcome::Nacked(seq) => {
                    self.progress.nacked.add(1);
                    self.complain(*seq, "refused (nack)", now);
                }
                Outcome::Blocked { reason } => {
                    tracing::warn!(%reason, "the broker blocks publishers");
                    self.progress.update(|state| state.blocked = Some(reason.clone()));
                }
                Outcome::Unblocked => {
                    tracing::info!("the broker reads again");
                    self.progress.update(|state| state.blocked = None);
                }
            }
            self.core.outcome(outcome, now);
        }
        if confirmed > 0 {
            self.progress.confirmed.add(confirmed);
            self.source_backoff.reset();
            self.sink_backoff.reset();
            self.progress.update(|state| {
                state.last_confirm = Some(now);
                state.last_confirm_at = Some(std::time::SystemTime::now());
            });
        }
    }

    /// Says that an event was not taken: the first time at once, then once in a while.
    pub(crate) fn complain(&mut self, seq: crate::Seq, reason: &str, now: Instant) {
        if self.next_complaint > now {
            return;
        }
        if let Some(event) = self.core.describe(seq) {
            self.next_complaint = now + COMPLAINTS;
            tracing::warn!(
                aggregate = %event.aggregate, exchange = %event.exchange, routing_key = %event.routing_key,
                position = %event.position, %reason,
                "the broker did not take an event: it is tried again, and its aggregate waits"
            );
        }
    }

    /// The generation is gone: what was in flight goes again.
    pub(crate) fn lose(&mut self, failure: &Failure) {
        let loss = match failure.disposition {
            Disposition::Park => Loss::Poisonous,
            Disposition::Setup => Loss::Message,
            Disposition::Retry { .. } | Disposition::Standby { .. } | Disposition::Halt(_) => {
                Loss::Connection
            }
        };
        if let Some(poison) = self.core.sink_lost(loss, &failure.to_string(), Instant::now()) {
            self.halt(poison_failure(poison));
        }
    }

    pub(crate) fn on_sink_failure<K: Sink>(
        &mut self,
        failure: Failure,
        at_start: bool,
        publisher: &mut Publisher<K>,
    ) {
        let after = match &failure.disposition {
            Disposition::Retry { after } => *after,
            Disposition::Park | Disposition::Standby { .. } => None,
            Disposition::Setup if !at_start => None,
            Disposition::Setup | Disposition::Halt(_) => return self.halt(failure),
        };
        let why = describe(&failure);
        let was_up = self.sink_complained.is_none_or(|at| at.elapsed() >= COMPLAINTS);
        self.progress.update(|state| {
            state.blocked = None;
            state.sink = Link::Retrying { why };
        });
        if was_up {
            self.sink_complained = Some(Instant::now());
            let hint = tracing::field::display(failure.hint.as_deref().unwrap_or_default());
            tracing::warn!(error = %failure, hint, "no broker; trying again");
        }
        publisher.open_after(self.sink_backoff.next(after));
    }
}
