//! What was typed. What it means: `config.rs`.

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tailpost_database::Secret;
use tailpost_postgres::args::{DropArgs, InitArgs, OffsetSetArgs, PeekArgs, SchemaArgs, SourceArgs};

/// Tails a database's log and posts its outbox to RabbitMQ.
///
/// Services write an event into an outbox table in the same transaction as their change. Tailpost reads these committed
/// inserts from the database's log, publishes each to RabbitMQ with a publisher confirm, and stores its position only
/// after the broker has confirmed: at least once, never less.
///
/// Every flag has an environment name; the command line wins.
#[derive(Debug, Parser)]
#[command(name = "tailpost", version, propagate_version = true, max_term_width = 110, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) connector: Connector,
}

const AFTER_HELP: &str = "First steps:
  tailpost postgres init --source URL --create-table --broker URL --declare-exchange topic
  tailpost postgres check --source URL
  tailpost postgres run --source URL --broker URL

Exit status: 0 done or drained; 1 unexpected, or check found faults; 2 command line; 65 an event cannot be published; \
66 the position is gone; 74 offset unreadable; 75 stopped before all was confirmed (safe: it repeats); 78 wrong set-up.";

#[derive(Debug, Subcommand)]
pub(crate) enum Connector {
    /// PostgreSQL, through a logical replication slot
    #[command(subcommand)]
    Postgres(Box<PostgresVerb>),
}

#[derive(Debug, Subcommand)]
pub(crate) enum PostgresVerb {
    /// Publish what is committed, until it is stopped
    Run(RunCommand),
    /// Make publication and slot, and what else is asked for; the first position
    Init(InitCommand),
    /// Say what is wrong with the set-up, and the statement that mends it
    Check(CheckCommand),
    /// Print what would be published; store nothing, move nothing
    Peek(PeekCommand),
    /// Show or move the stored position
    #[command(subcommand)]
    Offset(OffsetCommand),
    /// Drop slot and publication, not the table
    Drop(DropCommand),
    /// Print the statements that make the outbox table
    Schema(SchemaArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RunCommand {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[command(flatten)]
    pub(crate) run: RunArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct InitCommand {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) init: InitArgs,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) flow: FlowArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct CheckCommand {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) broker: BrokerArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct PeekCommand {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) peek: PeekArgs,
    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
    #[command(flatten)]
    pub(crate) message: MessageArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OffsetCommand {
    /// Print the stored position, and how far the log is ahead of it
    Show(OffsetFlags),
    /// Move the stored position; the relay must be stopped
    Set {
        #[command(flatten)]
        set: OffsetSetArgs,
        #[command(flatten)]
        flags: OffsetFlags,
    },
}

#[derive(Args, Debug)]
pub(crate) struct OffsetFlags {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

#[derive(Args, Debug)]
pub(crate) struct DropCommand {
    #[command(flatten)]
    pub(crate) source: SourceArgs,
    #[command(flatten)]
    pub(crate) drop: DropArgs,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// Where to publish.
#[derive(Args, Debug)]
#[command(next_help_heading = "Broker")]
pub(crate) struct BrokerArgs {
    /// URL of the broker: amqps://USER@HOST/VHOST; several nodes of one cluster, separated by commas
    ///
    /// Takes RabbitMQ's own query keys: cacertfile, certfile, keyfile, verify, server_name_indication, auth_mechanism,
    /// heartbeat, connection_timeout. Put the password into a file (--broker-password-file) or into the environment.
    #[arg(long, value_name = "URL", env = "TAILPOST_BROKER", hide_env_values = true, value_parser = secret)]
    pub(crate) broker: Option<Secret>,

    /// File that holds the broker's password; read again at each connect [default: none]
    #[arg(long, value_name = "PATH", env = "TAILPOST_BROKER_PASSWORD_FILE")]
    pub(crate) broker_password_file: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) exchange: ExchangeArgs,
}

/// Where a message goes.
#[derive(Args, Debug)]
#[command(next_help_heading = "Broker")]
pub(crate) struct ExchangeArgs {
    /// Exchange, a template over the row's columns [default: events; preset debezium: outbox.event.{aggregate_type}]
    ///
    /// It must exist; `init --declare-exchange topic` makes it.
    #[arg(long, value_name = "TEMPLATE", env = "TAILPOST_EXCHANGE")]
    pub(crate) exchange: Option<String>,

    /// Routing key, a template [default: {aggregate_type}.{event_type}; preset debezium: empty]
    ///
    /// {NAME} stands for a field (event_id, event_type, aggregate_type, aggregate_id, aggregate_version, …) or for any
    /// other column. A column routing_key that is not NULL goes before it.
    #[arg(long, value_name = "TEMPLATE", env = "TAILPOST_ROUTING_KEY")]
    pub(crate) routing_key: Option<String>,
}

/// How a row becomes a message.
#[derive(Args, Debug)]
#[command(next_help_heading = "Message")]
pub(crate) struct MessageArgs {
    /// Names of columns, headers and exchange: tailpost, or debezium (those of Debezium's outbox event router)
    #[arg(
        long,
        value_name = "PRESET",
        env = "TAILPOST_PRESET",
        default_value = "tailpost"
    )]
    pub(crate) preset: String,

    /// Column that a field is read from, FIELD=COLUMN; repeat for several [default: as the preset]
    #[arg(
        long,
        value_name = "FIELD=COLUMN",
        env = "TAILPOST_COLUMN",
        value_delimiter = ','
    )]
    pub(crate) column: Vec<String>,

    /// Header taken from a column, NAME=COLUMN; repeat for several. NULL: no header
    #[arg(
        long,
        value_name = "NAME=COLUMN",
        env = "TAILPOST_HEADER",
        value_delimiter = ','
    )]
    pub(crate) header: Vec<String>,

    /// Body: payload (the column, byte for byte) or envelope (a JSON object with the event's fields around it)
    #[arg(long, value_name = "BODY", env = "TAILPOST_BODY", default_value = "payload")]
    pub(crate) body: String,

    /// Content type of every message [default: by the payload column's type]
    #[arg(long, value_name = "TYPE", env = "TAILPOST_CONTENT_TYPE")]
    pub(crate) content_type: Option<String>,

    /// Largest body; an event over it is poison. RabbitMQ takes 16 MiB unless its max_message_size says otherwise
    #[arg(
        long,
        value_name = "BYTES",
        env = "TAILPOST_MAX_MESSAGE_BYTES",
        default_value = "16MiB"
    )]
    pub(crate) max_message_bytes: String,
}

