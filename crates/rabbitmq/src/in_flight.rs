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

/// Room for one publish at a time. lapin's futures are larger than what malloc keeps at hand, so the room is used again
/// by later publishes.
pub(crate) trait Seat<J, T>: Send {
    /// Makes the future of `job`.
    fn begin(&mut self, job: J);
    /// Polls it; it is gone when it ends. Pends when there is none.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<T>;
}

/// A [`Seat`] whose futures `make` makes.
pub(crate) struct Boxed<M, F> {
    make: M,
    future: Pin<Box<Option<F>>>,
}

impl<M, F> Boxed<M, F> {
    pub(crate) fn new(make: M) -> Self {
        Self {
            make,
            future: Box::pin(None),
        }
    }
}

impl<J, M: Fn(J) -> F + Send, F: Future + Send> Seat<J, F::Output> for Boxed<M, F> {
    fn begin(&mut self, job: J) {
        self.future.set(Some((self.make)(job)));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Some(future) = self.future.as_mut().as_pin_mut() else {
            return Poll::Pending;
        };
        let result = future.poll(cx);
        if result.is_ready() {
            self.future.set(None);
        }
        result
    }
}

/// Publishes whose confirm has not completed, each with a key of the caller's.
pub(crate) struct InFlight<K, J, T> {
    seats: fn() -> Box<dyn Seat<J, T>>,
    slots: Vec<Slot<K, J, T>>,
    free: Vec<usize>,
    woken: Arc<Woken>,
    /// Scratch of [`InFlight::pass`], kept for its capacity.
    batch: Vec<usize>,
}

struct Slot<K, J, T> {
    /// Kept for the slot's life: a wake that is left over from an earlier publish only costs a poll.
    bell: Arc<Bell>,
    waker: Waker,
    key: Option<K>,
    seat: Box<dyn Seat<J, T>>,
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

impl<K, J, T> InFlight<K, J, T> {
    pub(crate) fn new(seats: fn() -> Box<dyn Seat<J, T>>) -> Self {
        Self {
            seats,
            slots: Vec::new(),
            free: Vec::new(),
            woken: Arc::default(),
            batch: Vec::new(),
        }
    }

    /// Takes over a publish and polls it for the first time. Returns its result when it ended at once.
    pub(crate) fn start(&mut self, key: K, job: J) -> Option<(K, T)> {
        let at = self.free.pop().unwrap_or_else(|| self.grow());
        let slot = &mut self.slots[at];
        slot.seat.begin(job);
        match slot.seat.poll(&mut Context::from_waker(&slot.waker)) {
            Poll::Ready(result) => {
                self.free.push(at);
                Some((key, result))
            }
            Poll::Pending => {
                slot.key = Some(key);
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
            if let Poll::Ready(result) = slot.seat.poll(&mut Context::from_waker(&slot.waker))
                && let Some(key) = slot.key.take()
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
        let waker = bell.clone().into();
        self.slots.push(Slot {
            bell,
            waker,
            key: None,
            seat: (self.seats)(),
        });
        slot
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    type Publishes = InFlight<u8, oneshot::Receiver<u8>, u8>;

    fn publishes() -> Publishes {
        InFlight::new(|| {
            Box::new(Boxed::new(|receiver: oneshot::Receiver<u8>| async {
                receiver.await.unwrap_or(0)
            }))
        })
    }

    fn passed(publishes: &mut Publishes) -> Option<Vec<(u8, u8)>> {
        let mut ended = Vec::new();
        publishes
            .pass(|key, result| ended.push((key, result)))
            .then_some(ended)
    }

    #[test]
    fn publish_is_polled_when_it_is_handed_over_and_not_again_before_it_is_woken() {
        let mut publishes = publishes();
        let (sender, receiver) = oneshot::channel();
        sender.send(9).unwrap();
        assert_eq!(publishes.start(1, receiver), Some((1, 9)));
        let (_sender, receiver) = oneshot::channel();
        assert_eq!(publishes.start(2, receiver), None);
        assert_eq!(passed(&mut publishes), None);
    }

    #[test]
    fn pass_polls_everything_woken_before_it() {
        let mut publishes = publishes();
        let senders: Vec<_> = (0..100)
            .map(|key| {
                let (sender, receiver) = oneshot::channel();
                assert_eq!(publishes.start(key, receiver), None);
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
        let mut publishes = publishes();
        let (first, receiver) = oneshot::channel();
        publishes.start(1, receiver);
        first.send(11).unwrap();
        let stale = publishes.slots[0].waker.clone();
        assert_eq!(passed(&mut publishes), Some(vec![(1, 11)]));
        let (second, receiver) = oneshot::channel();
        publishes.start(2, receiver);
        assert_eq!(publishes.slots.len(), 1);
        stale.wake();
        assert_eq!(passed(&mut publishes), Some(vec![]));
        second.send(22).unwrap();
        assert_eq!(passed(&mut publishes), Some(vec![(2, 22)]));
    }
}
