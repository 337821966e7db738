//! Replaces the offset file so that at every instant, also of a crash, `PATH` is the old file or the new one, whole.
//!
//! ```text
//! create PATH.new, write, sync it      a crash leaves PATH as it was; the leftover is removed by the next store
//! link PATH to PATH.previous.new       a second name for the same bytes; PATH is not touched
//! rename it to PATH.previous           PATH and PATH.previous are one file for a moment
//! rename PATH.new to PATH              from here on a restart reads the new offset
//! sync the folder                      from here on it survives a power failure, and the store may return
//! ```
//!
//! After a failed sync the kernel may drop the bytes and call the next sync of the same file a success
//! (fsync(2), "EIO"), so that file is removed and the next store writes a new one. Where the folder's sync failed, `PATH`
//! may be either: the caller repeats the whole, and has reported neither.

use std::io::{self, ErrorKind};

use crate::disk::Disk;
use crate::paths::Paths;

/// A step that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) step: &'static str,
    pub(crate) source: io::Error,
}

trait Step<T> {
    fn step(self, step: &'static str) -> Result<T, Failed>;
}

impl<T> Step<T> for io::Result<T> {
    fn step(self, step: &'static str) -> Result<T, Failed> {
        self.map_err(|source| Failed { step, source })
    }
}

/// Puts `bytes` in the place of the current file. `keep` is what is in the current file where it is to become the
/// previous generation; a current file that is damaged or absent is not kept, and never replaces a good one.
pub(crate) fn replace(
    disk: &mut dyn Disk,
    paths: &Paths,
    bytes: &[u8],
    keep: Option<&[u8]>,
) -> Result<(), Failed> {
    let replaced = write_new(disk, paths, bytes)
        .and_then(|()| keep.map_or(Ok(()), |current| keep_previous(disk, paths, current)))
        .and_then(|()| {
            disk.rename(&paths.new, &paths.current)
                .step("renaming the new file")
        })
        .and_then(|()| disk.sync_folder(&paths.folder).step("syncing the folder"));
    if replaced.is_err()
        && let Err(error) = disk.remove(&paths.new)
    {
        tracing::warn!(path = %paths.new.display(), error = %error, "could not remove the file of a failed store");
    }
    replaced
}

fn write_new(disk: &mut dyn Disk, paths: &Paths, bytes: &[u8]) -> Result<(), Failed> {
    disk.remove(&paths.new).step("removing an unfinished file")?;
    let mut file = disk.create(&paths.new).step("creating the new file")?;
    disk.write(&mut file, bytes).step("writing the new file")?;
    disk.sync(&file).step("syncing the new file")
}

fn keep_previous(disk: &mut dyn Disk, paths: &Paths, current: &[u8]) -> Result<(), Failed> {
    // After a crash between the renames it may be there; and renaming one name of a file to another of its names does
    // nothing at all (rename(2)), so it would stay for ever.
    disk.remove(&paths.previous_new)
        .step("removing an unfinished file")?;
    match disk.link(&paths.current, &paths.previous_new) {
        // Some file systems have no hard links: link(2) says EPERM, others EOPNOTSUPP or ENOSYS.
        Err(error) if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Unsupported) => {
            let mut file = disk
                .create(&paths.previous_new)
                .step("creating the previous generation")?;
            disk.write(&mut file, current)
                .step("writing the previous generation")?;
            disk.sync(&file).step("syncing the previous generation")?;
        }
        linked => linked.step("linking the previous generation")?,
    }
    disk.rename(&paths.previous_new, &paths.previous)
        .step("renaming the previous generation")
}
