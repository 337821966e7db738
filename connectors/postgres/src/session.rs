//! The replication session: a thin client of our own, since tokio-postgres has neither replication mode nor `CopyBoth`.
//!
//! Source: PostgreSQL manual, "Frontend/Backend Protocol" and "Streaming Replication Protocol".
//!
//! ```text
//! connect: start-up message with pinned settings -> log-in -> settings verified
//! Session: simple queries and replication commands, one at a time
//! CopyBoth: the two halves of the stream after START_REPLICATION
//! ```

use std::future::Future;
use std::time::Duration;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::message::backend::{
    AUTHENTICATION_TAG, BACKEND_KEY_DATA_TAG, COMMAND_COMPLETE_TAG, DATA_ROW_TAG, EMPTY_QUERY_RESPONSE_TAG,
    ERROR_RESPONSE_TAG, Message, NOTICE_RESPONSE_TAG, PARAMETER_STATUS_TAG, READY_FOR_QUERY_TAG,
    ROW_DESCRIPTION_TAG,
};
use postgres_protocol::message::frontend;
use tailpost_database::postgres::{Connected, HostLabel, Stream, Url, connect, connect_to};
use tokio::io::AsyncWriteExt;
use tracing::debug;

use crate::error::During;
use crate::{PgError, ServerError};

mod auth;
pub(crate) mod framing;
pub(crate) mod settings;
pub(crate) mod socket;

use auth::{Credentials, Login, Step};
use framing::{Frame, FrameReader, Framing};
use socket::Socket;

/// `CopyBothResponse`, which postgres-protocol does not know.
const COPY_BOTH_RESPONSE_TAG: u8 = b'W';
/// How long the server may take over one step of opening a stream.
const STEP_MAX: Duration = Duration::from_secs(30);

/// A row of a simple query: the text of each column, `None` for NULL.
pub(crate) type Row = Vec<Option<String>>;

/// A logged-in replication session. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct Session {
    reader: FrameReader<Stream>,
}

/// The two halves of a running replication stream. The connection is closed when both are dropped.
#[derive(Debug)]
pub(crate) struct CopyBoth {
    /// The reading half; what was read ahead is in it.
    pub(crate) reader: FrameReader<Socket>,
    /// The writing half, which may also close the connection under the reader.
    pub(crate) writer: Socket,
}

impl Session {
    /// Opens a session of the database in `url` for logical replication: at `host`, where an [`SqlSession`] already is,
    /// or at the first of `url` that can be had. Dropping the future leaves nothing behind but a closed connection.
    ///
    /// [`SqlSession`]: tailpost_database::postgres::SqlSession
    ///
    /// # Errors
    /// No connection, refused, or a pinned setting that does not hold.
    pub(crate) async fn connect(
        url: &Url,
        host: Option<&HostLabel>,
        application_name: &str,
    ) -> Result<Self, PgError> {
        let connected = match host {
            Some(host) => connect_to(url, host).await?,
            None => connect(url).await?,
        };
        let (stream, startup, login) = prepare(url, connected, application_name)?;
        let mut session = Self {
            reader: FrameReader::new(stream, Framing::new(0)),
        };
        within("log us in", async {
            session.send(&startup).await?;
            session.log_in(login).await
        })
        .await?;
        within("say its settings", session.verify_settings()).await?;
        Ok(session)
    }

    /// Runs one command of the simple query protocol or the replication grammar, and returns its rows. Not cancel-safe:
    /// drop the session with the future.
    ///
    /// # Errors
    /// The server's, or the connection's.
    pub(crate) async fn simple_query(&mut self, sql: &str) -> Result<Vec<Row>, PgError> {
        self.send(&query(sql)?).await?;
        let mut rows = Vec::new();
        let mut refused = None;
        loop {
            let frame = match (self.reader.next().await, refused.take()) {
                (Ok(frame), earlier) => {
                    refused = earlier;
                    frame
                }
                // A FATAL error is followed by nothing.
                (Err(_), Some(error)) | (Err(error), None) => return Err(error),
            };
            let (tag, body) = control(frame)?;
            match tag {
                READY_FOR_QUERY_TAG => return refused.map_or(Ok(rows), Err),
                DATA_ROW_TAG => rows.push(row(&body)?),
                ERROR_RESPONSE_TAG => refused = Some(server_error(&body, During::Command)),
                NOTICE_RESPONSE_TAG => note(&body),
                ROW_DESCRIPTION_TAG
                | COMMAND_COMPLETE_TAG
                | EMPTY_QUERY_RESPONSE_TAG
                | PARAMETER_STATUS_TAG => {}
                other => return Err(unexpected(other, "as an answer to a command")),
            }
        }
    }

    /// Starts the stream. From then on `CopyData` bodies of up to `copy_data_max` bytes are buffered.
    ///
    /// # Errors
    /// The server's ([`During::Start`]), or the connection's.
    pub(crate) async fn start_replication(
        mut self,
        sql: &str,
        copy_data_max: usize,
    ) -> Result<CopyBoth, PgError> {
        within("start the replication stream", async {
            self.send(&query(sql)?).await?;
            loop {
                let (tag, body) = control(self.reader.next().await?)?;
                match tag {
                    COPY_BOTH_RESPONSE_TAG => return Ok(()),
                    ERROR_RESPONSE_TAG => return Err(server_error(&body, During::Start)),
                    NOTICE_RESPONSE_TAG => note(&body),
                    PARAMETER_STATUS_TAG => {}
                    other => return Err(unexpected(other, "as an answer to START_REPLICATION")),
                }
            }
        })
        .await?;
        let (stream, mut framing) = self.reader.into_parts();
        framing.admit(copy_data_max);
        let socket = Socket::new(stream);
        Ok(CopyBoth {
            reader: FrameReader::new(socket.clone(), framing),
            writer: socket,
        })
    }

