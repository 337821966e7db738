//! Row -> event -> message.
//!
//! # What is needed
//! An event id (not empty) and a payload: NULL in one of them is poison. So is NULL in a placeholder of a template that is
//! used. A NULL payload has no safe meaning (an empty body, a JSON `null` and nothing at all are three events), so none is
//! guessed: write an empty text or a JSON `null` where that is meant. Anything else may be NULL, and is then absent.
//!
//! # Order
//! The aggregate is the pair (aggregate_type, aggregate_id), whatever the table. A NULL id has no order; a NULL type with an
//! id is a type of its own.
//!
//! # Headers
//! `tailpost_position` first, always. Under the `tailpost` preset then `aggregate_type` and `aggregate_id`; under `debezium`
//! `id`, which is what its consumers look for, and nothing more. Each optional field that the table has a column for
//! adds its own: `aggregate_version`, `trace_id`, `traceparent`, and `occurred_at` with `timestamp_in_ms`. The `debezium`
//! preset knows no optional columns, so those come only with a `--column`. Then those of `--header`, then those of the
//! row's `headers` object. NULL leaves a header out. A row's own header under a reserved name is poison, and so is one under
//! a name that this message has already: neither value could be dropped without a consumer being misled.
//!
//! # Exchange and routing key
//! Rendered from their templates; a row's `routing_key` that is not NULL takes the place of the rendered key. An empty exchange
//! (AMQP's default one, which takes the routing key for a queue's name) is published to only where the template is
//! empty itself; an exchange that a row made empty is poison.

use crate::config::{Plan, TemplateKind};
use crate::envelope::Envelope;
use crate::header_value::{from_json, typed};
use crate::label::{aggregate_key, escaped, write_label};
use crate::layout::{Layout, Layouts, table_name};
use crate::message::SHORT_STRING_BYTES;
use crate::reader::Reader;
use crate::time::Occurred;
use crate::{
    BodyFormat, ColumnKind, ConfigFault, Field, Header, HeaderValue, MapError, Mapped, MappingConfig,
    Message, Preset, Row, Table, Value, headers,
};

/// Maps rows to messages, for any number of tables. It keeps nothing of a row; it remembers the shapes of the tables that it
/// met last.
#[derive(Clone, Debug)]
pub struct Mapper {
    plan: Plan,
    layouts: Layouts,
    label: String,
}

impl Mapper {
    /// Checks the configuration.
    ///
    /// # Errors
    /// All its faults at once.
    pub fn new(config: MappingConfig) -> Result<Self, Vec<ConfigFault>> {
        Ok(Self {
            plan: Plan::new(config)?,
            layouts: Layouts::default(),
            label: String::new(),
        })
    }

    /// Maps a row.
    ///
    /// # Errors
    /// [`MapError::Poison`] where this row can never be published, [`MapError::Shape`] where no row of its table can be. A
    /// failed call changes nothing.
    pub fn map(&mut self, row: &Row) -> Result<Mapped, MapError> {
        let layout = self.layouts.of(&self.plan, &row.table)?;
        let event = Event::read(&self.plan, layout, row)?;
        let message = event.message()?;
        write_label(&mut self.label, event.aggregate_type, event.aggregate_id);
        let aggregate = event
            .aggregate_id
            .map(|id| aggregate_key(event.aggregate_type, id));
        Ok(Mapped {
            message,
            aggregate,
            aggregate_label: self.label.as_str().into(),
        })
    }

    /// The columns that every table must have and every publication must show: those of the needed fields and those that
    /// the templates name.
    pub fn required_columns(&self) -> Vec<String> {
        let plan = &self.plan;
        let fields = Field::ALL
            .into_iter()
            .filter(|field| plan.requires(*field))
            .filter_map(|field| plan.column(field));
        let placeholders = [&plan.exchange, &plan.routing_key]
            .into_iter()
            .flat_map(|template| template.placeholders());
        let named = placeholders.map(|name| plan.placeholder_column(name));
        let columns: std::collections::BTreeSet<&str> = fields.chain(named).collect();
        columns.into_iter().map(str::to_owned).collect()
    }

    /// The exchange's template.
    pub fn exchange(&self) -> &crate::Template {
        &self.plan.exchange
    }

    /// The routing key's template.
    pub fn routing_key(&self) -> &crate::Template {
        &self.plan.routing_key
    }

    /// The columns of `--header`; a table without one sends no such header.
    pub fn header_columns(&self) -> impl Iterator<Item = &str> {
        self.plan.headers.iter().map(|header| header.column.as_str())
    }

    /// The column that the body is made of.
    pub fn payload_column(&self) -> Option<&str> {
        self.plan.column(Field::Payload)
    }

