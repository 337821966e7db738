//! What Tailpost shows of itself: logs, metrics, health and a status page.
//!
//! What it promises:
//!
//! - Nothing here decides or delays anything: it reads [`Progress`](tailpost_relay::Progress), a few words behind a lock,
//!   and answers on tasks of its own. A slow or hostile client of the HTTP server costs a bounded number of connections
//!   for a bounded time.
//! - One event is one line of log, and one value is one value: control characters, line breaks and the characters that turn the
//!   direction of text are escaped, in logs, on pages and in JSON.
//! - No label of a metric comes from a row, an aggregate or a message.
//! - A crate that logs payloads is silenced whatever `--log` says.
//!
//! What it does not: authenticate or encrypt. The default address is loopback.

mod escape;
mod http;
mod logs;
mod metrics;
mod page;

pub use http::{PATHS, ServeError, Server};
pub use logs::{LogError, LogFormat, init};