    async fn log_in(&mut self, mut login: Login) -> Result<(), PgError> {
        let mut logged_in = false;
        loop {
            let (tag, body) = control(self.reader.next().await?)?;
            match tag {
                AUTHENTICATION_TAG if !logged_in => match login.answer(&parse(tag, &body)?)? {
                    Step::Send(bytes) => self.send(&bytes).await?,
                    Step::Wait => {}
                    Step::Done => logged_in = true,
                },
                ERROR_RESPONSE_TAG => return Err(server_error(&body, During::Connect)),
                NOTICE_RESPONSE_TAG => note(&body),
                PARAMETER_STATUS_TAG | BACKEND_KEY_DATA_TAG if logged_in => {}
                READY_FOR_QUERY_TAG if logged_in => return Ok(()),
                other => return Err(unexpected(other, "while logging in")),
            }
        }
    }

    async fn verify_settings(&mut self) -> Result<(), PgError> {
        let rows = self.simple_query(&settings::query()).await?;
        settings::verify(&rows)
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), PgError> {
        let stream = self.reader.get_mut();
        stream.write_all(bytes).await?;
        stream.flush().await?;
        Ok(())
    }
}

/// Runs one step under the common limit.
pub(crate) async fn within<T>(
    what: &'static str,
    step: impl Future<Output = Result<T, PgError>>,
) -> Result<T, PgError> {
    tokio::time::timeout(STEP_MAX, step)
        .await
        .map_err(|_| PgError::Timeout {
            what,
            after: STEP_MAX,
        })?
}

/// Makes the error of an `ErrorResponse`.
pub(crate) fn server_error(body: &bytes::Bytes, during: During) -> PgError {
    PgError::Server {
        during,
        source: Box::new(ServerError::parse(body)),
    }
}

fn prepare(
    url: &Url,
    connected: Connected,
    application_name: &str,
) -> Result<(Stream, BytesMut, Login), PgError> {
    let private = connected.is_private();
    let Connected {
        stream,
        host,
        user,
        database,
        password,
        server_end_point,
        tls,
        ..
    } = connected;
    let mut parameters = vec![
        ("user", user.as_str()),
        ("database", database.as_str()),
        ("replication", "database"),
        ("application_name", application_name),
    ];
    // The server reads these first, so that the pinned settings win.
    parameters.extend(url.options().map(|options| ("options", options)));
    parameters.extend(settings::PINNED);
    let mut startup = BytesMut::new();
    frontend::startup_message(parameters, &mut startup)
        .map_err(|error| PgError::Authentication(format!("the start-up message cannot be built: {error}")))?;
    let login = Login::new(Credentials {
        host: host.to_string(),
        user,
        password,
        server_end_point,
        tls,
        private,
        channel_binding: url.channel_binding(),
        require: url.require_auth(),
    });
    Ok((stream, startup, login))
}

fn query(sql: &str) -> Result<BytesMut, PgError> {
    let mut buffer = BytesMut::new();
    frontend::query(sql, &mut buffer)
        .map_err(|error| PgError::Protocol(format!("a command cannot be sent: {error}")))?;
    Ok(buffer)
}

/// Type and body of a message other than `CopyData`.
fn control(frame: Frame) -> Result<(u8, bytes::Bytes), PgError> {
    match frame {
        Frame::Message { tag, raw } => Ok((tag, raw.slice(framing::HEADER_LEN..))),
        Frame::Oversized { .. } => Err(unexpected(b'd', "outside of a stream")),
    }
}

/// Parses a whole message with postgres-protocol.
fn parse(tag: u8, body: &[u8]) -> Result<Message, PgError> {
    let mut raw = BytesMut::with_capacity(framing::HEADER_LEN + body.len());
    raw.extend_from_slice(&[tag]);
    let length = u32::try_from(body.len() + 4).map_err(|_| unexpected(tag, "of such a length"))?;
    raw.extend_from_slice(&length.to_be_bytes());
    raw.extend_from_slice(body);
    match Message::parse(&mut raw) {
        Ok(Some(message)) => Ok(message),
        Ok(None) => Err(unexpected(tag, "cut short")),
        Err(error) => Err(PgError::Protocol(error.to_string())),
    }
}

fn row(body: &[u8]) -> Result<Row, PgError> {
    let Message::DataRow(data) = parse(DATA_ROW_TAG, body)? else {
        return Err(unexpected(DATA_ROW_TAG, "that is no row"));
    };
    let bad = |error: std::io::Error| PgError::Protocol(error.to_string());
    let mut row = Row::new();
    let mut ranges = data.ranges();
    while let Some(range) = ranges.next().map_err(bad)? {
        let text = match range {
            None => None,
            Some(range) => {
                let bytes = data
                    .buffer()
                    .get(range)
                    .ok_or_else(|| unexpected(DATA_ROW_TAG, "cut short"))?;
                let text =
                    std::str::from_utf8(bytes).map_err(|_| unexpected(DATA_ROW_TAG, "that is not UTF-8"))?;
                Some(text.to_owned())
            }
        };
        row.push(text);
    }
    Ok(row)
}

fn note(body: &bytes::Bytes) {
    debug!(notice = %ServerError::parse(body), "server sent a notice");
}

fn unexpected(tag: u8, whence: &str) -> PgError {
    PgError::Protocol(format!("unexpected message '{}' {whence}", tag.escape_ascii()))
}
