//! A TCP proxy that breaks connections on command.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::try_join;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::ports::free_address;

/// What one read moves at most: small enough that a pause or a rate takes hold soon.
const CHUNK: usize = 16 * 1024;

/// A proxy in front of a server. A client is reset when the server does not take its connection. The proxy's address stays the same until it is dropped, whatever is done to it; dropping it
/// cuts its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: watch::Sender<State>,
    accepting: JoinHandle<()>,
}

#[derive(Clone, Debug)]
struct State {
    target: SocketAddr,
    paused: bool,
    refusing: bool,
    /// Connections of an older generation are cut.
    generation: u64,
    /// Bytes a second in each direction of each connection.
    rate: Option<u32>,
    /// Cuts a connection after it passed that many bytes from the server to the client.
    cut_after: Option<u64>,
}

impl Proxy {
    /// Starts one in front of `target`.
    ///
    /// # Errors
    /// No port is free.
    pub async fn start(target: SocketAddr) -> anyhow::Result<Self> {
        let address = free_address()?;
        let listener = TcpListener::bind(address).await?;
        let state = State {
            target,
            paused: false,
            refusing: false,
            generation: 0,
            rate: None,
            cut_after: None,
        };
        let (state, changes) = watch::channel(state);
        let accepting = tokio::spawn(accept(Some(listener), address, changes));
        Ok(Self {
            address,
            state,
            accepting,
        })
    }

    /// Where clients connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Blackhole: connections stay open, new ones are taken, and nothing moves, also not the end of a connection.
    pub fn pause(&self) {
        self.state.send_modify(|state| state.paused = true);
    }

    /// Ends [`pause`](Self::pause); what was sent meanwhile arrives.
    pub fn resume(&self) {
        self.state.send_modify(|state| state.paused = false);
    }

    /// Resets all connections now. New ones are served.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.generation += 1);
    }

    /// Resets all connections now and refuses new ones: the server is down, as it seems.
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.generation += 1;
            state.refusing = true;
        });
    }

    /// Ends [`refuse`](Self::refuse).
    pub fn accept(&self) {
        self.state.send_modify(|state| state.refusing = false);
    }

    /// Resets all connections now; new ones go to `target`.
    pub fn switch(&self, target: SocketAddr) {
        self.state.send_modify(|state| {
            state.generation += 1;
            state.target = target;
        });
    }

    /// Limits each direction of each connection to so many bytes a second.
    pub fn limit(&self, rate: Option<u32>) {
        self.state.send_modify(|state| state.rate = rate);
    }

    /// Resets each connection in the middle of the stream, after the server sent that many bytes over it.
    pub fn cut_after(&self, bytes: Option<u64>) {
        self.state.send_modify(|state| state.cut_after = bytes);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

async fn accept(mut listener: Option<TcpListener>, address: SocketAddr, mut changes: watch::Receiver<State>) {
    loop {
        let state = changes.borrow_and_update().clone();
        if state.refusing {
            listener = None; // a closed port refuses
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                sleep(Duration::from_millis(10)).await;
                continue;
            }
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            accepted = accepted => if let Ok((client, _)) = accepted {
                tokio::spawn(serve(client, state.target, state.generation, changes.clone()));
            },
        }
    }
}

/// Serves one connection until both ends closed it, or until it is cut.
async fn serve(
    mut client: TcpStream,
    target: SocketAddr,
    generation: u64,
    mut changes: watch::Receiver<State>,
) {
    if flowing(&mut changes).await.is_err() {
        return;
    }
    let Ok(mut server) = TcpStream::connect(target).await else {
        return reset(client);
    };
    let orderly = {
        let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
        tokio::select! {
            // An error is the end of the proxy itself.
            _ = async { changes.clone().wait_for(|state| state.generation != generation).await.map(drop) } => false,
            ended = try_join(
                pump(from_client, to_server, changes.clone(), false),
                pump(from_server, to_client, changes.clone(), true),
            ) => ended.is_ok(),
        }
    };
    if !orderly {
        reset(client);
        reset(server);
    }
}

/// Closes so that the peer sees a reset, as when a machine goes away, and not an orderly end.
fn reset(stream: TcpStream) {
    // Where even that fails, the peer sees an orderly end.
    drop(stream.set_zero_linger());
}

async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut changes: watch::Receiver<State>,
    from_server: bool,
) -> io::Result<()> {
    let mut buffer = vec![0; CHUNK];
    let mut passed = 0;
    loop {
        let read = from.read(&mut buffer).await?;
        // The pause may have come while it was read.
        let State { rate, cut_after, .. } = flowing(&mut changes).await?;
        if read == 0 {
            return to.shutdown().await;
        }
        let left = cut_after
            .filter(|_| from_server)
            .map_or(u64::MAX, |limit| limit.saturating_sub(passed));
        let moved = read.min(usize::try_from(left).unwrap_or(usize::MAX));
        to.write_all(&buffer[..moved]).await?;
        passed += moved as u64;
        if moved < read {
            return Err(ErrorKind::ConnectionReset.into());
        }
        if let Some(rate) = rate {
            sleep(Duration::from_secs_f64(moved as f64 / f64::from(rate.max(1)))).await;
        }
    }
}

