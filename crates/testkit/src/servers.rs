//! Real servers: private ones for what harms a server, and one shared of each for all other tests.
//!
//! All are made by `scripts/servers`, which has to have installed them. A private server dies with its handle. The
//! shared ones are started by `scripts/test`; where nobody started them, the first test does, under a lock, and leaves
//! them running with a word on how to stop them.

mod database;
mod instance;
mod postgres;
mod rabbit;
mod shared;
mod vhost;

use anyhow::Context;

pub use database::{Database, connect};
pub use instance::{Instance, Stop};
pub use postgres::Postgres;
pub use rabbit::Rabbit;
pub use shared::{shared_postgres, shared_rabbit};
pub use vhost::Vhost;

/// The kinds of servers that this run tests against, as `scripts/servers` names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kinds {
    /// `pg`, `pg18`, ...
    pub postgres: String,
    /// `rabbit`, `rabbit4`, ...
    pub rabbit: String,
}

/// Returns what `TAILPOST_TEST_KINDS` says; `pg,rabbit` when it is not set.
///
/// # Errors
/// The variable names none of a sort.
pub fn kinds() -> anyhow::Result<Kinds> {
    parse_kinds(&std::env::var("TAILPOST_TEST_KINDS").unwrap_or_else(|_| "pg,rabbit".to_owned()))
}

fn parse_kinds(text: &str) -> anyhow::Result<Kinds> {
    let find = |prefix: &str| {
        text.split(',')
            .map(str::trim)
            .find(|kind| kind.starts_with(prefix))
            .map(str::to_owned)
            .with_context(|| format!("TAILPOST_TEST_KINDS={text} names no kind that begins with {prefix}"))
    };
    Ok(Kinds {
        postgres: find("pg")?,
        rabbit: find("rabbit")?,
    })
}

/// A name that no other test uses: for databases, slots, vhosts, queues.
pub fn unique_name() -> String {
    format!("t{}_{:08x}", std::process::id(), fastrand::u32(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_found_in_any_order_and_a_missing_one_is_an_error() {
        let kinds = parse_kinds("rabbit4, pg18").unwrap();
        assert_eq!(
            (kinds.postgres.as_str(), kinds.rabbit.as_str()),
            ("pg18", "rabbit4")
        );
        assert!(parse_kinds("pg18").is_err());
    }
}
