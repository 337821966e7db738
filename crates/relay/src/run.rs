//! The relay loop.
//!
//! ```text
//! source task --(bounded bytes)--> mapper --> order gate --> sink (window) --> tracker (FIFO) --> store task --> feedback
//! ```
//!
//! One task runs the loop below; it owns the core, which decides, and the sink. The source task and the store task stand
//! beside it. An event's way: read and charged to the budget ([`crate::intake`]), mapped, admitted to its aggregate's
//! chain, published when the window allows, settled by a confirm, passed by the frontier; the position behind it is
//! stored ([`crate::keeper`]) and only then reported by the source's feedback.

use std::future::Future;
use std::sync::Arc;

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};

use crate::backoff::{Backoff, CLOSE_TIMEOUT, COMPLAINTS, GAUGES, LAST_STORE};
use crate::budget::Budget;
use crate::core::{Core, Loss, Poison};
use crate::intake::{Intake, Received, Signal, Verdict};
use crate::keeper::{Keeper, Stored};
use crate::publisher::{Happened, Publisher};
use crate::{
    Cause, Disposition, Failure, Item, Link, OffsetStore, OnHalt, Options, Outcome, Progress, Sink, Source,
};

/// Items taken from the source task in one turn.
const BATCH: usize = 128;

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Stopped as asked: all that was read is settled, stored and reported. A restart repeats nothing.
    Drained,
    /// Stopped as asked before all was confirmed, stored and reported: a restart repeats the rest.
    Incomplete {
        /// What was left.
        why: String,
    },
    /// Publishing stopped for good. The position stands before what could not be published.
    Halted(Failure),
}

/// Runs a relay until `stop` completes or it halts. It tails `source` from the position in `store`, makes messages of its
/// rows with `map`, publishes them to `sink`, and shows itself in `progress`.
pub async fn run<S, K, O, M>(
    source: S,
    sink: K,
    mut store: O,
    map: M,
    options: Options,
    progress: Arc<Progress>,
    stop: impl Future<Output = ()>,
) -> Ending
where
    M: FnMut(&Row) -> Result<Mapped, MapError>,
    S: Source,
    K: Sink,
    O: OffsetStore<Position = S::Position>,
{
    tokio::pin!(stop);
    let loaded = tokio::select! {
        biased;
        () = &mut stop => return Ending::Drained,
        loaded = load(&mut store, &progress) => loaded,
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(failure) => return halt_at_start(failure, &options, &progress, stop).await,
    };
    let budget = Budget::new(options.in_flight_bytes);
    let (stored_tx, stored) = watch::channel(loaded.clone());
    let mut intake = Intake::start(source, loaded.clone(), stored, budget.clone());
    let mut keeper = Keeper::start(store, stored_tx);
    let mut publisher = Publisher::new(sink);
    publisher.open_after(Backoff::NONE);
    progress.update(|state| state.stored = loaded.as_ref().map(ToString::to_string));
    let mut relay = Relay::new(options, map, budget, progress, loaded.is_some());
    let mut items = Vec::with_capacity(BATCH);
    let mut outcomes = Vec::new();
    loop {
        relay.pump(&mut publisher);
        relay.save(&keeper);
        if let Some(why) = relay.is_over() {
            return relay.end(why, intake, publisher, keeper).await;
        }
        let (accepts, wake) = (relay.accepts(), relay.wake(publisher.up().is_some()));
        tokio::select! {
            biased;
            () = &mut stop, if !relay.is_stopping() => relay.stop(&intake),
            Some(result) = keeper.results.recv() => relay.on_stored(result),
            Some(signal) = intake.signals.recv() => relay.on_signal(signal, &mut intake.items),
            happened = publisher.next(&mut outcomes) => relay.on_sink(happened, &mut outcomes, &mut publisher),
            _ = intake.items.recv_many(&mut items, BATCH), if accepts => relay.on_items(&mut items),
            () = sleep_until(wake) => relay.on_tick(&mut publisher),
        }
        relay.after_halt(&intake);
    }
}

