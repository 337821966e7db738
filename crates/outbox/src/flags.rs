//! What the flags of the mapping may say, each a type that the command line parses into.

use std::fmt;
use std::str::FromStr;

use crate::nearest::nearest;

/// What Tailpost knows of an event; a column of the table holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// The event's id: the same at every repeat.
    EventId,
    /// The aggregate's type.
    AggregateType,
    /// The aggregate's id; with the type it says which events keep their order.
    AggregateId,
    /// The event's type.
    EventType,
    /// The payload: the body of the message.
    Payload,
    /// When it occurred.
    OccurredAt,
    /// The aggregate's version.
    AggregateVersion,
    /// The trace id, copied.
    TraceId,
    /// The W3C trace context, copied.
    Traceparent,
    /// A JSON object of further headers.
    Headers,
    /// A routing key of the row's own, in place of the template's.
    RoutingKey,
}

impl Field {
    /// How many there are.
    pub(crate) const COUNT: usize = Self::ALL.len();

    /// All fields, in the order of their numbers.
    pub const ALL: [Self; 11] = [
        Self::EventId,
        Self::AggregateType,
        Self::AggregateId,
        Self::EventType,
        Self::Payload,
        Self::OccurredAt,
        Self::AggregateVersion,
        Self::TraceId,
        Self::Traceparent,
        Self::Headers,
        Self::RoutingKey,
    ];

    /// Its name, in flags and templates.
    pub const fn name(self) -> &'static str {
        match self {
            Self::EventId => "event_id",
            Self::AggregateType => "aggregate_type",
            Self::AggregateId => "aggregate_id",
            Self::EventType => "event_type",
            Self::Payload => "payload",
            Self::OccurredAt => "occurred_at",
            Self::AggregateVersion => "aggregate_version",
            Self::TraceId => "trace_id",
            Self::Traceparent => "traceparent",
            Self::Headers => "headers",
            Self::RoutingKey => "routing_key",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the value of a flag means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// A name that is not one of the known.
    #[error("unknown {kind} {given:?}{}; known are {}", meant(.nearest), known.join(", "))]
    Unknown {
        /// What it should name.
        kind: &'static str,
        /// What was typed.
        given: String,
        /// The nearest known name.
        nearest: Option<&'static str>,
        /// All of them.
        known: Vec<&'static str>,
    },
    /// No `=`, or nothing before it.
    #[error("{given:?} is not of the form {form}")]
    Form {
        /// What was typed.
        given: String,
        /// What is expected.
        form: &'static str,
    },
}

fn meant(nearest: &Option<&'static str>) -> String {
    nearest
        .map(|name| format!(", the nearest is {name:?}"))
        .unwrap_or_default()
}

/// Finds the one of `all` that is called `given`.
fn named<T: Copy>(kind: &'static str, given: &str, all: &[(&'static str, T)]) -> Result<T, FlagError> {
    let found = all.iter().find(|(name, _)| *name == given);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<&'static str> = all.iter().map(|(name, _)| *name).collect();
        let nearest = nearest(given, known.iter().copied());
        FlagError::Unknown {
            kind,
            given: given.to_string(),
            nearest,
            known,
        }
    })
}

impl FromStr for Field {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        named("field", text, &Self::ALL.map(|field| (field.name(), field)))
    }
}

/// Which table layout and which message, before other flags change them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preset {
    /// Tailpost's own table: columns named as the fields, `created_at` being `occurred_at`.
    #[default]
    Tailpost,
    /// The table of Debezium's outbox event router, and messages as its consumers expect them.
    Debezium,
}

impl Preset {
    const ALL: [(&'static str, Self); 2] = [("tailpost", Self::Tailpost), ("debezium", Self::Debezium)];

    /// The column that holds `field`. `None`: the preset knows no such column.
    ///
    /// Debezium's defaults are those of its router's `table.field.event.*` and `route.by.field` options. Its router
    /// takes no time from a column unless told to, so `occurred_at` has none here.
    pub const fn column(self, field: Field) -> Option<&'static str> {
        match (self, field) {
            (Self::Tailpost, Field::OccurredAt) => Some("created_at"),
            (Self::Tailpost, field) => Some(field.name()),
            (Self::Debezium, Field::EventId) => Some("id"),
            (Self::Debezium, Field::AggregateType) => Some("aggregatetype"),
            (Self::Debezium, Field::AggregateId) => Some("aggregateid"),
            (Self::Debezium, Field::EventType) => Some("type"),
            (Self::Debezium, Field::Payload) => Some("payload"),
            (Self::Debezium, _) => None,
        }
    }

    /// The template of the exchange.
    pub const fn exchange(self) -> &'static str {
        match self {
            Self::Tailpost => "events",
            Self::Debezium => "outbox.event.{aggregate_type}",
        }
    }

