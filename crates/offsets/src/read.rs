//! Reads an offset file, trusting nothing about it.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::Fault;
use crate::format::MAX_LEN;
use crate::paths::Paths;
use crate::{FormatError, Record};

/// An offset as it was found.
#[derive(Debug, PartialEq)]
pub(crate) struct Found {
    pub(crate) record: Record,
    /// Permission bits that let others in, where there are any that are not refused.
    pub(crate) lax: Option<u32>,
}

/// Reads the current offset. `None` only where there is no file at all.
pub(crate) fn current(paths: &Paths) -> Result<Option<Found>, Fault> {
    read(&paths.current, &paths.folder)
}

/// Reads the generation before. `None` only where there is no file at all.
pub(crate) fn previous(paths: &Paths) -> Result<Option<Found>, Fault> {
    read(&paths.previous, &paths.folder)
}

/// Opens `path` only if it is no symlink; never waits for the writer of a pipe.
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn read(path: &Path, folder: &Path) -> Result<Option<Found>, Fault> {
    let file = match open(OpenOptions::new().read(true), path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(Fault::Symlink),
        Err(error) => return Err(Fault::Io(error)),
    };
    let metadata = file.metadata().map_err(Fault::Io)?;
    if !metadata.is_file() {
        return Err(Fault::NotAFile);
    }
    let lax = check_mode(&metadata, folder)?;
    let mut bytes = Vec::new();
    // One byte more, to see that there is more.
    file.take(MAX_LEN as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(Fault::Io)?;
    let record = Record::decode(&bytes).map_err(Fault::Format)?;
    Ok(Some(Found { record, lax }))
}

/// Who writes the offset decides which events are skipped. So a file that others may write is refused, but for one
/// case: the group that may write the folder can replace the file anyway, and Kubernetes' `fsGroup` sets both at each
/// mount.
fn check_mode(metadata: &Metadata, folder: &Path) -> Result<Option<u32>, Fault> {
    let mode = metadata.mode() & 0o777;
    let refused = Err(Fault::Writable { mode });
    if mode & 0o002 != 0 {
        return refused;
    }
    if mode & 0o020 != 0 {
        let folder = fs::metadata(folder).map_err(Fault::Io)?;
        if folder.mode() & 0o020 == 0 || folder.gid() != metadata.gid() {
            return refused;
        }
    }
    Ok(Some(mode).filter(|mode| mode & 0o077 != 0))
}

impl From<FormatError> for Fault {
    fn from(error: FormatError) -> Self {
        Self::Format(error)
    }
}
