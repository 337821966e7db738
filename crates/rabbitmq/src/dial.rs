//! Opens a connection: TCP, TLS, login. Whatever is dropped on the way, or later, takes its socket along.

use std::future::Future;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use async_rs::Runtime;
use lapin::auth::AuthProvider;
use lapin::types::{LongString, ShortString};
use lapin::uri::{AMQPAuthority, AMQPQueryString, AMQPScheme, AMQPUri, AMQPUserInfo};
use lapin::{AsyncTcpStream, Connection, ConnectionProperties, ErrorKind};
use tokio::net::TcpStream;
use tokio::time::{Duration, Instant, timeout_at};

use crate::error::SinkError;
use crate::greeting::Greeting;
use crate::properties::DEFAULT_FRAME_MAX;
use crate::tls;
use crate::url::{BrokerUrl, Mechanism};
use crate::wire::{Kit, Transport, Wire};

/// For everything, from the resolver to the open channel.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For the broker's answer to our close.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_millis(800);
const REPLY_SUCCESS: u16 = 200;

/// An open connection.
pub(crate) struct Link {
    pub(crate) connection: Connection,
    pub(crate) greeting: Greeting,
    pub(crate) deadline: Deadline,
    socket: Socket,
}

impl Link {
    /// Logs in at `url`; the session shows itself there as `name`. Dropping the future leaves no connection behind.
    pub(crate) async fn open(url: &BrokerUrl, name: &str) -> Result<Self, SinkError> {
        let deadline = Deadline::new(url);
        let tcp = Deadline {
            at: deadline.at.min(deadline.begun + tcp_timeout(url)),
            ..deadline.clone()
        };
        let stream = tcp
            .keep("connecting", TcpStream::connect((url.host.as_str(), url.port)))
            .await?
            .map_err(|source| unreachable(url, source))?;
        let socket = Socket::of(&stream).map_err(|source| unreachable(url, source))?;
        stream
            .set_nodelay(true)
            .map_err(|source| unreachable(url, source))?;
        let transport = match &url.tls {
            None => Transport::Plain(stream),
            Some(settings) => {
                let stream = deadline
                    .keep("the TLS handshake", tls::wrap(stream, url, settings))
                    .await??;
                Transport::Tls(Box::new(stream))
            }
        };
        let greeting = Arc::new(OnceLock::new());
        let wire = Wire::new(transport, greeting.clone());
        let opened = deadline
            .keep("the login", login(url, name, wire, greeting.clone()))
            .await?;
        let greeting = greeting.get().cloned().unwrap_or_default();
        let connection = opened.map_err(|error| login_error(url, &greeting, error))?;
        Ok(Self {
            connection,
            greeting,
            deadline,
            socket,
        })
    }

    /// Closes in order, but within a second, and at once while the broker blocks us: lapin writes nothing then, so that
    /// the close would not even leave.
    pub(crate) async fn close(self) {
        if self.connection.status().blocked() {
            return self.socket.shut();
        }
        let close = self.connection.close(REPLY_SUCCESS, "OK".into());
        match tokio::time::timeout(CLOSE_TIMEOUT, close).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "the connection to the broker was closed already"),
            Err(_) => tracing::debug!("the broker did not answer the close in time"),
        }
        self.socket.shut();
    }
}

/// The time that is left for connecting.
#[derive(Clone)]
pub(crate) struct Deadline {
    address: String,
    begun: Instant,
    at: Instant,
}

impl Deadline {
    fn new(url: &BrokerUrl) -> Self {
        let begun = Instant::now();
        Self {
            address: url.address(),
            begun,
            at: begun + CONNECT_TIMEOUT,
        }
    }

    /// Waits for `work`, and no longer than the deadline.
    pub(crate) async fn keep<T>(
        &self,
        stage: &'static str,
        work: impl Future<Output = T>,
    ) -> Result<T, SinkError> {
        timeout_at(self.at, work).await.map_err(|_| SinkError::TimedOut {
            address: self.address.clone(),
            stage,
            after: self.at - self.begun,
        })
    }
}

fn tcp_timeout(url: &BrokerUrl) -> Duration {
    url.connection_timeout.unwrap_or(CONNECT_TIMEOUT)
}

fn unreachable(url: &BrokerUrl, source: io::Error) -> SinkError {
    SinkError::Unreachable {
        address: url.address(),
        source,
    }
}

/// A second handle of the socket. lapin keeps the first on a thread of its own and cannot be made to drop it; shutting
/// the socket ends that thread.
struct Socket(std::net::TcpStream);

impl Socket {
    fn of(stream: &TcpStream) -> io::Result<Self> {
        Ok(Self(stream.as_fd().try_clone_to_owned()?.into()))
    }

    fn shut(&self) {
        if let Err(error) = self.0.shutdown(std::net::Shutdown::Both) {
            tracing::trace!(%error, "the broker's socket was shut already");
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.shut();
    }
}

async fn login(
    url: &BrokerUrl,
    name: &str,
    wire: Wire,
    greeting: Arc<OnceLock<Greeting>>,
) -> lapin::Result<Connection> {
    let properties = ConnectionProperties::default()
        .with_connection_name(name.into())
        .with_client_property("product".into(), "Tailpost".into())
        .with_client_property("version".into(), env!("CARGO_PKG_VERSION").into())
        .with_auth_provider(Login {
            url: url.clone(),
            greeting,
        });
    let wire = Mutex::new(Some(wire));
    let connect = async move |_: AMQPUri, _: Runtime<Kit>| {
        let wire = wire.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Asked for once: auto-recovery and connection retries are off.
        wire.map(AsyncTcpStream::Plain)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected).into())
    };
    Connection::connector(uri(url), Runtime::new(Kit::current()), connect, properties).await
}

