//! What was typed, understood: every fault of the configuration is found before any is reported.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use bytesize::ByteSize;
use clap::ValueEnum;
use tailpost_database::SystemEnvironment;
use tailpost_outbox::{Mapper, MappingConfig, Template};
use tailpost_postgres::PgConfig;
use tailpost_postgres::args::SourceArgs;
use tailpost_rabbitmq::BrokerUrls;
use tailpost_relay::{OnHalt, Options, Order};
use tailpost_telemetry::LogFormat;

use crate::args::{
    BrokerArgs, ExchangeArgs, FlowArgs, LogArgs, LogFormatArg, MessageArgs, OnHaltArg, OnPoisonArg,
    OnUnroutableArg, OrderArg, PolicyArgs, RunArgs, StateArgs,
};

/// Longer than anybody waits.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// Faults of the command line and the environment, each a line. Holds no secret.
#[derive(Debug, Default)]
pub(crate) struct Faults(Vec<String>);

impl Faults {
    /// Begins with faults found elsewhere.
    pub(crate) fn new(found: Vec<String>) -> Self {
        Self(found)
    }

    fn add(&mut self, flag: &str, what: impl fmt::Display) {
        self.0.push(format!("{flag}: {what}"));
    }

    /// The value, or all faults.
    pub(crate) fn judge<T>(self, value: Option<T>) -> Result<T, Self> {
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            _ => Err(self),
        }
    }

    /// The value of a result; its error becomes a fault of `flag`.
    pub(crate) fn take<T, E: fmt::Display>(&mut self, flag: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(flag, error)).ok()
    }

    fn parse<T: FromStr<Err: fmt::Display>>(&mut self, flag: &str, text: &str) -> Option<T> {
        self.take(flag, text.parse())
    }

    fn bytes(&mut self, flag: &str, text: &str) -> Option<usize> {
        let parsed = text
            .parse::<ByteSize>()
            .ok()
            .and_then(|size| usize::try_from(size.as_u64()).ok());
        let size = parsed.filter(|size| *size > 0);
        if size.is_none() {
            self.add(
                flag,
                format_args!(
                    "{text:?} is no size; write a number of bytes with a unit, such as 8MiB or 512KiB"
                ),
            );
        }
        size
    }

    fn duration(&mut self, flag: &str, text: &str) -> Option<Duration> {
        let sensible = |duration: &Duration| !duration.is_zero() && *duration <= DURATION_MAX;
        let parsed = humantime::parse_duration(text).ok().filter(sensible);
        if parsed.is_none() {
            self.add(
                flag,
                format_args!("{text:?} is no duration; write a number with a unit, such as 8s, 500ms or 2m, at most 365d"),
            );
        }
        parsed
    }

    fn count(&mut self, flag: &str, text: &str) -> Option<usize> {
        let count = text.parse().ok().filter(|count| *count > 0);
        if count.is_none() {
            self.add(flag, format_args!("{text:?} is no number; give at least 1"));
        }
        count
    }

    fn choice<T: ValueEnum>(&mut self, flag: &str, text: &str) -> Option<T> {
        let chosen = T::from_str(text, false).ok();
        if chosen.is_none() {
            let all = T::value_variants()
                .iter()
                .filter_map(ValueEnum::to_possible_value);
            let all: Vec<String> = all.map(|value| value.get_name().to_owned()).collect();
            self.add(
                flag,
                format_args!("unknown value {text:?}; write one of: {}", all.join(", ")),
            );
        }
        chosen
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|fault| writeln!(f, "error: {fault}"))
    }
}

pub(crate) fn source(args: &SourceArgs, faults: &mut Faults) -> Option<PgConfig> {
    match PgConfig::parse(args, &host_name(), &SystemEnvironment) {
        Ok(config) => Some(config),
        Err(found) => {
            for fault in found {
                match &fault.hint {
                    Some(hint) => faults.add(fault.flag, format_args!("{}; {hint}", fault.what)),
                    None => faults.add(fault.flag, &fault.what),
                }
            }
            None
        }
    }
}

/// This machine's name, for the names of sessions.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = name
        .or_else(|| std::env::var("HOSTNAME").ok())
        .unwrap_or_default();
    let name = name.trim();
    if name.is_empty() {
        "localhost".into()
    } else {
        name.into()
    }
}

/// The broker, which a command may do without.
pub(crate) fn broker(args: &BrokerArgs, faults: &mut Faults) -> Option<BrokerUrls> {
    let urls = match BrokerUrls::parse(args.broker.as_ref()?.expose()) {
        Ok(urls) => urls,
        Err(found) => {
            found.iter().for_each(|fault| faults.add("--broker", fault));
            return None;
        }
    };
    Some(match &args.broker_password_file {
        Some(path) => urls.with_password_file(path),
        None => urls,
    })
}

/// The broker, which a command needs.
pub(crate) fn needed_broker(args: &BrokerArgs, faults: &mut Faults) -> Option<BrokerUrls> {
    if args.broker.is_none() {
        faults.add(
            "--broker",
            "no broker is given; give --broker amqp://USER@HOST/VHOST, or set TAILPOST_BROKER",
        );
    }
    broker(args, faults)
}

