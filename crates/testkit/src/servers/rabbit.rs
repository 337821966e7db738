//! RabbitMQ.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;

use anyhow::{Context, ensure};
use hyper::Method;

use super::{Instance, Vhost};
use crate::http::{self, Answer};

/// `guest:guest`.
const AUTHORIZATION: &str = "Basic Z3Vlc3Q6Z3Vlc3Q=";

/// A RabbitMQ server; user `guest` with password `guest`, management API on.
#[derive(Debug)]
pub struct Rabbit(Instance);

impl Rabbit {
    /// Starts a private one, which takes some seconds. Each of `conf` is a line of `rabbitmq.conf`.
    ///
    /// # Errors
    /// The kind is not installed, or the server does not start.
    pub async fn start(kind: &str, conf: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(kind, &["--mgmt"], conf).await
    }

    /// As [`start`](Self::start), with a TLS listener too: [`tls_address`](Self::tls_address).
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub async fn start_with_tls(kind: &str, conf: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(kind, &["--mgmt", "--tls"], conf).await
    }

    async fn start_with(kind: &str, flags: &[&str], conf: &[&str]) -> anyhow::Result<Self> {
        let mut args = flags.to_vec();
        for line in conf {
            args.extend(["--conf", line]);
        }
        Ok(Self(Instance::start(kind, &args).await?))
    }

    pub(crate) fn attached(instance: Instance) -> Self {
        Self(instance)
    }

    /// The URL of its default vhost.
    pub fn amqp_url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.address())
    }

    /// Where it listens for TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.port("TLS_PORT")
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }

    /// Makes a vhost of its own for a test. On a shared server it is deleted with the handle.
    ///
    /// # Errors
    /// The management API cannot be reached or refuses.
    pub async fn create_vhost(&self) -> anyhow::Result<Vhost> {
        let name = super::unique_name();
        self.api(Method::PUT, &format!("/api/vhosts/{name}"), "").await?;
        let all = r#"{"configure":".*","write":".*","read":".*"}"#;
        self.api(Method::PUT, &format!("/api/permissions/{name}/guest"), all)
            .await?;
        Ok(Vhost::new(
            self.address(),
            self.management()?,
            name,
            !self.private(),
        ))
    }

    /// Writes down what was declared so far. RabbitMQ 3 answers before that, and a kill within the next second or two can
    /// lose a binding or a queue, durable or not: call this between declaring and the first kill.
    ///
    /// # Errors
    /// The command line tool fails.
    pub async fn sync(&self) -> anyhow::Result<()> {
        // Mnesia is RabbitMQ 3's metadata store; the one of RabbitMQ 4 (Khepri) answers when it is written.
        let sync = "case lists:keymember(mnesia, 1, application:which_applications()) of \
                    true -> mnesia:sync_log(); false -> ok end.";
        self.ctl(&["rabbitmqctl", "-q", "eval", sync]).await.map(drop)
    }

    /// Calls the management API: `/api/queues/VHOST`, `/api/connections`, ... `body` is JSON, or empty.
    ///
    /// # Errors
    /// The API cannot be reached, or answers with an error.
    pub async fn api(&self, method: Method, path: &str, body: &str) -> anyhow::Result<String> {
        call(self.management()?, method, path, body).await
    }

    fn management(&self) -> anyhow::Result<SocketAddr> {
        let port = self
            .port("MGMT_PORT")
            .context("this RabbitMQ runs without its management API")?;
        Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    }
}

/// Calls the management API as `guest`.
pub(crate) async fn call(api: SocketAddr, method: Method, path: &str, body: &str) -> anyhow::Result<String> {
    let what = format!("{method} {path}");
    let Answer { status, body } =
        http::request(api, method, path, Some(AUTHORIZATION), body.to_owned()).await?;
    ensure!((200..300).contains(&status), "{what}: status {status}: {body}");
    Ok(body)
}

impl Deref for Rabbit {
    type Target = Instance;

    fn deref(&self) -> &Instance {
        &self.0
    }
}
