//! Opens streams of a slot, after it has made sure that the log is the one that the position belongs to.
//!
//! Order: SQL session, preflight, replication session on the same server, identity, end of log, `START_REPLICATION`, and
//! only then the slot's own position: from there on nobody else can move it. A start below it the server would move up in
//! silence, a start beyond the end of the log it would accept in silence; both are checked here.

use std::sync::Arc;
use std::time::Duration;

use tailpost_database::postgres::{SqlSession, Url};
use tailpost_pgoutput::{Lsn, quote};
use tailpost_relay::{Failure, Progress, Source};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;
use tracing::info;

use crate::PgError;
use crate::catalog::{Field, row};
use crate::check::Role;
use crate::error::During;
use crate::feedback::{self, Feedback, FeedbackState};
use crate::identity::{KnownIdentity, identify, judge};
use crate::position::PgPosition;
use crate::preflight::{self, Verified, Wanted};
use crate::session::{CopyBoth, Session, within};
use crate::side::Side;
use crate::slot;
use crate::stream::changes::Changes;
use crate::stream::failures::Failures;
use crate::stream::pace::{Farewell, Pace};
use crate::stream::{PgStream, resolver::Resolver};
use crate::tables::TableSet;
use crate::tasks::Task;
use crate::watcher::Watcher;

/// The least silence that is taken for a dead link.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(30);
/// What a message may have beside the payload: names, headers, the other columns, bytes.
pub(crate) const ROW_OVERHEAD: usize = 64 << 10;
/// What is admitted at least, bytes: the description of a table of 1,600 columns takes half of it.
const COPY_DATA_MIN: usize = 256 << 10;

/// What a source is made of.
#[derive(Clone, Debug)]
pub struct SourceConfig {
    /// Where the server is.
    pub url: Url,
    /// Slot, publications, tables, and the columns that the mapping needs.
    pub wanted: Wanted,
    /// The name of its sessions, `tailpost/NAME@HOST`.
    pub application_name: String,
    /// The largest payload that is published, bytes. A row twice as large on the wire (a `bytea` is printed in hex) is
    /// never buffered.
    pub max_message_bytes: usize,
    /// The slot itself keeps the offset: newly stored positions are reported at once, and the slot may have been moved by
    /// another relay of the same name.
    pub slot_mode: bool,
    /// Whose the positions are that it resumes from; it refuses another server, and notes promotions.
    pub known: KnownIdentity,
    /// Counters and gauges.
    pub progress: Arc<Progress>,
}

/// A slot of a PostgreSQL server, to be streamed from.
#[derive(Debug)]
pub struct PgSource {
    config: SourceConfig,
    tables: Arc<Mutex<TableSet>>,
    failures: Failures,
}

impl PgSource {
    /// Makes a source; opens nothing.
    pub fn new(config: SourceConfig) -> Self {
        Self {
            config,
            tables: Arc::default(),
            failures: Failures::default(),
        }
    }

    async fn open_stream(
        &mut self,
        resume: Option<Lsn>,
        stored: watch::Receiver<Option<PgPosition>>,
    ) -> Result<PgStream, PgError> {
        let sql = SqlSession::connect(&self.config.url, &self.config.application_name).await?;
        let verified = preflight::verify(&sql, &self.config.wanted).await?;
        Role::read(&sql).await?.judge()?;
        self.take_tables(&sql, &verified).await?;
        let mut session =
            Session::connect(&self.config.url, Some(sql.host()), &self.config.application_name).await?;
        let (identity, end) = within("identify itself", identify(&mut session)).await?;
        if let Some(before) = self.config.known.get() {
            judge(&mut session, &before, &identity, resume).await?;
        }
        let from = self.judge_start(resume, verified.confirmed_flush)?;
        if from > end {
            return Err(PgError::BeyondEnd { stored: from, end });
        }
        let timeout = within("say its time-out", wal_sender_timeout(&mut session)).await?;
        let copy = self.start(session, &sql, from).await?;
        // The slot is ours from here on; between the preflight and the start another relay may have moved it.
        let confirmed = confirmed_flush(&sql, &self.config.wanted.slot).await?;
        let start = self.judge_start(resume, confirmed)?.max(from);
        // From here on positions are of this log.
        self.config.known.set(identity);
        info!(slot = %self.config.wanted.slot, from = %start, "streaming");
        Ok(self.assemble(
            copy,
            sql,
            stored,
            Opened {
                start,
                confirmed,
                timeout,
            },
        ))
    }

    /// The tables found now, and under the names that they had in earlier streams.
    async fn take_tables(&self, sql: &SqlSession, verified: &Verified) -> Result<(), PgError> {
        let mut tables = self.tables.lock().await;
        if tables.tables().is_empty() {
            // At the start: later the log says what a table was when a row was written.
            verified.tables.demand(&self.config.wanted.columns)?;
            *tables = verified.tables.clone();
        } else {
            tables.refresh(sql).await?;
        }
        Ok(())
    }

