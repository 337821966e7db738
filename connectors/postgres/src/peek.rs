//! `tailpost postgres peek`: the rows that would be published next, read from a temporary copy of the slot.
//!
//! The copy begins where the slot stands and ends with our session. The slot itself is only read, so that peek works beside
//! a running relay and moves nothing. While it runs the server keeps the log from the copy's position on.

use std::ops::ControlFlow;
use std::sync::Arc;

use tailpost_database::postgres::SqlSession;
use tailpost_outbox::Row;
use tailpost_pgoutput::Lsn;
use tailpost_pgoutput::quote::{quote_literal, start_replication};
use tailpost_relay::{Failure, Item, Stream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::Instant;

use crate::PgError;
use crate::backfill::temporary_name;
use crate::catalog::{Field, row};
use crate::check::Role;
use crate::feedback::{self, Feedback, FeedbackState};
use crate::position::PgPosition;
use crate::preflight::{self, Verified};
use crate::session::{Session, within};
use crate::side::Side;
use crate::source::{ROW_OVERHEAD, SILENCE_MIN, SourceConfig, wal_sender_timeout};
use crate::stream::PgStream;
use crate::stream::changes::Changes;
use crate::stream::pace::{Farewell, Pace};
use crate::stream::resolver::Resolver;
use crate::tasks::Task;

/// What peek meets.
#[derive(Clone, Copy, Debug)]
pub enum Peeked<'a> {
    /// An insert.
    Row(&'a Row),
    /// An insert that is too large to be read; what and where, no content.
    Oversized(&'a str),
}

/// How far peek went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeekEnd {
    /// Inserts shown.
    pub rows: u64,
    /// Where it began: the slot's `confirmed_flush_lsn`.
    pub from: Lsn,
    /// The end of what was committed when it began.
    pub to: Lsn,
}

/// Shows every insert that the slot has not confirmed, in commit order. It ends at what was committed when it began, after
/// `limit` rows, when `on_row` breaks, or, where it should `follow`, never by itself. Dropping the future ends it; nothing
/// is left behind.
///
/// Of `config` it takes where the server is, what is wanted, and the size limit.
///
/// # Errors
/// As opening a stream; a slot in use is none. It retries nothing.
pub async fn peek(
    config: &SourceConfig,
    limit: Option<u64>,
    follow: bool,
    mut on_row: impl FnMut(Peeked<'_>) -> ControlFlow<()>,
) -> Result<PeekEnd, Failure> {
    let (mut stream, mut end) = open(config).await?;
    let enough = |rows: u64| limit.is_some_and(|limit| rows >= limit);
    let past = |position: &PgPosition| !follow && position.0 >= end.to;
    if past(stream.start()) {
        return Ok(end);
    }
    while !enough(end.rows) {
        let seen = match stream.next().await? {
            Item::Begin => continue,
            Item::End { position, .. } | Item::Keepalive { position, .. } if past(&position) => break,
            Item::End { .. } | Item::Keepalive { .. } => continue,
            // Its transaction committed after peek began.
            Item::Row(row)
                if !follow
                    && row
                        .transaction
                        .parse::<Lsn>()
                        .is_ok_and(|commit| commit >= end.to) =>
            {
                break;
            }
            Item::Row(row) => on_row(Peeked::Row(&row)),
            Item::Oversized { what } => on_row(Peeked::Oversized(&what)),
        };
        end.rows += 1;
        if seen.is_break() {
            break;
        }
    }
    Ok(end)
}

/// Opens a stream of a temporary copy of the slot. Nothing is ever stored, so that its feedback only repeats where the copy
/// began.
async fn open(config: &SourceConfig) -> Result<(PgStream, PeekEnd), PgError> {
    let sql = SqlSession::connect(&config.url, &config.application_name).await?;
    let verified = preflight::verify(&sql, &config.wanted).await?;
    Role::read(&sql).await?.judge()?;
    let mut session = Session::connect(&config.url, Some(sql.host()), &config.application_name).await?;
    let timeout = within("say its time-out", wal_sender_timeout(&mut session)).await?;
    let copy = temporary_name("peek");
    let from = within(
        "copy the slot",
        copy_slot(&mut session, &config.wanted.slot, &copy),
    )
    .await?;
    // Taken after the copy, so that it lies not before where the copy begins.
    let to = end_of_log(&sql).await?;
    let command = start_replication(&copy, from, &config.wanted.publications)?;
    let copy_data_max = config
        .max_message_bytes
        .saturating_mul(2)
        .saturating_add(ROW_OVERHEAD);
    let halves = session.start_replication(&command, copy_data_max).await?;

    let (ending, ended) = mpsc::channel(2);
    let (_, stored) = watch::channel(None);
    let Verified { tables, .. } = verified;
    let stream = PgStream {
        reader: halves.reader,
        changes: Changes::new(Arc::clone(&config.progress)),
        resolver: Resolver {
            side: Arc::new(Side::new(
                config.url.clone(),
                config.application_name.clone(),
                sql,
            )),
            tables: Arc::new(Mutex::new(tables)),
        },
        feedback: Feedback::spawn(
            halves.writer,
            FeedbackState::new(feedback::interval(timeout), false, from),
            stored.clone(),
            ending,
        ),
        watcher: Task::spawn(std::future::pending()),
        ended,
        stored,
        start: PgPosition(from),
        pace: Pace::new(from),
        farewell: Farewell::default(),
        silence_max: (!timeout.is_zero()).then(|| SILENCE_MIN.max(timeout * 2)),
        heard: Instant::now(),
        announced: None,
        failures: crate::stream::failures::Failures::default(),
    };
    Ok((stream, PeekEnd { rows: 0, from, to }))
}

/// Copies the slot as a temporary one, and returns where it begins.
async fn copy_slot(session: &mut Session, slot: &str, copy: &str) -> Result<Lsn, PgError> {
    let statement = format!(
        "SELECT c.lsn FROM pg_catalog.pg_copy_logical_replication_slot({}, {}, true) c",
        quote_literal(slot),
        quote_literal(copy)
    );
    let rows = session.simple_query(&statement).await?;
    let lsn = rows
        .first()
        .and_then(|row| row.first())
        .and_then(Option::as_deref);
    lsn.and_then(|lsn| lsn.parse().ok())
        .ok_or_else(|| PgError::Protocol("the copy of the slot has no position".into()))
}

async fn end_of_log(sql: &SqlSession) -> Result<Lsn, PgError> {
    const END: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";
    Ok(row(sql, END, &[]).await?.lsn(0)?.unwrap_or(Lsn::ZERO))
}
