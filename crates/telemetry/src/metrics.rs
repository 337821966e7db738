//! Every metric: its name, its help text, and where its value comes from. Nothing here is counted a second time: the
//! values are the relay's [`Progress`], read at each scrape.
//!
//! Labels are constants of this file, never data.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, prometheus_text, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tailpost_relay::{Link, Progress, Readiness, State};

/// Content type of the OpenMetrics text format, for a scraper that asks for it.
const OPEN_METRICS: &str = "application/openmetrics-text";

struct Counter {
    /// Without `_total`, which the format adds.
    name: &'static str,
    help: &'static str,
    value: fn(&Progress) -> u64,
}

struct Gauge {
    name: &'static str,
    help: &'static str,
    /// `None` leaves it out of the scrape.
    value: fn(&Snapshot<'_>) -> Option<f64>,
}

/// What one scrape sees.
struct Snapshot<'a> {
    progress: &'a Progress,
    state: State,
    readiness: Readiness,
}

const COUNTERS: &[Counter] = &[
    Counter {
        name: "tailpost_rows_read",
        help: "Outbox rows read from the source, repeats after a reconnect included.",
        value: |progress| progress.rows.value(),
    },
    Counter {
        name: "tailpost_transactions_read",
        help: "Transactions read from the source, those without an outbox row included.",
        value: |progress| progress.transactions.value(),
    },
    Counter {
        name: "tailpost_messages_published",
        help: "Messages handed to the broker, repeats included. Far above the confirmed ones: messages are sent again and again; see returned, nacked and lost connections.",
        value: |progress| progress.published.value(),
    },
    Counter {
        name: "tailpost_messages_confirmed",
        help: "Messages that the broker confirmed. Its rate is the throughput; zero while rows are read is a stall.",
        value: |progress| progress.confirmed.value(),
    },
    Counter {
        name: "tailpost_messages_returned",
        help: "Messages that the broker could not route to any queue. Not zero: a queue or a binding is missing.",
        value: |progress| progress.returned.value(),
    },
    Counter {
        name: "tailpost_messages_nacked",
        help: "Messages that the broker refused (basic.nack). Not zero: a queue is full and rejects, or the broker is in trouble.",
        value: |progress| progress.nacked.value(),
    },
    Counter {
        name: "tailpost_broker_connection_losses",
        help: "Connections to the broker that ended unasked. Each repeats what was in flight.",
        value: |progress| progress.sink_losses.value(),
    },
    Counter {
        name: "tailpost_source_connection_losses",
        help: "Replication connections to the source that ended unasked.",
        value: |progress| progress.source_losses.value(),
    },
    Counter {
        name: "tailpost_offset_stores",
        help: "Offsets stored. Zero rate while messages are confirmed: the oldest event is held up, and a restart would repeat all after it.",
        value: |progress| progress.stores.value(),
    },
    Counter {
        name: "tailpost_outbox_updates_passed",
        help: "Updates of outbox tables, which are passed and not published. Not zero: the application updates rows, or its upsert hit an old one and its event was not published.",
        value: |progress| progress.passed_updates.value(),
    },
    Counter {
        name: "tailpost_outbox_deletes_passed",
        help: "Deletes from outbox tables, which are passed: cleaning up causes them.",
        value: |progress| progress.passed_deletes.value(),
    },
    Counter {
        name: "tailpost_outbox_truncates_passed",
        help: "Truncates of outbox tables, which are passed.",
        value: |progress| progress.passed_truncates.value(),
    },
];

