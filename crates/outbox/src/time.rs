//! When an event occurred, read from whatever the table keeps it in.
//!
//! A text is ISO: `2024-02-03 09:35:06.123456+00`, as PostgreSQL prints it under `DateStyle=ISO`, or with a `T` and a `Z`;
//! without an offset it is UTC. An integer is milliseconds since 1970. Anything else has no time: `infinity`, a year BC or
//! beyond 9999, MySQL's zero date, an integer of microseconds (which lies beyond year 9999 when it is read as
//! milliseconds). RFC 3339 cannot say such a time, and losing an event over it would be worse than sending it without.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::Offset;

/// A point in time between the years 0 and 9999, to the microsecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Occurred(Timestamp);

impl Occurred {
    /// Reads a time in ISO text. Digits beyond microseconds are cut off.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        let (clock, rest) = text.split_at_checked(19)?;
        let (microsecond, offset) = split_fraction(rest)?;
        let offset = parse_offset(offset)?;
        let datetime = parse_clock(clock.as_bytes(), microsecond)?;
        Self::sayable(offset.to_timestamp(datetime).ok()?)
    }

    /// Reads milliseconds since 1970.
    pub(crate) fn from_milliseconds(milliseconds: i64) -> Option<Self> {
        Self::sayable(Timestamp::from_millisecond(milliseconds).ok()?)
    }

    /// RFC 3339 in UTC, always with six digits after the point: equal lengths sort as times do.
    pub(crate) fn rfc3339(self) -> String {
        let utc = Offset::UTC.to_datetime(self.0);
        let mut out = String::with_capacity(27);
        let parts = [
            (i32::from(utc.year()), 4, '-'),
            (utc.month().into(), 2, '-'),
            (utc.day().into(), 2, 'T'),
            (utc.hour().into(), 2, ':'),
            (utc.minute().into(), 2, ':'),
            (utc.second().into(), 2, '.'),
            (utc.subsec_nanosecond() / 1000, 6, 'Z'),
        ];
        for (number, width, end) in parts {
            push_digits(&mut out, number, width);
            out.push(end);
        }
        out
    }

    /// Milliseconds since 1970, rounded down; negative before it.
    pub(crate) fn milliseconds(self) -> i64 {
        self.0.as_microsecond().div_euclid(1000)
    }

    /// Seconds since 1970, rounded down; `None` before it, because AMQP's timestamp is unsigned.
    pub(crate) fn seconds(self) -> Option<u64> {
        u64::try_from(self.0.as_microsecond().div_euclid(1_000_000)).ok()
    }

    /// RFC 3339 has years of four digits and no sign.
    fn sayable(timestamp: Timestamp) -> Option<Self> {
        (Offset::UTC.to_datetime(timestamp).year() >= 0).then_some(Self(timestamp))
    }
}

/// Reads `2024-02-03 09:35:06`; `text` is 19 bytes long.
fn parse_clock(text: &[u8], microsecond: i32) -> Option<DateTime> {
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    if !separators.iter().all(|&(at, byte)| text.get(at) == Some(&byte))
        || !matches!(text.get(10), Some(b' ' | b'T'))
    {
        return None;
    }
    let number = |from: usize, to: usize| digits(text.get(from..to)?);
    let small = |from: usize| i8::try_from(number(from, from + 2)?).ok();
    let year = i16::try_from(number(0, 4)?).ok()?;
    DateTime::new(
        year,
        small(5)?,
        small(8)?,
        small(11)?,
        small(14)?,
        small(17)?,
        microsecond * 1000,
    )
    .ok()
}

/// Splits `.123456+00` into its microseconds and what follows.
fn split_fraction(text: &str) -> Option<(i32, &str)> {
    let Some(fraction) = text.strip_prefix('.') else {
        return Some((0, text));
    };
    let end = fraction
        .bytes()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(fraction.len());
    let (fraction, rest) = fraction.split_at_checked(end)?;
    let kept = fraction.get(..6).unwrap_or(fraction);
    let scale = 10_i32.pow(6 - u32::try_from(kept.len()).ok()?);
    Some((digits(kept.as_bytes())? * scale, rest))
}

/// Reads nothing, `Z`, `+00`, `+0530`, `-03:30` or `+05:30:15`.
fn parse_offset(text: &str) -> Option<Offset> {
    let (sign, text) = match text.as_bytes().first() {
        None => return Some(Offset::UTC),
        Some(b'Z') if text.len() == 1 => return Some(Offset::UTC),
        Some(b'+') => (1, text.get(1..)?),
        Some(b'-') => (-1, text.get(1..)?),
        Some(_) => return None,
    };
    let seconds = match *text.as_bytes() {
        [h, i] => offset_seconds([h, i, b'0', b'0', b'0', b'0']),
        [h, i, m, n] | [h, i, b':', m, n] => offset_seconds([h, i, m, n, b'0', b'0']),
        [h, i, b':', m, n, b':', s, t] => offset_seconds([h, i, m, n, s, t]),
        _ => None,
    };
    Offset::from_seconds(sign * seconds?).ok()
}