/// The mapping.
pub(crate) fn mapper(message: &MessageArgs, exchange: &ExchangeArgs, faults: &mut Faults) -> Option<Mapper> {
    let mut config = MappingConfig::default();
    let preset = faults.parse("--preset", &message.preset);
    let body = faults.parse("--body", &message.body);
    config.columns = message
        .column
        .iter()
        .filter_map(|text| faults.parse("--column", text))
        .collect();
    config.headers = message
        .header
        .iter()
        .filter_map(|text| faults.parse("--header", text))
        .collect();
    config.exchange = template("--exchange", exchange.exchange.as_deref(), faults);
    config.routing_key = template("--routing-key", exchange.routing_key.as_deref(), faults);
    config.content_type.clone_from(&message.content_type);
    let limit = max_message_bytes(message, faults);
    config.preset = preset?;
    config.body = body?;
    config.max_message_bytes = limit?;
    match Mapper::new(config) {
        Ok(mapper) => Some(mapper),
        Err(found) => {
            faults.0.extend(found.iter().map(ToString::to_string));
            None
        }
    }
}

fn template(flag: &str, text: Option<&str>, faults: &mut Faults) -> Option<Template> {
    faults.take(flag, Template::parse(text?))
}

pub(crate) fn max_message_bytes(args: &MessageArgs, faults: &mut Faults) -> Option<usize> {
    faults.bytes("--max-message-bytes", &args.max_message_bytes)
}

/// Bounds and policies.
pub(crate) fn options(flow: &FlowArgs, policy: Option<&PolicyArgs>, faults: &mut Faults) -> Option<Options> {
    let order = faults.choice("--order", &flow.order);
    let in_flight = faults.count("--in-flight", &flow.in_flight);
    let max_ahead = faults.count("--max-ahead", &flow.max_ahead);
    let in_flight_bytes = faults.bytes("--in-flight-bytes", &flow.in_flight_bytes);
    let confirm_timeout = faults.duration("--confirm-timeout", &flow.confirm_timeout);
    let drain_timeout = faults.duration("--drain-timeout", &flow.drain_timeout);
    let on_halt = match policy {
        Some(policy) => on_halt(policy, faults),
        None => Some(OnHalt::Exit),
    };
    Some(Options {
        order: match order? {
            OrderArg::Aggregate => Order::Aggregate,
            OrderArg::Commit => Order::Commit,
        },
        in_flight: in_flight?,
        in_flight_bytes: in_flight_bytes?,
        max_ahead: max_ahead?,
        confirm_timeout: confirm_timeout?,
        drain_timeout: drain_timeout?,
        on_halt: on_halt?,
    })
}

fn on_halt(policy: &PolicyArgs, faults: &mut Faults) -> Option<OnHalt> {
    let on_unroutable = faults.choice("--on-unroutable", &policy.on_unroutable);
    let on_poison = faults.choice("--on-poison", &policy.on_poison);
    let on_halt = faults.choice("--on-halt", &policy.on_halt);
    // One policy each until the others come; the match makes the next one a decision here.
    match (on_unroutable?, on_poison?) {
        (OnUnroutableArg::Retry, OnPoisonArg::Halt) => {}
    }
    Some(match on_halt? {
        OnHaltArg::Stay => OnHalt::Stay,
        OnHaltArg::Exit => OnHalt::Exit,
    })
}

pub(crate) fn stall_after(flow: &FlowArgs, faults: &mut Faults) -> Option<Duration> {
    faults.duration("--stall-after", &flow.stall_after)
}

/// Where the offset is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OffsetsAt {
    /// In the slot.
    Slot,
    /// In a file.
    File(PathBuf),
}

impl fmt::Display for OffsetsAt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slot => f.write_str("slot"),
            Self::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

pub(crate) fn offsets(args: &StateArgs, faults: &mut Faults) -> Option<OffsetsAt> {
    match args.offsets.split_once(':') {
        None if args.offsets == "slot" => Some(OffsetsAt::Slot),
        Some(("file", path)) if !path.is_empty() => Some(OffsetsAt::File(path.into())),
        _ => {
            faults.add(
                "--offsets",
                format_args!(
                    "{:?} is no place for offsets; write slot or file:PATH",
                    args.offsets
                ),
            );
            None
        }
    }
}

/// Where to listen; `Some(None)` is nowhere.
#[expect(clippy::option_option, reason = "the outer one is a fault")]
pub(crate) fn listen(args: &RunArgs, faults: &mut Faults) -> Option<Option<SocketAddr>> {
    if args.listen == "off" {
        return Some(None);
    }
    match args.listen.parse() {
        Ok(address) => Some(Some(address)),
        Err(_) => {
            let text = &args.listen;
            faults.add(
                "--listen",
                format_args!("{text:?} is no address; write ADDRESS:PORT, such as 0.0.0.0:9464, or off"),
            );
            None
        }
    }
}

/// Starts logging.
pub(crate) fn start_logs(args: &LogArgs, faults: &mut Faults) {
    let format = match faults.choice("--log-format", &args.log_format) {
        Some(LogFormatArg::Json) => LogFormat::Json,
        Some(LogFormatArg::Text) | None => LogFormat::Text,
    };
    if let Err(error) = tailpost_telemetry::init(&args.log, format, tailpost_rabbitmq::SILENCED_TARGETS) {
        faults.add("--log", error);
    }
}
