//! Certificates made for one test, and servers that bear them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
    SerialNumber,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{RootCertStore, ServerConfig};
use tempfile::TempDir;

/// An authority with a folder for PEM files.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// A certificate with its key.
pub(crate) struct Bearer {
    pub(crate) der: CertificateDer<'static>,
    key: KeyPair,
    pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        Self::new_with(|_params| {})
    }

    /// An authority changed by `change`.
    pub(crate) fn new_with(change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("params");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params
            .distinguished_name
            .push(DnType::CommonName, "an authority of a test");
        params.serial_number = Some(SerialNumber::from(1_u64));
        change(&mut params);
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("root.crt"), issuer.pem()).expect("written");
        Self { issuer, folder }
    }

    /// The path of its certificate, for `sslrootcert`.
    pub(crate) fn root(&self) -> String {
        self.folder.path().join("root.crt").display().to_string()
    }

    /// Issues a certificate for `names`.
    pub(crate) fn issue(&self, names: &[&str]) -> Bearer {
        self.issue_with(names, |_params| {})
    }

    /// Issues a certificate for `names`, changed by `change`.
    pub(crate) fn issue_with(&self, names: &[&str], change: impl FnOnce(&mut CertificateParams)) -> Bearer {
        let mut params = params(names);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Bearer {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            key,
        }
    }

    /// Writes `bearer` as PEM files, the key with `mode`, and returns certificate and key.
    pub(crate) fn write(&self, bearer: &Bearer, mode: u32) -> (PathBuf, PathBuf) {
        let (certificate, key) = (
            self.folder.path().join("client.crt"),
            self.folder.path().join("client.key"),
        );
        std::fs::write(&certificate, &bearer.pem).expect("written");
        std::fs::write(&key, bearer.key.serialize_pem()).expect("written");
        set_mode(&key, mode);
        (certificate, key)
    }

    /// A server that asks for a certificate of this authority's.
    pub(crate) fn demanding(&self, bearer: &Bearer) -> Arc<ServerConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("a root");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(verifier.build().expect("a verifier"))
            .with_single_cert(vec![bearer.der.clone()], bearer.private_key());
        Arc::new(config.expect("a server"))
    }
}

impl Bearer {
    /// A certificate that is its own authority, as `openssl req -x509` makes it.
    pub(crate) fn self_signed(common_name: &str) -> Self {
        Self::self_signed_with(common_name, |_params| {})
    }

    /// The same, changed by `change`.
    pub(crate) fn self_signed_with(common_name: &str, change: impl FnOnce(&mut CertificateParams)) -> Self {
        let mut params = params(&[]);
        change(&mut params);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            der: certificate.der().clone(),
            pem: certificate.pem(),
            key,
        }
    }

    /// The certificate of version 1 in `testdata`.
    pub(crate) fn version_1() -> Self {
        let pem = include_str!("../../testdata/version1.crt").to_owned();
        let key = KeyPair::from_pem(include_str!("../../testdata/version1.key")).expect("a key");
        Self {
            der: CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate"),
            key,
            pem,
        }
    }

    /// Writes the certificate alone.
    pub(crate) fn write_certificate(&self, path: &Path) {
        std::fs::write(path, &self.pem).expect("written");
    }

    /// A server that asks for no certificate.
    pub(crate) fn server(&self) -> Arc<ServerConfig> {
        self.server_with(|_config| {})
    }

    /// A server that asks for no certificate, changed by `change`.
    pub(crate) fn server_with(&self, change: impl FnOnce(&mut ServerConfig)) -> Arc<ServerConfig> {
        self.bearing(self, change)
    }

    /// A server with this key that shows the certificate of `other`.
    pub(crate) fn bearing(&self, other: &Self, change: impl FnOnce(&mut ServerConfig)) -> Arc<ServerConfig> {
        let key = rustls::crypto::ring::sign::any_supported_type(&self.private_key()).expect("a key");
        // Not `with_single_cert`: it refuses what does not fit together.
        let shown = SingleCertAndKey::from(CertifiedKey::new(vec![other.der.clone()], key));
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("versions")
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(shown));
        change(&mut config);
        Arc::new(config)
    }

    fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::try_from(self.key.serialize_der()).expect("a key")
    }
}

fn params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("params");
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

fn set_mode(path: &Path, mode: u32) {
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
    std::fs::set_permissions(path, permissions).expect("mode set");
}
