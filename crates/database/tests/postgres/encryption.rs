//! Each `sslmode` against servers that are what they should be, and against those that are not.

use std::error::Error;
use std::sync::Arc;

use rcgen::{DnType, GeneralSubtree, NameConstraints, date_time_ymd};
use sha2::{Digest, Sha256};
use tailpost_database::TlsFault;
use tailpost_database::postgres::{ConnectError, ConnectErrorKind, Connected, connect, connect_to};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use crate::authorities::{Authority, Bearer};
use crate::scripted::{Server, accept_tls, answer_ssl_request, error, message, tls_server, wait_for_end};
use crate::surroundings::{Surroundings, url, url_in};

async fn try_connect(server: &Server, keys: &str) -> Result<Connected, ConnectError> {
    connect(&url(&server.url(keys))).await
}

async fn fault(server: &Server, keys: &str) -> TlsFault {
    match try_connect(server, keys).await {
        Err(error @ ConnectError::Tls { .. }) => {
            assert_eq!(error.kind(), ConnectErrorKind::Refused, "{error:?}");
            assert!(error.hint().is_some(), "{error:?}");
            assert!(!format!("{error:?} {error}").contains("canary"));
            let ConnectError::Tls { source, .. } = error else {
                unreachable!("matched above")
            };
            source
        }
        other => panic!("{keys}: {other:?}"),
    }
}

/// A proxy that strips TLS: it answers every request with N.
async fn stripping() -> Server {
    Server::start(|_, mut stream: TcpStream| async move {
        answer_ssl_request(&mut stream, b"N").await;
        wait_for_end(&mut stream).await;
    })
    .await
}

#[tokio::test]
async fn stripped_tls_fails_under_require_and_above() {
    let (server, authority) = (stripping().await, Authority::new());
    for mode in ["require", "verify-ca", "verify-full"] {
        let keys = format!("sslmode={mode}&sslrootcert={}", authority.root());
        assert!(
            matches!(fault(&server, &keys).await, TlsFault::NotOffered),
            "{mode}"
        );
    }
}

#[tokio::test]
async fn prefer_goes_on_in_plaintext_on_the_same_connection() {
    let server = stripping().await;
    let connected = try_connect(&server, "sslmode=prefer").await.expect("plaintext");
    assert!(!connected.tls && connected.loopback && connected.is_private());
    assert_eq!(connected.server_end_point, None);
    assert_eq!(server.connections(), 1);
}

#[tokio::test]
async fn disable_and_allow_ask_for_no_tls() {
    for mode in ["disable", "allow"] {
        let server =
            Server::start(|_, mut stream: TcpStream| async move { wait_for_end(&mut stream).await }).await;
        let connected = try_connect(&server, &format!("sslmode={mode}"))
            .await
            .expect("plaintext");
        assert!(!connected.tls, "{mode}");
    }
}

#[tokio::test]
async fn bytes_slipped_in_after_the_answer_are_never_taken_for_the_servers() {
    let bearer = Authority::new().issue(&["localhost"]);
    let config = bearer.server();
    let server = Server::start(move |_, mut stream| {
        let config = Arc::clone(&config);
        async move {
            // The forged message stands before an honest handshake (CVE-2021-23222).
            answer_ssl_request(&mut stream, &[b"S".as_slice(), &message(b'R', &[0; 4])].concat()).await;
            drop(TlsAcceptor::from(config).accept(stream).await);
        }
    })
    .await;
    assert!(matches!(
        fault(&server, "sslmode=require").await,
        TlsFault::Handshake { .. }
    ));
}

#[tokio::test]
async fn error_instead_of_an_answer_is_not_shown_and_not_final() {
    let server = Server::start(|_, mut stream| async move {
        answer_ssl_request(&mut stream, &error("28000", "forged")).await;
        wait_for_end(&mut stream).await;
    })
    .await;
    let error = try_connect(&server, "sslmode=require")
        .await
        .expect_err("an error");
    assert!(matches!(error, ConnectError::Broken { .. }));
    assert_eq!(error.kind(), ConnectErrorKind::Unreachable);
    assert!(!format!("{error:?}").contains("forged"));
}

