//! Why a connection could not be had, and what its operator can do about it.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::HostLabel;
use crate::TlsFault;

/// Why there is no connection. No variant holds a password or a URL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The host's name did not resolve.
    #[error("could not resolve host \"{host}\"")]
    Resolve {
        /// Which host.
        host: HostLabel,
        /// What the resolver said.
        source: io::Error,
    },
    /// No connection to the address: refused, no route, no such socket.
    #[error("could not connect to \"{host}\"")]
    Reach {
        /// Which host.
        host: HostLabel,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing within `connect_timeout`.
    #[error("could not connect to \"{host}\" within {} s", limit.as_secs())]
    Timeout {
        /// Which host.
        host: HostLabel,
        /// The limit that passed.
        limit: Duration,
    },
    /// The connection was lost, or made no sense, before the session began.
    #[error("lost the connection to \"{host}\" while it was being set up")]
    Broken {
        /// Which host.
        host: HostLabel,
        /// What happened.
        source: io::Error,
    },
    /// TLS could not be set up as `sslmode` wants it.
    #[error("no TLS session with \"{host}\"")]
    Tls {
        /// Which host.
        host: HostLabel,
        /// What stood in the way.
        source: TlsFault,
    },
    /// The server answered that the credentials are wrong (28P01, 28000).
    #[error("host \"{host}\" refuses the credentials of user \"{user}\": {message} (SQLSTATE {sqlstate})")]
    Credentials {
        /// Which host.
        host: HostLabel,
        /// Which user.
        user: String,
        /// SQLSTATE.
        sqlstate: String,
        /// The server's words.
        message: String,
    },
    /// `pg_hba.conf` has no line for this connection (28000).
    #[error("host \"{host}\" has no pg_hba.conf line for user \"{user}\": {message}")]
    Hba {
        /// Which host.
        host: HostLabel,
        /// Which user.
        user: String,
        /// The server's words.
        message: String,
    },
    /// The server wants a password and there is none.
    #[error("host \"{host}\" wants a password for user \"{user}\" and none is set")]
    NoPassword {
        /// Which host.
        host: HostLabel,
        /// Which user.
        user: String,
    },
    /// The server wants to be told the password in a way that the URL does not allow, or that is not safe.
    #[error("host \"{host}\" asks for authentication that is not acceptable: {reason}")]
    AuthMethod {
        /// Which host.
        host: HostLabel,
        /// What it asked for and why that is refused.
        reason: String,
    },
    /// No such database (3D000).
    #[error("host \"{host}\" has no database \"{database}\"")]
    NoDatabase {
        /// Which host.
        host: HostLabel,
        /// Which database.
        database: String,
    },
    /// The server starts up or shuts down (57P03, 57P01, 57P02).
    #[error("host \"{host}\" takes no sessions now: {message} (SQLSTATE {sqlstate})")]
    NotServing {
        /// Which host.
        host: HostLabel,
        /// SQLSTATE.
        sqlstate: String,
        /// The server's words.
        message: String,
    },
    /// All connections are taken (53300).
    #[error("host \"{host}\" has no connection free: {message}")]
    TooManyConnections {
        /// Which host.
        host: HostLabel,
        /// The server's words.
        message: String,
    },
    /// Any other error of the server.
    #[error("host \"{host}\" refused the session: {message} (SQLSTATE {sqlstate})")]
    Server {
        /// Which host.
        host: HostLabel,
        /// SQLSTATE.
        sqlstate: String,
        /// The server's words.
        message: String,
    },
    /// A session that breaks the protocol, or that tokio-postgres refused.
    #[error("host \"{host}\" gave no usable session: {reason}")]
    Protocol {
        /// Which host.
        host: HostLabel,
        /// What was wrong.
        reason: String,
    },
    /// The server is there but is not of the kind that `target_session_attrs` wants.
    #[error("host \"{host}\" is not {wanted}")]
    WrongServer {
        /// Which host.
        host: HostLabel,
        /// What was wanted: "a primary", "writable".
        wanted: &'static str,
    },
    /// The password file cannot be read.
    #[error("cannot read the password file {}", path.display())]
    PasswordFile {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// None of several hosts gave a session.
    #[error("none of {} hosts gave a session: {}", .0.len(), list(.0))]
    AllHosts(
        /// One error for each host or address tried, in order.
        Vec<ConnectError>,
    ),
}

/// What a [`ConnectError`] means for whoever has to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConnectErrorKind {
    /// The set-up is wrong: credentials, database, certificates, pg_hba.conf. Waiting does not mend it.
    Refused,
    /// It cannot be reached now.
    Unreachable,
    /// It is there, but takes no sessions of ours now.
    Busy,
}

