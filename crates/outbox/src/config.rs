//! What the mapping is told, and what is wrong with it.

use crate::message::SHORT_STRING_BYTES;
use crate::{BodyFormat, ColumnMapping, Field, HeaderMapping, Preset, Template, headers};

/// What the mapping is told. [`crate::Mapper::new`] checks it.
#[derive(Clone, Debug)]
pub struct MappingConfig {
    /// Defaults of columns, exchange and routing key, and which of our headers are sent.
    pub preset: Preset,
    /// Columns that differ from the preset's. A field named here must be in the table; an empty column says that
    /// the table has none.
    pub columns: Vec<ColumnMapping>,
    /// Headers from further columns. Where a table has no such column the header is absent: rows written before the
    /// column was added go out without it.
    pub headers: Vec<HeaderMapping>,
    /// Template of the exchange; `None` is the preset's.
    pub exchange: Option<Template>,
    /// Template of the routing key; `None` is the preset's.
    pub routing_key: Option<Template>,
    /// What the body is made of.
    pub body: BodyFormat,
    /// The `content_type`; `None` goes by the payload column's type.
    pub content_type: Option<String>,
    /// Bytes of a payload or a body, at most.
    pub max_message_bytes: usize,
}

impl Default for MappingConfig {
    fn default() -> Self {
        Self {
            preset: Preset::Tailpost,
            columns: Vec::new(),
            headers: Vec::new(),
            exchange: None,
            routing_key: None,
            body: BodyFormat::Payload,
            content_type: None,
            max_message_bytes: 16 << 20,
        }
    }
}

/// Something wrong with a [`MappingConfig`], with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigFault {
    /// Two columns for one field.
    #[error("field {field} is given two columns; keep one --column {field}=…")]
    DuplicateField {
        /// The field.
        field: Field,
    },
    /// No column for a field that no message can do without.
    #[error("field {field} is given no column; every event needs one, write --column {field}=COLUMN")]
    NeededField {
        /// The field.
        field: Field,
    },
    /// A header that the broker or Tailpost reads.
    #[error(
        "header {name:?} is reserved: CC and BCC send copies to other queues, x-* is the broker's, tailpost_* is ours; \
         choose another name in --header"
    )]
    ReservedHeader {
        /// Its name.
        name: String,
    },
    /// A header that Tailpost writes already.
    #[error(
        "header {name:?} is written from field {field} already; to take it from another column write \
         --column {field}=COLUMN"
    )]
    OwnHeader {
        /// Its name.
        name: String,
        /// The field that fills it.
        field: Field,
    },
    /// Two columns for one header.
    #[error("header {name:?} is given two columns; keep one --header")]
    DuplicateHeader {
        /// Its name.
        name: String,
    },
    /// A name that AMQP cannot carry.
    #[error("a header's name is {bytes} bytes long, at most 255 are allowed; it begins with {start:?}")]
    LongHeader {
        /// Its length.
        bytes: usize,
        /// Its first characters.
        start: String,
    },
    /// The payload or the headers in a template.
    #[error("the {template} template names {name:?}, which holds the {field}; take another column")]
    ContentInTemplate {
        /// Which template.
        template: TemplateKind,
        /// The name in its placeholder.
        name: String,
        /// What that holds.
        field: Field,
    },
    /// A template that is always too long.
    #[error("the {template} template has {bytes} bytes of literal text, at most 255 are allowed")]
    LongTemplate {
        /// Which template.
        template: TemplateKind,
        /// Bytes of its literal text.
        bytes: usize,
    },
    /// A content type that AMQP cannot carry, or none.
    #[error("--content-type must have 1 to 255 bytes and no control characters, such as application/json")]
    ContentType,
    /// A limit that admits nothing.
    #[error("--max-message-bytes is 0, which admits no message; the default is 16MiB")]
    NoMessageBytes,
}

/// Which template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplateKind {
    /// `--exchange`.
    Exchange,
    /// `--routing-key`.
    RoutingKey,
}

impl TemplateKind {
    /// The flag that sets it.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Exchange => "--exchange",
            Self::RoutingKey => "--routing-key",
        }
    }
}

impl std::fmt::Display for TemplateKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Exchange => "exchange",
            Self::RoutingKey => "routing key",
        })
    }
}

/// A checked configuration, its gaps filled by the preset.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) preset: Preset,
    columns: [Option<String>; Field::COUNT],
    explicit: [bool; Field::COUNT],
    pub(crate) headers: Vec<HeaderMapping>,
    pub(crate) exchange: Template,
    pub(crate) routing_key: Template,
    pub(crate) body: BodyFormat,
    pub(crate) content_type: Option<String>,
    pub(crate) max_message_bytes: usize,
}

