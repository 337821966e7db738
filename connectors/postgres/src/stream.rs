//! An open stream: `CopyBoth` in, items out.
//!
//! ```text
//! socket -> frame -> XLogData -> Changes (pgoutput) -> Item
//!                 -> Keepalive -> Pace, Farewell    -> Item, or the server wants to go
//!                 -> error, notice, setting         -> the end, or a line in the log
//! ```
//!
//! Laws held here: only committed transactions come out, with the place after each (law 10); a keepalive is an item of its
//! own, in order (law 2); what is not understood ends the stream with its place (law 6).

use std::time::Duration;

use bytes::Bytes;
use postgres_protocol::message::backend::{
    COMMAND_COMPLETE_TAG, COPY_DATA_TAG, COPY_DONE_TAG, ERROR_RESPONSE_TAG, NOTICE_RESPONSE_TAG,
    PARAMETER_STATUS_TAG, READY_FOR_QUERY_TAG,
};
use tailpost_pgoutput::{Lsn, Relation, ReplicationMessage};
use tailpost_relay::{Failure, Item, Stream};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{info, warn};

use crate::error::During;
use crate::feedback::Feedback;
use crate::position::PgPosition;
use crate::session::framing::{Frame, FrameReader, HEADER_LEN};
use crate::session::socket::Socket;
use crate::session::{server_error, settings, within};
use crate::stream::failures::Failures;
use crate::tasks::Task;
use crate::{PgError, ServerError};

pub(crate) mod changes;
pub(crate) mod failures;
pub(crate) mod pace;
pub(crate) mod resolver;

use changes::{Change, Changes};
use pace::{Farewell, Pace};
use resolver::Resolver;

/// How often the server may fail to decode the same place.
const FAILURES_MAX: u32 = 3;
/// How long the server may take to acknowledge the end.
const FINISH_MAX: Duration = Duration::from_secs(5);
/// How long saying goodbye may take.
const GOODBYE_MAX: Duration = Duration::from_secs(1);

/// An open stream of a slot. Dropping it closes the connection.
#[derive(Debug)]
pub struct PgStream {
    pub(crate) reader: FrameReader<Socket>,
    pub(crate) changes: Changes,
    pub(crate) resolver: Resolver,
    pub(crate) feedback: Feedback,
    pub(crate) watcher: Task,
    /// Why the writer or the watcher ended the stream.
    pub(crate) ended: mpsc::Receiver<PgError>,
    pub(crate) stored: watch::Receiver<Option<PgPosition>>,
    pub(crate) start: PgPosition,
    pub(crate) pace: Pace,
    pub(crate) farewell: Farewell,
    /// How long the server may be silent while we read.
    pub(crate) silence_max: Option<Duration>,
    pub(crate) heard: Instant,
    /// A relation that is announced and not yet judged.
    pub(crate) announced: Option<Relation>,
    /// Failures to decode since the last transaction's end, over all streams of the source.
    pub(crate) failures: Failures,
}

impl Stream for PgStream {
    type Position = PgPosition;

    fn start(&self) -> &PgPosition {
        &self.start
    }

    async fn next(&mut self) -> Result<Item<PgPosition>, Failure> {
        loop {
            // Stays announced until judged, so that a dropped call judges it again.
            if let Some(relation) = &self.announced {
                let judging = self.resolver.judge(relation, &mut self.changes.relations);
                let ours = within("answer what a table is", judging).await?;
                if let Some(relation) = self.announced.take() {
                    self.changes.announce(relation, ours);
                }
            }
            let frame = self.frame().await?;
            if let Some(item) = self.take(frame)? {
                return Ok(item);
            }
        }
    }

    async fn finish(self) -> Result<(), Failure> {
        let Self {
            mut reader,
            feedback,
            watcher,
            ..
        } = self;
        drop(watcher);
        let acknowledged = async {
            feedback.finish().await?;
            loop {
                match reader.next().await? {
                    Frame::Message {
                        tag: COPY_DONE_TAG | COMMAND_COMPLETE_TAG | READY_FOR_QUERY_TAG,
                        ..
                    } => {
                        return Ok(());
                    }
                    Frame::Message {
                        tag: ERROR_RESPONSE_TAG,
                        raw,
                    } => {
                        return Err(server_error(&raw.slice(HEADER_LEN..), During::Stream));
                    }
                    Frame::Message { .. } | Frame::Oversized { .. } => {}
                }
            }
        };
        timeout(FINISH_MAX, acknowledged)
            .await
            .map_err(|_| PgError::Timeout {
                what: "acknowledge the end of the stream",
                after: FINISH_MAX,
            })??;
        if timeout(GOODBYE_MAX, feedback.terminate()).await.is_err() {
            info!("the server did not take our goodbye; the position is with it already");
        }
        Ok(())
    }
}

