//! The HTTP server: health, metrics and the status page.
//!
//! Connections are few and short: at most [`CONNECTIONS`] at a time, one request each, [`LIFETIME`] in all. Who comes
//! later waits in the kernel's queue. Requests read the relay's state and never wait for the relay.

use std::convert::Infallible;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tailpost_relay::{Disposition, Failure, Progress};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::metrics::Metrics;
use crate::{escape, page};

/// What there is to ask for.
pub const PATHS: [&str; 4] = ["/", "/livez", "/readyz", "/metrics"];

/// Connections at a time.
const CONNECTIONS: usize = 32;
/// A request's line and headers must come within this time.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection lives no longer, so that a client that reads slowly keeps nothing.
const LIFETIME: Duration = Duration::from_secs(15);
/// A request's line and headers take no more.
const HEADER_BYTES: usize = 16 << 10;
/// Pause after an error of accept(2), which comes from a lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(500);

const TEXT: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("could not listen on {addr}")]
    Bind {
        /// The address.
        addr: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

impl ServeError {
    /// What to do about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Bind { .. } => Disposition::Setup,
        }
    }

    /// How to mend it.
    pub fn hint(&self) -> String {
        match self {
            Self::Bind { source, .. } => match source.kind() {
                ErrorKind::AddrInUse => {
                    "another process listens there: name another address with `--listen`, or `--listen off`"
                        .into()
                }
                ErrorKind::AddrNotAvailable => "name an address of this machine with `--listen`".into(),
                ErrorKind::PermissionDenied => "name a port above 1023 with `--listen`".into(),
                _ => "name another address with `--listen`, or `--listen off`".into(),
            },
        }
    }
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Self {
        let (disposition, hint) = (error.disposition(), error.hint());
        Self::new(error, disposition).with_hint(hint)
    }
}

/// The running server. Dropping it ends it and its connections.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Server {
    /// Listens on `addr` (port 0: any free one) and serves from then on. `stall_after` is for readiness, see
    /// [`Progress::readiness`]. Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// [`ServeError::Bind`] when the address is taken or not ours.
    pub fn bind(
        addr: SocketAddr,
        progress: Arc<Progress>,
        stall_after: Duration,
    ) -> Result<Self, ServeError> {
        let failed = |source| ServeError::Bind { addr, source };
        let listener = std::net::TcpListener::bind(addr).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let metrics = Metrics::new(Arc::clone(&progress), stall_after);
        let pages = Arc::new(Pages {
            progress,
            stall_after,
            metrics,
        });
        Ok(Self {
            addr,
            task: tokio::spawn(accept(listener, pages)),
        })
    }

    /// The address listened on, with the real port.
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The task owns the connections' tasks: they end with it.
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, pages: Arc<Pages>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    // The semaphore is never closed.
    while let Ok(permit) = Arc::clone(&room).acquire_owned().await {
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let pages = Arc::clone(&pages);
                connections.spawn(async move {
                    serve(stream, pages).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(error = %error, "could not accept a connection for health and metrics");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, pages: Arc<Pages>) {
    let service = service_fn(move |request| {
        let response = pages.answer(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(LIFETIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(error = %error, "a client of health and metrics failed"),
        Err(_) => tracing::debug!("a client of health and metrics was too slow"),
    }
}

/// What `/readyz` answers.
#[derive(Serialize)]
struct Readyz<'a> {
    ready: bool,
    role: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

struct Pages {
    progress: Arc<Progress>,
    stall_after: Duration,
    metrics: Metrics,
}

impl Pages {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        if !PATHS.contains(&path) {
            let list = PATHS.join("\n");
            return response(
                StatusCode::NOT_FOUND,
                TEXT,
                format!("there is no such page; there are:\n{list}\n"),
            );
        }
        // hyper leaves the body out of the answer to HEAD.
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD\n".into());
            refusal
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            return refusal;
        }
        match path {
            "/livez" => response(StatusCode::OK, TEXT, "alive\n".into()),
            "/readyz" => self.readyz(),
            "/metrics" => self.metrics(request),
            _ => response(
                StatusCode::OK,
                TEXT,
                page::status(&self.progress, self.stall_after),
            ),
        }
    }

    fn readyz(&self) -> Response<Full<Bytes>> {
        let readiness = self.progress.readiness(self.stall_after);
        let status = if readiness.ready {
            StatusCode::OK
        } else {
            StatusCode::SERVICE_UNAVAILABLE
        };
        let (holder, reason) = (readiness.holder.as_deref(), readiness.reason.as_deref());
        let answer = Readyz {
            ready: readiness.ready,
            role: readiness.role,
            holder,
            reason,
        };
        match serde_json::to_string(&answer) {
            Ok(json) => response(status, JSON, format!("{}\n", escape::json(&json))),
            Err(error) => failed(&error),
        }
    }

    fn metrics(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let accept = request
            .headers()
            .get(ACCEPT)
            .and_then(|accept| accept.to_str().ok());
        match self.metrics.page(accept.unwrap_or_default()) {
            Ok((content_type, page)) => response(StatusCode::OK, content_type, page),
            Err(error) => failed(&error),
        }
    }
}

fn failed(error: &dyn std::error::Error) -> Response<Full<Bytes>> {
    tracing::error!(error = %error, "could not write a page");
    response(
        StatusCode::INTERNAL_SERVER_ERROR,
        TEXT,
        "the page could not be written\n".into(),
    )
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests;
