//! A broker for tests that sends exactly what a test tells it to: lapin's behaviour on which [`crate::confirms`] builds
//! is tested with lapin itself.

use amq_protocol::frame::{AMQPContentHeader, AMQPFrame, WriteContext, gen_frame, parse_frame};
use lapin::BasicProperties;
use lapin::protocol::{AMQPClass, basic, channel, confirm, connection};
use lapin::types::{AMQPValue, FieldTable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The only channel.
const CHANNEL: u16 = 1;

/// A publish as it arrived.
pub(crate) struct Published {
    pub(crate) message_id: String,
    properties: BasicProperties,
    body: Vec<u8>,
}

/// One accepted connection.
pub(crate) struct Broker {
    stream: TcpStream,
    read: Vec<u8>,
}

pub(crate) struct Port(TcpListener);

impl Port {
    pub(crate) async fn open() -> Self {
        Self(TcpListener::bind("127.0.0.1:0").await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        format!("amqp://{}", self.0.local_addr().unwrap())
    }

    /// Accepts a connection and answers everything up to the channel in confirm mode. `frame_max` is what it proposes.
    pub(crate) async fn accept(&self, frame_max: u32) -> Broker {
        let (mut stream, _) = self.0.accept().await.unwrap();
        let mut header = [0; 8];
        stream.read_exact(&mut header).await.unwrap();
        let mut broker = Broker {
            stream,
            read: Vec::new(),
        };
        broker.greet(frame_max).await;
        broker
    }
}

impl Broker {
    async fn greet(&mut self, frame_max: u32) {
        let mut server_properties = FieldTable::default();
        server_properties.insert("cluster_name".into(), AMQPValue::LongString("scripted".into()));
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            server_properties,
            mechanisms: "PLAIN".into(),
            locales: "en_US".into(),
        };
        self.send(0, AMQPClass::Connection(connection::AMQPMethod::Start(start)))
            .await;
        self.method().await;
        let tune = connection::Tune {
            channel_max: 9,
            frame_max,
            heartbeat: 0,
        };
        self.send(0, AMQPClass::Connection(connection::AMQPMethod::Tune(tune)))
            .await;
        self.method().await;
        self.method().await;
        self.send(
            0,
            AMQPClass::Connection(connection::AMQPMethod::OpenOk(connection::OpenOk {})),
        )
        .await;
        self.method().await;
        self.send(
            CHANNEL,
            AMQPClass::Channel(channel::AMQPMethod::OpenOk(channel::OpenOk {})),
        )
        .await;
        self.method().await;
        self.send(
            CHANNEL,
            AMQPClass::Confirm(confirm::AMQPMethod::SelectOk(confirm::SelectOk {})),
        )
        .await;
    }

    pub(crate) async fn published(&mut self) -> Published {
        let AMQPClass::Basic(basic::AMQPMethod::Publish(publish)) = self.method().await else {
            panic!("not a publish")
        };
        assert!(publish.mandatory);
        let AMQPFrame::Header(_, header) = self.frame().await else {
            panic!("not a content header")
        };
        let mut body = Vec::new();
        while (body.len() as u64) < header.body_size {
            let AMQPFrame::Body(_, piece) = self.frame().await else {
                panic!("not a body")
            };
            body.extend(piece);
        }
        let message_id = header.properties.message_id().as_ref().unwrap().to_string();
        Published {
            message_id,
            properties: header.properties,
            body,
        }
    }

    pub(crate) async fn give_back(&mut self, message: &Published) {
        let method = basic::Return {
            reply_code: 312,
            reply_text: "NO_ROUTE".into(),
            exchange: "events".into(),
            routing_key: "nowhere".into(),
        };
        self.send(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Return(method)))
            .await;
        let (body_size, properties) = (message.body.len() as u64, message.properties.clone());
        self.write(AMQPFrame::Header(
            CHANNEL,
            AMQPContentHeader {
                class_id: 60,
                body_size,
                properties,
            },
        ))
        .await;
        if body_size > 0 {
            self.write(AMQPFrame::Body(CHANNEL, message.body.clone())).await;
        }
    }

    pub(crate) async fn ack(&mut self, delivery_tag: u64, multiple: bool) {
        let ack = basic::Ack {
            delivery_tag,
            multiple,
        };
        self.send(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Ack(ack)))
            .await;
    }

    pub(crate) async fn nack(&mut self, delivery_tag: u64) {
        let nack = basic::Nack {
            delivery_tag,
            multiple: false,
            requeue: false,
        };
        self.send(CHANNEL, AMQPClass::Basic(basic::AMQPMethod::Nack(nack)))
            .await;
    }

    pub(crate) async fn block(&mut self) {
        let blocked = connection::Blocked {
            reason: "low on memory".into(),
        };
        self.send(0, AMQPClass::Connection(connection::AMQPMethod::Blocked(blocked)))
            .await;
    }

    pub(crate) async fn unblock(&mut self) {
        let unblocked = connection::Unblocked {};
        self.send(
            0,
            AMQPClass::Connection(connection::AMQPMethod::Unblocked(unblocked)),
        )
        .await;
    }

    pub(crate) async fn close_channel(&mut self, reply_code: u16, reply_text: &str) {
        let close = channel::Close {
            reply_code,
            reply_text: reply_text.into(),
            class_id: 60,
            method_id: 40,
        };
        self.send(CHANNEL, AMQPClass::Channel(channel::AMQPMethod::Close(close)))
            .await;
    }

    /// Waits for the other side to end the connection, whatever it sends before.
    pub(crate) async fn ended(mut self) {
        let mut rest = [0; 4096];
        while self.stream.read(&mut rest).await.is_ok_and(|read| read > 0) {}
    }

    async fn send(&mut self, channel: u16, method: AMQPClass) {
        self.write(AMQPFrame::Method(channel, method)).await;
    }

    async fn write(&mut self, frame: AMQPFrame) {
        let bytes = gen_frame(&frame)(WriteContext::from(Vec::new()))
            .unwrap()
            .into_inner()
            .0;
        self.stream.write_all(&bytes).await.unwrap();
    }

    async fn method(&mut self) -> AMQPClass {
        match self.frame().await {
            AMQPFrame::Method(_, method) => method,
            other => panic!("no method: {other}"),
        }
    }

    async fn frame(&mut self) -> AMQPFrame {
        loop {
            if let Ok((rest, frame)) = parse_frame(self.read.as_slice()) {
                let used = self.read.len() - rest.len();
                self.read.drain(..used);
                return frame;
            }
            assert_ne!(
                self.stream.read_buf(&mut self.read).await.unwrap(),
                0,
                "the connection ended"
            );
        }
    }
}