#[tokio::test]
async fn each_sslmode_verifies_as_much_as_it_says() {
    let (mine, other) = (Authority::new(), Authority::new());
    let right = tls_server(mine.issue(&["localhost"]).server()).await;
    let wrong_name = tls_server(mine.issue(&["elsewhere.example"]).server()).await;
    let wrong_authority = tls_server(other.issue(&["localhost"]).server()).await;
    let root = mine.root();
    for (mode, name_is_verified) in [("require", false), ("verify-ca", false), ("verify-full", true)] {
        let keys = format!("sslmode={mode}&sslrootcert={root}");
        assert!(try_connect(&right, &keys).await.expect(mode).tls);
        assert!(
            matches!(fault(&wrong_authority, &keys).await, TlsFault::Certificate { .. }),
            "{mode}"
        );
        if name_is_verified {
            assert!(
                matches!(fault(&wrong_name, &keys).await, TlsFault::Certificate { .. }),
                "{mode}"
            );
        } else {
            assert!(try_connect(&wrong_name, &keys).await.expect(mode).tls);
        }
    }
    assert!(
        try_connect(&wrong_authority, "sslmode=require")
            .await
            .expect("no root, no verification")
            .tls
    );
    assert!(matches!(
        fault(&right, "sslmode=verify-ca").await,
        TlsFault::NoRoots { .. }
    ));
    assert!(matches!(
        fault(&right, "sslmode=require&sslrootcert=/nonexistent").await,
        TlsFault::File { .. }
    ));
    assert!(matches!(
        fault(&right, "sslrootcert=system").await,
        TlsFault::Certificate { .. } | TlsFault::SystemRoots { .. }
    ));
}

#[tokio::test]
async fn root_file_at_home_is_taken_as_libpq_does() {
    let (mine, other) = (Authority::new(), Authority::new());
    let home = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(home.path().join(".postgresql")).expect("a folder");
    std::fs::copy(mine.root(), home.path().join(".postgresql/root.crt")).expect("copied");
    let surroundings = Surroundings::default().at_home(home.path());
    let right = tls_server(mine.issue(&["localhost"]).server()).await;
    let wrong = tls_server(other.issue(&["localhost"]).server()).await;
    for mode in ["require", "verify-full"] {
        let keys = format!("sslmode={mode}");
        assert!(
            connect(&url_in(&right.url(&keys), &surroundings))
                .await
                .expect(mode)
                .tls
        );
        let error = connect(&url_in(&wrong.url(&keys), &surroundings))
            .await
            .expect_err(mode);
        assert!(
            matches!(
                error,
                ConnectError::Tls {
                    source: TlsFault::Certificate { .. },
                    ..
                }
            ),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn self_signed_certificate_may_be_its_own_root() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server.crt");
    // What the manual's first example makes: an authority's certificate with a common name alone.
    let bearer = Bearer::self_signed("localhost");
    bearer.write_certificate(&path);
    let server = tls_server(bearer.server()).await;
    let impostor = tls_server(Bearer::self_signed("localhost").server()).await;
    for mode in ["require", "verify-ca", "verify-full"] {
        let keys = format!("sslmode={mode}&sslrootcert={}", path.display());
        assert!(try_connect(&server, &keys).await.expect(mode).tls);
        assert!(
            matches!(fault(&impostor, &keys).await, TlsFault::Certificate { .. }),
            "{mode}"
        );
    }
    let misnamed = Bearer::self_signed("elsewhere.example");
    misnamed.write_certificate(&path);
    let server = tls_server(misnamed.server()).await;
    let keys = format!("sslmode=verify-full&sslrootcert={}", path.display());
    assert!(matches!(
        fault(&server, &keys).await,
        TlsFault::Certificate { .. }
    ));
}

#[tokio::test]
async fn common_name_counts_only_without_alternative_names() {
    let authority = Authority::new();
    let named = |params: &mut rcgen::CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, "localhost")
    };
    let keys = format!("sslmode=verify-full&sslrootcert={}", authority.root());
    let alone = tls_server(authority.issue_with(&[], named).server()).await;
    assert!(try_connect(&alone, &keys).await.expect("by common name").tls);
    let beside = tls_server(authority.issue_with(&["elsewhere.example"], named).server()).await;
    assert!(matches!(
        fault(&beside, &keys).await,
        TlsFault::Certificate { .. }
    ));
}

