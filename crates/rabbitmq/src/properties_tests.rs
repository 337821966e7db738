use std::collections::BTreeMap;

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame};
use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn message() -> Message {
    Message {
        exchange: "events".into(),
        routing_key: "order.placed".into(),
        message_id: "5f0c".into(),
        event_type: Some("placed".into()),
        content_type: Some("application/json".into()),
        timestamp: Some(1_700_000_000),
        headers: vec![("tailpost_position".into(), HeaderValue::Text("0/1:0".into()))],
        body: Bytes::from_static(b"{}"),
    }
}

fn refused(message: &Message) -> Option<String> {
    refuse(message, 1000, DEFAULT_FRAME_MAX)
}

fn encoded_frame(message: &Message) -> usize {
    let Ok(properties) = properties(message) else {
        panic!("a name is too long")
    };
    let header = AMQPContentHeader {
        class_id: 60,
        body_size: message.body.len() as u64,
        properties,
    };
    let context = WriteContext::from(Vec::new());
    gen_frame(&AMQPFrame::Header(1, header))(context)
        .expect("a Vec has room")
        .into_inner()
        .0
        .len()
}

#[test]
fn message_of_ordinary_size_is_not_refused() {
    assert_eq!(refused(&message()), None);
}

#[test]
fn body_over_the_limit_is_refused_without_its_content() {
    let mut message = message();
    message.body = vec![b'c'; 1000].into();
    assert_eq!(refused(&message), None);
    message.body = vec![b'c'; 1001].into();
    assert_eq!(
        refused(&message).unwrap(),
        "its body has 1001 bytes, more than the 1000 allowed"
    );
}

#[test]
fn names_over_255_bytes_are_refused_each_by_its_name() {
    type Set = fn(&mut Message, String);
    let long = "c".repeat(256);
    let cases: [(&str, Set); 7] = [
        ("exchange", |m, text| m.exchange = text),
        ("routing key", |m, text| m.routing_key = text),
        ("message id", |m, text| m.message_id = text),
        ("type", |m, text| m.event_type = Some(text)),
        ("content type", |m, text| m.content_type = Some(text)),
        ("header name", |m, text| {
            m.headers.push((text.into(), HeaderValue::Null))
        }),
        ("header name", |m, text| {
            let table = HeaderValue::Table(vec![(text.into(), HeaderValue::Null)]);
            m.headers.push(("list".into(), HeaderValue::Array(vec![table])));
        }),
    ];
    for (what, set) in cases {
        let mut message = message();
        set(&mut message, long[..255].to_owned());
        assert_eq!(refused(&message), None, "{what}");
        assert!(properties(&message).is_ok());
        set(&mut message, long.clone());
        assert_eq!(
            refused(&message).unwrap(),
            format!("its {what} has 256 bytes, more than the 255 of AMQP")
        );
    }
}

#[test]
fn header_without_a_name_is_refused() {
    let mut message = message();
    message.headers.push(("".into(), HeaderValue::Boolean(true)));
    assert_eq!(refused(&message).unwrap(), "one of its headers has an empty name");
}

#[test]
fn headers_are_refused_at_the_byte_at_which_they_no_longer_fit_into_a_frame() {
    let mut message = message();
    message
        .headers
        .push(("fill".into(), HeaderValue::Text(String::new())));
    let room = DEFAULT_FRAME_MAX as usize - encoded_frame(&message);
    message.headers[1].1 = HeaderValue::Text("c".repeat(room));
    assert_eq!(encoded_frame(&message), DEFAULT_FRAME_MAX as usize);
    assert_eq!(refused(&message), None);
    message.headers[1].1 = HeaderValue::Text("c".repeat(room + 1));
    let text = refused(&message).unwrap();
    assert_eq!(
        text,
        "its properties and headers take 131065 bytes, more than the 131064 that fit into one frame"
    );
}

#[test]
fn properties_are_persistent_named_and_typed() {
    let mut message = message();
    message.headers.push(("n".into(), HeaderValue::Integer(-1)));
    let properties = properties(&message).unwrap();
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), "5f0c");
    assert_eq!(properties.app_id().as_ref().unwrap().as_str(), "tailpost");
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "placed");
    assert_eq!(*properties.timestamp(), Some(1_700_000_000));
    let headers = properties.headers().as_ref().unwrap().inner();
    assert_eq!(headers.get("n"), Some(&AMQPValue::LongLongInt(-1)));
    assert_eq!(
        headers.get("tailpost_position"),
        Some(&AMQPValue::LongString("0/1:0".into()))
    );
}

fn named(headers: BTreeMap<String, HeaderValue>) -> Vec<Header> {
    headers
        .into_iter()
        .map(|(name, value)| (name.into(), value))
        .collect()
}

fn header_value() -> impl Strategy<Value = HeaderValue> {
    let leaf = prop_oneof![
        any::<String>().prop_map(HeaderValue::Text),
        any::<i64>().prop_map(HeaderValue::Integer),
        any::<f64>().prop_map(HeaderValue::Double),
        any::<bool>().prop_map(HeaderValue::Boolean),
        Just(HeaderValue::Null),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(HeaderValue::Array),
            prop::collection::btree_map("[a-z]{1,8}", inner, 0..4)
                .prop_map(|table| HeaderValue::Table(named(table))),
        ]
    })
}

proptest! {
    #[test]
    fn header_size_is_what_is_encoded(
        headers in prop::collection::btree_map("[a-z]{1,12}", header_value(), 0..6),
        event_type in prop::option::of("[a-z]{0,40}"),
        content_type in prop::option::of("[a-z/]{0,40}"),
        timestamp in any::<Option<u64>>(),
    ) {
        let message = Message { headers: named(headers), event_type, content_type, timestamp, ..message() };
        prop_assert_eq!(header_size(&message) + FRAME_OVERHEAD, encoded_frame(&message));
    }
}
