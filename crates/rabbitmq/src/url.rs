//! Where the broker is and how to log in: `amqp` and `amqps` URIs with RabbitMQ's query keys.
//!
//! Sources: <https://www.rabbitmq.com/docs/uri-spec>, <https://www.rabbitmq.com/docs/uri-query-parameters>. Stricter than
//! those in what a typing error could hide: unknown and repeated keys, TLS keys without TLS, and a raw `/`, `@` or `#`
//! where it would cut a password in two are faults. No fault and no `Debug` output holds a password.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::SinkError;
use crate::url_fault::UrlFault;
use crate::url_parse;

/// How to log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mechanism {
    Plain,
    /// By the client's certificate.
    External,
}

impl Mechanism {
    /// The SASL name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::External => "EXTERNAL",
        }
    }
}

/// What an `amqps` URL says about certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(crate) cacertfile: Option<PathBuf>,
    /// Certificate and key, PEM.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) verify_peer: bool,
    /// Overrides the host in SNI and in the check of the certificate's name.
    pub(crate) server_name: Option<String>,
}

/// A secret. `Debug` prints stars.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    pub(crate) fn new(text: String) -> Self {
        Self(text)
    }

    /// The text, for the wire only.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// One broker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrl {
    pub(crate) tls: Option<TlsSettings>,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) user: String,
    pub(crate) password: Secret,
    /// Whether the URL itself held a password.
    pub(crate) password_given: bool,
    pub(crate) vhost: String,
    /// In order of preference; never empty.
    pub(crate) mechanisms: Vec<Mechanism>,
    /// Seconds.
    pub(crate) heartbeat: u16,
    pub(crate) connection_timeout: Option<Duration>,
    /// 0: no limit of ours.
    pub(crate) channel_max: u16,
}

impl BrokerUrl {
    /// Parses one URI. All faults are reported at once.
    ///
    /// Defaults: user and password `guest`, port 5672 (`amqps`: 5671), virtual host `/` (a path of `/` alone names the
    /// empty one), `verify=verify_peer`, the system's certificates, `auth_mechanism=plain`, `heartbeat=20` seconds.
    pub fn parse(text: &str) -> Result<Self, Vec<UrlFault>> {
        url_parse::parse(text)
    }

    /// The URL without its password and query, for logs and pages.
    pub fn redacted(&self) -> String {
        let scheme = if self.tls.is_some() { "amqps" } else { "amqp" };
        let password = if self.password_given { ":***" } else { "" };
        let encode = |text| percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC);
        format!(
            "{scheme}://{}{password}@{}/{}",
            encode(&self.user),
            self.address(),
            encode(&self.vhost)
        )
    }

    /// `host:port`, an IPv6 address in brackets.
    pub fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// What an operator should know about this URL's security; one sentence each.
    pub fn security_notes(&self) -> Vec<String> {
        let address = self.address();
        let mut notes = Vec::new();
        match &self.tls {
            None if self.mechanisms.contains(&Mechanism::Plain) && !self.is_loopback() => notes.push(format!(
                "the password and every event cross the network to {address} unencrypted: use amqps"
            )),
            Some(tls) if !tls.verify_peer => notes.push(format!(
                "verify=verify_none accepts any certificate at {address}: whoever can redirect the connection reads the \
                 password and every event"
            )),
            None | Some(_) => {}
        }
        notes
    }

    fn is_loopback(&self) -> bool {
        self.host == "localhost"
            || self
                .host
                .parse::<IpAddr>()
                .is_ok_and(|address| address.is_loopback())
    }
}

/// The nodes of one cluster, tried in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerUrls {
    urls: Vec<BrokerUrl>,
    password_file: Option<PathBuf>,
}

impl BrokerUrls {
    /// Parses a list of URIs separated by commas. All faults are reported at once, with the number of their URL when
    /// there are several.
    pub fn parse(text: &str) -> Result<Self, Vec<UrlFault>> {
        let parts = url_parse::split(text);
        let several = parts.len() > 1;
        let (mut urls, mut faults) = (Vec::new(), Vec::new());
        for (number, part) in (1..).zip(&parts) {
            match BrokerUrl::parse(part) {
                Ok(url) => urls.push(url),
                Err(found) if several => {
                    faults.extend(found.into_iter().map(|fault| UrlFault::InUrl {
                        number,
                        fault: Box::new(fault),
                    }));
                }
                Err(found) => faults.extend(found),
            }
        }
        if faults.is_empty() {
            Ok(Self {
                urls,
                password_file: None,
            })
        } else {
            Err(faults)
        }
    }

    /// Takes the password from a file instead. It is read again at each connect; one trailing line end is cut off.
    #[must_use]
    pub fn with_password_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.password_file = Some(path.into());
        self
    }

    /// The URLs in the order given; at least one.
    pub fn urls(&self) -> &[BrokerUrl] {
        &self.urls
    }

    /// What an operator should know about the URLs' security; one sentence each.
    pub fn security_notes(&self) -> Vec<String> {
        self.urls.iter().flat_map(BrokerUrl::security_notes).collect()
    }

    /// The URL of try number `turn`, with the password as it is now.
    pub(crate) async fn at(&self, turn: usize) -> Result<BrokerUrl, SinkError> {
        let mut url = self.urls[turn % self.urls.len()].clone();
        if let Some(path) = &self.password_file {
            url.password = read_password(path).await?;
        }
        Ok(url)
    }
}

async fn read_password(path: &Path) -> Result<Secret, SinkError> {
    let text = tokio::fs::read_to_string(path)
        .await
        .map_err(|source| SinkError::PasswordFile {
            path: path.to_owned(),
            source,
        })?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret::new(text.strip_suffix('\r').unwrap_or(text).to_owned()))
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
