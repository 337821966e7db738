//! Compares what was committed with what was delivered. Pure: no server, no clock.
//!
//! - **lost**: committed, and never delivered. **phantom**: delivered, and never committed.
//! - **duplicates**: deliveries of an event beyond its first. They are counted, and no fault by themselves.
//! - **inversions**: the first delivery of an event came after the first delivery of a later event of its aggregate.
//! - **altered**: a body that is not the payload as the database prints it, byte for byte.
//! - **misplaced**: an event delivered under two positions, or two events under one (`tailpost_position` is unique, and the
//!   same at every repeat).
//!
//! The order of arrival counts whatever the broker's `redelivered` flag says: a broker that restarts sets it also on messages
//! that died in a socket and that the consumer never saw, so to ignore these would ignore first deliveries. What makes
//! that sound is the consumer: one at a time, recording at arrival, and a queue that puts unacked messages back where
//! they were. Events without an aggregate id have no order.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use anyhow::ensure;

use crate::Delivery;

/// A committed event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its event id.
    pub id: String,
    /// Its aggregate, `type/id`; `None` has no order.
    pub aggregate: Option<String>,
    /// [`digest`] of its payload as the database prints it; `None` where the body is not the payload alone.
    pub digest: Option<u64>,
}

/// The committed events, of each aggregate in commit order. Where one session at a time writes an aggregate, as
/// [`Writer`](crate::Writer) does, that is the order of insertion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger(pub Vec<Committed>);

/// A fingerprint of a body, the same in every process of this build.
pub fn digest(body: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    hasher.finish()
}

/// What [`check`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Events committed.
    pub committed: usize,
    /// Deliveries, duplicates and phantoms included.
    pub deliveries: usize,
    /// Committed events that were delivered at least once.
    pub delivered_unique: usize,
    /// Deliveries of an event beyond its first.
    pub duplicates: usize,
    /// Committed events that were never delivered.
    pub lost: Vec<String>,
    /// Delivered events that were never committed.
    pub phantom: Vec<String>,
    /// First deliveries after that of a later event of the same aggregate: `EVENT after EVENT (AGGREGATE)`.
    pub inversions: Vec<String>,
    /// First deliveries after that of an event later in the ledger, whatever the aggregate. A fault only with
    /// `--order commit` and a ledger that one session wrote; so no part of [`Verdict::assert_clean`].
    pub inversions_overall: usize,
    /// Events delivered with a body that is not the payload.
    pub altered: Vec<String>,
    /// Events whose position is not theirs alone, or not always the same.
    pub misplaced: Vec<String>,
}

impl Verdict {
    /// Demands that nothing is lost, made up, out of order, altered or misplaced.
    ///
    /// # Errors
    /// Something is; the error counts and names.
    pub fn assert_clean(&self) -> anyhow::Result<()> {
        let faults = [
            &self.lost,
            &self.phantom,
            &self.inversions,
            &self.altered,
            &self.misplaced,
        ];
        ensure!(self.committed > 0, "nothing was committed, so nothing was tested");
        ensure!(faults.iter().all(|fault| fault.is_empty()), "{self}");
        Ok(())
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "committed {} delivered {} duplicates {} lost {} phantom {} inversions {} altered {} misplaced {}",
            self.committed,
            self.delivered_unique,
            self.duplicates,
            self.lost.len(),
            self.phantom.len(),
            self.inversions.len(),
            self.altered.len(),
            self.misplaced.len()
        )?;
        let samples = [
            ("lost", &self.lost),
            ("phantom", &self.phantom),
            ("inversion", &self.inversions),
            ("altered", &self.altered),
            ("misplaced", &self.misplaced),
        ];
        for (name, list) in samples {
            for item in list.iter().take(5) {
                write!(f, "\n  {name}: {item}")?;
            }
        }
        Ok(())
    }
}

/// Compares. `deliveries` are in order of arrival.
pub fn check(ledger: &Ledger, deliveries: &[Delivery]) -> Verdict {
    let mut checker = Checker::new(ledger);
    for delivery in deliveries {
        checker.take(delivery);
    }
    checker.finish()
}

struct Checker<'a> {
    ledger: &'a Ledger,
    places: HashMap<&'a str, usize>,
    first: Vec<bool>,
    /// Of each aggregate: the latest place in the ledger that was delivered.
    latest: HashMap<&'a str, usize>,
    latest_overall: usize,
    positions: HashMap<&'a str, &'a str>,
    position_of: HashMap<&'a str, &'a str>,
    phantoms: HashSet<&'a str>,
    verdict: Verdict,
}

impl<'a> Checker<'a> {
    fn new(ledger: &'a Ledger) -> Self {
        let places = ledger
            .0
            .iter()
            .enumerate()
            .map(|(place, event)| (event.id.as_str(), place))
            .collect();
        Self {
            ledger,
            places,
            first: vec![false; ledger.0.len()],
            latest: HashMap::new(),
            latest_overall: 0,
            positions: HashMap::new(),
            position_of: HashMap::new(),
            phantoms: HashSet::new(),
            verdict: Verdict {
                committed: ledger.0.len(),
                ..Verdict::default()
            },
        }
    }

    fn take(&mut self, delivery: &'a Delivery) {
        self.verdict.deliveries += 1;
        self.place(delivery);
        let Some(&place) = self.places.get(&*delivery.message_id) else {
            match self.phantoms.insert(&delivery.message_id) {
                true => self.verdict.phantom.push(delivery.message_id.to_string()),
                false => self.verdict.duplicates += 1,
            }
            return;
        };
        let event = &self.ledger.0[place];
        if event.digest.is_some_and(|digest| digest != delivery.digest) {
            self.verdict.altered.push(event.id.clone());
        }
        if std::mem::replace(&mut self.first[place], true) {
            self.verdict.duplicates += 1;
        } else {
            self.order(event, place);
        }
    }

    fn order(&mut self, event: &'a Committed, place: usize) {
        self.verdict.inversions_overall += usize::from(place < self.latest_overall);
        self.latest_overall = self.latest_overall.max(place);
        let Some(aggregate) = &event.aggregate else { return };
        let latest = self.latest.entry(aggregate).or_insert(place);
        if place < *latest {
            let later = &self.ledger.0[*latest].id;
            self.verdict
                .inversions
                .push(format!("{} after {later} ({aggregate})", event.id));
        }
        *latest = place.max(*latest);
    }

    fn place(&mut self, delivery: &'a Delivery) {
        let Some(position) = delivery.position.as_deref() else {
            return;
        };
        let holder = *self.positions.entry(position).or_insert(&delivery.message_id);
        let place = *self.position_of.entry(&delivery.message_id).or_insert(position);
        if holder != &*delivery.message_id {
            self.verdict
                .misplaced
                .push(format!("{} and {holder} at {position}", delivery.message_id));
        } else if place != position {
            self.verdict
                .misplaced
                .push(format!("{} at {place} and {position}", delivery.message_id));
        }
    }

    fn finish(mut self) -> Verdict {
        let events = self.ledger.0.iter().zip(&self.first);
        self.verdict.lost = events
            .filter(|(_, first)| !**first)
            .map(|(event, _)| event.id.clone())
            .collect();
        self.verdict.delivered_unique = self.verdict.committed - self.verdict.lost.len();
        self.verdict
    }
}

#[cfg(test)]
mod tests;
