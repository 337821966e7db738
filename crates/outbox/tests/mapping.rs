//! What a row becomes, by every rule of the mapping, seen from outside.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use tailpost_outbox::{
    BodyFormat, Column, ColumnKind, HeaderValue, MapError, Mapped, Mapper, MappingConfig, Message, Preset,
    Row, Table, Template, Value,
};

const ID: &str = "0b2c8f5e-0000-4000-8000-000000000001";

/// Column, kind and value; `None` is NULL.
type Cell<'a> = (&'a str, ColumnKind, Option<&'a str>);

const STANDARD: [Cell<'static>; 6] = [
    ("event_id", ColumnKind::Uuid, Some(ID)),
    ("aggregate_type", ColumnKind::Text, Some("order")),
    ("aggregate_id", ColumnKind::Text, Some("4711")),
    ("event_type", ColumnKind::Text, Some("placed")),
    ("payload", ColumnKind::Json, Some(r#"{"total": 1.10}"#)),
    (
        "created_at",
        ColumnKind::Timestamp,
        Some("2024-02-03 09:35:06.123456+00"),
    ),
];

fn row(cells: &[Cell<'_>]) -> Row {
    let columns = cells
        .iter()
        .map(|(name, kind, _)| Column {
            name: name.to_string(),
            kind: *kind,
        })
        .collect();
    let value = |(_, kind, text): &Cell<'_>| match (kind, text) {
        (_, None) => Value::Null,
        (ColumnKind::Bytes, Some(text)) => Value::Binary(Bytes::copy_from_slice(text.as_bytes())),
        (_, Some(text)) => Value::Text(Bytes::copy_from_slice(text.as_bytes())),
    };
    let table = Arc::new(Table {
        schema: "public".into(),
        name: "outbox_event".into(),
        columns,
    });
    Row {
        table,
        values: cells.iter().map(value).collect(),
        transaction: "0/19258A8".into(),
        index: 3,
        size: 100,
    }
}

/// The standard row with cells replaced by name, or added.
fn changed(changes: &[Cell<'static>]) -> Row {
    let mut cells = STANDARD.to_vec();
    for change in changes {
        match cells.iter_mut().find(|cell| cell.0 == change.0) {
            Some(cell) => *cell = *change,
            None => cells.push(*change),
        }
    }
    row(&cells)
}

fn mapper(change: impl FnOnce(&mut MappingConfig)) -> Mapper {
    let mut config = MappingConfig::default();
    change(&mut config);
    Mapper::new(config).expect("a sound configuration")
}

fn map(row: &Row) -> Mapped {
    mapper(|_| {}).map(row).expect("a message")
}

fn template(text: &str) -> Option<Template> {
    Some(Template::parse(text).expect("a template"))
}

fn poison(mapper: &mut Mapper, row: &Row) -> String {
    match mapper.map(row) {
        Err(MapError::Poison { what }) => what,
        other => panic!("{other:?}"),
    }
}

fn header<'a>(message: &'a Message, name: &str) -> Option<&'a HeaderValue> {
    message
        .headers
        .iter()
        .find(|(header, _)| header == name)
        .map(|(_, value)| value)
}

fn text(text: &str) -> HeaderValue {
    HeaderValue::Text(text.into())
}

#[test]
fn a_standard_row_becomes_the_message_of_the_design() {
    let mapped = map(&changed(&[]));
    let expected = Message {
        exchange: "events".into(),
        routing_key: "order.placed".into(),
        message_id: ID.into(),
        event_type: Some("placed".into()),
        content_type: Some("application/json".into()),
        timestamp: Some(1_706_952_906),
        headers: vec![
            ("tailpost_position".into(), text("0/19258A8:3")),
            ("aggregate_type".into(), text("order")),
            ("aggregate_id".into(), text("4711")),
            ("occurred_at".into(), text("2024-02-03T09:35:06.123456Z")),
            ("timestamp_in_ms".into(), HeaderValue::Integer(1_706_952_906_123)),
        ],
        body: Bytes::from_static(br#"{"total": 1.10}"#),
    };
    assert_eq!(mapped.message, expected);
    assert_eq!(&*mapped.aggregate_label, "order/4711");
    assert!(mapped.aggregate.is_some());
}

#[test]
fn law_7_the_body_is_the_very_bytes_of_the_payload() {
    let bytes: Vec<u8> = (0..=255).collect();
    for value in [
        Value::Binary(bytes.clone().into()),
        Value::Text(bytes.into()),
        Value::Text(Bytes::new()),
    ] {
        let mut row = changed(&[("payload", ColumnKind::Other, None)]);
        let (Value::Text(payload) | Value::Binary(payload)) = &value else {
            unreachable!("not NULL")
        };
        let payload = payload.clone();
        row.values[4] = value;
        let body = map(&row).message.body;
        assert_eq!(body, payload);
        assert_eq!(body.as_ptr(), payload.as_ptr(), "not copied");
    }
}

#[test]
fn optional_columns_become_headers_of_their_types() {
    let row = changed(&[
        ("aggregate_version", ColumnKind::Integer, Some("7")),
        ("trace_id", ColumnKind::Text, Some("t1")),
        ("traceparent", ColumnKind::Text, Some("00-aa-bb-01")),
        (
            "headers",
            ColumnKind::Json,
            Some(r#"{"tenant":"acme","n":12,"big":12345678901234567890,"none":null}"#),
        ),
    ]);
    let message = map(&row).message;
    assert_eq!(
        header(&message, "aggregate_version"),
        Some(&HeaderValue::Integer(7))
    );
    assert_eq!(header(&message, "trace_id"), Some(&text("t1")));
    assert_eq!(header(&message, "traceparent"), Some(&text("00-aa-bb-01")));
    assert_eq!(header(&message, "tenant"), Some(&text("acme")));
    assert_eq!(header(&message, "n"), Some(&HeaderValue::Integer(12)));
    assert_eq!(header(&message, "big"), Some(&text("12345678901234567890")));
    assert_eq!(header(&message, "none"), Some(&HeaderValue::Null));
    let textual = map(&changed(&[("aggregate_version", ColumnKind::Text, Some("7"))])).message;
    assert_eq!(header(&textual, "aggregate_version"), Some(&text("7")));
}

#[test]
fn null_leaves_out_what_is_not_needed() {
    let row = changed(&[
        ("aggregate_type", ColumnKind::Text, None),
        ("aggregate_id", ColumnKind::Text, None),
        ("event_type", ColumnKind::Text, None),
        ("created_at", ColumnKind::Timestamp, None),
        ("headers", ColumnKind::Json, None),
        ("trace_id", ColumnKind::Text, None),
    ]);
    let mapped = mapper(|config| config.routing_key = template("fixed"))
        .map(&row)
        .expect("a message");
    assert_eq!(mapped.message.headers.len(), 1);
    assert_eq!(
        (mapped.message.event_type, mapped.message.timestamp),
        (None, None)
    );
    assert_eq!((mapped.aggregate, &*mapped.aggregate_label), (None, ""));
}

#[test]
fn a_null_aggregate_id_has_no_order_and_equal_pairs_have_one_key_in_all_tables() {
    assert_eq!(
        map(&changed(&[("aggregate_id", ColumnKind::Text, None)])).aggregate,
        None
    );
    let one = map(&changed(&[])).aggregate;
    assert_eq!(map(&changed(&[("note", ColumnKind::Text, None)])).aggregate, one);
    assert_ne!(
        map(&changed(&[("aggregate_id", ColumnKind::Text, Some("4712"))])).aggregate,
        one
    );
    assert_ne!(
        map(&changed(&[("aggregate_type", ColumnKind::Text, Some("cart"))])).aggregate,
        one
    );
}

#[test]
fn header_flags_are_typed_by_column_and_absent_where_the_table_has_no_such_column() {
    let mut mapper = mapper(|config| {
        let flags = [
            "n=n",
            "big=big",
            "b=b",
            "f=f",
            "u=u",
            "j=j",
            "nothing=nothing",
            "later=later",
        ];
        config.headers = flags.iter().map(|flag| flag.parse().expect("a header")).collect();
    });
    let row = changed(&[
        ("n", ColumnKind::Integer, Some("-5")),
        ("big", ColumnKind::Integer, Some("18446744073709551615")),
        ("b", ColumnKind::Boolean, Some("t")),
        ("f", ColumnKind::Float, Some("0.25")),
        ("u", ColumnKind::Uuid, Some(ID)),
        ("j", ColumnKind::Json, Some("[1]")),
        ("nothing", ColumnKind::Text, None),
    ]);
    let message = mapper.map(&row).expect("a message").message;
    assert_eq!(header(&message, "n"), Some(&HeaderValue::Integer(-5)));
    assert_eq!(header(&message, "big"), Some(&text("18446744073709551615")));
    assert_eq!(header(&message, "b"), Some(&HeaderValue::Boolean(true)));
    assert_eq!(header(&message, "f"), Some(&HeaderValue::Double(0.25)));
    assert_eq!(header(&message, "u"), Some(&text(ID)));
    assert_eq!(header(&message, "j"), Some(&text("[1]")));
    assert_eq!(
        (header(&message, "nothing"), header(&message, "later")),
        (None, None)
    );
    let notes = mapper.inspect(&row.table).expect("it fits");
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(
        notes[0].contains("header \"later\"") && notes[0].contains("public.outbox_event"),
        "{notes:?}"
    );
}

#[test]
fn reserved_and_taken_names_from_a_row_are_poison_that_names_them() {
    let mut mapper = mapper(|config| config.headers = vec!["tenant=note".parse().expect("a header")]);
    let cases = [
        (r#"{"CC":["a"]}"#, "CC"),
        (r#"{"bcc":["a"]}"#, "bcc"),
        (r#"{"x-delay":1}"#, "x-delay"),
        (r#"{"tailpost_position":"1"}"#, "tailpost_position"),
        (r#"{"aggregate_id":"1"}"#, "aggregate_id"),
        (r#"{"tenant":"1"}"#, "tenant"),
    ];
    for (json, name) in cases {
        let row = changed(&[
            ("headers", ColumnKind::Json, Some(json)),
            ("note", ColumnKind::Text, Some("acme")),
        ]);
        let what = poison(&mut mapper, &row);
        assert!(
            what.starts_with(&format!("column \"headers\" holds the header \"{name}\"")),
            "{what}"
        );
    }
    let free = changed(&[(
        "headers",
        ColumnKind::Json,
        Some(r#"{"traceparent":"00","in":{"x-y":1}}"#),
    )]);
    assert_eq!(
        header(&mapper.map(&free).expect("a message").message, "traceparent"),
        Some(&text("00"))
    );
}

#[test]
fn a_row_may_bring_its_own_routing_key() {
    let own = changed(&[
        ("routing_key", ColumnKind::Text, Some("own.key")),
        ("event_type", ColumnKind::Text, None),
    ]);
    assert_eq!(map(&own).message.routing_key, "own.key");
    assert_eq!(
        map(&changed(&[("routing_key", ColumnKind::Text, None)]))
            .message
            .routing_key,
        "order.placed"
    );
    let ignored = mapper(|config| config.columns = vec!["routing_key=".parse().expect("a column")]).map(&own);
    assert!(ignored.is_err(), "the template is used, whose event_type is NULL");
}

#[test]
fn templates_take_fields_and_any_other_column() {
    let mut mapper = mapper(|config| {
        config.columns = vec!["aggregate_type=kind".parse().expect("a column")];
        config.exchange = template("{region}.events");
        config.routing_key = template("{aggregate_type}/{{{event_id}}}");
    });
    let row = changed(&[
        ("kind", ColumnKind::Text, Some("cart")),
        ("region", ColumnKind::Text, Some("eu")),
    ]);
    let message = mapper.map(&row).expect("a message").message;
    assert_eq!(
        (message.exchange, message.routing_key),
        ("eu.events".into(), format!("cart/{{{ID}}}"))
    );
}

#[test]
fn a_null_or_empty_needed_value_is_poison_that_says_where() {
    let place = "(table \"public.outbox_event\", row 0/19258A8:3";
    let cases = [
        (
            ("event_id", None),
            format!("column \"event_id\" is NULL, and every event needs an id {place})"),
        ),
        (
            ("event_id", Some("")),
            format!("column \"event_id\" is empty, and every event needs an id {place})"),
        ),
        (
            ("payload", None),
            format!("column \"payload\" is NULL, and no message can be made of it {place}, event \"{ID}\")"),
        ),
        (
            ("event_type", None),
            format!(
                "the routing key template needs column \"event_type\", which is NULL {place}, event \"{ID}\")"
            ),
        ),
    ];
    for ((name, value), expected) in cases {
        let row = changed(&[(name, ColumnKind::Text, value)]);
        assert_eq!(poison(&mut mapper(|_| {}), &row), expected);
    }
}

#[test]
fn an_exchange_is_empty_only_where_the_template_is() {
    let row = changed(&[("aggregate_type", ColumnKind::Text, Some(""))]);
    let what = poison(
        &mut mapper(|config| config.exchange = template("{aggregate_type}")),
        &row,
    );
    assert!(
        what.starts_with("the exchange template gives an empty name"),
        "{what}"
    );
    let stated = mapper(|config| config.exchange = template(""))
        .map(&row)
        .expect("a message");
    assert_eq!(stated.message.exchange, "");
}

#[test]
fn names_over_255_bytes_are_poison_and_255_are_not() {
    let long: &'static str = "x".repeat(256).leak();
    let most = &long[..255];
    let mut fixed = mapper(|config| config.routing_key = template("k"));
    for (name, what) in [("event_id", "event id"), ("event_type", "event type")] {
        let error = poison(&mut fixed, &changed(&[(name, ColumnKind::Text, Some(long))]));
        assert!(
            error.starts_with(&format!("the {what} is 256 bytes long, at most 255 are allowed")),
            "{error}"
        );
        assert!(!error.contains(long), "{error}");
        assert!(
            fixed
                .map(&changed(&[(name, ColumnKind::Text, Some(most))]))
                .is_ok()
        );
    }
    let error = poison(
        &mut mapper(|_| {}),
        &changed(&[("routing_key", ColumnKind::Text, Some(long))]),
    );
    assert!(error.starts_with("the routing key is 256 bytes long"), "{error}");
    let mut exchange = mapper(|config| config.exchange = template("{note}"));
    let error = poison(&mut exchange, &changed(&[("note", ColumnKind::Text, Some(long))]));
    assert!(error.starts_with("the exchange is 256 bytes long"), "{error}");
}

#[test]
fn a_payload_or_an_envelope_over_the_limit_is_poison() {
    let limit = STANDARD[4].2.expect("a payload").len();
    assert!(
        mapper(|config| config.max_message_bytes = limit)
            .map(&changed(&[]))
            .is_ok()
    );
    let what = poison(
        &mut mapper(|config| config.max_message_bytes = limit - 1),
        &changed(&[]),
    );
    assert!(
        what.starts_with("the payload is 15 bytes long, over --max-message-bytes 14 (table"),
        "{what}"
    );
    let mut envelope = mapper(|config| {
        config.body = BodyFormat::Envelope;
        config.max_message_bytes = limit;
    });
    let what = poison(&mut envelope, &changed(&[]));
    assert!(what.starts_with("the envelope is 2"), "{what}");
}

#[test]
fn text_that_is_not_utf_8_is_poison_outside_the_payload() {
    for (index, name) in ["event_id", "aggregate_type", "aggregate_id", "event_type"]
        .iter()
        .enumerate()
    {
        let mut row = changed(&[]);
        row.values[index] = Value::Text(Bytes::from_static(b"canary\xff"));
        let what = poison(&mut mapper(|_| {}), &row);
        assert!(
            what.starts_with(&format!("column \"{name}\" is not UTF-8")) && !what.contains("canary"),
            "{what}"
        );
    }
}

#[test]
fn a_row_that_does_not_fit_its_table_is_poison() {
    let mut row = changed(&[]);
    row.values.pop();
    assert!(poison(&mut mapper(|_| {}), &row).starts_with("the row has 5 values for 6 columns"));
}

#[test]
fn a_renamed_column_is_a_fault_of_the_table_not_of_the_row() {
    let mut mapper = mapper(|_| {});
    mapper.map(&changed(&[])).expect("a message");
    let mut cells = STANDARD.to_vec();
    cells[2].0 = "aggregate";
    let Err(MapError::Shape { what, hint }) = mapper.map(&row(&cells)) else {
        panic!("it fits")
    };
    assert_eq!(
        what,
        "table \"public.outbox_event\" has no column \"aggregate_id\" for field aggregate_id"
    );
    assert!(hint.contains("--column aggregate_id=COLUMN"), "{hint}");
    mapper.map(&changed(&[])).expect("the old shape still fits");
    cells.insert(0, ("new", ColumnKind::Text, None));
    cells[3].0 = "aggregate_id";
    assert_eq!(
        mapper.map(&row(&cells)).expect("columns go by name").message,
        map(&changed(&[])).message
    );
}

#[test]
fn an_empty_column_flag_says_that_the_table_has_none() {
    let cells: Vec<_> = STANDARD
        .into_iter()
        .filter(|cell| !cell.0.starts_with("aggregate"))
        .collect();
    let mut mapper = mapper(|config| {
        config.columns = vec![
            "aggregate_type=".parse().expect("a column"),
            "aggregate_id=".parse().expect("a column"),
        ];
        config.routing_key = template("{event_type}");
    });
    let refused = mapper.map(&row(&cells));
    assert_eq!(refused.expect("a message").aggregate, None);
}

#[test]
fn required_columns_are_those_of_needed_fields_explicit_flags_and_templates() {
    let mapper = mapper(|config| {
        let columns = ["event_id=uid", "aggregate_id=", "trace_id=trace"];
        config.columns = columns
            .iter()
            .map(|flag| flag.parse().expect("a column"))
            .collect();
        config.headers = vec!["tenant=tenant".parse().expect("a header")];
        config.routing_key = template("{region}.{event_id}");
    });
    let expected = [
        "aggregate_type",
        "event_type",
        "payload",
        "region",
        "trace",
        "uid",
    ];
    assert_eq!(mapper.required_columns(), expected);
    assert_eq!(mapper.payload_column(), Some("payload"));
}

#[test]
fn content_type_goes_by_the_column_or_the_flag() {
    let cases = [
        (ColumnKind::Json, "application/json"),
        (ColumnKind::Text, "text/plain"),
        (ColumnKind::Bytes, "application/octet-stream"),
        (ColumnKind::Other, "text/plain"),
    ];
    for (kind, expected) in cases {
        let row = changed(&[("payload", kind, Some("1"))]);
        assert_eq!(map(&row).message.content_type.as_deref(), Some(expected));
        let envelope = mapper(|config| config.body = BodyFormat::Envelope)
            .map(&row)
            .expect("a message");
        assert_eq!(envelope.message.content_type.as_deref(), Some("application/json"));
        let set = mapper(|config| config.content_type = Some("text/x".into()))
            .map(&row)
            .expect("a message");
        assert_eq!(set.message.content_type.as_deref(), Some("text/x"));
    }
}

#[test]
fn times_come_from_text_or_milliseconds_and_are_left_out_where_there_are_none() {
    let cases = [
        (
            ColumnKind::Timestamp,
            "2024-02-03 15:05:06.5+05:30",
            Some("2024-02-03T09:35:06.500000Z"),
        ),
        (
            ColumnKind::Text,
            "2024-02-03T09:35:06Z",
            Some("2024-02-03T09:35:06.000000Z"),
        ),
        (
            ColumnKind::Integer,
            "1706952906123",
            Some("2024-02-03T09:35:06.123000Z"),
        ),
        (ColumnKind::Integer, "1706952906123456", None),
        (ColumnKind::Timestamp, "infinity", None),
        (ColumnKind::Timestamp, "0044-03-15 12:00:00+00 BC", None),
    ];
    for (kind, given, expected) in cases {
        let message = map(&changed(&[("created_at", kind, Some(given))])).message;
        assert_eq!(
            header(&message, "occurred_at"),
            expected.map(text).as_ref(),
            "{given}"
        );
        assert_eq!(message.timestamp.is_some(), expected.is_some(), "{given}");
        assert_eq!(
            header(&message, "timestamp_in_ms").is_some(),
            expected.is_some(),
            "{given}"
        );
    }
}

#[test]
fn an_envelope_carries_the_fields_and_the_payload_as_it_is() {
    let row = changed(&[
        ("aggregate_version", ColumnKind::Integer, Some("7")),
        ("trace_id", ColumnKind::Text, Some("t")),
        (
            "payload",
            ColumnKind::Json,
            Some(r#"{"n": 1.10, "n": 123456789012345678901234567890}"#),
        ),
    ]);
    let body = mapper(|config| config.body = BodyFormat::Envelope)
        .map(&row)
        .expect("a message")
        .message
        .body;
    let expected = r#"{"eventId":"0b2c8f5e-0000-4000-8000-000000000001","eventType":"placed","aggregateType":"order","aggregateId":"4711","aggregateVersion":7,"occurredAt":"2024-02-03T09:35:06.123456Z","traceId":"t","payload":{"n": 1.10, "n": 123456789012345678901234567890}}"#;
    assert_eq!(body, expected);
    let broken = changed(&[("payload", ColumnKind::Json, Some("{\"canary\""))]);
    let what = poison(&mut mapper(|config| config.body = BodyFormat::Envelope), &broken);
    assert!(
        what.starts_with("column \"payload\" holds no JSON document") && !what.contains("canary"),
        "{what}"
    );
}

const DEBEZIUM: [Cell<'static>; 6] = [
    ("id", ColumnKind::Uuid, Some(ID)),
    ("aggregatetype", ColumnKind::Text, Some("order")),
    ("aggregateid", ColumnKind::Text, Some("4711")),
    ("type", ColumnKind::Text, Some("placed")),
    ("payload", ColumnKind::Json, Some("{}")),
    (
        "headers",
        ColumnKind::Text,
        Some("the application's own business"),
    ),
];

#[test]
fn consumers_of_a_debezium_outbox_notice_nothing() {
    let mapped = mapper(|config| config.preset = Preset::Debezium)
        .map(&row(&DEBEZIUM))
        .expect("a message");
    let expected = Message {
        exchange: "outbox.event.order".into(),
        routing_key: String::new(),
        message_id: ID.into(),
        event_type: Some("placed".into()),
        content_type: Some("application/json".into()),
        timestamp: None,
        headers: vec![
            ("tailpost_position".into(), text("0/19258A8:3")),
            ("id".into(), text(ID)),
        ],
        body: Bytes::from_static(b"{}"),
    };
    assert_eq!(mapped.message, expected);
    assert_eq!(mapped.aggregate, map(&changed(&[])).aggregate);
}

#[test]
fn the_debezium_preset_sends_what_flags_add_and_lets_no_row_forge_its_id() {
    let mut mapper = mapper(|config| {
        config.preset = Preset::Debezium;
        config.columns = vec![
            "headers=extra".parse().expect("a column"),
            "traceparent=tp".parse().expect("a column"),
        ];
        config.headers = vec!["eventType=type".parse().expect("a header")];
        config.routing_key = template("{type}");
    });
    let with = |extra: &'static str| {
        let more = [
            ("extra", ColumnKind::Json, Some(extra)),
            ("tp", ColumnKind::Text, Some("00")),
        ];
        row(&[DEBEZIUM.as_slice(), &more].concat())
    };
    let message = mapper.map(&with(r#"{"a":1}"#)).expect("a message").message;
    let names: Vec<&str> = message.headers.iter().map(|(name, _)| &**name).collect();
    assert_eq!(
        names,
        ["tailpost_position", "id", "traceparent", "eventType", "a"]
    );
    assert_eq!(message.routing_key, "placed");
    assert!(poison(&mut mapper, &with(r#"{"id":"forged"}"#)).contains("the header \"id\""));
}

/// Every column whose value is content holds a canary, and each error is provoked in turn.
#[test]
fn no_error_quotes_a_payload_or_another_value() {
    let payload = ("payload", ColumnKind::Json, Some("canary"));
    let rows = [
        changed(&[payload, ("headers", ColumnKind::Json, Some("{\"canary"))]),
        changed(&[payload, ("headers", ColumnKind::Json, Some("[\"canary\"]"))]),
        changed(&[payload, ("event_type", ColumnKind::Text, None)]),
        changed(&[
            payload,
            ("routing_key", ColumnKind::Text, Some("canary".repeat(50).leak())),
        ]),
    ];
    for row in &rows {
        let what = poison(&mut mapper(|_| {}), row);
        assert!(!what.contains("canary") && what.contains(ID), "{what}");
    }
    let what = poison(&mut mapper(|config| config.max_message_bytes = 1), &rows[0]);
    assert!(!what.contains("canary"), "{what}");
}

#[test]
fn an_event_id_cannot_forge_a_log_line() {
    let row = changed(&[
        ("event_id", ColumnKind::Text, Some("x\n\u{1b}[2J")),
        ("payload", ColumnKind::Json, None),
    ]);
    let what = poison(&mut mapper(|_| {}), &row);
    assert!(what.ends_with("event \"x\\n\\u{1b}[2J\")"), "{what}");
}

/// Mostly text, so that many rows get far; now and then bytes of any sort where they don't belong.
fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        2 => Just(Value::Null),
        30 => "\\PC{0,20}|[0-9]{1,20}|\\{(\"[a-zA-Z]{0,9}\":[0-9]{1,3})?\\}".prop_map(|text| Value::Text(text.into())),
        1 => any::<Vec<u8>>().prop_map(|bytes| Value::Text(bytes.into())),
        1 => any::<Vec<u8>>().prop_map(|bytes| Value::Binary(bytes.into())),
    ]
}

fn any_kind() -> impl Strategy<Value = ColumnKind> {
    let texts = vec![
        ColumnKind::Text,
        ColumnKind::Json,
        ColumnKind::Integer,
        ColumnKind::Float,
        ColumnKind::Boolean,
        ColumnKind::Uuid,
        ColumnKind::Timestamp,
        ColumnKind::Other,
    ];
    prop_oneof![60 => proptest::sample::select(texts), 1 => Just(ColumnKind::Bytes)]
}

proptest! {
    #[test]
    fn no_bytes_panic_and_each_repeat_is_the_same(
        cells in proptest::collection::vec((any_kind(), any_value()), 12),
        lost in 0_usize..200,
        envelope in any::<bool>(),
    ) {
        let names = ["event_id", "aggregate_type", "aggregate_id", "event_type", "payload", "created_at", "headers",
            "routing_key", "aggregate_version", "trace_id", "traceparent", "note"];
        let column = |(name, (kind, _)): (&&str, &(ColumnKind, Value))| Column { name: name.to_string(), kind: *kind };
        let columns = names.iter().zip(&cells).map(column).collect();
        let mut values: Vec<Value> = cells.into_iter().map(|(_, value)| value).collect();
        values.truncate(lost);
        let table = Arc::new(Table { schema: "s".into(), name: "t".into(), columns });
        let row = Row { table, values, transaction: "0/1".into(), index: 0, size: 0 };
        let mut mapper = mapper(|config| {
            config.headers = vec!["note=note".parse().expect("a header")];
            config.routing_key = template("{note}");
            config.body = if envelope { BodyFormat::Envelope } else { BodyFormat::Payload };
        });
        match (mapper.map(&row), mapper.map(&row)) {
            (Ok(first), Ok(second)) => {
                prop_assert_eq!(format!("{first:?}"), format!("{second:?}"));
                prop_assert_eq!(first.message.body, second.message.body);
                prop_assert_eq!(first.aggregate, second.aggregate);
                prop_assert!(first.message.headers.iter().filter(|(name, _)| name == "tailpost_position").count() == 1);
            }
            (first, second) => prop_assert_eq!(first.err(), second.err()),
        }
    }

    #[test]
    fn each_text_of_a_row_arrives_as_it_is(kind in "\\PC{0,30}", id in "\\PC{0,30}", event in "\\PC{1,60}") {
        let mut row = changed(&[]);
        for (index, text) in [&event, &kind, &id].into_iter().enumerate() {
            row.values[index] = Value::Text(Bytes::copy_from_slice(text.as_bytes()));
        }
        let mapped = map(&row);
        prop_assert_eq!(&mapped.message.message_id, &event);
        prop_assert_eq!(header(&mapped.message, "aggregate_type"), Some(&text(&kind)));
        prop_assert_eq!(header(&mapped.message, "aggregate_id"), Some(&text(&id)));
        prop_assert_eq!(mapped.message.routing_key, format!("{kind}.placed"));
    }
}
