//! The text form of `bytea`.

use bytes::Bytes;

use crate::DecodeError;

/// Decodes a `bytea` value as printed under `bytea_output = hex`: `\x`, then two digits for each byte.
///
/// Source: PostgreSQL manual, "Binary Data Types", "bytea Hex Format".
///
/// # Errors
/// The escape format, an odd number of digits, a character that is no digit.
pub fn decode_bytea(text: &[u8]) -> Result<Bytes, DecodeError> {
    let digits = text.strip_prefix(b"\\x").ok_or(DecodeError::ByteaNotHex)?;
    if !digits.len().is_multiple_of(2) {
        return Err(DecodeError::ByteaOddDigits { digits: digits.len() });
    }
    let mut decoded = vec![0; digits.len() / 2];
    let (pairs, _) = digits.as_chunks::<2>();
    let mut seen = 0;
    for (byte, &[high, low]) in decoded.iter_mut().zip(pairs) {
        let (high, low) = (NIBBLES[usize::from(high)], NIBBLES[usize::from(low)]);
        *byte = high << 4 | low & 0xF;
        // Judged once after the loop, so that the loop has no branch. Only a bad digit has a high bit.
        seen |= high | low;
    }
    if seen > 0xF {
        let bad = digits
            .iter()
            .position(|&digit| NIBBLES[usize::from(digit)] == BAD);
        return Err(DecodeError::ByteaBadDigit {
            offset: bad.unwrap_or(0) + 2,
        });
    }
    Ok(decoded.into())
}

const BAD: u8 = 0xFF;

/// The value of each hexadecimal digit; [`BAD`] for all else.
static NIBBLES: [u8; 256] = {
    let mut table = [BAD; 256];
    let mut value = 0;
    while value < 16 {
        table[b"0123456789abcdef"[value] as usize] = value as u8;
        table[b"0123456789ABCDEF"[value] as usize] = value as u8;
        value += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_cases_decode() {
        assert_eq!(
            decode_bytea(br"\x00ff5C27aBcD"),
            Ok(Bytes::from_static(b"\x00\xFF\\'\xAB\xCD"))
        );
        assert_eq!(decode_bytea(br"\x"), Ok(Bytes::new()));
    }

    #[test]
    fn the_escape_format_is_refused() {
        for text in [
            br"".as_slice(),
            br"abc",
            br"\\x00",
            br"\000\377\\",
            br"\X00",
            br"\",
            b"x00",
        ] {
            assert_eq!(
                decode_bytea(text),
                Err(DecodeError::ByteaNotHex),
                "{}",
                text.escape_ascii()
            );
        }
    }

    #[test]
    fn an_odd_number_of_digits_is_refused() {
        assert_eq!(
            decode_bytea(br"\x0"),
            Err(DecodeError::ByteaOddDigits { digits: 1 })
        );
        assert_eq!(
            decode_bytea(br"\x00f"),
            Err(DecodeError::ByteaOddDigits { digits: 3 })
        );
    }

    /// At either half of a byte.
    #[test]
    fn every_byte_that_is_no_digit_is_refused() {
        for byte in (0..=u8::MAX).filter(|byte| !byte.is_ascii_hexdigit()) {
            assert_eq!(
                decode_bytea(&[b'\\', b'x', b'0', byte]),
                Err(DecodeError::ByteaBadDigit { offset: 3 })
            );
            assert_eq!(
                decode_bytea(&[b'\\', b'x', byte, b'0']),
                Err(DecodeError::ByteaBadDigit { offset: 2 })
            );
        }
    }
}
