//! `tailpost postgres run`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tailpost_outbox::Mapper;
use tailpost_postgres::{KnownIdentity, PgConfig, PgSource, SourceConfig};
use tailpost_rabbitmq::{BrokerUrls, RabbitSink, SinkOptions};
use tailpost_relay::{Cause, Disposition, Ending, Failure, Options, Progress};
use tailpost_telemetry::Server;
use tracing::{info, warn};

use super::{Error, print};
use crate::args::RunCommand;
use crate::config::{self, Faults, OffsetsAt};
use crate::exit::Exit;
use crate::offsets::Offsets;
use crate::signals::Signals;

/// What `run` was told, understood.
struct Config {
    source: PgConfig,
    broker: BrokerUrls,
    mapper: Mapper,
    max_message_bytes: usize,
    offsets: OffsetsAt,
    options: Options,
    listen: Option<SocketAddr>,
    stall_after: Duration,
}

impl Config {
    fn parse(command: &RunCommand, mut faults: Faults) -> Result<Self, Faults> {
        config::start_logs(&command.log, &mut faults);
        let source = config::source(&command.source, &mut faults);
        let broker = config::needed_broker(&command.broker, &mut faults);
        let mapper = config::mapper(&command.message, &command.broker.exchange, &mut faults);
        // Its fault is the mapper's, already said.
        let max_message_bytes = config::max_message_bytes(&command.message, &mut Faults::default());
        let offsets = config::offsets(&command.state, &mut faults);
        let options = config::options(&command.flow, Some(&command.policy), &mut faults);
        let listen = config::listen(&command.run, &mut faults);
        let stall_after = config::stall_after(&command.flow, &mut faults);
        let config = move || {
            Some(Self {
                source: source?,
                broker: broker?,
                mapper: mapper?,
                max_message_bytes: max_message_bytes?,
                offsets: offsets?,
                options: options?,
                listen: listen?,
                stall_after: stall_after?,
            })
        };
        faults.judge(config())
    }

    /// The configuration as understood, without secrets.
    fn describe(&self, command: &RunCommand) -> String {
        let brokers: Vec<String> = self.broker.urls().iter().map(|url| url.redacted()).collect();
        let tables: Vec<String> = self.source.tables.iter().map(ToString::to_string).collect();
        let (flow, message, policy) = (&command.flow, &command.message, &command.policy);
        let path = |path: &Option<std::path::PathBuf>| {
            path.as_ref()
                .map_or_else(|| "none".into(), |path| path.display().to_string())
        };
        let list = |list: &[String]| {
            if list.is_empty() {
                "none".into()
            } else {
                list.join(", ")
            }
        };
        let bytes = |bytes: usize| bytesize::ByteSize(bytes as u64).to_string();
        let time = |duration| humantime::format_duration(duration).to_string();
        let lines = [
            ("source", self.source.url.redacted()),
            ("source-password-file", path(&command.source.source_password_file)),
            ("table", tables.join(", ")),
            ("name", self.source.name.clone()),
            ("slot", self.source.slot.clone()),
            ("publication", self.source.publications.join(", ")),
            ("sessions", self.source.application_name.clone()),
            ("broker", brokers.join(", ")),
            ("broker-password-file", path(&command.broker.broker_password_file)),
            ("exchange", self.mapper.exchange().to_string()),
            ("routing-key", self.mapper.routing_key().to_string()),
            ("preset", message.preset.clone()),
            ("column", list(&message.column)),
            ("columns needed", self.mapper.required_columns().join(", ")),
            ("header", list(&message.header)),
            ("body", message.body.clone()),
            (
                "content-type",
                message
                    .content_type
                    .clone()
                    .unwrap_or_else(|| "by the payload column's type".into()),
            ),
            ("max-message-bytes", bytes(self.max_message_bytes)),
            ("offsets", self.offsets.to_string()),
            ("order", flow.order.clone()),
            ("in-flight", self.options.in_flight.to_string()),
            ("in-flight-bytes", bytes(self.options.in_flight_bytes)),
            ("max-ahead", self.options.max_ahead.to_string()),
            ("confirm-timeout", time(self.options.confirm_timeout)),
            ("drain-timeout", time(self.options.drain_timeout)),
            ("stall-after", time(self.stall_after)),
            ("on-unroutable", policy.on_unroutable.clone()),
            ("on-poison", policy.on_poison.clone()),
            ("on-halt", policy.on_halt.clone()),
            (
                "listen",
                self.listen
                    .map_or_else(|| "off".into(), |address| address.to_string()),
            ),
            ("log", command.log.log.clone()),
            ("log-format", command.log.log_format.clone()),
        ];
        lines
            .iter()
            .map(|(name, value)| format!("{name:<21} {value}\n"))
            .collect()
    }
}

