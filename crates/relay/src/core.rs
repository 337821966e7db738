//! The relay's core: what may be published, what is settled, what may be stored. A plain value with injected time; it
//! does no I/O, so that it can be simulated step by step.
//!
//! An event is *held* behind an earlier one of its aggregate, *ready* to go, *in flight*, or *backing off* after the
//! broker returned or refused it. It leaves by a confirm only.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;

use tailpost_outbox::{AggregateKey, Mapped, Message};
use tokio::time::Instant;

use crate::backoff::delay;
use crate::budget::Share;
use crate::gate::{Admission, Gate};
use crate::ledger::Ledger;
use crate::tracker::Tracker;
use crate::{Options, Order, Outcome, Position, Seq};

/// Closes of the channel while an event is sent alone, until it is poison.
const CLOSES_UNTIL_POISON: u32 = 3;

/// A sink copies what is in flight, perhaps more than once: no more than this part of the memory bound is in flight.
const SINK_SHARE: usize = 4;

#[derive(Debug, PartialEq, Eq)]
enum Phase {
    Held,
    Ready,
    InFlight { since: Instant },
    BackingOff { until: Instant },
}

/// An unsettled event.
#[derive(Debug)]
struct Event {
    message: Arc<Message>,
    aggregate: Option<AggregateKey>,
    label: Arc<str>,
    phase: Phase,
    /// The next one of its aggregate.
    next: Option<Seq>,
    /// Returns, nacks and blamed closes so far.
    failures: u32,
    /// Closes of the channel while it was the only one in flight.
    closes: u32,
    /// It was in flight when the broker closed the channel over a message: it is sent alone.
    alone: bool,
    /// Why it was not settled the last time.
    trouble: Option<String>,
    share: Share,
    /// Bytes that the sink holds while it is in flight.
    size: usize,
}

/// Why a generation of the sink ended, as far as the core cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// The connection: nothing is known of any message.
    Connection,
    /// The broker closed the channel over a message, and sending it again may help some day.
    Message,
    /// The broker closed the channel over a message that can perhaps never go.
    Poisonous,
}

/// An event for a log line.
#[derive(Debug)]
pub(crate) struct Described {
    pub(crate) aggregate: Arc<str>,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) position: String,
}

/// An event that can never go.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Poison {
    pub(crate) what: String,
}

#[derive(Debug)]
pub(crate) struct Core<P> {
    options: Options,
    /// Boxed: what is settled beyond the frontier keeps its place, and costs little there.
    tracker: Tracker<P, Box<Event>>,
    gate: Gate,
    pub(crate) ledger: Ledger<P>,
    /// Ready events, oldest first. May hold numbers that are ready no more.
    ready: BinaryHeap<Reverse<Seq>>,
    retries: BinaryHeap<Reverse<(Instant, Seq)>>,
    /// Published and unanswered, in the order published. May hold answered ones.
    deadlines: VecDeque<(Seq, Instant)>,
    in_flight: usize,
    /// Bytes of what is in flight: a sink copies them.
    in_flight_size: usize,
    /// Shares and sizes of events that left the tracker while they were in flight. What was read after them may be the same rows
    /// again, and waits until they are answered: a sink tells messages by their place in the log.
    orphans: BTreeMap<Seq, (Share, usize)>,
    /// The event sent alone, while it is in flight.
    solo: Option<Seq>,
    /// First number of the open transaction.
    open: Option<Seq>,
    /// Events that wait for an earlier one of their aggregate.
    held: usize,
    blocked: bool,
    /// When the broker last unblocked us: deadlines count from there.
    unblocked_at: Option<Instant>,
    confirmed_once: bool,
}

impl<P: Position> Core<P> {
    pub(crate) fn new(options: Options, now: Instant) -> Self {
        Self {
            options,
            tracker: Tracker::new(),
            gate: Gate::default(),
            ledger: Ledger::new(now),
            ready: BinaryHeap::new(),
            retries: BinaryHeap::new(),
            deadlines: VecDeque::new(),
            in_flight: 0,
            in_flight_size: 0,
            orphans: BTreeMap::new(),
            solo: None,
            open: None,
            held: 0,
            blocked: false,
            unblocked_at: None,
            confirmed_once: false,
        }
    }

    // --- from the source ---

    /// A transaction opens.
    pub(crate) fn begin(&mut self) {
        self.open = Some(self.tracker.next_seq());
    }

