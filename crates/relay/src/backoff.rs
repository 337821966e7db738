//! Every delay of the relay, in one place.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// First delay after a failure; jitter lengthens it by up to itself.
const LEAST: Duration = Duration::from_millis(100);
/// Longest delay before jitter; with it 5 s.
const MOST: Duration = Duration::from_millis(2500);

/// Stores of a position that settled events stand behind are coalesced over this time.
pub(crate) const STORE_COALESCE: Duration = Duration::from_millis(100);
/// ... and over this many events.
pub(crate) const STORE_COALESCE_EVENTS: u64 = 1000;
/// A position that moved without an event is stored this often at most, so that a store in the source's own database
/// does not feed itself.
pub(crate) const STORE_IDLE: Duration = Duration::from_secs(10);
/// A try to open the broker that takes longer has failed.
pub(crate) const OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the orderly end of a connection may take when all is settled.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last store is waited for when a stop has run out of time.
pub(crate) const LAST_STORE: Duration = Duration::from_secs(1);
/// That events come back from the broker, or that there is none, is logged this often at most.
pub(crate) const COMPLAINTS: Duration = Duration::from_secs(30);
/// Gauges are refreshed this often.
pub(crate) const GAUGES: Duration = Duration::from_millis(250);

fn builder() -> ExponentialBuilder {
    ExponentialBuilder::new()
        .with_min_delay(LEAST)
        .with_max_delay(MOST)
        .with_jitter()
        .without_max_times()
}

/// Returns the delay before try number `attempt` (from 1): 100 ms, doubled each time, up to 5 s, with jitter.
pub(crate) fn delay(attempt: u32) -> Duration {
    // Past the sixteenth the delay no longer grows.
    let nth = usize::try_from(attempt.clamp(1, 16) - 1).unwrap_or(0);
    builder().build().nth(nth).unwrap_or(MOST)
}

/// The delays of one connection, one after the other.
#[derive(Debug)]
pub(crate) struct Backoff(ExponentialBackoff);

impl Default for Backoff {
    fn default() -> Self {
        Self(builder().build())
    }
}

impl Backoff {
    /// No delay: a first try.
    pub(crate) const NONE: Duration = Duration::ZERO;

    /// The next delay, at least `least`.
    pub(crate) fn next(&mut self, least: Option<Duration>) -> Duration {
        self.0.next().unwrap_or(MOST).max(least.unwrap_or_default())
    }

    /// Starts over. Called for real progress only (a confirm), else a failure that comes after each connect runs hot.
    pub(crate) fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_from_100_ms_to_5_s() {
        for (attempt, least, most) in [
            (1, 100, 200),
            (2, 200, 400),
            (5, 1600, 3200),
            (6, 2500, 5000),
            (4000, 2500, 5000),
        ] {
            let delay = delay(attempt).as_millis();
            assert!((least..=most).contains(&delay), "attempt {attempt}: {delay} ms");
        }
        let mut backoff = Backoff::default();
        assert!(backoff.next(None) <= Duration::from_millis(200));
        assert!(backoff.next(Some(Duration::from_secs(10))) >= Duration::from_secs(10));
        backoff.reset();
        assert!(backoff.next(None) <= Duration::from_millis(200));
    }
}
