//! The core under a seeded simulator: a scripted log, a hostile broker, lost connections, crashes. Every law that the core
//! keeps is checked after every step.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fastrand::Rng;
use tailpost_outbox::{AggregateKey, HeaderValue, Mapped, Message, headers};
use tokio::time::Instant;

use crate::budget::Share;
use crate::core::{Core, Loss};
use crate::{Options, Order, Outcome, Seq};

const AGGREGATES: u64 = 5;

/// What the log holds: position = index in this list.
#[derive(Clone, Debug)]
enum Record {
    Begin,
    Event { aggregate: Option<u64>, id: u64 },
    End,
    Keepalive,
}

fn script(rng: &mut Rng) -> Vec<Record> {
    let mut log = Vec::new();
    let mut id = 0;
    for _ in 0..rng.usize(3..20) {
        if rng.u8(..) < 60 {
            log.push(Record::Keepalive);
            continue;
        }
        log.push(Record::Begin);
        for _ in 0..rng.usize(0..5) {
            if rng.u8(..) < 30 {
                log.push(Record::Keepalive); // inside: it must move nothing
            }
            let aggregate = (rng.u8(..) > 25).then(|| rng.u64(0..AGGREGATES));
            log.push(Record::Event { aggregate, id });
            id += 1;
        }
        log.push(Record::End);
    }
    log
}

/// A published message on its way to the broker, in order.
struct Sent {
    seq: Seq,
    id: u64,
    routed: bool,
}