    /// An event of the open transaction.
    pub(crate) fn event(&mut self, mapped: Mapped, share: Share) {
        let size = mapped.message.body.len();
        let ordered = mapped
            .aggregate
            .filter(|_| self.options.order == Order::Aggregate);
        let seq = self.tracker.push_event(Box::new(Event {
            message: Arc::new(mapped.message),
            aggregate: ordered,
            label: mapped.aggregate_label,
            phase: Phase::Held,
            next: None,
            failures: 0,
            closes: 0,
            alone: false,
            trouble: None,
            share,
            size,
        }));
        self.admit(seq, ordered);
    }

    fn admit(&mut self, seq: Seq, aggregate: Option<AggregateKey>) {
        match aggregate.map_or(Admission::Go, |aggregate| self.gate.admit(aggregate, seq)) {
            Admission::Go => self.make_ready(seq),
            Admission::Hold { previous } => {
                self.held += 1;
                if let Some(previous) = self.tracker.event_mut(previous) {
                    previous.next = Some(seq);
                }
            }
        }
    }

    fn make_ready(&mut self, seq: Seq) {
        if let Some(event) = self.tracker.event_mut(seq) {
            event.phase = Phase::Ready;
            self.ready.push(Reverse(seq));
        }
    }

    /// The transaction's end.
    pub(crate) fn end(&mut self, position: P, urgent: bool, now: Instant) {
        self.open = None;
        self.tracker.push_marker(position, urgent);
        self.advance(now);
    }

    /// All before `position` was read. Inside a transaction it moves nothing (law 2).
    pub(crate) fn keepalive(&mut self, position: P, urgent: bool, now: Instant) {
        if self.open.is_none() {
            self.tracker.push_marker(position, urgent);
            self.advance(now);
        }
    }

    /// The source's connection is gone: the open transaction's rows leave; they will be read again. Those in flight are
    /// orphans: their answers free the window and move nothing.
    pub(crate) fn abandon_open_transaction(&mut self, now: Instant) {
        if let Some(first) = self.open.take() {
            self.abandon(first, now);
        }
    }

    /// Another relay held the lock meanwhile: forget all that was read.
    pub(crate) fn reset(&mut self, now: Instant) {
        self.open = None;
        self.abandon(0, now);
        self.ledger.forget(now);
    }

    fn abandon(&mut self, first: Seq, now: Instant) {
        for (seq, event) in self.tracker.abandon(first) {
            if matches!(event.phase, Phase::InFlight { .. }) {
                self.orphans.insert(seq, (event.share, event.size));
            }
        }
        self.rebuild_gate();
        self.advance(now);
    }

    fn rebuild_gate(&mut self) {
        self.gate.clear();
        let mut links = Vec::new();
        for (seq, event) in self.tracker.unsettled_mut() {
            event.next = None;
            if let Some(aggregate) = event.aggregate
                && let Admission::Hold { previous } = self.gate.admit(aggregate, seq)
            {
                links.push((previous, seq));
            }
        }
        self.held = links.len();
        for (previous, seq) in links {
            if let Some(event) = self.tracker.event_mut(previous) {
                event.next = Some(seq);
            }
        }
    }

    // --- from the sink ---

    /// One answer of the broker.
    pub(crate) fn outcome(&mut self, outcome: Outcome, now: Instant) {
        match outcome {
            Outcome::Confirmed(seq) => {
                self.answered(seq);
                self.confirm(seq, now);
            }
            Outcome::Returned { seq, reason } => {
                self.answered(seq);
                self.back_off(seq, format!("returned: {reason}"), now);
            }
            Outcome::Nacked(seq) => {
                self.answered(seq);
                self.back_off(seq, "refused by the broker (nack)".into(), now);
            }
            Outcome::Blocked { .. } => self.blocked = true,
            Outcome::Unblocked => {
                self.blocked = false;
                self.unblocked_at = Some(now);
            }
        }
    }

    /// Frees the window. What is not in flight has no answer to come, and frees nothing.
    fn answered(&mut self, seq: Seq) {
        let orphan = self.orphans.remove(&seq).map(|(_, size)| size);
        let event = self
            .tracker
            .event_mut(seq)
            .filter(|event| matches!(event.phase, Phase::InFlight { .. }));
        let Some(size) = orphan.or_else(|| event.map(|event| event.size)) else {
            return;
        };
        self.in_flight = self.in_flight.saturating_sub(1);
        self.in_flight_size = self.in_flight_size.saturating_sub(size);
        if self.solo == Some(seq) {
            self.solo = None;
        }
    }

