//! rustls as a database client needs it: verification in the steps of `sslmode`, roots and keys from PEM files, read anew for each
//! connection so that renewed files are taken up. The provider is ring, given explicitly.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme, version,
};

use crate::certificate;

/// How far a server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Its chain, if roots are at hand; else not at all.
    ChainIfRoots,
    /// Its chain.
    Chain,
    /// Its chain and its name.
    Name,
}

/// Where trusted roots come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Nowhere.
    Absent,
    /// The system's store.
    System,
    /// A PEM file.
    File(PathBuf),
    /// A PEM file, if it exists.
    FileIfPresent(PathBuf),
}

impl Roots {
    /// Tells whether there is something to verify with.
    pub(crate) fn are_present(&self) -> bool {
        match self {
            Self::Absent => false,
            Self::System | Self::File(_) => true,
            Self::FileIfPresent(path) => path.exists(),
        }
    }
}

/// A client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// If not, an absent certificate file means that there is no client certificate.
    pub(crate) required: bool,
}

/// All of TLS but the server's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClientTls {
    pub(crate) verify: Verify,
    pub(crate) roots: Roots,
    pub(crate) identity: Option<Identity>,
    pub(crate) sni: bool,
    pub(crate) tls13_only: bool,
    pub(crate) alpn: Option<&'static str>,
}

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

/// Builds a client. Reads files: not for an async task.
pub(crate) fn client(tls: &ClientTls) -> Result<ClientConfig, TlsFault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = Arc::new(Verifier::new(tls, &provider)?);
    let versions: &[&rustls::SupportedProtocolVersion] = if tls.tls13_only {
        &[&version::TLS13]
    } else {
        &[&version::TLS13, &version::TLS12]
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(|source| TlsFault::Identity { source })?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let mut config = match identity(tls)? {
        Some((chain, key)) => builder
            .with_client_auth_cert(chain, key)
            .map_err(|source| TlsFault::Identity { source })?,
        None => builder.with_no_client_auth(),
    };
    config.enable_sni = tls.sni;
    config.alpn_protocols = tls.alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    // Connections are few and long: a resumed session would save nothing, and would hide the certificate.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

type Chain = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn identity(tls: &ClientTls) -> Result<Option<Chain>, TlsFault> {
    let Some(identity) = &tls.identity else {
        return Ok(None);
    };
    if !identity.required && !identity.certificate.exists() {
        return Ok(None);
    }
    let chain = certificates(&identity.certificate, "a client certificate")?;
    refuse_open_key(&identity.key)?;
    let key = PrivateKeyDer::from_pem_file(&identity.key).map_err(|error| TlsFault::File {
        what: "a private key (PEM, without a passphrase)",
        path: identity.key.clone(),
        problem: pem_problem(&error),
    })?;
    Ok(Some((chain, key)))
}

/// libpq's rule: a file of root's may be read by its group, any other file by its owner only.
fn refuse_open_key(path: &Path) -> Result<(), TlsFault> {
    use std::os::unix::fs::MetadataExt;
    let fault = |problem: String| TlsFault::File {
        what: "a private key",
        path: path.to_owned(),
        problem,
    };
    let metadata = std::fs::metadata(path).map_err(|error| fault(error.to_string()))?;
    if !metadata.is_file() {
        return Err(fault("it is no regular file".into()));
    }
    let forbidden = if metadata.uid() == 0 { 0o037 } else { 0o077 };
    if metadata.mode() & forbidden != 0 {
        return Err(TlsFault::KeyPermissions {
            path: path.to_owned(),
        });
    }
    Ok(())
}

fn certificates(path: &Path, what: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    let fault = |problem| TlsFault::File {
        what,
        path: path.to_owned(),
        problem,
    };
    let all: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let all = all.map_err(|error| fault(pem_problem(&error)))?;
    if all.is_empty() {
        Err(fault("it holds no PEM certificate".into()))
    } else {
        Ok(all)
    }
}

/// The error's own text may quote the file.
fn pem_problem(error: &rustls::pki_types::pem::Error) -> String {
    match error {
        rustls::pki_types::pem::Error::Io(error) => error.to_string(),
        rustls::pki_types::pem::Error::NoItemsFound => "it holds none".into(),
        _ => "it is not well-formed PEM".into(),
    }
}

fn trusted(tls: &ClientTls) -> Result<Vec<CertificateDer<'static>>, TlsFault> {
    match &tls.roots {
        Roots::Absent => Ok(Vec::new()),
        Roots::File(path) => certificates(path, "root certificates"),
        Roots::FileIfPresent(path) if path.exists() => certificates(path, "root certificates"),
        Roots::FileIfPresent(_) => Ok(Vec::new()),
        Roots::System => {
            let found = rustls_native_certs::load_native_certs();
            if found.certs.is_empty() {
                let problem = found
                    .errors
                    .first()
                    .map_or_else(|| "none found".into(), ToString::to_string);
                return Err(TlsFault::SystemRoots { problem });
            }
            Ok(found.certs)
        }
    }
}

