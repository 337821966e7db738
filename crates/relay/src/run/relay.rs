//! What the loop keeps beside the connections, and what each turn does.

use std::sync::Arc;

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::time::{Instant, timeout};

use super::Ending;
use super::report::{poison_failure, show_halt};
use crate::backoff::{Backoff, CLOSE_TIMEOUT, LAST_STORE};
use crate::budget::Budget;
use crate::core::Core;
use crate::intake::Intake;
use crate::keeper::Keeper;
use crate::publisher::Publisher;
use crate::{Cause, Disposition, Failure, OnHalt, Options, Progress, Sink};

/// What the loop keeps beside the connections.
pub(crate) struct Relay<P, M> {
    pub(super) core: Core<P>,
    pub(super) map: M,
    pub(super) options: Options,
    pub(super) budget: Budget,
    pub(super) progress: Arc<Progress>,
    pub(super) source_backoff: Backoff,
    pub(super) sink_backoff: Backoff,
    /// Something is stored: a first start stores where it begins before it publishes anything.
    pub(super) has_offset: bool,
    pub(super) source_up: bool,
    /// The source task may still hand over items.
    pub(super) items_open: bool,
    pub(super) source_opened_once: bool,
    pub(super) sink_opened_once: bool,
    /// When it was last said that there is no broker; `None` since one was there.
    pub(super) sink_complained: Option<Instant>,
    pub(super) stopping: Option<Stopping>,
    /// The source task will hand over nothing more.
    pub(super) intake_ended: bool,
    pub(super) halted: Option<Failure>,
    /// What was read before the halt may still go: the fault lies behind it in the log.
    pub(super) flushes: bool,
    pub(super) halt_seen: bool,
    pub(super) next_gauges: Instant,
    pub(super) next_complaint: Instant,
}

pub(crate) struct Stopping {
    pub(super) deadline: Instant,
}

impl<P: crate::Position, M: FnMut(&Row) -> Result<Mapped, MapError>> Relay<P, M> {
    pub(crate) fn new(
        options: Options,
        map: M,
        budget: Budget,
        progress: Arc<Progress>,
        has_offset: bool,
    ) -> Self {
        let now = Instant::now();
        Self {
            core: Core::new(options.clone(), now),
            map,
            options,
            budget,
            progress,
            source_backoff: Backoff::default(),
            sink_backoff: Backoff::default(),
            has_offset,
            source_up: false,
            items_open: true,
            source_opened_once: false,
            sink_opened_once: false,
            sink_complained: None,
            stopping: None,
            intake_ended: false,
            halted: None,
            flushes: false,
            halt_seen: false,
            next_gauges: now,
            next_complaint: now,
        }
    }

    // --- what each turn does ---

    /// Publishes what may go. Nothing goes while the source, and with it the lock, is lost (law 5), nor before a first
    /// start has stored where it began.
    pub(crate) fn pump<K: Sink>(&mut self, publisher: &mut Publisher<K>) {
        if !self.may_publish() {
            return;
        }
        let Some(sink) = publisher.up() else { return };
        let now = Instant::now();
        while let Some((seq, message)) = self.core.next_publish(now) {
            if let Some(what) = sink.refuse(&message) {
                let poison = self.core.poisoned(seq, &what);
                return self.halt(poison_failure(poison));
            }
            sink.publish(seq, message);
            self.progress.published.add(1);
        }
    }

    pub(crate) fn may_publish(&self) -> bool {
        self.source_up && self.has_offset && (self.halted.is_none() || self.flushes)
    }

    /// Hands a position that is due to the store. A stop waits for no coalescing.
    pub(crate) fn save(&mut self, keeper: &Keeper<P>) {
        if let Some(position) = self.core.ledger.take_due(Instant::now(), self.stopping.is_some())
            && !keeper.store(position)
        {
            self.halt(Failure::new(
                "the store task has ended",
                Disposition::Halt(Cause::Unexpected),
            ));
        }
    }

