//! Logs on standard error: one line an event, as text or JSON.
//!
//! Tailpost's own crates log at `info`, all others errors only, and `--log` changes that: a level alone is for our own
//! crates, `TARGET=LEVEL` for whom it names. Crates that are known to log payloads are silent whatever it says. What
//! goes through the `log` crate instead of `tracing` is not shown.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::filter::{EnvFilter, FilterExt, ParseError, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, layer::SubscriberExt};

use crate::escape;

/// What holds before the operator's filter. A target matches by its beginning, so `tailpost` is all our crates.
const BASE: &str = "error,tailpost=info";
/// The target of a level that stands alone.
const OURS: &str = "tailpost";

/// How a line is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// Time, level, target, message, fields.
    #[default]
    Text,
    /// An object a line; the message and the fields of the event are keys of it.
    Json,
}

impl FromStr for LogFormat {
    type Err = LogError;

    fn from_str(text: &str) -> Result<Self, LogError> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogError::Format { format: text.into() }),
        }
    }
}

impl fmt::Display for LogFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Why logging could not begin.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter has a word that is no level.
    #[error(
        "unknown log level {word:?} in log filter {filter:?}: expected off, error, warn, info, debug, trace, or TARGET=LEVEL"
    )]
    Level {
        /// The word.
        word: String,
        /// The whole filter.
        filter: String,
    },
    /// The filter cannot be read.
    #[error("invalid log filter {filter:?}")]
    Filter {
        /// The whole filter.
        filter: String,
        /// Why.
        source: ParseError,
    },
    /// No such format.
    #[error("unknown log format {format:?}: expected text or json")]
    Format {
        /// What was asked for.
        format: String,
    },
    /// The process has a logger already.
    #[error("logging was set up twice")]
    Twice,
}

/// Begins to log on standard error, for the life of the process. `filter` is what `--log` says, comma-separated;
/// empty is the default. Targets that begin with a word of `silenced` are never shown: they log payloads.
///
/// # Errors
///
/// A filter that cannot be read, naming it; a second call.
pub fn init(filter: &str, format: LogFormat, silenced: &[&str]) -> Result<(), LogError> {
    subscriber(filter, format, silenced, std::io::stderr)?
        .try_init()
        .map_err(|_| LogError::Twice)
}

fn subscriber<W>(
    filter: &str,
    format: LogFormat,
    silenced: &[&str],
    writer: W,
) -> Result<impl Subscriber + Send + Sync + use<W>, LogError>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let silenced: Vec<String> = silenced.iter().map(|target| (*target).to_owned()).collect();
    let filter = parse(filter)?.and(filter_fn(move |metadata| is_shown(metadata, &silenced)));
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(false);
    let layer = match format {
        LogFormat::Text => layer
            .map_event_format(|inner| OneLine {
                inner,
                escape: escape::plain,
            })
            .with_filter(filter)
            .boxed(),
        LogFormat::Json => {
            let layer = layer.json().flatten_event(true);
            layer
                .map_event_format(|inner| OneLine {
                    inner,
                    escape: escape::json,
                })
                .with_filter(filter)
                .boxed()
        }
    };
    Ok(Registry::default().with(layer))
}

fn is_shown(metadata: &Metadata<'_>, silenced: &[String]) -> bool {
    !silenced
        .iter()
        .any(|target| metadata.target().starts_with(target.as_str()))
}

/// Reads the operator's filter on top of [`BASE`].
fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    let mut directives = BASE.to_owned();
    for word in filter.split(',').map(str::trim).filter(|word| !word.is_empty()) {
        directives.push(',');
        // Pieces of a list of span fields have one of these too; they are put together again as they were.
        if word.contains(['=', '[', ']', '{', '}']) {
            directives.push_str(word);
        } else if word.parse::<LevelFilter>().is_ok() {
            directives.push_str(OURS);
            directives.push('=');
            directives.push_str(word);
        } else {
            // EnvFilter would take it for a target and show all of it, so that a slip of the pen shows nothing.
            return Err(LogError::Level {
                word: word.into(),
                filter: filter.into(),
            });
        }
    }
    EnvFilter::builder()
        .parse(directives)
        .map_err(|source| LogError::Filter {
            filter: filter.into(),
            source,
        })
}

/// Writes what another format writes, escaped as a whole, so that an event is one line whatever is in its fields and
/// spans: tracing-subscriber leaves line ends alone, and terminal codes in all but messages.
struct OneLine<F> {
    inner: F,
    escape: fn(&str) -> Cow<'_, str>,
}

