//! What can stand in the way of TLS.

use std::io;
use std::path::PathBuf;

use rustls::{CertificateError, Error};

/// What stood in the way of TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsFault {
    /// The server, or somebody on the way, says that it does not speak TLS.
    #[error("the server does not offer TLS")]
    NotOffered,
    /// Direct TLS was answered by something that is not PostgreSQL 17 or later.
    #[error("the server did not select the protocol \"postgresql\" (ALPN)")]
    NoAlpn,
    /// The certificate is not acceptable.
    #[error("the server's certificate is not acceptable")]
    Certificate {
        /// Why.
        source: Error,
    },
    /// The handshake failed for another reason that both sides could speak of.
    #[error("the TLS handshake failed")]
    Handshake {
        /// Why.
        source: Error,
    },
    /// The connection was lost within the handshake.
    #[error("the connection was lost in the TLS handshake")]
    Lost {
        /// Why.
        source: io::Error,
    },
    /// The host has no name that a certificate could bear.
    #[error("\"{name}\" is no name that a certificate could bear")]
    Name {
        /// The name.
        name: String,
    },
    /// Verification is asked for and there are no roots.
    #[error("there is no root certificate to verify the server with{}", .looked_at.as_ref().map(|path| format!(": {} does not exist", path.display())).unwrap_or_default())]
    NoRoots {
        /// The file that would have been taken.
        looked_at: Option<PathBuf>,
    },
    /// A file cannot be read, or does not hold what it should.
    #[error("cannot read {what} from {}: {problem}", path.display())]
    File {
        /// What it should hold.
        what: &'static str,
        /// Which file.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// The system has no roots that can be read.
    #[error("the system's root certificates cannot be read: {problem}")]
    SystemRoots {
        /// Why.
        problem: String,
    },
    /// The key's file may be read by others.
    #[error("the private key {} may be read by others than its owner", path.display())]
    KeyPermissions {
        /// Which file.
        path: PathBuf,
    },
    /// Certificate, key and protocol versions do not make a client.
    #[error("the client certificate and its key cannot be used")]
    Identity {
        /// Why.
        source: Error,
    },
}

impl TlsFault {
    /// Sorts an error of a handshake.
    pub(crate) fn from_handshake(error: io::Error) -> Self {
        match error.downcast::<Error>() {
            Ok(source @ Error::InvalidCertificate(_)) => Self::Certificate { source },
            Ok(source) => Self::Handshake { source },
            Err(source) => Self::Lost { source },
        }
    }

    /// Tells whether the same attempt may succeed later, without anybody changing a set-up.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Lost { .. } => true,
            Self::NotOffered
            | Self::NoAlpn
            | Self::Certificate { .. }
            | Self::Handshake { .. }
            | Self::Name { .. }
            | Self::NoRoots { .. }
            | Self::File { .. }
            | Self::SystemRoots { .. }
            | Self::KeyPermissions { .. }
            | Self::Identity { .. } => false,
        }
    }

    /// Returns a sentence that tells the operator how to mend it.
    pub(crate) fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::NotOffered => "set ssl = on on the server; if it is on, somebody on the way strips TLS",
            Self::NoAlpn => "leave out sslnegotiation=direct for servers before PostgreSQL 17",
            Self::Certificate { source } => return Some(certificate_hint(source).into()),
            Self::NoRoots { .. } => {
                "name the authority's certificate with sslrootcert=FILE, or sslrootcert=system"
            }
            Self::KeyPermissions { .. } => "chmod 0600 the key (0640 if root owns it)",
            Self::SystemRoots { .. } => {
                "install the package ca-certificates, or name a file with sslrootcert=FILE"
            }
            Self::Identity { .. } => "sslcert and sslkey must belong together",
            Self::Handshake { .. } => {
                "the server may ask for a client certificate (sslcert, sslkey), or speak only TLS before 1.2"
            }
            Self::File { .. } => {
                "sslrootcert, sslcert and sslkey must name PEM files that this process may read"
            }
            Self::Lost { .. } => {
                "servers before PostgreSQL 17 close connections that begin with sslnegotiation=direct"
            }
            Self::Name { .. } => return None,
        };
        Some(hint.into())
    }
}

fn certificate_hint(error: &Error) -> &'static str {
    match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "sslrootcert must hold the certificate of the authority that signed the server's"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "connect by a name that the certificate bears, or have it issued for this one (subjectAltName)",
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            "renew the server's certificate, and look at this machine's clock"
        }
        _ => {
            "certificates of version 1, or with keys under 2048 bits or SHA-1 signatures, are not accepted: have it issued anew"
        }
    }
}
