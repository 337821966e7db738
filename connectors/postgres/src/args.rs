//! What was typed after `tailpost postgres`. What it means: `config.rs`.

use std::fmt;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};
use tailpost_database::Secret;

/// Which source to read. `Debug` shows no secret.
#[derive(Args, Clone)]
#[command(next_help_heading = "Source")]
pub struct SourceArgs {
    /// URL of the database: postgres://USER@HOST:PORT/DATABASE?sslmode=verify-full
    ///
    /// Takes what psql takes: several hosts, target_session_attrs, sslmode, sslrootcert, service, and fills gaps from the
    /// PG* variables and .pgpass. Put the password into a file (--source-password-file) or into the environment.
    #[arg(long, value_name = "URL", env = "TAILPOST_SOURCE", hide_env_values = true, value_parser = secret)]
    pub source: Option<Secret>,

    /// File that holds the password; read again at each connect, so that a rotated password is taken up [default: none]
    #[arg(long, value_name = "PATH", env = "TAILPOST_SOURCE_PASSWORD_FILE")]
    pub source_password_file: Option<PathBuf>,

    /// Table whose inserts are published; repeat for several
    ///
    /// Written as in SQL: schema-qualified or found by the role's search_path, in double quotes where it has capitals. A
    /// partitioned table stands for its partitions.
    #[arg(
        long,
        value_name = "TABLE",
        env = "TAILPOST_TABLE",
        default_value = "outbox_event"
    )]
    pub table: Vec<String>,

    /// Name of this relay, in sessions, locks and logs [default: as --slot]
    ///
    /// One relay per name is active; a second one waits as a standby.
    #[arg(long, value_name = "NAME", env = "TAILPOST_NAME")]
    pub name: Option<String>,

    /// Replication slot; `init` makes it, `run` never does
    ///
    /// The server keeps its log from the slot's position on, for as long as the slot exists.
    #[arg(long, value_name = "SLOT", env = "TAILPOST_SLOT", default_value = "tailpost")]
    pub slot: String,

    /// Publication that covers the tables, written as in SQL; repeat for several [default: as --slot]
    ///
    /// It must publish inserts, with all rows and with every mapped column.
    #[arg(long, value_name = "PUBLICATION", env = "TAILPOST_PUBLICATION")]
    pub publication: Vec<String>,
}

impl fmt::Debug for SourceArgs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceArgs")
            .field("source", &self.source)
            .field("source_password_file", &self.source_password_file)
            .field("table", &self.table)
            .field("name", &self.name)
            .field("slot", &self.slot)
            .field("publication", &self.publication)
            .finish()
    }
}

/// What `init` makes besides publication and slot.
#[derive(Args, Clone, Debug, Default)]
pub struct InitArgs {
    /// Make the outbox table too, if it is not there
    ///
    /// `tailpost postgres schema` prints its statements.
    #[arg(long, env = "TAILPOST_CREATE_TABLE", value_parser = BoolishValueParser::new())]
    pub create_table: bool,

    /// Make a failover slot, which standbys keep a copy of (PostgreSQL 17 and later)
    ///
    /// Standbys need sync_replication_slots = on, and the primary must list them in synchronized_standby_slots, or a
    /// promoted standby may lack what was published already.
    #[arg(long, env = "TAILPOST_FAILOVER", value_parser = BoolishValueParser::new())]
    pub failover: bool,

    /// Publish the rows that are in the table already, before the slot begins
    ///
    /// They are read under the snapshot at which the slot begins, so that none is left out and none comes twice. The slot
    /// is made only when the broker has confirmed all of them: if it breaks off, run it again.
    #[arg(long, env = "TAILPOST_BACKFILL", value_parser = BoolishValueParser::new())]
    pub backfill: bool,

    /// Declare the exchange of --exchange on the broker, durable, of this kind: topic, direct, fanout, headers or another
    /// that the broker knows; needs --broker [default: none]
    #[arg(long, value_name = "KIND", env = "TAILPOST_DECLARE_EXCHANGE")]
    pub declare_exchange: Option<String>,

