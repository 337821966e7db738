//! Agreeing on TLS (manual, "SSL Session Encryption"): an SSLRequest answered by one byte, or a handshake at once.

use std::io;
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::host::HostLabel;
use super::settings::{SslMode, SslNegotiation};
use super::{ConnectError, Stream, Url};
use crate::{TlsFault, certificate, tls};

/// The protocol's name in ALPN.
const ALPN: &str = "postgresql";
/// SSLRequest: length 8, then the code 1234 and 5679 (manual, "Message Formats").
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A stream with what its handshake showed.
pub(super) struct Negotiated {
    pub(super) stream: Stream,
    pub(super) server_end_point: Option<Vec<u8>>,
}

/// What a handshake needs, read and checked.
pub(super) struct Prepared {
    name: ServerName<'static>,
    config: ClientConfig,
}

/// Reads certificates and keys, before anything is sent.
pub(super) async fn prepare(url: &Url, host: &HostLabel) -> Result<Prepared, ConnectError> {
    let fault = |source| ConnectError::Tls {
        host: host.clone(),
        source,
    };
    let name = host.name();
    let name = ServerName::try_from(name.clone()).map_err(|_invalid| fault(TlsFault::Name { name }))?;
    let mut settings = url.tls.clone();
    if url.ssl_negotiation == SslNegotiation::Direct {
        settings.alpn = Some(ALPN);
    }
    let built = tokio::task::spawn_blocking(move || tls::client(&settings)).await;
    let config = built
        .unwrap_or_else(|gone| {
            Err(TlsFault::Lost {
                source: io::Error::other(gone),
            })
        })
        .map_err(fault)?;
    Ok(Prepared { name, config })
}

/// Asks for TLS. Under `prefer` a server that has none goes on in plaintext; all other modes that come here insist.
pub(super) async fn tls(
    url: &Url,
    host: &HostLabel,
    prepared: Prepared,
    mut tcp: TcpStream,
) -> Result<Negotiated, ConnectError> {
    let fault = |source| ConnectError::Tls {
        host: host.clone(),
        source,
    };
    let broken = |source| ConnectError::Broken {
        host: host.clone(),
        source,
    };
    if url.ssl_negotiation == SslNegotiation::Postgres {
        tcp.write_all(&SSL_REQUEST).await.map_err(broken)?;
        // One byte and no more: what an attacker slips in behind it goes to the handshake, which fails on it, and is never taken for
        // the server's (CVE-2021-23222).
        match tcp.read_u8().await.map_err(broken)? {
            b'S' => {}
            b'N' if url.ssl_mode == SslMode::Prefer => {
                return Ok(Negotiated {
                    stream: Stream::Tcp(tcp),
                    server_end_point: None,
                });
            }
            b'N' => return Err(fault(TlsFault::NotOffered)),
            // An error message may be anybody's before the handshake, so it is not shown.
            b'E' => {
                return Err(broken(io::Error::other(
                    "the server answered the request for TLS with an error",
                )));
            }
            _ => {
                return Err(broken(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the answer is not PostgreSQL's",
                )));
            }
        }
    }
    let connector = TlsConnector::from(Arc::new(prepared.config));
    let stream = connector
        .connect(prepared.name, tcp)
        .await
        .map_err(|error| fault(TlsFault::from_handshake(error)))?;
    let (_, session) = stream.get_ref();
    if url.ssl_negotiation == SslNegotiation::Direct && session.alpn_protocol() != Some(ALPN.as_bytes()) {
        return Err(fault(TlsFault::NoAlpn));
    }
    let own = session
        .peer_certificates()
        .and_then(|certificates| certificates.first());
    let server_end_point = own.and_then(certificate::server_end_point);
    Ok(Negotiated {
        stream: Stream::Tls(Box::new(stream)),
        server_end_point,
    })
}
