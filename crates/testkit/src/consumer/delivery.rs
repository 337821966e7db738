//! One delivery, as the consumer saw it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lapin::types::AMQPValue;
use serde_json::Value;
use tokio::time::Instant;

use crate::checker::digest;

/// A message as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub struct Delivery {
    /// `message_id`; empty when it has none.
    pub message_id: Box<str>,
    /// `type`.
    pub event_type: Option<Box<str>>,
    /// `type/id` of the headers `aggregate_type` and `aggregate_id`.
    pub aggregate: Option<Box<str>>,
    /// Header `tailpost_position`.
    pub position: Option<Box<str>>,
    /// `seq` of a payload that [`Writer`](crate::Writer) made.
    pub seq: Option<u64>,
    /// Routing key.
    pub routing_key: Box<str>,
    /// The broker's flag. It may be set on a first delivery, and is not set when the relay repeats.
    pub redelivered: bool,
    /// [`digest`] of the body.
    pub digest: u64,
    /// When it arrived.
    pub arrived: Instant,
    /// From the payload's `at`, taken when the row was inserted, to its arrival.
    pub latency: Option<Duration>,
}

impl Delivery {
    /// A delivery for tests of the checker.
    pub fn of(message_id: &str, position: Option<&str>, body: &[u8]) -> Self {
        Self {
            message_id: message_id.into(),
            event_type: None,
            aggregate: None,
            position: position.map(Into::into),
            seq: None,
            routing_key: "".into(),
            redelivered: false,
            digest: digest(body),
            arrived: Instant::now(),
            latency: None,
        }
    }

    pub(crate) fn read(delivery: &lapin::message::Delivery) -> Self {
        let arrived = Instant::now();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let header = |name: &str| header(delivery, name);
        let aggregate = header("aggregate_type")
            .zip(header("aggregate_id"))
            .map(|(kind, id)| format!("{kind}/{id}"));
        let body: Value = serde_json::from_slice(&delivery.data).unwrap_or_default();
        // An envelope holds the payload one level down.
        let field = |name: &str| {
            body.get(name)
                .or_else(|| body.get("payload")?.get(name))?
                .as_u64()
        };
        Self {
            message_id: delivery
                .properties
                .message_id()
                .as_ref()
                .map_or("", |id| id.as_str())
                .into(),
            event_type: delivery
                .properties
                .kind()
                .as_ref()
                .map(|kind| kind.as_str().into()),
            aggregate: aggregate.map(Into::into),
            position: header("tailpost_position").map(Into::into),
            seq: field("seq"),
            routing_key: delivery.routing_key.as_str().into(),
            redelivered: delivery.redelivered,
            digest: digest(&delivery.data),
            arrived,
            latency: field("at").map(|at| now.saturating_sub(Duration::from_micros(at))),
        }
    }
}

fn header(delivery: &lapin::message::Delivery, name: &str) -> Option<String> {
    match delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(String::from_utf8_lossy(text.as_bytes()).into_owned()),
        AMQPValue::ShortString(text) => Some(text.as_str().to_owned()),
        AMQPValue::LongLongInt(number) => Some(number.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        _ => None,
    }
}
