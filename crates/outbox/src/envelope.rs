//! The body of `--body envelope`: one JSON object around the payload.
//!
//! ```text
//! {"eventId":"…","eventType":"…","aggregateType":"…","aggregateId":"…","aggregateVersion":7,
//!  "occurredAt":"2024-02-03T09:35:06.123456Z","traceId":"…","payload":…}
//! ```
//!
//! All keys are always there, in this order, without white space between them; what the row does not have is `null`.
//! Ids are strings, also where the column is a number. The version is a number where the column is one, with all its
//! digits. The payload of a JSON column is its text, byte for byte; of a bytes column it is a string of base64 (RFC 4648
//! section 4, padded); of any other column a string.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use crate::{ColumnKind, Value};

/// What the envelope says beside the payload.
pub(crate) struct Envelope<'a> {
    pub(crate) event_id: &'a str,
    pub(crate) event_type: Option<&'a str>,
    pub(crate) aggregate_type: Option<&'a str>,
    pub(crate) aggregate_id: Option<&'a str>,
    pub(crate) aggregate_version: Option<(ColumnKind, &'a str)>,
    pub(crate) occurred_at: Option<&'a str>,
    pub(crate) trace_id: Option<&'a str>,
}

/// Why a payload cannot be in an envelope. The texts quote nothing of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    #[error("is NULL")]
    Null,
    #[error("is not UTF-8")]
    Encoding,
    #[error("holds no JSON document, though its type is JSON")]
    NotJson,
}

