//! Publishes N messages of 500 bytes with a bounded window, and prints the rate and the CPU time of each: `sink` through
//! `RabbitSink`, `bare` through lapin alone, as the measure of what the sink costs.
//!
//! `cargo run --release --example flood -- amqp://localhost/%2f sink|bare [N] [WINDOW]`
#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::error::Error;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{FuturesUnordered, StreamExt};
use lapin::options::{
    BasicPublishOptions, ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use tailpost_outbox::{HeaderValue, Message, headers};
use tailpost_rabbitmq::{BrokerUrls, RabbitSink, SinkOptions};
use tailpost_relay::{Outcome, Sink};
use tokio::time::{Duration, Instant};

const EXCHANGE: &str = "flood";
const BODY: usize = 500;
const MANDATORY: BasicPublishOptions = BasicPublishOptions {
    mandatory: true,
    immediate: false,
};

type Outcomes = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcomes {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("which broker?")?;
    let kind = args.next().unwrap_or_else(|| "sink".into());
    let count: u64 = args.next().map_or(Ok(100_000), |text| text.parse())?;
    let window: u64 = args.next().map_or(Ok(1000), |text| text.parse())?;
    let channel = prepare(&url).await?;
    let (begun, cpu) = (Instant::now(), cpu_time()?);
    if kind == "bare" {
        bare(&channel, count, window as usize).await?;
    } else {
        sink(&url, count, window).await?;
    }
    let (seconds, cpu) = (begun.elapsed().as_secs_f64(), cpu_time()? - cpu);
    let rate = count as f64 / seconds;
    let each = cpu.as_secs_f64() * 1e6 / count as f64;
    println!("{kind}: {count} messages in {seconds:.2} s, {rate:.0} per second, {each:.1} us of CPU each");
    Ok(())
}

/// A queue that keeps nothing for long, so that the broker's disk is not what is measured.
async fn prepare(url: &str) -> Result<Channel, Box<dyn Error>> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let mut limit = FieldTable::default();
    limit.insert("x-max-length".into(), 1000.into());
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            EXCHANGE.into(),
            ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        )
        .await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    };
    channel.queue_declare(EXCHANGE.into(), durable, limit).await?;
    let bind = QueueBindOptions::default();
    channel
        .queue_bind(
            EXCHANGE.into(),
            EXCHANGE.into(),
            "#".into(),
            bind,
            FieldTable::default(),
        )
        .await?;
    Ok(channel)
}

async fn sink(url: &str, count: u64, window: u64) -> Outcomes {
    let urls = BrokerUrls::parse(url).map_err(|faults| format!("{faults:?}"))?;
    let options = SinkOptions {
        connection_name: "tailpost/flood".into(),
        max_message_bytes: 1 << 24,
        exchange: None,
    };
    let mut sink = RabbitSink::new(urls, options);
    sink.connect().await?;
    let body = Bytes::from(vec![b'x'; BODY]);
    let (mut sent, mut confirmed, mut outcomes) = (0, 0, Vec::new());
    while confirmed < count {
        while sent < count && sent - confirmed < window {
            let message = message(sent, body.clone());
            if let Some(why) = sink.refuse(&message) {
                return Err(why.into());
            }
            sink.publish(sent, Arc::new(message));
            sent += 1;
        }
        sink.next(&mut outcomes).await?;
        for outcome in outcomes.drain(..) {
            match outcome {
                Outcome::Confirmed(_) => confirmed += 1,
                other => return Err(format!("{other:?}").into()),
            }
        }
    }
    sink.close().await;
    Ok(())
}

/// A message with the headers of an ordinary event.
fn message(number: u64, body: Bytes) -> Message {
    let text = |text: String| HeaderValue::Text(text);
    Message {
        exchange: EXCHANGE.into(),
        routing_key: "order.placed".into(),
        message_id: format!("{number:032x}"),
        event_type: Some("placed".into()),
        content_type: Some("application/json".into()),
        timestamp: Some(1_700_000_000),
        headers: vec![
            (headers::AGGREGATE_TYPE.into(), text("order".into())),
            (headers::AGGREGATE_ID.into(), text(number.to_string())),
            (
                headers::OCCURRED_AT.into(),
                text("2024-02-03T09:35:06.123456Z".into()),
            ),
            (
                headers::TIMESTAMP_IN_MS.into(),
                HeaderValue::Integer(1_700_000_000_000),
            ),
            (headers::POSITION.into(), text(format!("0/{number:X}:0"))),
        ],
        body,
    }
}

async fn bare(channel: &Channel, count: u64, window: usize) -> Outcomes {
    let body = vec![b'x'; BODY];
    let mut confirms = FuturesUnordered::new();
    for number in 0..count {
        if confirms.len() >= window {
            expect_ack(confirms.next().await)?;
        }
        let (body, properties) = (&body, properties(number));
        confirms.push(async move {
            channel
                .basic_publish(
                    EXCHANGE.into(),
                    "order.placed".into(),
                    MANDATORY,
                    body,
                    properties,
                )
                .await?
                .await
        });
    }
    while !confirms.is_empty() {
        expect_ack(confirms.next().await)?;
    }
    Ok(())
}

/// The same on the wire as [`message`].
fn properties(number: u64) -> BasicProperties {
    let text = |text: String| AMQPValue::LongString(text.into());
    let mut table = FieldTable::default();
    table.insert(headers::AGGREGATE_TYPE.into(), text("order".into()));
    table.insert(headers::AGGREGATE_ID.into(), text(number.to_string()));
    table.insert(
        headers::OCCURRED_AT.into(),
        text("2024-02-03T09:35:06.123456Z".into()),
    );
    table.insert(
        headers::TIMESTAMP_IN_MS.into(),
        AMQPValue::LongLongInt(1_700_000_000_000),
    );
    table.insert(headers::POSITION.into(), text(format!("0/{number:X}:0")));
    BasicProperties::default()
        .with_delivery_mode(2)
        .with_message_id(format!("{number:032x}").into())
        .with_app_id("tailpost".into())
        .with_type("placed".into())
        .with_content_type("application/json".into())
        .with_timestamp(1_700_000_000)
        .with_headers(table)
}

fn expect_ack(confirm: Option<lapin::Result<Confirmation>>) -> Outcomes {
    match confirm {
        Some(Ok(Confirmation::Ack(None))) => Ok(()),
        other => Err(format!("{other:?}").into()),
    }
}

/// User and system time of this process (proc(5), fields 14 and 15, in ticks of 10 ms).
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(str::parse::<u64>)
        .sum::<Result<u64, _>>()?;
    Ok(Duration::from_millis(ticks * 10))
}
