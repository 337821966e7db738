//! rustls as a database client needs it: verification in the steps of `sslmode`, roots and keys from PEM files, read anew for each
//! connection so that renewed files are taken up. The provider is ring, given explicitly.

mod fault;
mod verifier;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, version};

pub use fault::TlsFault;
use verifier::Verifier;

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
