//! Cuts the server's bytes into messages: a type byte, a length that counts itself, a body.
//!
//! Source: PostgreSQL manual, "Message Formats".
//!
//! The buffer grows as bytes arrive, never by a length that was merely declared. A `CopyData` over the limit passes
//! through without being kept (law 8): only its first bytes are, enough to tell what it was.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use postgres_protocol::message::backend::{COPY_DATA_TAG, Header};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::PgError;

/// The bytes kept of a `CopyData` over the limit: the header of `XLogData` (25), the tag and the relation (5), and some.
pub(crate) const HEAD_LEN: usize = 64;
/// The longest message that the server sends (its own `MaxAllocSize`), bytes.
const LENGTH_MAX: usize = 1 << 30;
/// The longest message other than `CopyData`, bytes: errors, notices, rows of small results.
const CONTROL_MAX: usize = 1 << 20;
/// What one read asks for at least, bytes.
const READ_LEN: usize = 64 << 10;
/// A buffer that grew beyond this for one message is not kept for the next, bytes.
const KEEP_LEN: usize = 256 << 10;
pub(crate) const HEADER_LEN: usize = 5;

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// A message, whole.
    Message {
        /// Its type.
        tag: u8,
        /// Type, length and body.
        raw: Bytes,
    },
    /// A `CopyData` over the limit, gone.
    Oversized {
        /// Length of its body, bytes.
        length: usize,
        /// The first [`HEAD_LEN`] bytes of its body.
        head: Bytes,
    },
}

/// What remains of a message that is not kept.
#[derive(Debug)]
struct Skip {
    length: usize,
    remaining: usize,
    head: Bytes,
}

/// The decoder: bytes in, frames out. A plain value without I/O.
#[derive(Debug)]
pub(crate) struct Framing {
    buffer: BytesMut,
    skip: Option<Skip>,
    copy_data_max: usize,
}

impl Framing {
    /// Admits `CopyData` bodies of up to `copy_data_max` bytes.
    pub(crate) fn new(copy_data_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            skip: None,
            copy_data_max,
        }
    }

    /// Changes the limit for the messages still to come.
    pub(crate) fn admit(&mut self, copy_data_max: usize) {
        self.copy_data_max = copy_data_max;
    }

    /// Takes the next frame out of the buffer; `None` where more bytes are needed.
    ///
    /// # Errors
    /// A length that no message has.
    pub(crate) fn decode(&mut self) -> Result<Option<Frame>, PgError> {
        if self.skip.is_some() {
            return Ok(self.pass());
        }
        let Some((tag, length)) = self.header()? else {
            return Ok(None);
        };
        if tag == COPY_DATA_TAG && length > self.copy_data_max {
            return Ok(self.begin_skip(length));
        }
        let total = HEADER_LEN + length;
        if self.buffer.len() < total {
            return Ok(None);
        }
        let raw = self.buffer.split_to(total).freeze();
        if total > KEEP_LEN {
            // The rest moves out, so that the frame alone owns the large allocation.
            self.buffer = BytesMut::from(&self.buffer[..]);
        }
        Ok(Some(Frame::Message { tag, raw }))
    }

    /// Type and body length of the message at the head of the buffer, checked.
    fn header(&self) -> Result<Option<(u8, usize)>, PgError> {
        let Some(header) =
            Header::parse(&self.buffer).map_err(|error| PgError::Protocol(error.to_string()))?
        else {
            return Ok(None);
        };
        let length = usize::try_from(header.len()).unwrap_or(usize::MAX) - 4;
        let max = if header.tag() == COPY_DATA_TAG {
            LENGTH_MAX
        } else {
            CONTROL_MAX
        };
        if length > max {
            let tag = header.tag().escape_ascii();
            return Err(PgError::Protocol(format!(
                "message '{tag}' of {length} bytes, at most {max} are allowed"
            )));
        }
        Ok(Some((header.tag(), length)))
    }

    fn begin_skip(&mut self, length: usize) -> Option<Frame> {
        let kept = length.min(HEAD_LEN);
        if self.buffer.len() < HEADER_LEN + kept {
            return None;
        }
        let head = Bytes::copy_from_slice(&self.buffer[HEADER_LEN..HEADER_LEN + kept]);
        self.buffer.advance(HEADER_LEN);
        self.skip = Some(Skip {
            length,
            remaining: length,
            head,
        });
        self.pass()
    }

    fn pass(&mut self) -> Option<Frame> {
        let skip = self.skip.as_mut()?;
        let step = skip.remaining.min(self.buffer.len());
        self.buffer.advance(step);
        skip.remaining -= step;
        if skip.remaining > 0 {
            return None;
        }
        let Skip { length, head, .. } = self.skip.take()?;
        Some(Frame::Oversized { length, head })
    }

    /// How many bytes to ask for: up to the end of the message at hand, but at most as much again as has arrived of it,
    /// so that a declared length alone costs nothing.
    fn wanted(&self) -> usize {
        let total = match self.header() {
            Ok(Some((_, length))) if self.skip.is_none() => HEADER_LEN + length,
            _ => 0,
        };
        total
            .saturating_sub(self.buffer.len())
            .min(self.buffer.len())
            .max(READ_LEN)
    }
}

