//! What can be wrong with an offset file, and what to do about it.

use std::error::Error;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tailpost_relay::{Cause, Disposition, Failure};

use crate::{Difference, FormatError, Record};

/// Why an offset could not be read or stored. The `Display` shows one level; [`Failure`]'s shows the chain.
#[derive(Debug, thiserror::Error)]
pub enum OffsetError {
    /// Another process holds the lock.
    #[error("offset file {path:?} is in use by {holder}")]
    Locked {
        /// The offset file.
        path: PathBuf,
        /// `process PID on host HOST`.
        holder: String,
    },
    /// The lock file cannot be opened or locked.
    #[error("could not lock {path:?}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The lock file went away under its holder: another process may hold a new one.
    #[error("lock file {path:?} was removed or replaced while this process held it")]
    LockLost {
        /// The lock file.
        path: PathBuf,
    },
    /// The file is there, or was there, and cannot be used.
    #[error("offset file {path:?} cannot be used")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Connector of the relay, for the command in the hint.
        connector: Option<String>,
        /// The generation before, where it is intact and of the same relay.
        previous: Option<Box<Record>>,
        /// What is wrong.
        #[source]
        fault: Fault,
    },
    /// A step of a store failed; the old offset stands.
    #[error("could not store the offset in file {path:?}: {step} failed")]
    Write {
        /// The offset file.
        path: PathBuf,
        /// The step.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The offset does not fit the format.
    #[error("cannot write the offset to file {path:?}")]
    Encode {
        /// The offset file.
        path: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// The position asked for is not at or after the stored one (law 3).
    #[error("refused to move the offset in file {path:?} backward, from {stored} to {asked}")]
    Backward {
        /// The offset file.
        path: PathBuf,
        /// The position in the file.
        stored: String,
        /// The position asked for.
        asked: String,
    },
    /// The runtime ended before the work began.
    #[error("the offset file was not touched: the process is stopping")]
    Interrupted,
}

/// What is wrong with an offset file.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The system's error.
    #[error("it could not be read")]
    Io(#[source] io::Error),
    /// A symlink.
    #[error("it is a symlink")]
    Symlink,
    /// A folder, pipe or device.
    #[error("it is no regular file")]
    NotAFile,
    /// Others may write it, and so decide which events are skipped.
    #[error("others may write it (mode {mode:04o})")]
    Writable {
        /// Permission bits.
        mode: u32,
    },
    /// Its bytes are no offset.
    #[error(transparent)]
    Format(FormatError),
    /// It belongs to another source or relay.
    #[error("it belongs to another relay: {0}")]
    Foreign(Box<Difference>),
    /// The source cannot read its position.
    #[error("its position is none of this source")]
    Position(#[source] Box<dyn Error + Send + Sync>),
    /// An offset was stored here before, and the file is gone.
    #[error("it is gone, though an offset was stored there before")]
    Gone,
    /// There is no previous generation.
    #[error("it does not exist")]
    Absent,
    /// Somebody else wrote it while the lock was held.
    #[error("somebody else changed it while this relay ran (from generation {ours} to {found})")]
    Changed {
        /// Generation that this relay knew; 0 for none.
        ours: u64,
        /// Generation in the file; 0 for none.
        found: u64,
    },
}

impl OffsetError {
    /// What the relay does about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Locked { holder, .. } => Disposition::Standby {
                holder: holder.clone(),
            },
            Self::Lock { .. } | Self::LockLost { .. } | Self::Unusable { .. } | Self::Encode { .. } => {
                Disposition::Halt(Cause::Offsets)
            }
            Self::Backward { .. } => Disposition::Halt(Cause::Unexpected),
            Self::Write { .. } | Self::Interrupted => Disposition::Retry { after: None },
        }
    }

    /// How to mend it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Locked { .. } | Self::Interrupted => None,
            Self::Lock { path, source } => Some(hint_of_io(path, source)),
            Self::LockLost { path } => Some(format!(
                "never remove {path:?}; see that no other relay uses the file, and start again"
            )),
            Self::Unusable {
                path,
                connector,
                previous,
                fault,
            } => {
                let connector = connector.as_deref().unwrap_or("CONNECTOR");
                Some(hint_of_fault(path, connector, previous.as_deref(), fault))
            }
            Self::Write { path, source, .. } => Some(hint_of_io(path, source)),
            Self::Encode { .. } => Some("shorten the names of this relay and its source".into()),
            Self::Backward { .. } => Some(
                "if the source's log began anew, start over with `init`; else report this as a bug".into(),
            ),
        }
    }
}

