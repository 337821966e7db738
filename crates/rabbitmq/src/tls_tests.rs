//! Goal: every setting of the URL does what it says. Method: handshakes with a server of our own on a local socket.

use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;

/// Files of an authority, and of a server and a client that it signed.
struct Files {
    folder: tempfile::TempDir,
    authority: CertifiedIssuer<'static, KeyPair>,
    server: (CertificateDer<'static>, PrivateKeyDer<'static>),
}

impl Files {
    fn make() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let sign = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &authority).unwrap(), key)
        };
        let (server, server_key) = sign("broker.test");
        let (client, client_key) = sign("client.test");
        let files = [
            ("ca.pem", authority.pem()),
            ("other.pem", server.pem()),
            ("client.pem", client.pem()),
            ("client.key", client_key.serialize_pem()),
            ("empty.pem", String::new()),
        ];
        for (name, text) in files {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let key = PrivateKeyDer::try_from(server_key.serialize_der()).unwrap();
        Self {
            folder,
            server: (server.der().clone(), key),
            authority,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn settings(&self, cacertfile: &str) -> TlsSettings {
        TlsSettings {
            cacertfile: Some(self.path(cacertfile)),
            identity: None,
            verify_peer: true,
            server_name: Some("broker.test".into()),
        }
    }

    /// Connects to a server that asks for a client certificate if `mutual`; the first error of either read is returned.
    async fn handshake(&self, settings: &TlsSettings, mutual: bool) -> Result<(), SinkError> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(self.authority.der().clone()).unwrap();
        let builder = if mutual {
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .unwrap();
            builder.with_client_cert_verifier(verifier)
        } else {
            builder.with_no_client_auth()
        };
        let config = builder
            .with_single_cert(vec![self.server.0.clone()], self.server.1.clone_key())
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(mut stream) = TlsAcceptor::from(Arc::new(config)).accept(stream).await {
                tokio::io::AsyncWriteExt::write_all(&mut stream, b"x")
                    .await
                    .unwrap();
            }
        });
        let url = BrokerUrl::parse(&format!("amqps://localhost:{port}")).unwrap();
        let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        let mut stream = wrap(stream, &url, settings).await?;
        let read = stream
            .read_u8()
            .await
            .map(drop)
            .map_err(|source| failed(url.address(), source));
        server.await.unwrap();
        read
    }
}

#[tokio::test]
async fn certificate_of_the_named_authority_is_accepted() {
    let files = Files::make();
    files.handshake(&files.settings("ca.pem"), false).await.unwrap();
}

#[tokio::test]
async fn wrong_authority_wrong_name_and_the_systems_roots_are_a_matter_of_set_up() {
    let files = Files::make();
    let wrong_name = TlsSettings {
        server_name: Some("elsewhere.test".into()),
        ..files.settings("ca.pem")
    };
    let from_url = TlsSettings {
        server_name: None,
        ..files.settings("ca.pem")
    };
    for settings in [files.settings("other.pem"), wrong_name, from_url] {
        let error = files.handshake(&settings, false).await.unwrap_err();
        assert!(matches!(error, SinkError::Certificate { .. }), "{error}");
    }
}

#[tokio::test]
async fn verify_none_accepts_any_certificate() {
    let files = Files::make();
    let settings = TlsSettings {
        verify_peer: false,
        server_name: None,
        ..files.settings("other.pem")
    };
    files.handshake(&settings, false).await.unwrap();
}

#[tokio::test]
async fn client_certificate_is_shown_and_its_absence_is_a_matter_of_set_up() {
    let files = Files::make();
    let identity = Some((files.path("client.pem"), files.path("client.key")));
    let settings = TlsSettings {
        identity,
        ..files.settings("ca.pem")
    };
    files.handshake(&settings, true).await.unwrap();
    let error = files
        .handshake(&files.settings("ca.pem"), true)
        .await
        .unwrap_err();
    assert!(matches!(error, SinkError::Certificate { .. }), "{error:?}");
}

#[tokio::test]
async fn unusable_file_is_named() {
    let files = Files::make();
    let swapped = Some((files.path("client.key"), files.path("client.pem")));
    for (settings, name) in [
        (files.settings("absent.pem"), "absent.pem"),
        (files.settings("empty.pem"), "empty.pem"),
        (
            TlsSettings {
                identity: swapped,
                ..files.settings("ca.pem")
            },
            "client.key",
        ),
    ] {
        let error = files.handshake(&settings, false).await.unwrap_err();
        assert!(
            matches!(&error, SinkError::TlsFile { path, .. } if path.ends_with(name)),
            "{error}"
        );
    }
}

#[tokio::test]
async fn peer_that_speaks_no_tls_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"AMQP\0\0\x09\x01")
            .await
            .unwrap();
    });
    let files = Files::make();
    let url = BrokerUrl::parse(&format!("amqps://localhost:{port}")).unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let error = wrap(stream, &url, &files.settings("ca.pem")).await.unwrap_err();
    assert!(matches!(error, SinkError::Handshake { .. }), "{error}");
}
