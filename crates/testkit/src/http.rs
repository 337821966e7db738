//! One HTTP request: to Tailpost's own pages, and to RabbitMQ's management API.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body, as text.
    pub body: String,
}

/// Requests `path` from `address`, and waits at most 10 s.
///
/// # Errors
/// The server cannot be reached or does not speak HTTP; a status of any kind is no error.
pub async fn get(address: SocketAddr, path: &str) -> anyhow::Result<Answer> {
    request(address, Method::GET, path, None, String::new()).await
}

/// Requests `path` with any method, authorization and body, and waits at most 10 s.
///
/// # Errors
/// As [`get`].
pub async fn request(
    address: SocketAddr,
    method: Method,
    path: &str,
    authorization: Option<&str>,
    body: String,
) -> anyhow::Result<Answer> {
    let what = format!("{method} http://{address}{path}");
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address.to_string());
    if let Some(value) = authorization {
        request = request.header(header::AUTHORIZATION, value);
    }
    let request = request
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    timeout(Duration::from_secs(10), exchange(address, request))
        .await
        .with_context(|| format!("{what}: no answer in 10 s"))?
        .context(what)
}

async fn exchange(address: SocketAddr, request: Request<Full<Bytes>>) -> anyhow::Result<Answer> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let send = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        anyhow::Ok(Answer {
            status,
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    };
    tokio::pin!(send);
    tokio::select! {
        answer = &mut send => answer,
        // The server closed after its answer, or went away; the request's own future tells which.
        _ = connection => send.await,
    }
}