/// Waits until the proxy is not paused.
async fn flowing(changes: &mut watch::Receiver<State>) -> io::Result<State> {
    let state = changes.wait_for(|state| !state.paused).await;
    state
        .map(|state| state.clone())
        .map_err(|_| ErrorKind::ConnectionReset.into())
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    /// A server that echoes, and that says `tag` first.
    async fn echo(tag: u8) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    stream.write_all(&[tag]).await.unwrap();
                    let (mut from, mut to) = stream.split();
                    drop(tokio::io::copy(&mut from, &mut to).await);
                });
            }
        });
        address
    }

    async fn dial(proxy: &Proxy) -> (TcpStream, u8) {
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let tag = stream.read_u8().await.unwrap();
        (stream, tag)
    }

    #[tokio::test]
    async fn bytes_and_the_end_of_a_stream_pass_in_both_directions() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, _) = dial(&proxy).await;
        let sent: Vec<u8> = (0..200_000u32).map(|n| n as u8).collect();
        let (mut from, mut to) = stream.split();
        let mut received = Vec::new();
        let (wrote, read) = tokio::join!(
            async {
                to.write_all(&sent).await?;
                to.shutdown().await
            },
            from.read_to_end(&mut received)
        );
        wrote.unwrap();
        read.unwrap();
        assert!(received == sent, "{} bytes came back", received.len());
    }

    #[tokio::test]
    async fn a_pause_holds_bytes_back_and_a_resume_lets_them_pass() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, _) = dial(&proxy).await;
        proxy.pause();
        stream.write_u8(7).await.unwrap();
        assert!(
            timeout(Duration::from_millis(100), stream.read_u8())
                .await
                .is_err(),
            "it passed a pause"
        );
        proxy.resume();
        assert_eq!(stream.read_u8().await.unwrap(), 7);
    }

    #[tokio::test]
    async fn a_cut_resets_what_is_open_and_serves_what_comes() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, _) = dial(&proxy).await;
        proxy.cut();
        assert_eq!(
            stream.read_u8().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        dial(&proxy).await;
    }

    #[tokio::test]
    async fn a_refusing_proxy_refuses_until_it_accepts_again_on_the_same_port() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, _) = dial(&proxy).await;
        proxy.refuse();
        assert_eq!(
            stream.read_u8().await.unwrap_err().kind(),
            ErrorKind::ConnectionReset
        );
        let refused = crate::wait::until("it refuses", Duration::from_secs(5), async || {
            Ok(TcpStream::connect(proxy.address()).await.err())
        });
        assert_eq!(refused.await.unwrap().kind(), ErrorKind::ConnectionRefused);
        proxy.accept();
        let limit = Duration::from_secs(5);
        let again = crate::wait::until("it accepts", limit, async || {
            Ok(TcpStream::connect(proxy.address()).await.ok())
        });
        assert_eq!(again.await.unwrap().read_u8().await.unwrap(), 1);
    }

    #[tokio::test]
    async fn a_switched_proxy_leads_to_the_other_server() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, tag) = dial(&proxy).await;
        assert_eq!(tag, 1);
        proxy.switch(echo(2).await);
        assert!(stream.read_u8().await.is_err());
        assert_eq!(dial(&proxy).await.1, 2);
    }

    #[tokio::test]
    async fn a_stream_is_cut_after_exactly_that_many_bytes() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        proxy.cut_after(Some(5));
        let (mut stream, _) = dial(&proxy).await; // 1
        stream.write_all(b"abcdefgh").await.unwrap();
        for expected in b"abcd" {
            assert_eq!(stream.read_u8().await.unwrap(), *expected);
        }
        assert!(stream.read_u8().await.is_err());
    }

    #[tokio::test]
    async fn a_rate_makes_a_transfer_take_its_time() {
        let proxy = Proxy::start(echo(1).await).await.unwrap();
        let (mut stream, _) = dial(&proxy).await;
        proxy.limit(Some(10_000));
        let began = tokio::time::Instant::now();
        for _ in 0..3 {
            stream.write_all(&[0; 1_000]).await.unwrap();
            stream.read_exact(&mut [0; 1_000]).await.unwrap();
        }
        assert!(
            began.elapsed() >= Duration::from_millis(200),
            "took {:?}",
            began.elapsed()
        );
    }
}
