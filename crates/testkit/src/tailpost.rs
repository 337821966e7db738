//! The real binary, as a user runs it.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::http::{self, Answer};
use crate::ports::free_address;
use crate::wait::until;

/// How long [`Tailpost::command`] may take.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// A running Tailpost. Dropping it kills it.
#[derive(Debug)]
pub struct Tailpost {
    child: Child,
    pid: Pid,
    outputs: Outputs,
    listen: Option<SocketAddr>,
}

/// How a Tailpost ended, and what it printed.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it printed.
    pub stdout: String,
    /// What it said.
    pub stderr: String,
}

impl Ended {
    /// The exit status; `None` after a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Demands status 0.
    ///
    /// # Errors
    /// It failed; the error holds what it printed.
    pub fn success(self) -> anyhow::Result<Self> {
        ensure!(
            self.status.success(),
            "tailpost: {}\n{}{}",
            self.status,
            self.stdout,
            self.stderr
        );
        Ok(self)
    }
}

impl Tailpost {
    /// Runs a verb to its end (`postgres init ...`), and waits for at most two minutes.
    ///
    /// # Errors
    /// It could not be run, or did not end. A status other than 0 is no error: see [`Ended::success`].
    pub async fn command(args: &[&str]) -> anyhow::Result<Ended> {
        Self::command_with(args, &[]).await
    }

    /// As [`command`](Self::command), with environment variables.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub async fn command_with(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Ended> {
        let mut tailpost = Self::launch(args, env, None)?;
        let status = timeout(COMMAND_LIMIT, tailpost.child.wait())
            .await
            .with_context(|| {
                format!(
                    "tailpost {args:?} did not end in {COMMAND_LIMIT:?}\n{}",
                    tailpost.stderr()
                )
            })??;
        Ok(Ended {
            status,
            stdout: tailpost.stdout(),
            stderr: tailpost.stderr(),
        })
    }

    /// Starts it and returns at once. A `run` without a `--listen` of its own gets one on a free port.
    ///
    /// # Errors
    /// It could not be started.
    pub fn spawn(args: &[&str]) -> anyhow::Result<Self> {
        Self::spawn_with(args, &[])
    }

    /// As [`spawn`](Self::spawn), with environment variables.
    ///
    /// # Errors
    /// As [`spawn`](Self::spawn).
    pub fn spawn_with(args: &[&str], env: &[(&str, &str)]) -> anyhow::Result<Self> {
        let own = args.iter().any(|arg| arg.starts_with("--listen"));
        let listen = if args.contains(&"run") && !own {
            Some(free_address()?)
        } else {
            None
        };
        Self::launch(args, env, listen)
    }

    fn launch(args: &[&str], env: &[(&str, &str)], listen: Option<SocketAddr>) -> anyhow::Result<Self> {
        let outputs = Outputs::new()?;
        let mut command = Command::new(binary()?);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(outputs.create("stdout")?)
            .stderr(outputs.create("stderr")?);
        command.kill_on_drop(true);
        // What this process was told (TAILPOST_TEST_*, PG*, a developer's own) is not what the binary is told.
        for (name, _) in std::env::vars_os().filter(|(name, _)| belongs_to_product(name)) {
            command.env_remove(name);
        }
        command.envs(env.iter().copied());
        if let Some(address) = listen {
            command.args(["--listen", &address.to_string()]);
        }
        let child = command.spawn().context("could not start tailpost")?;
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(i32::try_from(id).ok()?))
            .context("tailpost has no pid")?;
        Ok(Self {
            child,
            pid,
            outputs,
            listen,
        })
    }

    /// Waits until `/readyz` says 200.
    ///
    /// # Errors
    /// It ended, or is not ready within `limit`; the error holds its log.
    pub async fn wait_ready(&mut self, limit: Duration) -> anyhow::Result<()> {
        let ready = until("tailpost is ready", limit, async || {
            if let Some(status) = self.child.try_wait()? {
                bail!("tailpost ended: {status}");
            }
            // Not listening yet is not ready yet.
            Ok(self
                .get("/readyz")
                .await
                .ok()
                .filter(|answer| answer.status == 200)
                .map(drop))
        });
        ready
            .await
            .with_context(|| format!("tailpost's log:\n{}", self.stderr()))
    }

    /// Requests a page of its `--listen` address: `/readyz`, `/metrics`.
    ///
    /// # Errors
    /// It does not listen.
    pub async fn get(&self, path: &str) -> anyhow::Result<Answer> {
        http::get(
            self.listen.context("this tailpost was given its own --listen")?,
            path,
        )
        .await
    }

    /// The value of a metric's sample, by its whole name with labels: `name{label="value"}`. `None` when there is none.
    ///
    /// # Errors
    /// It does not listen.
    pub async fn metric(&self, sample: &str) -> anyhow::Result<Option<f64>> {
        let page = self.get("/metrics").await?.body;
        Ok(page
            .lines()
            .find_map(|line| line.strip_prefix(sample)?.strip_prefix(' ')?.trim().parse().ok()))
    }

    /// Sends SIGKILL and waits until it is gone.
    ///
    /// # Errors
    /// It could not be killed or waited for.
    pub async fn kill9(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("could not kill tailpost")
    }

    /// Sends SIGTERM, and returns at once.
    ///
    /// # Errors
    /// It is gone already.
    pub fn sigterm(&self) -> anyhow::Result<()> {
        self.signal(Signal::TERM)
    }

    /// Sends a signal: `STOP` and `CONT` to make it hang for a while.
    ///
    /// # Errors
    /// It is gone already.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        // Not waited for, the process keeps its number even when it ended: nobody else can be hit.
        ensure!(self.child.id().is_some(), "tailpost is gone already");
        kill_process(self.pid, signal).context("could not signal tailpost")
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It did not end within `limit`.
    pub async fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let ended = timeout(limit, self.child.wait()).await;
        Ok(ended
            .with_context(|| format!("tailpost did not end in {limit:?}; its log:\n{}", self.stderr()))??)
    }

    /// Its end, if it ended already.
    ///
    /// # Errors
    /// The operating system does not say.
    pub fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// Its resident set, in KiB.
    ///
    /// # Errors
    /// It is gone.
    pub fn rss_kib(&self) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid.as_raw_nonzero()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line
            .and_then(|line| line.split_whitespace().next())
            .context("/proc shows no VmRSS")?;
        Ok(number.parse()?)
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Where it listens, if this kit chose the address.
    pub fn listen(&self) -> Option<SocketAddr> {
        self.listen
    }

    /// What it printed so far.
    pub fn stdout(&self) -> String {
        self.outputs.read("stdout")
    }

    /// What it said so far: its log.
    pub fn stderr(&self) -> String {
        self.outputs.read("stderr")
    }

    /// Finds which of `canaries` (passwords, payloads) it let out: in its outputs, its command line, its pages.
    ///
    /// # Errors
    /// None while it lives; a page that cannot be read holds nothing.
    pub async fn leaked<'a>(&self, canaries: &[&'a str]) -> anyhow::Result<Vec<&'a str>> {
        let mut seen = format!("{}{}", self.stdout(), self.stderr());
        seen.push_str(&String::from_utf8_lossy(
            &fs::read(format!("/proc/{}/cmdline", self.pid())).unwrap_or_default(),
        ));
        if self.listen.is_some() {
            for page in ["/", "/livez", "/readyz", "/metrics"] {
                seen.push_str(&self.get(page).await.map(|answer| answer.body).unwrap_or_default());
            }
        }
        Ok(canaries
            .iter()
            .copied()
            .filter(|canary| seen.contains(canary))
            .collect())
    }
}

