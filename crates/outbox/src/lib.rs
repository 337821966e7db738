//! The outbox domain: row -> event -> message. No driver type appears here.

mod error;
pub mod headers;
mod message;
mod row;

pub use error::MapError;
pub use message::{AggregateKey, Header, HeaderValue, Mapped, Message};
pub use row::{Column, ColumnKind, Row, Table, Value};
