//! A message as AMQP properties, and what makes it impossible to send.
//!
//! Source: AMQP 0-9-1 specification, sections 2.3.5.2 (content header), 4.2.5 (strings and field tables); the field
//! types are RabbitMQ's (<https://www.rabbitmq.com/amqp-0-9-1-errata#section_3>).

use std::fmt;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldArray, FieldTable, ShortString};
use tailpost_outbox::{Header, HeaderValue, Message, SHORT_STRING_BYTES};

/// `app_id` of everything that is published.
const APP_ID: &str = "tailpost";
/// Written to disk before it is confirmed, on a durable queue.
const PERSISTENT: u8 = 2;
/// Type, channel, size and end mark of a frame.
const FRAME_OVERHEAD: usize = 8;
/// Class, weight, body size and property flags of a content header.
const HEADER_FIXED: usize = 2 + 2 + 8 + 2;
/// RabbitMQ's default `frame_max`, assumed until one is negotiated.
pub(crate) const DEFAULT_FRAME_MAX: u32 = 131_072;

/// A text that does not fit into a short string.
#[derive(Debug)]
pub(crate) struct TooLong;

/// Says what makes `message` impossible to send, without its content.
pub(crate) fn refuse(message: &Message, max_message_bytes: usize, frame_max: u32) -> Option<String> {
    let body = message.body.len();
    if body > max_message_bytes {
        return Some(format!(
            "its body has {body} bytes, more than the {max_message_bytes} allowed"
        ));
    }
    if let Some(fault) = names(message).find_map(|(what, name)| too_long(what, name)) {
        return Some(fault);
    }
    if let Some(fault) = message
        .headers
        .iter()
        .find_map(|(name, value)| header_fault(name, value))
    {
        return Some(fault);
    }
    let (header, limit) = (
        header_size(message),
        (frame_max as usize).saturating_sub(FRAME_OVERHEAD),
    );
    (header > limit).then(|| {
        format!(
            "its properties and headers take {header} bytes, more than the {limit} that fit into one frame"
        )
    })
}

/// The properties of `message`.
pub(crate) fn properties(message: &Message) -> Result<BasicProperties, TooLong> {
    let mut headers = FieldTable::default();
    for (name, value) in &message.headers {
        headers.insert(short(name)?, amqp_value(value)?);
    }
    let mut properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_message_id(short(&message.message_id)?)
        .with_app_id(APP_ID.into())
        .with_headers(headers);
    if let Some(event_type) = &message.event_type {
        properties = properties.with_type(short(event_type)?);
    }
    if let Some(content_type) = &message.content_type {
        properties = properties.with_content_type(short(content_type)?);
    }
    if let Some(timestamp) = message.timestamp {
        properties = properties.with_timestamp(timestamp);
    }
    Ok(properties)
}

/// A short string of at most 255 bytes.
pub(crate) fn short(text: &str) -> Result<ShortString, TooLong> {
    ShortString::try_new(text).map_err(|_| TooLong)
}

fn amqp_value(value: &HeaderValue) -> Result<AMQPValue, TooLong> {
    Ok(match value {
        HeaderValue::Text(text) => AMQPValue::LongString(text.as_bytes().into()),
        HeaderValue::Integer(number) => AMQPValue::LongLongInt(*number),
        HeaderValue::Double(number) => AMQPValue::Double(*number),
        HeaderValue::Boolean(truth) => AMQPValue::Boolean(*truth),
        HeaderValue::Null => AMQPValue::Void,
        HeaderValue::Array(values) => {
            let values = values.iter().map(amqp_value).collect::<Result<Vec<_>, _>>()?;
            AMQPValue::FieldArray(FieldArray::from(values))
        }
        HeaderValue::Table(entries) => {
            let mut table = FieldTable::default();
            for (name, value) in entries {
                table.insert(short(name)?, amqp_value(value)?);
            }
            AMQPValue::FieldTable(table)
        }
    })
}

fn names(message: &Message) -> impl Iterator<Item = (&'static str, &str)> {
    [
        ("exchange", Some(&message.exchange)),
        ("routing key", Some(&message.routing_key)),
        ("message id", Some(&message.message_id)),
        ("type", message.event_type.as_ref()),
        ("content type", message.content_type.as_ref()),
    ]
    .into_iter()
    .filter_map(|(what, name)| Some((what, name?.as_str())))
}

fn too_long(what: impl fmt::Display, name: &str) -> Option<String> {
    (name.len() > SHORT_STRING_BYTES).then(|| {
        format!(
            "its {what} has {} bytes, more than the {SHORT_STRING_BYTES} of AMQP",
            name.len()
        )
    })
}

fn header_fault(name: &str, value: &HeaderValue) -> Option<String> {
    if name.is_empty() {
        return Some("one of its headers has an empty name".into());
    }
    too_long("header name", name).or_else(|| match value {
        HeaderValue::Array(values) => values.iter().find_map(|value| header_fault("item", value)),
        HeaderValue::Table(entries) => entries.iter().find_map(|(name, value)| header_fault(name, value)),
        HeaderValue::Text(_)
        | HeaderValue::Integer(_)
        | HeaderValue::Double(_)
        | HeaderValue::Boolean(_)
        | HeaderValue::Null => None,
    })
}

/// Size of the content header's payload; exact unless a header name occurs twice, when it is too large.
fn header_size(message: &Message) -> usize {
    let optional = |text: &Option<String>| text.as_ref().map_or(0, |text| 1 + text.len());
    HEADER_FIXED
        + optional(&message.content_type)
        + table_size(&message.headers)
        + 1 // delivery mode
        + (1 + message.message_id.len())
        + message.timestamp.map_or(0, |_| 8)
        + optional(&message.event_type)
        + (1 + APP_ID.len())
}

fn table_size(entries: &[Header]) -> usize {
    4 + entries
        .iter()
        .map(|(name, value)| 1 + name.len() + value_size(value))
        .sum::<usize>()
}

/// Size of a value with its type octet.
fn value_size(value: &HeaderValue) -> usize {
    1 + match value {
        HeaderValue::Text(text) => 4 + text.len(),
        HeaderValue::Integer(_) | HeaderValue::Double(_) => 8,
        HeaderValue::Boolean(_) => 1,
        HeaderValue::Null => 0,
        HeaderValue::Array(values) => 4 + values.iter().map(value_size).sum::<usize>(),
        HeaderValue::Table(entries) => table_size(entries),
    }
}

#[cfg(test)]
#[path = "properties_tests.rs"]
mod tests;
