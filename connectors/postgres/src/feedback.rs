//! Standby status updates: what is received and what is stored, told to the server in time, whether anybody reads or not.
//!
//! Laws held here: nothing beyond what is stored is reported as flushed (law 2), and a reader that pauses (backpressure)
//! is no reason for the server to drop us. [`FeedbackState`] decides what is sent when; [`Feedback`] is the task
//! around it, which owns the writing half.
//!
//! Source: PostgreSQL manual, "Streaming Replication Protocol", "Standby status update".

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::BytesMut;
use postgres_protocol::message::frontend::{self, CopyData};
use tailpost_pgoutput::{EPOCH_UNIX_US, Lsn, StandbyStatus};
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;

use crate::PgError;
use crate::position::PgPosition;
use crate::tasks::Task;

/// The longest pause between two updates.
const INTERVAL_MAX: Duration = Duration::from_secs(10);
/// The least pause before an update that says nothing new: a server that shuts down asks again at every answer.
const REPEAT_MIN: Duration = Duration::from_millis(100);
/// How long the server may leave an update unread.
const WRITE_MAX: Duration = Duration::from_secs(30);

/// Returns the pause between two updates: a third of `wal_sender_timeout`, at most 10 s. Zero is no time-out.
pub(crate) fn interval(wal_sender_timeout: Duration) -> Duration {
    if wal_sender_timeout.is_zero() {
        INTERVAL_MAX
    } else {
        INTERVAL_MAX.min(wal_sender_timeout / 3)
    }
}

/// Decides what is sent when. A plain value with injected time.
#[derive(Debug)]
pub(crate) struct FeedbackState {
    interval: Duration,
    /// Report a newly stored position at once.
    eager: bool,
    received: Lsn,
    stored: Lsn,
    asked: bool,
    last: Option<Sent>,
    /// How often the server was heard.
    heard: u64,
    /// `heard` when the server was last asked for an answer.
    pinged: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sent {
    at: Instant,
    write: Lsn,
    flush: Lsn,
    heard: u64,
}

impl FeedbackState {
    /// `confirmed` is what the server itself holds for reported.
    pub(crate) fn new(interval: Duration, eager: bool, confirmed: Lsn) -> Self {
        Self {
            interval,
            eager,
            received: Lsn::ZERO,
            stored: confirmed,
            asked: false,
            last: None,
            heard: 0,
            pinged: None,
        }
    }

    /// Notes the place up to which all is read.
    pub(crate) fn received(&mut self, lsn: Lsn) {
        self.received = self.received.max(lsn);
    }

    /// Notes the place up to which all is stored.
    pub(crate) fn stored(&mut self, lsn: Lsn) {
        self.stored = self.stored.max(lsn);
    }

    /// Notes that the server wants an answer.
    pub(crate) fn ask(&mut self) {
        self.asked = true;
    }

    /// Notes how often the server was heard.
    pub(crate) fn heard(&mut self, times: u64) {
        self.heard = times;
    }

    /// When the next update is due; `now` or earlier means at once.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let Some(last) = self.last else { return now };
        let news = self.stored != last.flush || self.write() != last.write;
        if (self.asked && news) || (self.eager && self.stored != last.flush) {
            return now;
        }
        let pause = if self.asked {
            REPEAT_MIN.min(self.interval)
        } else {
            self.interval
        };
        last.at + pause
    }

    /// Takes the update that is due, if one is. `clock` is in microseconds since 2000-01-01.
    pub(crate) fn take(&mut self, now: Instant, clock: i64) -> Option<StandbyStatus> {
        (self.due(now) <= now).then(|| self.status(now, clock))
    }

    /// Makes an update, due or not. A server that hears from us in time and has nothing to send is silent for ever, like
    /// a dead link; so it is asked for an answer when nothing was heard since the last update, and not again before it
    /// was heard: while nobody reads, answers must not pile up.
    pub(crate) fn status(&mut self, now: Instant, clock: i64) -> StandbyStatus {
        self.asked = false;
        let (write, flush, heard) = (self.write(), self.stored, self.heard);
        let reply = self.last.is_some_and(|last| last.heard == heard) && self.pinged != Some(heard);
        if reply {
            self.pinged = Some(heard);
        }
        self.last = Some(Sent {
            at: now,
            write,
            flush,
            heard,
        });
        StandbyStatus {
            write,
            flush,
            apply: flush,
            clock,
            reply,
        }
    }

    fn write(&self) -> Lsn {
        self.received.max(self.stored)
    }
}

/// What the reader tells the writer.
#[derive(Debug, Default)]
struct Shared {
    received: AtomicU64,
    heard: AtomicU64,
    asked: AtomicBool,
    wake: Notify,
}

enum Order {
    /// Report what is stored, end the copy, and say when that is written.
    Finish(oneshot::Sender<()>),
    /// Say goodbye.
    Terminate,
}