#[derive(Debug)]
struct Verifier {
    /// `None` verifies nothing but that the server holds the certificate's key.
    roots: Option<RootCertStore>,
    /// The roots as they are: a server may present one of them as its own certificate.
    pinned: Vec<CertificateDer<'static>>,
    name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(tls: &ClientTls, provider: &CryptoProvider) -> Result<Self, TlsFault> {
        let certificates = trusted(tls)?;
        let mut store = RootCertStore::empty();
        let (taken, _unreadable) = store.add_parsable_certificates(certificates.iter().cloned());
        let roots = match tls.verify {
            Verify::ChainIfRoots if certificates.is_empty() => None,
            Verify::ChainIfRoots | Verify::Chain | Verify::Name => Some(store),
        };
        if roots.is_some() && taken == 0 {
            let looked_at = match &tls.roots {
                Roots::File(path) | Roots::FileIfPresent(path) => Some(path.clone()),
                Roots::Absent | Roots::System => None,
            };
            return Err(TlsFault::NoRoots { looked_at });
        }
        Ok(Self {
            roots,
            pinned: if tls.roots == Roots::System {
                Vec::new()
            } else {
                certificates
            },
            name: tls.verify == Verify::Name,
            algorithms: provider.signature_verification_algorithms,
        })
    }

    fn verify_chain(
        &self,
        roots: &RootCertStore,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        // A self-signed server certificate that is its own root is what the PostgreSQL manual starts with; webpki refuses an
        // authority's certificate as a server's, so it is compared byte for byte.
        if self.pinned.iter().any(|pinned| pinned == own) {
            let valid = certificate::is_valid_at(own, now);
            return if valid {
                Ok(())
            } else {
                Err(CertificateError::Expired.into())
            };
        }
        let parsed = ParsedCertificate::try_from(own)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, others, now, self.algorithms.all)
    }

    /// By alternative name; or by common name, which the certificates of the PostgreSQL manual have alone. webpki holds no common
    /// name against an authority's name constraints, so where an authority has any the common name counts for nothing; nor with
    /// the system's roots, whose authorities write alternative names.
    fn verify_name(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
    ) -> Result<(), Error> {
        let by_alternative_name = verify_server_name(&ParsedCertificate::try_from(own)?, name);
        if self
            .pinned
            .iter()
            .chain(others)
            .any(certificate::constrains_names)
            || self.pinned.is_empty()
        {
            return by_alternative_name;
        }
        let host = match name {
            ServerName::DnsName(host) => host.as_ref().to_owned(),
            ServerName::IpAddress(address) => IpAddr::from(*address).to_string(),
            _ => return by_alternative_name,
        };
        by_alternative_name.or_else(|error| {
            if certificate::common_name_matches(own, &host) {
                Ok(())
            } else {
                Err(error)
            }
        })
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        own: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if let Some(roots) = &self.roots {
            self.verify_chain(roots, own, others, now)?;
            if self.name {
                self.verify_name(own, others, name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, own, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        // Certificates of version 1, which older OpenSSL makes by default, are opaque to webpki. Where nothing of them is verified
        // the session's signature still is, by the bare key.
        if self.roots.is_none() && ParsedCertificate::try_from(own).is_err() {
            let key = certificate::public_key(own).ok_or(CertificateError::BadEncoding)?;
            return verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms);
        }
        verify_tls13_signature(message, own, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
