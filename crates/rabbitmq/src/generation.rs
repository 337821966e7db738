//! One life of the broker's connection, with one channel: its publishes, its confirms, its end.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::{AMQPValue, ShortString};
use lapin::{BasicProperties, Channel, Confirmation, ErrorKind, Event};
use tailpost_outbox::{HeaderValue, Message, headers};
use tailpost_relay::{Outcome, Seq};
use tokio::time::{Duration, Sleep, sleep};

use crate::confirms::{Confirms, Index, Returned, Verdict};
use crate::dial::Link;
use crate::error::SinkError;
use crate::in_flight::{Boxed, InFlight};
use crate::properties::{properties, short};

/// An unroutable message comes back instead of vanishing (law 9).
const MANDATORY: BasicPublishOptions = BasicPublishOptions {
    mandatory: true,
    immediate: false,
};
/// How long to wait for the reason after the channel was found closed without one: lapin tells it only when it has
/// answered the broker's close.
const REASON_PATIENCE: Duration = Duration::from_secs(1);

/// An open channel in confirm mode.
pub(crate) struct Generation {
    in_flight: InFlight<Index, Publish, lapin::Result<Confirmation>>,
    confirms: Confirms,
    /// Completed in the pass at hand; kept for its capacity.
    ended: Vec<(Index, lapin::Result<Confirmation>)>,
    events: Pin<Box<dyn Stream<Item = Event> + Send>>,
    channel: Arc<Channel>,
    failure: Option<SinkError>,
    patience: Option<Pin<Box<Sleep>>>,
    link: Link,
}

impl Generation {
    /// Opens the channel on `link`.
    pub(crate) async fn open(link: Link) -> Result<Self, SinkError> {
        let events = Box::pin(link.connection.events_listener());
        let opening = async {
            let channel = link.connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            lapin::Result::Ok(channel)
        };
        let channel = link
            .deadline
            .keep("opening a channel", opening)
            .await?
            .map_err(SinkError::publishing)?;
        Ok(Self {
            in_flight: InFlight::new(|| Box::new(Boxed::new(Publish::run))),
            confirms: Confirms::default(),
            ended: Vec::new(),
            events,
            channel: Arc::new(channel),
            failure: None,
            patience: None,
            link,
        })
    }

    /// Largest frame agreed on, in bytes.
    pub(crate) fn frame_max(&self) -> u32 {
        self.link.connection.configuration().frame_max()
    }

    /// Starts a publish. Once the generation has failed nothing is sent any more: what was not answered is unknown
    /// anyway.
    pub(crate) fn publish(&mut self, seq: Seq, message: Arc<Message>) {
        if self.failure.is_some() {
            return;
        }
        let index = position(&message).and_then(|position| self.confirms.published(seq, position).ok());
        let Some(index) = index else {
            return self.fail(SinkError::NoPosition { seq });
        };
        let parts = short(&message.exchange)
            .and_then(|exchange| Ok((exchange, short(&message.routing_key)?, properties(&message)?)));
        let Ok((exchange, routing_key, properties)) = parts else {
            return self.fail(SinkError::NotRefused { seq });
        };
        let job = Publish {
            channel: self.channel.clone(),
            exchange,
            routing_key,
            properties,
            message,
        };
        if let Some(ended) = self.in_flight.start(index, job) {
            self.ended.push(ended);
        }
    }