impl From<OffsetError> for Failure {
    fn from(error: OffsetError) -> Self {
        let (disposition, hint) = (error.disposition(), error.hint());
        Self {
            error: Box::new(error),
            disposition,
            hint,
        }
    }
}

fn hint_of_io(path: &Path, error: &io::Error) -> String {
    let folder = path.parent().unwrap_or(path);
    match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("make room in folder {folder:?}; the relay goes on by itself")
        }
        ErrorKind::ReadOnlyFilesystem => format!("make folder {folder:?} writable"),
        ErrorKind::NotFound => format!("create folder {folder:?}, owned by the user that runs tailpost"),
        ErrorKind::PermissionDenied => {
            format!("let the user that runs tailpost own folder {folder:?} and what is in it")
        }
        _ => format!("see whether the disk of folder {folder:?} is sound"),
    }
}

fn hint_of_fault(path: &Path, connector: &str, previous: Option<&Record>, fault: &Fault) -> String {
    let set = |what: &str| {
        format!(
            "`tailpost {connector} offset set {what} --offsets {}`",
            flag(path)
        )
    };
    let first = match fault {
        Fault::Symlink => Some("name the file that it points to".into()),
        Fault::NotAFile if path.is_dir() => {
            return format!(
                "it is a folder: name a file in it, as in --offsets {}",
                flag(&path.join("offset"))
            );
        }
        Fault::NotAFile => Some("name a regular file".into()),
        Fault::Writable { .. } => Some(format!(
            "see who changed it; if nobody did, chmod 600 {}",
            path.display().to_string().escape_debug()
        )),
        Fault::Foreign(_) => Some("give each relay a file of its own".into()),
        Fault::Changed { .. } => Some("see who wrote it".into()),
        Fault::Io(_) => Some("mend what the system reports".into()),
        Fault::Absent => return format!("set a position by hand: {}", set("LSN")),
        Fault::Format(_) | Fault::Position(_) | Fault::Gone => None,
    };
    let second = match previous {
        Some(record) => format!(
            "the generation before, {} at {}, is intact: {} takes it, and what was published since is published \
             again",
            record.generation,
            record.position.escape_debug(),
            set("--previous")
        ),
        None => {
            format!(
                "no generation before is intact: restore the file, or set a position by hand: {}",
                set("LSN")
            )
        }
    };
    match first {
        Some(first) => format!("{first}; {second}"),
        None => second,
    }
}

/// The file of `path` as a shell takes it: `file:PATH`, in quotes where it needs them. The generation before is kept beside
/// the offset file, and is never named itself.
fn flag(path: &Path) -> String {
    let text = path.display().to_string();
    let text = text.strip_suffix(".previous").unwrap_or(&text);
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if text.chars().all(plain) {
        format!("file:{text}")
    } else {
        format!(
            "'file:{}'",
            text.escape_debug().to_string().replace("\\'", "'\\''")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_names_the_file_so_that_a_shell_takes_it() {
        for (path, word) in [
            ("/var/lib/tailpost/orders", "file:/var/lib/tailpost/orders"),
            ("/data/orders.previous", "file:/data/orders"),
            ("/my data/or'ders", r"'file:/my data/or'\''ders'"),
            ("/a\nb", r"'file:/a\nb'"),
        ] {
            assert_eq!(flag(Path::new(path)), word);
        }
    }

    #[test]
    fn a_folder_in_place_of_the_file_is_told() {
        let folder = std::env::temp_dir();
        let hint = hint_of_fault(&folder, "postgres", None, &Fault::NotAFile);
        assert!(
            hint.contains("it is a folder") && hint.contains("--offsets"),
            "{hint}"
        );
    }
}