const GAUGES: &[Gauge] = &[
    Gauge {
        name: "tailpost_ready",
        help: "1 when /readyz answers 200. Alert on 0 for longer than a deployment takes; /readyz tells the reason.",
        value: |now| flag(now.readiness.ready),
    },
    Gauge {
        name: "tailpost_active",
        help: "1 when this process is the relay, 0 when it is a standby that waits for the lock. The sum over all processes of one name should be 1.",
        value: |now| flag(now.readiness.role == "active"),
    },
    Gauge {
        name: "tailpost_halted",
        help: "1 when publishing has stopped for good and waits for an operator. Alert on it.",
        value: |now| flag(now.state.halted.is_some()),
    },
    Gauge {
        name: "tailpost_draining",
        help: "1 while the process stops and waits for the last confirms.",
        value: |now| flag(now.state.draining),
    },
    Gauge {
        name: "tailpost_source_connected",
        help: "1 while the replication connection is up.",
        value: |now| flag(now.state.source == Link::Connected),
    },
    Gauge {
        name: "tailpost_broker_connected",
        help: "1 while the broker connection is up.",
        value: |now| flag(now.state.sink == Link::Connected),
    },
    Gauge {
        name: "tailpost_broker_blocked",
        help: "1 while the broker blocks publishers: its memory or disk alarm is on. The log grows meanwhile.",
        value: |now| flag(now.state.blocked.is_some()),
    },
    Gauge {
        name: "tailpost_intake_held",
        help: "1 while a bound has stopped reading because one event holds up all; /readyz names its aggregate.",
        value: |now| flag(now.state.holding.is_some()),
    },
    Gauge {
        name: "tailpost_offset_store_failing",
        help: "1 while the offset cannot be stored. Publishing goes on within --max-ahead, and a restart would repeat it.",
        value: |now| flag(now.state.store_failing.is_some()),
    },
    Gauge {
        name: "tailpost_messages_in_flight",
        help: "Messages published and not answered yet. At --in-flight all the time: the broker is the bottleneck.",
        value: |now| count(now.progress.in_flight.value()),
    },
    Gauge {
        name: "tailpost_events_unsettled",
        help: "Events read and neither confirmed nor parked yet.",
        value: |now| count(now.progress.unsettled.value()),
    },
    Gauge {
        name: "tailpost_unsettled_bytes",
        help: "Bytes of all that is unsettled or buffered; --in-flight-bytes bounds it.",
        value: |now| count(now.progress.unsettled_bytes.value()),
    },
    Gauge {
        name: "tailpost_events_held",
        help: "Events that wait for an earlier one of their aggregate. High: few aggregates get most events, or one cannot be delivered.",
        value: |now| count(now.progress.held.value()),
    },
    Gauge {
        name: "tailpost_events_ahead",
        help: "Events settled beyond the oldest unsettled one: what a crash would repeat. --max-ahead bounds it.",
        value: |now| count(now.progress.ahead.value()),
    },
    Gauge {
        name: "tailpost_source_lag_bytes",
        help: "Bytes of log from the position confirmed to the source to the end of its log. Alert when it grows for minutes.",
        value: |now| count(now.progress.lag_bytes.value()),
    },
    Gauge {
        name: "tailpost_source_retained_bytes",
        help: "Bytes of log that the source keeps on its disk for this relay. Alert well before its disk, or max_slot_wal_keep_size, is full.",
        value: |now| count(now.progress.retained_bytes.value()),
    },
    Gauge {
        name: "tailpost_last_confirm_age_seconds",
        help: "Seconds since the broker last confirmed a message. High while messages are in flight is a stall; high alone is a quiet outbox. Absent before the first.",
        value: |now| now.state.last_confirm.map(|at| at.elapsed().as_secs_f64()),
    },
    Gauge {
        name: "tailpost_last_confirm_timestamp_seconds",
        help: "When the broker last confirmed a message, in seconds since 1970. Absent before the first.",
        value: |now| seconds(now.state.last_confirm_at?),
    },
    Gauge {
        name: "tailpost_resident_memory_bytes",
        help: "Resident memory of the process. Absent where the system does not tell.",
        value: |_| resident_bytes(),
    },
];

const BUILD_INFO: &str = "tailpost_build_info";

fn flag(on: bool) -> Option<f64> {
    Some(f64::from(u8::from(on)))
}

