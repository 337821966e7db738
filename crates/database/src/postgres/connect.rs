//! From a URL to a negotiated stream: hosts in order, addresses in order, encryption as `sslmode` says.

use std::future::Future;
use std::hash::{BuildHasher, RandomState};

use super::host::{Encryption, Place};
use super::settings::SslMode;
use super::{ConnectError, ConnectErrorKind, HostLabel, Stream, Url};
use super::{negotiate, password, socket};
use crate::{Secret, TlsFault};

/// A stream on which the start-up message comes next, and what the session needs to authenticate.
#[derive(Debug)]
pub struct Connected {
    /// The stream.
    pub stream: Stream,
    /// Where it leads: with the address reached and the encryption spoken.
    pub host: HostLabel,
    /// User to log in as.
    pub user: String,
    /// Database to open.
    pub database: String,
    /// Password for this host: of the password file, the URL, `PGPASSWORD` or `.pgpass`.
    pub password: Option<Secret>,
    /// `tls-server-end-point` (RFC 5929, section 4): hash of the server's certificate, for SCRAM-SHA-256-PLUS. `None` without TLS
    /// and for signature algorithms without a hash of their own (Ed25519).
    pub server_end_point: Option<Vec<u8>>,
    /// The stream is encrypted.
    pub tls: bool,
    /// The stream never leaves this machine.
    pub loopback: bool,
}

impl Connected {
    /// Tells whether a password may be sent in clear on this stream: it is encrypted or never leaves this machine.
    pub fn is_private(&self) -> bool {
        self.tls || self.loopback
    }
}

/// Connects to the first host of `url` that can be had, and negotiates encryption. It does not authenticate, so
/// `target_session_attrs` is not looked at, nor does it try the other encryption of `allow` or `prefer` when the server refuses a
/// log-in: an [`SqlSession`](super::SqlSession) does both, and its host goes to [`connect_to`].
///
/// Dropping the future leaves nothing behind but a closed connection.
///
/// # Errors
/// The error of the only host, the first refusal that waiting does not mend, or [`ConnectError::AllHosts`].
pub async fn connect(url: &Url) -> Result<Connected, ConnectError> {
    first_of(url, &url.hosts, &Stop).await
}

/// Connects to `host`, and no other: the way to open a second session on the server of a first one. In other respects as
/// [`connect`].
///
/// # Errors
/// As [`connect`].
pub async fn connect_to(url: &Url, host: &HostLabel) -> Result<Connected, ConnectError> {
    first_of(url, std::slice::from_ref(host), &Stop).await
}

/// What is done with a negotiated stream, as a part of the attempt to connect: its failure tries the next host.
pub(super) trait Then: Sync {
    type Output: Send;
    fn then(
        &self,
        url: &Url,
        connected: Connected,
    ) -> impl Future<Output = Result<Self::Output, ConnectError>> + Send;
}

/// Nothing more.
struct Stop;

impl Then for Stop {
    type Output = Connected;
    async fn then(&self, _url: &Url, connected: Connected) -> Result<Connected, ConnectError> {
        Ok(connected)
    }
}

/// Tries `hosts` in order (or from a random one, with `load_balance_hosts`) until `then` has succeeded once.
pub(super) async fn first_of<T: Then>(
    url: &Url,
    hosts: &[HostLabel],
    then: &T,
) -> Result<T::Output, ConnectError> {
    let mut errors = Vec::new();
    for host in in_order(hosts, url.load_balance) {
        let addresses = match resolve(url, host).await {
            Ok(addresses) => addresses,
            Err(error) => {
                errors.push(error);
                continue;
            }
        };
        for address in in_order(&addresses, url.load_balance) {
            match one(url, address, then).await {
                Ok(output) => return Ok(output),
                // As in libpq: a server that says no has been found; another's yes would hide the fault.
                Err(error) if error.kind() == ConnectErrorKind::Refused => return Err(error),
                Err(error) => errors.push(error),
            }
        }
    }
    match <[ConnectError; 1]>::try_from(errors) {
        Ok([only]) => Err(only),
        Err(errors) => Err(ConnectError::AllHosts(errors)),
    }
}

