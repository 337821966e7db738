//! One server of each sort for all tests that need no more than a database or a vhost of their own.
//!
//! Tests run in processes of their own, and a RabbitMQ takes seconds to start: so the servers outlive them.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

use super::instance::{folder, script, warn};
use super::{Instance, Postgres, Rabbit, kinds};

/// The shared PostgreSQL: the one in `TAILPOST_TEST_POSTGRES`, or else one that the first test starts.
///
/// # Errors
/// There is none and it cannot be started: its kind is not installed.
pub async fn shared_postgres() -> anyhow::Result<Postgres> {
    shared(&kinds()?.postgres, "TAILPOST_TEST_POSTGRES", &[])
        .await
        .map(Postgres::attached)
}

/// The shared RabbitMQ: the one in `TAILPOST_TEST_RABBIT`, or else one that the first test starts.
///
/// # Errors
/// There is none and it cannot be started: its kind is not installed.
pub async fn shared_rabbit() -> anyhow::Result<Rabbit> {
    shared(&kinds()?.rabbit, "TAILPOST_TEST_RABBIT", &["--mgmt"])
        .await
        .map(Rabbit::attached)
}

async fn shared(kind: &str, variable: &str, args: &[&str]) -> anyhow::Result<Instance> {
    if let Some(folder) = std::env::var_os(variable) {
        return Instance::attach(Path::new(&folder)).with_context(|| format!("{variable} is set"));
    }
    let base = folder()?;
    // Held until the server answers; the lock ends with the file.
    let lock = lock(base.join("shared.lock")).await?;
    let folder = base.join(format!("shared-{kind}"));
    let path = folder.to_str().context("the folder's name is no UTF-8")?;
    let running = folder.exists()
        && script(["env", path])
            .await
            .is_ok_and(|env| !env.ends_with("PID=\n"));
    if !running {
        script(
            ["start", kind, "auto", path]
                .into_iter()
                .chain(args.iter().copied()),
        )
        .await?;
        warn(&format!(
            "started a {kind} for all tests and leave it running; to stop it: scripts/servers remove {path}"
        ));
    }
    drop(lock);
    Instance::attach(&folder)
}

async fn lock(path: PathBuf) -> anyhow::Result<File> {
    let locked = tokio::task::spawn_blocking(move || {
        let file = File::create(path)?;
        file.lock()?;
        anyhow::Ok(file)
    });
    locked.await?
}