/// What lapin reads from a URI. The password is not among it: [`Login`] has it.
fn uri(url: &BrokerUrl) -> AMQPUri {
    AMQPUri {
        scheme: AMQPScheme::AMQP,
        authority: AMQPAuthority {
            userinfo: AMQPUserInfo {
                username: url.user.clone(),
                password: String::new(),
            },
            host: url.host.clone(),
            port: url.port,
        },
        vhost: url.vhost.clone(),
        query: AMQPQueryString {
            // Never "no limit": lapin allocates 32 frames.
            frame_max: Some(DEFAULT_FRAME_MAX),
            channel_max: Some(url.channel_max),
            heartbeat: Some(url.heartbeat),
            connection_timeout: None,
            auth_mechanism: None,
        },
    }
}

fn login_error(url: &BrokerUrl, greeting: &Greeting, error: lapin::Error) -> SinkError {
    if let ErrorKind::IOError(source) = error.kind()
        && tls::is_certificate_fault(source)
    {
        let source = io::Error::other(source.to_string());
        return SinkError::Certificate {
            address: url.address(),
            source,
        };
    }
    let offered = |mechanism: &Mechanism| greeting.mechanisms.iter().any(|name| name == mechanism.name());
    if !greeting.mechanisms.is_empty() && !url.mechanisms.iter().any(offered) {
        let wanted: Vec<_> = url.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
        return SinkError::Mechanism {
            wanted: wanted.join(", "),
            offered: greeting.mechanisms.join(", "),
        };
    }
    SinkError::opening(&url.user, &url.vhost, error)
}

/// Answers the broker's greeting: the first of our mechanisms that it offers.
struct Login {
    url: BrokerUrl,
    greeting: Arc<OnceLock<Greeting>>,
}

impl Login {
    fn chosen(&self) -> Mechanism {
        let offered = self
            .greeting
            .get()
            .map_or(&[][..], |greeting| &greeting.mechanisms);
        let wanted = &self.url.mechanisms;
        let both = wanted
            .iter()
            .find(|mechanism| offered.iter().any(|name| name == mechanism.name()));
        both.or(wanted.first()).copied().unwrap_or(Mechanism::Plain)
    }
}

impl AuthProvider for Login {
    fn mechanism(&self) -> ShortString {
        self.chosen().name().into()
    }

    fn auth_starter(&self) -> Result<LongString, String> {
        Ok(match self.chosen() {
            // RFC 4616: no authorization identity, user, password.
            Mechanism::Plain => format!("\0{}\0{}", self.url.user, self.url.password.expose()).into(),
            Mechanism::External => LongString::default(),
        })
    }

    fn continue_auth(&self, _challenge: LongString) -> Result<LongString, String> {
        Err("the broker sent a challenge that the mechanism does not have".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(mechanisms: &str, offered: &[&str]) -> (String, LongString) {
        let url = format!("amqps://us:pa@h?certfile=c&keyfile=k{mechanisms}");
        let greeting = Greeting {
            mechanisms: offered.iter().map(ToString::to_string).collect(),
            ..Greeting::default()
        };
        let login = Login {
            url: BrokerUrl::parse(&url).unwrap(),
            greeting: Arc::new(OnceLock::from(greeting)),
        };
        (login.mechanism().to_string(), login.auth_starter().unwrap())
    }

    #[test]
    fn first_mechanism_that_the_broker_offers_is_used() {
        let both = "&auth_mechanism=external&auth_mechanism=plain";
        assert_eq!(
            login(both, &["PLAIN", "EXTERNAL"]),
            ("EXTERNAL".into(), "".into())
        );
        assert_eq!(
            login(both, &["PLAIN", "AMQPLAIN"]),
            ("PLAIN".into(), "\0us\0pa".into())
        );
        assert_eq!(login("", &["EXTERNAL"]).0, "PLAIN");
    }

    #[tokio::test]
    async fn broker_that_is_silent_or_absent_is_named_and_retried() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let url = BrokerUrl::parse(&format!("amqp://{address}")).unwrap();
        let Err(error) = Link::open(&url, "test").await else {
            panic!("nobody listens there")
        };
        assert_eq!(
            error.to_string(),
            format!("could not connect to the broker at {address}")
        );
        assert!(matches!(error, SinkError::Unreachable { .. }));
    }

    #[tokio::test]
    async fn dropping_the_future_in_the_middle_of_a_login_closes_the_socket() {
        use tokio::io::AsyncReadExt;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = BrokerUrl::parse(&format!("amqp://{}", listener.local_addr().unwrap())).unwrap();
        let opening = tokio::spawn(async move { Link::open(&url, "test").await.map(drop) });
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut header = [0; 8];
        stream.read_exact(&mut header).await.unwrap();
        assert_eq!(header, *b"AMQP\0\0\x09\x01");
        opening.abort();
        assert_eq!(stream.read(&mut header).await.unwrap(), 0);
    }
}
