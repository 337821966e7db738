//! The relay loop.
//!
//! ```text
//! source task --(bounded bytes)--> mapper --> order gate --> sink (window) --> tracker (FIFO) --> store task --> feedback
//! ```
//!
//! One task runs the loop below; it owns the core, which decides, and the sink. The source task and the store task stand
//! beside it. An event's way: read and charged to the budget ([`crate::intake`]), mapped, admitted to its aggregate's
//! chain, published when the window allows, settled by a confirm, passed by the frontier; the position behind it is
//! stored ([`crate::keeper`]) and only then reported by the source's feedback.

use std::future::Future;
use std::sync::Arc;

use tailpost_outbox::{MapError, Mapped, Row};
use tokio::sync::watch;
use tokio::time::sleep_until;

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::intake::Intake;
use crate::keeper::Keeper;
use crate::publisher::Publisher;
use crate::{Disposition, Failure, OffsetStore, OnHalt, Options, Progress, Sink, Source};

mod from_sink;
mod from_source;
mod from_store;
mod relay;
mod report;

use relay::Relay;
use report::{show_halt, show_source_failure};

/// Items taken from the source task in one turn.
const BATCH: usize = 128;

/// How a run ended.
#[derive(Debug)]
pub enum Ending {
    /// Stopped as asked: all that was read is settled, stored and reported. A restart repeats nothing.
    Drained,
    /// Stopped as asked before all was confirmed, stored and reported: a restart repeats the rest.
    Incomplete {
        /// What was left.
        why: String,
    },
    /// Publishing stopped for good. The position stands before what could not be published.
    Halted(Failure),
}

/// Runs a relay until `stop` completes or it halts. It tails `source` from the position in `store`, makes messages of its
/// rows with `map`, publishes them to `sink`, and shows itself in `progress`.
pub async fn run<S, K, O, M>(
    source: S,
    sink: K,
    mut store: O,
    map: M,
    options: Options,
    progress: Arc<Progress>,
    stop: impl Future<Output = ()>,
) -> Ending
where
    M: FnMut(&Row) -> Result<Mapped, MapError>,
    S: Source,
    K: Sink,
    O: OffsetStore<Position = S::Position>,
{
    tokio::pin!(stop);
    let loaded = tokio::select! {
        biased;
        () = &mut stop => return Ending::Drained,
        loaded = load(&mut store, &progress) => loaded,
    };
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(failure) => return halt_at_start(failure, &options, &progress, stop).await,
    };
    let budget = Budget::new(options.in_flight_bytes);
    let (stored_tx, stored) = watch::channel(loaded.clone());
    let mut intake = Intake::start(source, loaded.clone(), stored, budget.clone());
    let mut keeper = Keeper::start(store, stored_tx);
    let mut publisher = Publisher::new(sink);
    publisher.open_after(Backoff::NONE);
    progress.update(|state| state.stored = loaded.as_ref().map(ToString::to_string));
    let mut relay = Relay::new(options, map, budget, progress, loaded.is_some());
    let mut items = Vec::with_capacity(BATCH);
    let mut outcomes = Vec::new();
    loop {
        relay.pump(&mut publisher);
        relay.save(&keeper);
        if let Some(why) = relay.is_over() {
            return relay.end(why, intake, publisher, keeper).await;
        }
        let (accepts, wake) = (relay.accepts(), relay.wake(publisher.up().is_some()));
        tokio::select! {
            biased;
            () = &mut stop, if !relay.is_stopping() => relay.stop(&intake),
            Some(result) = keeper.results.recv() => relay.on_stored(result),
            Some(signal) = intake.signals.recv() => relay.on_signal(signal, &mut intake.items),
            // Before what may always be ready under load.
            () = sleep_until(wake) => relay.on_tick(&mut publisher),
            happened = publisher.next(&mut outcomes) => relay.on_sink(happened, &mut outcomes, &mut publisher),
            _ = intake.items.recv_many(&mut items, BATCH), if accepts => relay.on_items(&mut items),
        }
        relay.after_halt(&intake);
    }
}

/// Reads the offset; what cannot be reached is tried for ever.
async fn load<O: OffsetStore>(store: &mut O, progress: &Progress) -> Result<Option<O::Position>, Failure> {
    let mut backoff = Backoff::default();
    loop {
        let failure = match store.load().await {
            Ok(loaded) => return Ok(loaded),
            Err(failure) => failure,
        };
        let after = match &failure.disposition {
            Disposition::Retry { after } => *after,
            Disposition::Standby { .. } => None,
            Disposition::Park | Disposition::Setup | Disposition::Halt(_) => return Err(failure),
        };
        show_source_failure(progress, &failure);
        tokio::time::sleep(backoff.next(after)).await;
    }
}

async fn halt_at_start(
    failure: Failure,
    options: &Options,
    progress: &Progress,
    stop: impl Future<Output = ()>,
) -> Ending {
    show_halt(progress, &failure);
    if options.on_halt == OnHalt::Stay {
        stop.await;
    }
    Ending::Halted(failure)
}
