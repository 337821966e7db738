//! [`RabbitSink`]: RabbitMQ as the relay's sink.

use std::future::{pending, poll_fn};
use std::sync::Arc;

use tailpost_outbox::Message;
use tailpost_relay::{Failure, Outcome, Seq, Sink};

use crate::dial::Link;
use crate::error::SinkError;
use crate::generation::Generation;
use crate::greeting::Greeting;
use crate::properties::{self, DEFAULT_FRAME_MAX};
use crate::topology;
use crate::url::{BrokerUrl, BrokerUrls};

/// How the sink behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkOptions {
    /// The client property `connection_name`, which the broker's lists show: `tailpost/NAME@HOST`.
    pub connection_name: String,
    /// Largest body, in bytes; a larger one is refused before it is sent.
    pub max_message_bytes: usize,
    /// The exchange, where all messages go to one: looked up at each connect, so that a wrong one is known before the first
    /// event. `None` where it depends on the event.
    pub exchange: Option<String>,
}

/// Publishes to RabbitMQ over AMQP 0-9-1: one connection and one channel at a time, publisher confirms, `mandatory`,
/// persistent. The URLs are taken in turn, one at each connect.
pub struct RabbitSink {
    urls: BrokerUrls,
    options: SinkOptions,
    turn: usize,
    cluster: Option<String>,
    frame_max: u32,
    generation: Option<Generation>,
}

impl RabbitSink {
    /// A sink without a connection yet.
    pub fn new(urls: BrokerUrls, options: SinkOptions) -> Self {
        Self {
            urls,
            options,
            turn: 0,
            cluster: None,
            frame_max: DEFAULT_FRAME_MAX,
            generation: None,
        }
    }

    async fn open(&mut self) -> Result<Generation, SinkError> {
        let turn = self.turn;
        self.turn = turn.wrapping_add(1);
        let url = self.urls.at(turn).await?;
        let link = Link::open(&url, &self.options.connection_name).await?;
        if let Some(exchange) = &self.options.exchange {
            topology::look_up(&link, exchange).await?;
        }
        let greeting = link.greeting.clone();
        let generation = Generation::open(link).await?;
        self.introduce(&url, greeting);
        Ok(generation)
    }

    /// Says who answered, and warns when it is another cluster than before: a wrong URL in the list, or a failover to
    /// brokers that do not have the queues.
    fn introduce(&mut self, url: &BrokerUrl, greeting: Greeting) {
        let Greeting {
            product,
            version,
            cluster,
            ..
        } = greeting;
        let broker = url.redacted();
        tracing::info!(%broker, %product, %version, %cluster, "connected to the broker");
        if let Some(before) = self.cluster.replace(cluster.clone())
            && before != cluster
        {
            tracing::warn!(%broker, %before, now = %cluster, "this is another broker cluster than before");
        }
    }
}

impl Sink for RabbitSink {
    async fn connect(&mut self) -> Result<(), Failure> {
        self.generation = None;
        let generation = self.open().await?;
        self.frame_max = generation.frame_max();
        self.generation = Some(generation);
        Ok(())
    }

    fn refuse(&self, message: &Message) -> Option<String> {
        properties::refuse(message, self.options.max_message_bytes, self.frame_max)
    }

    fn publish(&mut self, seq: Seq, message: Arc<Message>) {
        let Some(generation) = &mut self.generation else {
            debug_assert!(false, "published without a generation");
            tracing::error!(
                seq,
                "an event was published without a connection; it stays unanswered"
            );
            return;
        };
        generation.publish(seq, message);
    }

    async fn next(&mut self, outcomes: &mut Vec<Outcome>) -> Result<(), Failure> {
        let Some(generation) = &mut self.generation else {
            return pending().await;
        };
        let result = poll_fn(|cx| generation.poll(cx, outcomes)).await;
        if result.is_err() {
            self.generation = None;
        }
        Ok(result?)
    }

    fn abandon(&mut self) {
        self.generation = None;
    }

    async fn close(&mut self) {
        if let Some(generation) = self.generation.take() {
            generation.close().await;
        }
    }
}

#[cfg(test)]
#[path = "sink_tests.rs"]
mod tests;
