//! One running server, whatever its kind.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command as BlockingCommand, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail, ensure};
use tokio::process::Command;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/servers");

/// How to stop a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// As its operator would: PostgreSQL's fast shutdown, RabbitMQ's SIGTERM. An error if it takes over 60 s.
    Fast,
    /// SIGKILL to it and its children.
    Kill,
}

/// A server in its folder. Dropping the handle of a private one kills it and removes the folder.
#[derive(Debug)]
pub struct Instance {
    kind: String,
    folder: PathBuf,
    values: HashMap<String, String>,
    private: bool,
}

impl Instance {
    /// Starts a private server on a free port, and returns when it answers.
    ///
    /// # Errors
    /// The kind is unknown or not installed, or the server does not start.
    pub async fn start(kind: &str, args: &[&str]) -> anyhow::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        sweep_once().await?;
        let name = format!(
            "{kind}-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let folder = folder()?.join(name);
        let mut started = Self {
            kind: kind.to_owned(),
            folder,
            values: HashMap::new(),
            private: true,
        };
        started.launch(args).await?;
        started.values = read_values(&started.folder)?;
        Ok(started)
    }

    /// Takes a server that somebody else started in `folder`, and that must not be stopped by this process.
    ///
    /// # Errors
    /// There is none.
    pub fn attach(folder: &Path) -> anyhow::Result<Self> {
        let values = read_values(folder)?;
        let kind = values
            .get("KIND")
            .cloned()
            .context("the instance's env names no KIND")?;
        Ok(Self {
            kind,
            folder: folder.to_owned(),
            values,
            private: false,
        })
    }

    /// Stops it. Its data stay.
    ///
    /// # Errors
    /// It is shared, or an orderly stop took over 60 s (it is killed then).
    pub async fn stop(&self, how: Stop) -> anyhow::Result<()> {
        ensure!(
            self.private,
            "{} is shared by other tests: start a private one to stop it",
            self.kind
        );
        let how = match how {
            Stop::Fast => "fast",
            Stop::Kill => "kill",
        };
        script([OsStr::new("stop"), self.folder.as_os_str(), OsStr::new(how)])
            .await
            .map(drop)
    }

    /// Starts it again on its old port, with its data and its arguments, and returns when it answers.
    ///
    /// # Errors
    /// It does not start.
    pub async fn start_again(&self) -> anyhow::Result<()> {
        self.launch(&[]).await
    }

    /// Runs a command of the server's own (`rabbitmqctl`, `pg_ctl`, `psql`) as its user, and returns what it printed.
    ///
    /// # Errors
    /// The command failed; the error holds what it said.
    pub async fn ctl(&self, command: &[&str]) -> anyhow::Result<String> {
        let head = [OsStr::new("exec"), self.folder.as_os_str()];
        script(head.into_iter().chain(command.iter().map(OsStr::new))).await
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port("PORT").unwrap_or_default()))
    }

    /// Its kind, as `scripts/servers` names it.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Its version, `15.18`.
    pub fn version(&self) -> &str {
        self.value("VERSION").unwrap_or_default()
    }

    /// Its folder: data, logs, certificates.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The authority that signed its certificate, when it was started with `--tls`.
    pub fn authority(&self) -> Option<&str> {
        self.value("TLS_CA")
    }

    /// Tells whether it is this process's own.
    pub(crate) fn private(&self) -> bool {
        self.private
    }

    pub(crate) fn port(&self, name: &str) -> Option<u16> {
        self.value(name)?.parse().ok()
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    async fn launch(&self, args: &[&str]) -> anyhow::Result<()> {
        let head = [
            OsStr::new("start"),
            OsStr::new(&self.kind),
            OsStr::new("auto"),
            self.folder.as_os_str(),
        ];
        script(head.into_iter().chain(args.iter().map(OsStr::new)))
            .await
            .map(drop)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        if self.private && self.folder.exists() {
            // Blocks for a fraction of a second; a server left behind would cost more.
            let removed = BlockingCommand::new(SCRIPT)
                .arg("remove")
                .arg(&self.folder)
                .stdin(Stdio::null())
                .output();
            if !removed.as_ref().is_ok_and(|output| output.status.success()) {
                warn(&format!(
                    "could not remove the server in {}: {removed:?}",
                    self.folder.display()
                ));
            }
        }
    }
}

/// Where servers of tests live: `TAILPOST_TEST_DIR`, or one folder a user. Its name is short for the sake of Unix
/// sockets, and open to others for the sake of the servers' own users.
pub(crate) fn folder() -> anyhow::Result<PathBuf> {
    let folder = match std::env::var_os("TAILPOST_TEST_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(format!(
            "/tmp/tailpost-test-{}",
            rustix::process::getuid().as_raw()
        )),
    };
    fs::create_dir_all(&folder).with_context(|| format!("could not make {}", folder.display()))?;
    Ok(folder)
}

/// Runs `scripts/servers`.
pub(crate) async fn script<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> anyhow::Result<String> {
    let mut command = Command::new(SCRIPT);
    command.args(args).stdin(Stdio::null());
    let output = command
        .output()
        .await
        .with_context(|| format!("could not run {SCRIPT}"))?;
    said(&format!("{:?}", command.as_std()), output)
}

/// A word to the person who runs the tests.
#[expect(
    clippy::print_stderr,
    reason = "this is the test kit talking to a developer; nobody reads logs of it"
)]
pub(crate) fn warn(text: &str) {
    eprintln!("tailpost-testkit: {text}");
}

fn said(command: &str, output: Output) -> anyhow::Result<String> {
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!(
            "{command}: {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr),
            stdout
        );
    }
    Ok(stdout)
}

fn read_values(folder: &Path) -> anyhow::Result<HashMap<String, String>> {
    let file = folder.join("env");
    let text =
        fs::read_to_string(&file).with_context(|| format!("there is no server in {}", folder.display()))?;
    Ok(parse_values(&text))
}

fn parse_values(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

/// Removes, once a process, the private servers of test processes that were killed before they could do it.
async fn sweep_once() -> anyhow::Result<()> {
    static SWEPT: OnceLock<()> = OnceLock::new();
    if SWEPT.set(()).is_err() {
        return Ok(());
    }
    for entry in fs::read_dir(folder()?)? {
        let entry = entry?;
        if owner(&entry.file_name()).is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
            script([OsStr::new("remove"), entry.path().as_os_str()]).await?;
        }
    }
    Ok(())
}

/// `pg18-4711-0` belongs to process 4711.
fn owner(name: &OsStr) -> Option<u32> {
    let mut parts = name.to_str()?.rsplitn(3, '-');
    let (_count, pid, _kind) = (parts.next()?.parse::<u32>().ok()?, parts.next()?, parts.next()?);
    pid.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_instances_have_an_owner() {
        assert_eq!(owner(OsStr::new("pg18-4711-0")), Some(4711));
        assert_eq!(owner(OsStr::new("shared-pg")), None);
        assert_eq!(owner(OsStr::new("shared-4711-pg")), None);
    }

    #[test]
    fn values_may_hold_an_equals_sign_or_nothing() {
        let values = parse_values("KIND=pg\nTLS_CA=/tmp/a=b\nMGMT_PORT=\n");
        assert_eq!(values["TLS_CA"], "/tmp/a=b");
        assert_eq!(values["MGMT_PORT"], "");
    }
}