    /// Tells before the first row whether a table fits. Returns what an operator should know though it does: the columns of
    /// `--header` that the table has not.
    ///
    /// # Errors
    /// [`MapError::Shape`], as [`map`](Self::map) would for each of its rows.
    pub fn inspect(&self, table: &Table) -> Result<Vec<String>, MapError> {
        let layout = Layout::resolve(&self.plan, table)?;
        let absent = self
            .plan
            .headers
            .iter()
            .zip(&layout.headers)
            .filter(|(_, index)| index.is_none());
        let note = |header: &crate::HeaderMapping| {
            let (name, column, table) = (&header.name, &header.column, table_name(table));
            format!("header {name:?} will be absent: table {table} has no column {column:?}")
        };
        Ok(absent.map(|(header, _)| note(header)).collect())
    }
}

/// What a row means.
struct Event<'a> {
    plan: &'a Plan,
    layout: &'a Layout,
    reader: Reader<'a>,
    event_id: &'a str,
    event_type: Option<&'a str>,
    aggregate_type: Option<&'a str>,
    aggregate_id: Option<&'a str>,
    occurred: Option<Occurred>,
    payload: &'a Value,
}

impl<'a> Event<'a> {
    fn read(plan: &'a Plan, layout: &'a Layout, row: &'a Row) -> Result<Self, MapError> {
        let (reader, event_id) = Reader::new(row, layout.event_id)?;
        let payload = reader.value(layout.payload);
        let bytes = match payload {
            Value::Null => {
                return Err(reader.column_poison(layout.payload, "is NULL, and no message can be made of it"));
            }
            Value::Text(bytes) | Value::Binary(bytes) => bytes.len(),
        };
        refuse_size(&reader, "payload", bytes, plan.max_message_bytes)?;
        let text = |field| layout.field(field).map_or(Ok(None), |index| reader.text(index));
        let (event_type, aggregate_type) = (text(Field::EventType)?, text(Field::AggregateType)?);
        let (aggregate_id, occurred) = (text(Field::AggregateId)?, text(Field::OccurredAt)?);
        let occurred = occurred.and_then(|text| occurred_at(&reader, layout, text));
        Ok(Self {
            plan,
            layout,
            reader,
            event_id,
            event_type,
            aggregate_type,
            aggregate_id,
            occurred,
            payload,
        })
    }

    fn message(&self) -> Result<Message, MapError> {
        let exchange = self.exchange()?;
        let routing_key = self.routing_key()?;
        let occurred_at = self.occurred.map(Occurred::rfc3339);
        let body = match self.plan.body {
            BodyFormat::Envelope => self.envelope(occurred_at.as_deref())?,
            BodyFormat::Payload => match self.payload {
                Value::Text(bytes) | Value::Binary(bytes) => bytes.clone(),
                Value::Null => return Err(self.reader.column_poison(self.layout.payload, "is NULL")),
            },
        };
        let properties = [
            ("event id", self.event_id),
            ("event type", self.event_type.unwrap_or_default()),
        ];
        let names = [
            ("exchange", exchange.as_str()),
            ("routing key", routing_key.as_str()),
        ];
        for (what, text) in properties.into_iter().chain(names) {
            self.refuse_long(what, text)?;
        }
        Ok(Message {
            exchange,
            routing_key,
            message_id: self.event_id.to_string(),
            event_type: self.event_type.map(str::to_string),
            content_type: Some(self.content_type().to_string()),
            timestamp: self.occurred.and_then(Occurred::seconds),
            headers: self.headers(occurred_at)?,
            body,
        })
    }

    fn exchange(&self) -> Result<String, MapError> {
        let exchange = self.render(TemplateKind::Exchange, &self.layout.exchange)?;
        if exchange.is_empty() && !self.plan.exchange.is_empty() {
            return Err(self
                .reader
                .poison("the exchange template gives an empty name for this row"));
        }
        Ok(exchange)
    }

    fn routing_key(&self) -> Result<String, MapError> {
        if let Some(own) = self.optional(Field::RoutingKey)? {
            return Ok(own.to_string());
        }
        self.render(TemplateKind::RoutingKey, &self.layout.routing_key)
    }

    fn render(&self, kind: TemplateKind, columns: &[usize]) -> Result<String, MapError> {
        self.plan.template(kind).render(|number, name| {
            let text = columns
                .get(number)
                .map_or(Ok(None), |index| self.reader.text(*index))?;
            text.ok_or_else(|| {
                let column = escaped(self.plan.placeholder_column(name), 100);
                self.reader.poison(format_args!(
                    "the {kind} template needs column \"{column}\", which is NULL"
                ))
            })
        })
    }

    fn envelope(&self, occurred_at: Option<&str>) -> Result<bytes::Bytes, MapError> {
        let version = self.layout.field(Field::AggregateVersion);
        let version = version.map_or(Ok(None), |index| {
            Ok(self
                .reader
                .text(index)?
                .map(|text| (self.reader.kind(index), text)))
        })?;
        let envelope = Envelope {
            event_id: self.event_id,
            event_type: self.event_type,
            aggregate_type: self.aggregate_type,
            aggregate_id: self.aggregate_id,
            aggregate_version: version,
            occurred_at,
            trace_id: self.optional(Field::TraceId)?,
        };
        let body = envelope.write(self.layout.payload_kind, self.payload);
        let body = body.map_err(|error| self.reader.column_poison(self.layout.payload, error))?;
        refuse_size(&self.reader, "envelope", body.len(), self.plan.max_message_bytes)?;
        Ok(body)
    }

