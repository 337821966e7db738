//! The memory bound (law 8): a budget of bytes that every row read takes a share of, and gives back when it is settled.
//! Who finds it empty waits: that is the backpressure on the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What an event takes beside the bytes of its row: its entry, its message's properties and headers.
const OVERHEAD: usize = 1024;

/// The budget. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    bytes: Arc<Semaphore>,
    total: u32,
    waiting: Arc<AtomicBool>,
}

/// A share of the budget; dropping it gives it back.
#[derive(Debug, Default)]
pub(crate) struct Share {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// A budget of `bytes`; at least one byte, at most 4 GiB.
    pub(crate) fn new(bytes: usize) -> Self {
        let total = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        let permits = usize::try_from(total)
            .unwrap_or(Semaphore::MAX_PERMITS)
            .min(Semaphore::MAX_PERMITS);
        Self {
            bytes: Arc::new(Semaphore::new(permits)),
            total,
            waiting: Arc::default(),
        }
    }

    /// Waits for a share for a row of `size` bytes. A row larger than the whole waits until everything is given back and
    /// goes alone. Cancel-safe; first come, first served.
    pub(crate) async fn take(&self, size: usize) -> Share {
        let bytes = u32::try_from(size.saturating_add(OVERHEAD))
            .unwrap_or(u32::MAX)
            .min(self.total);
        if let Ok(permit) = Arc::clone(&self.bytes).try_acquire_many_owned(bytes) {
            return Share {
                _permit: Some(permit),
            };
        }
        self.waiting.store(true, Relaxed);
        // Nobody closes the semaphore, so that this never fails.
        let permit = Arc::clone(&self.bytes).acquire_many_owned(bytes).await.ok();
        self.waiting.store(false, Relaxed);
        Share { _permit: permit }
    }

    /// Tells whether the bound has stopped the source: somebody waits for a share.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.waiting.load(Relaxed)
    }

    /// Bytes taken.
    pub(crate) fn taken(&self) -> u64 {
        u64::from(self.total).saturating_sub(self.bytes.available_permits() as u64)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn law_8_a_row_larger_than_the_bound_waits_for_all_and_goes_alone() {
        let budget = Budget::new(10_000);
        let small = budget.take(1000).await;
        let huge = budget.clone();
        let mut huge = tokio::spawn(async move { huge.take(1 << 30).await });
        assert!(
            tokio::time::timeout(Duration::from_secs(1), &mut huge)
                .await
                .is_err(),
            "it must wait"
        );
        assert!(budget.is_exhausted());
        drop(small);
        let share = huge.await.expect("the task lives");
        assert_eq!(budget.taken(), 10_000);
        assert!(!budget.is_exhausted());
        drop(share);
        assert_eq!(budget.taken(), 0);
    }
}
