//! Logging in by tokio-postgres on a stream that is already negotiated.

use std::error::Error as _;
use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::config::{self, SslMode, SslNegotiation};
use tokio_postgres::tls::{self, TlsConnect};
use tokio_postgres::{Client, Config, Connection, Error};

use super::connect::Connected;
use super::guard::{Guarded, Policy, Refusal};
use super::settings::ChannelBinding;
use super::{Closed, ConnectError, HostLabel, Stream, Url};
use crate::TlsFault;

type Watched = Guarded<Stream>;

/// Who logs in where, for errors.
pub(super) struct Target {
    host: HostLabel,
    user: String,
    database: String,
}

/// Logs in. The connection that it returns must be polled for the client to work.
pub(super) async fn log_in(
    url: &Url,
    connected: Connected,
    application_name: &str,
) -> Result<(Client, Connection<Watched, Bound>), ConnectError> {
    let target = Target::of(&connected);
    let config = config(url, &connected, application_name);
    let policy = Policy {
        require: url.require_auth,
        private: connected.is_private(),
        has_password: connected.password.is_some(),
        must_bind: url.channel_binding == ChannelBinding::Require,
    };
    let bind = Bind {
        server_end_point: connected.server_end_point,
    };
    let stream = Guarded::new(connected.stream, policy);
    config
        .connect_raw(stream, bind)
        .await
        .map_err(|error| target.sort(&error))
}

fn config(url: &Url, connected: &Connected, application_name: &str) -> Config {
    let mut config = Config::new();
    config
        .user(&connected.user)
        .dbname(&connected.database)
        .application_name(application_name)
        // The stream is negotiated: "direct" makes tokio-postgres ask `Bind` for the stream at once, and send nothing of its own.
        .ssl_mode(SslMode::Require)
        .ssl_negotiation(SslNegotiation::Direct)
        // For the check that there is one; it is not connected to.
        .host("negotiated")
        .channel_binding(match url.channel_binding {
            ChannelBinding::Disable => config::ChannelBinding::Disable,
            ChannelBinding::Prefer => config::ChannelBinding::Prefer,
            ChannelBinding::Require => config::ChannelBinding::Require,
        });
    if let Some(password) = &connected.password {
        config.password(password.expose());
    }
    if let Some(options) = &url.options {
        config.options(options);
    }
    config
}

/// Says how a connection ended.
pub(super) fn how_it_ended(result: Result<(), Error>) -> Closed {
    match result {
        Ok(()) => Closed {
            sqlstate: None,
            message: "the session was closed".into(),
        },
        Err(error) => match error.as_db_error() {
            Some(server) => Closed {
                sqlstate: Some(server.code().code().into()),
                message: server.message().into(),
            },
            None => Closed {
                sqlstate: None,
                message: chain(&error),
            },
        },
    }
}

impl Target {
    pub(super) fn of(connected: &Connected) -> Self {
        Self {
            host: connected.host.clone(),
            user: connected.user.clone(),
            database: connected.database.clone(),
        }
    }

    /// Sorts an error of the log-in.
    pub(super) fn sort(&self, error: &Error) -> ConnectError {
        let host = self.host.clone();
        if let Some(server) = error.as_db_error() {
            let (sqlstate, message) = (server.code().code(), server.message());
            return ConnectError::from_server(&host, &self.user, &self.database, sqlstate, message);
        }
        if let Some(cause) = error
            .source()
            .and_then(|source| source.downcast_ref::<io::Error>())
        {
            return self.sort_io(cause);
        }
        if error.is_closed() {
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection");
            return ConnectError::Broken { host, source };
        }
        ConnectError::Protocol {
            host,
            reason: chain(error),
        }
    }

    fn sort_io(&self, error: &io::Error) -> ConnectError {
        let host = self.host.clone();
        let inner = error.get_ref();
        match inner.and_then(|inner| inner.downcast_ref::<Refusal>()) {
            Some(Refusal::NoPassword) => {
                return ConnectError::NoPassword {
                    host,
                    user: self.user.clone(),
                };
            }
            Some(refusal) => {
                return ConnectError::AuthMethod {
                    host,
                    reason: refusal.to_string(),
                };
            }
            None => {}
        }
        // In TLS 1.3 a server refuses a client's certificate only after the client's part of the handshake.
        if let Some(source @ rustls::Error::AlertReceived(_)) = inner.and_then(|inner| inner.downcast_ref()) {
            return ConnectError::Tls {
                host,
                source: TlsFault::Handshake {
                    source: source.clone(),
                },
            };
        }
        ConnectError::Broken {
            host,
            source: io::Error::new(error.kind(), error.to_string()),
        }
    }

    pub(super) fn protocol(&self, reason: &str) -> ConnectError {
        ConnectError::Protocol {
            host: self.host.clone(),
            reason: reason.into(),
        }
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Hands tokio-postgres the stream as it is, with the channel binding of the handshake that we made.
struct Bind {
    server_end_point: Option<Vec<u8>>,
}

impl TlsConnect<Watched> for Bind {
    type Stream = Bound;
    type Error = io::Error;
    type Future = Ready<Result<Bound, io::Error>>;

    fn connect(self, stream: Watched) -> Self::Future {
        ready(Ok(Bound {
            stream,
            server_end_point: self.server_end_point,
        }))
    }
}

/// A stream with its channel binding.
#[derive(Debug)]
pub(super) struct Bound {
    stream: Watched,
    server_end_point: Option<Vec<u8>>,
}

impl tls::TlsStream for Bound {
    fn channel_binding(&self) -> tls::ChannelBinding {
        match &self.server_end_point {
            Some(hash) => tls::ChannelBinding::tls_server_end_point(hash.clone()),
            None => tls::ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Bound {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Bound {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::environment::FakeEnvironment;

    /// A loopback stream that is said to cross the network, as no test can make a real one.
    #[tokio::test]
    async fn password_is_not_sent_in_clear_over_the_network() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let url = Url::parse(
            "postgres://u:canary@192.0.2.1/d?sslmode=disable",
            &FakeEnvironment::default(),
        );
        let url = url.expect("a URL");
        let connected = Connected {
            stream: Stream::Tcp(TcpStream::connect(address).await.expect("connected")),
            host: url.hosts()[0].clone(),
            user: "u".into(),
            database: "d".into(),
            password: url.password.clone(),
            server_end_point: None,
            tls: false,
            loopback: url.hosts()[0].is_loopback(),
        };
        let server = tokio::spawn(async move {
            let (mut stream, _peer) = listener.accept().await.expect("accepted");
            let length = stream.read_u32().await.expect("a length");
            let mut startup = vec![0; length as usize - 4];
            stream.read_exact(&mut startup).await.expect("a start-up message");
            // AuthenticationCleartextPassword.
            stream
                .write_all(&[b'R', 0, 0, 0, 8, 0, 0, 0, 3])
                .await
                .expect("asked");
            stream.read_u8().await.ok()
        });
        let result = log_in(&url, connected, "t").await.map(|_session| ());
        assert!(
            matches!(result, Err(ConnectError::AuthMethod { .. })),
            "{result:?}"
        );
        assert_eq!(
            server.await.expect("served"),
            None,
            "what the server read after it asked"
        );
    }
}
