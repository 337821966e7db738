//! What the system tests share: a scene of a database, a vhost and a Tailpost between them, and its verdict.
//!
//! Long runs and short ones are the same tests: [`scale`] reads how often or how long from the environment, and
//! `scripts/soak` sets it.

pub mod load;

use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tailpost_testkit::consumer::{QueueKind, declare};
use tailpost_testkit::servers::{Database, Vhost, unique_name};

use tailpost_testkit::{
    Consumer, Ended, Ledger, Postgres, Rabbit, Tailpost, checker, lsn, shared_postgres, shared_rabbit,
};
use tempfile::TempDir;

/// Long enough for anything that a test waits for on a busy machine.
pub const LONG: Duration = Duration::from_secs(60);
/// The figure of the product: delivering again, by itself, after a fault.
pub const RECOVERY: Duration = Duration::from_secs(30);
/// The queue that takes everything.
pub const QUEUE: &str = "all";

/// Reads how often or how long a test does something: `TAILPOST_TEST_NAME` (`scripts/soak` sets it), else `default`.
///
/// # Panics
/// When the variable is no number: a typing error must not shorten a long run.
pub fn scale(name: &str, default: u64) -> u64 {
    let name = format!("TAILPOST_TEST_{name}");
    match std::env::var(&name) {
        Ok(text) => text
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number: {text}")),
        Err(_) => default,
    }
}

/// Where a scene's Tailpost keeps its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offsets {
    /// `--offsets slot`.
    Slot,
    /// `--offsets file:`, in the scene's folder.
    File,
}

/// A database and a vhost of one test's own, on shared or private servers.
#[derive(Debug)]
pub struct Scene {
    /// The database.
    pub database: Database,
    /// The vhost.
    pub vhost: Vhost,
    /// The slot's name; unique on its server.
    pub slot: String,
    /// Where the offset is.
    pub offsets: Offsets,
    folder: TempDir,
}

impl Scene {
    /// A scene on the servers that all tests share: nothing may be stopped or reconfigured.
    ///
    /// # Errors
    /// A server cannot be started: never a skip.
    pub async fn shared() -> Result<Self> {
        Self::on(&shared_postgres().await?, &shared_rabbit().await?).await
    }

    /// A scene on servers of the test's own, which it may kill.
    ///
    /// # Errors
    /// The servers do not answer.
    pub async fn on(postgres: &Postgres, rabbit: &Rabbit) -> Result<Self> {
        Ok(Self {
            database: postgres.create_database().await?,
            vhost: rabbit.create_vhost().await?,
            slot: unique_name(),
            offsets: Offsets::Slot,
            folder: tempfile::tempdir()?,
        })
    }

    /// The same scene with another place for the offset.
    #[must_use]
    pub fn with_offsets(mut self, offsets: Offsets) -> Self {
        self.offsets = offsets;
        self
    }

    /// Table, publication, slot, exchange `events` and a classic queue [`QUEUE`] bound to everything.
    ///
    /// # Errors
    /// `init` failed.
    pub async fn prepare(&self) -> Result<()> {
        self.prepare_with(QueueKind::Classic, &["#"]).await
    }

    /// As [`prepare`](Self::prepare), with another queue.
    ///
    /// # Errors
    /// `init` failed.
    pub async fn prepare_with(&self, kind: QueueKind, keys: &[&str]) -> Result<()> {
        let url = self.vhost.url();
        let init = ["--create-table", "--broker", &url, "--declare-exchange", "topic"];
        self.verb("init", &init).await?.success()?;
        declare(&url, "events", QUEUE, kind, keys).await
    }

    /// `postgres VERB` with the source's flags, `extra` behind them.
    pub fn args(&self, verb: &str, extra: &[&str]) -> Vec<String> {
        let url = self.database.url();
        let source = ["--source", &url, "--slot", &self.slot];
        let verbs = verb.split(' ');
        ["postgres"]
            .into_iter()
            .chain(verbs)
            .chain(source)
            .chain(extra.iter().copied())
            .map(str::to_owned)
            .collect()
    }

