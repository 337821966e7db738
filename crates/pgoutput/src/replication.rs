//! The payload of `CopyData` in the replication stream, both ways.
//!
//! Source: PostgreSQL manual, "Streaming Replication Protocol", under `START_REPLICATION`.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::reader::Reader;
use crate::{DecodeError, Lsn};

/// What the server sends in a `CopyData`.
#[derive(Clone, PartialEq, Eq)]
pub enum ReplicationMessage {
    /// A piece of the log: with `pgoutput`, one whole [`Message`](crate::Message).
    XLogData {
        /// Where the piece stands; zero for messages that have no place of their own (Relation, Type). Of a Commit it is
        /// the place after the commit record.
        wal_start: Lsn,
        /// The end of the log on the server. A logical walsender repeats `wal_start` here.
        wal_end: Lsn,
        /// The server's clock, microseconds since 2000-01-01.
        clock: i64,
        /// The message.
        data: Bytes,
    },
    /// A sign of life.
    Keepalive {
        /// The server has sent all that is before this place.
        wal_end: Lsn,
        /// The server's clock, microseconds since 2000-01-01.
        clock: i64,
        /// The server wants a [`StandbyStatus`] at once.
        reply_requested: bool,
    },
}

impl ReplicationMessage {
    /// The bytes of an `XLogData` before its data.
    pub const XLOG_HEADER_LEN: usize = 25;

    /// Parses the payload of a `CopyData`. `data` of an `XLogData` is a slice of `payload`, whatever its length: of a
    /// message too large to buffer, the first bytes are enough for the header and
    /// [`peek_change`](crate::peek_change).
    ///
    /// # Errors
    /// Empty, short, with an unknown tag, or a keepalive with trailing bytes.
    pub fn parse(payload: Bytes) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(&payload)?;
        match reader.tag() {
            b'w' => Ok(Self::XLogData {
                wal_start: reader.lsn()?,
                wal_end: reader.lsn()?,
                clock: reader.i64()?,
                data: reader.rest(),
            }),
            b'k' => {
                let (wal_end, clock, reply) = (reader.lsn()?, reader.i64()?, reader.u8()?);
                reader.end()?;
                Ok(Self::Keepalive {
                    wal_end,
                    clock,
                    reply_requested: reply != 0,
                })
            }
            tag => Err(DecodeError::UnknownTag { tag }),
        }
    }
}

/// Shows the length of the data, not the data.
impl fmt::Debug for ReplicationMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::XLogData {
                wal_start,
                wal_end,
                clock,
                data,
            } => f
                .debug_struct("XLogData")
                .field("wal_start", wal_start)
                .field("wal_end", wal_end)
                .field("clock", clock)
                .field("data_len", &data.len())
                .finish(),
            Self::Keepalive {
                wal_end,
                clock,
                reply_requested,
            } => f
                .debug_struct("Keepalive")
                .field("wal_end", wal_end)
                .field("clock", clock)
                .field("reply_requested", reply_requested)
                .finish(),
        }
    }
}

/// The standby status update: how far the client is. The server moves a logical slot by `flush` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StandbyStatus {
    /// All before it was received.
    pub write: Lsn,
    /// All before it is stored: the server may forget it, for ever.
    pub flush: Lsn,
    /// All before it is applied; shown by `pg_stat_replication`.
    pub apply: Lsn,
    /// The client's clock, microseconds since 2000-01-01.
    pub clock: i64,
    /// The server shall answer with a keepalive at once.
    pub reply: bool,
}

impl StandbyStatus {
    /// The bytes of the message.
    pub const LEN: usize = 34;

    /// Appends the message: the payload of a `CopyData`, without its frame.
    pub fn encode(&self, buffer: &mut BytesMut) {
        buffer.reserve(Self::LEN);
        buffer.put_u8(b'r');
        buffer.put_u64(self.write.0);
        buffer.put_u64(self.flush.0);
        buffer.put_u64(self.apply.0);
        buffer.put_i64(self.clock);
        buffer.put_u8(self.reply.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PostgreSQL 15 and 18 took these bytes and moved the slot to `flush`.
    #[test]
    fn standby_status_is_appended_as_34_bytes() {
        let status = StandbyStatus {
            write: Lsn(0x0202_6991),
            flush: Lsn(0x0202_6990),
            apply: Lsn(0x0202_6990),
            clock: -2,
            reply: true,
        };
        let mut buffer = BytesMut::from(b"before".as_slice());
        status.encode(&mut buffer);
        let expected = b"before\
            r\0\0\0\0\x02\x02\x69\x91\0\0\0\0\x02\x02\x69\x90\0\0\0\0\x02\x02\x69\x90\
            \xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFE\x01";
        assert_eq!(&buffer[..], expected);
        assert_eq!(buffer.len(), b"before".len() + StandbyStatus::LEN);
    }
}
