//! A session for SQL: tokio-postgres over a stream of ours.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::connect::{Connected, Then, first_of};
use super::settings::TargetSession;
use super::{ConnectError, HostLabel, Url};
use super::{login, settings};

/// Sent first: it bounds every statement, and says what kind of server it is.
const BEGIN: &str = "SET statement_timeout = '10s'; \
     SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_read_only')";
/// How long an orderly close may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Closed {
    /// SQLSTATE of the server's last word: `57P01` when an administrator or a shutdown ended it. `None` when the connection just
    /// broke, or when we closed it.
    pub sqlstate: Option<String>,
    /// What happened, for the operator.
    pub message: String,
}

/// A logged-in session, with `statement_timeout` at 10 s (a caller who needs longer sets it anew). Dropping it closes the
/// connection.
#[derive(Debug)]
pub struct SqlSession {
    client: Client,
    host: HostLabel,
    closed: watch::Receiver<Option<Closed>>,
    driver: JoinHandle<()>,
}

impl SqlSession {
    /// Logs in to the first host of `url` that can be had and is of the kind that `target_session_attrs` wants.
    /// `application_name` is what the server shows in `pg_stat_activity`.
    ///
    /// Dropping the future leaves nothing behind but a closed connection. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The error of the only host, the first refusal that waiting does not mend, or [`ConnectError::AllHosts`].
    pub async fn connect(url: &Url, application_name: &str) -> Result<Self, ConnectError> {
        let log_in = |target| LogIn {
            application_name,
            target,
        };
        if url.target_session != TargetSession::PreferStandby {
            return first_of(url, &url.hosts, &log_in(url.target_session)).await;
        }
        match first_of(url, &url.hosts, &log_in(TargetSession::Standby)).await {
            Ok(session) => Ok(session),
            Err(error) if error.kind() == super::ConnectErrorKind::Refused => Err(error),
            Err(_no_standby) => first_of(url, &url.hosts, &log_in(TargetSession::Any)).await,
        }
    }

    /// Returns the client. Its errors may quote values: show the SQLSTATE and message, not more.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns where the session leads, for [`connect_to`](super::connect_to).
    pub fn host(&self) -> &HostLabel {
        &self.host
    }

    /// Waits until the connection has ended, and says how. Cancel-safe, and may be called again.
    pub async fn closed(&self) -> Closed {
        let mut closed = self.closed.clone();
        match closed.wait_for(Option::is_some).await {
            Ok(closed) => closed.clone(),
            Err(_gone) => None,
        }
        .unwrap_or_else(|| Closed {
            sqlstate: None,
            message: "the connection's task is gone".into(),
        })
    }

    /// Closes in order, within a second; then by force.
    pub async fn close(self) {
        let Self { client, driver, .. } = self;
        drop(client);
        let stop = driver.abort_handle();
        if tokio::time::timeout(CLOSE_LIMIT, driver).await.is_err() {
            stop.abort();
        }
    }
}

/// Logs in on a negotiated stream, and looks at what kind of server it is.
struct LogIn<'a> {
    application_name: &'a str,
    target: TargetSession,
}

impl Then for LogIn<'_> {
    type Output = SqlSession;

    async fn then(&self, url: &Url, connected: Connected) -> Result<SqlSession, ConnectError> {
        let target = login::Target::of(&connected);
        let host = connected.host.clone();
        let (client, connection) = login::log_in(url, connected, self.application_name).await?;
        let (tell, closed) = watch::channel(None);
        let driver = tokio::spawn(async move {
            let end = login::how_it_ended(connection.await);
            tell.send_replace(Some(end));
        });
        let session = SqlSession {
            client,
            host,
            closed,
            driver,
        };
        let answer = session
            .client
            .simple_query(BEGIN)
            .await
            .map_err(|error| target.sort(&error))?;
        let kind = ServerKind::read(&answer)
            .ok_or_else(|| target.protocol("it does not say whether it is a standby"))?;
        match kind.lacks(self.target) {
            None => Ok(session),
            Some(wanted) => Err(ConnectError::WrongServer {
                host: session.host.clone(),
                wanted,
            }),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct ServerKind {
    standby: bool,
    read_only: bool,
}

impl ServerKind {
    fn read(answer: &[SimpleQueryMessage]) -> Option<Self> {
        let row = answer.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        })?;
        let flag = |at| match row.try_get(at).ok().flatten()? {
            "t" | "on" => Some(true),
            "f" | "off" => Some(false),
            _ => None,
        };
        Some(Self {
            standby: flag(0)?,
            read_only: flag(1)?,
        })
    }

    /// Returns what `target` wants and this server is not (manual, `target_session_attrs`).
    fn lacks(self, target: settings::TargetSession) -> Option<&'static str> {
        let writable = !self.standby && !self.read_only;
        let (fits, wanted) = match target {
            TargetSession::Any | TargetSession::PreferStandby => (true, "anything"),
            TargetSession::ReadWrite => (writable, "writable (target_session_attrs=read-write)"),
            TargetSession::ReadOnly => (!writable, "read-only (target_session_attrs=read-only)"),
            TargetSession::Primary => (!self.standby, "a primary (target_session_attrs=primary)"),
            TargetSession::Standby => (self.standby, "a standby (target_session_attrs=standby)"),
        };
        if fits { None } else { Some(wanted) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_kinds_fit_targets_as_libpq_says() {
        use TargetSession::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
        let fits = |standby, read_only| {
            let kind = ServerKind { standby, read_only };
            [Any, ReadWrite, ReadOnly, Primary, Standby, PreferStandby]
                .map(|target| kind.lacks(target).is_none())
        };
        assert_eq!(fits(false, false), [true, true, false, true, false, true]);
        assert_eq!(fits(false, true), [true, false, true, true, false, true]);
        assert_eq!(fits(true, false), [true, false, true, false, true, true]);
    }
}