    fn headers(&self, occurred_at: Option<String>) -> Result<Vec<Header>, MapError> {
        let mut out: Vec<Header> = Vec::with_capacity(8 + self.plan.headers.len());
        let text = |text: &str| HeaderValue::Text(text.to_string());
        out.push((headers::POSITION.into(), text(self.reader.position())));
        match self.plan.preset {
            Preset::Tailpost => {
                out.extend(
                    self.aggregate_type
                        .map(|kind| (headers::AGGREGATE_TYPE.into(), text(kind))),
                );
                out.extend(
                    self.aggregate_id
                        .map(|id| (headers::AGGREGATE_ID.into(), text(id))),
                );
            }
            Preset::Debezium => out.push((headers::DEBEZIUM_ID.into(), text(self.event_id))),
        }
        if let Some(version) = self.typed(self.layout.field(Field::AggregateVersion))? {
            out.push((headers::AGGREGATE_VERSION.into(), version));
        }
        for (name, field) in [
            (headers::TRACE_ID, Field::TraceId),
            (headers::TRACEPARENT, Field::Traceparent),
        ] {
            out.extend(self.optional(field)?.map(|id| (name.into(), text(id))));
        }
        out.extend(occurred_at.map(|at| (headers::OCCURRED_AT.into(), HeaderValue::Text(at))));
        let milliseconds = self.occurred.map(|at| HeaderValue::Integer(at.milliseconds()));
        out.extend(milliseconds.map(|at| (headers::TIMESTAMP_IN_MS.into(), at)));
        for (header, index) in self.plan.headers.iter().zip(&self.layout.headers) {
            out.extend(
                self.typed(*index)?
                    .map(|value| (header.name.clone().into(), value)),
            );
        }
        self.row_headers(&mut out)?;
        Ok(out)
    }

    /// Appends the row's own headers.
    fn row_headers(&self, out: &mut Vec<Header>) -> Result<(), MapError> {
        let Some(index) = self.layout.field(Field::Headers) else {
            return Ok(());
        };
        let Some(json) = self.reader.text(index)? else {
            return Ok(());
        };
        let own = from_json(json).map_err(|error| self.reader.column_poison(index, error))?;
        let ours = out.len();
        for (name, value) in own {
            let taken = out.iter().take(ours).any(|(taken, _)| *taken == name);
            let why = match (headers::is_reserved(&name), taken) {
                (true, _) => "a reserved name",
                (false, true) => "which is written from another column",
                (false, false) => {
                    out.push((name, value));
                    continue;
                }
            };
            let what = format!("holds the header \"{}\", {why}", escaped(&name, 60));
            return Err(self.reader.column_poison(index, what));
        }
        Ok(())
    }

    fn optional(&self, field: Field) -> Result<Option<&'a str>, MapError> {
        self.layout
            .field(field)
            .map_or(Ok(None), |index| self.reader.text(index))
    }

    fn typed(&self, index: Option<usize>) -> Result<Option<HeaderValue>, MapError> {
        let Some(index) = index else { return Ok(None) };
        Ok(self
            .reader
            .text(index)?
            .map(|text| typed(self.reader.kind(index), text)))
    }

    fn content_type(&self) -> &str {
        let by_column = match (self.plan.body, self.layout.payload_kind) {
            (BodyFormat::Envelope, _) | (BodyFormat::Payload, ColumnKind::Json) => "application/json",
            (BodyFormat::Payload, ColumnKind::Bytes) => "application/octet-stream",
            (BodyFormat::Payload, _) => "text/plain",
        };
        self.plan.content_type.as_deref().unwrap_or(by_column)
    }

    fn refuse_long(&self, what: &str, text: &str) -> Result<(), MapError> {
        let bytes = text.len();
        if bytes <= SHORT_STRING_BYTES {
            return Ok(());
        }
        Err(self.reader.poison(format_args!(
            "the {what} is {bytes} bytes long, at most {SHORT_STRING_BYTES} are allowed"
        )))
    }
}

fn refuse_size(reader: &Reader<'_>, what: &str, bytes: usize, limit: usize) -> Result<(), MapError> {
    if bytes <= limit {
        return Ok(());
    }
    Err(reader.poison(format_args!(
        "the {what} is {bytes} bytes long, over --max-message-bytes {limit}"
    )))
}

fn occurred_at(reader: &Reader<'_>, layout: &Layout, text: &str) -> Option<Occurred> {
    match layout.field(Field::OccurredAt).map(|index| reader.kind(index)) {
        Some(ColumnKind::Integer) => Occurred::from_milliseconds(text.parse().ok()?),
        _ => Occurred::from_text(text),
    }
}
