//! TLS to the broker: rustls with ring, set up as the URL says.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::SinkError;
use crate::url::{BrokerUrl, TlsSettings};

/// Wraps `stream` in TLS. Files are read anew each time, so that renewed certificates are taken at the next connect.
pub(crate) async fn wrap(
    stream: TcpStream,
    url: &BrokerUrl,
    settings: &TlsSettings,
) -> Result<TlsStream<TcpStream>, SinkError> {
    let name = settings.server_name.as_ref().unwrap_or(&url.host);
    let server_name = ServerName::try_from(name.clone())
        .map_err(|error| SinkError::TlsSetup(format!("\"{name}\" is no name for a certificate: {error}")))?;
    let settings = settings.clone();
    let config = tokio::task::spawn_blocking(move || client_config(&settings))
        .await
        .map_err(|error| SinkError::TlsSetup(error.to_string()))??;
    TlsConnector::from(Arc::new(config))
        .connect(server_name, stream)
        .await
        .map_err(|source| failed(url.address(), source))
}

/// An error of the handshake, or of the first read after it (TLS 1.3 refuses a client's certificate only then).
pub(crate) fn failed(address: String, source: io::Error) -> SinkError {
    if is_certificate_fault(&source) {
        SinkError::Certificate { address, source }
    } else {
        SinkError::Handshake { address, source }
    }
}

/// Whether it is the certificate, of either side, that was not accepted.
pub(crate) fn is_certificate_fault(error: &io::Error) -> bool {
    use AlertDescription as Alert;
    match error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
    {
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented) => true,
        Some(rustls::Error::AlertReceived(alert)) => matches!(
            alert,
            Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::CertificateRequired
                | Alert::UnknownCA
                | Alert::AccessDenied
        ),
        Some(_) | None => false,
    }
}

fn client_config(settings: &TlsSettings) -> Result<ClientConfig, SinkError> {
    let provider = Arc::new(ring::default_provider());
    let verifier = verifier(settings, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| SinkError::TlsSetup(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier);
    let Some((certificate, key)) = &settings.identity else {
        return Ok(builder.with_no_client_auth());
    };
    builder
        .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
        .map_err(|error| SinkError::TlsFile {
            path: certificate.clone(),
            reason: error.to_string(),
        })
}

fn verifier(
    settings: &TlsSettings,
    provider: &Arc<CryptoProvider>,
) -> Result<Arc<dyn ServerCertVerifier>, SinkError> {
    if !settings.verify_peer {
        return Ok(Arc::new(AnyCertificate(provider.clone())));
    }
    let roots = Arc::new(roots(settings.cacertfile.as_deref())?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
        .build()
        .map_err(|error| SinkError::TlsSetup(error.to_string()))?;
    Ok(verifier)
}

fn roots(cacertfile: Option<&Path>) -> Result<RootCertStore, SinkError> {
    let mut roots = RootCertStore::empty();
    let Some(path) = cacertfile else {
        let loaded = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(loaded.certs);
        if roots.is_empty() {
            return Err(SinkError::TlsSetup(
                "the system has no certificates of authorities: name one with cacertfile".into(),
            ));
        }
        return Ok(roots);
    };
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| unusable(path, error))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, SinkError> {
    let certificates: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(path, error))?;
    if certificates.is_empty() {
        return Err(unusable(path, "it holds no certificate"));
    }
    Ok(certificates)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, SinkError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, reason: impl fmt::Display) -> SinkError {
    SinkError::TlsFile {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

/// `verify=verify_none`: takes any certificate, but still checks that the other side holds its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signed,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
