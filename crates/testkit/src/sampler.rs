//! Watches a slot's position during a run: what the server was told must never be too much.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, ensure};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use crate::servers::connect;

const EVERY: Duration = Duration::from_millis(20);
const SQL: &str = "SELECT confirmed_flush_lsn::text, active, extract(epoch FROM pg_postmaster_start_time())::float8 \
                   FROM pg_replication_slots WHERE slot_name = $1";

/// One look at a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When the answer was there.
    pub at: Instant,
    /// `confirmed_flush_lsn`; `None` when the slot does not exist.
    pub confirmed_flush: Option<u64>,
    /// Somebody streams from it.
    pub active: bool,
    /// When the server started, in seconds since 1970. A server that crashed may come back with an older position of the
    /// slot than it was told: it writes that one down only now and then.
    pub server_started: f64,
}

/// Looks at a slot every 20 ms, also across restarts of the server.
#[derive(Debug)]
pub struct Sampler {
    samples: Arc<Mutex<Vec<Sample>>>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Sampler {
    /// Starts to look at `slot` in the cluster of `url`.
    pub fn start(url: &str, slot: &str) -> Self {
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(watch_slot(
            url.to_owned(),
            slot.to_owned(),
            Arc::clone(&samples),
            stopped,
        ));
        Self { samples, stop, task }
    }

    /// What was seen so far.
    pub fn samples(&self) -> Vec<Sample> {
        self.samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// The latest position seen so far.
    pub fn latest(&self) -> Option<u64> {
        self.samples
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .rev()
            .find_map(|s| s.confirmed_flush)
    }

    /// Demands that the position never reached `bound` until now.
    ///
    /// # Errors
    /// It did, or nothing was seen.
    pub fn never_reached(&self, bound: u64) -> anyhow::Result<()> {
        let samples = self.samples();
        let highest = samples.iter().filter_map(|sample| sample.confirmed_flush).max();
        let highest = highest.context("the sampler never saw the slot")?;
        ensure!(
            highest < bound,
            "confirmed_flush_lsn reached {highest:X}, and was to stay under {bound:X}"
        );
        Ok(())
    }

    /// Stops, and demands that something was seen and that the position never went back in one life of the server.
    ///
    /// # Errors
    /// It did, or nothing was seen.
    pub async fn finish(self) -> anyhow::Result<Vec<Sample>> {
        self.stop.send_replace(true);
        self.task.await?;
        let samples = std::mem::take(&mut *self.samples.lock().unwrap_or_else(PoisonError::into_inner));
        check_monotonic(&samples)?;
        Ok(samples)
    }
}

/// Parses `16/B374D848`.
///
/// # Errors
/// It is none.
pub fn lsn(text: &str) -> anyhow::Result<u64> {
    let (high, low) = text
        .split_once('/')
        .with_context(|| format!("\"{text}\" is no LSN"))?;
    let part = |text| u32::from_str_radix(text, 16).map(u64::from);
    Ok(part(high)? << 32 | part(low)?)
}

fn check_monotonic(samples: &[Sample]) -> anyhow::Result<()> {
    let seen = |sample: &Sample| {
        sample
            .confirmed_flush
            .map(|position| (sample.server_started, position))
    };
    let positions: Vec<_> = samples.iter().filter_map(seen).collect();
    ensure!(!positions.is_empty(), "the sampler never saw the slot");
    for pair in positions.windows(2) {
        let ((life, before), (next_life, after)) = (pair[0], pair[1]);
        ensure!(
            life != next_life || before <= after,
            "confirmed_flush_lsn went back from {before:X} to {after:X}"
        );
    }
    Ok(())
}

async fn watch_slot(
    url: String,
    slot: String,
    samples: Arc<Mutex<Vec<Sample>>>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut session = None;
    while !*stopped.borrow() {
        match look(&mut session, &url, &slot).await {
            Ok(sample) => samples
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(sample),
            Err(_) => session = None, // the server is down: a new session sees it come back
        }
        tokio::select! {
            () = sleep(EVERY) => {}
            _ = stopped.changed() => return,
        }
    }
}

async fn look(session: &mut Option<Client>, url: &str, slot: &str) -> anyhow::Result<Sample> {
    let client = match session {
        Some(client) => client,
        None => session.insert(connect(url).await?),
    };
    let row = client.query_opt(SQL, &[&slot]).await?;
    let at = Instant::now();
    let Some(row) = row else {
        return Ok(Sample {
            at,
            confirmed_flush: None,
            active: false,
            server_started: 0.0,
        });
    };
    let position: Option<&str> = row.try_get(0)?;
    let confirmed_flush = position.map(lsn).transpose()?;
    Ok(Sample {
        at,
        confirmed_flush,
        active: row.try_get(1)?,
        server_started: row.try_get(2)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_lsn_is_two_hexadecimal_halves() {
        assert_eq!(lsn("16/B374D848").unwrap(), 0x16_B374_D848);
        assert_eq!(lsn("0/0").unwrap(), 0);
        for wrong in ["", "16", "16/", "g/1", "1/123456789"] {
            assert!(lsn(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_position_that_goes_back_is_found_and_none_at_all_too() {
        let sample = |life, position| Sample {
            at: Instant::now(),
            confirmed_flush: position,
            active: true,
            server_started: f64::from(life),
        };
        check_monotonic(&[
            sample(1, Some(1)),
            sample(1, None),
            sample(1, Some(1)),
            sample(1, Some(2)),
        ])
        .unwrap();
        assert!(check_monotonic(&[sample(1, Some(2)), sample(1, None), sample(1, Some(1))]).is_err());
        check_monotonic(&[sample(1, Some(2)), sample(2, Some(1))]).unwrap();
        assert!(check_monotonic(&[sample(1, None)]).is_err());
    }
}
