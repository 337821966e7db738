//! The source task: opens the stream, reads it, and hands its items over within the memory bound. It opens again after a
//! failure, from the last place *received* at which the log may be resumed, once the relay has agreed.

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Duration, sleep, timeout};

use crate::backoff::LAST_STORE;
use crate::budget::{Budget, Share};
use crate::{Disposition, Failure, Item, Source, Stream};

/// Items between the source task and the relay; rows among them hold shares of the budget.
const ITEMS: usize = 256;

/// An item with its share of the memory bound.
pub(crate) type Received<P> = (Item<P>, Share);

/// What the source task tells the relay, out of line with the items.
pub(crate) enum Signal<P> {
    /// The stream is open. Nothing of it is handed over before `go` is answered.
    Opened {
        resume: Option<P>,
        start: P,
        go: oneshot::Sender<()>,
    },
    /// The stream could not be opened or is lost. It is not tried again before `verdict` says so.
    Failed {
        failure: Failure,
        was_open: bool,
        verdict: oneshot::Sender<Verdict>,
    },
    /// After a stop: no more items will come.
    Stopped,
}

/// What the relay answers to a failure.
#[derive(Debug)]
pub(crate) enum Verdict {
    RetryAfter(Duration),
    GiveUp,
}

/// The relay's end of the source task.
pub(crate) struct Intake<P> {
    pub(crate) items: mpsc::Receiver<Received<P>>,
    pub(crate) signals: mpsc::Receiver<Signal<P>>,
    stop: watch::Sender<bool>,
    finish: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), Failure>>,
}

impl<P> Intake<P> {
    /// Starts the task. `resume` is the stored position.
    pub(crate) fn start<S>(
        source: S,
        resume: Option<P>,
        stored: watch::Receiver<Option<P>>,
        budget: Budget,
    ) -> Self
    where
        S: Source<Position = P>,
        P: crate::Position,
    {
        let (items_out, items) = mpsc::channel(ITEMS);
        let (signals_out, signals) = mpsc::channel(4);
        let (stop, stop_seen) = watch::channel(false);
        let (finish, finish_seen) = oneshot::channel();
        let reader = Reader {
            source,
            resume,
            stored,
            budget,
            items: items_out,
            signals: signals_out,
            stop: stop_seen,
            was_open: false,
        };
        let task = tokio::spawn(reader.run(finish_seen));
        Self {
            items,
            signals,
            stop,
            finish: Some(finish),
            task,
        }
    }

    /// Asks it to read on to the open transaction's end, and no further. The connection stays until
    /// [`finish`](Self::finish), its feedback goes on.
    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Reports what is stored and closes the connection in order. Fails when the server did not take the report.
    pub(crate) async fn finish(mut self, patience: Duration) -> Result<(), Failure> {
        // Who waits to hand something over, or for an answer, is to stop waiting: nobody takes it any more.
        let Self { items, signals, .. } = &mut self;
        items.close();
        signals.close();
        while signals.try_recv().is_ok() {}
        while items.try_recv().is_ok() {}
        drop(self.finish.take());
        match timeout(patience, &mut self.task).await {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => Err(Failure::new(panic, Disposition::Halt(crate::Cause::Unexpected))),
            Err(elapsed) => {
                self.task.abort();
                Err(Failure::new(elapsed, Disposition::Retry { after: None }))
            }
        }
    }
}

struct Reader<S: Source> {
    source: S,
    /// The last place received at which the log may be resumed.
    resume: Option<S::Position>,
    stored: watch::Receiver<Option<S::Position>>,
    budget: Budget,
    items: mpsc::Sender<Received<S::Position>>,
    signals: mpsc::Sender<Signal<S::Position>>,
    stop: watch::Receiver<bool>,
    /// A stream was open once: there may be something to report.
    was_open: bool,
}

/// Why reading ended.
enum End {
    Stopped,
    Failed(Failure),
    /// The relay is gone.
    Gone,
}