pub(super) async fn execute(command: RunCommand, faults: Faults) -> Result<Exit, Error> {
    let config = Config::parse(&command, faults)?;
    if command.run.print_config {
        print(&config.describe(&command))?;
        return Ok(Exit::Done);
    }
    let signals = Signals::listen()?;
    for note in config
        .source
        .url
        .security_notes()
        .into_iter()
        .chain(config.broker.security_notes())
    {
        warn!("{note}");
    }
    let progress = Arc::new(Progress::default());
    let server = match config.listen {
        Some(address) => {
            Some(Server::bind(address, Arc::clone(&progress), config.stall_after).map_err(Failure::from)?)
        }
        None => None,
    };
    if let Some(server) = &server {
        info!(address = %server.local_addr(), "serving /livez, /readyz and /metrics");
    }
    let ending = relay(config, progress, signals).await;
    finish(ending)
}

async fn relay(config: Config, progress: Arc<Progress>, signals: Signals) -> Ending {
    let known = KnownIdentity::default();
    let wanted = config.source.wanted(config.mapper.required_columns());
    let source = PgSource::new(SourceConfig {
        url: config.source.url.clone(),
        wanted,
        application_name: config.source.application_name.clone(),
        max_message_bytes: config.max_message_bytes,
        slot_mode: config.offsets == OffsetsAt::Slot,
        known: known.clone(),
        progress: Arc::clone(&progress),
    });
    let sink = RabbitSink::new(
        config.broker,
        SinkOptions {
            connection_name: config.source.application_name.clone(),
            max_message_bytes: config.max_message_bytes,
            exchange: fixed_exchange(&config.mapper),
        },
    );
    let offsets = Offsets::new(&config.offsets, &config.source, known);
    let mut mapper = config.mapper;
    let mut shapes = Shapes::default();
    let map = move |row: &tailpost_outbox::Row| {
        shapes.meet(&mapper, row);
        mapper.map(row)
    };
    // On the heap: it lives as long as the process, and is moved about before.
    Box::pin(tailpost_relay::run(
        source,
        sink,
        offsets,
        map,
        config.options,
        progress,
        signals.stop(),
    ))
    .await
}

/// The exchange, where it does not depend on the row: then it is looked up at each connect.
pub(super) fn fixed_exchange(mapper: &Mapper) -> Option<String> {
    mapper.exchange().render(|_, _| Err(())).ok()
}

/// The shape of the table last met, so that what an operator should know of it is said once.
#[derive(Default)]
struct Shapes(Option<Arc<tailpost_outbox::Table>>);

impl Shapes {
    fn meet(&mut self, mapper: &Mapper, row: &tailpost_outbox::Row) {
        if self.0.as_ref().is_some_and(|last| Arc::ptr_eq(last, &row.table)) {
            return;
        }
        let known = self
            .0
            .replace(Arc::clone(&row.table))
            .is_some_and(|last| last == row.table);
        // What does not fit at all is the mapping's to say.
        for note in mapper
            .inspect(&row.table)
            .unwrap_or_default()
            .iter()
            .filter(|_| !known)
        {
            warn!("{note}");
        }
    }
}

fn finish(ending: Ending) -> Result<Exit, Error> {
    match ending {
        Ending::Drained => {
            info!("stopped: all is confirmed and stored");
            Ok(Exit::Done)
        }
        Ending::Incomplete { why } => {
            warn!("stopped before all was confirmed and stored; a restart repeats the rest: {why}");
            Ok(Exit::Incomplete)
        }
        // Logged when it came up, with its hint.
        Ending::Halted(failure) => Ok(Exit::of(&match failure.disposition {
            // Whatever halted is not tried again, whatever it would have been worth elsewhere.
            Disposition::Retry { .. } | Disposition::Standby { .. } | Disposition::Park => Failure {
                disposition: Disposition::Halt(Cause::Unexpected),
                ..failure
            },
            Disposition::Setup | Disposition::Halt(_) => failure,
        })),
    }
}
