//! PostgreSQL.

use std::ops::Deref;

use super::{Database, Instance, connect};

/// A PostgreSQL server; superuser `postgres` without a password, `wal_level = logical`.
#[derive(Debug)]
pub struct Postgres(Instance);

impl Postgres {
    /// Starts a private one. `args` go to the server (`-c`, `wal_sender_timeout=5s`), but for `--tls` and
    /// `--hba LINE`, which `scripts/servers` explains.
    ///
    /// # Errors
    /// The kind is not installed, or the server does not start.
    pub async fn start(kind: &str, args: &[&str]) -> anyhow::Result<Self> {
        Ok(Self(Instance::start(kind, args).await?))
    }

    pub(crate) fn attached(instance: Instance) -> Self {
        Self(instance)
    }

    /// The superuser's URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@{}/{database}", self.address())
    }

    /// Makes a database of its own for a test. On a shared server it is dropped with the handle, its slots first.
    ///
    /// # Errors
    /// The server cannot be reached or refuses.
    pub async fn create_database(&self) -> anyhow::Result<Database> {
        let name = super::unique_name();
        let admin = connect(&self.url("postgres")).await?;
        admin
            .batch_execute(&format!("CREATE DATABASE {name} TEMPLATE template0"))
            .await?;
        Ok(Database::new(self.address(), name, !self.private()))
    }
}

impl Deref for Postgres {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.0
    }
}