    /// Print every statement instead of running it
    #[arg(long, env = "TAILPOST_DRY_RUN", value_parser = BoolishValueParser::new())]
    pub dry_run: bool,
}

/// How `peek` prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PeekFormat {
    /// For people: a headline for each message, then headers and body.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What `peek` shows.
#[derive(Args, Clone, Debug, Default)]
pub struct PeekArgs {
    /// Stop after this many messages [default: no limit]
    #[arg(long, value_name = "N", env = "TAILPOST_LIMIT")]
    pub limit: Option<u64>,

    /// How messages are printed
    #[arg(
        long,
        value_name = "FORMAT",
        env = "TAILPOST_FORMAT",
        value_enum,
        default_value_t
    )]
    pub format: PeekFormat,

    /// Go on with what is committed from now on, until Ctrl-C
    ///
    /// Without it peek ends at what was committed when it started.
    #[arg(long, env = "TAILPOST_FOLLOW", value_parser = BoolishValueParser::new())]
    pub follow: bool,
}

/// Where to move the stored position.
#[derive(Args, Clone, Debug)]
pub struct OffsetSetArgs {
    /// Log position, as 16/B374D848
    ///
    /// A slot moves forward only: what lies between is never published. --offsets file: also takes an earlier one that
    /// the slot still has.
    #[arg(value_name = "LSN", required_unless_present = "previous")]
    pub position: Option<String>,

    /// Take the kept previous generation of an offset file, when the file itself is damaged
    #[arg(long, env = "TAILPOST_PREVIOUS", conflicts_with = "position", value_parser = BoolishValueParser::new())]
    pub previous: bool,

    /// Do not ask
    #[arg(long, env = "TAILPOST_YES", value_parser = BoolishValueParser::new())]
    pub yes: bool,
}

/// How `drop` behaves.
#[derive(Args, Clone, Debug, Default)]
pub struct DropArgs {
    /// Do not ask
    #[arg(long, env = "TAILPOST_YES", value_parser = BoolishValueParser::new())]
    pub yes: bool,
}

/// What `schema` prints; no connection is made.
#[derive(Args, Clone, Debug)]
pub struct SchemaArgs {
    /// Name of the table, written as in SQL
    #[arg(
        long,
        value_name = "TABLE",
        env = "TAILPOST_TABLE",
        default_value = "outbox_event"
    )]
    pub table: String,
}

#[expect(clippy::unnecessary_wraps, reason = "clap's value parsers return a result")]
fn secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text))
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Everything {
        #[command(flatten)]
        source: SourceArgs,
        #[command(flatten)]
        init: InitArgs,
        #[command(flatten)]
        peek: PeekArgs,
    }

    #[test]
    fn every_flag_has_an_environment_name_and_help() {
        let command = Everything::command();
        command.clone().debug_assert();
        for argument in command
            .get_arguments()
            .filter(|argument| argument.get_long().is_some_and(|long| long != "help"))
        {
            let long = argument.get_long().unwrap_or_default();
            let want = format!("TAILPOST_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(
                argument.get_env().and_then(|name| name.to_str()),
                Some(want.as_str())
            );
            assert!(argument.get_help().is_some(), "--{long} has no help");
        }
    }

    #[test]
    fn a_password_is_not_in_the_debug_output() {
        let typed = Everything::parse_from(["x", "--source", "postgres://u:canary@h/d"]);
        assert!(!format!("{:?}", typed.source).contains("canary"));
    }

    #[derive(Parser)]
    struct Set {
        #[command(flatten)]
        _set: OffsetSetArgs,
    }

    #[test]
    fn offset_set_wants_a_position_or_the_previous_generation() {
        assert!(Set::try_parse_from(["x"]).is_err());
        assert!(Set::try_parse_from(["x", "0/1", "--previous"]).is_err());
        assert!(Set::try_parse_from(["x", "--previous"]).is_ok());
        assert!(Set::try_parse_from(["x", "0/1"]).is_ok());
    }
}
