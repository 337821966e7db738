//! Stands between the server and tokio-postgres while a session logs in, and ends it before a password goes where it must not:
//! in clear over the network, by a method that `require_auth` rules out, or into a SCRAM exchange whose work has no end.
//!
//! Messages are read whole and judged before tokio-postgres sees them. After AuthenticationOk all passes untouched.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::settings::{AuthMethod, RequireAuth};

/// No message before AuthenticationOk is near this size.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;
/// PostgreSQL's default is 4,096; each iteration is two SHA-256 on our thread.
const SCRAM_ITERATIONS_MAX: u32 = 1_000_000;

/// Why a log-in was ended by us.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refusal {
    #[error("the server asks for a password and there is none")]
    NoPassword,
    #[error("it asks for the password in clear on an unencrypted connection")]
    InClear,
    #[error("it asks for \"{}\", which require_auth rules out", .0.name())]
    Method(AuthMethod),
    #[error("it asks for a method (code {0}) that is not spoken")]
    Unknown(u32),
    #[error("it asks for {0} SCRAM iterations, over the limit of {SCRAM_ITERATIONS_MAX}")]
    Iterations(u64),
    #[error("it does not bind the log-in to the TLS session, which channel_binding=require asks for")]
    NoBinding,
    #[error("its answer is not PostgreSQL's")]
    Malformed,
}

/// What a server may ask for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    pub(super) require: RequireAuth,
    /// The stream is encrypted or never leaves this machine.
    pub(super) private: bool,
    pub(super) has_password: bool,
    /// Only SCRAM with channel binding will do.
    pub(super) must_bind: bool,
}

/// A stream that is watched until the session is authenticated.
#[derive(Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    policy: Policy,
    /// Bytes read and not judged yet.
    pending: Vec<u8>,
    /// Bytes judged and not handed on yet, from `handed`.
    judged: Vec<u8>,
    handed: usize,
    asked: bool,
    passed: bool,
}

impl<S> Guarded<S> {
    pub(super) fn new(inner: S, policy: Policy) -> Self {
        Self {
            inner,
            policy,
            pending: Vec::new(),
            judged: Vec::new(),
            handed: 0,
            asked: false,
            passed: false,
        }
    }

    /// Moves whole messages from `pending` to `judged`.
    fn judge(&mut self) -> Result<(), Refusal> {
        while !self.passed {
            let Some((header, rest)) = self.pending.split_first_chunk::<5>() else {
                return Ok(());
            };
            let [tag, length @ ..] = *header;
            let length = u32::from_be_bytes(length) as usize;
            if !(4..=MESSAGE_BYTES_MAX).contains(&length) {
                return Err(Refusal::Malformed);
            }
            let Some(body) = rest.get(..length - 4) else {
                return Ok(());
            };
            if tag == b'R' {
                let body = body.to_vec();
                self.judge_request(&body)?;
            }
            self.judged.extend(self.pending.drain(..=length));
        }
        self.judged.append(&mut self.pending);
        Ok(())
    }

    /// Judges an authentication request (manual, "Message Formats", Authentication*).
    fn judge_request(&mut self, body: &[u8]) -> Result<(), Refusal> {
        let (code, data) = body.split_first_chunk::<4>().ok_or(Refusal::Malformed)?;
        match u32::from_be_bytes(*code) {
            0 if self.asked => self.passed = true,
            0 => {
                self.allow(AuthMethod::None, false)?;
                self.passed = true;
            }
            3 if !self.policy.private => return Err(Refusal::InClear),
            3 => self.ask(AuthMethod::Password, false)?,
            5 => self.ask(AuthMethod::Md5, false)?,
            10 => self.ask_scram(data)?,
            11 => limit_iterations(data)?,
            12 => {}
            other => return Err(Refusal::Unknown(other)),
        }
        Ok(())
    }

    /// `data` lists mechanisms, each ended by a NUL.
    fn ask_scram(&mut self, data: &[u8]) -> Result<(), Refusal> {
        let binds = data
            .split(|byte| *byte == 0)
            .any(|mechanism| mechanism == b"SCRAM-SHA-256-PLUS");
        self.ask(AuthMethod::ScramSha256, binds)
    }

    fn ask(&mut self, method: AuthMethod, binds: bool) -> Result<(), Refusal> {
        self.allow(method, binds)?;
        self.asked = true;
        if self.policy.has_password {
            Ok(())
        } else {
            Err(Refusal::NoPassword)
        }
    }

    fn allow(&self, method: AuthMethod, binds: bool) -> Result<(), Refusal> {
        if !self.policy.require.allows(method) {
            return Err(Refusal::Method(method));
        }
        if self.policy.must_bind && !binds {
            Err(Refusal::NoBinding)
        } else {
            Ok(())
        }
    }
}

