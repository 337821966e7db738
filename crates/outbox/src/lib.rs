//! The outbox domain: row -> event -> message. No driver type appears here.

pub mod headers;
mod message;
mod row;

pub use message::{AggregateKey, HeaderValue, Mapped, Message};
pub use row::{Column, ColumnKind, Row, Table, Value};
