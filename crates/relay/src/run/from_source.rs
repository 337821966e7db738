//! What the loop does about the source: items and signals.

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::relay::Relay;
use super::report::{map_failure, poison_failure, show_source_failure};
use crate::core::Poison;
use crate::intake::{Received, Signal, Verdict};
use crate::{Disposition, Failure, Item, Link};

impl<P: crate::Position, M: FnMut(&Row) -> Result<Mapped, MapError>> Relay<P, M> {
    pub(crate) fn on_items(&mut self, items: &mut Vec<Received<P>>) {
        if items.is_empty() {
            // The source task dropped its end; its signal says why.
            self.items_open = false;
        }
        let now = Instant::now();
        for (item, share) in items.drain(..) {
            match item {
                Item::Begin => self.core.begin(),
                Item::Row(row) => {
                    self.progress.rows.add(1);
                    match (self.map)(&row) {
                        Ok(mapped) => self.core.event(mapped, share),
                        Err(error) => return self.halt_behind(map_failure(error)),
                    }
                }
                Item::Oversized { what } => return self.halt_behind(poison_failure(Poison { what })),
                Item::End { position, urgent } => {
                    self.progress.transactions.add(1);
                    self.core.end(position, urgent, now);
                }
                Item::Keepalive { position, urgent } => self.core.keepalive(position, urgent, now),
            }
        }
    }

    pub(crate) fn on_signal(&mut self, signal: Signal<P>, items: &mut mpsc::Receiver<Received<P>>) {
        match signal {
            Signal::Opened { resume, start, go } => {
                self.on_source_open(resume, start);
                // An error means that the source task has ended, and the next signal says why.
                let _sent = go.send(());
            }
            Signal::Failed {
                failure,
                was_open,
                verdict,
            } => {
                self.drain_items(items);
                self.on_source_failure(failure, was_open, verdict);
            }
            Signal::Stopped => {
                self.drain_items(items);
                self.intake_ended = true;
            }
        }
    }

    /// Takes what the source task handed over before it signalled: it counts as received.
    pub(crate) fn drain_items(&mut self, items: &mut mpsc::Receiver<Received<P>>) {
        let mut left = Vec::new();
        while let Ok(item) = items.try_recv() {
            left.push(item);
        }
        if !left.is_empty() && self.halted.is_none() {
            self.on_items(&mut left);
        }
    }

    pub(crate) fn on_source_open(&mut self, resume: Option<P>, start: P) {
        self.source_up = true;
        self.source_opened_once = true;
        tracing::info!(position = %start, "streaming");
        let now = Instant::now();
        if resume.as_ref().is_some_and(|resume| start > *resume) {
            let before = resume.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                %before, now = %start, forgotten = self.core.unsettled(),
                "the source's position was moved while we were away, by another relay of this name or by hand: starting there"
            );
            self.core.reset(now);
            self.core.keepalive(start.clone(), true, now);
        } else if !self.has_offset {
            self.core.keepalive(start.clone(), true, now);
        }
        self.progress.update(|state| {
            state.source = Link::Connected;
            state.received = Some(start.to_string());
        });
    }

    pub(crate) fn on_source_failure(
        &mut self,
        failure: Failure,
        was_open: bool,
        verdict: oneshot::Sender<Verdict>,
    ) {
        self.source_up = false;
        self.core.abandon_open_transaction(Instant::now());
        self.progress.source_losses.add(u64::from(was_open));
        let retry = match &failure.disposition {
            Disposition::Retry { after } => Some(*after),
            Disposition::Standby { .. } => Some(None),
            Disposition::Setup if self.source_opened_once => Some(None),
            Disposition::Setup | Disposition::Park | Disposition::Halt(_) => None,
        };
        let answer = match retry {
            Some(after) => {
                show_source_failure(&self.progress, &failure);
                Verdict::RetryAfter(self.source_backoff.next(after))
            }
            None => {
                self.intake_ended = true;
                self.halt(failure);
                Verdict::GiveUp
            }
        };
        // An error means that the source task has ended; then there is nobody to tell.
        let _sent = verdict.send(answer);
    }
}