/// The writer task. Dropping it ends the task.
#[derive(Debug)]
pub(crate) struct Feedback {
    shared: Arc<Shared>,
    orders: mpsc::Sender<Order>,
    task: Task,
}

impl Feedback {
    /// Starts the task. It tells `ended` why, when it ends by itself.
    pub(crate) fn spawn<W: AsyncWrite + Unpin + Send + 'static>(
        writer: W,
        state: FeedbackState,
        stored: watch::Receiver<Option<PgPosition>>,
        ended: mpsc::Sender<PgError>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let (orders, inbox) = mpsc::channel(2);
        let mut writer = Writer {
            writer,
            state,
            shared: Arc::clone(&shared),
            stored,
            buffer: BytesMut::new(),
        };
        let task = Task::spawn(async move {
            if let Err(error) = writer.run(inbox).await {
                // A full or closed channel already holds, or no longer needs, a reason.
                drop(ended.try_send(error));
            }
        });
        Self { shared, orders, task }
    }

    /// Notes the place up to which all is read. Wakes nobody: it goes out with the next update.
    pub(crate) fn received(&self, lsn: Lsn) {
        self.shared.received.fetch_max(lsn.0, Relaxed);
    }

    /// Notes that bytes came from the server. Wakes nobody.
    pub(crate) fn heard(&self) {
        self.shared.heard.fetch_add(1, Relaxed);
    }

    /// Answers the server at once.
    pub(crate) fn ask(&self) {
        self.shared.asked.store(true, Relaxed);
        self.shared.wake.notify_one();
    }

    /// Reports what is stored and ends the copy. Returns when that is written.
    ///
    /// # Errors
    /// The writer has ended.
    pub(crate) async fn finish(&self) -> Result<(), PgError> {
        let (done, written) = oneshot::channel();
        self.orders
            .send(Order::Finish(done))
            .await
            .map_err(|_| PgError::Closed)?;
        written.await.map_err(|_| PgError::Closed)
    }

    /// Says goodbye, and waits for the task's end.
    pub(crate) async fn terminate(self) {
        if self.orders.send(Order::Terminate).await.is_ok() {
            self.task.ended().await;
        }
    }
}

struct Writer<W> {
    writer: W,
    state: FeedbackState,
    shared: Arc<Shared>,
    stored: watch::Receiver<Option<PgPosition>>,
    buffer: BytesMut,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    async fn run(&mut self, mut orders: mpsc::Receiver<Order>) -> Result<(), PgError> {
        let mut finished = false;
        let mut relay_lives = true;
        loop {
            self.observe();
            let now = Instant::now();
            if !finished && let Some(status) = self.state.take(now, clock()) {
                self.encode(&status)?;
                self.write().await?;
            }
            tokio::select! {
                order = orders.recv() => match order {
                    Some(Order::Finish(done)) => {
                        finished = true;
                        self.end_copy().await?;
                        if done.send(()).is_err() {
                            debug!("nobody waits for the end of the stream any more");
                        }
                    }
                    Some(Order::Terminate) => return self.say_goodbye().await,
                    None => return Ok(()),
                },
                () = sleep_until(self.state.due(now)), if !finished => {}
                () = self.shared.wake.notified() => {}
                changed = self.stored.changed(), if relay_lives => relay_lives = changed.is_ok(),
            }
        }
    }

    fn observe(&mut self) {
        self.state.received(Lsn(self.shared.received.load(Relaxed)));
        self.state.heard(self.shared.heard.load(Relaxed));
        if let Some(position) = self.stored.borrow_and_update().as_ref() {
            self.state.stored(position.0);
        }
        if self.shared.asked.swap(false, Relaxed) {
            self.state.ask();
        }
    }

    async fn end_copy(&mut self) -> Result<(), PgError> {
        self.observe();
        let status = self.state.status(Instant::now(), clock());
        self.encode(&status)?;
        frontend::copy_done(&mut self.buffer);
        self.write().await
    }

    async fn say_goodbye(&mut self) -> Result<(), PgError> {
        frontend::terminate(&mut self.buffer);
        self.write().await?;
        Ok(self.writer.shutdown().await?)
    }

    fn encode(&mut self, status: &StandbyStatus) -> Result<(), PgError> {
        let mut payload = BytesMut::new();
        status.encode(&mut payload);
        CopyData::new(payload.freeze())?.write(&mut self.buffer);
        Ok(())
    }

    async fn write(&mut self) -> Result<(), PgError> {
        let write = async {
            self.writer.write_all(&self.buffer).await?;
            self.writer.flush().await?;
            Ok::<(), io::Error>(())
        };
        timeout(WRITE_MAX, write).await.map_err(|_| PgError::Timeout {
            what: "read our status update",
            after: WRITE_MAX,
        })??;
        self.buffer.clear();
        Ok(())
    }
}

/// Microseconds since 2000-01-01. A clock that is set before 1970 gives that.
fn clock() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_micros()).unwrap_or(i64::MAX) - EPOCH_UNIX_US
}

#[cfg(test)]
mod tests;
