//! What the store does to the disk, one system call a method, so that tests can fail or kill at each.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

pub(crate) trait Disk: Send {
    /// Creates a file that must not exist; nobody but its owner may read or write it.
    fn create(&mut self, path: &Path) -> io::Result<File>;
    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self, file: &File) -> io::Result<()>;
    /// Gives the file a second name.
    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file that may be absent.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
    fn sync_folder(&mut self, folder: &Path) -> io::Result<()>;
}

#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        // create_new follows no symlink: O_EXCL.
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::hard_link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        match fs::remove_file(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        File::open(folder)?.sync_all()
    }
}