impl ConnectError {
    /// Sorts an error that the server answered with while a session was being set up (an ErrorResponse): for sessions that
    /// authenticate by themselves. `message` is the server's own text.
    pub fn from_server(host: &HostLabel, user: &str, database: &str, sqlstate: &str, message: &str) -> Self {
        let (host, user) = (host.clone(), user.to_owned());
        let (sqlstate, message) = (sqlstate.to_owned(), message.to_owned());
        match sqlstate.as_str() {
            // The file's name stays as it is in every language of the server's messages.
            "28000" if message.contains("pg_hba.conf") => Self::Hba { host, user, message },
            "28000" | "28P01" => Self::Credentials {
                host,
                user,
                sqlstate,
                message,
            },
            "3D000" => Self::NoDatabase {
                host,
                database: database.to_owned(),
            },
            "57P01" | "57P02" | "57P03" => Self::NotServing {
                host,
                sqlstate,
                message,
            },
            "53300" => Self::TooManyConnections { host, message },
            _ => Self::Server {
                host,
                sqlstate,
                message,
            },
        }
    }

    /// Says what it means for whoever has to go on.
    pub fn kind(&self) -> ConnectErrorKind {
        use ConnectErrorKind::{Busy, Refused, Unreachable};
        match self {
            Self::Resolve { .. } | Self::Reach { .. } | Self::Timeout { .. } | Self::Broken { .. } => {
                Unreachable
            }
            Self::Tls { source, .. } if source.may_pass() => Unreachable,
            Self::Tls { .. }
            | Self::Credentials { .. }
            | Self::Hba { .. }
            | Self::NoPassword { .. }
            | Self::AuthMethod { .. }
            | Self::NoDatabase { .. }
            | Self::Protocol { .. }
            | Self::PasswordFile { .. } => Refused,
            Self::NotServing { .. } | Self::TooManyConnections { .. } | Self::WrongServer { .. } => Busy,
            Self::Server { sqlstate, .. } => kind_of_sqlstate(sqlstate),
            Self::AllHosts(errors) => errors.iter().map(Self::kind).max().unwrap_or(Unreachable),
        }
    }

    /// Returns a sentence that tells the operator how to mend it, where there is one.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Tls { source, .. } => source.hint(),
            Self::Hba { user, .. } => Some(format!(
                "add a line for user \"{user}\" to pg_hba.conf and reload; for logical replication the line must name the \
                 database or \"all\": the keyword \"replication\" matches physical replication only"
            )),
            Self::Credentials { user, .. } => {
                Some(format!("check that role \"{user}\" exists, may log in, and has this password (or client certificate: sslcert, sslkey)"))
            }
            Self::NoPassword { .. } => Some("give it by --source-password-file, PGPASSWORD or .pgpass".into()),
            Self::AuthMethod { .. } => {
                Some("use scram-sha-256 in pg_hba.conf, and sslmode=verify-full for hosts that are not this machine".into())
            }
            Self::NoDatabase { database, .. } => {
                Some(format!("create database \"{database}\", or name the one that holds the outbox table"))
            }
            Self::TooManyConnections { .. } => Some("raise max_connections, or end sessions that are not needed".into()),
            Self::PasswordFile { .. } => Some("the file must be readable and hold the password as its only line".into()),
            Self::AllHosts(errors) => errors.iter().rev().find_map(Self::hint),
            Self::Reach { .. } => Some("check host and port, listen_addresses, and that the server runs".into()),
            Self::Resolve { .. }
            | Self::Timeout { .. }
            | Self::Broken { .. }
            | Self::NotServing { .. }
            | Self::Server { .. }
            | Self::Protocol { .. }
            | Self::WrongServer { .. } => None,
        }
    }
}

/// Classes that say that something asked for is wrong or not allowed are refusals (manual, "PostgreSQL Error Codes"); of the rest
/// nobody knows better than to wait.
fn kind_of_sqlstate(sqlstate: &str) -> ConnectErrorKind {
    match sqlstate.get(..2) {
        Some("08") => ConnectErrorKind::Unreachable,
        Some("0A" | "22" | "28" | "3D" | "42") => ConnectErrorKind::Refused,
        _ => ConnectErrorKind::Busy,
    }
}

/// The texts of several errors with their causes, each after its host.
fn list(errors: &[ConnectError]) -> String {
    errors.iter().map(with_causes).collect::<Vec<_>>().join("; ")
}

fn with_causes(error: &ConnectError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
