//! What a message holds: body, properties, headers, exchange and routing key, from real rows of many shapes.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use lapin::options::BasicGetOptions;
use lapin::types::AMQPValue;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::lsn;
use tailpost_testkit::wait::until;
use tailpost_tests::{LONG, QUEUE, Scene};
use tokio_postgres::types::ToSql;

/// A message, whole: the testkit's consumer keeps no bodies.
#[derive(Debug)]
struct Message {
    exchange: String,
    routing_key: String,
    properties: BasicProperties,
    body: Vec<u8>,
}

impl Message {
    fn headers(&self) -> BTreeMap<String, AMQPValue> {
        let headers = self.properties.headers().clone().unwrap_or_default();
        let entries = headers.inner().iter();
        entries
            .map(|(name, value)| (name.to_string(), value.clone()))
            .collect()
    }

    fn header_names(&self) -> BTreeSet<String> {
        self.headers().into_keys().collect()
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    fn content_type(&self) -> &str {
        self.properties
            .content_type()
            .as_ref()
            .map_or("", |text| text.as_str())
    }
}

/// Takes messages out of [`QUEUE`].
struct Getter {
    channel: Channel,
    _connection: Connection,
}

impl Getter {
    async fn open(scene: &Scene) -> Result<Self> {
        let connection = Connection::connect(&scene.vhost.url(), ConnectionProperties::default()).await?;
        Ok(Self {
            channel: connection.create_channel().await?,
            _connection: connection,
        })
    }

    /// The next `count` messages, by their ids; one that comes twice is an error.
    async fn take(&self, count: usize) -> Result<BTreeMap<String, Message>> {
        let mut taken = BTreeMap::new();
        while taken.len() < count {
            let what = format!("message {} of {count} arrives", taken.len() + 1);
            let got = until(&what, LONG, async || {
                let options = BasicGetOptions { no_ack: true };
                Ok(self.channel.basic_get(QUEUE.into(), options).await?)
            });
            let delivery = got.await?.delivery;
            let id = delivery
                .properties
                .message_id()
                .clone()
                .context("no message_id")?;
            let message = Message {
                exchange: delivery.exchange.to_string(),
                routing_key: delivery.routing_key.to_string(),
                properties: delivery.properties,
                body: delivery.data,
            };
            ensure!(
                taken.insert(id.to_string(), message).is_none(),
                "{id} arrived twice"
            );
        }
        Ok(taken)
    }

    async fn one(&self) -> Result<Message> {
        let mut taken = self.take(1).await?;
        taken.pop_first().map(|(_, message)| message).context("none")
    }
}

/// A scene whose tables are made by `ddl`, with publication, slot, `exchange` and a queue that takes everything.
async fn scene(ddl: &str, tables: &[&str], exchange: &str, init: &[&str]) -> Result<Scene> {
    let scene = Scene::shared().await?;
    scene.database.execute(ddl).await?;
    let mut args: Vec<&str> = tables.iter().flat_map(|table| ["--table", table]).collect();
    args.extend(init);
    scene.verb("init", &args).await?.success()?;
    declare(&scene.vhost.url(), exchange, QUEUE, QueueKind::Classic, &["#"]).await?;
    Ok(scene)
}

/// A small outbox table with a payload of the type `payload`, and further columns.
fn table(name: &str, payload: &str, more: &str) -> String {
    format!(
        "CREATE TABLE {name} (id bigint GENERATED ALWAYS AS IDENTITY, event_id uuid DEFAULT gen_random_uuid(), \
         aggregate_type text DEFAULT 'order', aggregate_id text DEFAULT '7', event_type text DEFAULT 'created', \
         payload {payload} {more});"
    )
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

fn names(list: &[&str]) -> BTreeSet<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

/// Documents that a careless way through a JSON library would change.
const DOCUMENTS: [&str; 13] = [
    r#"{"n":1234567890123456789012345678901234567890}"#,
    r#"{"n":0.1234567890123456789012345678901234567890, "z":1.10, "e":1E+2}"#,
    r#"{"a":1,"a":2}"#,
    "{\"line\":\"a\u{2028}b\u{2029}c\"}",
    "{\"emoji\":\"\u{1f600}\u{1f1e9}\u{1f1ea}\", \"rtl\":\"\u{202e}abc\"}",
    r#"{"escaped":"\u00e9\ud83d\ude00\"\\\/\n"}"#,
    r#"{"t":[]}"#,
    r#"{"a":null}"#,
    r#"  { "spaces" :  [ 1 , 2 ]  }  "#,
    "null",
    "\"just a text\"",
    "-0",
    r#"{"z":1,"y":2,"x":{"b":[{}],"a":false}}"#,
];

/// Texts that somebody might take for something else.
const TEXTS: [&str; 6] = [
    "",
    " trailing ",
    "\\x41",
    "\\N",
    "tab\tnew\nline\r\u{1}\u{7f}",
    "caf\u{e9} \u{fffd} \u{1f600}",
];

fn binaries() -> Vec<Vec<u8>> {
    let all: Vec<u8> = (0..=255).collect();
    let big: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..))
        .take(1 << 20)
        .collect();
    vec![all, Vec::new(), big, b"\\x41".to_vec(), b"\\000\\134".to_vec()]
}

