//! Opens streams of a slot, after it has made sure that the log is the one that the position belongs to.
//!
//! Order: SQL session, preflight, replication session on the same server, identity, end of log, `START_REPLICATION`, and
//! only then the slot's own position: from there on nobody else can move it. A start below it the server would move up in
//! silence, a start beyond the end of the log it would accept in silence; both are checked here.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tailpost_database::postgres::{SqlSession, Url};
use tailpost_pgoutput::{Lsn, quote};
use tailpost_relay::{Failure, Progress, Source};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::PgError;
use crate::catalog::{Field, row};
use crate::error::During;
use crate::feedback::{self, Feedback, FeedbackState};
use crate::position::PgPosition;
use crate::preflight::{self, Verified, Wanted};
use crate::session::{CopyBoth, Session, within};
use crate::side::Side;
use crate::slot;
use crate::stream::changes::Changes;
use crate::stream::pace::{Farewell, Pace};
use crate::stream::{PgStream, resolver::Resolver};
use crate::tables::TableSet;
use crate::tasks::Task;
use crate::watcher::Watcher;

/// The least silence that is taken for a dead link.
const SILENCE_MIN: Duration = Duration::from_secs(30);
/// What a message may have beside the payload: names, headers, the other columns, bytes.
const ROW_OVERHEAD: usize = 64 << 10;
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
    /// Counters and gauges.
    pub progress: Arc<Progress>,
}

/// What tells one log from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's system identifier.
    pub system_id: String,
    /// The timeline; a promotion begins a new one.
    pub timeline: u32,
    /// The database.
    pub database: String,
}

impl Identity {
    /// Asks the server that a stream would be opened on, over sessions of its own.
    ///
    /// # Errors
    /// No session.
    pub async fn read(url: &Url, application_name: &str) -> Result<Self, PgError> {
        // Only an SQL session looks at target_session_attrs.
        let sql = SqlSession::connect(url, application_name).await?;
        let mut session = Session::connect(url, Some(sql.host()), application_name).await?;
        Ok(within("identify itself", identify(&mut session)).await?.0)
    }
}

/// A slot of a PostgreSQL server, to be streamed from.
#[derive(Debug)]
pub struct PgSource {
    config: SourceConfig,
    identity: Option<Identity>,
    tables: Arc<Mutex<TableSet>>,
    failures: Arc<AtomicU32>,
}

impl PgSource {
    /// Makes a source; opens nothing.
    pub fn new(config: SourceConfig) -> Self {
        Self {
            config,
            identity: None,
            tables: Arc::default(),
            failures: Arc::default(),
        }
    }

    /// Demands that the server be the one that `identity` names (an offset knows whose it is), from the first stream on.
    #[must_use]
    pub fn expecting(mut self, identity: Identity) -> Self {
        self.identity = Some(identity);
        self
    }

    async fn open_stream(
        &mut self,
        resume: Option<Lsn>,
        stored: watch::Receiver<Option<PgPosition>>,
    ) -> Result<PgStream, PgError> {
        let sql = SqlSession::connect(&self.config.url, &self.config.application_name).await?;
        let verified = preflight::verify(&sql, &self.config.wanted).await?;
        self.take_tables(&sql, &verified).await?;
        let mut session =
            Session::connect(&self.config.url, Some(sql.host()), &self.config.application_name).await?;
        let (identity, end) = within("identify itself", identify(&mut session)).await?;
        self.judge_identity(identity)?;
        let from = self.judge_start(resume, verified.confirmed_flush)?;
        if from > end {
            return Err(PgError::BeyondEnd { stored: from, end });
        }
        let timeout = within("say its time-out", wal_sender_timeout(&mut session)).await?;
        let copy = self.start(session, &sql, from).await?;
        // The slot is ours from here on; between the preflight and the start another relay may have moved it.
        let confirmed = confirmed_flush(&sql, &self.config.wanted.slot).await?;
        let start = self.judge_start(resume, confirmed)?.max(from);
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
            *tables = verified.tables.clone();
        } else {
            tables.refresh(sql).await?;
        }
        Ok(())
    }

    fn judge_identity(&mut self, now: Identity) -> Result<(), PgError> {
        if let Some(before) = &self.identity {
            for (what, before, now) in [
                ("system identifier", &before.system_id, &now.system_id),
                ("database", &before.database, &now.database),
            ] {
                if before != now {
                    return Err(PgError::IdentityChanged {
                        what,
                        before: before.clone(),
                        now: now.clone(),
                    });
                }
            }
            if before.timeline != now.timeline {
                warn!(
                    before = before.timeline,
                    now = now.timeline,
                    "the server is on another timeline: a standby was promoted"
                );
            }
        }
        self.identity = Some(now);
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
            failures: Arc::clone(&self.failures),
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

/// `IDENTIFY_SYSTEM`: who the server is, and the end of its log.
async fn identify(session: &mut Session) -> Result<(Identity, Lsn), PgError> {
    let rows = session.simple_query("IDENTIFY_SYSTEM").await?;
    let odd = || PgError::Protocol("IDENTIFY_SYSTEM gave an answer that is not understood".into());
    let [row] = rows.as_slice() else { return Err(odd()) };
    let [Some(system_id), Some(timeline), Some(end), Some(database)] = row.as_slice() else {
        return Err(odd());
    };
    let identity = Identity {
        system_id: system_id.clone(),
        timeline: timeline.parse().map_err(|_| odd())?,
        database: database.clone(),
    };
    Ok((identity, end.parse().map_err(|_| odd())?))
}

/// The time-out of this very session, which the role or the database may set.
async fn wal_sender_timeout(session: &mut Session) -> Result<Duration, PgError> {
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