impl<S, N, F> FormatEvent<S, N> for OneLine<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = String::new();
        self.inner.format_event(ctx, Writer::new(&mut line), event)?;
        let line = line.strip_suffix('\n').unwrap_or(&line);
        writeln!(writer, "{}", (self.escape)(line))
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What `events` writes.
    fn logged(filter: &str, format: LogFormat, silenced: &[&str], events: impl FnOnce()) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = subscriber(filter, format, silenced, move || writer.clone()).unwrap();
        tracing::subscriber::with_default(subscriber, events);
        String::from_utf8(lines.0.lock().unwrap().clone()).unwrap()
    }

    const HOSTILE: &str = "x\n{\"level\":\"ERROR\"}\r\x1b[2J\u{9b}2J\u{202e}";

    fn hostile_event() {
        let span = tracing::info_span!(target: "tailpost_relay", "relay", server = %HOSTILE);
        let _entered = span.enter();
        let error = io::Error::other(HOSTILE);
        tracing::info!(target: "tailpost_relay", aggregate = %HOSTILE, debug = ?HOSTILE, text = HOSTILE,
            error = &error as &dyn std::error::Error, "message {HOSTILE}");
    }

    fn assert_one_harmless_line(log: &str) {
        let line = log.strip_suffix('\n').unwrap();
        assert!(!line.is_empty());
        assert!(
            !line.contains(|char: char| char.is_control() || char == '\u{202e}'),
            "{line:?}"
        );
    }

    #[test]
    fn an_event_is_one_line_of_text_whatever_its_fields_hold() {
        let log = logged("", LogFormat::Text, &[], hostile_event);
        assert_one_harmless_line(&log);
        assert!(log.contains(" INFO ") && log.contains("aggregate=x\\n{"), "{log}");
    }

    #[test]
    fn an_event_is_one_json_object_whatever_its_fields_hold() {
        let log = logged("", LogFormat::Json, &[], hostile_event);
        assert_one_harmless_line(&log);
        let object: Value = serde_json::from_str(&log).unwrap();
        assert_eq!(object["level"], "INFO");
        assert_eq!(object["target"], "tailpost_relay");
        assert_eq!(object["message"], format!("message {HOSTILE}"));
        assert_eq!(object["aggregate"], HOSTILE);
        assert_eq!(
            object["span"]["name"], "relay",
            "the span's own name, or its field"
        );
    }

    fn events_of_all_kinds() {
        tracing::debug!(target: "tailpost_relay::run", "ours-debug");
        tracing::info!(target: "tailpost", "ours-info");
        tracing::info!(target: "tailpost_rabbitmq::sink", "ours-info-too");
        tracing::warn!(target: "hyper", "other-warn");
        tracing::error!(target: "hyper", "other-error");
        tracing::warn!(target: "lapin::returned_messages", message_ = "canary-payload", "returned");
        tracing::error!(target: "lapin", "lapin-error");
    }

    fn shown(filter: &str) -> Vec<&'static str> {
        let log = logged(filter, LogFormat::Text, &["lapin"], events_of_all_kinds);
        let all = [
            "ours-debug",
            "ours-info",
            "ours-info-too",
            "other-warn",
            "other-error",
            "canary",
            "lapin-error",
        ];
        all.into_iter()
            .filter(|word| {
                log.lines().any(|line| {
                    line.contains(&format!(": {word}")) || line.contains(&format!("{word}-payload"))
                })
            })
            .collect()
    }

    #[test]
    fn by_default_our_crates_log_info_and_all_others_errors() {
        let default = ["ours-info", "ours-info-too", "other-error"];
        assert_eq!(shown(""), default);
        assert_eq!(shown("info"), default);
        assert_eq!(shown("debug"), [&["ours-debug"], &default[..]].concat());
        assert_eq!(shown("off"), ["other-error"]);
        assert_eq!(shown("error , hyper=warn"), ["other-warn", "other-error"]);
        assert_eq!(shown("warn,tailpost_relay=debug"), ["ours-debug", "other-error"]);
    }

    #[test]
    fn a_crate_that_logs_payloads_is_silenced_whatever_the_filter_says() {
        for filter in [
            "trace",
            "lapin=trace",
            "lapin::returned_messages=trace",
            "lapin=trace,lapin::returned_messages[{message_}]=trace",
        ] {
            assert!(!shown(filter).contains(&"canary"), "{filter}");
            assert!(!shown(filter).contains(&"lapin-error"), "{filter}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_an_error_that_names_it() {
        for filter in [
            "inof",
            "tailpost=inof",
            "warn,tailpost",
            "tailpost=info=warn",
            "[tailpost=info",
        ] {
            let error = parse(filter).map(|_| ()).expect_err(filter);
            assert!(error.to_string().contains(&format!("{filter:?}")), "{error}");
        }
        assert_eq!("text".parse::<LogFormat>().unwrap().to_string(), "text");
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
