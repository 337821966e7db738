//! What is published: an AMQP message in the domain's own types, free of any client library.

use bytes::Bytes;

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
    Table(Vec<(String, HeaderValue)>),
}

/// An AMQP message, complete: nothing is added to it on the way but what the protocol needs.
#[derive(Clone, Debug, PartialEq)]
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
    pub headers: Vec<(String, HeaderValue)>,
    /// Body, byte for byte.
    pub body: Bytes,
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
