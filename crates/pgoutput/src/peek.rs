//! Reading only what tells whether the rest is worth reading.

/// What a `pgoutput` message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tag {
    /// `B`: a transaction opens.
    Begin,
    /// `C`: a transaction ends.
    Commit,
    /// `O`: where a transaction came from.
    Origin,
    /// `R`: what a table looks like.
    Relation,
    /// `Y`: a type's name.
    Type,
    /// `I`: a row was inserted.
    Insert,
    /// `U`: a row was updated.
    Update,
    /// `D`: a row was deleted.
    Delete,
    /// `T`: tables were emptied.
    Truncate,
    /// `M`: a logical message.
    Message,
}

impl Tag {
    /// Reads a tag; `None` where protocol version 1 has none.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            b'B' => Self::Begin,
            b'C' => Self::Commit,
            b'O' => Self::Origin,
            b'R' => Self::Relation,
            b'Y' => Self::Type,
            b'I' => Self::Insert,
            b'U' => Self::Update,
            b'D' => Self::Delete,
            b'T' => Self::Truncate,
            b'M' => Self::Message,
            _ => return None,
        })
    }
}

/// Reads the tag and the table of a row's change (insert, update, delete) from the first five bytes of a message, which
/// may be cut anywhere after them. `None` for all other messages, and for fewer bytes.
///
/// It says nothing about whether the rest is well formed.
pub fn peek_change(data: &[u8]) -> Option<(Tag, u32)> {
    let (&byte, rest) = data.split_first()?;
    let tag = Tag::from_byte(byte)?;
    if !matches!(tag, Tag::Insert | Tag::Update | Tag::Delete) {
        return None;
    }
    Some((tag, u32::from_be_bytes(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_peeked_from_their_first_five_bytes() {
        assert_eq!(peek_change(b"I\0\0\x40\x01"), Some((Tag::Insert, 0x4001)));
        assert_eq!(peek_change(b"U\0\0\x40\x01N\0"), Some((Tag::Update, 0x4001)));
        assert_eq!(peek_change(b"D\xFF\xFF\xFF\xFFK"), Some((Tag::Delete, u32::MAX)));
    }

    #[test]
    fn fewer_bytes_and_other_messages_are_not_changes() {
        for data in [
            b"".as_slice(),
            b"I",
            b"I\0\0\x40",
            b"R\0\0\x40\x01",
            b"T\0\0\0\x01\0",
            b"\0\0\0\0\0\0",
        ] {
            assert_eq!(peek_change(data), None, "{}", data.escape_ascii());
        }
    }
}