    /// Runs a verb (`check`, `offset show`) to its end.
    ///
    /// # Errors
    /// It cannot be started.
    pub async fn verb(&self, verb: &str, extra: &[&str]) -> Result<Ended> {
        let args = self.args(verb, extra);
        Tailpost::command(&args.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// The file of [`Offsets::File`].
    pub fn offset_file(&self) -> PathBuf {
        self.folder.path().join("offset")
    }

    /// The flags of `run` beside the source's.
    pub fn run_args(&self, broker: &str, extra: &[&str]) -> Vec<String> {
        let mut args = self.args("run", &["--broker", broker]);
        if self.offsets == Offsets::File {
            args.extend([
                "--offsets".into(),
                format!("file:{}", self.offset_file().display()),
            ]);
        }
        args.extend(extra.iter().map(|arg| (*arg).to_owned()));
        args
    }

    /// Starts `run`; it may not be ready yet.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run(&self, extra: &[&str]) -> Result<Tailpost> {
        self.run_by(&self.vhost.url(), extra)
    }

    /// Starts `run` with another way to the broker.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn run_by(&self, broker: &str, extra: &[&str]) -> Result<Tailpost> {
        let args = self.run_args(broker, extra);
        Tailpost::spawn(&args.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts `run` and waits until it is ready.
    ///
    /// # Errors
    /// It ended, or did not become ready.
    pub async fn run_ready(&self, extra: &[&str]) -> Result<Tailpost> {
        let mut tailpost = self.run(extra)?;
        tailpost.wait_ready(LONG).await?;
        Ok(tailpost)
    }

    /// A consumer of [`QUEUE`].
    ///
    /// # Errors
    /// The broker cannot be reached.
    pub async fn consume(&self) -> Result<Consumer> {
        Consumer::start(&self.vhost.url(), QUEUE, 500).await
    }

    /// What is committed in the outbox table.
    ///
    /// # Errors
    /// The database cannot be reached.
    pub async fn ledger(&self) -> Result<Ledger> {
        Ledger::read(&self.database.connect().await?, "outbox_event").await
    }

    /// Waits until everything committed has been delivered once, and stops the consumer.
    ///
    /// # Errors
    /// Something did not come, or what came is not right: lost, phantom, inversions, altered.
    pub async fn settle(&self, consumer: Consumer) -> Result<checker::Verdict> {
        let ledger = self.ledger().await?;
        consumer.wait_for(ledger.0.len(), LONG * 5).await?;
        let deliveries = consumer.stop().await?;
        let verdict = checker::check(&ledger, &deliveries);
        verdict.assert_clean()?;
        Ok(verdict)
    }

    /// Laws 1 and 2 from outside: with Tailpost dead, whatever would not be sent again has been delivered, and the slot is
    /// not past the stored position. `peek` says what the slot would send; of that an offset file passes what lies before it.
    ///
    /// # Errors
    /// The position has passed an event that nobody received.
    pub async fn assert_position_is_safe(&self, consumer: &Consumer) -> Result<()> {
        let ledger = self.ledger().await?;
        let stored = self.stored_in_file().await?;
        let peeked = self
            .verb("peek", &["--format", "json", "--log", "error"])
            .await?
            .success()?;
        let mut unsent = HashSet::new();
        for line in peeked.stdout.lines() {
            let (id, commit) = id_and_commit(line)?;
            if stored.is_none_or(|stored| commit >= stored) {
                unsent.insert(id);
            }
        }
        consumer.wait_quiet(Duration::from_millis(300), LONG).await?;
        let delivered: HashSet<String> = consumer
            .since(0)
            .into_iter()
            .map(|delivery| delivery.message_id.to_string())
            .collect();
        let passed = ledger
            .0
            .iter()
            .find(|event| !unsent.contains(&event.id) && !delivered.contains(&event.id));
        ensure!(
            passed.is_none(),
            "the position has passed {passed:?}, which was not delivered"
        );
        Ok(())
    }

    /// The position in the offset file, if it is there and used; the slot must not be past it.
    async fn stored_in_file(&self) -> Result<Option<u64>> {
        if self.offsets == Offsets::Slot || !self.offset_file().exists() {
            return Ok(None);
        }
        let file = format!("file:{}", self.offset_file().display());
        let shown = self
            .verb("offset show", &["--offsets", &file])
            .await?
            .success()?
            .stdout;
        let offsets = shown
            .lines()
            .filter_map(|line| line.strip_prefix("offset")?.split_whitespace().next());
        let offsets = offsets.map(lsn).collect::<Result<Vec<u64>>>()?;
        let [stored, slot] = offsets[..] else {
            bail!("offset show prints {} offsets:\n{shown}", offsets.len())
        };
        ensure!(slot <= stored, "the slot is past the stored position:\n{shown}");
        Ok(Some(stored))
    }
}

/// The event's id, and the place of its commit, of a message that `peek` printed.
fn id_and_commit(line: &str) -> Result<(String, u64)> {
    let message: serde_json::Value = serde_json::from_str(line)?;
    let id = message["properties"]["message_id"]
        .as_str()
        .context("peek printed a message without an id")?;
    let position = message["headers"]["tailpost_position"]
        .as_str()
        .context("peek printed no position")?;
    let commit = position.rsplit_once(':').context("a position has an index")?.0;
    Ok((id.to_owned(), lsn(commit)?))
}
