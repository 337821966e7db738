//! How often the server failed at one place of the log, over the streams of one source.

use std::sync::{Arc, Mutex, PoisonError};

use tailpost_pgoutput::Lsn;

/// Failures in a row at one place. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<Mutex<Option<(Lsn, u32)>>>);

impl Failures {
    /// Counts a failure at `place`; one at another place begins anew.
    pub(crate) fn count(&self, place: Lsn) -> u32 {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let times = match *last {
            Some((before, times)) if before == place => times.saturating_add(1),
            _ => 1,
        };
        *last = Some((place, times));
        times
    }

    /// The log was read on.
    pub(crate) fn reset(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_at_one_place_add_up() {
        let failures = Failures::default();
        let other_stream = failures.clone();
        assert_eq!((failures.count(Lsn(5)), other_stream.count(Lsn(5))), (1, 2));
        assert_eq!(failures.count(Lsn(6)), 1);
        failures.reset();
        assert_eq!(failures.count(Lsn(6)), 1);
    }
}
