//! PostgreSQL: URLs as libpq reads them, negotiated streams, and SQL sessions.
//!
//! Sources: the PostgreSQL manual, "libpq - C Library" (connection strings, environment variables, the password file, the
//! connection service file, SSL support) and "Frontend/Backend Protocol" (SSL session encryption).

mod connect;
mod error;
mod fault;
mod guard;
mod host;
mod hosts;
mod keys;
mod login;
mod negotiate;
mod passfile;
mod password;
mod resolve;
mod service;
mod session;
mod settings;
mod socket;
mod stream;
mod uri;
mod url;
mod values;

pub use connect::{Connected, connect, connect_to};
pub use error::{ConnectError, ConnectErrorKind};
pub use fault::{Origin, UrlFault};
pub use host::HostLabel;
pub use session::{Closed, SqlSession};
pub use settings::{AuthMethod, ChannelBinding, RequireAuth, SslMode, TargetSession};
pub use stream::Stream;
pub use url::Url;
