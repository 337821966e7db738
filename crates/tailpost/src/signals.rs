//! Signals: the first asks for an orderly stop, the second ends at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing::warn;

use crate::exit::Exit;

/// SIGTERM and SIGINT.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on; must be called within a runtime.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes at the first signal. From then on a second one ends the process at once: safe, what is not stored
    /// repeats.
    pub(crate) async fn stop(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            warn!("second signal: ending at once");
            std::process::exit(Exit::Incomplete as i32);
        });
    }
}
