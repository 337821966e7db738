//! The store against a real folder: what it refuses, and what a crash or a failing disk leaves.

use std::fs;
use std::path::{Path, PathBuf};

use tailpost_relay::{Cause, Disposition, Failure, OffsetStore};
use tempfile::TempDir;

use crate::{FileStore, Identity, OffsetError};

mod crashes;
mod refusals;
mod stores;

/// Counts stand for positions: they print, parse and compare as positions do.
type Store = FileStore<u64>;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("offset");
    (folder, path)
}

fn identity() -> Identity {
    let fields = [
        ("system_id", "7291122334455667788"),
        ("database", "shop"),
        ("slot", "tailpost"),
        ("name", "orders"),
    ];
    Identity::new("postgres", fields).with_timeline(1)
}

fn open(path: &Path) -> Store {
    Store::open(path, identity()).unwrap()
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}{suffix}", path.display()))
}

/// A file with the generations 1 and 2 at the positions 100 and 200.
async fn stored_twice(path: &Path) {
    let mut store = open(path);
    store.store(&100).await.unwrap();
    store.store(&200).await.unwrap();
}

/// What a fresh process loads.
async fn load(path: &Path) -> Result<Option<u64>, Failure> {
    open(path).load().await
}

/// The error of a fresh process's load, which must halt with status 74.
async fn refused(path: &Path) -> Failure {
    let failure = load(path)
        .await
        .expect_err("an unusable offset was taken for one, or for none");
    assert_eq!(
        failure.disposition,
        Disposition::Halt(Cause::Offsets),
        "{failure}"
    );
    failure
}

fn offset_error(failure: &Failure) -> &OffsetError {
    failure.error.downcast_ref().unwrap()
}

fn names(folder: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
