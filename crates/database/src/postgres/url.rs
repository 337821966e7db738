//! A parsed source URL.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::host::Place;
use super::passfile::{self, Lookup};
use super::settings::{ChannelBinding, Keepalive, RequireAuth, SslMode, SslNegotiation, TargetSession};
use super::{HostLabel, UrlFault};
use crate::tls::ClientTls;
use crate::{Environment, Secret};

const NON_ALPHANUMERIC_OR_SAFE: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'_')
    .remove(b'-')
    .remove(b'.')
    .remove(b'~');

/// A PostgreSQL connection as libpq would understand the URL, with all gaps filled. `Debug` shows no secret.
#[derive(Clone)]
pub struct Url {
    pub(super) hosts: Vec<HostLabel>,
    pub(super) user: String,
    pub(super) database: String,
    pub(super) password: Option<Secret>,
    pub(super) password_file: Option<PathBuf>,
    /// `.pgpass`: read at each connect, when there is no other password.
    pub(super) passfile: Option<PathBuf>,
    pub(super) ssl_mode: SslMode,
    pub(super) ssl_mode_given: bool,
    pub(super) ssl_negotiation: SslNegotiation,
    pub(super) tls: ClientTls,
    pub(super) channel_binding: ChannelBinding,
    pub(super) require_auth: RequireAuth,
    pub(super) target_session: TargetSession,
    pub(super) load_balance: bool,
    /// `None` waits for ever.
    pub(super) connect_timeout: Option<Duration>,
    pub(super) keepalive: Keepalive,
    pub(super) application_name: Option<String>,
    pub(super) options: Option<String>,
}

impl Url {
    /// Reads a URL, and fills its gaps from `environment` as libpq does: the service file, `PG*` variables, defaults.
    ///
    /// # Errors
    /// Every fault that it has, in the order in which they were found. No fault holds a password.
    pub fn parse(text: &str, environment: &dyn Environment) -> Result<Self, Vec<UrlFault>> {
        super::resolve::resolve(text, environment)
    }

    /// Takes the password from the file `path`, which is read again at every connect; it beats any other password.
    #[must_use]
    pub fn with_password_file(mut self, path: PathBuf) -> Self {
        self.password_file = Some(path);
        self
    }

    /// Returns the hosts in the order in which they are tried.
    pub fn hosts(&self) -> &[HostLabel] {
        &self.hosts
    }

    /// Returns the user's name.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the database's name.
    pub fn database(&self) -> &str {
        &self.database
    }

    /// Returns `application_name`, if one was given.
    pub fn application_name(&self) -> Option<&str> {
        self.application_name.as_deref()
    }

    /// Returns `options`: command-line options for the server, to be sent at start-up as they are.
    pub fn options(&self) -> Option<&str> {
        self.options.as_deref()
    }

    /// Returns `sslmode`.
    pub fn ssl_mode(&self) -> SslMode {
        self.ssl_mode
    }

    /// Returns `channel_binding`.
    pub fn channel_binding(&self) -> ChannelBinding {
        self.channel_binding
    }

    /// Returns `require_auth`.
    pub fn require_auth(&self) -> RequireAuth {
        self.require_auth
    }

    /// Returns `target_session_attrs`.
    pub fn target_session(&self) -> TargetSession {
        self.target_session
    }

    /// Returns the limit of one attempt to connect to one address; `None` waits for ever.
    pub fn connect_timeout(&self) -> Option<Duration> {
        self.connect_timeout
    }
}

impl Url {
    /// Returns the URL without password, for logs: user, hosts, database and `sslmode`.
    pub fn redacted(&self) -> String {
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC_OR_SAFE).to_string();
        let host = |host: &HostLabel| match &*host.place {
            Place::Unix(folder) => format!("{}:{}", encoded(&folder.display().to_string()), host.port),
            Place::Tcp { .. } => host.to_string(),
        };
        let hosts: Vec<String> = self.hosts.iter().map(host).collect();
        let (user, database) = (encoded(&self.user), encoded(&self.database));
        format!(
            "postgres://{user}@{}/{database}?sslmode={}",
            hosts.join(","),
            self.ssl_mode.name()
        )
    }

    /// Returns what is weaker than it might seem, each a sentence for the operator. Looks at files, but connects to nothing.
    pub fn security_notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if let Some(host) = self.hosts.iter().find(|host| !host.is_loopback()) {
            notes.extend(self.encryption_note(host));
        }
        if let (None, None, Some(path)) = (&self.password_file, &self.password, &self.passfile)
            && let Ok(Some(Lookup::Ignored(why))) = passfile::refuse(path)
        {
            notes.push(format!("the password file {} is ignored: {why}", path.display()));
        }
        notes
    }

    fn encryption_note(&self, host: &HostLabel) -> Option<String> {
        let mode = self.ssl_mode.name();
        let given = if self.ssl_mode_given {
            ""
        } else {
            ", which is the default,"
        };
        match self.ssl_mode {
            SslMode::Disable => Some(format!(
                "sslmode=disable: all that is said with \"{host}\" can be read and changed on the way"
            )),
            SslMode::Allow | SslMode::Prefer => Some(format!(
                "sslmode={mode}{given} goes on in plaintext when \"{host}\", or anybody on the way, refuses TLS: \
                 use sslmode=verify-full with sslrootcert"
            )),
            SslMode::Require if !self.tls.roots.are_present() => Some(format!(
                "sslmode=require encrypts and does not verify the certificate of \"{host}\": anybody on the way can pose as \
                 the server: use sslmode=verify-full with sslrootcert"
            )),
            SslMode::Require | SslMode::VerifyCa => Some(format!(
                "sslmode={mode} does not verify that the certificate is of \"{host}\": any server with a certificate of the \
                 same authority can pose as it: use sslmode=verify-full"
            )),
            SslMode::VerifyFull => None,
        }
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Url({})", self.redacted())
    }
}