    /// The template of the routing key.
    pub const fn routing_key(self) -> &'static str {
        match self {
            Self::Tailpost => "{aggregate_type}.{event_type}",
            Self::Debezium => "",
        }
    }
}

impl FromStr for Preset {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        named("preset", text, &Self::ALL)
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tailpost => "tailpost",
            Self::Debezium => "debezium",
        })
    }
}

/// What the body is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyFormat {
    /// The payload, byte for byte.
    #[default]
    Payload,
    /// A JSON object around the payload.
    Envelope,
}

impl BodyFormat {
    const ALL: [(&'static str, Self); 2] = [("payload", Self::Payload), ("envelope", Self::Envelope)];
}

impl FromStr for BodyFormat {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        named("body format", text, &Self::ALL)
    }
}

impl fmt::Display for BodyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Payload => "payload",
            Self::Envelope => "envelope",
        })
    }
}

/// `FIELD=COLUMN`. An empty column says that the table has none for this field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnMapping {
    /// The field.
    pub field: Field,
    /// The column that holds it, as the database spells it; empty for none.
    pub column: String,
}

impl FromStr for ColumnMapping {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        let (field, column) = text.split_once('=').ok_or_else(|| form(text, "FIELD=COLUMN"))?;
        Ok(Self {
            field: field.parse()?,
            column: column.to_string(),
        })
    }
}

/// `NAME=COLUMN`: a header taken from a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderMapping {
    /// Name of the header.
    pub name: String,
    /// The column that holds its value, as the database spells it.
    pub column: String,
}

impl FromStr for HeaderMapping {
    type Err = FlagError;

    fn from_str(text: &str) -> Result<Self, FlagError> {
        match text.split_once('=') {
            Some((name, column)) if !name.is_empty() && !column.is_empty() => Ok(Self {
                name: name.to_string(),
                column: column.to_string(),
            }),
            _ => Err(form(text, "NAME=COLUMN")),
        }
    }
}

fn form(given: &str, form: &'static str) -> FlagError {
    FlagError::Form {
        given: given.to_string(),
        form,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        for (number, field) in Field::ALL.into_iter().enumerate() {
            assert_eq!(field.to_string().parse(), Ok(field));
            assert_eq!(field as usize, number);
        }
        for (_, preset) in Preset::ALL {
            assert_eq!(preset.to_string().parse(), Ok(preset));
        }
        for (_, body) in BodyFormat::ALL {
            assert_eq!(body.to_string().parse(), Ok(body));
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_and_all() {
        let field = "aggregateType=x"
            .parse::<ColumnMapping>()
            .expect_err("unknown")
            .to_string();
        assert!(
            field.starts_with("unknown field \"aggregateType\", the nearest is \"aggregate_type\""),
            "{field}"
        );
        let body = "cloudevents"
            .parse::<BodyFormat>()
            .expect_err("unknown")
            .to_string();
        assert_eq!(
            body,
            "unknown body format \"cloudevents\"; known are payload, envelope"
        );
    }

    #[test]
    fn mappings_split_at_the_first_equals_sign() {
        let column = "event_id=a=b".parse::<ColumnMapping>();
        assert_eq!(
            column,
            Ok(ColumnMapping {
                field: Field::EventId,
                column: "a=b".into()
            })
        );
        let none = "routing_key=".parse::<ColumnMapping>();
        assert_eq!(
            none,
            Ok(ColumnMapping {
                field: Field::RoutingKey,
                column: String::new()
            })
        );
        let header = "tenant=Tenant Id".parse::<HeaderMapping>();
        assert_eq!(
            header,
            Ok(HeaderMapping {
                name: "tenant".into(),
                column: "Tenant Id".into()
            })
        );
    }

    #[test]
    fn a_mapping_without_both_sides_names_the_form() {
        for text in ["tenant", "=tenant", "tenant=", ""] {
            let error = text.parse::<HeaderMapping>().expect_err("no mapping").to_string();
            assert!(error.ends_with("is not of the form NAME=COLUMN"), "{error}");
        }
        let error = "event_id"
            .parse::<ColumnMapping>()
            .expect_err("no mapping")
            .to_string();
        assert_eq!(error, "\"event_id\" is not of the form FIELD=COLUMN");
    }
}
