//! Why bytes were refused.

/// Why bytes were refused. Names the message's tag and the offset of the fault, counted from the tag, and never shows
/// content. Every variant means bytes that nobody here understands: reading them again gives the same, so the caller
/// halts, and adds the log position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// There is not even a tag.
    #[error("empty message")]
    Empty,
    /// The tag is not one of protocol version 1.
    #[error("message with unknown tag {}", show(*tag))]
    UnknownTag {
        /// The first byte.
        tag: u8,
    },
    /// The message ends too early.
    #[error("message {} is too short: {needed} bytes more needed at offset {offset}", show(*tag))]
    Short {
        /// The message's tag.
        tag: u8,
        /// Where the field begins that does not fit.
        offset: usize,
        /// How many bytes are missing at least.
        needed: usize,
    },
    /// The message goes on after its end.
    #[error("message {} is too long: {trailing} bytes too many at offset {offset}", show(*tag))]
    Trailing {
        /// The message's tag.
        tag: u8,
        /// Where the message should have ended.
        offset: usize,
        /// How many bytes follow.
        trailing: usize,
    },
    /// A count or a length is negative.
    #[error("message {} has a negative length at offset {offset}", show(*tag))]
    NegativeLength {
        /// The message's tag.
        tag: u8,
        /// Where the number stands.
        offset: usize,
    },
    /// A column's value is none of null, unchanged, text, binary.
    #[error("message {} has a value of unknown kind at offset {offset}", show(*tag))]
    UnknownTupleKind {
        /// The message's tag.
        tag: u8,
        /// Where the kind stands.
        offset: usize,
    },
    /// A byte that says what follows (new tuple, old tuple, replica identity) is none of those expected.
    #[error("message {} has an unexpected marker at offset {offset}", show(*tag))]
    UnexpectedMarker {
        /// The message's tag.
        tag: u8,
        /// Where the marker stands.
        offset: usize,
    },
    /// A name is not UTF-8: the session's `client_encoding` is not UTF8.
    #[error("message {} has a name that is not UTF-8 at offset {offset}", show(*tag))]
    NameNotUtf8 {
        /// The message's tag.
        tag: u8,
        /// Where the name begins.
        offset: usize,
    },
    /// A `bytea` value is not in the hex format: the session's `bytea_output` is not `hex`.
    #[error("bytea value is not in hex format: no \\x at its start")]
    ByteaNotHex,
    /// A `bytea` value has half a byte at its end.
    #[error("bytea value has an odd number of digits: {digits}")]
    ByteaOddDigits {
        /// How many digits follow `\x`.
        digits: usize,
    },
    /// A `bytea` value has a character that is no hexadecimal digit.
    #[error("bytea value has a character that is no hexadecimal digit at offset {offset}")]
    ByteaBadDigit {
        /// Where it stands, counted from the backslash.
        offset: usize,
    },
}

fn show(tag: u8) -> String {
    format!("'{}'", tag.escape_ascii())
}
