//! Sockets: names to addresses, addresses to connections, and how a dead peer is noticed.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};

use super::host::{HostLabel, Place};
use super::settings::Keepalive;
use super::{ConnectError, Stream};

/// Finds the addresses of `host`, in the resolver's order. A Unix socket, or a host whose address is known, is itself.
pub(super) async fn resolve(host: &HostLabel) -> Result<Vec<HostLabel>, ConnectError> {
    let Place::Tcp { name, address: None } = &*host.place else {
        return Ok(vec![host.clone()]);
    };
    let failed = |source| ConnectError::Resolve {
        host: host.clone(),
        source,
    };
    let found = tokio::net::lookup_host((name.as_str(), host.port))
        .await
        .map_err(failed)?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|socket| socket.ip()) {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() {
        return Err(failed(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        )));
    }
    let at = |address| HostLabel {
        place: Arc::new(Place::Tcp {
            name: name.clone(),
            address: Some(address),
        }),
        ..host.clone()
    };
    Ok(addresses.into_iter().map(at).collect())
}

/// Connects to one place, in plaintext so far.
pub(super) async fn open(host: &HostLabel, keepalive: &Keepalive) -> Result<Stream, ConnectError> {
    let stream = match &*host.place {
        Place::Unix(folder) => UnixStream::connect(folder.join(format!(".s.PGSQL.{}", host.port)))
            .await
            .map(Stream::Unix),
        Place::Tcp {
            address: Some(address),
            ..
        } => tcp(SocketAddr::new(*address, host.port), keepalive)
            .await
            .map(Stream::Tcp),
        Place::Tcp { name, address: None } => TcpStream::connect((name.as_str(), host.port))
            .await
            .and_then(|stream| tune(stream, keepalive))
            .map(Stream::Tcp),
    };
    stream.map_err(|source| ConnectError::Reach {
        host: host.clone(),
        source,
    })
}

async fn tcp(address: SocketAddr, keepalive: &Keepalive) -> io::Result<TcpStream> {
    tune(TcpStream::connect(address).await?, keepalive)
}

fn tune(stream: TcpStream, keepalive: &Keepalive) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(&stream);
    if keepalive.enabled {
        let settings = TcpKeepalive::new()
            .with_time(keepalive.idle)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.count);
        socket.set_tcp_keepalive(&settings)?;
    }
    #[cfg(target_os = "linux")]
    if keepalive.user_timeout.is_some() {
        socket.set_tcp_user_timeout(keepalive.user_timeout)?;
    }
    Ok(stream)
}