/// Reads frames.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    read: R,
    framing: Framing,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(read: R, framing: Framing) -> Self {
        Self { read, framing }
    }

    /// Gives the parts back; what was read ahead stays in the framing.
    pub(crate) fn into_parts(self) -> (R, Framing) {
        (self.read, self.framing)
    }

    /// The stream below.
    pub(crate) fn get_mut(&mut self) -> &mut R {
        &mut self.read
    }

    /// Takes a frame that is already here; never waits.
    ///
    /// # Errors
    /// As [`Framing::decode`].
    pub(crate) fn buffered(&mut self) -> Result<Option<Frame>, PgError> {
        self.framing.decode()
    }

    /// Reads more bytes, once. Cancel-safe: a dropped call has read nothing.
    ///
    /// # Errors
    /// The connection is lost or closed.
    pub(crate) async fn fill(&mut self) -> Result<(), PgError> {
        let wanted = self.framing.wanted();
        self.framing.buffer.reserve(wanted);
        let mut room = (&mut self.framing.buffer).limit(wanted);
        match self.read.read_buf(&mut room).await? {
            0 => Err(PgError::Closed),
            _ => Ok(()),
        }
    }

    /// Reads the next frame. Cancel-safe: what arrived stays in the buffer.
    ///
    /// # Errors
    /// The connection is lost or closed, or broke the protocol.
    pub(crate) async fn next(&mut self) -> Result<Frame, PgError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LIMIT: usize = 1000;

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag];
        bytes.extend_from_slice(&u32::try_from(body.len() + 4).expect("short").to_be_bytes());
        bytes.extend_from_slice(body);
        bytes
    }

    fn decode_all(framing: &mut Framing) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some(frame) = framing.decode().expect("well formed") {
            frames.push(frame);
        }
        frames
    }

    fn expected(tag: u8, body: &[u8]) -> Frame {
        if tag == b'd' && body.len() > LIMIT {
            let head = Bytes::copy_from_slice(&body[..HEAD_LEN]);
            Frame::Oversized {
                length: body.len(),
                head,
            }
        } else {
            Frame::Message {
                tag,
                raw: message(tag, body).into(),
            }
        }
    }

    proptest! {
        #[test]
        fn frames_are_the_same_however_the_bytes_are_cut(
            messages in prop::collection::vec((prop::sample::select(b"dNEZ".to_vec()), 0_usize..3000), 1..12),
            cuts in prop::collection::vec(1_usize..700, 1..50),
        ) {
            let bodies: Vec<(u8, Vec<u8>)> =
                messages.iter().map(|&(tag, length)| (tag, (0..length).map(|i| i as u8).collect())).collect();
            let bytes: Vec<u8> = bodies.iter().flat_map(|(tag, body)| message(*tag, body)).collect();
            let mut framing = Framing::new(LIMIT);
            let (mut frames, mut rest, mut cut) = (Vec::new(), &bytes[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let step = (*cut.next().expect("endless")).min(rest.len());
                framing.buffer.extend_from_slice(&rest[..step]);
                rest = &rest[step..];
                frames.extend(decode_all(&mut framing));
            }
            let want: Vec<Frame> = bodies.iter().map(|(tag, body)| expected(*tag, body)).collect();
            prop_assert_eq!(frames, want);
        }

        #[test]
        fn no_bytes_make_the_framing_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut framing = Framing::new(LIMIT);
            framing.buffer.extend_from_slice(&bytes);
            while let Ok(Some(_)) = framing.decode() {}
        }
    }

    #[test]
    fn a_declared_length_alone_allocates_nothing() {
        let mut framing = Framing::new(LENGTH_MAX);
        framing
            .buffer
            .extend_from_slice(&[b'd', 0x3F, 0xFF, 0xFF, 0xFF, b'w']);
        assert_eq!(framing.decode().expect("valid length"), None);
        assert_eq!(framing.wanted(), READ_LEN);
    }

    #[test]
    fn a_length_beyond_one_gibibyte_is_refused() {
        for header in [
            [b'd', 0x7F, 0xFF, 0xFF, 0xFF],
            [b'd', 0xFF, 0xFF, 0xFF, 0xFF],
            [b'E', 0, 0, 0, 3],
        ] {
            let mut framing = Framing::new(LENGTH_MAX);
            framing.buffer.extend_from_slice(&header);
            assert!(
                matches!(framing.decode(), Err(PgError::Protocol(_))),
                "{header:?}"
            );
        }
    }

    #[test]
    fn an_oversized_message_is_never_buffered() {
        let mut framing = Framing::new(LIMIT);
        let length = 100_000_usize;
        framing.buffer.extend_from_slice(&message(b'd', &[7; 100])[..0]);
        framing.buffer.put_u8(b'd');
        framing.buffer.put_u32(100_004);
        for sent in (0..length).step_by(1000) {
            assert_eq!(framing.decode().expect("well formed"), None, "after {sent}");
            assert!(
                framing.buffer.len() <= HEADER_LEN + HEAD_LEN,
                "{} bytes are kept",
                framing.buffer.len()
            );
            framing.buffer.extend_from_slice(&[7; 1000]);
        }
        let head = Bytes::from_static(&[7; HEAD_LEN]);
        assert_eq!(
            framing.decode().expect("well formed"),
            Some(Frame::Oversized { length, head })
        );
        assert_eq!(framing.decode().expect("well formed"), None);
    }

    #[tokio::test]
    async fn a_dropped_read_loses_nothing() {
        use futures_util::FutureExt;
        use tokio::io::AsyncWriteExt;

        let (mut server, client) = tokio::io::duplex(16);
        let mut reader = FrameReader::new(client, Framing::new(LIMIT));
        let bytes = message(b'd', &[9; 40]);
        for part in bytes.chunks(7) {
            server.write_all(part).await.expect("room");
            // Polled once and dropped, as a select does.
            if let Some(frame) = reader.next().now_or_never() {
                assert_eq!(frame.expect("well formed"), expected(b'd', &[9; 40]));
                return;
            }
        }
        panic!("the frame never came");
    }
}
