//! What the relay shows of itself: counters, gauges and the reason for not being ready. Written by the relay and its
//! source, read by metrics and the status page; it decides nothing.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Relaxed);
    }

    /// The sum so far.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that is set.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Sets the value.
    pub fn set(&self, n: u64) {
        self.0.store(n, Relaxed);
    }

    /// The value last set.
    pub fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// How a connection stands.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Link {
    /// Not tried yet.
    #[default]
    Starting,
    /// Up.
    Connected,
    /// Down; being tried again.
    Retrying {
        /// The last error, with its hint.
        why: String,
    },
    /// Somebody else holds the lock.
    Standby {
        /// Who.
        holder: String,
    },
}

/// The part of the state that is text.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The source's connection.
    pub source: Link,
    /// The broker's connection.
    pub sink: Link,
    /// The broker's words while it blocks us.
    pub blocked: Option<String>,
    /// Position last read.
    pub received: Option<String>,
    /// Position last stored.
    pub stored: Option<String>,
    /// The aggregate and reason that hold the frontier, while a bound has stopped intake.
    pub holding: Option<String>,
    /// Why the offset cannot be stored, while it cannot.
    pub store_failing: Option<String>,
    /// Why publishing stopped for good.
    pub halted: Option<String>,
    /// A stop was asked for; what is in flight is waited for.
    pub draining: bool,
    /// What keeps the oldest unsettled event from being settled, where the broker returned or refused it.
    pub trouble: Option<String>,
    /// Since when something has been unsettled without a break.
    pub busy_since: Option<Instant>,
    /// When the broker last confirmed.
    pub last_confirm: Option<Instant>,
    /// Wall clock of the last confirm, for metrics only.
    pub last_confirm_at: Option<SystemTime>,
}

/// Counters, gauges and state. One for each relay, shared by reference count.
#[derive(Debug, Default)]
pub struct Progress {
    /// Rows read from the source, repeats included.
    pub rows: Counter,
    /// Transactions read, those without outbox rows included.
    pub transactions: Counter,
    /// Messages handed to the sink, repeats included.
    pub published: Counter,
    /// Messages confirmed.
    pub confirmed: Counter,
    /// Messages returned as unroutable.
    pub returned: Counter,
    /// Messages refused by the broker.
    pub nacked: Counter,
    /// Generations of the broker connection that ended unasked.
    pub sink_losses: Counter,
    /// Generations of the source connection that ended unasked.
    pub source_losses: Counter,
    /// Offsets stored.
    pub stores: Counter,
    /// Updates of outbox tables: passed, not published.
    pub passed_updates: Counter,
    /// Deletes from outbox tables: passed.
    pub passed_deletes: Counter,
    /// Truncates of outbox tables: passed.
    pub passed_truncates: Counter,
    /// Published, not answered yet.
    pub in_flight: Gauge,
    /// Events read, not settled yet.
    pub unsettled: Gauge,
    /// Bytes of what is unsettled or buffered.
    pub unsettled_bytes: Gauge,
    /// Events waiting for an earlier one of their aggregate.
    pub held: Gauge,
    /// Events settled beyond the frontier.
    pub ahead: Gauge,
    /// Bytes of log that the server keeps for us (PostgreSQL: from `confirmed_flush_lsn` to the end of WAL).
    pub lag_bytes: Gauge,
    /// Bytes of log from the slot's `restart_lsn` to the end of WAL.
    pub retained_bytes: Gauge,
    state: Mutex<State>,
}

/// Whether traffic may count on this process, and why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// What `/readyz` answers.
    pub ready: bool,
    /// `active` or `standby`.
    pub role: &'static str,
    /// Who holds the lock, for a standby.
    pub holder: Option<String>,
    /// Why it is not ready.
    pub reason: Option<String>,
}

impl Progress {
    /// Changes the state.
    pub fn update(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Copies the state.
    pub fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Decides readiness. A standby is ready, so that a rolling update goes on. `stall_after` bounds how long something
    /// may be unsettled without any confirm.
    pub fn readiness(&self, stall_after: Duration) -> Readiness {
        let state = self.state();
        if let (Link::Standby { holder }, None) = (&state.source, &state.halted) {
            return Readiness {
                ready: true,
                role: "standby",
                holder: Some(holder.clone()),
                reason: None,
            };
        }
        let reason = not_ready(&state, stall_after);
        Readiness {
            ready: reason.is_none(),
            role: "active",
            holder: None,
            reason,
        }
    }
}

fn not_ready(state: &State, stall_after: Duration) -> Option<String> {
    if let Some(why) = &state.halted {
        return Some(format!("halted: {why}"));
    }
    if state.draining {
        return Some("stopping".into());
    }
    for (name, link) in [("source", &state.source), ("broker", &state.sink)] {
        match link {
            Link::Connected | Link::Standby { .. } => {}
            Link::Starting => return Some(format!("connecting to the {name}")),
            Link::Retrying { why } => return Some(format!("no {name}: {why}")),
        }
    }
    if let Some(why) = &state.blocked {
        return Some(format!("the broker blocks publishers: {why}"));
    }
    if let Some(why) = &state.store_failing {
        return Some(format!("the offset cannot be stored: {why}"));
    }
    if let Some(holding) = &state.holding {
        return Some(holding.clone());
    }
    let silent = match (state.busy_since, state.last_confirm) {
        (Some(busy), Some(confirm)) => busy.max(confirm).elapsed() > stall_after,
        (Some(busy), None) => busy.elapsed() > stall_after,
        (None, _) => false,
    };
    if !silent {
        return None;
    }
    let silence = format!("nothing was confirmed for {} s", stall_after.as_secs());
    Some(match &state.trouble {
        Some(trouble) => format!("{silence}: {trouble}"),
        None => silence,
    })
}