/// Finds `i=` in the server's first message (RFC 5802, section 5.1).
fn limit_iterations(data: &[u8]) -> Result<(), Refusal> {
    let text = std::str::from_utf8(data).map_err(|_invalid| Refusal::Malformed)?;
    let count = text
        .split(',')
        .find_map(|attribute| attribute.strip_prefix("i="))
        .ok_or(Refusal::Malformed)?;
    let count: u64 = count.parse().map_err(|_invalid| Refusal::Malformed)?;
    if count > SCRAM_ITERATIONS_MAX.into() {
        Err(Refusal::Iterations(count))
    } else {
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guarded<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        loop {
            let left = &this.judged[this.handed..];
            if !left.is_empty() {
                let count = left.len().min(buf.remaining());
                buf.put_slice(&left[..count]);
                this.handed += count;
                return Poll::Ready(Ok(()));
            }
            this.judged = Vec::new();
            this.handed = 0;
            if this.passed {
                return Pin::new(&mut this.inner).poll_read(cx, buf);
            }
            let mut space = [0; 4096];
            let mut chunk = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut this.inner).poll_read(cx, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.pending.extend_from_slice(chunk.filled());
            this.judge().map_err(io::Error::other)?;
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guarded<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().inner).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const POLICY: Policy = Policy {
        require: RequireAuth::ALL,
        private: true,
        has_password: true,
        must_bind: false,
    };

    fn request(code: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![b'R'];
        bytes.extend(u32::try_from(8 + data.len()).expect("small").to_be_bytes());
        bytes.extend(code.to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Sends `bytes` in pieces of `piece`, and returns what came through or why not.
    async fn through(policy: Policy, bytes: &[u8], piece: usize) -> Result<Vec<u8>, Refusal> {
        let (mut server, client) = tokio::io::duplex(piece.max(1));
        let bytes = bytes.to_vec();
        let send = tokio::spawn(async move { server.write_all(&bytes).await });
        let mut read = Vec::new();
        let result = Guarded::new(client, policy).read_to_end(&mut read).await;
        send.abort();
        match result {
            Ok(_) => Ok(read),
            Err(error) => Err(*error
                .into_inner()
                .expect("ours")
                .downcast::<Refusal>()
                .expect("a refusal")),
        }
    }

    #[tokio::test]
    async fn password_in_clear_is_asked_for_on_private_streams_only() {
        let ask = request(3, b"");
        assert_eq!(through(POLICY, &ask, 64).await, Ok(ask.clone()));
        assert_eq!(
            through(
                Policy {
                    private: false,
                    ..POLICY
                },
                &ask,
                64
            )
            .await,
            Err(Refusal::InClear)
        );
    }

    #[tokio::test]
    async fn methods_outside_require_auth_are_refused() {
        let mut require = RequireAuth::NOTHING;
        require.set(AuthMethod::ScramSha256, true);
        let policy = Policy { require, ..POLICY };
        let refused = |method| Err(Refusal::Method(method));
        assert_eq!(
            through(policy, &request(0, b""), 64).await,
            refused(AuthMethod::None)
        );
        assert_eq!(
            through(policy, &request(3, b""), 64).await,
            refused(AuthMethod::Password)
        );
        assert_eq!(
            through(policy, &request(5, b"salt"), 64).await,
            refused(AuthMethod::Md5)
        );
        let scram = request(10, b"SCRAM-SHA-256\0\0");
        assert_eq!(through(policy, &scram, 64).await, Ok(scram.clone()));
        let no_password = Policy {
            has_password: false,
            ..policy
        };
        assert_eq!(through(no_password, &scram, 64).await, Err(Refusal::NoPassword));
        assert_eq!(
            through(POLICY, &request(7, b""), 64).await,
            Err(Refusal::Unknown(7))
        );
    }

    #[tokio::test]
    async fn only_scram_with_channel_binding_passes_where_it_is_required() {
        let policy = Policy {
            must_bind: true,
            ..POLICY
        };
        for refused in [
            request(0, b""),
            request(3, b""),
            request(5, b"salt"),
            request(10, b"SCRAM-SHA-256\0\0"),
        ] {
            assert_eq!(through(policy, &refused, 64).await, Err(Refusal::NoBinding));
        }
        let bound = request(10, b"SCRAM-SHA-256-PLUS\0SCRAM-SHA-256\0\0");
        assert_eq!(through(policy, &bound, 64).await, Ok(bound));
    }

    #[tokio::test]
    async fn scram_iterations_are_bounded() {
        let ask = |count: &str| request(11, format!("r=n,s=c2FsdA==,i={count}").as_bytes());
        assert!(through(POLICY, &ask("4096"), 64).await.is_ok());
        assert_eq!(
            through(POLICY, &ask("2147483648"), 64).await,
            Err(Refusal::Iterations(2_147_483_648))
        );
        assert_eq!(through(POLICY, &ask("x"), 64).await, Err(Refusal::Malformed));
    }

    proptest! {
        #[test]
        fn all_after_authentication_passes_unchanged_in_any_pieces(tail: Vec<u8>, piece in 1_usize..50) {
            let mut bytes = request(10, b"SCRAM-SHA-256\0\0");
            bytes.extend(request(0, b""));
            bytes.extend(&tail);
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            prop_assert_eq!(runtime.block_on(through(POLICY, &bytes, piece)), Ok(bytes));
        }

        #[test]
        fn no_bytes_make_the_guard_panic(bytes: Vec<u8>) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
            // Either outcome is right; a panic is not.
            drop(runtime.block_on(through(POLICY, &bytes, 7)));
        }
    }
}
