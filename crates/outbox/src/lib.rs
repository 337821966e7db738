//! The outbox domain: row -> event -> message. No driver type appears here.
//!
//! ```text
//! Row { Table, values } --Mapper (MappingConfig: preset, columns, templates, headers)--> Mapped { Message, aggregate }
//! ```
//!
//! It promises that the body is the payload's bytes as they came (law 7), that a row's message is the same at every
//! repeat, and that no bytes from a database make it panic. A row that cannot be a message is an error which says why and
//! where, and quotes nothing of it but the event's id and names. It does no I/O and knows no broker.
//!
//! [`Mapper`] says what each field becomes, [`Template`] how exchange and routing key are made, [`ddl`] has the table.

mod config;
pub mod ddl;
mod envelope;
mod error;
mod flags;
mod header_value;
pub mod headers;
mod label;
mod layout;
mod mapping;
mod message;
mod nearest;
mod reader;
mod row;
mod template;
mod time;

pub use config::{ConfigFault, MappingConfig, TemplateKind};
pub use error::MapError;
pub use flags::{BodyFormat, ColumnMapping, Field, FlagError, HeaderMapping, Preset};
pub use mapping::Mapper;
pub use message::{AggregateKey, Header, HeaderValue, Mapped, Message, SHORT_STRING_BYTES};
pub use row::{Column, ColumnKind, Row, Table, Value};
pub use template::{Template, TemplateError};