    fn is_in_flight(&mut self, seq: Seq) -> bool {
        self.tracker
            .event_mut(seq)
            .is_some_and(|event| matches!(event.phase, Phase::InFlight { .. }))
    }

    fn confirm(&mut self, seq: Seq, now: Instant) {
        // What is not in flight in this generation has no confirm to come: law 9.
        if !self.is_in_flight(seq) {
            return;
        }
        self.confirmed_once = true;
        if let Some(event) = self.tracker.settle(seq) {
            let next = event
                .aggregate
                .and_then(|aggregate| self.gate.release(aggregate, seq, event.next));
            if let Some(next) = next {
                self.held -= 1;
                self.make_ready(next);
            }
        }
        self.advance(now);
    }

    /// Back to the head of its aggregate, with a delay.
    fn back_off(&mut self, seq: Seq, trouble: String, now: Instant) {
        if !self.is_in_flight(seq) {
            return;
        }
        if let Some(event) = self.tracker.event_mut(seq) {
            event.failures = event.failures.saturating_add(1);
            event.trouble = Some(trouble);
            let until = now + delay(event.failures);
            event.phase = Phase::BackingOff { until };
            self.retries.push(Reverse((until, seq)));
        }
    }

    /// The generation ended: everything unanswered is unknown, and goes again from the oldest.
    pub(crate) fn sink_lost(&mut self, loss: Loss, why: &str, now: Instant) -> Option<Poison> {
        let culprit = self.solo.take().filter(|_| loss != Loss::Connection);
        let mut poison = None;
        let mut again = Vec::new();
        let mut blamed = Vec::new();
        for (seq, event) in self.tracker.unsettled_mut() {
            if !matches!(event.phase, Phase::InFlight { .. }) {
                continue;
            }
            if culprit == Some(seq) {
                // In commit order nothing may overtake it: it goes again first, at the pace of the sink's own backoff.
                match self.options.order {
                    Order::Aggregate => blamed.push(seq),
                    Order::Commit => again.push(seq),
                }
                event.closes += u32::from(loss == Loss::Poisonous);
                if event.closes >= CLOSES_UNTIL_POISON {
                    let place = position_of(&event.message);
                    poison = Some(Poison {
                        what: format!(
                            "event at {place}: the broker closed the channel over it {} times: {why}",
                            event.closes
                        ),
                    });
                }
            } else {
                event.alone |= loss != Loss::Connection;
                again.push(seq);
            }
        }
        for seq in blamed {
            self.back_off(seq, why.to_owned(), now);
        }
        for seq in again {
            self.make_ready(seq);
        }
        self.in_flight = 0;
        self.in_flight_size = 0;
        self.orphans.clear();
        self.deadlines.clear();
        self.blocked = false;
        poison
    }

    /// The oldest publish that is still unanswered has passed its deadline.
    pub(crate) fn confirm_is_overdue(&mut self, now: Instant) -> bool {
        self.confirm_deadline().is_some_and(|deadline| deadline <= now)
    }

    fn confirm_deadline(&mut self) -> Option<Instant> {
        if self.blocked {
            return None;
        }
        while let Some((seq, since)) = self.deadlines.front().copied() {
            let waits = self.orphans.contains_key(&seq)
                || self
                    .tracker
                    .event_mut(seq)
                    .is_some_and(|event| event.phase == Phase::InFlight { since });
            if waits {
                let from = self.unblocked_at.map_or(since, |unblocked| unblocked.max(since));
                return Some(from + self.options.confirm_timeout);
            }
            self.deadlines.pop_front();
        }
        None
    }

    // --- to the sink ---

    /// The next message to publish, if one may go: oldest first, within the window. The caller publishes it, or says
    /// with [`poisoned`](Self::poisoned) that it can't be.
    pub(crate) fn next_publish(&mut self, now: Instant) -> Option<(Seq, Arc<Message>)> {
        self.wake_retries(now);
        let bytes_full =
            self.in_flight > 0 && self.in_flight_size >= self.options.in_flight_bytes / SINK_SHARE;
        if self.solo.is_some() || self.in_flight >= self.options.in_flight || bytes_full {
            return None;
        }
        while let Some(Reverse(seq)) = self.ready.peek().copied() {
            let Some(event) = self
                .tracker
                .event_mut(seq)
                .filter(|event| event.phase == Phase::Ready)
            else {
                self.ready.pop();
                continue;
            };
            let is_behind_orphan = self
                .orphans
                .first_key_value()
                .is_some_and(|(orphan, _)| *orphan < seq);
            if is_behind_orphan || (event.alone && self.in_flight > 0) {
                return None;
            }
            self.ready.pop();
            event.phase = Phase::InFlight { since: now };
            self.solo = event.alone.then_some(seq);
            self.in_flight += 1;
            self.in_flight_size += event.size;
            self.deadlines.push_back((seq, now));
            return Some((seq, Arc::clone(&event.message)));
        }
        None
    }

