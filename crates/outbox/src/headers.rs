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
    let lower = name.to_ascii_lowercase();
    lower == "cc" || lower == "bcc" || lower.starts_with("x-") || lower.starts_with("tailpost_")
}
