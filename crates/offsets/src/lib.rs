//! Offset stores. Today there is one: the file of `--offsets file:PATH`.
//!
//! What it promises:
//!
//! - A stored position is durable when [`FileStore`]'s store returns: file and folder are synced.
//! - Whatever moment the process or the machine ends at, `PATH` holds the old offset or the new one, whole.
//! - The generation before is kept as `PATH.previous`. It is never taken without the operator's word.
//! - A file that is empty, truncated, damaged, foreign, of an unknown version, a symlink, open to others' writes, or
//!   gone is an error that says so. It never means "nothing was ever stored".
//! - The position never moves backward (law 3), and one process at a time stores (law 5): the lock is held for the life
//!   of the store. Only [`set`] and [`take_previous`], the operator's, move it anywhere.
//!
//! What it does not: judge whether the log still holds the position, or whether a timeline follows another; that is the
//! connector's, which gets the stored timeline for it. Locks are `flock`'s: over NFS they hold between hosts only where
//! the mount supports them.
//!
//! ```text
//! PATH                the offset (format.rs)
//! PATH.previous       the generation before
//! PATH.lock           locked while a relay or `offset set` runs; says who, and whether an offset was ever stored
//! PATH.new, PATH.previous.new    only while a store runs, or after a crash in it; the next store removes them
//! ```

mod disk;
mod error;
mod file;
mod format;
mod identity;
mod lock;
mod operator;
mod paths;
mod read;
mod replace;

pub use error::{Fault, OffsetError};
pub use file::FileStore;
pub use format::{FormatError, Record};
pub use identity::{Difference, Identity, Timeline};
pub use operator::{Inspection, inspect, set, take_previous};
