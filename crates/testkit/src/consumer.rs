//! A consumer that records every delivery, and comes back when the broker does.

mod delivery;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicQosOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Connection, ConnectionProperties, ExchangeKind};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

pub use delivery::Delivery;

/// How long an answer of the broker may take before the consumer begins anew.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The type of a durable queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueKind {
    /// On one node.
    Classic,
    /// Replicated by Raft.
    Quorum,
}

/// Declares a durable topic exchange and a durable queue, and binds it by `keys`. `url` names the vhost. Before the broker
/// is killed, [`Rabbit::sync`](crate::Rabbit::sync) makes all this last.
///
/// # Errors
/// The broker cannot be reached or refuses.
pub async fn declare(
    url: &str,
    exchange: &str,
    queue: &str,
    kind: QueueKind,
    keys: &[&str],
) -> anyhow::Result<()> {
    let connection = connect(url).await?;
    let channel = connection.create_channel().await?;
    let options = ExchangeDeclareOptions {
        durable: true,
        ..ExchangeDeclareOptions::default()
    };
    channel
        .exchange_declare(
            exchange.into(),
            ExchangeKind::Topic,
            options,
            FieldTable::default(),
        )
        .await?;
    let mut arguments = FieldTable::default();
    let kind = match kind {
        QueueKind::Classic => "classic",
        QueueKind::Quorum => "quorum",
    };
    arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
    channel
        .queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments)
        .await?;
    for &key in keys {
        let options = QueueBindOptions::default();
        channel
            .queue_bind(
                queue.into(),
                exchange.into(),
                key.into(),
                options,
                FieldTable::default(),
            )
            .await?;
    }
    connection.close(200, "done".into()).await?;
    Ok(())
}

/// Consumes a queue with manual acks. One of them at a time consumes a queue whose order is to be checked.
#[derive(Debug)]
pub struct Consumer {
    log: Arc<Mutex<Log>>,
    unique: watch::Receiver<usize>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Log {
    deliveries: Vec<Delivery>,
    seen: HashSet<Box<str>>,
    failure: Option<String>,
}

impl Consumer {
    /// Starts to consume `queue`, with at most `prefetch` deliveries unacked.
    ///
    /// # Errors
    /// The broker cannot be reached at first, or there is no such queue. Later the consumer tries again for ever.
    pub async fn start(url: &str, queue: &str, prefetch: u16) -> anyhow::Result<Self> {
        let (stop, stopped) = watch::channel(false);
        let (count, unique) = watch::channel(0);
        let log = Arc::new(Mutex::new(Log::default()));
        let mut session = Session {
            url: url.to_owned(),
            queue: queue.to_owned(),
            prefetch,
            count,
            log: Arc::clone(&log),
        };
        let first = session.open().await?;
        let task = tokio::spawn(async move { session.run(first, stopped).await });
        Ok(Self {
            log,
            unique,
            stop,
            task,
        })
    }

    /// How many deliveries there were, duplicates included.
    pub fn len(&self) -> usize {
        lock(&self.log).deliveries.len()
    }

    /// Tells whether nothing was delivered.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many different events were delivered.
    pub fn unique(&self) -> usize {
        *self.unique.borrow()
    }

    /// The deliveries from index `first` on.
    pub fn since(&self, first: usize) -> Vec<Delivery> {
        lock(&self.log)
            .deliveries
            .get(first..)
            .unwrap_or_default()
            .to_vec()
    }

    /// Waits until `unique` different events were delivered.
    ///
    /// # Errors
    /// They were not within `limit`; the error counts.
    pub async fn wait_for(&self, unique: usize, limit: Duration) -> anyhow::Result<()> {
        let mut count = self.unique.clone();
        let waited = timeout(limit, count.wait_for(|count| *count >= unique)).await;
        match waited {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => bail!("the consumer ended: {:?}", lock(&self.log).failure),
            Err(_) => bail!(
                "{} of {unique} events were delivered in {limit:?}; the consumer's last failure: {:?}",
                self.unique(),
                lock(&self.log).failure
            ),
        }
    }

    /// Waits until nothing was delivered for `quiet`: late duplicates have arrived then.
    ///
    /// # Errors
    /// There was no such time within `limit`.
    pub async fn wait_quiet(&self, quiet: Duration, limit: Duration) -> anyhow::Result<()> {
        let waited = timeout(limit, async {
            let mut before = self.len();
            loop {
                sleep(quiet).await;
                let now = self.len();
                if now == before {
                    return;
                }
                before = now;
            }
        });
        waited
            .await
            .with_context(|| format!("deliveries went on for {limit:?}"))
    }

    /// Stops, and returns all deliveries in order of arrival.
    ///
    /// # Errors
    /// The consumer's task panicked.
    pub async fn stop(self) -> anyhow::Result<Vec<Delivery>> {
        self.stop.send_replace(true);
        self.task.await?;
        Ok(std::mem::take(&mut lock(&self.log).deliveries))
    }
}

struct Session {
    url: String,
    queue: String,
    prefetch: u16,
    count: watch::Sender<usize>,
    log: Arc<Mutex<Log>>,
}

impl Session {
    async fn run(&mut self, first: (Connection, lapin::Consumer), mut stopped: watch::Receiver<bool>) {
        let mut open = Some(first);
        loop {
            let ended = tokio::select! {
                // The connection is closed in order: what is acked stays acked.
                _ = stopped.wait_for(|stop| *stop) => break,
                ended = self.consume(&mut open) => ended,
            };
            if let Err(error) = ended {
                lock(&self.log).failure = Some(format!("{error:#}"));
            }
            // Before a new one: a dead consumer's prefetched messages go back to their places in the queue.
            open = None;
            sleep(Duration::from_millis(100)).await;
        }
        if let Some((connection, _)) = open {
            // It may be gone already.
            drop(timeout(ANSWER_LIMIT, connection.close(200, "done".into())).await);
        }
    }

    /// Records until the connection ends.
    async fn consume(&mut self, open: &mut Option<(Connection, lapin::Consumer)>) -> anyhow::Result<()> {
        if open.is_none() {
            *open = Some(self.open().await?);
        }
        let Some((_, consumer)) = open else { return Ok(()) };
        while let Some(delivery) = consumer.next().await {
            let delivery = delivery?;
            self.record(&delivery);
            delivery.acker.ack(BasicAckOptions::default()).await?;
        }
        bail!("the broker ended the consumer")
    }

    fn record(&self, delivery: &lapin::message::Delivery) {
        let mut log = lock(&self.log);
        let delivery = Delivery::read(delivery);
        log.seen.insert(delivery.message_id.clone());
        log.deliveries.push(delivery);
        self.count.send_replace(log.seen.len());
    }

    async fn open(&self) -> anyhow::Result<(Connection, lapin::Consumer)> {
        let opening = async {
            let connection = connect(&self.url).await?;
            let channel = connection.create_channel().await?;
            channel
                .basic_qos(self.prefetch, BasicQosOptions::default())
                .await?;
            let (options, none) = (BasicConsumeOptions::default(), FieldTable::default());
            let consumer = channel
                .basic_consume(self.queue.as_str().into(), "".into(), options, none)
                .await?;
            anyhow::Ok((connection, consumer))
        };
        timeout(ANSWER_LIMIT, opening)
            .await
            .context("no answer from RabbitMQ")?
    }
}

async fn connect(url: &str) -> anyhow::Result<Connection> {
    let properties = ConnectionProperties::default().with_connection_name("tailpost-testkit".into());
    Connection::connect(url, properties)
        .await
        .context("could not connect to RabbitMQ")
}

fn lock(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}