    fn wake_retries(&mut self, now: Instant) {
        while let Some(Reverse((until, seq))) = self.retries.peek().copied() {
            if until > now {
                break;
            }
            self.retries.pop();
            let due = self
                .tracker
                .event_mut(seq)
                .is_some_and(|event| event.phase == Phase::BackingOff { until });
            if due {
                self.make_ready(seq);
            }
        }
    }

    /// The event that [`next_publish`](Self::next_publish) gave cannot be published: it stays unsettled, and holds.
    pub(crate) fn poisoned(&mut self, seq: Seq, what: &str) -> Poison {
        self.answered(seq);
        let place = match self.tracker.event_mut(seq) {
            Some(event) => {
                event.phase = Phase::Held;
                position_of(&event.message)
            }
            None => String::new(),
        };
        Poison {
            what: format!("event at {place}: {what}"),
        }
    }

    // --- settled, and what follows ---

    fn advance(&mut self, now: Instant) {
        let advance = self.tracker.advance();
        self.ledger.passed(advance, now);
    }

    /// Whether more may be read.
    pub(crate) fn accepts(&self) -> bool {
        self.tracker.ahead() < self.options.max_ahead && !self.ledger.is_failing()
    }

    /// Nothing is unsettled and no transaction is open.
    pub(crate) fn is_settled(&self) -> bool {
        self.tracker.unsettled() == 0 && self.open.is_none()
    }

    /// Whether any event was ever confirmed.
    pub(crate) fn confirmed_once(&self) -> bool {
        self.confirmed_once
    }

    /// The next moment at which something is due. Retries are due only while something `may_publish`.
    pub(crate) fn next_deadline(&mut self, may_publish: bool) -> Option<Instant> {
        let retry = self
            .retries
            .peek()
            .map(|Reverse((until, _))| *until)
            .filter(|_| may_publish);
        [retry, self.confirm_deadline(), self.ledger.next_deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// What holds the frontier, for the operator, when a bound has stopped intake.
    pub(crate) fn holding(&self, budget_exhausted: bool) -> Option<String> {
        let at_max_ahead = self.tracker.ahead() >= self.options.max_ahead;
        if !at_max_ahead && !budget_exhausted {
            return None;
        }
        let trouble = self.trouble()?;
        let bound = if at_max_ahead {
            "--max-ahead"
        } else {
            "--in-flight-bytes"
        };
        Some(format!("intake stopped at {bound}: {trouble}"))
    }

    /// What keeps the oldest unsettled event from being settled, where the broker returned or refused it.
    pub(crate) fn trouble(&self) -> Option<String> {
        let event = self.tracker.oldest()?;
        let trouble = event.trouble.as_ref()?;
        let (label, place, tries) = (&event.label, position_of(&event.message), event.failures);
        Some(format!(
            "aggregate {label} holds, its event at {place} was tried {tries} times ({trouble})"
        ))
    }

    /// Describes an unsettled event.
    pub(crate) fn describe(&mut self, seq: Seq) -> Option<Described> {
        let event = self.tracker.event_mut(seq)?;
        let Message {
            exchange,
            routing_key,
            ..
        } = &*event.message;
        Some(Described {
            aggregate: Arc::clone(&event.label),
            exchange: exchange.clone(),
            routing_key: routing_key.clone(),
            position: position_of(&event.message),
        })
    }

    /// Published and unanswered.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.tracker.unsettled()
    }

    /// Settled beyond the frontier.
    pub(crate) fn ahead(&self) -> usize {
        self.tracker.ahead()
    }

    /// Waiting for an earlier one of their aggregate.
    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

/// An event's place in the log, for texts.
fn position_of(message: &Message) -> String {
    let header = message
        .headers
        .iter()
        .find(|(name, _)| &name[..] == tailpost_outbox::headers::POSITION);
    match header {
        Some((_, tailpost_outbox::HeaderValue::Text(position))) => position.to_string(),
        _ => "an unknown place".into(),
    }
}
