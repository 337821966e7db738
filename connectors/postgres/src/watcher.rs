//! Watches the server over the SQL session while the stream runs, whether anybody reads from the stream or not.
//!
//! - A server that shuts down ends SQL sessions first and then waits for its WAL senders. A stream held back by a slow
//!   broker cannot see that; so when the SQL session ended and no new one is let in, the stream is closed.
//! - The publications are asked for each minute: PostgreSQL 18 skips a missing one with a mere warning.
//! - The lag is measured.

use std::sync::Arc;
use std::time::Duration;

use tailpost_database::postgres::SqlSession;
use tailpost_relay::{Disposition, Progress};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::warn;

use crate::PgError;
use crate::catalog::{Field, rows};
use crate::error::Chain;
use crate::preflight::{Wanted, verify};
use crate::session::socket::Socket;
use crate::side::{Side, server_is_gone};

/// How often the lag is measured.
const MEASURE_EVERY: Duration = Duration::from_secs(10);
/// How often slot, tables and publications are verified.
const VERIFY_EVERY: Duration = Duration::from_secs(60);
/// How long to wait before another try at an SQL session.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);
/// The same, when the session was closed.
const CLOSED_PAUSE: Duration = Duration::from_millis(250);

/// What the watcher needs.
pub(crate) struct Watcher {
    pub(crate) side: Arc<Side>,
    pub(crate) wanted: Wanted,
    pub(crate) progress: Arc<Progress>,
    /// The stream's connection.
    pub(crate) socket: Socket,
    /// Where the reason for closing it goes.
    pub(crate) ended: mpsc::Sender<PgError>,
}

impl Watcher {
    /// Watches until the stream has to end, and closes it.
    pub(crate) async fn run(self) {
        let reason = self.watch().await;
        // The reason first: the reader looks for it before it looks at the socket.
        drop(self.ended.try_send(reason));
        self.socket.close();
    }

    async fn watch(&self) -> PgError {
        let mut measure_at = Instant::now();
        let mut verify_at = Instant::now() + VERIFY_EVERY;
        loop {
            let sql = match self.side.session().await {
                Ok(sql) => sql,
                Err(PgError::Connect(error)) if server_is_gone(&error) => return PgError::ShuttingDown,
                Err(PgError::TwoServers) => return PgError::TwoServers,
                Err(error) => {
                    warn!(error = %Chain(&error), "no SQL session to watch the server with; trying again");
                    sleep(RECONNECT_AFTER).await;
                    continue;
                }
            };
            let fault = tokio::select! {
                _ = sql.closed() => {
                    // Something may close each session at once: not in a hot loop. Short, since it may be a shutdown.
                    sleep(CLOSED_PAUSE).await;
                    Ok(())
                }
                () = sleep_until(measure_at) => {
                    measure_at = Instant::now() + MEASURE_EVERY;
                    self.measure(&sql).await
                }
                () = sleep_until(verify_at) => {
                    verify_at = Instant::now() + VERIFY_EVERY;
                    verify(&sql, &self.wanted).await.map(drop)
                }
            };
            if let Err(error) = fault {
                match error.disposition() {
                    Disposition::Halt(_) | Disposition::Setup => return error,
                    Disposition::Retry { .. } | Disposition::Standby { .. } | Disposition::Park => {
                        warn!(error = %Chain(&error), "could not watch the server; trying again");
                    }
                }
            }
        }
    }

    async fn measure(&self, sql: &SqlSession) -> Result<(), PgError> {
        const LAG: &str = "
            SELECT pg_catalog.pg_wal_lsn_diff(e.lsn, s.confirmed_flush_lsn)::pg_catalog.int8,
                   pg_catalog.pg_wal_lsn_diff(e.lsn, s.restart_lsn)::pg_catalog.int8
              FROM pg_catalog.pg_replication_slots s,
                   (SELECT CASE WHEN pg_catalog.pg_is_in_recovery() THEN pg_catalog.pg_last_wal_replay_lsn()
                                ELSE pg_catalog.pg_current_wal_lsn() END) e(lsn)
             WHERE s.slot_name = $1";
        for row in rows(sql, LAG, &[&self.wanted.slot]).await? {
            let bytes = |diff: Option<i64>| diff.map_or(0, |diff| u64::try_from(diff).unwrap_or(0));
            self.progress.lag_bytes.set(bytes(row.field(0)?));
            self.progress.retained_bytes.set(bytes(row.field(1)?));
        }
        Ok(())
    }
}