/// Tells whether a variable of this process's environment would be taken by the binary as meant for it.
fn belongs_to_product(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    name.starts_with("TAILPOST_") || name.starts_with("PG") || name.starts_with("AMQP")
}

/// The binary under test: `TAILPOST_BIN`, or the one that cargo built beside this test.
fn binary() -> anyhow::Result<PathBuf> {
    let binary = match std::env::var_os("TAILPOST_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            // target/debug/deps/TEST or target/debug/PROGRAM
            let exe = std::env::current_exe()?;
            let near = exe
                .parent()
                .into_iter()
                .flat_map(|folder| folder.ancestors().take(2));
            near.map(|folder| folder.join("tailpost"))
                .find(|path| path.is_file())
                .context("there is no tailpost beside this test; build it first: cargo build -p tailpost")?
        }
    };
    ensure!(
        binary.is_file(),
        "there is no {}; build it first: cargo build -p tailpost",
        binary.display()
    );
    Ok(binary)
}

/// Files that take what the process prints: a pipe would have to be read all the time.
#[derive(Debug)]
struct Outputs(TempDir);

impl Outputs {
    fn new() -> anyhow::Result<Self> {
        Ok(Self(tempfile::Builder::new().prefix("tailpost-out-").tempdir()?))
    }

    fn create(&self, name: &str) -> anyhow::Result<File> {
        Ok(File::create(self.0.path().join(name))?)
    }

    fn read(&self, name: &str) -> String {
        let bytes = fs::read(self.0.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
