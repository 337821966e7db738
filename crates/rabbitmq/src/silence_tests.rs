//! Goal: with [`crate::SILENCED_TARGETS`] silent, no payload and no password reaches a log at any level.
//! Method: a subscriber that takes everything, a returned message and a login with canaries in them.

use std::fmt::{Debug, Write};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tailpost_outbox::{HeaderValue, Message, headers};
use tailpost_relay::{Outcome, Sink};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::scripted_broker::Port;
use crate::{BrokerUrls, RabbitSink, SILENCED_TARGETS, SinkOptions};

const CANARY: &str = "canary-4711";

/// The targets of all events and spans that showed a canary.
static SHOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Watch;

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, _: &Field, value: &dyn Debug) {
        write!(self.0, "{value:?} ").unwrap();
    }
}

impl Text {
    fn check(self, target: &str) {
        let bytes = format!("{:?}", CANARY.as_bytes());
        let as_numbers = bytes.trim_matches(['[', ']']);
        if self.0.contains(CANARY) || self.0.contains(as_numbers) {
            SHOWN.lock().unwrap().push(target.to_owned());
        }
    }
}

impl Subscriber for Watch {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = Text(String::new());
        span.record(&mut text);
        text.check(span.metadata().target());
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        text.check(event.metadata().target());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn is_silenced(target: &str) -> bool {
    SILENCED_TARGETS.iter().any(|silent| {
        target
            .strip_prefix(silent)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn payloads_and_passwords_are_logged_by_silenced_targets_only() {
    tracing::subscriber::set_global_default(Watch).unwrap();
    let port = Port::open().await;
    let url = port.url().replace("amqp://", &format!("amqp://app:{CANARY}@"));
    let options = SinkOptions {
        connection_name: "tailpost/test".into(),
        max_message_bytes: 1 << 20,
        exchange: None,
    };
    let mut sink = RabbitSink::new(BrokerUrls::parse(&url).unwrap(), options);
    let (connected, mut broker) = tokio::join!(sink.connect(), port.accept(131_072));
    connected.unwrap();
    sink.publish(
        1,
        Arc::new(Message {
            exchange: "events".into(),
            routing_key: "nowhere".into(),
            message_id: "m1".into(),
            event_type: None,
            content_type: None,
            timestamp: None,
            headers: vec![(headers::POSITION.into(), HeaderValue::Text("0/1:0".into()))],
            body: Bytes::from_static(CANARY.as_bytes()),
        }),
    );
    let published = broker.published().await;
    broker.give_back(&published).await;
    broker.ack(1, false).await;
    let mut outcomes = Vec::new();
    sink.next(&mut outcomes).await.unwrap();
    assert!(matches!(outcomes[..], [Outcome::Returned { .. }]));
    drop(sink);
    broker.ended().await;

    let shown = SHOWN.lock().unwrap();
    assert!(
        shown.iter().any(|target| target == "lapin::returned_messages"),
        "the test sees nothing: {shown:?}"
    );
    let leaks: Vec<_> = shown.iter().filter(|target| !is_silenced(target)).collect();
    assert!(leaks.is_empty(), "{leaks:?}");
}