/// Tables of [`all_types`]: name, type of the payload, content type.
const TYPES: [(&str, &str, &str); 6] = [
    ("ob_json", "json", "application/json"),
    ("ob_jsonb", "jsonb", "application/json"),
    ("ob_domain", "document", "application/json"),
    ("ob_text", "text", "text/plain"),
    ("ob_varchar", "varchar(1000)", "text/plain"),
    ("ob_bytea", "bytea", "application/octet-stream"),
];

/// A scene with a table for each type of payload.
async fn all_types() -> Result<Scene> {
    let mut ddl = "CREATE DOMAIN document AS jsonb CHECK (VALUE IS NOT NULL);".to_owned();
    ddl.extend(TYPES.iter().map(|(name, kind, _)| table(name, kind, "")));
    let names: Vec<&str> = TYPES.iter().map(|(name, ..)| *name).collect();
    scene(&ddl, &names, "events", &[]).await
}

fn all_tables() -> Vec<&'static str> {
    TYPES.iter().flat_map(|(name, ..)| ["--table", name]).collect()
}

/// Inserts every value into every table that takes it; returns body and content type by event id. Where the type keeps
/// what it is given, the body is what was written, and the database is not asked.
async fn insert_all(scene: &Scene) -> Result<BTreeMap<String, (Vec<u8>, &'static str)>> {
    let client = scene.database.connect().await?;
    let mut expected = BTreeMap::new();
    for (name, kind, content_type) in TYPES {
        if kind == "bytea" {
            let insert = format!("INSERT INTO {name} (payload) VALUES ($1) RETURNING event_id::text");
            for bytes in binaries() {
                let row = client.query_one(&insert, &[&bytes]).await?;
                expected.insert(row.get(0), (bytes, content_type));
            }
            continue;
        }
        let texts = TEXTS.iter().filter(|_| content_type == "text/plain");
        let insert = format!(
            "INSERT INTO {name} (payload) VALUES ($1::text::{kind}) \
             RETURNING event_id::text, convert_to(payload::text, 'UTF8')"
        );
        for written in DOCUMENTS.iter().chain(texts) {
            let row = client.query_one(&insert, &[written]).await?;
            let (id, printed): (String, Vec<u8>) = (row.get(0), row.get(1));
            let keeps = !matches!(kind, "jsonb" | "document");
            ensure!(
                !keeps || printed == written.as_bytes(),
                "{kind} changed {written}"
            );
            expected.insert(id, (printed, content_type));
        }
    }
    Ok(expected)
}