impl<S: Source> Reader<S> {
    async fn run(mut self, finish: oneshot::Receiver<()>) -> Result<(), Failure> {
        loop {
            let (failure, was_open) = match self.open().await {
                None => return self.stopped(None, finish).await,
                Some(Err(failure)) => (failure, false),
                Some(Ok(mut stream)) => match self.read(&mut stream).await {
                    End::Stopped => return self.stopped(Some(stream), finish).await,
                    End::Failed(failure) => (failure, true),
                    End::Gone => return leave(stream).await,
                },
            };
            let (verdict, answer) = oneshot::channel();
            let told = self
                .signals
                .send(Signal::Failed {
                    failure,
                    was_open,
                    verdict,
                })
                .await;
            let Ok(Verdict::RetryAfter(delay)) = answer.await else {
                return Ok(());
            };
            if told.is_err() {
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stop_requested(&mut self.stop) => return self.stopped(None, finish).await,
                () = sleep(delay) => {}
            }
        }
    }

    /// Opens the stream; `None` when a stop came first.
    async fn open(&mut self) -> Option<Result<S::Stream, Failure>> {
        let opened = tokio::select! {
            biased;
            () = stop_requested(&mut self.stop) => return None,
            opened = self.source.open(self.resume.clone(), self.stored.clone()) => opened,
        };
        Some(opened)
    }

    async fn read(&mut self, stream: &mut S::Stream) -> End {
        let (go, gone) = oneshot::channel();
        let start = stream.start().clone();
        let opened = Signal::Opened {
            resume: self.resume.take(),
            start: start.clone(),
            go,
        };
        self.resume = Some(start);
        self.was_open = true;
        if self.signals.send(opened).await.is_err() || gone.await.is_err() {
            return End::Gone;
        }
        let mut open = false;
        loop {
            let item = tokio::select! {
                biased;
                () = stop_requested(&mut self.stop), if !open => return End::Stopped,
                () = self.items.closed() => return End::Gone,
                item = stream.next() => item,
            };
            let item = match item {
                Ok(item) => item,
                Err(failure) => return End::Failed(failure),
            };
            let mut share = Share::default();
            match &item {
                Item::Begin => open = true,
                Item::Row(row) => {
                    share = tokio::select! {
                        biased;
                        share = self.budget.take(row.size) => share,
                        () = self.items.closed() => return End::Gone,
                    };
                }
                Item::Oversized { .. } => {}
                Item::End { position, .. } => {
                    open = false;
                    self.resume = Some(position.clone());
                }
                Item::Keepalive { position, .. } if !open => self.resume = Some(position.clone()),
                Item::Keepalive { .. } => continue,
            }
            if self.items.send((item, share)).await.is_err() {
                return End::Gone;
            }
        }
    }

    /// After a stop: keeps the connection, feedback included, until the relay has stored all.
    async fn stopped(self, stream: Option<S::Stream>, finish: oneshot::Receiver<()>) -> Result<(), Failure> {
        drop(self.items);
        // The relay may be gone: then there is nobody to tell, and the stream just closes.
        if self.signals.send(Signal::Stopped).await.is_err() {
            return Ok(());
        }
        // Ends when the relay drops its end: that is the request.
        let _request = finish.await;
        match stream {
            Some(stream) => stream.finish().await,
            None if self.was_open => Err(Failure::new(
                "the source was not connected",
                Disposition::Retry { after: None },
            )),
            None => Ok(()),
        }
    }
}

/// The relay waits no longer: what is stored is still reported, if the server takes it at once.
async fn leave(stream: impl Stream) -> Result<(), Failure> {
    match timeout(LAST_STORE, stream.finish()).await {
        Ok(result) => result,
        Err(elapsed) => Err(Failure::new(elapsed, Disposition::Retry { after: None })),
    }
}

async fn stop_requested(stop: &mut watch::Receiver<bool>) {
    // An error means that the relay is gone, which is a stop as well.
    let _seen = stop.wait_for(|stop| *stop).await;
}
