//! The broker's greeting, `connection.start`: who it is and how it lets clients log in.
//!
//! Wire format: AMQP 0-9-1 specification, 2.3.5 (frames), 1.4.2.1 (`connection.start`).

use std::sync::{Arc, OnceLock};

use lapin::types::parsing::{parse_field_table, parse_long_string};
use lapin::types::{AMQPValue, FieldTable};

/// Type, channel and size of a frame.
const FRAME_HEADER: usize = 7;
/// Frame type 1 (method) on channel 0.
const METHOD_ON_CHANNEL_0: [u8; 3] = [1, 0, 0];
/// Class 10, method 10, version 0-9: what stands before the server's properties.
const START: [u8; 6] = [0, 10, 0, 10, 0, 9];
/// A greeting is some 500 bytes; more than this is none.
const LONGEST: usize = 64 * 1024;

/// What the broker says of itself. Texts are empty where it says nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) product: String,
    pub(crate) version: String,
    /// Name of the cluster: the same on all of its nodes.
    pub(crate) cluster: String,
    /// SASL mechanisms offered.
    pub(crate) mechanisms: Vec<String>,
}

/// Gathers the first frame that arrives.
pub(crate) struct Listener {
    heard: Vec<u8>,
    greeting: Arc<OnceLock<Greeting>>,
}

impl Listener {
    pub(crate) fn new(greeting: Arc<OnceLock<Greeting>>) -> Self {
        Self {
            heard: Vec::new(),
            greeting,
        }
    }

    /// Takes what was read. Returns true when there is nothing more to hear.
    pub(crate) fn hear(&mut self, read: &[u8]) -> bool {
        self.heard.extend_from_slice(read);
        let Some(size) = self.heard.get(3..FRAME_HEADER) else {
            return false;
        };
        let size = size.iter().fold(0, |size, &byte| size << 8 | usize::from(byte));
        if !self.heard.starts_with(&METHOD_ON_CHANNEL_0) || size > LONGEST {
            return true;
        }
        let Some(payload) = self.heard.get(FRAME_HEADER..FRAME_HEADER + size) else {
            return false;
        };
        if let Some(greeting) = parse(payload) {
            // Set once: a listener hears one greeting.
            self.greeting.get_or_init(|| greeting);
        }
        true
    }
}

fn parse(payload: &[u8]) -> Option<Greeting> {
    let rest = payload.strip_prefix(&START)?;
    let (rest, properties) = parse_field_table(rest).ok()?;
    let (_, mechanisms) = parse_long_string(rest).ok()?;
    Some(Greeting {
        product: text(&properties, "product"),
        version: text(&properties, "version"),
        cluster: text(&properties, "cluster_name"),
        mechanisms: mechanisms
            .to_string()
            .split_whitespace()
            .map(str::to_owned)
            .collect(),
    })
}

fn text(properties: &FieldTable, name: &str) -> String {
    properties
        .inner()
        .get(name)
        .and_then(AMQPValue::as_long_string)
        .map(ToString::to_string)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use amq_protocol::frame::{AMQPFrame, WriteContext, gen_frame};
    use lapin::protocol::{AMQPClass, connection};

    use super::*;

    fn frame() -> Vec<u8> {
        let mut properties = FieldTable::default();
        for (name, value) in [
            ("product", "RabbitMQ"),
            ("version", "4.1.0"),
            ("cluster_name", "rabbit@one"),
        ] {
            properties.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        properties.insert(
            "capabilities".into(),
            AMQPValue::FieldTable(FieldTable::default()),
        );
        let start = AMQPClass::Connection(connection::AMQPMethod::Start(connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties: properties,
            mechanisms: "PLAIN AMQPLAIN".into(),
            locales: "en_US".into(),
        }));
        gen_frame(&AMQPFrame::Method(0, start))(WriteContext::from(Vec::new()))
            .unwrap()
            .into_inner()
            .0
    }

    #[test]
    fn greeting_is_heard_however_it_is_cut() {
        let mut bytes = frame();
        bytes.extend([8, 0, 0]);
        for cut in 0..bytes.len() {
            let greeting = Arc::new(OnceLock::new());
            let mut listener = Listener::new(greeting.clone());
            if !listener.hear(&bytes[..cut]) {
                assert!(listener.hear(&bytes[cut..]));
            }
            let greeting = greeting.get().unwrap();
            assert_eq!(
                (greeting.product.as_str(), greeting.version.as_str()),
                ("RabbitMQ", "4.1.0")
            );
            assert_eq!(greeting.cluster, "rabbit@one");
            assert_eq!(greeting.mechanisms, ["PLAIN", "AMQPLAIN"]);
        }
    }

    #[test]
    fn what_is_no_greeting_is_not_gathered_for_ever() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request"[..],
            b"AMQP\0\0\x09\x01",
            &[1, 0, 0, 255, 255, 255, 255],
        ] {
            let greeting = Arc::new(OnceLock::new());
            assert!(Listener::new(greeting.clone()).hear(bytes));
            assert_eq!(greeting.get(), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_the_listener_panic(bytes in proptest::collection::vec(0u8.., 0..200), cut in 0usize..200) {
            let mut listener = Listener::new(Arc::default());
            let (first, second) = bytes.split_at(cut.min(bytes.len()));
            let _ = listener.hear(first) || listener.hear(second);
            let mut start = frame();
            let at = cut % start.len();
            start[at] ^= bytes.first().copied().unwrap_or(1);
            let _ = Listener::new(Arc::default()).hear(&start);
        }
    }
}