    /// Where to start. A slot that stands beyond `resume` was moved by someone else: another relay, where the slot keeps
    /// the offset; nobody knows who, where it does not.
    fn judge_start(&self, resume: Option<Lsn>, confirmed: Lsn) -> Result<Lsn, PgError> {
        match resume {
            Some(stored) if confirmed > stored && !self.config.slot_mode => Err(PgError::SlotAdvanced {
                slot: self.config.wanted.slot.clone(),
                stored,
                confirmed,
            }),
            Some(stored) => Ok(stored.max(confirmed)),
            None => Ok(confirmed),
        }
    }

    async fn start(&self, session: Session, sql: &SqlSession, from: Lsn) -> Result<CopyBoth, PgError> {
        let Wanted {
            slot, publications, ..
        } = &self.config.wanted;
        let command = quote::start_replication(slot, from, publications)?;
        let row_max = self
            .config
            .max_message_bytes
            .saturating_mul(2)
            .saturating_add(ROW_OVERHEAD);
        let copy_data_max = row_max.max(COPY_DATA_MIN);
        match session.start_replication(&command, copy_data_max).await {
            Err(PgError::Server {
                during: During::Start,
                source,
            }) if source.code == "55006" => Err(PgError::SlotBusy {
                slot: slot.clone(),
                holder: holder(sql, slot).await?,
            }),
            other => other,
        }
    }

    fn assemble(
        &self,
        copy: CopyBoth,
        sql: SqlSession,
        stored: watch::Receiver<Option<PgPosition>>,
        opened: Opened,
    ) -> PgStream {
        let Opened {
            start,
            confirmed,
            timeout,
        } = opened;
        let config = &self.config;
        let side = Arc::new(Side::new(
            config.url.clone(),
            config.application_name.clone(),
            sql,
        ));
        // Room for the writer's reason and the watcher's.
        let (ending, ended) = mpsc::channel(2);
        let watcher = Watcher {
            side: Arc::clone(&side),
            wanted: config.wanted.clone(),
            progress: Arc::clone(&config.progress),
            socket: copy.writer.clone(),
            ended: ending.clone(),
        };
        let state = FeedbackState::new(feedback::interval(timeout), config.slot_mode, confirmed);
        PgStream {
            reader: copy.reader,
            changes: Changes::new(Arc::clone(&config.progress)),
            resolver: Resolver {
                side,
                tables: Arc::clone(&self.tables),
            },
            feedback: Feedback::spawn(copy.writer, state, stored.clone(), ending),
            watcher: Task::spawn(watcher.run()),
            ended,
            stored,
            start: PgPosition(start),
            pace: Pace::new(start),
            farewell: Farewell::default(),
            silence_max: (!timeout.is_zero()).then(|| SILENCE_MIN.max(timeout * 2)),
            heard: Instant::now(),
            announced: None,
            failures: self.failures.clone(),
        }
    }
}

impl Source for PgSource {
    type Position = PgPosition;
    type Stream = PgStream;

    async fn open(
        &mut self,
        resume: Option<PgPosition>,
        stored: watch::Receiver<Option<PgPosition>>,
    ) -> Result<PgStream, Failure> {
        let opening = self.open_stream(resume.map(|position| position.0), stored);
        Ok(Box::pin(within("open a stream", opening)).await?)
    }
}

/// What was found on the way.
struct Opened {
    start: Lsn,
    confirmed: Lsn,
    /// `wal_sender_timeout`; zero for none.
    timeout: Duration,
}

/// The time-out of this very session, which the role or the database may set.
pub(crate) async fn wal_sender_timeout(session: &mut Session) -> Result<Duration, PgError> {
    const TIMEOUT: &str = "SELECT setting FROM pg_catalog.pg_settings WHERE name = 'wal_sender_timeout'";
    let rows = session.simple_query(TIMEOUT).await?;
    let text = rows
        .first()
        .and_then(|row| row.first())
        .and_then(Option::as_deref);
    let millis = text.and_then(|text| text.parse().ok());
    millis
        .map(Duration::from_millis)
        .ok_or_else(|| PgError::Protocol("wal_sender_timeout is no number".into()))
}

async fn confirmed_flush(sql: &SqlSession, slot: &str) -> Result<Lsn, PgError> {
    const CONFIRMED: &str =
        "SELECT max(s.confirmed_flush_lsn) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1";
    let confirmed = row(sql, CONFIRMED, &[&slot]).await?.lsn(0)?;
    confirmed.ok_or_else(|| PgError::SlotMissing { slot: slot.into() })
}

async fn holder(sql: &SqlSession, slot: &str) -> Result<String, PgError> {
    const ACTIVE: &str =
        "SELECT max(s.active_pid) FROM pg_catalog.pg_replication_slots s WHERE s.slot_name = $1";
    match row(sql, ACTIVE, &[&slot]).await?.field(0)? {
        Some(pid) => slot::holder(sql, pid).await,
        None => Ok("a session that has just ended".into()),
    }
}
