//! The bytes of an offset file. Integers are big-endian; texts are UTF-8.
//!
//! | bytes            | what                                                                       |
//! |------------------|----------------------------------------------------------------------------|
//! | 8                | magic, `TPOFFSET`                                                          |
//! | 2                | format version, 1                                                          |
//! | 8                | generation: 1 for the first store, one more for each                       |
//! | 8                | when it was stored, milliseconds since 1970; information only              |
//! | 8                | timeline; 0 where the source has none                                      |
//! | 1                | number of identity fields, then for each, sorted by name, no name twice:   |
//! | 2 + n, 2 + n     | length and text of its name, length and text of its value                  |
//! | 4 + n            | length and text of the position, as the source prints it; never empty      |
//! | 4                | CRC-32 (IEEE 802.3) of everything before                                   |
//!
//! Nothing may follow. A PostgreSQL offset takes some 200 bytes; 64 KiB is the limit, for GTID sets. A CRC-32 finds every
//! error of one bit, and every burst of up to 32, at this length; the format is strict in the rest: each offset
//! has exactly one encoding.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Identity;

const MAGIC: &[u8; 8] = b"TPOFFSET";
const VERSION: u16 = 1;
const CRC_LEN: usize = 4;
/// Larger files are refused unread.
pub(crate) const MAX_LEN: usize = 64 << 10;

/// A stored offset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of this store: each is one more than the one before.
    pub generation: u64,
    /// When it was stored, in milliseconds since 1970. Information only: clocks jump.
    pub stored_at_ms: u64,
    /// Whose it is, with the timeline that the position was stored under.
    pub identity: Identity,
    /// The position, as the source prints it.
    pub position: String,
}

/// Why bytes are no offset, or an offset cannot be written as bytes. No text shows their content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// Zero bytes.
    #[error("it is empty")]
    Empty,
    /// The magic is missing.
    #[error("it does not begin with \"TPOFFSET\": it is no offset file, or is damaged")]
    Magic,
    /// Written by another version, or damaged in this place.
    #[error(
        "it has format version {0}, and this program knows version 1 only: a newer one wrote it, or it is damaged"
    )]
    Version(u16),
    /// Checksum does not match.
    #[error("its checksum does not match: it was truncated or is damaged")]
    Checksum,
    /// The checksum matches, the structure does not.
    #[error("its {0} is malformed")]
    Malformed(&'static str),
    /// Over 64 KiB.
    #[error("it takes over 64 KiB, which no offset does")]
    TooLarge,
}

impl Record {
    /// When it was stored, by the clock of then. `None` where the number is beyond the clock's range.
    pub fn stored_at(&self) -> Option<SystemTime> {
        UNIX_EPOCH.checked_add(Duration::from_millis(self.stored_at_ms))
    }

    /// The bytes of the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, FormatError> {
        let fields = &self.identity.fields;
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.generation.to_be_bytes());
        out.extend_from_slice(&self.stored_at_ms.to_be_bytes());
        out.extend_from_slice(&self.identity.timeline.unwrap_or(0).to_be_bytes());
        out.push(
            u8::try_from(fields.len()).map_err(|_| FormatError::Malformed("number of identity fields"))?,
        );
        for text in fields.iter().flat_map(|(name, value)| [name, value]) {
            let length = u16::try_from(text.len()).map_err(|_| FormatError::TooLarge)?;
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(text.as_bytes());
        }
        if self.position.is_empty() {
            return Err(FormatError::Malformed("position"));
        }
        let length = u32::try_from(self.position.len()).map_err(|_| FormatError::TooLarge)?;
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(self.position.as_bytes());
        out.extend_from_slice(&crc32fast::hash(&out).to_be_bytes());
        if out.len() > MAX_LEN {
            Err(FormatError::TooLarge)
        } else {
            Ok(out)
        }
    }

    /// Reads the bytes of a file, all of them.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.is_empty() {
            return Err(FormatError::Empty);
        }
        if bytes.len() > MAX_LEN {
            return Err(FormatError::TooLarge);
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(FormatError::Magic)?;
        // Before the checksum: another version may keep it elsewhere.
        let version = rest
            .first_chunk()
            .map(|version| u16::from_be_bytes(*version))
            .ok_or(FormatError::Checksum)?;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let (content, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or(FormatError::Checksum)?;
        if crc32fast::hash(content) != u32::from_be_bytes(*crc) {
            return Err(FormatError::Checksum);
        }
        let body = content
            .get(MAGIC.len() + size_of_val(&version)..)
            .ok_or(FormatError::Checksum)?;
        Self::decode_body(Reader(body))
    }

    fn decode_body(mut reader: Reader<'_>) -> Result<Self, FormatError> {
        let generation = reader.number("generation")?;
        let stored_at_ms = reader.number("time")?;
        let timeline = Some(reader.number("timeline")?).filter(|timeline| *timeline != 0);
        let fields = reader.fields()?;
        let length = reader.take::<4>("position").map(u32::from_be_bytes)?;
        let position = reader.text(usize::try_from(length).unwrap_or(usize::MAX), "position")?;
        if position.is_empty() {
            return Err(FormatError::Malformed("position"));
        }
        if !reader.0.is_empty() {
            return Err(FormatError::Malformed("end"));
        }
        Ok(Self {
            generation,
            stored_at_ms,
            identity: Identity { fields, timeline },
            position,
        })
    }
}

