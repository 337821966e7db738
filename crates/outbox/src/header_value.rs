//! Values of headers: from a column by its kind, and from a JSON object.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::message::SHORT_STRING_BYTES;
use crate::{ColumnKind, Header, HeaderValue};

/// Nested objects and arrays in the JSON of a row's headers, at most. The object itself is level 1.
const DEPTH: usize = 16;

/// Types a column's text by the column's kind. What its type cannot hold stays text: nothing is rounded silently but a
/// floating-point number, which the column rounded already.
pub(crate) fn typed(kind: ColumnKind, text: &str) -> HeaderValue {
    let typed = match kind {
        ColumnKind::Integer => text.parse().ok().map(HeaderValue::Integer),
        ColumnKind::Float => text.parse().ok().map(HeaderValue::Double),
        ColumnKind::Boolean => boolean(text).map(HeaderValue::Boolean),
        ColumnKind::Text
        | ColumnKind::Json
        | ColumnKind::Bytes
        | ColumnKind::Uuid
        | ColumnKind::Timestamp
        | ColumnKind::Other => None,
    };
    typed.unwrap_or_else(|| HeaderValue::Text(text.to_string()))
}

fn boolean(text: &str) -> Option<bool> {
    match text {
        "t" | "true" | "1" => Some(true),
        "f" | "false" | "0" => Some(false),
        _ => None,
    }
}

/// Why a text is not an object of headers. The texts quote nothing of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadersError {
    #[error("holds no JSON object")]
    NotAnObject,
    #[error("holds JSON that cannot be read")]
    Unreadable,
    #[error("holds JSON nested more than {DEPTH} levels deep")]
    TooDeep,
    #[error("holds a name of {bytes} bytes, at most {SHORT_STRING_BYTES} are allowed")]
    LongName { bytes: usize },
}

/// Reads a JSON object into headers, in the order of their names. Of equal names the last counts, as in jsonb.
///
/// A string is a text, an integer that 64 bits hold is an integer, any other integer is its digits as text, a number
/// with a point or an exponent is a double (as text where a double cannot hold its magnitude).
pub(crate) fn from_json(text: &str) -> Result<Vec<Header>, HeadersError> {
    match serde_json::from_str::<&RawValue>(text) {
        Ok(document) if document.get().starts_with('{') => table(document.get(), 1),
        Ok(_) => Err(HeadersError::NotAnObject),
        Err(error) => Err(unreadable(error)),
    }
}

fn table(text: &str, depth: usize) -> Result<Vec<Header>, HeadersError> {
    let entries: BTreeMap<String, &RawValue> = serde_json::from_str(text).map_err(unreadable)?;
    let entry = |(name, raw): (String, &RawValue)| {
        if name.len() > SHORT_STRING_BYTES {
            return Err(HeadersError::LongName { bytes: name.len() });
        }
        Ok((Cow::Owned(name), value(raw.get(), depth)?))
    };
    entries.into_iter().map(entry).collect()
}

/// Reads one JSON value; RawValue has trimmed it and checked its syntax.
fn value(text: &str, depth: usize) -> Result<HeaderValue, HeadersError> {
    Ok(match text.as_bytes().first() {
        Some(b'{' | b'[') if depth >= DEPTH => return Err(HeadersError::TooDeep),
        Some(b'{') => HeaderValue::Table(table(text, depth + 1)?),
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(unreadable)?;
            let items: Result<_, _> = items
                .into_iter()
                .map(|item| value(item.get(), depth + 1))
                .collect();
            HeaderValue::Array(items?)
        }
        Some(b'"') => HeaderValue::Text(serde_json::from_str(text).map_err(unreadable)?),
        Some(b't') => HeaderValue::Boolean(true),
        Some(b'f') => HeaderValue::Boolean(false),
        Some(b'n') => HeaderValue::Null,
        _ => number(text),
    })
}

/// serde_json's own text may quote the JSON, so it goes no further.
fn unreadable(_: serde_json::Error) -> HeadersError {
    HeadersError::Unreadable
}

fn number(text: &str) -> HeaderValue {
    let number = if text.contains(['.', 'e', 'E']) {
        text.parse()
            .ok()
            .filter(|double: &f64| double.is_finite())
            .map(HeaderValue::Double)
    } else {
        text.parse().ok().map(HeaderValue::Integer)
    };
    number.unwrap_or_else(|| HeaderValue::Text(text.to_string()))
}

