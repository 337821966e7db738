//! Reaching a source database: URLs, secrets, TLS, and SQL sessions.
//!
//! ```text
//! URL + environment --parse--> Url --connect--> Connected (stream, not yet authenticated)
//!                                     \--SqlSession::connect--> SqlSession (tokio-postgres client)
//! ```
//!
//! Promises:
//! - A URL means what the database's own client takes it to mean; what this crate cannot honour is a fault, never ignored.
//! - All faults of a URL are found at once.
//! - No password, and no URL that holds one, is ever in an error, a `Debug` output or a log.
//! - A connection is never weaker than its `sslmode` says.
//!
//! It does not promise that a connection stays up, and it retries nothing: what to do about a [`postgres::ConnectError`] is the
//! caller's, who asks for its [`postgres::ConnectErrorKind`].

mod certificate;
mod environment;
pub mod postgres;
mod secret;
mod tls;

pub use environment::{Environment, SystemEnvironment};
pub use secret::Secret;
pub use tls::TlsFault;