/// Checked reads; each names what it read in vain.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], FormatError> {
        let (head, rest) = self
            .0
            .split_first_chunk::<N>()
            .ok_or(FormatError::Malformed(what))?;
        self.0 = rest;
        Ok(*head)
    }

    fn number(&mut self, what: &'static str) -> Result<u64, FormatError> {
        self.take(what).map(u64::from_be_bytes)
    }

    fn text(&mut self, length: usize, what: &'static str) -> Result<String, FormatError> {
        let (head, rest) = self
            .0
            .split_at_checked(length)
            .ok_or(FormatError::Malformed(what))?;
        self.0 = rest;
        str::from_utf8(head)
            .map(String::from)
            .map_err(|_| FormatError::Malformed(what))
    }

    fn short_text(&mut self) -> Result<String, FormatError> {
        const WHAT: &str = "identity";
        let length = self.take(WHAT).map(u16::from_be_bytes)?;
        self.text(usize::from(length), WHAT)
    }

    fn fields(&mut self) -> Result<BTreeMap<String, String>, FormatError> {
        let [count] = self.take("identity")?;
        let mut fields = BTreeMap::new();
        for _ in 0..count {
            let name = self.short_text()?;
            if fields.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(FormatError::Malformed("identity"));
            }
            fields.insert(name, self.short_text()?);
        }
        Ok(fields)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record() -> Record {
        let fields = [
            ("system_id", "7291122334455667788"),
            ("database", "shop"),
            ("slot", "tailpost"),
            ("name", "tailpost"),
        ];
        Record {
            generation: 41,
            stored_at_ms: 1_700_000_000_123,
            identity: Identity::new("postgres", fields).with_timeline(2),
            position: "16/B374D848".into(),
        }
    }

    /// `bytes` with a checksum that matches.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
        bytes
    }

    #[test]
    fn a_postgresql_offset_takes_under_a_kilobyte() {
        assert!(record().encode().unwrap().len() < 300);
    }

    #[test]
    fn the_layout_is_the_documented_one() {
        let identity = Identity {
            fields: BTreeMap::from([("a".into(), "bc".into())]),
            timeline: Some(7),
        };
        let bytes = Record {
            generation: 1,
            stored_at_ms: 2,
            identity,
            position: "0/1".into(),
        }
        .encode()
        .unwrap();
        let expected = b"TPOFFSET\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x07\x01\0\x01a\0\x02bc\0\0\0\x030/1";
        assert_eq!(bytes, sealed(expected.to_vec()));
    }

    #[test]
    fn what_a_matching_checksum_covers_is_still_read_strictly() {
        let bytes = record().encode().unwrap();
        let content = &bytes[..bytes.len() - CRC_LEN];
        let with = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut changed = content.to_vec();
            change(&mut changed);
            Record::decode(&sealed(changed))
        };
        assert_eq!(with(&|_| ()), Ok(record()));
        assert_eq!(with(&|bytes| bytes.push(0)), Err(FormatError::Malformed("end")));
        assert_eq!(with(&|bytes| bytes[9] = 2), Err(FormatError::Version(2)));
        assert_eq!(with(&|bytes| bytes[0] = b'X'), Err(FormatError::Magic));
        assert!(
            with(&|bytes| *bytes.last_mut().unwrap() = 0xFF).is_err(),
            "position is no UTF-8"
        );
        for length in 10..content.len() {
            assert!(
                with(&|bytes| bytes.truncate(length)).is_err(),
                "sealed after {length} bytes"
            );
        }
        let twice = b"TPOFFSET\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\x02\0\x01a\0\0\0\x01a\0\0\0\0\0\x030/1";
        assert_eq!(
            Record::decode(&sealed(twice.to_vec())),
            Err(FormatError::Malformed("identity"))
        );
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let huge = Record {
            position: "x".repeat(MAX_LEN),
            ..record()
        };
        assert_eq!(huge.encode(), Err(FormatError::TooLarge));
        let empty = Record {
            position: String::new(),
            ..record()
        };
        assert_eq!(empty.encode(), Err(FormatError::Malformed("position")));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            generation in any::<u64>(), stored_at_ms in any::<u64>(), timeline in prop::option::of(1..u64::MAX),
            fields in prop::collection::btree_map(".{0,20}", ".{0,40}", 0..8), position in ".{1,200}",
        ) {
            let record = Record { generation, stored_at_ms, identity: Identity { fields, timeline }, position };
            prop_assert_eq!(Record::decode(&record.encode().unwrap()), Ok(record));
        }

        #[test]
        fn any_bytes_are_refused_or_are_the_one_encoding(body in prop::collection::vec(any::<u8>(), 0..120)) {
            let bytes = sealed([b"TPOFFSET\0\x01".as_slice(), &body].concat());
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode().unwrap(), bytes);
            }
        }

        #[test]
        fn any_other_byte_anywhere_is_refused(at in any::<prop::sample::Index>(), other in 1u8..) {
            let mut bytes = record().encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= other;
            prop_assert!(Record::decode(&bytes).is_err());
        }
    }
}
