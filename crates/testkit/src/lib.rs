//! What the system tests and the demo are made of. It knows Tailpost only as its users do: by its command line, its
//! table and its messages. So nothing of ours is linked here, and a name that changes in the product breaks a test.
//!
//! ```text
//! Writer -> PostgreSQL -> Proxy -> Tailpost (the real binary) -> Proxy -> RabbitMQ -> Consumer
//!               |                                                                        |
//!            Ledger, Sampler  ---------------------> checker <--------------------- deliveries
//! ```
//!
//! - [`servers`] starts, kills and restarts private servers, and shares one of each between tests.
//! - [`Tailpost`] runs the binary, and [`Proxy`] breaks its connections.
//! - [`Writer`] commits and rolls back events; [`Ledger`] is what the database kept of them.
//! - [`Consumer`] records every delivery; [`check`] compares both and finds what was lost, made up or out of order.
//! - [`Sampler`] watches a slot's position during a run.
//!
//! A server that is missing is an error and never a skipped test.

pub mod checker;
pub mod consumer;
pub mod http;
mod ledger;
pub mod ports;
mod proxy;
mod sampler;
pub mod servers;
mod tailpost;
pub mod wait;
pub mod writer;

pub use checker::{Ledger, Verdict, check};
pub use consumer::{Consumer, Delivery};
pub use proxy::Proxy;
pub use sampler::{Sample, Sampler, lsn};
pub use servers::{Database, Postgres, Rabbit, Stop, Vhost, shared_postgres, shared_rabbit};
pub use tailpost::{Ended, Tailpost};
pub use writer::{Writer, WriterOptions, Written};
