//! `tailpost postgres peek`.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value, json};
use tailpost_outbox::{HeaderValue, MapError, Mapper, Message, Row};
use tailpost_postgres::args::PeekFormat;
use tailpost_postgres::peek::{Peeked, peek};
use tailpost_postgres::{KnownIdentity, SourceConfig};
use tailpost_relay::Progress;

use super::Error;
use crate::args::PeekCommand;
use crate::config::{self, Faults};
use crate::exit::Exit;
use crate::signals::Signals;

pub(super) async fn execute(command: PeekCommand, mut faults: Faults) -> Result<Exit, Error> {
    config::start_logs(&command.log, &mut faults);
    let source = config::source(&command.source, &mut faults);
    let max_message_bytes = config::max_message_bytes(&command.message, &mut Faults::default());
    let mapper = config::mapper(&command.message, &command.exchange, &mut faults);
    let (source, mapper) = faults.judge(source.zip(mapper))?;
    let from = SourceConfig {
        wanted: source.wanted(mapper.required_columns()),
        url: source.url,
        application_name: source.application_name,
        max_message_bytes: max_message_bytes.unwrap_or(usize::MAX),
        slot_mode: true,
        known: KnownIdentity::default(),
        progress: Arc::new(Progress::default()),
    };
    let mut printer = Printer {
        mapper,
        format: command.peek.format,
        result: Ok(()),
        poison: 0,
    };
    let peeking = Box::pin(peek(&from, command.peek.limit, command.peek.follow, |seen| {
        printer.print(seen)
    }));
    let end = tokio::select! {
        end = peeking => Some(end?),
        () = Signals::listen()?.stop() => None,
    };
    printer.result?;
    if let Some(end) = end {
        tracing::info!(rows = end.rows, from = %end.from, to = %end.to, "nothing was moved");
    }
    Ok(if printer.poison > 0 {
        Exit::Poison
    } else {
        Exit::Done
    })
}

struct Printer {
    mapper: Mapper,
    format: PeekFormat,
    result: io::Result<()>,
    /// Rows that `run` would halt at.
    poison: u64,
}

impl Printer {
    fn print(&mut self, seen: Peeked<'_>) -> ControlFlow<()> {
        let text = match seen {
            Peeked::Oversized(what) => self.unpublishable(what),
            Peeked::Row(row) => match self.mapper.map(row) {
                Ok(mapped) => self.message(row, &mapped.message),
                Err(MapError::Poison { what } | MapError::Shape { what, .. }) => self.unpublishable(&what),
            },
        };
        let mut out = io::stdout().lock();
        self.result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        match &self.result {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                if error.kind() == io::ErrorKind::BrokenPipe {
                    // `peek | head` has seen enough.
                    self.result = Ok(());
                }
                ControlFlow::Break(())
            }
        }
    }

    /// `run` would halt here.
    fn unpublishable(&mut self, what: &str) -> String {
        self.poison += 1;
        match self.format {
            PeekFormat::Text => format!("cannot be published: {what}\n"),
            PeekFormat::Json => format!("{}\n", json!({ "error": what })),
        }
    }

    fn message(&self, row: &Row, message: &Message) -> String {
        match self.format {
            PeekFormat::Json => format!("{}\n", to_json(message)),
            PeekFormat::Text => {
                let headers: String = message
                    .headers
                    .iter()
                    .map(|(name, value)| format!("  {name}: {}\n", header(value)))
                    .collect();
                let (exchange, key, id) = (&message.exchange, &message.routing_key, &message.message_id);
                let body = String::from_utf8_lossy(&message.body);
                format!(
                    "{} {exchange:?} {key:?} {id}\n{headers}  {}\n",
                    row.position(),
                    body.escape_debug_but_quotes()
                )
            }
        }
    }
}

/// What a terminal may be shown: control characters are escaped, quotes stay.
trait EscapeButQuotes {
    fn escape_debug_but_quotes(&self) -> String;
}

impl EscapeButQuotes for str {
    fn escape_debug_but_quotes(&self) -> String {
        self.chars()
            .flat_map(|c| match c.is_control() {
                true => c.escape_default().collect::<Vec<_>>(),
                false => vec![c],
            })
            .collect()
    }
}

fn to_json(message: &Message) -> Value {
    let headers: Map<String, Value> = message
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), header(value)))
        .collect();
    let body = match std::str::from_utf8(&message.body) {
        Ok(text) => json!(text),
        Err(_) => json!({ "base64": BASE64.encode(&message.body) }),
    };
    json!({
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "properties": {
            "message_id": message.message_id,
            "type": message.event_type,
            "app_id": "tailpost",
            "timestamp": message.timestamp,
            "content_type": message.content_type,
            "delivery_mode": 2,
        },
        "headers": headers,
        "body": body,
    })
}

fn header(value: &HeaderValue) -> Value {
    match value {
        HeaderValue::Text(text) => json!(text),
        HeaderValue::Integer(number) => json!(number),
        HeaderValue::Double(number) => json!(number),
        HeaderValue::Boolean(boolean) => json!(boolean),
        HeaderValue::Null => Value::Null,
        HeaderValue::Array(values) => values.iter().map(header).collect(),
        HeaderValue::Table(entries) => Value::Object(
            entries
                .iter()
                .map(|(name, value)| (name.to_string(), header(value)))
                .collect(),
        ),
    }
}
