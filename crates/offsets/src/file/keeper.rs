//! The blocking half: what is in the file, what may replace it.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::disk::Disk;
use crate::lock::Lock;
use crate::paths::Paths;
use crate::read::{self, Found};
use crate::replace::{Failed, replace};
use crate::{Fault, Identity, OffsetError, Record};

/// What this process knows to be in the file.
#[derive(Debug)]
enum Known {
    /// Not looked yet.
    Unread,
    /// This; `None` is no file.
    Is(Option<Record>),
    /// A store failed: the one or the other.
    Either(Option<Record>, Record),
}

impl Known {
    fn admits(&self, found: Option<&Record>) -> bool {
        match self {
            Self::Unread => true,
            Self::Is(record) => record.as_ref() == found,
            Self::Either(before, asked) => before.as_ref() == found || Some(asked) == found,
        }
    }

    fn generation(&self) -> u64 {
        match self {
            Self::Unread | Self::Is(None) | Self::Either(None, _) => 0,
            Self::Is(Some(record)) | Self::Either(Some(record), _) => record.generation,
        }
    }
}

/// Holds the lock, reads and replaces the file.
pub(crate) struct Keeper {
    paths: Paths,
    identity: Identity,
    lock: Lock,
    disk: Box<dyn Disk>,
    known: Known,
}

impl Keeper {
    pub(crate) fn new(disk: Box<dyn Disk>, paths: Paths, lock: Lock, identity: Identity) -> Self {
        Self {
            paths,
            identity,
            lock,
            disk,
            known: Known::Unread,
        }
    }

    /// Reads the offset and judges all but its position. `None` only where nothing was ever stored.
    pub(crate) fn load(&mut self) -> Result<Option<Record>, OffsetError> {
        let found = self.find().map_err(|fault| self.unusable(fault))?;
        let mode = found.as_ref().and_then(|found| found.lax);
        if let Some(mode) = mode {
            let path = self.paths.current.display();
            tracing::warn!(%path, mode = format!("{mode:04o}"), "the offset file is open to others; the next store closes it");
        }
        self.accept(found.map(|found| found.record))
    }

    /// Reads the offset again before a store. What cannot be read now may be readable later, and is no reason to halt.
    pub(crate) fn load_again(&mut self) -> Result<Option<Record>, OffsetError> {
        match self.lock.check(&self.paths) {
            Ok(true) => {}
            Ok(false) => {
                return Err(OffsetError::LockLost {
                    path: self.paths.lock.clone(),
                });
            }
            Err(source) => {
                return Err(self.failed(Failed {
                    step: "checking the lock",
                    source,
                }));
            }
        }
        match self.find() {
            Ok(found) => self.accept(found.map(|found| found.record)),
            Err(Fault::Io(source)) => Err(self.failed(Failed {
                step: "reading the stored offset",
                source,
            })),
            Err(fault) => Err(self.unusable(fault)),
        }
    }

    fn find(&self) -> Result<Option<Found>, Fault> {
        let found = read::current(&self.paths)?;
        let Some(record) = found.as_ref().map(|found| &found.record) else {
            // Whatever stands in its place tells that there was an offset.
            return if self.lock.stored || self.paths.previous.symlink_metadata().is_ok() {
                Err(Fault::Gone)
            } else {
                Ok(None)
            };
        };
        check_identity(&self.identity, record)?;
        Ok(found)
    }

    fn accept(&mut self, found: Option<Record>) -> Result<Option<Record>, OffsetError> {
        if !self.known.admits(found.as_ref()) {
            let found = found.as_ref().map_or(0, |record| record.generation);
            return Err(self.unusable(Fault::Changed {
                ours: self.known.generation(),
                found,
            }));
        }
        if matches!(self.known, Known::Unread) {
            self.known = Known::Is(found.clone());
        }
        Ok(found)
    }

    /// Stores `position` durably in the place of `current`, which becomes the generation before. When it fails,
    /// `current` stands, or where only the last step failed, the new one, which the next store finds and accepts.
    pub(crate) fn store(
        &mut self,
        current: Option<&Record>,
        position: String,
        timeline: Option<u64>,
    ) -> Result<Record, OffsetError> {
        // The operator's `set` finds no current one where it was damaged or deleted.
        let last = current.map(|record| record.generation);
        let last = last
            .or_else(|| self.previous().ok().map(|record| record.generation))
            .unwrap_or(0);
        let record = Record {
            generation: last.saturating_add(1),
            stored_at_ms: now_ms(),
            identity: Identity {
                timeline,
                ..self.identity.clone()
            },
            position,
        };
        self.write(current, &record)?;
        Ok(record)
    }

    fn write(&mut self, keep: Option<&Record>, record: &Record) -> Result<(), OffsetError> {
        let encode = |record: &Record| {
            record.encode().map_err(|source| OffsetError::Encode {
                path: self.paths.current.clone(),
                source,
            })
        };
        let (bytes, kept) = (encode(record)?, keep.map(encode).transpose()?);
        self.known = Known::Either(keep.cloned(), record.clone());
        replace(self.disk.as_mut(), &self.paths, &bytes, kept.as_deref())
            .map_err(|failed| self.failed(failed))?;
        let marked = self.lock.mark_stored();
        marked.map_err(|source| {
            self.failed(Failed {
                step: "marking the lock file",
                source,
            })
        })?;
        self.known = Known::Is(Some(record.clone()));
        Ok(())
    }

    /// The generation before, where it is intact and ours.
    fn previous(&self) -> Result<Record, Fault> {
        let found = read::previous(&self.paths)?.ok_or(Fault::Absent)?;
        check_identity(&self.identity, &found.record)?;
        Ok(found.record)
    }

    pub(crate) fn unusable(&self, fault: Fault) -> OffsetError {
        let previous = self.previous().ok().map(Box::new);
        let connector = self.identity.connector().map(String::from);
        OffsetError::Unusable {
            path: self.paths.current.clone(),
            connector,
            previous,
            fault,
        }
    }

    pub(crate) fn backward(&self, stored: &str, asked: &str) -> OffsetError {
        let path = self.paths.current.clone();
        OffsetError::Backward {
            path,
            stored: stored.into(),
            asked: asked.into(),
        }
    }

    fn failed(&self, failed: Failed) -> OffsetError {
        let Failed { step, source } = failed;
        OffsetError::Write {
            path: self.paths.current.clone(),
            step,
            source,
        }
    }
}

fn check_identity(ours: &Identity, record: &Record) -> Result<(), Fault> {
    match ours.difference(&record.identity) {
        None => Ok(()),
        Some(difference) => Err(Fault::Foreign(Box::new(difference))),
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
