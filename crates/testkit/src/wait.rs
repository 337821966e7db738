//! Waiting for something to become true, in place of sleeping and hoping.

use std::time::Duration;

use anyhow::bail;
use tokio::time::{Instant, sleep};

/// Asks `probe` every 20 ms until it yields a value, and returns that. After `limit` the error says `what` was waited
/// for. An error of `probe` ends the wait at once; what may pass by itself is `Ok(None)`.
///
/// # Errors
/// Those of `probe`, and the limit.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let began = Instant::now();
    loop {
        if let Some(value) = probe().await? {
            return Ok(value);
        }
        if began.elapsed() >= limit {
            bail!("waited {limit:?} in vain: {what}");
        }
        sleep(Duration::from_millis(20)).await;
    }
}
