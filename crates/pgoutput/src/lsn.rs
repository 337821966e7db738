//! A place in the write-ahead log.

use std::fmt;
use std::str::FromStr;

/// A place in the write-ahead log: a count of bytes. Prints and parses as PostgreSQL's `pg_lsn` does (`16/B374D848`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// `0/0`, which PostgreSQL calls invalid: no place. `START_REPLICATION` reads it as "where the slot stands".
    pub const ZERO: Self = Self(0);
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a log position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a log position: expected two hexadecimal numbers of up to 8 digits, as in 16/B374D848")]
pub struct ParseLsnError;

impl FromStr for Lsn {
    type Err = ParseLsnError;

    /// Takes what `pg_lsn` takes: 1 to 8 hexadecimal digits of either case, a slash, 1 to 8 more.
    fn from_str(text: &str) -> Result<Self, ParseLsnError> {
        let (high, low) = text.split_once('/').ok_or(ParseLsnError)?;
        Ok(Self(half(high)? << 32 | half(low)?))
    }
}

fn half(digits: &str) -> Result<u64, ParseLsnError> {
    // from_str_radix alone would take a sign.
    if digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(ParseLsnError);
    }
    u64::from_str_radix(digits, 16).map_err(|_| ParseLsnError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_postgresql_does() {
        assert_eq!(Lsn(0x16_B374_D848).to_string(), "16/B374D848");
        assert_eq!(Lsn(0x1_0000_000A).to_string(), "1/A");
        assert_eq!(Lsn(u64::MAX).to_string(), "FFFFFFFF/FFFFFFFF");
        assert_eq!(format!("{:?}", Lsn::ZERO), "0/0");
    }

    #[test]
    fn orders_by_the_whole_number() {
        assert!(Lsn(0x1_0000_0000) > Lsn(0xFFFF_FFFF));
    }

    #[test]
    fn takes_either_case_and_leading_zeros() {
        assert_eq!("16/b374d848".parse(), Ok(Lsn(0x16_B374_D848)));
        assert_eq!("00000016/0000000A".parse(), Ok(Lsn(0x16_0000_000A)));
    }

    #[test]
    fn refuses_what_pg_lsn_refuses() {
        for text in [
            "",
            "/",
            "1",
            "1/",
            "/1",
            "1/2/3",
            "123456789/0",
            "0/123456789",
            "+1/0",
            "1/-2",
            " 1/2",
            "x/0",
            "1/é",
        ] {
            assert_eq!(text.parse::<Lsn>(), Err(ParseLsnError), "{text:?}");
        }
    }
}
