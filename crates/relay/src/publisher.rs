//! The sink as the relay drives it: up, opening, or waiting for the relay's verdict on a failure.

use std::future::Future;
use std::pin::Pin;

use tokio::time::{Duration, sleep, timeout};

use crate::backoff::OPEN_TIMEOUT;
use crate::{Disposition, Failure, Outcome, Sink};

type Opening<K> = Pin<Box<dyn Future<Output = (K, Result<(), Failure>)> + Send>>;

enum State<K> {
    Up(K),
    Opening(Opening<K>),
    /// Failed; nothing happens until [`Publisher::open_after`].
    Down(K),
    /// Only within a method.
    Moving,
}

/// What the sink did.
pub(crate) enum Happened {
    /// A new generation is open.
    Opened,
    /// Messages were answered.
    Outcomes,
    /// The generation could not be opened.
    Failed(Failure),
    /// The generation ended.
    Lost(Failure),
}

pub(crate) struct Publisher<K>(State<K>);

impl<K: Sink> Publisher<K> {
    pub(crate) fn new(sink: K) -> Self {
        Self(State::Down(sink))
    }

    /// Opens a new generation after `delay`.
    pub(crate) fn open_after(&mut self, delay: Duration) {
        self.0 = match std::mem::replace(&mut self.0, State::Moving) {
            State::Up(sink) | State::Down(sink) => State::Opening(Box::pin(open(sink, delay))),
            other => other,
        };
    }

    /// The sink, while a generation is open.
    pub(crate) fn up(&mut self) -> Option<&mut K> {
        match &mut self.0 {
            State::Up(sink) => Some(sink),
            State::Opening(_) | State::Down(_) | State::Moving => None,
        }
    }

    /// Waits for the next thing to happen; pends while down. Cancel-safe.
    pub(crate) async fn next(&mut self, outcomes: &mut Vec<Outcome>) -> Happened {
        match &mut self.0 {
            State::Up(sink) => match sink.next(outcomes).await {
                Ok(()) => Happened::Outcomes,
                Err(failure) => {
                    self.take_down();
                    Happened::Lost(failure)
                }
            },
            State::Opening(opening) => {
                let (sink, result) = opening.as_mut().await;
                match result {
                    Ok(()) => {
                        self.0 = State::Up(sink);
                        Happened::Opened
                    }
                    Err(failure) => {
                        self.0 = State::Down(sink);
                        Happened::Failed(failure)
                    }
                }
            }
            State::Down(_) | State::Moving => std::future::pending().await,
        }
    }

    /// Ends the generation: nothing of it is listened to any more.
    pub(crate) fn take_down(&mut self) {
        self.0 = match std::mem::replace(&mut self.0, State::Moving) {
            State::Up(mut sink) => {
                sink.abandon();
                State::Down(sink)
            }
            other => other,
        };
    }

    /// Closes in order.
    pub(crate) async fn close(self, patience: Duration) {
        if let State::Up(mut sink) = self.0
            && timeout(patience, sink.close()).await.is_err()
        {
            tracing::warn!("the broker did not answer the close in time");
        }
    }
}

async fn open<K: Sink>(mut sink: K, delay: Duration) -> (K, Result<(), Failure>) {
    sleep(delay).await;
    let result = match timeout(OPEN_TIMEOUT, sink.connect()).await {
        Ok(result) => result,
        Err(elapsed) => Err(Failure::new(elapsed, Disposition::Retry { after: None })),
    };
    (sink, result)
}
