//! One place where a server may be.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// One host of a URL. Out of a [`Connected`](super::Connected) or an [`SqlSession`](super::SqlSession) it also remembers the
/// address reached and whether TLS was spoken, so that [`connect_to`](super::connect_to) reaches the same server in the same way.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct HostLabel {
    pub(crate) place: Arc<Place>,
    pub(crate) port: u16,
    pub(crate) encryption: Option<Encryption>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A folder that holds the socket `.s.PGSQL.PORT`.
    Unix(PathBuf),
    /// A name, an address, or both: the address is connected to, the name is verified.
    Tcp { name: String, address: Option<IpAddr> },
}

/// How a connection is carried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Encryption {
    Plain,
    Tls,
}

impl HostLabel {
    /// Returns the host's name or address as the URL has it, or the socket's folder.
    pub fn name(&self) -> String {
        match &*self.place {
            Place::Unix(folder) => folder.display().to_string(),
            Place::Tcp { name, .. } => name.clone(),
        }
    }

    /// Returns the port; for a Unix socket the number in its name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Tells whether it never leaves this machine: a Unix socket, a loopback address, or `localhost`.
    pub fn is_loopback(&self) -> bool {
        match &*self.place {
            Place::Unix(_) => true,
            Place::Tcp {
                address: Some(address),
                ..
            } => address.is_loopback(),
            Place::Tcp { name, address: None } => {
                name.eq_ignore_ascii_case("localhost")
                    || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }
}

impl fmt::Display for HostLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.place {
            Place::Unix(folder) => write!(f, "{}/.s.PGSQL.{}", folder.display(), self.port),
            Place::Tcp { name, .. } if name.contains(':') => write!(f, "[{name}]:{}", self.port),
            Place::Tcp { name, .. } => write!(f, "{name}:{}", self.port),
        }
    }
}

impl fmt::Debug for HostLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostLabel({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(name: &str, address: Option<&str>) -> HostLabel {
        let address = address.map(|text| text.parse().expect("a test's address"));
        HostLabel {
            place: Arc::new(Place::Tcp {
                name: name.into(),
                address,
            }),
            port: 5432,
            encryption: None,
        }
    }

    #[test]
    fn loopback_is_judged_by_the_address_before_the_name() {
        assert!(tcp("localhost", None).is_loopback());
        assert!(tcp("127.0.0.1", None).is_loopback());
        assert!(tcp("::1", None).is_loopback());
        assert!(!tcp("localhost", Some("192.0.2.1")).is_loopback());
        assert!(tcp("db.example", Some("127.0.0.1")).is_loopback());
        assert!(!tcp("db.example", None).is_loopback());
        assert!(!tcp("localhost.evil.example", None).is_loopback());
    }

    #[test]
    fn label_prints_as_it_would_be_typed() {
        assert_eq!(tcp("::1", None).to_string(), "[::1]:5432");
        assert_eq!(tcp("db", None).to_string(), "db:5432");
        let unix = HostLabel {
            place: Arc::new(Place::Unix("/run/pg".into())),
            port: 5433,
            encryption: None,
        };
        assert_eq!(unix.to_string(), "/run/pg/.s.PGSQL.5433");
    }
}
