//! The one place that reads from the wire. Every read is checked; a failed one names tag and offset.

use bytes::Bytes;

use crate::{DecodeError, Lsn};

/// Reads a message from its second byte on.
pub(crate) struct Reader<'a> {
    data: &'a Bytes,
    offset: usize,
    tag: u8,
}

impl<'a> Reader<'a> {
    /// Reads the tag.
    pub(crate) fn new(data: &'a Bytes) -> Result<Self, DecodeError> {
        let &tag = data.first().ok_or(DecodeError::Empty)?;
        Ok(Self { data, offset: 1, tag })
    }

    pub(crate) fn tag(&self) -> u8 {
        self.tag
    }

    /// Where the next read begins, counted from the tag.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array().map(|[byte]| byte)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, DecodeError> {
        self.array().map(i32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, DecodeError> {
        self.array().map(i64::from_be_bytes)
    }

    pub(crate) fn lsn(&mut self) -> Result<Lsn, DecodeError> {
        self.array().map(u64::from_be_bytes).map(Lsn)
    }

    /// Reads a length of 32 bits that must not be negative.
    pub(crate) fn length(&mut self) -> Result<usize, DecodeError> {
        let negative = DecodeError::NegativeLength {
            tag: self.tag,
            offset: self.offset,
        };
        usize::try_from(self.i32()?).map_err(|_| negative)
    }

    /// Reads how many items follow, 32 bits. Refuses more than the rest can hold when each takes `least` bytes, so that
    /// the caller may allocate for them.
    pub(crate) fn count32(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count = self.length()?;
        self.holds(count.saturating_mul(least))?;
        Ok(count)
    }

    /// As [`count32`](Self::count32), 16 bits.
    pub(crate) fn count16(&mut self, least: usize) -> Result<usize, DecodeError> {
        let negative = DecodeError::NegativeLength {
            tag: self.tag,
            offset: self.offset,
        };
        let count = usize::try_from(i16::from_be_bytes(self.array()?)).map_err(|_| negative)?;
        self.holds(count.saturating_mul(least))?;
        Ok(count)
    }

    /// Reads `length` bytes, without copying.
    pub(crate) fn bytes(&mut self, length: usize) -> Result<Bytes, DecodeError> {
        self.holds(length)?;
        let start = self.offset;
        self.offset += length;
        Ok(self.data.slice(start..self.offset))
    }

    /// Reads a name: UTF-8 up to a NUL.
    pub(crate) fn name(&mut self) -> Result<String, DecodeError> {
        let (tag, offset) = (self.tag, self.offset);
        let rest = self.remaining();
        let length = rest.iter().position(|&byte| byte == 0);
        let missing = DecodeError::Short {
            tag,
            offset: offset + rest.len(),
            needed: 1,
        };
        let (name, _) = rest.split_at(length.ok_or(missing)?);
        let name = str::from_utf8(name).map_err(|_| DecodeError::NameNotUtf8 { tag, offset })?;
        self.offset += name.len() + 1;
        Ok(name.to_owned())
    }

    /// Reads all that is left, without copying.
    pub(crate) fn rest(&mut self) -> Bytes {
        let rest = self.data.slice(self.offset..);
        self.offset = self.data.len();
        rest
    }

    /// Refuses what follows the message's end.
    pub(crate) fn end(&self) -> Result<(), DecodeError> {
        match self.remaining().len() {
            0 => Ok(()),
            trailing => Err(DecodeError::Trailing {
                tag: self.tag,
                offset: self.offset,
                trailing,
            }),
        }
    }

    fn remaining(&self) -> &'a [u8] {
        self.data.get(self.offset..).unwrap_or_default()
    }

    fn holds(&self, length: usize) -> Result<(), DecodeError> {
        match length.checked_sub(self.remaining().len()) {
            None | Some(0) => Ok(()),
            Some(needed) => Err(DecodeError::Short {
                tag: self.tag,
                offset: self.offset,
                needed,
            }),
        }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let Some(array) = self.remaining().first_chunk() else {
            let needed = N - self.remaining().len();
            return Err(DecodeError::Short {
                tag: self.tag,
                offset: self.offset,
                needed,
            });
        };
        self.offset += N;
        Ok(*array)
    }
}
