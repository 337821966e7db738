//! When a position is stored: coalesced while events are settled, seldom while nothing but the log moves.

use std::time::Duration;

use tokio::time::Instant;

use crate::backoff::{STORE_COALESCE, STORE_COALESCE_EVENTS, STORE_IDLE};
use crate::tracker::Advance;

#[derive(Debug)]
pub(crate) struct Ledger<P> {
    /// The newest position that may be stored, not yet handed to the store.
    pending: Option<P>,
    /// Events that `pending` stands for.
    events: u64,
    /// Events passed that no position stands for yet: their transaction's end is to come.
    events_open: u64,
    urgent: bool,
    /// When the first of `events` was passed.
    since: Instant,
    last_store: Instant,
    storing: bool,
    failing: bool,
    /// The store refused for good: nothing is handed to it any more.
    refused: bool,
}

impl<P: Clone> Ledger<P> {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            pending: None,
            events: 0,
            events_open: 0,
            urgent: false,
            since: now,
            last_store: now,
            storing: false,
            failing: false,
            refused: false,
        }
    }

    /// The frontier moved.
    pub(crate) fn passed(&mut self, advance: Advance<P>, now: Instant) {
        self.events_open += advance.events;
        let Some(marker) = advance.marker else { return };
        if self.events == 0 && self.events_open > 0 {
            self.since = now;
        }
        self.pending = Some(marker.position);
        self.urgent |= marker.urgent;
        self.events += std::mem::take(&mut self.events_open);
    }

    /// When `pending` is due; `None` when there is nothing to store, or a store is on its way.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        if self.storing || self.refused || self.pending.is_none() {
            return None;
        }
        let wait = if self.urgent || self.events >= STORE_COALESCE_EVENTS {
            Duration::ZERO
        } else if self.events > 0 {
            STORE_COALESCE
        } else {
            return Some(self.last_store + STORE_IDLE);
        };
        Some(self.since + wait)
    }

    /// Takes the position that is due for storing. At a stop (`now_or_never`) whatever is pending is due.
    pub(crate) fn take_due(&mut self, now: Instant, now_or_never: bool) -> Option<P> {
        let due = self.next_deadline()?;
        if due > now && !now_or_never {
            return None;
        }
        self.storing = true;
        self.urgent = false;
        self.events = 0;
        self.last_store = now;
        self.pending.take()
    }

    /// The store that was under way is done.
    pub(crate) fn stored(&mut self) {
        self.storing = false;
        self.failing = false;
    }

    /// The store that is under way has failed; its keeper tries again.
    pub(crate) fn failed(&mut self) {
        self.failing = true;
    }

    /// The store has refused for good.
    pub(crate) fn refused(&mut self) {
        self.storing = false;
        self.refused = true;
    }

    /// Whether a store keeps failing: intake stops, so that what a crash repeats stays bounded.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing
    }

    /// Nothing is left to store.
    pub(crate) fn is_clean(&self) -> bool {
        self.refused || (self.pending.is_none() && !self.storing)
    }

    /// Drops what is pending.
    pub(crate) fn forget(&mut self, now: Instant) {
        let Self {
            storing,
            failing,
            refused,
            ..
        } = *self;
        *self = Self {
            storing,
            failing,
            refused,
            ..Self::new(now)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tracker::Passed;

    fn advance(events: u64, position: Option<u64>, urgent: bool) -> Advance<u64> {
        Advance {
            events,
            marker: position.map(|position| Passed { position, urgent }),
        }
    }

    #[test]
    fn stores_are_coalesced_over_100_ms_or_1000_events() {
        let t0 = Instant::now();
        let mut ledger = Ledger::new(t0);
        ledger.passed(advance(1, Some(1), false), t0);
        assert_eq!(ledger.take_due(t0 + Duration::from_millis(99), false), None);
        ledger.passed(advance(1, Some(2), false), t0 + Duration::from_millis(99));
        assert_eq!(ledger.take_due(t0 + Duration::from_millis(100), false), Some(2));
        ledger.passed(advance(2000, Some(3), false), t0);
        assert_eq!(
            ledger.take_due(t0 + Duration::from_secs(1), false),
            None,
            "one store at a time"
        );
        ledger.stored();
        assert_eq!(ledger.take_due(t0 + Duration::from_millis(101), false), Some(3));
    }

    #[test]
    fn a_position_that_moved_without_an_event_is_stored_every_10_s_or_when_asked() {
        let t0 = Instant::now();
        let mut ledger = Ledger::new(t0);
        ledger.passed(advance(0, Some(1), false), t0 + Duration::from_secs(1));
        assert_eq!(ledger.take_due(t0 + Duration::from_secs(9), false), None);
        assert_eq!(ledger.take_due(t0 + Duration::from_secs(10), false), Some(1));
        ledger.stored();
        ledger.passed(advance(0, Some(2), true), t0 + Duration::from_secs(11));
        assert_eq!(ledger.take_due(t0 + Duration::from_secs(11), false), Some(2));
    }

    #[test]
    fn events_whose_transaction_is_open_make_no_store_due() {
        let t0 = Instant::now();
        let mut ledger = Ledger::new(t0);
        ledger.passed(advance(5000, None, false), t0);
        assert_eq!(ledger.take_due(t0 + Duration::from_secs(60), true), None);
        ledger.passed(advance(0, Some(9), false), t0);
        assert_eq!(ledger.take_due(t0, false), Some(9));
    }
}
