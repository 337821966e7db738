//! The relay's bounds and policies, as the command line gives them.

use std::time::Duration;

/// What order is kept (law 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// First deliveries of one aggregate are in commit order, also across nack, return, retry and reconnect.
    Aggregate,
    /// All events are in commit order, across reconnect only.
    Commit,
}

/// What to do once publishing has stopped for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHalt {
    /// End the process, with the exit status of the cause.
    Exit,
    /// Stay up, unready, the source's keepalives answered, until somebody stops it.
    Stay,
}

/// Bounds and policies.
#[derive(Clone, Debug)]
pub struct Options {
    /// Order of first deliveries.
    pub order: Order,
    /// Events published and not answered, at most.
    pub in_flight: usize,
    /// Bytes of everything unsettled and buffered, at most (law 8).
    pub in_flight_bytes: usize,
    /// Events settled beyond the frontier, at most: with `in_flight` what a crash repeats at most.
    pub max_ahead: usize,
    /// A confirm that takes longer ends the generation, unless the broker blocks.
    pub confirm_timeout: Duration,
    /// How long a stop waits for confirms.
    pub drain_timeout: Duration,
    /// What a halt does.
    pub on_halt: OnHalt,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            order: Order::Aggregate,
            in_flight: 1000,
            in_flight_bytes: 8 << 20,
            max_ahead: 100_000,
            confirm_timeout: Duration::from_secs(60),
            drain_timeout: Duration::from_secs(8),
            on_halt: OnHalt::Exit,
        }
    }
}