    /// Drives the connection: `Ready` with new outcomes, or with the error that ended it once all outcomes are out.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        outcomes: &mut Vec<Outcome>,
    ) -> Poll<Result<(), SinkError>> {
        let before = outcomes.len();
        self.in_flight.register(cx);
        self.drain(outcomes);
        self.hear(cx, outcomes);
        if outcomes.len() > before {
            return Poll::Ready(Ok(()));
        }
        if self.failure.is_none() || self.reason_may_come(cx) {
            return Poll::Pending;
        }
        self.failure
            .take()
            .map_or(Poll::Pending, |error| Poll::Ready(Err(error)))
    }

    /// Closes in order, within a second.
    pub(crate) async fn close(self) {
        // The publishes hold the channel; lapin is told of their end by the close itself.
        let Self { link, .. } = self;
        link.close().await;
    }

    /// Passes until one finds nothing woken; then what is certain is answered (see [`crate::confirms`]).
    fn drain(&mut self, outcomes: &mut Vec<Outcome>) {
        let mut ended = std::mem::take(&mut self.ended);
        loop {
            let any = self.in_flight.pass(|index, result| ended.push((index, result)));
            if !any && ended.is_empty() {
                break;
            }
            for (index, result) in ended.drain(..) {
                self.complete(index, result, outcomes);
            }
        }
        self.ended = ended;
        if !matches!(self.failure, Some(SinkError::StrayReturn)) {
            self.confirms.settle(outcomes);
        }
    }

    fn complete(&mut self, index: Index, result: lapin::Result<Confirmation>, outcomes: &mut Vec<Outcome>) {
        let (verdict, carried) = match result {
            Ok(Confirmation::Ack(carried)) => (Verdict::Ack, carried),
            Ok(Confirmation::Nack(carried)) => (Verdict::Nack, carried),
            Ok(Confirmation::NotRequested) => return self.fail(SinkError::ConfirmsOff),
            Err(error) => return self.fail(SinkError::publishing(error)),
        };
        if self
            .confirms
            .completed(index, verdict, carried.map(reduce), outcomes)
            .is_err()
        {
            self.fail(SinkError::StrayReturn);
        }
    }

    fn hear(&mut self, cx: &mut Context<'_>, outcomes: &mut Vec<Outcome>) {
        while let Poll::Ready(event) = self.events.as_mut().poll_next(cx) {
            match event {
                Some(Event::ConnectionBlocked(reason)) => outcomes.push(Outcome::Blocked { reason }),
                Some(Event::ConnectionUnblocked) => outcomes.push(Outcome::Unblocked),
                Some(Event::Error(error)) => self.fail(SinkError::publishing(error)),
                // `channel.flow` is not sent by RabbitMQ; lapin obeys it.
                Some(Event::Connected | Event::SendFlow(_)) => {}
                Some(other) => tracing::debug!(event = ?other, "unknown event of the broker's connection"),
                None => return,
            }
        }
    }

    /// Keeps the error that tells most.
    fn fail(&mut self, error: SinkError) {
        if self
            .failure
            .as_ref()
            .is_none_or(|kept| weight(kept) < weight(&error))
        {
            self.failure = Some(error);
        }
    }

    fn reason_may_come(&mut self, cx: &mut Context<'_>) -> bool {
        if self.failure.as_ref().is_some_and(|error| weight(error) > 0) {
            return false;
        }
        let patience = self
            .patience
            .get_or_insert_with(|| Box::pin(sleep(REASON_PATIENCE)));
        patience.as_mut().poll(cx).is_pending()
    }
}

/// A message on its way.
struct Publish {
    channel: Arc<Channel>,
    exchange: ShortString,
    routing_key: ShortString,
    properties: BasicProperties,
    message: Arc<Message>,
}

impl Publish {
    /// Ends with the confirm. The first poll takes the delivery tag; the message is let go once it is written.
    async fn run(self) -> lapin::Result<Confirmation> {
        let Self {
            channel,
            exchange,
            routing_key,
            properties,
            message,
        } = self;
        let written = channel.basic_publish(exchange, routing_key, MANDATORY, &message.body, properties);
        let confirm = written.await?;
        drop(message);
        confirm.await
    }
}

/// How much an error tells: a state that a channel is in says nothing of why.
fn weight(error: &SinkError) -> u8 {
    match error {
        SinkError::Lost(error) => match error.kind() {
            ErrorKind::InvalidChannel(_)
            | ErrorKind::InvalidChannelState(..)
            | ErrorKind::InvalidConnectionState(_) => 0,
            _ => 1,
        },
        SinkError::ConfirmsOff
        | SinkError::StrayReturn
        | SinkError::NoPosition { .. }
        | SinkError::NotRefused { .. } => 3,
        _ => 2,
    }
}

fn position(message: &Message) -> Option<&str> {
    message.headers.iter().find_map(|(name, value)| match value {
        HeaderValue::Text(text) if name == headers::POSITION => Some(text.as_str()),
        _ => None,
    })
}

/// Drops the payload, and keeps what tells whose it is.
fn reduce(message: BasicReturnMessage) -> Returned {
    let headers = message.delivery.properties.headers().as_ref();
    let position = headers
        .and_then(|headers| headers.inner().get(headers::POSITION))
        .and_then(AMQPValue::as_long_string)
        .and_then(|text| String::from_utf8(text.as_bytes().to_vec()).ok());
    Returned {
        position,
        reason: message.reply_text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::FutureExt;
    use lapin::ChannelState;
    use tailpost_relay::{Disposition, Failure};

    use super::*;
    use crate::scripted_broker::Port;
    use crate::url::BrokerUrl;

    #[tokio::test(flavor = "multi_thread")]
    async fn channel_found_closed_waits_for_the_reason() {
        let port = Port::open().await;
        let url = BrokerUrl::parse(&port.url()).unwrap();
        let opening = async { Generation::open(Link::open(&url, "test").await?).await };
        let (generation, mut broker) = tokio::join!(opening, port.accept(0));
        let mut generation = generation.unwrap();
        let closed = ErrorKind::InvalidChannelState(ChannelState::Closed, "basic.publish");
        generation.fail(SinkError::publishing(closed.into()));

        let mut outcomes = Vec::new();
        let mut next = poll_fn(|cx| generation.poll(cx, &mut outcomes));
        assert!((&mut next).now_or_never().is_none());
        broker.close_channel(404, "NOT_FOUND - no exchange").await;
        let failure = Failure::from(next.await.unwrap_err());
        assert_eq!(failure.disposition, Disposition::Setup);
    }
}