#[tokio::test]
async fn expired_certificate_is_refused_where_certificates_are_verified() {
    let authority = Authority::new();
    let expired = |params: &mut rcgen::CertificateParams| params.not_after = date_time_ymd(2001, 1, 1);
    let server = tls_server(authority.issue_with(&["localhost"], expired).server()).await;
    let keys = format!("sslmode=verify-full&sslrootcert={}", authority.root());
    let source = fault(&server, &keys).await;
    assert!(
        source.source().expect("a cause").to_string().contains("expired"),
        "{source:?}"
    );
    assert!(
        try_connect(&server, "sslmode=require")
            .await
            .expect("not verified")
            .tls
    );
}

#[tokio::test]
async fn expired_certificate_that_is_its_own_root_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server.crt");
    let expired =
        Bearer::self_signed_with("localhost", |params| params.not_after = date_time_ymd(2001, 1, 1));
    expired.write_certificate(&path);
    let keys = format!("sslmode=verify-ca&sslrootcert={}", path.display());
    assert!(matches!(
        fault(&tls_server(expired.server()).await, &keys).await,
        TlsFault::Certificate { .. }
    ));
}

#[tokio::test]
async fn common_name_is_nothing_under_an_authority_with_name_constraints() {
    let authority = Authority::new_with(|params| {
        let only = GeneralSubtree::DnsName("elsewhere.example".into());
        params.name_constraints = Some(NameConstraints {
            permitted_subtrees: vec![only],
            excluded_subtrees: Vec::new(),
        });
    });
    let named = |params: &mut rcgen::CertificateParams| {
        params.distinguished_name.push(DnType::CommonName, "localhost")
    };
    let server = tls_server(authority.issue_with(&[], named).server()).await;
    let keys = |mode| format!("sslmode={mode}&sslrootcert={}", authority.root());
    assert!(
        try_connect(&server, &keys("verify-ca"))
            .await
            .expect("the chain is right")
            .tls
    );
    assert!(matches!(
        fault(&server, &keys("verify-full")).await,
        TlsFault::Certificate { .. }
    ));
}

/// Older OpenSSL makes these where no extension is asked for, as the manual's examples do not.
#[tokio::test]
async fn version_1_certificate_is_of_use_only_where_none_is_verified() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("server.crt");
    let bearer = Bearer::version_1();
    bearer.write_certificate(&path);
    let connected = try_connect(&tls_server(bearer.server()).await, "sslmode=require")
        .await
        .expect("not verified");
    assert_eq!(
        connected.server_end_point,
        Some(Sha256::digest(&bearer.der).to_vec())
    );
    // With its certificate and another's key nobody is let in, verified or not.
    let thief = Bearer::self_signed("localhost").bearing(&bearer, |_config| {});
    assert!(matches!(
        fault(&tls_server(thief).await, "sslmode=require").await,
        TlsFault::Certificate { .. }
    ));
    let keys = format!("sslmode=verify-ca&sslrootcert={}", path.display());
    assert!(matches!(
        fault(&tls_server(bearer.server()).await, &keys).await,
        TlsFault::Certificate { .. }
    ));
}

#[tokio::test]
async fn name_of_the_url_is_asked_for_and_verified_whatever_the_address() {
    let authority = Authority::new();
    let config = authority.issue(&["db.example"]).server();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |_, stream| {
        let (config, tell) = (Arc::clone(&config), tell.clone());
        async move {
            if let Some(mut stream) = accept_tls(stream, config).await {
                tell.send(stream.get_ref().1.server_name().map(str::to_owned))
                    .expect("the test listens");
                wait_for_end(&mut stream).await;
            }
        }
    })
    .await;
    let port = server.address.port();
    let text = format!(
        "postgres://db.example:{port}/d?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={}",
        authority.root()
    );
    connect(&url(&text)).await.expect("a session");
    assert_eq!(told.recv().await, Some(Some("db.example".into())));
    connect(&url(&format!("{text}&sslsni=0")))
        .await
        .expect("a session");
    assert_eq!(told.recv().await, Some(None));
}

