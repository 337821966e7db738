//! A server in this process that does as each test says, one connection after the other.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A listening server. It stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

impl Server {
    /// Serves each connection with `serve`, which is told how many came before.
    pub(crate) async fn start<F, W>(serve: F) -> Self
    where
        F: Fn(usize, TcpStream) -> W + Send + 'static,
        W: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        let task = tokio::spawn(async move {
            while let Ok((stream, _peer)) = listener.accept().await {
                tokio::spawn(serve(counted.fetch_add(1, Ordering::SeqCst), stream));
            }
        });
        Self {
            address,
            connections,
            task,
        }
    }

    /// How many connections it has had.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// A URL that leads here by the name `localhost`.
    pub(crate) fn url(&self, keys: &str) -> String {
        format!(
            "postgres://u:canary@localhost:{}/d?hostaddr=127.0.0.1&{keys}",
            self.address.port()
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads the SSLRequest and answers it with `answer`.
pub(crate) async fn answer_ssl_request(stream: &mut TcpStream, answer: &[u8]) {
    let mut request = [0; 8];
    stream.read_exact(&mut request).await.expect("a request");
    assert_eq!(request, [0, 0, 0, 8, 4, 210, 22, 47]);
    stream.write_all(answer).await.expect("answered");
}

/// Agrees to TLS, and shakes hands. `None` if the client does not like it.
pub(crate) async fn accept_tls(
    mut stream: TcpStream,
    config: Arc<ServerConfig>,
) -> Option<TlsStream<TcpStream>> {
    answer_ssl_request(&mut stream, b"S").await;
    TlsAcceptor::from(config).accept(stream).await.ok()
}

/// A server that agrees to TLS, and then waits for the client to go.
pub(crate) async fn tls_server(config: Arc<ServerConfig>) -> Server {
    Server::start(move |_, stream| {
        let config = Arc::clone(&config);
        async move {
            if let Some(mut stream) = accept_tls(stream, config).await {
                wait_for_end(&mut stream).await;
            }
        }
    })
    .await
}

/// Reads until the client has gone.
pub(crate) async fn wait_for_end(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = Vec::new();
    // How the client goes is not the server's to judge.
    drop(stream.read_to_end(&mut rest).await);
}

/// A message of the protocol.
pub(crate) fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("small");
    [&[tag], length.to_be_bytes().as_slice(), body].concat()
}

/// An ErrorResponse.
pub(crate) fn error(sqlstate: &str, text: &str) -> Vec<u8> {
    message(
        b'E',
        format!("SFATAL\0VFATAL\0C{sqlstate}\0M{text}\0\0").as_bytes(),
    )
}

/// Reads a start-up message.
pub(crate) async fn read_startup(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let length = stream.read_u32().await.expect("a length");
    let mut body = vec![0; length as usize - 4];
    stream.read_exact(&mut body).await.expect("a start-up message");
    String::from_utf8_lossy(&body).replace('\0', " ")
}

/// A session without a password on a server that `standby` and `read_only` describe; ends after the first query was answered.
pub(crate) async fn trust_session(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    standby: bool,
    read_only: bool,
) {
    read_startup(stream).await;
    let hello = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
    stream.write_all(&hello).await.expect("welcomed");
    let tag = stream.read_u8().await.expect("a query");
    assert_eq!(tag, b'Q');
    let length = stream.read_u32().await.expect("a length");
    let mut query = vec![0; length as usize - 4];
    stream.read_exact(&mut query).await.expect("a query");
    let values = [
        if standby { "t" } else { "f" },
        if read_only { "on" } else { "off" },
    ];
    let mut described = vec![0, 2];
    let mut row = vec![0, 2];
    for value in values {
        described.extend(b"c\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0");
        row.extend(u32::try_from(value.len()).expect("small").to_be_bytes());
        row.extend(value.as_bytes());
    }
    let answer = [
        message(b'C', b"SET\0"),
        message(b'T', &described),
        message(b'D', &row),
        message(b'C', b"SELECT 1\0"),
        message(b'Z', b"I"),
    ];
    stream.write_all(&answer.concat()).await.expect("answered");
}