impl Plan {
    /// Checks the configuration; all faults are reported.
    pub(crate) fn new(config: MappingConfig) -> Result<Self, Vec<ConfigFault>> {
        let mut faults = Vec::new();
        let preset = config.preset;
        let default = |source| Template::parse(source).expect("the presets' templates are tested");
        let mut plan = Self {
            preset,
            columns: Field::ALL.map(|field| preset.column(field).map(str::to_string)),
            explicit: [false; Field::COUNT],
            headers: config.headers,
            exchange: config.exchange.unwrap_or_else(|| default(preset.exchange())),
            routing_key: config
                .routing_key
                .unwrap_or_else(|| default(preset.routing_key())),
            body: config.body,
            content_type: config.content_type,
            max_message_bytes: config.max_message_bytes,
        };
        plan.set_columns(config.columns, &mut faults);
        plan.check_headers(&mut faults);
        plan.check_template(TemplateKind::Exchange, &mut faults);
        plan.check_template(TemplateKind::RoutingKey, &mut faults);
        let sendable = |text: &String| {
            (1..=SHORT_STRING_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
        };
        if !plan.content_type.as_ref().is_none_or(sendable) {
            faults.push(ConfigFault::ContentType);
        }
        if plan.max_message_bytes == 0 {
            faults.push(ConfigFault::NoMessageBytes);
        }
        if faults.is_empty() { Ok(plan) } else { Err(faults) }
    }

    /// The column that holds `field`, if the table should have one.
    pub(crate) fn column(&self, field: Field) -> Option<&str> {
        self.columns[field as usize].as_deref()
    }

    /// Tells whether every table must have the field's column.
    pub(crate) fn requires(&self, field: Field) -> bool {
        match field {
            Field::EventId
            | Field::AggregateType
            | Field::AggregateId
            | Field::EventType
            | Field::Payload => true,
            Field::OccurredAt
            | Field::AggregateVersion
            | Field::TraceId
            | Field::Traceparent
            | Field::Headers
            | Field::RoutingKey => self.explicit[field as usize],
        }
    }

    /// The column that a placeholder names.
    pub(crate) fn placeholder_column<'a>(&'a self, name: &'a str) -> &'a str {
        let field = Field::ALL.into_iter().find(|field| field.name() == name);
        field.and_then(|field| self.column(field)).unwrap_or(name)
    }

    /// The template of that kind.
    pub(crate) fn template(&self, kind: TemplateKind) -> &Template {
        match kind {
            TemplateKind::Exchange => &self.exchange,
            TemplateKind::RoutingKey => &self.routing_key,
        }
    }

    fn set_columns(&mut self, columns: Vec<ColumnMapping>, faults: &mut Vec<ConfigFault>) {
        for ColumnMapping { field, column } in columns {
            let needed = matches!(field, Field::EventId | Field::Payload);
            if std::mem::replace(&mut self.explicit[field as usize], true) {
                faults.push(ConfigFault::DuplicateField { field });
            } else if column.is_empty() && needed {
                faults.push(ConfigFault::NeededField { field });
            }
            self.columns[field as usize] = Some(column).filter(|column| !column.is_empty());
        }
    }

    fn check_headers(&self, faults: &mut Vec<ConfigFault>) {
        for (number, HeaderMapping { name, .. }) in self.headers.iter().enumerate() {
            if name.len() > SHORT_STRING_BYTES {
                let start = name.chars().take(20).collect();
                faults.push(ConfigFault::LongHeader {
                    bytes: name.len(),
                    start,
                });
            } else if headers::is_reserved(name) {
                faults.push(ConfigFault::ReservedHeader { name: name.clone() });
            } else if let Some(field) = self.writer(name) {
                faults.push(ConfigFault::OwnHeader {
                    name: name.clone(),
                    field,
                });
            }
            if self
                .headers
                .iter()
                .take(number)
                .any(|earlier| earlier.name == *name)
            {
                faults.push(ConfigFault::DuplicateHeader { name: name.clone() });
            }
        }
    }

    /// The field from which the header `name` is written, if it is one of ours.
    fn writer(&self, name: &str) -> Option<Field> {
        let field = match (name, self.preset) {
            (headers::AGGREGATE_TYPE, Preset::Tailpost) => Field::AggregateType,
            (headers::AGGREGATE_ID, Preset::Tailpost) => Field::AggregateId,
            (headers::DEBEZIUM_ID, Preset::Debezium) => Field::EventId,
            (headers::AGGREGATE_VERSION, _) => Field::AggregateVersion,
            (headers::TRACE_ID, _) => Field::TraceId,
            (headers::TRACEPARENT, _) => Field::Traceparent,
            (headers::OCCURRED_AT | headers::TIMESTAMP_IN_MS, _) => Field::OccurredAt,
            _ => return None,
        };
        self.column(field).is_some().then_some(field)
    }

    fn check_template(&self, kind: TemplateKind, faults: &mut Vec<ConfigFault>) {
        let template = self.template(kind);
        let bytes = template.literal_bytes();
        if bytes > SHORT_STRING_BYTES {
            faults.push(ConfigFault::LongTemplate {
                template: kind,
                bytes,
            });
        }
        // A routing key is in broker logs and error texts: no place for what an event says.
        for name in template.placeholders() {
            let column = self.placeholder_column(name);
            let holder = [Field::Payload, Field::Headers]
                .into_iter()
                .find(|field| self.column(*field) == Some(column));
            if let Some(field) = holder {
                faults.push(ConfigFault::ContentInTemplate {
                    template: kind,
                    name: name.to_string(),
                    field,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(text: &str) -> ColumnMapping {
        text.parse().expect("a column")
    }

    fn header(text: &str) -> HeaderMapping {
        text.parse().expect("a header")
    }

    fn faults(config: MappingConfig) -> Vec<String> {
        let faults = Plan::new(config).expect_err("faults");
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn both_presets_are_sound() {
        for preset in [Preset::Tailpost, Preset::Debezium] {
            let plan = Plan::new(MappingConfig {
                preset,
                ..MappingConfig::default()
            });
            assert!(plan.is_ok(), "{plan:?}");
        }
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let faults = faults(MappingConfig {
            columns: vec![column("event_id=a"), column("event_id=b"), column("payload=")],
            headers: vec![
                header("cc=a"),
                header("X-Death=a"),
                header("tailpost_x=a"),
                header("aggregate_id=a"),
                header("timestamp_in_ms=a"),
                header("tenant=a"),
                header("tenant=b"),
                header(&format!("{}=a", "x".repeat(256))),
            ],
            exchange: Template::parse(&"x".repeat(256)).ok(),
            routing_key: Template::parse("{payload}.{headers}").ok(),
            content_type: Some(String::new()),
            max_message_bytes: 0,
            ..MappingConfig::default()
        });
        let expected = [
            "field event_id is given two columns",
            "field payload is given no column",
            "header \"cc\" is reserved",
            "header \"X-Death\" is reserved",
            "header \"tailpost_x\" is reserved",
            "header \"aggregate_id\" is written from field aggregate_id already",
            "header \"timestamp_in_ms\" is written from field occurred_at already",
            "header \"tenant\" is given two columns",
            "a header's name is 256 bytes long",
            "the exchange template has 256 bytes",
            "the routing key template names \"headers\", which holds the headers",
            "--content-type must have",
            "--max-message-bytes is 0",
        ];
        assert_eq!(faults.len(), expected.len(), "{faults:#?}");
        for (fault, expected) in faults.iter().zip(expected) {
            assert!(fault.starts_with(expected), "{fault}");
        }
    }

    #[test]
    fn the_payload_cannot_be_in_a_template_under_any_name() {
        let faults = faults(MappingConfig {
            columns: vec![column("payload=body")],
            routing_key: Template::parse("{payload}.{body}").ok(),
            ..MappingConfig::default()
        });
        assert_eq!(faults.len(), 2, "{faults:#?}");
    }

    #[test]
    fn a_header_of_ours_is_free_where_nothing_of_ours_fills_it() {
        let debezium = Plan::new(MappingConfig {
            preset: Preset::Debezium,
            headers: vec![header("aggregate_id=aggregateid"), header("trace_id=t")],
            ..MappingConfig::default()
        });
        assert!(debezium.is_ok(), "{debezium:?}");
        let without = Plan::new(MappingConfig {
            columns: vec![column("trace_id=")],
            headers: vec![header("trace_id=t")],
            ..MappingConfig::default()
        });
        assert!(without.is_ok(), "{without:?}");
        let taken = Plan::new(MappingConfig {
            preset: Preset::Debezium,
            headers: vec![header("id=id")],
            ..MappingConfig::default()
        });
        assert!(taken.is_err(), "{taken:?}");
    }
}