/// Exact up to 2^53, as every number in these formats.
#[expect(clippy::cast_precision_loss, reason = "Prometheus stores doubles")]
fn count(n: u64) -> Option<f64> {
    Some(n as f64)
}

fn seconds(at: SystemTime) -> Option<f64> {
    at.duration_since(UNIX_EPOCH)
        .ok()
        .map(|since| since.as_secs_f64())
}

/// `VmRSS` of proc(5), in kB there.
fn resident_bytes() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    count(kilobytes.saturating_mul(1024))
}

/// Reads [`Progress`] at each scrape.
struct Scrape {
    progress: Arc<Progress>,
    stall_after: Duration,
}

impl fmt::Debug for Scrape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scrape")
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for Counter { name, help, value } in COUNTERS {
            let metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            ConstCounter::new(value(&self.progress)).encode(metric)?;
        }
        let now = Snapshot {
            progress: &self.progress,
            state: self.progress.state(),
            readiness: self.progress.readiness(self.stall_after),
        };
        for Gauge { name, help, value } in GAUGES {
            if let Some(value) = value(&now) {
                let metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                ConstGauge::new(value).encode(metric)?;
            }
        }
        let help = "Always 1; its label is the version that runs.";
        let mut metric = encoder.encode_descriptor(BUILD_INFO, help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        ConstGauge::new(1.0).encode(metric.encode_family(&labels)?)
    }
}

/// All metrics of one relay.
#[derive(Debug)]
pub(crate) struct Metrics(Registry);

