//! The tracker: a FIFO of events, transaction ends and keepalives, in the order read.
//!
//! Events settle in any order. The frontier moves over the settled prefix; the last transaction end or keepalive that it
//! passes is the position that may be stored (law 1): every event at or before it is settled. This is the one place
//! where a position advances.

use std::collections::VecDeque;

use crate::Seq;

/// Room for entries that is kept while there are none.
const KEPT: usize = 1024;

/// What stands in the FIFO. `E` is an unsettled event's data.
#[derive(Debug)]
enum Entry<P, E> {
    Unsettled(E),
    Settled,
    /// Left before it was settled; it will be read again.
    Abandoned,
    /// A transaction's end or a keepalive.
    Marker {
        position: P,
        urgent: bool,
    },
}

/// A position that the frontier passed.
#[derive(Debug, PartialEq)]
pub(crate) struct Passed<P> {
    pub(crate) position: P,
    pub(crate) urgent: bool,
}

/// What one advance of the frontier passed.
#[derive(Debug, PartialEq)]
pub(crate) struct Advance<P> {
    pub(crate) events: u64,
    pub(crate) marker: Option<Passed<P>>,
}

#[derive(Debug)]
pub(crate) struct Tracker<P, E> {
    entries: VecDeque<Entry<P, E>>,
    /// Seq of the front entry.
    base: Seq,
    unsettled: usize,
    /// Settled events that still stand behind an unsettled one.
    ahead: usize,
}

