//! A test's own database.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use tokio_postgres::{Client, NoTls};

use super::instance::warn;
use crate::wait::until;

/// A database that one test has for itself. On a shared server it is dropped with the handle.
#[derive(Debug)]
pub struct Database {
    address: SocketAddr,
    name: String,
    drop: bool,
}

impl Database {
    pub(crate) fn new(address: SocketAddr, name: String, drop: bool) -> Self {
        Self { address, name, drop }
    }

    /// Its name; also unique in its cluster as the name of a slot.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The superuser's URL.
    pub fn url(&self) -> String {
        self.url_by(self.address)
    }

    /// The superuser's URL by another address: that of a [`Proxy`](crate::Proxy).
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("postgres://postgres@{address}/{}", self.name)
    }

    /// Opens a session.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn connect(&self) -> anyhow::Result<Client> {
        connect(&self.url()).await
    }

    /// Opens a session and runs statements.
    ///
    /// # Errors
    /// The server cannot be reached or refuses a statement.
    pub async fn execute(&self, sql: &str) -> anyhow::Result<()> {
        self.connect()
            .await?
            .batch_execute(sql)
            .await
            .with_context(|| format!("could not run: {sql}"))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if !self.drop {
            return;
        }
        let (address, name) = (self.address, self.name.clone());
        // A thread of its own: the test's runtime may be going down, and a slot left behind holds WAL for ever.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(drop_database(address, &name))
        });
        match dropped.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn(&format!("could not drop database {}: {error:#}", self.name)),
            Err(_) => warn(&format!("could not drop database {}: panicked", self.name)),
        }
    }
}

async fn drop_database(address: SocketAddr, name: &str) -> anyhow::Result<()> {
    let admin = connect(&format!("postgres://postgres@{address}/postgres")).await?;
    let slots =
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = $1 AND active";
    let idle = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = $1 AND NOT active";
    let left = "SELECT count(*) FROM pg_replication_slots WHERE database = $1";
    until(
        "the database's slots are dropped",
        Duration::from_secs(10),
        async || {
            admin.execute(slots, &[&name]).await?;
            // A relay that is still there may take the slot between the question and the drop.
            let dropped = admin.execute(idle, &[&name]).await;
            let left: i64 = admin.query_one(left, &[&name]).await?.get(0);
            Ok((dropped.is_ok() && left == 0).then_some(()))
        },
    )
    .await?;
    admin
        .batch_execute(&format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)"))
        .await?;
    Ok(())
}

/// Opens a session whose connection is driven by a task of its own, and which ends with the client.
///
/// # Errors
/// The server cannot be reached within 10 s.
pub async fn connect(url: &str) -> anyhow::Result<Client> {
    let connecting = tokio::time::timeout(Duration::from_secs(10), tokio_postgres::connect(url, NoTls));
    let (client, connection) = connecting.await.context("no answer from PostgreSQL in 10 s")??;
    tokio::spawn(async move {
        // The client's own calls report what goes wrong.
        drop(connection.await);
    });
    Ok(client)
}
