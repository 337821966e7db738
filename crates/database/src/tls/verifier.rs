//! Judges a server's certificate. Signatures of the handshake are always verified; how far the certificate is, `Verify` says.

use std::net::IpAddr;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    CryptoProvider, WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature,
    verify_tls13_signature_with_raw_key,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};

use super::{ClientTls, Roots, TlsFault, Verify, trusted};
use crate::certificate;

#[derive(Debug)]
pub(super) struct Verifier {
    /// `None` verifies nothing but that the server holds the certificate's key.
    roots: Option<RootCertStore>,
    /// The roots as they are: a server may present one of them as its own certificate.
    pinned: Vec<CertificateDer<'static>>,
    name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    pub(super) fn new(tls: &ClientTls, provider: &CryptoProvider) -> Result<Self, TlsFault> {
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
