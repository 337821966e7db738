//! What is published: an AMQP message in the domain's own types, free of any client library.
//!
//! `Debug` of a [`Message`] shows what identifies it, the names of its headers and the size of its body; never the body
//! nor a header's value, which come from the row.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

/// Bytes of an AMQP short string, at most: exchange, routing key, header names, and properties of text
/// (AMQP 0-9-1 specification, section 4.2.5.3).
pub const SHORT_STRING_BYTES: usize = 255;

/// A header: its name (nearly always one of ours, which costs no allocation) and its value.
pub type Header = (Cow<'static, str>, HeaderValue);

/// The value of a header, with the AMQP type that it is sent as.
#[derive(Clone, Debug, PartialEq)]
pub enum HeaderValue {
    /// Long string, UTF-8.
    Text(String),
    /// Signed 64-bit integer.
    Integer(i64),
    /// Double.
    Double(f64),
    /// Boolean.
    Boolean(bool),
    /// Void.
    Null,
    /// Array.
    Array(Vec<HeaderValue>),
    /// Nested table.
    Table(Vec<Header>),
}

/// An AMQP message, complete: nothing is added to it on the way but what the protocol needs.
#[derive(Clone, PartialEq)]
pub struct Message {
    /// Exchange to publish to; empty is AMQP's default exchange.
    pub exchange: String,
    /// Routing key.
    pub routing_key: String,
    /// `message_id`: the event's id, the same at every repeat.
    pub message_id: String,
    /// `type`: the event's type.
    pub event_type: Option<String>,
    /// `content_type`.
    pub content_type: Option<String>,
    /// `timestamp`, in seconds since 1970.
    pub timestamp: Option<u64>,
    /// Headers in the order that they are written; always holds [`crate::headers::POSITION`].
    pub headers: Vec<Header>,
    /// Body, byte for byte.
    pub body: Bytes,
}

impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("Message")
            .field("exchange", &self.exchange)
            .field("routing_key", &self.routing_key)
            .field("message_id", &self.message_id)
            .field("event_type", &self.event_type)
            .field("content_type", &self.content_type)
            .field("timestamp", &self.timestamp)
            .field("headers", &names)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// What orders an event: the pair (aggregate_type, aggregate_id), reduced to a hash that is the same for the life of
/// the process. Two aggregates of one hash are merely ordered with each other too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AggregateKey(pub u64);

/// An event ready for the relay: its message, and what orders it.
#[derive(Clone, Debug)]
pub struct Mapped {
    /// The message.
    pub message: Message,
    /// The aggregate; `None` (a NULL id) has no order.
    pub aggregate: Option<AggregateKey>,
    /// The aggregate as an operator reads it, `order/4711`; at most 200 characters, control characters escaped.
    pub aggregate_label: std::sync::Arc<str>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_a_message_shows_neither_body_nor_header_values() {
        let message = Message {
            exchange: "events".into(),
            routing_key: "order.placed".into(),
            message_id: "e1".into(),
            event_type: None,
            content_type: None,
            timestamp: None,
            headers: vec![("tenant".into(), HeaderValue::Text("canary".into()))],
            body: Bytes::from_static(b"canary"),
        };
        let text = format!("{message:?}");
        assert!(!text.contains("canary"), "{text}");
        assert!(
            text.contains("tenant") && text.contains("body_bytes: 6") && text.contains("e1"),
            "{text}"
        );
    }
}
