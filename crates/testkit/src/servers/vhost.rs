//! A test's own vhost.

use std::net::SocketAddr;

use hyper::Method;
use serde_json::Value;

use super::instance::warn;
use super::rabbit::call;

/// A vhost that one test has for itself. On a shared server it is deleted with the handle.
#[derive(Debug)]
pub struct Vhost {
    address: SocketAddr,
    api: SocketAddr,
    name: String,
    delete: bool,
}

impl Vhost {
    pub(crate) fn new(address: SocketAddr, api: SocketAddr, name: String, delete: bool) -> Self {
        Self {
            address,
            api,
            name,
            delete,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.url_by(self.address)
    }

    /// Its URL by another address: that of a [`Proxy`](crate::Proxy).
    pub fn url_by(&self, address: SocketAddr) -> String {
        format!("amqp://guest:guest@{address}/{}", self.name)
    }

    /// Calls the management API on what belongs to this vhost: `api(PUT, "queues", "/orders", "{}")` is
    /// `PUT /api/queues/VHOST/orders`.
    ///
    /// # Errors
    /// The API cannot be reached, or answers with an error.
    pub async fn api(&self, method: Method, things: &str, rest: &str, body: &str) -> anyhow::Result<String> {
        call(
            self.api,
            method,
            &format!("/api/{things}/{}{rest}", self.name),
            body,
        )
        .await
    }

    /// Removes the binding of `queue` to `exchange` under `key`.
    ///
    /// # Errors
    /// As [`api`](Self::api); also when there is none.
    pub async fn unbind(&self, exchange: &str, queue: &str, key: &str) -> anyhow::Result<()> {
        // The API names a binding by its key, percent-encoded; `#` and `*` are what tests use.
        let key = key.replace('%', "%25").replace('#', "%23");
        self.api(
            Method::DELETE,
            "bindings",
            &format!("/e/{exchange}/q/{queue}/{key}"),
            "",
        )
        .await
        .map(drop)
    }

    /// Binds `queue` to `exchange` under `key`.
    ///
    /// # Errors
    /// As [`api`](Self::api).
    pub async fn bind(&self, exchange: &str, queue: &str, key: &str) -> anyhow::Result<()> {
        let body = serde_json::json!({ "routing_key": key }).to_string();
        self.api(
            Method::POST,
            "bindings",
            &format!("/e/{exchange}/q/{queue}"),
            &body,
        )
        .await
        .map(drop)
    }

    /// Closes all connections of this vhost, as an operator would by the management page.
    ///
    /// # Errors
    /// As [`api`](Self::api).
    pub async fn close_connections(&self) -> anyhow::Result<usize> {
        let connections: Value =
            serde_json::from_str(&self.api(Method::GET, "vhosts", "/connections", "").await?)?;
        let names: Vec<_> = connections
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["name"].as_str())
            .collect();
        for name in &names {
            let path = format!(
                "/api/connections/{}",
                name.replace(' ', "%20").replace('>', "%3E")
            );
            call(self.api, Method::DELETE, &path, "").await?;
        }
        Ok(names.len())
    }
}

impl Drop for Vhost {
    fn drop(&mut self) {
        if !self.delete {
            return;
        }
        let (api, path) = (self.api, format!("/api/vhosts/{}", self.name));
        // A thread of its own: the test's runtime may be going down.
        let deleted = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            runtime.block_on(call(api, Method::DELETE, &path, ""))
        });
        match deleted.join() {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => warn(&format!("could not delete vhost {}: {error:#}", self.name)),
            Err(_) => warn(&format!("could not delete vhost {}: panicked", self.name)),
        }
    }
}