impl PgStream {
    /// Reads a frame. Cancel-safe. The server's silence counts only while we wait for it: the socket is looked at before
    /// the clock, so that bytes which came while nobody read are a sign of life.
    async fn frame(&mut self) -> Result<Frame, PgError> {
        loop {
            if let Some(frame) = self.reader.buffered()? {
                return Ok(frame);
            }
            let limit = self.silence_max.unwrap_or_default();
            tokio::select! {
                biased;
                reason = self.ended.recv() => return Err(reason.unwrap_or(PgError::Closed)),
                filled = self.reader.fill() => match filled {
                    Ok(()) => {
                        self.heard = Instant::now();
                        self.feedback.heard();
                    }
                    // Who closed the connection on purpose said why.
                    Err(error) => return Err(self.ended.try_recv().unwrap_or(error)),
                },
                () = sleep_until(self.heard + limit), if self.silence_max.is_some() => {
                    return Err(PgError::Silent { after: limit });
                }
            }
        }
    }

    fn take(&mut self, frame: Frame) -> Result<Option<Item<PgPosition>>, PgError> {
        let (tag, raw) = match frame {
            Frame::Message { tag, raw } => (tag, raw),
            Frame::Oversized { length, head } => return self.copied(head, Some(length)),
        };
        let body = raw.slice(HEADER_LEN..);
        match tag {
            COPY_DATA_TAG => self.copied(body, None),
            ERROR_RESPONSE_TAG => Err(self.refused(&body)),
            NOTICE_RESPONSE_TAG => noticed(&body).map(|()| None),
            PARAMETER_STATUS_TAG => settings::verify_change(&body).map(|()| None),
            // The server ends the copy by itself only when it shuts down.
            COPY_DONE_TAG | COMMAND_COMPLETE_TAG | READY_FOR_QUERY_TAG => Err(PgError::ShuttingDown),
            other => Err(PgError::Protocol(format!(
                "unexpected message '{}' inside the stream",
                other.escape_ascii()
            ))),
        }
    }

    /// A `CopyData`; of one over the limit (`oversized` is its length) only the head.
    fn copied(
        &mut self,
        payload: Bytes,
        oversized: Option<usize>,
    ) -> Result<Option<Item<PgPosition>>, PgError> {
        let at = self.pace.position();
        let message =
            ReplicationMessage::parse(payload).map_err(|source| PgError::Decode { lsn: at, source })?;
        let change = match message {
            ReplicationMessage::Keepalive {
                wal_end,
                reply_requested,
                ..
            } => {
                return self.keepalive(wal_end, reply_requested);
            }
            ReplicationMessage::XLogData { wal_start, data, .. } => {
                self.farewell.data();
                match oversized {
                    Some(length) => self.changes.oversized(at.max(wal_start), &data, length),
                    None => self.changes.take(at.max(wal_start), data),
                }
            }
        };
        match change? {
            Change::Nothing => Ok(None),
            Change::Item(item) => Ok(Some(item)),
            Change::Announced(relation) => {
                self.announced = Some(relation);
                Ok(None)
            }
            Change::End(lsn) => {
                self.failures.reset();
                self.feedback.received(lsn);
                let urgent = self.pace.end(lsn, self.stored());
                Ok(Some(Item::End {
                    position: PgPosition(lsn),
                    urgent,
                }))
            }
        }
    }

    fn keepalive(&mut self, wal_end: Lsn, asked: bool) -> Result<Option<Item<PgPosition>>, PgError> {
        self.feedback.received(wal_end);
        if asked {
            self.feedback.ask();
        }
        let stored = self.stored();
        if self.farewell.keepalive(Instant::now(), wal_end, asked, stored) {
            return Err(PgError::ShuttingDown);
        }
        let urgent = self.pace.keepalive(wal_end, asked, stored);
        Ok(urgent.map(|urgent| Item::Keepalive {
            position: PgPosition(wal_end),
            urgent,
        }))
    }

    fn stored(&self) -> Lsn {
        self.stored.borrow().map_or(Lsn::ZERO, |position| position.0)
    }

    fn refused(&self, body: &Bytes) -> PgError {
        let source = Box::new(ServerError::parse(body));
        if source.may_be_stuck() {
            let times = self.failures.count(self.pace.position());
            if times >= FAILURES_MAX {
                return PgError::Stuck {
                    lsn: self.pace.position(),
                    times,
                    source,
                };
            }
        }
        if source.code == "42704" {
            return PgError::PublicationMissing {
                message: source.message,
            };
        }
        PgError::Server {
            during: During::Stream,
            source,
        }
    }
}

/// Notices go to the log; one of them means that rows are being skipped.
fn noticed(body: &Bytes) -> Result<(), PgError> {
    let notice = ServerError::parse(body);
    if notice.is_skipped_publication() {
        return Err(PgError::PublicationMissing {
            message: notice.message,
        });
    }
    if notice.severity == "WARNING" {
        warn!(%notice, "server warned inside the stream");
    } else {
        info!(%notice, "server sent a notice inside the stream");
    }
    Ok(())
}
