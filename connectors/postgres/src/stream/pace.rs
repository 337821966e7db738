//! How far the stream is, when the relay should hurry, and when the server wants to go. Plain values with injected time.

use std::time::Duration;

use tailpost_pgoutput::Lsn;
use tokio::time::Instant;

/// A position that moved so far wants to be stored soon, bytes.
const FAR: u64 = 16 << 20;
/// How long a server may ask in vain before it is taken to be shutting down.
const FAREWELL_AFTER: Duration = Duration::from_secs(10);
/// Asking more seldom than this is the ordinary `wal_sender_timeout`.
const BURST_GAP_MAX: Duration = Duration::from_secs(2);

/// The positions that were yielded, which never move backward.
#[derive(Debug)]
pub(crate) struct Pace {
    position: Lsn,
    /// The last position that was marked urgent.
    marked: Lsn,
}

impl Pace {
    pub(crate) fn new(start: Lsn) -> Self {
        Self {
            position: start,
            marked: start,
        }
    }

    /// The last place at which the log may be resumed.
    pub(crate) fn position(&self) -> Lsn {
        self.position
    }

    /// Notes a transaction's end, and tells whether it is urgent: it is far from what is stored, and from the last urgent
    /// one, so that a backlog does not make every transaction urgent.
    pub(crate) fn end(&mut self, lsn: Lsn, stored: Lsn) -> bool {
        self.position = self.position.max(lsn);
        self.mark(lsn, false, stored)
    }

    /// Notes a keepalive. `None` where it tells nothing new: after a restart the server begins with places long passed.
    pub(crate) fn keepalive(&mut self, wal_end: Lsn, asked: bool, stored: Lsn) -> Option<bool> {
        if wal_end < self.position {
            return None;
        }
        let moved = wal_end > self.position;
        self.position = wal_end;
        let urgent = self.mark(wal_end, asked, stored);
        (moved || urgent).then_some(urgent)
    }

    fn mark(&mut self, lsn: Lsn, asked: bool, stored: Lsn) -> bool {
        let far = lsn.0.saturating_sub(self.marked.max(stored).0) > FAR;
        let urgent = far || (asked && lsn > self.marked && lsn > stored);
        if urgent {
            self.marked = lsn;
        }
        urgent
    }
}

/// Notices a server that waits for us before it can shut down: it asks again at each of our answers, has nothing to send,
/// and wants a place that we cannot store.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    burst: Option<Burst>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    wal_end: Lsn,
    since: Instant,
    last: Instant,
}

impl Farewell {
    /// Notes that the server sends data.
    pub(crate) fn data(&mut self) {
        self.burst = None;
    }

    /// Notes a keepalive, and tells whether the server has waited long enough.
    pub(crate) fn keepalive(&mut self, now: Instant, wal_end: Lsn, asked: bool, stored: Lsn) -> bool {
        if !asked || stored >= wal_end {
            // A keepalive that asks for nothing may come between two that do.
            self.burst = self
                .burst
                .filter(|burst| burst.wal_end == wal_end && stored < wal_end);
            return false;
        }
        let since = match self.burst {
            Some(burst) if burst.wal_end == wal_end && now - burst.last <= BURST_GAP_MAX => burst.since,
            _ => now,
        };
        self.burst = Some(Burst {
            wal_end,
            since,
            last: now,
        });
        now - since >= FAREWELL_AFTER
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_keepalive_of_a_place_long_passed_moves_nothing() {
        let mut pace = Pace::new(Lsn(1000));
        assert_eq!(pace.keepalive(Lsn(500), true, Lsn(1000)), None);
        assert_eq!(pace.keepalive(Lsn(1000), false, Lsn(1000)), None);
        assert_eq!(pace.keepalive(Lsn(1001), false, Lsn(1000)), Some(false));
        assert_eq!(pace.position(), Lsn(1001));
    }

    #[test]
    fn a_keepalive_that_asks_is_urgent_once_at_each_place() {
        let mut pace = Pace::new(Lsn(1000));
        assert_eq!(pace.keepalive(Lsn(2000), false, Lsn(1000)), Some(false));
        assert_eq!(pace.keepalive(Lsn(2000), true, Lsn(1000)), Some(true));
        assert_eq!(pace.keepalive(Lsn(2000), true, Lsn(1000)), None);
        assert_eq!(pace.keepalive(Lsn(3000), true, Lsn(3000)), Some(false));
    }

    #[test]
    fn a_backlog_is_urgent_every_16_mebibytes_not_at_every_transaction() {
        let mut pace = Pace::new(Lsn(0));
        let urgent = (1..=100).filter(|mib| pace.end(Lsn(mib << 20), Lsn(0))).count();
        assert_eq!(urgent, 5);
    }

    proptest! {
        #[test]
        fn positions_never_move_backward(steps in prop::collection::vec((any::<bool>(), 0_u64..100, any::<bool>()), 0..50)) {
            let mut pace = Pace::new(Lsn(10));
            let mut last = pace.position();
            for (end, lsn, asked) in steps {
                if end {
                    pace.end(Lsn(lsn), Lsn(0));
                } else if pace.keepalive(Lsn(lsn), asked, Lsn(0)).is_some() {
                    prop_assert!(Lsn(lsn) >= last);
                }
                prop_assert!(pace.position() >= last);
                last = pace.position();
            }
        }
    }

    /// Asks every `gap` for `total`, and returns when the farewell was noticed.
    fn ask(
        farewell: &mut Farewell,
        from: Instant,
        gap: Duration,
        total: Duration,
        stored: Lsn,
    ) -> Option<Duration> {
        let mut passed = Duration::ZERO;
        while passed <= total {
            if farewell.keepalive(from + passed, Lsn(100), true, stored) {
                return Some(passed);
            }
            passed += gap;
        }
        None
    }

    #[test]
    fn a_server_that_asks_in_vain_for_ten_seconds_is_shutting_down() {
        let (now, gap, total) = (
            Instant::now(),
            Duration::from_millis(100),
            Duration::from_secs(30),
        );
        assert_eq!(
            ask(&mut Farewell::default(), now, gap, total, Lsn(99)),
            Some(FAREWELL_AFTER)
        );
    }

    #[test]
    fn a_server_that_asks_seldom_or_gets_what_it_wants_is_not_shutting_down() {
        let (now, total) = (Instant::now(), Duration::from_secs(300));
        assert_eq!(
            ask(
                &mut Farewell::default(),
                now,
                Duration::from_secs(30),
                total,
                Lsn(99)
            ),
            None
        );
        assert_eq!(
            ask(
                &mut Farewell::default(),
                now,
                Duration::from_millis(100),
                total,
                Lsn(100)
            ),
            None
        );
    }

    #[test]
    fn data_between_two_requests_means_that_the_server_goes_on() {
        let (mut farewell, now, gap) = (Farewell::default(), Instant::now(), Duration::from_millis(100));
        let nine = Duration::from_secs(9);
        assert_eq!(ask(&mut farewell, now, gap, nine, Lsn(99)), None);
        farewell.data();
        assert_eq!(ask(&mut farewell, now + nine, gap, nine, Lsn(99)), None);
    }
}