fn offset_seconds(hms: [u8; 6]) -> Option<i32> {
    let [h, i, m, n, s, t] = hms;
    let (minutes, seconds) = (digits(&[m, n])?, digits(&[s, t])?);
    (minutes < 60 && seconds < 60).then_some(())?;
    Some(digits(&[h, i])? * 3600 + minutes * 60 + seconds)
}

/// Writes a number that is not negative with leading zeros. This runs for each event, so it does without `format!`.
fn push_digits(out: &mut String, number: i32, width: u32) {
    for place in (0..width).rev() {
        let digit = number / 10_i32.pow(place) % 10;
        out.extend(
            u32::try_from(digit)
                .ok()
                .and_then(|digit| char::from_digit(digit, 10)),
        );
    }
}

/// Reads up to six decimal digits, at least one.
fn digits(text: &[u8]) -> Option<i32> {
    if text.is_empty() || text.len() > 6 || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(
        text.iter()
            .fold(0, |number, digit| number * 10 + i32::from(digit - b'0')),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Option<String> {
        Occurred::from_text(text).map(Occurred::rfc3339)
    }

    #[test]
    fn every_offset_and_precision_becomes_utc_with_six_digits() {
        let cases = [
            ("2024-02-03 09:35:06.123456+00", "2024-02-03T09:35:06.123456Z"),
            ("2024-02-03 09:35:06.12+00", "2024-02-03T09:35:06.120000Z"),
            ("2024-02-03 09:35:06.123456789+00", "2024-02-03T09:35:06.123456Z"),
            ("2024-02-03 09:35:06", "2024-02-03T09:35:06.000000Z"),
            ("2024-02-03T09:35:06Z", "2024-02-03T09:35:06.000000Z"),
            ("2024-02-03 02:05:06.000001+05:30", "2024-02-02T20:35:06.000001Z"),
            ("2024-02-28 23:35:06-03:30", "2024-02-29T03:05:06.000000Z"),
            ("2024-02-03 09:35:06+0100", "2024-02-03T08:35:06.000000Z"),
            ("1890-02-03 09:35:06+00:19:32", "1890-02-03T09:15:34.000000Z"),
            ("0001-01-01 00:00:00+00", "0001-01-01T00:00:00.000000Z"),
        ];
        for (given, expected) in cases {
            assert_eq!(text(given).as_deref(), Some(expected), "{given}");
        }
    }

    #[test]
    fn what_rfc_3339_cannot_say_has_no_time() {
        let cases = [
            "infinity",
            "-infinity",
            "",
            "0044-03-15 12:00:00+00 BC",
            "12024-02-03 09:35:06+00",
            "0000-00-00 00:00:00",
            "0000-01-01 00:00:00+01",
            "2024-02-30 09:35:06+00",
            "2024-02-03 24:00:00",
            "2024-02-03",
            "2024-02-03 09:35:06.+00",
            "2024-02-03 09:35:06+99",
            "2024-02-03 09:35:06+01:75",
            "2024-02-03 09:35:06 IST",
            "03.02.2024 09:35:06.123456 IST",
            "２024-02-03 09:35:06",
        ];
        for given in cases {
            assert_eq!(text(given), None, "{given}");
        }
    }

    #[test]
    fn times_before_1970_round_down_and_have_no_amqp_timestamp() {
        let before = Occurred::from_text("1969-12-31 23:59:59.999999+00").expect("a time");
        assert_eq!((before.milliseconds(), before.seconds()), (-1, None));
        let after = Occurred::from_text("1970-01-01 00:00:01.999999+00").expect("a time");
        assert_eq!((after.milliseconds(), after.seconds()), (1999, Some(1)));
    }

    #[test]
    fn an_integer_is_milliseconds_and_one_of_microseconds_has_no_time() {
        let milliseconds = Occurred::from_milliseconds(1_706_952_906_123).expect("a time");
        assert_eq!(milliseconds.rfc3339(), "2024-02-03T09:35:06.123000Z");
        assert_eq!(Occurred::from_milliseconds(1_706_952_906_123_456), None);
        assert_eq!(Occurred::from_milliseconds(i64::MIN), None);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back_as_the_same_time(milliseconds in -62_135_596_800_000_i64..253_000_000_000_000) {
            let time = Occurred::from_milliseconds(milliseconds).expect("in range");
            prop_assert_eq!(time.milliseconds(), milliseconds);
            prop_assert_eq!(time.rfc3339().len(), 27);
            prop_assert_eq!(Occurred::from_text(&time.rfc3339()), Some(time));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}", suffix in "[-+:.0-9Z]{0,12}") {
            let _ = Occurred::from_text(&text);
            let _ = Occurred::from_text(&format!("2024-02-03 09:35:06{suffix}"));
        }
    }
}
