//! Every header name that Tailpost writes, and which names a row may not write.

/// The row's place in the log, `COMMIT:INDEX`: unique, and the same at every repeat.
pub const POSITION: &str = "tailpost_position";
/// The aggregate's type.
pub const AGGREGATE_TYPE: &str = "aggregate_type";
/// The aggregate's id.
pub const AGGREGATE_ID: &str = "aggregate_id";
/// The aggregate's version.
pub const AGGREGATE_VERSION: &str = "aggregate_version";
/// The trace id, copied.
pub const TRACE_ID: &str = "trace_id";
/// The W3C trace context, copied.
pub const TRACEPARENT: &str = "traceparent";
/// When the event occurred, RFC 3339 with microseconds.
pub const OCCURRED_AT: &str = "occurred_at";
/// When the event occurred, in milliseconds since 1970.
pub const TIMESTAMP_IN_MS: &str = "timestamp_in_ms";
/// The event's id under the `debezium` preset.
pub const DEBEZIUM_ID: &str = "id";

/// Tells whether a row or a flag may not set the header `name`: `CC` and `BCC` make the broker copy the message to any
/// queue, `x-*` is the broker's, `tailpost_*` is ours.
pub fn is_reserved(name: &str) -> bool {
    let starts = |prefix: &str| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    };
    name.eq_ignore_ascii_case("cc") || name.eq_ignore_ascii_case("bcc") || starts("x-") || starts("tailpost_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_names_are_so_in_any_case_and_their_neighbours_are_free() {
        for name in ["CC", "cc", "Bcc", "x-delay", "X-", "TAILPOST_position", POSITION] {
            assert!(is_reserved(name), "{name}");
        }
        for name in [
            "",
            "c",
            "ccc",
            "x",
            "xid",
            "é-",
            "tailpost",
            AGGREGATE_ID,
            DEBEZIUM_ID,
        ] {
            assert!(!is_reserved(name), "{name}");
        }
    }
}
