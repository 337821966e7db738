//! The publishes of one generation, as futures that are polled by one task.
//!
//! Each future is polled once at the moment that it is handed over, so that delivery tags follow the order of the calls,
//! and afterwards only when it was woken. [`InFlight::pass`] is the full pass that [`crate::confirms`] asks for: it polls
//! everything that was woken before it began. That is as good as polling everything, because lapin stores a result
//! before it wakes, and each future is always registered with the promise that will be resolved next: that of the write,
//! which lapin's I/O thread resolves before it can read the confirm, or that of the confirm.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// A publish that ends when its confirm completes.
pub(crate) type Publishing<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Publishes whose confirm has not completed, each with a tag of the caller's.
pub(crate) struct InFlight<K, T> {
    slots: Vec<Slot<K, T>>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    /// Scratch of [`InFlight::pass`], kept for its capacity.
    batch: Vec<usize>,
}

struct Slot<K, T> {
    /// Kept for the slot's life: a wake that is left over from an earlier publish only costs a poll.
    bell: Arc<Bell>,
    waker: Waker,
    publish: Option<(K, Publishing<T>)>,
}

#[derive(Default)]
struct Woken {
    slots: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

struct Bell {
    slot: usize,
    /// Whether `slot` is in the list already.
    rung: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.rung.swap(true, Ordering::AcqRel) {
            self.woken
                .slots
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(self.slot);
            self.woken.task.wake();
        }
    }
}

impl<K, T> InFlight<K, T> {
    pub(crate) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            woken: Arc::default(),
            batch: Vec::new(),
        }
    }

    /// Takes over a publish and polls it for the first time. Returns its result when it ended at once.
    pub(crate) fn start(&mut self, key: K, mut publish: Publishing<T>) -> Option<(K, T)> {
        let at = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[at];
        match publish.as_mut().poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Ready(result) => {
                self.free.push(at);
                Some((key, result))
            }
            Poll::Pending => {
                slot.publish = Some((key, publish));
                None
            }
        }
    }

    /// Has the caller's task woken when there is something for a pass to do.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.woken.task.register(cx.waker());
    }

    /// Polls every publish woken before this call. Returns false when there was none.
    pub(crate) fn pass(&mut self, mut ended: impl FnMut(K, T)) -> bool {
        let mut batch = std::mem::take(&mut self.batch);
        std::mem::swap(
            &mut batch,
            &mut *self.woken.slots.lock().unwrap_or_else(PoisonError::into_inner),
        );
        let any = !batch.is_empty();
        for at in batch.drain(..) {
            let slot = &mut self.slots[at];
            // Before the poll: what is stored after it rings again.
            slot.bell.rung.store(false, Ordering::Release);
            let Some((_, publish)) = &mut slot.publish else {
                continue;
            };
            if let Poll::Ready(result) = publish.as_mut().poll(&mut Context::from_waker(&slot.waker))
                && let Some((key, _)) = slot.publish.take()
            {
                self.free.push(at);
                ended(key, result);
            }
        }
        self.batch = batch;
        any
    }

    fn grow(&mut self) -> usize {
        let slot = self.slots.len();
        let bell = Arc::new(Bell {
            slot,
            rung: AtomicBool::new(false),
            woken: self.woken.clone(),
        });
        self.slots.push(Slot {
            waker: bell.clone().into(),
            bell,
            publish: None,
        });
        slot
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    fn waiting(receiver: oneshot::Receiver<u8>) -> Publishing<u8> {
        Box::pin(async move { receiver.await.unwrap_or(0) })
    }

    fn passed(publishes: &mut InFlight<u8, u8>) -> Option<Vec<(u8, u8)>> {
        let mut ended = Vec::new();
        publishes
            .pass(|key, result| ended.push((key, result)))
            .then_some(ended)
    }

    #[test]
    fn publish_is_polled_when_it_is_handed_over_and_not_again_before_it_is_woken() {
        let mut publishes = InFlight::new();
        assert_eq!(publishes.start(1, Box::pin(async { 9 })), Some((1, 9)));
        let (_sender, receiver) = oneshot::channel();
        assert_eq!(publishes.start(2, waiting(receiver)), None);
        assert_eq!(passed(&mut publishes), None);
    }

    #[test]
    fn pass_polls_everything_woken_before_it() {
        let mut publishes = InFlight::new();
        let senders: Vec<_> = (0..100)
            .map(|key| {
                let (sender, receiver) = oneshot::channel();
                assert_eq!(publishes.start(key, waiting(receiver)), None);
                sender
            })
            .collect();
        for (sender, result) in senders.into_iter().zip(100..) {
            sender.send(result).unwrap();
        }
        let ended = passed(&mut publishes).unwrap();
        assert_eq!(ended, (0..100).zip(100..).collect::<Vec<_>>());
        assert_eq!(passed(&mut publishes), None);
    }

    #[test]
    fn slot_is_used_again_and_a_left_over_wake_ends_nothing() {
        let mut publishes = InFlight::new();
        let (first, receiver) = oneshot::channel();
        publishes.start(1, waiting(receiver));
        first.send(11).unwrap();
        let stale = publishes.slots[0].waker.clone();
        assert_eq!(passed(&mut publishes), Some(vec![(1, 11)]));
        let (second, receiver) = oneshot::channel();
        publishes.start(2, waiting(receiver));
        assert_eq!(publishes.slots.len(), 1);
        stale.wake();
        assert_eq!(passed(&mut publishes), Some(vec![]));
        second.send(22).unwrap();
        assert_eq!(passed(&mut publishes), Some(vec![(2, 22)]));
    }
}