fn assert_bodies(
    expected: &BTreeMap<String, (Vec<u8>, &'static str)>,
    got: &BTreeMap<String, Message>,
) -> Result<()> {
    for (id, (body, content_type)) in expected {
        let message = got.get(id).with_context(|| format!("{id} is missing"))?;
        ensure!(
            message.body == *body,
            "body {:?} instead of {:?}",
            message.text(),
            String::from_utf8_lossy(body)
        );
        ensure!(
            message.content_type() == *content_type,
            "{}",
            message.content_type()
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_is_the_payload_byte_for_byte_for_every_type_of_column() -> Result<()> {
    let scene = all_types().await?;
    let expected = insert_all(&scene).await?;
    let getter = Getter::open(&scene).await?;
    let _tailpost = scene.run_ready(&all_tables()).await?;
    assert_bodies(&expected, &getter.take(expected.len()).await?)
}

/// `ALTER ROLE … IN DATABASE` so that no other test's sessions see it.
#[tokio::test(flavor = "multi_thread")]
async fn no_default_of_a_role_or_a_database_changes_a_value() -> Result<()> {
    let scene = all_types().await?;
    let name = scene.database.name();
    let more = ", f8 float8, f4 float4, at timestamptz, day date, span interval, created_at timestamptz";
    scene
        .database
        .execute(&format!(
            "{} ALTER PUBLICATION {} ADD TABLE ob_more;
             ALTER ROLE postgres IN DATABASE {name} SET bytea_output = escape;
             ALTER ROLE postgres IN DATABASE {name} SET DateStyle = 'German, DMY';
             ALTER ROLE postgres IN DATABASE {name} SET client_encoding = LATIN1;
             ALTER ROLE postgres IN DATABASE {name} SET IntervalStyle = iso_8601;
             ALTER DATABASE {name} SET TimeZone = 'Asia/Kolkata';
             ALTER DATABASE {name} SET extra_float_digits = 0;
             ALTER DATABASE {name} SET standard_conforming_strings = off;
             ALTER DATABASE {name} SET quote_all_identifiers = on",
            table("ob_more", "bytea", more),
            scene.slot
        ))
        .await?;
    let client = scene.database.connect().await?;
    let shown: String = client.query_one("SHOW DateStyle", &[]).await?.get(0);
    ensure!(shown.contains("German"), "the defaults are not in force: {shown}");
    let mut expected = insert_all(&scene).await?;
    let insert = "INSERT INTO ob_more (payload, f8, f4, at, day, span, created_at) VALUES ('\\x00ff', 0.1::float8 + 0.2::float8, \
                  0.1, '2024-02-03 09:35:06.123456+00', '2024-02-03', '1 day 02:03:04', '2024-02-29 23:59:59.5-03:30') \
                  RETURNING event_id::text, payload";
    let row = client
        .query_one(&insert.replace("'\\x00ff'", "E'\\\\x00ff'"), &[])
        .await?;
    let id: String = row.get(0);
    expected.insert(id.clone(), (row.get(1), "application/octet-stream"));
    let mut args = all_tables();
    args.extend(["--table", "ob_more", "--header", "f8=f8", "--header", "f4=f4"]);
    args.extend([
        "--header",
        "at=at",
        "--header",
        "day=day",
        "--header",
        "span=span",
    ]);
    let getter = Getter::open(&scene).await?;
    let _tailpost = scene.run_ready(&args).await?;
    let got = getter.take(expected.len()).await?;
    assert_bodies(&expected, &got)?;
    let message = &got[&id];
    ensure!(message.body == [0, 255], "{:?}", message.body);
    let headers = message.headers();
    let values = [
        ("f8", AMQPValue::Double(0.300_000_000_000_000_04)),
        ("f4", AMQPValue::Double(0.1)),
        ("at", text("2024-02-03 09:35:06.123456+00")),
        ("day", text("2024-02-03")),
        ("span", text("1 day 02:03:04")),
        ("occurred_at", text("2024-03-01T03:29:59.500000Z")),
    ];
    for (name, value) in values {
        ensure!(
            headers.get(name) == Some(&value),
            "{name}: {:?}",
            headers.get(name)
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn properties_and_headers_are_those_of_the_row_with_their_own_types() -> Result<()> {
    let scene = Scene::shared().await?;
    scene.prepare().await?;
    scene
        .database
        .execute(
            "ALTER TABLE outbox_event ADD small smallint, ADD flag boolean, ADD tenant uuid, ADD share float8, ADD price numeric, \
             ADD nothing text, ADD huge bigint",
        )
        .await?;
    let client = scene.database.connect().await?;
    let place = "SELECT pg_current_wal_insert_lsn()::text";
    let before: String = client.query_one(place, &[]).await?.get(0);
    let headers = r#"{"text":"caf\u00e9","n":42,"big":12345678901234567890,"f":1.5,"yes":true,"nil":null,"list":[1,"x"],"map":{"k":-1}}"#;
    let values: [&(dyn ToSql + Sync); 1] = [&headers];
    let insert = "WITH first AS (
            INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, aggregate_version, event_type, payload, headers, trace_id,
                                      traceparent, created_at, small, flag, tenant, share, price, huge)
            VALUES ('0190a5b2-0000-7000-8000-000000000001', 'order', '4711', 3, 'created', '{}', $1::text::jsonb, 'trace-1', '00-ab-cd-01',
                    '2024-02-03 09:35:06.987654+00', -7, false, '0190A5B2-0000-7000-8000-00000000000F', 0.25, 12.50, 9223372036854775807))
        INSERT INTO outbox_event (event_id, aggregate_type, aggregate_id, event_type, payload, created_at)
        VALUES ('0190a5b2-0000-7000-8000-000000000002', 'order', '4711', 'paid', '{}', '1969-12-31 23:59:59.5+00')";
    client.execute(insert, &values).await?;
    let after: String = client.query_one(place, &[]).await?.get(0);
    let getter = Getter::open(&scene).await?;
    let flags =
        ["small", "flag", "tenant", "share", "price", "nothing", "huge"].map(|name| format!("{name}={name}"));
    let args: Vec<&str> = flags.iter().flat_map(|flag| ["--header", flag]).collect();
    let _tailpost = scene.run_ready(&args).await?;
    let got = getter.take(2).await?;
    let full = &got["0190a5b2-0000-7000-8000-000000000001"];
    let properties = &full.properties;
    let short = |text: &Option<lapin::types::ShortString>| text.as_ref().map(ToString::to_string);
    ensure!(short(properties.kind()).as_deref() == Some("created"));
    ensure!(short(properties.app_id()).as_deref() == Some("tailpost"));
    ensure!(*properties.timestamp() == Some(1_706_952_906), "{properties:?}");
    ensure!(*properties.delivery_mode() == Some(2));
    ensure!((full.exchange.as_str(), full.routing_key.as_str()) == ("events", "order.created"));
    let headers = full.headers();
    let list = AMQPValue::FieldArray(vec![AMQPValue::LongLongInt(1), text("x")].into());
    let mut map = lapin::types::FieldTable::default();
    map.insert("k".into(), AMQPValue::LongLongInt(-1));
    let position = headers.get("tailpost_position").cloned();
    let expected = [
        ("aggregate_type", text("order")),
        ("aggregate_id", text("4711")),
        ("aggregate_version", AMQPValue::LongLongInt(3)),
        ("trace_id", text("trace-1")),
        ("traceparent", text("00-ab-cd-01")),
        ("occurred_at", text("2024-02-03T09:35:06.987654Z")),
        ("timestamp_in_ms", AMQPValue::LongLongInt(1_706_952_906_987)),
        ("small", AMQPValue::LongLongInt(-7)),
        ("flag", AMQPValue::Boolean(false)),
        ("tenant", text("0190a5b2-0000-7000-8000-00000000000f")),
        ("share", AMQPValue::Double(0.25)),
        ("price", text("12.50")),
        ("huge", AMQPValue::LongLongInt(i64::MAX)),
        ("text", text("caf\u{e9}")),
        ("n", AMQPValue::LongLongInt(42)),
        ("big", text("12345678901234567890")),
        ("f", AMQPValue::Double(1.5)),
        ("yes", AMQPValue::Boolean(true)),
        ("nil", AMQPValue::Void),
        ("list", list),
        ("map", AMQPValue::FieldTable(map)),
        ("tailpost_position", position.context("no position")?),
    ];
    let expected: BTreeMap<String, AMQPValue> = expected
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    ensure!(headers == expected, "{headers:#?}");

    let bare = &got["0190a5b2-0000-7000-8000-000000000002"];
    // AMQP's timestamp is unsigned: the time before 1970 is in the headers only.
    ensure!(bare.properties.timestamp().is_none(), "{:?}", bare.properties);
    let wanted = [
        "aggregate_type",
        "aggregate_id",
        "occurred_at",
        "timestamp_in_ms",
        "tailpost_position",
    ];
    ensure!(bare.header_names() == names(&wanted), "{:?}", bare.header_names());
    ensure!(bare.headers()["timestamp_in_ms"] == AMQPValue::LongLongInt(-500));

    // Two rows of one transaction: one commit, two places.
    let place = |value: AMQPValue| -> Result<(u64, String)> {
        let AMQPValue::LongString(text) = value else {
            anyhow::bail!("{value:?}")
        };
        let text = String::from_utf8_lossy(text.as_bytes()).into_owned();
        let (commit, index) = text.rsplit_once(':').context("no index")?;
        Ok((lsn(commit)?, index.to_owned()))
    };
    let (first, second) = (
        place(expected["tailpost_position"].clone())?,
        place(bare.headers()["tailpost_position"].clone())?,
    );
    ensure!(
        first.0 == second.0 && (lsn(&before)?..lsn(&after)?).contains(&first.0),
        "{first:?} {second:?}"
    );
    ensure!(BTreeSet::from([first.1, second.1]) == names(&["0", "1"]));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_debezium_preset_gives_consumers_of_a_debezium_outbox_what_they_expect() -> Result<()> {
    let ddl = "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype varchar(255) NOT NULL, aggregateid varchar(255) NOT NULL, \
               type varchar(255) NOT NULL, payload jsonb)";
    let preset = ["--table", "outbox", "--preset", "debezium"];
    let scene = scene(ddl, &["outbox"], "outbox.event.order", &preset[2..]).await?;
    scene
        .database
        .execute("INSERT INTO outbox VALUES ('0190a5b2-0000-7000-8000-00000000000a', 'order', '4711', 'OrderCreated', '{\"b\": 1, \"a\":2.50}')")
        .await?;
    let getter = Getter::open(&scene).await?;
    let _tailpost = scene.run_ready(&preset).await?;
    let message = getter.one().await?;
    ensure!(
        message.exchange == "outbox.event.order" && message.routing_key.is_empty(),
        "{message:?}"
    );
    ensure!(message.text() == r#"{"a": 2.50, "b": 1}"#, "{}", message.text());
    ensure!(message.header_names() == names(&["id", "tailpost_position"]));
    ensure!(message.headers()["id"] == text("0190a5b2-0000-7000-8000-00000000000a"));
    ensure!(message.properties.kind().as_ref().map(|kind| kind.as_str()) == Some("OrderCreated"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envelope_holds_every_field_and_the_payload_as_the_database_prints_it() -> Result<()> {
    let more = ", aggregate_version bigint, trace_id text, created_at timestamptz";
    let tables = ["ob_json", "ob_text", "ob_bytea"];
    let ddl: String = ["json", "text", "bytea"]
        .iter()
        .zip(tables)
        .map(|(kind, name)| table(name, kind, more))
        .collect();
    let scene = scene(&ddl, &tables, "events", &[]).await?;
    scene
        .database
        .execute(
            "INSERT INTO ob_json (event_id, aggregate_version, trace_id, created_at, payload) VALUES
                 ('00000000-0000-4000-8000-000000000001', 12, E'q\"\\\\', '2024-02-03 09:35:06.1+00', '{ \"n\":12345678901234567890.10, \"n\":1 }');
             INSERT INTO ob_text (event_id, aggregate_id, payload) VALUES ('00000000-0000-4000-8000-000000000002', NULL, E'a\"b\\n\\\\');
             INSERT INTO ob_bytea (event_id, payload) VALUES ('00000000-0000-4000-8000-000000000003', '\\x00fffe')",
        )
        .await?;
    let getter = Getter::open(&scene).await?;
    let mut args: Vec<&str> = tables.iter().flat_map(|name| ["--table", name]).collect();
    args.extend(["--body", "envelope"]);
    let _tailpost = scene.run_ready(&args).await?;
    let got = getter.take(3).await?;
    let expected = [
        r#"{"eventId":"00000000-0000-4000-8000-000000000001","eventType":"created","aggregateType":"order","aggregateId":"7","aggregateVersion":12,"occurredAt":"2024-02-03T09:35:06.100000Z","traceId":"q\"\\","payload":{ "n":12345678901234567890.10, "n":1 }}"#,
        r#"{"eventId":"00000000-0000-4000-8000-000000000002","eventType":"created","aggregateType":"order","aggregateId":null,"aggregateVersion":null,"occurredAt":null,"traceId":null,"payload":"a\"b\n\\"}"#,
        r#"{"eventId":"00000000-0000-4000-8000-000000000003","eventType":"created","aggregateType":"order","aggregateId":"7","aggregateVersion":null,"occurredAt":null,"traceId":null,"payload":"AP/+"}"#,
    ];
    for (message, expected) in got.values().zip(expected) {
        ensure!(message.text() == expected, "{}", message.text());
        ensure!(message.content_type() == "application/json");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn column_reads_a_field_from_any_column_and_templates_name_any_other() -> Result<()> {
    let ddl = "CREATE TABLE \"Odd Table\" (\"Event Id\" text, kind text, key text, what text, body json, \"Tenant \u{fc}\" text, key_of_its_own text, \
               happened bigint, trace_id text)";
    let scene = scene(
        ddl,
        &["\"Odd Table\""],
        "events.eu",
        &[
            "--column",
            "event_id=Event Id",
            "--column",
            "aggregate_type=kind",
            "--column",
            "aggregate_id=key",
        ],
    )
    .await?;
    scene
        .database
        .execute(
            "INSERT INTO \"Odd Table\" VALUES ('e-1', 'order', '1', 'created', '{\"a\":1}', 'eu', NULL, 1706952906123, 't'),
                                             ('e-2', 'order', '1', 'created', '{\"a\":2}', 'eu', 'its.own', NULL, 't')",
        )
        .await?;
    let columns = [
        "event_id=Event Id",
        "aggregate_type=kind",
        "aggregate_id=key",
        "event_type=what",
        "payload=body",
        "routing_key=key_of_its_own",
        "occurred_at=happened",
        "trace_id=",
    ];
    let mut args = vec!["--table", "\"Odd Table\""];
    args.extend(columns.iter().flat_map(|column| ["--column", column]));
    args.extend(["--exchange", "events.{Tenant \u{fc}}"]);
    args.extend(["--routing-key", "{{{aggregate_type}}}.{Tenant \u{fc}}.{what}"]);
    args.extend(["--content-type", "application/vnd.shop+json"]);
    let getter = Getter::open(&scene).await?;
    let _tailpost = scene.run_ready(&args).await?;
    let got = getter.take(2).await?;
    let (first, second) = (&got["e-1"], &got["e-2"]);
    ensure!(
        (first.exchange.as_str(), first.routing_key.as_str()) == ("events.eu", "{order}.eu.created"),
        "{first:?}"
    );
    ensure!(second.routing_key == "its.own", "{second:?}");
    ensure!(first.text() == r#"{"a":1}"# && first.content_type() == "application/vnd.shop+json");
    ensure!(*first.properties.timestamp() == Some(1_706_952_906));
    ensure!(first.headers()["occurred_at"] == text("2024-02-03T09:35:06.123000Z"));
    // `trace_id=`: the column is not read though it has the field's name.
    ensure!(
        !first.header_names().contains("trace_id"),
        "{:?}",
        first.header_names()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_and_types_may_be_enums_uuids_and_numbers_and_an_aggregate_id_may_be_null() -> Result<()> {
    let ddl = "CREATE TYPE kind AS ENUM ('order', 'Customer \u{e9}');
               CREATE TABLE ob (event_id bigint, aggregate_type kind, aggregate_id uuid, event_type kind, payload jsonb)";
    let scene = scene(ddl, &["ob"], "events", &[]).await?;
    scene
        .database
        .execute(
            "INSERT INTO ob VALUES (1, 'order', '0190A5B2-0000-7000-8000-00000000000A', 'Customer \u{e9}', '{}'),
                                   (2, 'Customer \u{e9}', NULL, 'order', '{}')",
        )
        .await?;
    let getter = Getter::open(&scene).await?;
    let _tailpost = scene.run_ready(&["--table", "ob"]).await?;
    let got = getter.take(2).await?;
    let (first, second) = (&got["1"], &got["2"]);
    ensure!(first.routing_key == "order.Customer \u{e9}", "{first:?}");
    ensure!(first.headers()["aggregate_id"] == text("0190a5b2-0000-7000-8000-00000000000a"));
    ensure!(second.headers()["aggregate_type"] == text("Customer \u{e9}"));
    ensure!(
        second.header_names() == names(&["aggregate_type", "tailpost_position"]),
        "{second:?}"
    );
    Ok(())
}
