//! What `offset show` and `offset set` do with the file. All of it blocks for a few system calls.

use std::fmt::Display;
use std::path::Path;

use crate::disk::RealDisk;
use crate::file::Keeper;
use crate::lock::Lock;
use crate::paths::Paths;
use crate::read::Found;
use crate::{Fault, Identity, OffsetError, Record, read};

/// What is in the file and in the generation before it; `None` where there is no file.
#[derive(Debug)]
pub struct Inspection {
    /// The offset.
    pub current: Result<Option<Record>, OffsetError>,
    /// The generation before.
    pub previous: Result<Option<Record>, OffsetError>,
}

/// Reads both generations of the offset file `path`, whosever they are. Takes no lock and writes nothing, so it may be
/// used beside a running relay; then the two may be one generation for a moment.
pub fn inspect(path: &Path) -> Inspection {
    let paths = Paths::new(path);
    let read = |found: Result<Option<Found>, Fault>| found.map(|found| found.map(|found| found.record));
    let (current, previous) = (read(read::current(&paths)), read(read::previous(&paths)));
    let intact = previous.as_ref().ok().and_then(Option::as_ref);
    Inspection {
        current: current.map_err(|fault| unusable(&paths.current, intact, fault)),
        previous: previous.map_err(|fault| unusable(&paths.previous, None, fault)),
    }
}

/// Stores `position` whatever is stored now, also backward, also in the place of a damaged or deleted file. The position
/// must be one of this source: the caller has parsed it. Returns what is stored now.
///
/// # Errors
///
/// [`OffsetError::Locked`] while a relay runs. [`OffsetError::Unusable`] where an intact offset of another relay is in
/// the way, or a symlink: that is the wrong path. [`OffsetError::Write`] when a step failed; then the old file stands.
pub fn set(path: &Path, identity: Identity, position: &impl Display) -> Result<Record, OffsetError> {
    let paths = Paths::new(path);
    let lock = Lock::take(&paths)?;
    put(paths, lock, identity, position.to_string())
}

/// Makes the generation before the offset again; an intact current one takes its place. It keeps its timeline. Returns
/// what is stored now.
///
/// # Errors
///
/// As [`set`]; and [`OffsetError::Unusable`] naming `PATH.previous` where that is absent or not intact.
pub fn take_previous(path: &Path) -> Result<Record, OffsetError> {
    let paths = Paths::new(path);
    let lock = Lock::take(&paths)?;
    let found = read::previous(&paths).and_then(|found| found.ok_or(Fault::Absent));
    let record = found
        .map_err(|fault| unusable(&paths.previous, None, fault))?
        .record;
    put(paths, lock, record.identity, record.position)
}

fn put(paths: Paths, lock: Lock, identity: Identity, position: String) -> Result<Record, OffsetError> {
    let timeline = identity.timeline;
    let mut keeper = Keeper::new(Box::new(RealDisk), paths, lock, identity);
    let current = match keeper.load() {
        Ok(current) => current,
        // What is no offset any more is not kept: the generation before stays the last intact one.
        Err(OffsetError::Unusable {
            fault: Fault::Format(_) | Fault::Gone,
            ..
        }) => None,
        Err(error) => return Err(error),
    };
    keeper.store(current.as_ref(), position, timeline)
}

fn unusable(path: &Path, previous: Option<&Record>, fault: Fault) -> OffsetError {
    let connector = previous
        .and_then(|record| record.identity.connector())
        .map(String::from);
    OffsetError::Unusable {
        path: path.to_owned(),
        connector,
        previous: previous.cloned().map(Box::new),
        fault,
    }
}