/// Where the position is stored.
#[derive(Args, Debug)]
#[command(next_help_heading = "State")]
pub(crate) struct StateArgs {
    /// Where the position is stored: slot (the server keeps it), or file:PATH
    ///
    /// A file notices when somebody else moved the slot, or when the server was restored to an earlier time.
    #[arg(long, value_name = "WHERE", env = "TAILPOST_OFFSETS", default_value = "slot")]
    pub(crate) offsets: String,
}

/// Bounds.
#[derive(Args, Debug)]
#[command(next_help_heading = "Flow")]
pub(crate) struct FlowArgs {
    /// Order of first deliveries: of each aggregate (also across retries), or of all commits (across reconnects only)
    #[arg(
        long,
        value_name = "ORDER",
        env = "TAILPOST_ORDER",
        default_value = "aggregate"
    )]
    pub(crate) order: String,

    /// Events published and not yet answered, at most
    #[arg(
        long,
        value_name = "EVENTS",
        env = "TAILPOST_IN_FLIGHT",
        default_value = "1000"
    )]
    pub(crate) in_flight: String,

    /// Memory for events read and not yet confirmed; the source waits at this bound
    #[arg(
        long,
        value_name = "BYTES",
        env = "TAILPOST_IN_FLIGHT_BYTES",
        default_value = "8MiB"
    )]
    pub(crate) in_flight_bytes: String,

    /// Events that may be confirmed behind one that is not; with --in-flight what a crash repeats at most
    #[arg(
        long,
        value_name = "EVENTS",
        env = "TAILPOST_MAX_AHEAD",
        default_value = "100000"
    )]
    pub(crate) max_ahead: String,

    /// How long a confirm may take before the connection is given up and all unconfirmed is sent again
    #[arg(
        long,
        value_name = "DURATION",
        env = "TAILPOST_CONFIRM_TIMEOUT",
        default_value = "60s"
    )]
    pub(crate) confirm_timeout: String,

    /// How long a stop waits for confirms
    #[arg(
        long,
        value_name = "DURATION",
        env = "TAILPOST_DRAIN_TIMEOUT",
        default_value = "8s"
    )]
    pub(crate) drain_timeout: String,

    /// Unready when something is unsettled and nothing was confirmed for this long
    #[arg(
        long,
        value_name = "DURATION",
        env = "TAILPOST_STALL_AFTER",
        default_value = "60s"
    )]
    pub(crate) stall_after: String,
}

/// Order of first deliveries.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OrderArg {
    /// Of each aggregate.
    Aggregate,
    /// Of all commits.
    Commit,
}

/// What to do about what cannot go on.
#[derive(Args, Debug)]
#[command(next_help_heading = "Policy")]
pub(crate) struct PolicyArgs {
    /// A message that no queue takes: retry (hold its aggregate and try again for ever)
    #[arg(
        long,
        value_name = "POLICY",
        env = "TAILPOST_ON_UNROUTABLE",
        default_value = "retry"
    )]
    pub(crate) on_unroutable: String,

    /// An event that can never be published: halt (stop before it and say why)
    #[arg(
        long,
        value_name = "POLICY",
        env = "TAILPOST_ON_POISON",
        default_value = "halt"
    )]
    pub(crate) on_poison: String,

    /// A halt: exit with its status, or stay up, unready, until it is stopped
    #[arg(long, value_name = "POLICY", env = "TAILPOST_ON_HALT", default_value = "exit")]
    pub(crate) on_halt: String,
}

/// What to do with an unroutable message.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OnUnroutableArg {
    /// Hold its aggregate and try again.
    Retry,
}

/// What to do with an event that can never be published.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OnPoisonArg {
    /// Stop before it.
    Halt,
}

/// What a halt does.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OnHaltArg {
    /// End the process.
    Exit,
    /// Stay up, unready.
    Stay,
}

/// How `run` shows itself.
#[derive(Args, Debug)]
#[command(next_help_heading = "Run")]
pub(crate) struct RunArgs {
    /// Address of /livez, /readyz, /metrics and the status page, or off
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "TAILPOST_LISTEN",
        default_value = "127.0.0.1:9464"
    )]
    pub(crate) listen: String,

    /// Print the configuration as understood, without secrets, and end
    #[arg(long, env = "TAILPOST_PRINT_CONFIG", value_parser = BoolishValueParser::new())]
    pub(crate) print_config: bool,
}

/// What is logged; to standard error.
#[derive(Args, Debug)]
#[command(next_help_heading = "Log")]
pub(crate) struct LogArgs {
    /// What is logged: a level (error, warn, info, debug, trace) or a filter as tailpost_postgres=debug,info
    #[arg(long, value_name = "FILTER", env = "TAILPOST_LOG", default_value = "info")]
    pub(crate) log: String,

    /// How it is logged: text or json
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TAILPOST_LOG_FORMAT",
        default_value = "text"
    )]
    pub(crate) log_format: String,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LogFormatArg {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's value parsers return a result")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text))
}