impl Envelope<'_> {
    /// Writes the envelope around `payload`, the value of a column of `kind`.
    pub(crate) fn write(&self, kind: ColumnKind, payload: &Value) -> Result<Bytes, PayloadError> {
        let mut out = Vec::with_capacity(320 + payload_bytes(payload));
        out.push(b'{');
        self.write_fields(&mut out);
        out.extend_from_slice(br#","payload":"#);
        write_payload(&mut out, kind, payload)?;
        out.push(b'}');
        Ok(out.into())
    }

    fn write_fields(&self, out: &mut Vec<u8>) {
        let fields = [
            (r#""eventId":"#, Some(self.event_id)),
            (r#","eventType":"#, self.event_type),
            (r#","aggregateType":"#, self.aggregate_type),
            (r#","aggregateId":"#, self.aggregate_id),
        ];
        for (key, text) in fields {
            out.extend_from_slice(key.as_bytes());
            write_optional(out, text);
        }
        out.extend_from_slice(br#","aggregateVersion":"#);
        match self.aggregate_version {
            Some((ColumnKind::Integer, digits)) if is_integer(digits) => {
                out.extend_from_slice(digits.as_bytes())
            }
            Some((_, text)) => write_string(out, text),
            None => out.extend_from_slice(b"null"),
        }
        out.extend_from_slice(br#","occurredAt":"#);
        write_optional(out, self.occurred_at);
        out.extend_from_slice(br#","traceId":"#);
        write_optional(out, self.trace_id);
    }
}

fn payload_bytes(payload: &Value) -> usize {
    match payload {
        Value::Null => 0,
        Value::Text(text) => text.len(),
        Value::Binary(bytes) => bytes.len().div_ceil(3) * 4,
    }
}

fn write_payload(out: &mut Vec<u8>, kind: ColumnKind, payload: &Value) -> Result<(), PayloadError> {
    match payload {
        Value::Null => return Err(PayloadError::Null),
        Value::Binary(bytes) => {
            out.push(b'"');
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.push(b'"');
        }
        Value::Text(text) => {
            let text = std::str::from_utf8(text).map_err(|_| PayloadError::Encoding)?;
            if kind == ColumnKind::Json {
                // A text that is not one whole document could close the envelope and write fields of its own.
                serde_json::from_str::<&RawValue>(text).map_err(|_| PayloadError::NotJson)?;
                out.extend_from_slice(text.as_bytes());
            } else {
                write_string(out, text);
            }
        }
    }
    Ok(())
}

/// Tells whether JSON would take the digits as a number: no sign but a minus, no leading zero.
fn is_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let leading_zero = digits.len() > 1 && digits.starts_with('0');
    !digits.is_empty() && !leading_zero && digits.bytes().all(|byte| byte.is_ascii_digit())
}

fn write_optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => write_string(out, text),
        None => out.extend_from_slice(b"null"),
    }
}

/// Writes a JSON string (RFC 8259 section 7): quotes, backslashes and control characters are escaped, nothing else is.
fn write_string(out: &mut Vec<u8>, text: &str) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    let mut plain = 0;
    for (at, byte) in text.bytes().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(text.as_bytes().get(plain..at).unwrap_or_default());
        plain = at + 1;
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b'\n' => out.extend_from_slice(br"\n"),
            b'\r' => out.extend_from_slice(br"\r"),
            b'\t' => out.extend_from_slice(br"\t"),
            _ => {
                let (high, low) = (HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]);
                out.extend_from_slice(&[b'\\', b'u', b'0', b'0', high, low]);
            }
        }
    }
    out.extend_from_slice(text.as_bytes().get(plain..).unwrap_or_default());
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Json;

    use super::*;

    const BARE: Envelope<'static> = Envelope {
        event_id: "e1",
        event_type: None,
        aggregate_type: None,
        aggregate_id: None,
        aggregate_version: None,
        occurred_at: None,
        trace_id: None,
    };

    fn text(text: &str) -> Value {
        Value::Text(Bytes::copy_from_slice(text.as_bytes()))
    }

    fn write(envelope: &Envelope<'_>, kind: ColumnKind, payload: &Value) -> String {
        let body = envelope.write(kind, payload).expect("an envelope");
        String::from_utf8(body.into()).expect("UTF-8")
    }

    #[test]
    fn an_envelope_has_all_keys_in_order_and_null_where_the_row_has_nothing() {
        let full = Envelope {
            event_type: Some("placed"),
            aggregate_type: Some("order"),
            aggregate_id: Some("4711"),
            aggregate_version: Some((ColumnKind::Integer, "123456789012345678901234567890")),
            occurred_at: Some("2024-02-03T09:35:06.123456Z"),
            trace_id: Some("t"),
            ..BARE
        };
        let expected = r#"{"eventId":"e1","eventType":"placed","aggregateType":"order","aggregateId":"4711","aggregateVersion":123456789012345678901234567890,"occurredAt":"2024-02-03T09:35:06.123456Z","traceId":"t","payload":{"total": 1.10}}"#;
        assert_eq!(
            write(&full, ColumnKind::Json, &text(r#"{"total": 1.10}"#)),
            expected
        );
        let expected = r#"{"eventId":"e1","eventType":null,"aggregateType":null,"aggregateId":null,"aggregateVersion":null,"occurredAt":null,"traceId":null,"payload":""}"#;
        assert_eq!(write(&BARE, ColumnKind::Text, &text("")), expected);
    }

    #[test]
    fn a_version_that_is_no_json_number_is_a_string() {
        let cases = [
            (ColumnKind::Integer, "007", r#""007""#),
            (ColumnKind::Integer, "-0", "-0"),
            (ColumnKind::Integer, "+1", r#""+1""#),
            (ColumnKind::Integer, "", r#""""#),
            (ColumnKind::Text, "7", r#""7""#),
        ];
        for (kind, version, expected) in cases {
            let envelope = Envelope {
                aggregate_version: Some((kind, version)),
                ..BARE
            };
            let body = write(&envelope, ColumnKind::Json, &text("1"));
            assert!(
                body.contains(&format!(r#""aggregateVersion":{expected},"#)),
                "{body}"
            );
        }
    }

    #[test]
    fn bytes_become_base64_and_come_back_the_same() {
        let all: Vec<u8> = (0..=255).collect();
        let body = write(&BARE, ColumnKind::Bytes, &Value::Binary(Bytes::from(all.clone())));
        let json: Json = serde_json::from_str(&body).expect("JSON");
        let decoded = STANDARD
            .decode(json["payload"].as_str().expect("a string"))
            .expect("base64");
        assert_eq!(decoded, all);
    }

    #[test]
    fn a_payload_that_is_not_one_json_document_is_refused() {
        for payload in [
            "",
            "1}",
            "1,\"eventId\":\"forged\"",
            "{} {}",
            "{",
            "\"\n\"",
            "NaN",
        ] {
            assert_eq!(
                BARE.write(ColumnKind::Json, &text(payload)),
                Err(PayloadError::NotJson),
                "{payload}"
            );
        }
        let bad = Value::Text(Bytes::from_static(b"\xff"));
        assert_eq!(BARE.write(ColumnKind::Json, &bad), Err(PayloadError::Encoding));
        assert_eq!(BARE.write(ColumnKind::Text, &bad), Err(PayloadError::Encoding));
        assert_eq!(
            BARE.write(ColumnKind::Json, &Value::Null),
            Err(PayloadError::Null)
        );
    }

    #[test]
    fn json_that_programs_often_spoil_stays_byte_for_byte() {
        let documents = [
            r#"{"t":[]}"#,
            r#"{"a":null}"#,
            r#"{"m":[[],[{"x":1}]]}"#,
            r#"{"a":[1,"x",{}]}"#,
            r#" "s" "#,
            "12",
            "1234567890123456789012345678901234567890",
            "1e400",
            "1.10",
            r#"{"k":1,"k":2}"#,
            r#"{"z":"\u0000\ud800"}"#,
            "\"\u{2028}😀\"",
            "\n{ \"b\" : 1 ,\t\"a\":2}\n",
        ];
        for document in documents {
            let body = write(&BARE, ColumnKind::Json, &text(document));
            assert!(body.ends_with(&format!("\"payload\":{document}}}")), "{body}");
            serde_json::from_str::<&RawValue>(&body).expect("JSON");
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(write(&BARE, ColumnKind::Json, &text(&deep)).contains(&deep));
    }

    /// Any JSON document, in any spelling: white space, escapes, numbers of any length.
    fn document() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![
            "null|true|false",
            "-?(0|[1-9][0-9]{0,40})(\\.[0-9]{1,20})?([eE][+-]?[0-9]{1,4})?",
            any::<String>().prop_map(|text| Json::String(text).to_string()),
            "\"(\\\\u[0-9a-fA-F]{4}|[a-zé😀]|\\\\[\"\\\\/bfnrt]){0,10}\"",
        ];
        let space = "[ \t\r\n]{0,2}";
        leaf.prop_recursive(5, 40, 5, move |inner| {
            let item = (space, inner, space).prop_map(|(before, inner, after)| before + &inner + &after);
            let member = (any::<String>(), item.clone())
                .prop_map(|(name, item)| format!("{}:{item}", Json::String(name)));
            prop_oneof![
                proptest::collection::vec(item, 0..5).prop_map(|items| format!("[{}]", items.join(","))),
                proptest::collection::vec(member, 0..5)
                    .prop_map(|members| format!("{{{}}}", members.join(","))),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_payload_is_embedded_byte_for_byte_in_valid_json(payload in document(), id in any::<String>()) {
            let body = write(&Envelope { event_id: &id, ..BARE }, ColumnKind::Json, &text(&payload));
            let fields: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(&body).expect("JSON");
            prop_assert_eq!(fields.len(), 8);
            prop_assert_eq!(fields["payload"].get(), payload.trim_matches([' ', '\t', '\r', '\n']));
            prop_assert_eq!(serde_json::from_str::<String>(fields["eventId"].get()).expect("a string"), id);
            let tail = format!("\"payload\":{payload}}}");
            prop_assert!(body.ends_with(&tail));
        }

        #[test]
        fn any_text_is_escaped_so_that_it_reads_back(payload in any::<String>(), control in "[\u{0}-\u{1f}\"\\\\]{0,20}") {
            let payload = payload + &control;
            let body = write(&Envelope { event_type: Some(&control), ..BARE }, ColumnKind::Text, &text(&payload));
            let json: Json = serde_json::from_str(&body).expect("JSON");
            prop_assert_eq!(json["payload"].as_str(), Some(&*payload));
            prop_assert_eq!(json["eventType"].as_str(), Some(&*control));
        }

        #[test]
        fn whatever_is_written_around_any_bytes_is_json(payload in any::<Vec<u8>>(), json in any::<bool>()) {
            let kind = if json { ColumnKind::Json } else { ColumnKind::Text };
            if let Ok(body) = BARE.write(kind, &Value::Text(payload.into())) {
                let body = std::str::from_utf8(&body).expect("UTF-8");
                let fields: std::collections::BTreeMap<String, &RawValue> = serde_json::from_str(body).expect("JSON");
                prop_assert_eq!(fields.len(), 8);
            }
        }
    }
}
