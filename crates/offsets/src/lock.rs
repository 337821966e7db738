//! The lock: `flock` on a file of its own, since the offset file is replaced by each store and a lock stays with the
//! file that was replaced. Held for life; the kernel frees it however the process ends.
//!
//! What is inside is for information, but for its first line, which says whether an offset was ever stored: without it a
//! deleted offset file would look like a first start.
//!
//! ```text
//! stored yes
//! pid 4711
//! host db1
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::OffsetError;
use crate::paths::Paths;
use crate::read::open;

/// Both are of one length: the mark is changed in place by one write.
const STORED: &[u8] = b"stored yes";
const NOT_STORED: &[u8] = b"stored no ";

#[derive(Debug)]
pub(crate) struct Lock {
    file: File,
    /// An offset was stored at some time.
    pub(crate) stored: bool,
}

impl Lock {
    /// Takes the lock, or says who holds it.
    pub(crate) fn take(paths: &Paths) -> Result<Self, OffsetError> {
        let failed = |source| OffsetError::Lock {
            path: paths.lock.clone(),
            source,
        };
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600);
        let file = open(&mut options, &paths.lock).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&contents(&file).map_err(failed)?);
                return Err(OffsetError::Locked {
                    path: paths.current.clone(),
                    holder,
                });
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        if !is_at(&file, &paths.lock).map_err(failed)? {
            // Removed between open and lock; whoever removed it may have locked a new one.
            return Err(OffsetError::LockLost {
                path: paths.lock.clone(),
            });
        }
        let stored = contents(&file).map_err(failed)?.as_bytes().starts_with(STORED);
        let lock = Self { file, stored };
        if let Err(error) = lock.sign() {
            tracing::warn!(path = %paths.lock.display(), error = %error, "could not write who holds the lock");
        }
        Ok(lock)
    }

    /// Checks that the lock is still the one that others would meet. Without the check, a removed lock file would let
    /// two relays store.
    pub(crate) fn check(&self, paths: &Paths) -> io::Result<bool> {
        is_at(&self.file, &paths.lock)
    }

    /// Remembers that an offset was stored.
    pub(crate) fn mark_stored(&mut self) -> io::Result<()> {
        if !self.stored {
            self.file.write_all_at(STORED, 0)?;
            self.file.sync_all()?;
            self.stored = true;
        }
        Ok(())
    }

    /// Writes who holds it. The mark's bytes stay what they were at every instant.
    fn sign(&self) -> io::Result<()> {
        let mut text = if self.stored { STORED } else { NOT_STORED }.to_vec();
        let host = whoami::hostname().unwrap_or_else(|_| "unknown".into());
        text.extend_from_slice(format!("\npid {}\nhost {host}\n", std::process::id()).as_bytes());
        self.file.write_all_at(&text, 0)?;
        self.file.set_len(text.len() as u64)
    }
}

fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let ours = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (ours.dev(), ours.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn contents(file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(1024).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Who holds the lock, from what is inside. Anybody may have written it, so it is escaped.
fn holder(contents: &str) -> String {
    let line = |key: &str| {
        contents
            .lines()
            .find_map(|line| line.strip_prefix(key))
            .map(str::escape_debug)
    };
    match (line("pid "), line("host ")) {
        (Some(pid), Some(host)) => format!("process {pid} on host {host}"),
        _ => "a process that has not signed it yet".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_holder_learns_who_the_first_is_and_takes_over_after_it() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("offset"));
        let first = Lock::take(&paths).unwrap();
        let refused = Lock::take(&paths).unwrap_err();
        let OffsetError::Locked { holder, .. } = &refused else {
            panic!("{refused}")
        };
        assert!(
            holder.starts_with(&format!("process {} on host ", std::process::id())),
            "{holder}"
        );
        drop(first);
        assert!(Lock::take(&paths).is_ok());
    }

    #[test]
    fn a_lock_file_that_was_removed_or_replaced_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("offset"));
        let lock = Lock::take(&paths).unwrap();
        assert!(lock.check(&paths).unwrap());
        fs::remove_file(&paths.lock).unwrap();
        assert!(!lock.check(&paths).unwrap());
        let second = Lock::take(&paths).unwrap();
        assert!(second.check(&paths).unwrap() && !lock.check(&paths).unwrap());
    }

    #[test]
    fn the_mark_outlives_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("offset"));
        let mut lock = Lock::take(&paths).unwrap();
        assert!(!lock.stored);
        lock.mark_stored().unwrap();
        drop(lock);
        assert!(Lock::take(&paths).unwrap().stored);
    }

    #[test]
    fn a_symlink_in_the_place_of_the_lock_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let paths = Paths::new(&folder.path().join("offset"));
        std::os::unix::fs::symlink(folder.path().join("elsewhere"), &paths.lock).unwrap();
        assert!(matches!(Lock::take(&paths), Err(OffsetError::Lock { .. })));
        assert!(!folder.path().join("elsewhere").exists());
    }

    #[test]
    fn a_holder_is_escaped() {
        assert_eq!(
            holder("stored no \npid 1\x1b[2J\nhost a\tb\n"),
            "process 1\\u{1b}[2J on host a\\tb"
        );
        assert_eq!(holder(""), "a process that has not signed it yet");
    }
}
