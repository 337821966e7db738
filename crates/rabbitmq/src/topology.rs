//! Exchanges: looked up and, when asked to, declared. The sink itself declares nothing.

use lapin::options::ExchangeDeclareOptions;
use lapin::types::FieldTable;
use lapin::{Channel, ErrorKind, ExchangeKind};
use tailpost_relay::{Disposition, Failure};

use crate::dial::Link;
use crate::error::SinkError;
use crate::properties::short;
use crate::url::BrokerUrls;

const CONNECTION_NAME: &str = "tailpost/check";

/// Whether an exchange exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExchangeState {
    /// It does. AMQP does not tell of which type.
    Present,
    /// It does not.
    Missing,
}

/// Looks an exchange up, on a connection of its own: a missing exchange costs the channel. The default exchange (an empty
/// name) always exists. The URLs are tried in turn until one answers.
///
/// # Errors
/// When no broker can be reached or logs us in, or when the lookup is refused.
pub async fn check_exchange(urls: &BrokerUrls, exchange: &str) -> Result<ExchangeState, Failure> {
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    match declare(urls, exchange, ExchangeKind::Direct, options).await {
        Ok(()) => Ok(ExchangeState::Present),
        Err(SinkError::NotFound(_)) => Ok(ExchangeState::Missing),
        Err(error) => Err(error.into()),
    }
}

/// Declares a durable exchange of type `kind` (`topic`, `direct`, `fanout`, `headers`, or a plugin's). Does nothing when
/// it exists with the same properties.
///
/// # Errors
/// As [`check_exchange`]; also when it exists with other properties, when the type is unknown, or without the permission
/// to configure it.
pub async fn declare_exchange(urls: &BrokerUrls, exchange: &str, kind: &str) -> Result<(), Failure> {
    let kind = match kind {
        "topic" => ExchangeKind::Topic,
        "direct" => ExchangeKind::Direct,
        "fanout" => ExchangeKind::Fanout,
        "headers" => ExchangeKind::Headers,
        other => ExchangeKind::Custom(other.to_owned()),
    };
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    Ok(declare(urls, exchange, kind, options).await?)
}

async fn declare(
    urls: &BrokerUrls,
    exchange: &str,
    kind: ExchangeKind,
    options: ExchangeDeclareOptions,
) -> Result<(), SinkError> {
    let refused = |text: &str| SinkError::Declare {
        exchange: exchange.to_owned(),
        text: text.to_owned(),
    };
    short(exchange).map_err(|_| too_long(exchange))?;
    if let ExchangeKind::Custom(kind) = &kind
        && short(kind).is_err()
    {
        return Err(refused("its type is longer than 255 bytes"));
    }
    let link = first_that_answers(urls).await?;
    let result = declare_on(&link, exchange, kind, options).await;
    link.close().await;
    result
}

/// Demands that `exchange` exists, on a channel of its own.
pub(crate) async fn look_up(link: &Link, exchange: &str) -> Result<(), SinkError> {
    let options = ExchangeDeclareOptions {
        passive: true,
        ..ExchangeDeclareOptions::default()
    };
    declare_on(link, exchange, ExchangeKind::Direct, options).await
}

/// The default exchange is always there, and cannot be asked for.
async fn declare_on(
    link: &Link,
    exchange: &str,
    kind: ExchangeKind,
    options: ExchangeDeclareOptions,
) -> Result<(), SinkError> {
    if exchange.is_empty() {
        return Ok(());
    }
    let name = short(exchange).map_err(|_| too_long(exchange))?;
    let work = async {
        let channel: Channel = link.connection.create_channel().await?;
        channel
            .exchange_declare(name, kind, options, FieldTable::default())
            .await
    };
    let result = link.deadline.keep("the declaration", work).await?;
    result.map_err(|error| SinkError::declaring(exchange, error))
}

fn too_long(exchange: &str) -> SinkError {
    SinkError::Declare {
        exchange: exchange.to_owned(),
        text: "its name is longer than 255 bytes".to_owned(),
    }
}

async fn first_that_answers(urls: &BrokerUrls) -> Result<Link, SinkError> {
    let mut last = SinkError::Lost(lapin::Error::from(ErrorKind::FutureCompleted).into());
    for turn in 0..urls.urls().len() {
        match Link::open(&urls.at(turn).await?, CONNECTION_NAME).await {
            Ok(link) => return Ok(link),
            Err(error) if matches!(error.disposition(), Disposition::Retry { .. }) => last = error,
            Err(error) => return Err(error),
        }
    }
    Err(last)
}
