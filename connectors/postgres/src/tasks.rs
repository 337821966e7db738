//! Tasks that end with their owner.

use std::future::Future;

use tokio::task::JoinHandle;

/// A task that is aborted when this is dropped.
#[derive(Debug)]
pub(crate) struct Task(JoinHandle<()>);

impl Task {
    pub(crate) fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(future))
    }

    /// Waits until it has ended. A panic aborts the process in every profile of ours, so there is no other outcome.
    pub(crate) async fn ended(mut self) {
        drop((&mut self.0).await);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