#[cfg(test)]
mod tests {
    use HeaderValue::{Array, Boolean, Double, Integer, Null, Table, Text};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_column_is_typed_by_its_kind() {
        assert_eq!(typed(ColumnKind::Integer, "-42"), Integer(-42));
        assert_eq!(
            typed(ColumnKind::Integer, "18446744073709551615"),
            Text("18446744073709551615".into())
        );
        assert_eq!(typed(ColumnKind::Float, "0.5"), Double(0.5));
        assert_eq!(typed(ColumnKind::Float, "-Infinity"), Double(f64::NEG_INFINITY));
        for (text, value) in [
            ("t", true),
            ("true", true),
            ("1", true),
            ("f", false),
            ("false", false),
            ("0", false),
        ] {
            assert_eq!(typed(ColumnKind::Boolean, text), Boolean(value));
        }
        assert_eq!(typed(ColumnKind::Boolean, "maybe"), Text("maybe".into()));
        let others = [
            ColumnKind::Text,
            ColumnKind::Json,
            ColumnKind::Uuid,
            ColumnKind::Timestamp,
            ColumnKind::Other,
        ];
        for kind in others {
            assert_eq!(typed(kind, "12"), Text("12".into()));
        }
    }

    #[test]
    fn json_types_become_amqp_types() {
        let json = r#" {"s":"a\u00e9\n","i":-9223372036854775808,"d":1.5,"e":1e3,"b":true,"f":false,"n":null,"a":[1,"x",[]],"o":{"k":{}}} "#;
        let expected: Vec<Header> = vec![
            (
                "a".into(),
                Array(vec![Integer(1), Text("x".into()), Array(vec![])]),
            ),
            ("b".into(), Boolean(true)),
            ("d".into(), Double(1.5)),
            ("e".into(), Double(1000.0)),
            ("f".into(), Boolean(false)),
            ("i".into(), Integer(i64::MIN)),
            ("n".into(), Null),
            ("o".into(), Table(vec![("k".into(), Table(vec![]))])),
            ("s".into(), Text("aé\n".into())),
        ];
        assert_eq!(from_json(json), Ok(expected));
    }

    #[test]
    fn a_number_that_its_type_cannot_hold_keeps_its_digits() {
        for digits in ["9223372036854775808", "-123456789012345678901234567890", "1e400"] {
            let headers = from_json(&format!(r#"{{"n":{digits}}}"#));
            assert_eq!(headers, Ok(vec![("n".into(), Text(digits.into()))]));
        }
    }

    #[test]
    fn of_equal_names_the_last_counts() {
        assert_eq!(from_json(r#"{"a":1,"a":2}"#), Ok(vec![("a".into(), Integer(2))]));
    }

    #[test]
    fn sixteen_levels_are_read_and_seventeen_refused() {
        let nested = |levels: usize| format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
        assert!(from_json(&nested(16)).is_ok());
        assert_eq!(from_json(&nested(17)), Err(HeadersError::TooDeep));
        assert_eq!(from_json(&nested(100_000)), Err(HeadersError::TooDeep));
        let array = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(from_json(&array(15)).is_ok());
        assert_eq!(from_json(&array(16)), Err(HeadersError::TooDeep));
    }

    #[test]
    fn what_is_no_object_of_headers_is_refused_without_quoting_it() {
        for json in ["[]", "1", "\"canary\"", "null", "true"] {
            assert_eq!(from_json(json), Err(HeadersError::NotAnObject));
        }
        for json in ["", "canary", "{\"canary\":}", "{} {}", r#"{"a":"\ud800"}"#] {
            let error = from_json(json).expect_err(json);
            assert_eq!(error, HeadersError::Unreadable);
            assert!(!error.to_string().contains("canary"));
        }
        let long = format!(r#"{{"o":{{"{}":1}}}}"#, "x".repeat(256));
        assert_eq!(from_json(&long), Err(HeadersError::LongName { bytes: 256 }));
    }

    proptest! {
        #[test]
        fn every_integer_keeps_its_digits(number in any::<i128>()) {
            let headers = from_json(&format!(r#"{{"n":{number}}}"#)).expect("an object");
            let digits = match &headers[0].1 {
                Integer(integer) => integer.to_string(),
                Text(digits) => digits.clone(),
                other => panic!("{other:?}"),
            };
            prop_assert_eq!(digits, number.to_string());
        }

        #[test]
        fn no_text_panics(text in "[\\[\\]{}\":,0-9eE.tfn\\\\ -]{0,40}") {
            let valid = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(&text);
            prop_assert!(valid.is_err() || from_json(&text).is_ok());
        }
    }
}
