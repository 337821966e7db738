//! RabbitMQ as the relay's sink.
//!
//! [`RabbitSink`] keeps law 9: an event is confirmed only by an `Ack` without a return, and every return is matched to
//! its own event by the header `tailpost_position` (`confirms.rs` has the argument, and a model that tests it). A
//! channel or connection error ends the generation; lapin's auto-recovery is off, so that nothing is ever sent again but
//! by the relay. While the broker blocks us, everything simply waits.
//!
//! ```text
//! relay --publish--> properties.rs --> in_flight.rs (polled in order, then when woken) --> lapin --> wire.rs, tls.rs
//! relay <---next---- confirms.rs <---- generation.rs (confirms, blocked, errors) <-------- lapin <-- greeting.rs
//! ```
//!
//! The sink declares nothing; [`check_exchange`] and [`declare_exchange`] are for `check` and `init`.
//!
//! It must run on tokio's multi-threaded runtime, or with the thread of a current-thread runtime never blocked: lapin
//! reads and writes on a thread of its own, but uses tokio's reactor.

mod confirms;
mod dial;
mod error;
mod generation;
mod greeting;
mod in_flight;
mod properties;
#[cfg(test)]
mod scripted_broker;
#[cfg(test)]
mod silence_tests;
mod sink;
mod tls;
mod topology;
mod url;
mod url_fault;
mod url_parse;
mod wire;

pub use error::{LostCause, SinkError};
pub use sink::{RabbitSink, SinkOptions};
pub use topology::{ExchangeState, check_exchange, declare_exchange};
pub use url::{BrokerUrl, BrokerUrls};
pub use url_fault::UrlFault;

/// Log targets that must stay silent at every level, with everything below them: lapin logs whole frames and each
/// returned message, payloads and logins included, the latter at WARN. Nothing is missed: what matters of it reaches
/// the relay as a `Failure` or an `Outcome`.
pub const SILENCED_TARGETS: &[&str] = &["lapin", "amq_protocol", "amq_protocol_tcp", "tcp_stream"];
