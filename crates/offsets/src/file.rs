//! The file as an offset store.
//!
//! Every call runs on tokio's blocking threads, so that a slow disk stops no other task; the work owns what it needs,
//! the lock included. So a store once begun completes or fails as a whole, also when its future is dropped or the
//! store itself is: the lock is freed after it, not in the middle.

use std::cmp::Ordering;
use std::error::Error;
use std::marker::PhantomData;
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use tailpost_relay::{Failure, OffsetStore, Position};

use crate::disk::{Disk, RealDisk};
use crate::lock::Lock;
use crate::paths::Paths;
use crate::{Fault, Identity, OffsetError, Record, Timeline};

mod keeper;
#[cfg(test)]
mod tests;

pub(crate) use keeper::Keeper;

/// The offset in a file. Holds the file's lock for life.
pub struct FileStore<P> {
    keeper: Arc<Mutex<Keeper>>,
    timeline: Timeline,
    position: PhantomData<fn() -> P>,
}

impl<P> FileStore<P> {
    /// Takes the lock of the offset file `path`, and creates nothing but the lock file. The identity is only known once
    /// the source's SQL session is open, so open the store after it. Blocks for a few system calls.
    ///
    /// # Errors
    ///
    /// [`OffsetError::Locked`] while another process holds the lock: a standby, try again. [`OffsetError::Lock`] if
    /// there is no such folder, or it may not be written.
    pub fn open(path: &Path, identity: Identity) -> Result<Self, OffsetError> {
        Self::open_on(Box::new(RealDisk), path, identity)
    }

    fn open_on(disk: Box<dyn Disk>, path: &Path, identity: Identity) -> Result<Self, OffsetError> {
        let timeline = Timeline::new(identity.timeline);
        let paths = Paths::new(path);
        let lock = Lock::take(&paths)?;
        let keeper = Keeper::new(disk, paths, lock, identity);
        Ok(Self {
            keeper: Arc::new(Mutex::new(keeper)),
            timeline,
            position: PhantomData,
        })
    }

    /// The timeline that stores are stamped with, shared: set it before reading on from a promoted server.
    pub fn timeline(&self) -> Timeline {
        self.timeline.clone()
    }

    /// Reads the offset as it is stored, for the connector to judge its timeline. Same promises as the store's
    /// `load`; cancel-safe.
    ///
    /// # Errors
    ///
    /// [`OffsetError::Unusable`] for whatever is not an offset of this identity.
    pub async fn record(&mut self) -> Result<Option<Record>, OffsetError> {
        self.run(Keeper::load).await
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Keeper) -> Result<T, OffsetError> + Send + 'static,
    ) -> Result<T, OffsetError> {
        let keeper = Arc::clone(&self.keeper);
        // A panic within leaves the keeper unsure of what is in the file, which it knows how to handle.
        let work = move || work(&mut keeper.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(work)
            .await
            .map_err(|_| OffsetError::Interrupted)?
    }
}

impl<P> OffsetStore for FileStore<P>
where
    P: Position + FromStr,
    P::Err: Into<Box<dyn Error + Send + Sync>>,
{
    type Position = P;

    async fn load(&mut self) -> Result<Option<P>, Failure> {
        let position = self.run(|keeper| {
            let record = keeper.load()?;
            record
                .map(|record| parse(&record).map_err(|fault| keeper.unusable(fault)))
                .transpose()
        });
        Ok(position.await?)
    }

    async fn store(&mut self, position: &P) -> Result<(), Failure> {
        let (asked, timeline) = (position.clone(), self.timeline.current());
        let stored = self.run(move |keeper| {
            let current = keeper.load_again()?;
            if let Some(record) = &current {
                let stored: P = parse(record).map_err(|fault| keeper.unusable(fault))?;
                // Positions that the source cannot compare are refused too: nobody knows what lies between.
                if !matches!(
                    asked.partial_cmp(&stored),
                    Some(Ordering::Greater | Ordering::Equal)
                ) {
                    return Err(keeper.backward(&stored.to_string(), &asked.to_string()));
                }
            }
            keeper
                .store(current.as_ref(), asked.to_string(), timeline)
                .map(|_| ())
        });
        Ok(stored.await?)
    }
}

fn parse<P>(record: &Record) -> Result<P, Fault>
where
    P: FromStr,
    P::Err: Into<Box<dyn Error + Send + Sync>>,
{
    record
        .position
        .parse()
        .map_err(|error: P::Err| Fault::Position(error.into()))
}
