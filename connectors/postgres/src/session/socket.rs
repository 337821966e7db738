//! A stream in several hands: one reads, one writes, and one may close it under the others.
//!
//! A stream that nobody reads from cannot see that the server wants to go; whoever does see it closes it here, without
//! the reader's help.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tailpost_database::postgres::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A hand on a stream. The connection is closed when all hands are dropped, or one closes it.
pub(crate) struct Socket<S = Stream>(Arc<Mutex<Option<S>>>);

impl<S> Socket<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self(Arc::new(Mutex::new(Some(stream))))
    }

    /// Closes the connection at once, also while others wait on it. They are not woken: tell them by other means.
    pub(crate) fn close(&self) {
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The lock is held for one poll only.
    fn with<T>(&self, poll: impl FnOnce(Pin<&mut S>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>>
    where
        S: Unpin,
    {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            Some(stream) => poll(Pin::new(stream)),
            None => Poll::Ready(Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "we closed the connection",
            ))),
        }
    }
}

/// Another hand on the same stream.
impl<S> Clone for Socket<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S> fmt::Debug for Socket<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Socket")
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_read(cx, buf))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.with(|stream| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.with(|stream| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn closing_one_hand_closes_the_connection_for_all() {
        let (client, mut server) = tokio::io::duplex(64);
        let (mut reader, closer) = {
            let socket = Socket::new(client);
            (socket.clone(), socket)
        };
        closer.close();
        assert_eq!(server.read(&mut [0; 8]).await.expect("end of stream"), 0);
        assert!(reader.read(&mut [0; 8]).await.is_err());
        assert!(reader.write_all(b"x").await.is_err());
    }
}