    /// Whether the run is over: with `Ok` when all is settled and stored.
    pub(crate) fn is_over(&mut self) -> Option<Result<(), String>> {
        let stopping = self.stopping.as_ref()?;
        let settled = match (&self.halted, self.flushes) {
            (None, _) => self.core.is_settled(),
            // The open transaction's end is never read.
            (Some(_), true) => self.core.unsettled() == 0,
            // The culprit never settles: what is in flight is waited for, no more.
            (Some(_), false) => self.core.in_flight() == 0,
        };
        // After a halt nothing more is read: the source task may wait to hand over what nobody takes.
        let read = self.intake_ended || self.halted.is_some();
        if read && settled && self.core.ledger.is_clean() {
            return Some(Ok(()));
        }
        if self.intake_ended && !self.source_up && self.core.in_flight() == 0 && self.core.ledger.is_clean() {
            // Without the source, and its lock, nothing may be published (law 5).
            return Some(Err(format!(
                "{} events were not settled, and the source is lost",
                self.core.unsettled()
            )));
        }
        (Instant::now() >= stopping.deadline).then(|| {
            let (unsettled, in_flight) = (self.core.unsettled(), self.core.in_flight());
            Err(format!("{unsettled} events were not settled ({in_flight} of them in flight) when the drain time-out passed"))
        })
    }

    pub(crate) async fn end<K: Sink>(
        self,
        over: Result<(), String>,
        intake: Intake<P>,
        publisher: Publisher<K>,
        mut keeper: Keeper<P>,
    ) -> Ending {
        publisher.close(CLOSE_TIMEOUT).await;
        if !self.core.ledger.is_clean() {
            // The last store may be under way; what comes of it is seen by the next start.
            let _result = timeout(LAST_STORE, keeper.results.recv()).await;
        }
        let finished = intake.finish(CLOSE_TIMEOUT).await;
        match (self.halted, over, finished) {
            (Some(failure), _, _) => Ending::Halted(failure),
            (None, Err(why), _) => Ending::Incomplete { why },
            (None, Ok(()), Err(failure)) => Ending::Incomplete {
                why: format!("the last position was not taken: {failure}"),
            },
            (None, Ok(()), Ok(())) => Ending::Drained,
        }
    }

    pub(crate) fn accepts(&self) -> bool {
        self.source_up && self.items_open && self.halted.is_none() && self.core.accepts()
    }

    pub(crate) fn wake(&mut self, sink_up: bool) -> Instant {
        let stop = self.stopping.as_ref().map(|stopping| stopping.deadline);
        let may_publish = sink_up && self.may_publish();
        [self.core.next_deadline(may_publish), stop, Some(self.next_gauges)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.next_gauges)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    pub(crate) fn stop(&mut self, intake: &Intake<P>) {
        if self.halted.is_none() {
            let unsettled = self.core.unsettled();
            tracing::info!(unsettled, "stopping: waiting for confirms");
        }
        self.progress.update(|state| state.draining = true);
        self.stopping = Some(Stopping {
            deadline: Instant::now() + self.options.drain_timeout,
        });
        intake.stop();
    }

    pub(crate) fn halt(&mut self, failure: Failure) {
        if self.halted.is_some() {
            tracing::error!(error = %failure, "a second fault after the halt; mend it as well");
            self.flushes = false;
            return;
        }
        show_halt(&self.progress, &failure);
        self.halted = Some(failure);
    }

    /// Halts over a row that never entered the core: all that was read before it still goes.
    pub(crate) fn halt_behind(&mut self, failure: Failure) {
        let first = self.halted.is_none();
        self.halt(failure);
        self.flushes = first;
    }

    /// A halt stops intake; with `--on-halt exit` it stops the run as well.
    pub(crate) fn after_halt(&mut self, intake: &Intake<P>) {
        if self.halted.is_none() || std::mem::replace(&mut self.halt_seen, true) {
            return;
        }
        if self.options.on_halt == OnHalt::Exit && self.stopping.is_none() {
            self.stop(intake);
        }
    }
}