/// Reads the offset; what cannot be reached is tried for ever.
async fn load<O: OffsetStore>(store: &mut O, progress: &Progress) -> Result<Option<O::Position>, Failure> {
    let mut backoff = Backoff::default();
    loop {
        let failure = match store.load().await {
            Ok(loaded) => return Ok(loaded),
            Err(failure) => failure,
        };
        let after = match &failure.disposition {
            Disposition::Retry { after } => *after,
            Disposition::Standby { .. } => None,
            Disposition::Park | Disposition::Setup | Disposition::Halt(_) => return Err(failure),
        };
        show_source_failure(progress, &failure);
        tokio::time::sleep(backoff.next(after)).await;
    }
}

async fn halt_at_start(
    failure: Failure,
    options: &Options,
    progress: &Progress,
    stop: impl Future<Output = ()>,
) -> Ending {
    show_halt(progress, &failure);
    if options.on_halt == OnHalt::Stay {
        stop.await;
    }
    Ending::Halted(failure)
}

fn describe(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{failure} ({hint})"),
        None => failure.to_string(),
    }
}

fn show_halt(progress: &Progress, failure: &Failure) {
    tracing::error!(error = %failure, hint = %failure.hint.as_deref().unwrap_or_default(), "halted: the position is kept");
    progress.update(|state| state.halted = Some(describe(failure)));
}

fn show_source_failure(progress: &Progress, failure: &Failure) {
    let link = match &failure.disposition {
        Disposition::Standby { holder } => Link::Standby {
            holder: holder.clone(),
        },
        _ => Link::Retrying {
            why: describe(failure),
        },
    };
    let mut changed = false;
    progress.update(|state| {
        changed = state.source != link;
        state.source = link.clone();
    });
    match link {
        // Said once, not at every try.
        Link::Standby { holder } if changed => {
            tracing::info!(%holder, "standing by: somebody else holds the lock")
        }
        Link::Retrying { .. } if changed => {
            let hint = tracing::field::display(failure.hint.as_deref().unwrap_or_default());
            tracing::warn!(error = %failure, hint, "no source; trying again");
        }
        Link::Starting | Link::Connected | Link::Standby { .. } | Link::Retrying { .. } => {}
    }
}

/// What the loop keeps beside the connections.
struct Relay<P, M> {
    core: Core<P>,
    map: M,
    options: Options,
    budget: Budget,
    progress: Arc<Progress>,
    source_backoff: Backoff,
    sink_backoff: Backoff,
    /// Something is stored: a first start stores where it begins before it publishes anything.
    has_offset: bool,
    source_up: bool,
    /// The source task may still hand over items.
    items_open: bool,
    source_opened_once: bool,
    sink_opened_once: bool,
    /// When it was last said that there is no broker; `None` since one was there.
    sink_complained: Option<Instant>,
    stopping: Option<Stopping>,
    /// The source task will hand over nothing more.
    intake_ended: bool,
    halted: Option<Failure>,
    /// What was read before the halt may still go: the fault lies behind it in the log.
    flushes: bool,
    halt_seen: bool,
    next_gauges: Instant,
    next_complaint: Instant,
}

struct Stopping {
    deadline: Instant,
}