impl<P: Clone, E> Tracker<P, E> {
    pub(crate) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            base: 0,
            unsettled: 0,
            ahead: 0,
        }
    }

    /// Appends an event and returns its number.
    pub(crate) fn push_event(&mut self, event: E) -> Seq {
        self.unsettled += 1;
        self.push(Entry::Unsettled(event))
    }

    /// Appends a place at which the log may be resumed. Without an event between, a later one takes the place of an
    /// earlier one, so that a frontier that stands still does not let markers pile up.
    pub(crate) fn push_marker(&mut self, position: P, urgent: bool) {
        match self.entries.back_mut() {
            Some(Entry::Marker {
                position: last,
                urgent: was_urgent,
            }) => {
                *last = position;
                *was_urgent |= urgent;
            }
            _ => {
                self.push(Entry::Marker { position, urgent });
            }
        }
    }

    fn push(&mut self, entry: Entry<P, E>) -> Seq {
        self.entries.push_back(entry);
        self.next_seq() - 1
    }

    /// The number that the next entry gets.
    pub(crate) fn next_seq(&self) -> Seq {
        self.base + self.entries.len() as u64
    }

    fn entry_mut(&mut self, seq: Seq) -> Option<&mut Entry<P, E>> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.entries.get_mut(index)
    }

    /// An unsettled event's data; `None` once it is settled, and for what is no event.
    pub(crate) fn event_mut(&mut self, seq: Seq) -> Option<&mut E> {
        match self.entry_mut(seq)? {
            Entry::Unsettled(event) => Some(event),
            Entry::Settled | Entry::Abandoned | Entry::Marker { .. } => None,
        }
    }

    /// Settles an event and returns its data; `None` when it was settled before.
    pub(crate) fn settle(&mut self, seq: Seq) -> Option<E> {
        let event = self.take(seq, Entry::Settled)?;
        self.ahead += 1;
        Some(event)
    }

    /// Takes an unsettled event's data out and leaves `mark` in its place.
    fn take(&mut self, seq: Seq, mark: Entry<P, E>) -> Option<E> {
        let entry = self.entry_mut(seq)?;
        match std::mem::replace(entry, mark) {
            Entry::Unsettled(event) => {
                self.unsettled -= 1;
                Some(event)
            }
            other => {
                *entry = other;
                None
            }
        }
    }

    /// Moves the frontier over the settled prefix.
    pub(crate) fn advance(&mut self) -> Advance<P> {
        let mut advance = Advance {
            events: 0,
            marker: None,
        };
        while let Some(entry) = self.entries.front() {
            match entry {
                Entry::Unsettled(_) => break,
                Entry::Settled => {
                    advance.events += 1;
                    self.ahead -= 1;
                }
                Entry::Abandoned => {}
                Entry::Marker { position, urgent } => {
                    let urgent = *urgent || advance.marker.as_ref().is_some_and(|passed| passed.urgent);
                    advance.marker = Some(Passed {
                        position: position.clone(),
                        urgent,
                    });
                }
            }
            self.entries.pop_front();
            self.base += 1;
        }
        if self.entries.is_empty() {
            // What a long hold needed is given back.
            self.entries.shrink_to(KEPT);
        }
        advance
    }

    /// The oldest unsettled event: what holds the frontier. It is at the front, or nothing is unsettled: call it after
    /// [`advance`](Self::advance).
    pub(crate) fn oldest(&self) -> Option<&E> {
        self.entries.iter().find_map(|entry| match entry {
            Entry::Unsettled(event) => Some(event),
            Entry::Settled | Entry::Abandoned | Entry::Marker { .. } => None,
        })
    }

    /// Every unsettled event, oldest first.
    pub(crate) fn unsettled_mut(&mut self) -> impl Iterator<Item = (Seq, &mut E)> {
        (self.base..)
            .zip(self.entries.iter_mut())
            .filter_map(|(seq, entry)| match entry {
                Entry::Unsettled(event) => Some((seq, event)),
                Entry::Settled | Entry::Abandoned | Entry::Marker { .. } => None,
            })
    }

    /// Takes the unsettled events from `first` on out, leaving settled ones in their places: the rows of an open
    /// transaction, which will be read again. Numbers are never used twice.
    pub(crate) fn abandon(&mut self, first: Seq) -> Vec<(Seq, E)> {
        let from = first.max(self.base);
        (from..self.next_seq())
            .filter_map(|seq| self.take(seq, Entry::Abandoned).map(|event| (seq, event)))
            .collect()
    }

    /// Events not settled.
    pub(crate) fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Events settled beyond the frontier.
    pub(crate) fn ahead(&self) -> usize {
        self.ahead
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn law_1_the_frontier_stops_before_the_first_unsettled_event() {
        let mut tracker = Tracker::new();
        let a = tracker.push_event(());
        tracker.push_marker(10, false);
        let b = tracker.push_event(());
        tracker.push_marker(20, false);
        assert!(tracker.settle(b).is_some());
        assert_eq!(
            tracker.advance(),
            Advance {
                events: 0,
                marker: None
            }
        );
        assert_eq!(tracker.ahead(), 1);
        assert!(tracker.settle(a).is_some());
        assert!(tracker.settle(a).is_none(), "settled once");
        assert_eq!(
            tracker.advance(),
            Advance {
                events: 2,
                marker: Some(Passed {
                    position: 20,
                    urgent: false
                })
            }
        );
        assert_eq!((tracker.unsettled(), tracker.ahead()), (0, 0));
    }

    #[test]
    fn markers_do_not_pile_up_behind_a_frontier_that_stands_still() {
        let mut tracker = Tracker::new();
        let a = tracker.push_event(());
        for position in 0..10_000 {
            tracker.push_marker(position, position == 5);
        }
        assert_eq!(tracker.entries.len(), 2);
        assert!(tracker.settle(a).is_some());
        let passed = Passed {
            position: 9_999,
            urgent: true,
        };
        assert_eq!(tracker.advance().marker, Some(passed));
    }

    #[test]
    fn an_abandoned_transaction_holds_nothing_and_its_numbers_are_not_used_again() {
        let mut tracker = Tracker::new();
        let a = tracker.push_event("a");
        tracker.push_marker(10, false);
        let b = tracker.push_event("b");
        let c = tracker.push_event("c");
        assert!(tracker.settle(c).is_some());
        assert_eq!(tracker.abandon(b), vec![(b, "b")]);
        assert_eq!(tracker.ahead(), 1, "what left is not settled");
        let again = tracker.push_event("b again");
        assert!(again > c);
        assert!(tracker.settle(a).is_some());
        assert_eq!(tracker.advance().marker.map(|passed| passed.position), Some(10));
        assert_eq!(tracker.unsettled(), 1);
    }

    proptest! {
        /// Against a plain model: the position passed is the last marker before the first unsettled event.
        #[test]
        fn law_1_holds_for_any_order_of_settling(ops in prop::collection::vec(0u8..6, 1..200)) {
            let mut tracker = Tracker::new();
            let mut model: Vec<(Seq, Option<u64>, bool)> = Vec::new(); // number, marker, settled
            let mut passed = None;
            for (position, op) in (1u64..).zip(ops) {
                match op {
                    0..=2 => {
                        let seq = tracker.push_event(());
                        model.push((seq, None, false));
                    }
                    3 => {
                        tracker.push_marker(position, false);
                        model.push((0, Some(position), true));
                    }
                    _ => {
                        let open: Vec<usize> = (0..model.len()).filter(|i| !model[*i].2).collect();
                        if let Some(pick) = open.get(usize::try_from(position).unwrap_or(0) % open.len().max(1)) {
                            prop_assert!(tracker.settle(model[*pick].0).is_some());
                            model[*pick].2 = true;
                        }
                    }
                }
                if let Some(marker) = tracker.advance().marker {
                    passed = Some(marker.position);
                }
                let expected = model.iter().take_while(|entry| entry.2).filter_map(|entry| entry.1).last();
                prop_assert_eq!(passed, expected);
            }
        }
    }
}