#[tokio::test]
async fn client_certificate_is_shown_and_its_key_must_be_private() {
    let authority = Authority::new();
    let config = authority.demanding(&authority.issue(&["localhost"]));
    let server = Server::start(move |_, stream| {
        let config = Arc::clone(&config);
        async move {
            if let Some(mut stream) = accept_tls(stream, config).await {
                drop(stream.write_all(b"welcome").await);
            }
        }
    })
    .await;
    let (certificate, key) = authority.write(&authority.issue(&["u"]), 0o600);
    let keys = format!(
        "sslmode=require&sslcert={}&sslkey={}",
        certificate.display(),
        key.display()
    );
    let mut connected = try_connect(&server, &keys).await.expect("a session");
    let mut word = [0; 7];
    connected.stream.read_exact(&mut word).await.expect("a word");
    assert_eq!(&word, b"welcome");
    // In TLS 1.3 the server's refusal comes after the client's part of the handshake.
    let mut connected = try_connect(&server, "sslmode=require")
        .await
        .expect("a handshake");
    connected
        .stream
        .read_exact(&mut word)
        .await
        .expect_err("no certificate, no session");
    authority.write(&authority.issue(&["u"]), 0o644);
    assert!(matches!(
        fault(&server, &keys).await,
        TlsFault::KeyPermissions { .. }
    ));
}

#[tokio::test]
async fn direct_tls_sends_no_request_and_insists_on_its_protocol() {
    let bearer = Authority::new().issue(&["localhost"]);
    for (alpn, works) in [(vec![b"postgresql".to_vec()], true), (Vec::new(), false)] {
        let config = bearer.server_with(|config| config.alpn_protocols = alpn);
        let server = Server::start(move |_, stream| {
            let acceptor = TlsAcceptor::from(Arc::clone(&config));
            async move {
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    wait_for_end(&mut stream).await;
                }
            }
        })
        .await;
        let keys = "sslmode=require&sslnegotiation=direct";
        if works {
            assert!(try_connect(&server, keys).await.expect("a session").tls);
        } else {
            assert!(matches!(fault(&server, keys).await, TlsFault::NoAlpn));
        }
    }
}

#[tokio::test]
async fn channel_binding_is_the_hash_of_the_servers_certificate() {
    let bearer = Authority::new().issue(&["localhost"]);
    let server = tls_server(bearer.server()).await;
    let connected = try_connect(&server, "sslmode=require").await.expect("a session");
    // The test's certificates are signed by ECDSA with SHA-256.
    assert_eq!(
        connected.server_end_point,
        Some(Sha256::digest(&bearer.der).to_vec())
    );
}

#[tokio::test]
async fn label_of_a_session_leads_to_the_same_place_in_the_same_way() {
    let server = Server::start(|before, mut stream: TcpStream| async move {
        if before == 0 {
            answer_ssl_request(&mut stream, b"N").await;
            return wait_for_end(&mut stream).await;
        }
        let mut first_bytes = [0; 5];
        stream.read_exact(&mut first_bytes).await.expect("bytes");
        stream.write_all(&first_bytes).await.expect("echoed");
    })
    .await;
    let url = url(&server.url("sslmode=prefer"));
    let first = connect(&url).await.expect("plaintext");
    // The first asked for TLS and got none. The second knows, and does not ask.
    let mut second = connect_to(&url, &first.host).await.expect("plaintext");
    assert_eq!((second.host.clone(), second.tls), (first.host, false));
    second.stream.write_all(b"hello").await.expect("sent");
    let mut echo = [0; 5];
    second.stream.read_exact(&mut echo).await.expect("an echo");
    assert_eq!(&echo, b"hello");
}