impl<P: crate::Position, M: FnMut(&Row) -> Result<Mapped, MapError>> Relay<P, M> {
    fn new(options: Options, map: M, budget: Budget, progress: Arc<Progress>, has_offset: bool) -> Self {
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
    fn pump<K: Sink>(&mut self, publisher: &mut Publisher<K>) {
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

    fn may_publish(&self) -> bool {
        self.source_up && self.has_offset && (self.halted.is_none() || self.flushes)
    }

    /// Hands a position that is due to the store. A stop waits for no coalescing.
    fn save(&mut self, keeper: &Keeper<P>) {
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
    fn is_over(&mut self) -> Option<Result<(), String>> {
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

    async fn end<K: Sink>(
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

    fn accepts(&self) -> bool {
        self.source_up && self.items_open && self.halted.is_none() && self.core.accepts()
    }

    fn wake(&mut self, sink_up: bool) -> Instant {
        let stop = self.stopping.as_ref().map(|stopping| stopping.deadline);
        let may_publish = sink_up && self.may_publish();
        [self.core.next_deadline(may_publish), stop, Some(self.next_gauges)]
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(self.next_gauges)
    }

    fn is_stopping(&self) -> bool {
        self.stopping.is_some()
    }

    fn stop(&mut self, intake: &Intake<P>) {
        tracing::info!(
            unsettled = self.core.unsettled(),
            "stopping: waiting for confirms"
        );
        self.progress.update(|state| state.draining = true);
        self.stopping = Some(Stopping {
            deadline: Instant::now() + self.options.drain_timeout,
        });
        intake.stop();
    }

    fn halt(&mut self, failure: Failure) {
        if self.halted.is_some() {
            tracing::error!(error = %failure, "a second fault after the halt; mend it as well");
            self.flushes = false;
            return;
        }
        show_halt(&self.progress, &failure);
        self.halted = Some(failure);
    }

    /// Halts over a row that never entered the core: all that was read before it still goes.
    fn halt_behind(&mut self, failure: Failure) {
        let first = self.halted.is_none();
        self.halt(failure);
        self.flushes = first;
    }

    /// A halt stops intake; with `--on-halt exit` it stops the run as well.
    fn after_halt(&mut self, intake: &Intake<P>) {
        if self.halted.is_none() || std::mem::replace(&mut self.halt_seen, true) {
            return;
        }
        if self.options.on_halt == OnHalt::Exit && self.stopping.is_none() {
            self.stop(intake);
        }
    }

    // --- from the source ---

    fn on_items(&mut self, items: &mut Vec<Received<P>>) {
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

    fn on_signal(&mut self, signal: Signal<P>, items: &mut tokio::sync::mpsc::Receiver<Received<P>>) {
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
    fn drain_items(&mut self, items: &mut tokio::sync::mpsc::Receiver<Received<P>>) {
        let mut left = Vec::new();
        while let Ok(item) = items.try_recv() {
            left.push(item);
        }
        if !left.is_empty() && self.halted.is_none() {
            self.on_items(&mut left);
        }
    }

    fn on_source_open(&mut self, resume: Option<P>, start: P) {
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

    fn on_source_failure(
        &mut self,
        failure: Failure,
        was_open: bool,
        verdict: tokio::sync::oneshot::Sender<Verdict>,
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

    // --- from the sink ---

    fn on_sink<K: Sink>(
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

    fn on_outcomes(&mut self, outcomes: &mut Vec<Outcome>) {
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
    fn complain(&mut self, seq: crate::Seq, reason: &str, now: Instant) {
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
    fn lose(&mut self, failure: &Failure) {
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

    fn on_sink_failure<K: Sink>(&mut self, failure: Failure, at_start: bool, publisher: &mut Publisher<K>) {
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

    // --- from the store and the clock ---

    fn on_stored(&mut self, result: Stored<P>) {
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

    fn on_tick<K: Sink>(&mut self, publisher: &mut Publisher<K>) {
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

    fn show_gauges(&mut self) {
        let progress = &self.progress;
        progress.in_flight.set(self.core.in_flight() as u64);
        progress.unsettled.set(self.core.unsettled() as u64);
        progress.unsettled_bytes.set(self.budget.taken());
        progress.held.set(self.core.held() as u64);
        progress.ahead.set(self.core.ahead() as u64);
        let holding = self.core.holding(self.budget.is_exhausted());
        let mut changed = false;
        let in_flight = self.core.in_flight() > 0;
        progress.update(|state| {
            state.busy_since = state.busy_since.or(Some(Instant::now())).filter(|_| in_flight);
            changed = state.holding.is_none() && holding.is_some();
            state.holding.clone_from(&holding);
        });
        if let Some(why) = holding.filter(|_| changed) {
            tracing::warn!("{why}");
        }
    }
}

fn poison_failure(poison: Poison) -> Failure {
    Failure::new(poison.what, Disposition::Halt(Cause::Poison))
        .with_hint("the position stands before it; mend or remove what makes it impossible, then start again")
}

fn map_failure(error: MapError) -> Failure {
    match error {
        MapError::Poison { what } => poison_failure(Poison { what }),
        MapError::Shape { what, hint } => Failure::new(what, Disposition::Halt(Cause::Setup)).with_hint(hint),
    }
}