struct World {
    rng: Rng,
    now: Instant,
    log: Vec<Record>,
    /// Next record to read.
    read: usize,
    /// Whether the record before `read` is inside a transaction.
    open: bool,
    /// Where the log may be resumed, of what was received.
    resume: usize,
    core: Core<usize>,
    generation: VecDeque<Sent>,
    /// Published in this generation and not answered: a sink tells messages by their place in the log.
    unanswered: BTreeMap<Seq, u64>,
    answers: Vec<Outcome>,
    stored: usize,
    delivered: Vec<u64>,
    kindly: bool,
    order: Order,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let log = script(&mut rng);
        let now = Instant::now();
        let order = if rng.bool() {
            Order::Aggregate
        } else {
            Order::Commit
        };
        let core = Core::new(options(order), now);
        Self {
            rng,
            now,
            log,
            read: 0,
            open: false,
            resume: 0,
            core,
            generation: VecDeque::new(),
            unanswered: BTreeMap::new(),
            answers: Vec::new(),
            stored: 0,
            delivered: Vec::new(),
            kindly: false,
            order,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.rng.u64(0..60));
        match self.rng.u8(0..100) {
            0..=39 => self.read_one(),
            40..=69 => self.publish(),
            70..=84 => self.answer(),
            85..=89 => self.store(),
            90..=92 if !self.kindly => self.lose_sink(),
            93..=95 if !self.kindly => self.lose_source(),
            96 if !self.kindly => self.crash(),
            _ => self.store(),
        }
        self.check();
    }

    fn read_one(&mut self) {
        let Some(record) = self.log.get(self.read).cloned() else {
            return;
        };
        if !self.core.accepts() {
            return;
        }
        self.read += 1;
        let position = self.read;
        match record {
            Record::Begin => {
                self.open = true;
                self.core.begin();
            }
            Record::Event { aggregate, id } => self.core.event(mapped(aggregate, id), Share::default()),
            Record::End => {
                self.open = false;
                self.resume = position;
                self.core.end(position, false, self.now);
            }
            Record::Keepalive => {
                if !self.open {
                    self.resume = position;
                }
                self.core.keepalive(position, self.rng.bool(), self.now);
            }
        }
    }

    fn publish(&mut self) {
        for _ in 0..self.rng.usize(0..4) {
            let Some((seq, message)) = self.core.next_publish(self.now) else {
                return;
            };
            let id: u64 = message.message_id.parse().expect("an id");
            assert!(
                !self.unanswered.values().any(|other| *other == id),
                "{id} is in flight twice"
            );
            self.unanswered.insert(seq, id);
            // Commit order is kept across reconnects only: there the broker takes all that reaches it.
            let routed = self.kindly || self.order == Order::Commit || self.rng.u8(..) > 40;
            self.generation.push_back(Sent { seq, id, routed });
        }
    }

    /// The broker takes the oldest message it has not taken yet, and answers some, in any order.
    fn answer(&mut self) {
        for _ in 0..self.rng.usize(0..4) {
            let Some(sent) = self.generation.pop_front() else {
                break;
            };
            let seq = sent.seq;
            self.answers.push(if sent.routed {
                self.delivered.push(sent.id);
                Outcome::Confirmed(seq)
            } else if self.rng.bool() {
                Outcome::Nacked(seq)
            } else {
                Outcome::Returned {
                    seq,
                    reason: "NO_ROUTE".into(),
                }
            });
        }
        self.rng.shuffle(&mut self.answers);
        let some = if self.kindly {
            self.answers.len()
        } else {
            self.rng.usize(0..=self.answers.len())
        };
        for outcome in self.answers.drain(..some) {
            if let Outcome::Confirmed(seq) | Outcome::Nacked(seq) | Outcome::Returned { seq, .. } = &outcome {
                self.unanswered.remove(seq);
            }
            self.core.outcome(outcome, self.now);
        }
    }

    fn store(&mut self) {
        if let Some(position) = self.core.ledger.take_due(self.now, self.rng.bool()) {
            assert!(position >= self.stored, "law 3: {position} after {}", self.stored);
            self.stored = position;
            self.core.ledger.stored();
        }
    }

    fn lose_sink(&mut self) {
        // The broker had taken some of what was sent; nobody will hear of it.
        for _ in 0..self.rng.usize(0..=self.generation.len()) {
            if let Some(sent) = self.generation.pop_front().filter(|sent| sent.routed) {
                self.delivered.push(sent.id);
            }
        }
        self.generation.clear();
        self.unanswered.clear();
        self.answers.clear();
        let loss = if self.rng.bool() {
            Loss::Message
        } else {
            Loss::Connection
        };
        assert!(self.core.sink_lost(loss, "closed", self.now).is_none());
    }

    fn lose_source(&mut self) {
        self.core.abandon_open_transaction(self.now);
        self.open = false;
        self.read = self.resume;
    }

    fn crash(&mut self) {
        self.lose_sink();
        self.core = Core::new(options(self.order), self.now);
        self.open = false;
        (self.read, self.resume) = (self.stored, self.stored);
    }

    fn check(&self) {
        let delivered: BTreeSet<u64> = self.delivered.iter().copied().collect();
        for record in &self.log[..self.stored] {
            if let Record::Event { id, .. } = record {
                assert!(
                    delivered.contains(id),
                    "law 1: stored {} but {id} is not delivered",
                    self.stored
                );
            }
        }
        let open = self.log[..self.stored]
            .iter()
            .fold(false, |open, record| match record {
                Record::Begin => true,
                Record::End => false,
                Record::Event { .. } | Record::Keepalive => open,
            });
        assert!(!open, "law 10: {} lies inside a transaction", self.stored);
        match self.order {
            Order::Aggregate => self.check_order(),
            Order::Commit => self.check_commit_order(),
        }
    }

    /// Law 4 with `--order commit`: first deliveries are in commit order.
    fn check_commit_order(&self) {
        let mut seen = BTreeSet::new();
        let first: Vec<u64> = self
            .delivered
            .iter()
            .copied()
            .filter(|id| seen.insert(*id))
            .collect();
        assert!(first.is_sorted(), "law 4: {first:?}");
    }

    /// Law 4: first deliveries of one aggregate are in commit order, and none is passed over.
    fn check_order(&self) {
        let mut expected: BTreeMap<u64, VecDeque<u64>> = BTreeMap::new();
        let mut aggregate_of = BTreeMap::new();
        for record in &self.log {
            if let Record::Event {
                aggregate: Some(aggregate),
                id,
            } = record
            {
                expected.entry(*aggregate).or_default().push_back(*id);
                aggregate_of.insert(*id, *aggregate);
            }
        }
        let mut seen = BTreeSet::new();
        for id in &self.delivered {
            if let (true, Some(aggregate)) = (seen.insert(*id), aggregate_of.get(id)) {
                let next = expected.get_mut(aggregate).and_then(VecDeque::pop_front);
                assert_eq!(next, Some(*id), "law 4: aggregate {aggregate}");
            }
        }
    }

    /// With a kind broker everything is delivered and stored in the end.
    fn finish(&mut self) {
        self.kindly = true;
        for _ in 0..20_000 {
            self.step();
            let all_read = self.read == self.log.len();
            if all_read && self.core.is_settled() && self.core.ledger.is_clean() && self.generation.is_empty()
            {
                let events = self
                    .log
                    .iter()
                    .filter(|record| matches!(record, Record::Event { .. }))
                    .count();
                let delivered: BTreeSet<_> = self.delivered.iter().collect();
                assert_eq!(delivered.len(), events, "law 6: nothing is skipped");
                assert_eq!(self.core.in_flight(), 0);
                return;
            }
        }
        panic!(
            "no end: {} of {} read, {} unsettled",
            self.read,
            self.log.len(),
            self.core.unsettled()
        );
    }
}

fn options(order: Order) -> Options {
    Options {
        order,
        in_flight: 4,
        max_ahead: 6,
        ..Options::default()
    }
}

fn mapped(aggregate: Option<u64>, id: u64) -> Mapped {
    let position = HeaderValue::Text(format!("0/1:{id}"));
    Mapped {
        message: Message {
            exchange: "events".into(),
            routing_key: String::new(),
            message_id: id.to_string(),
            event_type: None,
            content_type: None,
            timestamp: None,
            headers: vec![(headers::POSITION.into(), position)],
            body: Bytes::new(),
        },
        aggregate: aggregate.map(AggregateKey),
        aggregate_label: Arc::from("order/1"),
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..300 {
        world.step();
    }
    world.finish();
}

/// Laws 1, 3, 4, 6 and 10 under many seeds. A failing seed is printed; paste it into the test below.
#[test]
fn laws_1_3_4_6_10_hold_under_a_hostile_broker_lost_links_and_crashes() {
    for seed in 0..3_000 {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "seed {seed} fails");
    }
}

/// A failing seed is looked at here.
#[test]
fn one_seed() {
    run(42);
}