impl Metrics {
    pub(crate) fn new(progress: Arc<Progress>, stall_after: Duration) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape {
            progress,
            stall_after,
        }));
        Self(registry)
    }

    /// Writes the page in the format that the request's `Accept` asks for, Prometheus' own else. Returns content type
    /// and page.
    pub(crate) fn page(&self, accept: &str) -> Result<(&'static str, String), fmt::Error> {
        let mut page = String::with_capacity(8 << 10);
        if accept.contains(OPEN_METRICS) {
            text::encode(&mut page, &self.0)?;
            Ok(("application/openmetrics-text; version=1.0.0; charset=utf-8", page))
        } else {
            prometheus_text::encode(&mut page, &self.0)?;
            Ok((prometheus_text::CONTENT_TYPE, page))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn page(progress: &Arc<Progress>, accept: &str) -> String {
        Metrics::new(Arc::clone(progress), Duration::from_secs(60))
            .page(accept)
            .unwrap()
            .1
    }

    fn values(page: &str) -> BTreeMap<&str, &str> {
        page.lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.rsplit_once(' '))
            .collect()
    }

    #[test]
    fn every_counter_and_gauge_of_progress_is_a_metric_of_its_own_value() {
        let progress = Arc::new(Progress::default());
        // Progress keeps no list of its fields, but its Debug text has them all.
        let debug = format!("{progress:?}");
        let gauges = [
            &progress.in_flight,
            &progress.unsettled,
            &progress.unsettled_bytes,
            &progress.held,
            &progress.ahead,
            &progress.lag_bytes,
            &progress.retained_bytes,
        ];
        assert_eq!(debug.matches("Counter(").count(), COUNTERS.len());
        assert_eq!(debug.matches("Gauge(").count(), gauges.len());
        for (n, gauge) in (1001..).zip(gauges) {
            gauge.set(n);
        }
        let counters = [
            &progress.rows,
            &progress.transactions,
            &progress.published,
            &progress.confirmed,
            &progress.returned,
            &progress.nacked,
            &progress.sink_losses,
            &progress.source_losses,
            &progress.stores,
            &progress.passed_updates,
            &progress.passed_deletes,
            &progress.passed_truncates,
        ];
        for (n, counter) in (101..).zip(counters) {
            counter.add(n);
        }
        let page = page(&progress, "");
        let values = values(&page);
        for (n, counter) in (101..).zip(COUNTERS) {
            assert_eq!(values[format!("{}_total", counter.name).as_str()], n.to_string());
        }
        let names = [
            "messages_in_flight",
            "events_unsettled",
            "unsettled_bytes",
            "events_held",
            "events_ahead",
            "source_lag_bytes",
            "source_retained_bytes",
        ];
        for (n, name) in (1001..).zip(names) {
            assert_eq!(values[format!("tailpost_{name}").as_str()], format!("{n}.0"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_state_is_shown_as_flags_and_ages() {
        let progress = Arc::new(Progress::default());
        let before = page(&progress, "");
        let values_before = values(&before);
        assert_eq!(values_before["tailpost_ready"], "0.0");
        assert!(!values_before.contains_key("tailpost_last_confirm_age_seconds"));
        progress.update(|state| {
            state.source = Link::Connected;
            state.sink = Link::Connected;
            state.last_confirm = Some(tokio::time::Instant::now());
            state.last_confirm_at = Some(UNIX_EPOCH + Duration::from_millis(1500));
        });
        tokio::time::advance(Duration::from_secs(7)).await;
        let after = page(&progress, "");
        let values_after = values(&after);
        for (name, value) in [
            ("ready", "1.0"),
            ("active", "1.0"),
            ("source_connected", "1.0"),
            ("broker_connected", "1.0"),
            ("broker_blocked", "0.0"),
            ("halted", "0.0"),
            ("last_confirm_age_seconds", "7.0"),
            ("last_confirm_timestamp_seconds", "1.5"),
        ] {
            assert_eq!(values_after[format!("tailpost_{name}").as_str()], value, "{name}");
        }
        progress.update(|state| {
            state.blocked = Some("low on memory".into());
            state.holding = Some("order/1".into());
            state.store_failing = Some("disk full".into());
            state.halted = Some("poison".into());
            state.draining = true;
            state.source = Link::Standby {
                holder: "secret-holder".into(),
            };
        });
        let standby = page(&progress, "");
        let values_standby = values(&standby);
        for name in [
            "broker_blocked",
            "intake_held",
            "offset_store_failing",
            "halted",
            "draining",
        ] {
            assert_eq!(
                values_standby[format!("tailpost_{name}").as_str()],
                "1.0",
                "{name}"
            );
        }
        for text in ["low on", "order/1", "disk full", "poison", "secret-holder"] {
            assert!(!standby.contains(text), "text of the state is no label");
        }
        progress.update(|state| state.halted = None);
        assert_eq!(values(&page(&progress, ""))["tailpost_active"], "0.0");
    }

    #[test]
    fn names_carry_their_prefix_and_help_texts_are_sentences() {
        let gauges = GAUGES.iter().map(|gauge| (gauge.name, gauge.help));
        let all: Vec<_> = COUNTERS
            .iter()
            .map(|counter| (counter.name, counter.help))
            .chain(gauges)
            .collect();
        let mut seen = std::collections::BTreeSet::new();
        for (name, help) in all {
            assert!(
                name.starts_with("tailpost_") && !name.ends_with("_total"),
                "{name}"
            );
            assert!(help.ends_with('.') && help.len() > 20, "{name}");
            assert!(seen.insert(name), "{name} twice");
        }
    }

    #[test]
    fn a_scraper_gets_the_format_it_asks_for() {
        let progress = Arc::new(Progress::default());
        let open = page(
            &progress,
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
        );
        assert!(
            open.ends_with("# EOF\n") && open.contains("# TYPE tailpost_rows_read counter\n"),
            "{open}"
        );
        let plain = page(&progress, "text/plain");
        assert!(
            !plain.contains("# EOF") && plain.contains("# TYPE tailpost_rows_read_total counter\n"),
            "{plain}"
        );
        let build = format!(
            "tailpost_build_info{{version=\"{}\"}} 1.0\n",
            env!("CARGO_PKG_VERSION")
        );
        assert!(open.contains(&build) && plain.contains(&build), "{plain}");
    }
}