/// `hosts`, begun at a random place if `balanced`.
fn in_order(hosts: &[HostLabel], balanced: bool) -> impl Iterator<Item = &HostLabel> {
    // Hash maps are seeded at random, which is random enough to spread relays over hosts.
    let random = RandomState::new().hash_one(0_u8);
    let first = if balanced {
        random as usize % hosts.len().max(1)
    } else {
        0
    };
    hosts.iter().cycle().skip(first).take(hosts.len())
}

async fn resolve(url: &Url, host: &HostLabel) -> Result<Vec<HostLabel>, ConnectError> {
    limited(url, host, socket::resolve(host)).await
}

async fn limited<T>(
    url: &Url,
    host: &HostLabel,
    work: impl Future<Output = Result<T, ConnectError>>,
) -> Result<T, ConnectError> {
    let Some(limit) = url.connect_timeout else {
        return work.await;
    };
    match tokio::time::timeout(limit, work).await {
        Ok(result) => result,
        Err(_elapsed) => Err(ConnectError::Timeout {
            host: host.clone(),
            limit,
        }),
    }
}

/// Tries one address in the encryptions that `sslmode` allows. The second is tried only after a refusal that it could mend.
async fn one<T: Then>(url: &Url, host: &HostLabel, then: &T) -> Result<T::Output, ConnectError> {
    let (first, second) = encryptions(url.ssl_mode, host);
    let attempt = |encryption| limited(url, host, attempt(url, host, encryption, then));
    let error = match attempt(first).await {
        Ok(output) => return Ok(output),
        Err(error) => error,
    };
    let Some(second) = second.filter(|_| error.depends_on_encryption()) else {
        return Err(error);
    };
    tracing::debug!(%host, %error, "trying the other encryption that sslmode allows");
    match attempt(second).await {
        Ok(output) => Ok(output),
        // Of two refusals the one with TLS says more, unless it is that there is none.
        Err(with_tls) if second == Encryption::Tls && !with_tls.is_tls_not_offered() => Err(with_tls),
        Err(_) => Err(error),
    }
}

fn encryptions(mode: SslMode, host: &HostLabel) -> (Encryption, Option<Encryption>) {
    use Encryption::{Plain, Tls};
    if matches!(*host.place, Place::Unix(_)) {
        return (Plain, None);
    }
    match (mode, host.encryption) {
        (SslMode::Disable, _) => (Plain, None),
        (SslMode::Allow | SslMode::Prefer, Some(known)) => (known, None),
        (SslMode::Allow, None) => (Plain, Some(Tls)),
        (SslMode::Prefer, None) => (Tls, Some(Plain)),
        (SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull, _) => (Tls, None),
    }
}

async fn attempt<T: Then>(
    url: &Url,
    host: &HostLabel,
    encryption: Encryption,
    then: &T,
) -> Result<T::Output, ConnectError> {
    let password = password::find(url, host).await?;
    let prepared = match encryption {
        Encryption::Tls => Some(negotiate::prepare(url, host).await?),
        Encryption::Plain => None,
    };
    let negotiated = match (socket::open(host, &url.keepalive).await?, prepared) {
        (Stream::Tcp(tcp), Some(prepared)) => negotiate::tls(url, host, prepared, tcp).await?,
        (plain, _) => negotiate::Negotiated {
            stream: plain,
            server_end_point: None,
        },
    };
    let tls = matches!(negotiated.stream, Stream::Tls(_));
    let spoken = if tls { Encryption::Tls } else { Encryption::Plain };
    let connected = Connected {
        stream: negotiated.stream,
        host: HostLabel {
            encryption: Some(spoken),
            ..host.clone()
        },
        user: url.user.clone(),
        database: url.database.clone(),
        password,
        server_end_point: negotiated.server_end_point,
        tls,
        loopback: host.is_loopback(),
    };
    then.then(url, connected).await
}

impl ConnectError {
    /// Tells whether the other encryption may fare better: TLS failed, or `pg_hba.conf` has a line for the other one only. A wrong
    /// password is not tried twice.
    fn depends_on_encryption(&self) -> bool {
        matches!(self, Self::Tls { .. } | Self::Hba { .. })
    }

    fn is_tls_not_offered(&self) -> bool {
        matches!(
            self,
            Self::Tls {
                source: TlsFault::NotOffered,
                ..
            }
        )
    }
}
