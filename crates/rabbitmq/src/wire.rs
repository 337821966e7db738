//! The stream under lapin: TCP, plain or in TLS, and a look at the broker's greeting.
//!
//! lapin is given this instead of a stream of its own for three reasons: certificates are set up as the URL says, with
//! ring; the socket can be shut from outside, which is the only way to end a blocked connection; and the greeting
//! (`connection.start`), which lapin does not show, tells product, version and cluster.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSlice, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_rs::Tokio;
use async_rs::traits::{Executor, Reactor, RuntimeKit};
use async_rs::util::Task;
use futures_util::Stream;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::greeting::{Greeting, Listener};

/// A connected stream.
pub(crate) enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// [`Transport`] as lapin reads and writes it.
pub(crate) struct Wire {
    transport: Transport,
    listener: Option<Listener>,
}

impl Wire {
    /// Wraps a stream; the broker's greeting appears in `greeting` once it was read.
    pub(crate) fn new(transport: Transport, greeting: Arc<OnceLock<Greeting>>) -> Self {
        Self {
            transport,
            listener: Some(Listener::new(greeting)),
        }
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wire")
    }
}

/// Runs one method of tokio's on whichever stream it is.
macro_rules! on_transport {
    ($self:ident, $method:ident, $($argument:expr),*) => {
        match &mut $self.get_mut().transport {
            Transport::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Transport::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl futures_io::AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buf = ReadBuf::new(buf);
        let wire = self.as_mut();
        ready!(on_transport!(wire, poll_read, cx, &mut buf))?;
        let read = buf.filled();
        if let Some(listener) = &mut self.listener
            && listener.hear(read)
        {
            self.listener = None;
        }
        Poll::Ready(Ok(read.len()))
    }
}

impl futures_io::AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        on_transport!(self, poll_write, cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_transport!(self, poll_write_vectored, cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self, poll_flush, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_transport!(self, poll_shutdown, cx)
    }
}

/// lapin's view of tokio, with [`Wire`] as the type of its streams.
#[derive(Clone, Debug)]
pub(crate) struct Kit(Tokio);

impl Kit {
    /// Bound to the runtime of the caller.
    pub(crate) fn current() -> Self {
        Self(Tokio::current())
    }
}

impl RuntimeKit for Kit {}

impl Executor for Kit {
    type Task<T: Send + 'static> = <Tokio as Executor>::Task<T>;

    fn block_on<T, F: Future<Output = T>>(&self, future: F) -> T {
        self.0.block_on(future)
    }

    fn spawn<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        future: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn(future)
    }

    fn spawn_blocking<T: Send + 'static, F: FnOnce() -> T + Send + 'static>(
        &self,
        work: F,
    ) -> Task<Self::Task<T>> {
        self.0.spawn_blocking(work)
    }
}

impl Reactor for Kit {
    type TcpStream = Wire;
    type Sleep = <Tokio as Reactor>::Sleep;

    fn register<H: Read + Write + AsFd + AsRawFd + Send + 'static>(
        &self,
        socket: H,
    ) -> io::Result<impl futures_io::AsyncRead + futures_io::AsyncWrite + Send + Unpin + 'static> {
        self.0.register(socket)
    }

    fn sleep(&self, duration: Duration) -> Self::Sleep {
        self.0.sleep(duration)
    }

    #[expect(clippy::disallowed_types, reason = "the trait names it")]
    fn interval(&self, duration: Duration) -> impl Stream<Item = std::time::Instant> + Send + 'static {
        self.0.interval(duration)
    }

    /// Never asked for: lapin is handed a stream that is connected already.
    fn tcp_connect_addr(
        &self,
        _address: SocketAddr,
    ) -> impl Future<Output = io::Result<Self::TcpStream>> + Send + 'static {
        std::future::ready(Err(io::ErrorKind::Unsupported.into()))
    }
}
