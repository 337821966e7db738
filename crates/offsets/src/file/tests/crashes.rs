//! A process killed at, or a disk that fails, every step of a store (O1, O4, O5, O9). The disk is a real one behind a
//! shim that drops what was not synced when it "crashes".

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Mutex};

use super::*;
use crate::disk::{Disk, RealDisk};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Blow {
    None,
    /// Before this step the process is killed: no later step happens, the machine forgets what was not synced.
    Crash(usize),
    /// This step fails, and only it.
    Fail(usize, ErrorKind),
}

#[derive(Debug)]
struct Script {
    blow: Blow,
    links: bool,
    dead: bool,
    calls: Vec<String>,
    unsynced: Vec<(PathBuf, File)>,
}

#[derive(Clone)]
struct Shim(Arc<Mutex<Script>>);

impl Shim {
    fn new(links: bool) -> Self {
        let (blow, dead) = (Blow::None, false);
        Self(Arc::new(Mutex::new(Script {
            blow,
            links,
            dead,
            calls: Vec::new(),
            unsynced: Vec::new(),
        })))
    }

    /// Begins a new store, which the blow will meet.
    fn arm(&self, blow: Blow) {
        let mut script = self.0.lock().unwrap();
        script.calls.clear();
        script.blow = blow;
    }

    fn calls(&self) -> Vec<String> {
        self.0.lock().unwrap().calls.clone()
    }

    fn step(&self, call: &str, paths: &[&Path]) -> io::Result<()> {
        let mut script = self.0.lock().unwrap();
        if script.dead {
            return Err(ErrorKind::Interrupted.into());
        }
        let step = script.calls.len();
        let name = |path: &&Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let call = [vec![call.to_owned()], paths.iter().map(name).collect()]
            .concat()
            .join(" ");
        script.calls.push(call);
        match script.blow {
            Blow::Crash(at) if at == step => {
                script.dead = true;
                for (_, file) in script.unsynced.drain(..) {
                    file.set_len(0).unwrap();
                }
                Err(ErrorKind::Interrupted.into())
            }
            Blow::Fail(at, kind) if at == step => Err(kind.into()),
            Blow::None | Blow::Crash(_) | Blow::Fail(..) => Ok(()),
        }
    }
}

impl Disk for Shim {
    fn create(&mut self, path: &Path) -> io::Result<File> {
        self.step("create", &[path])?;
        let file = RealDisk.create(path)?;
        self.0
            .lock()
            .unwrap()
            .unsynced
            .push((path.into(), file.try_clone()?));
        Ok(file)
    }

    fn write(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.step("write", &[]) {
            file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(error);
        }
        RealDisk.write(file, bytes)
    }

    fn sync(&mut self, file: &File) -> io::Result<()> {
        self.step("sync", &[])?;
        self.0.lock().unwrap().unsynced.clear();
        RealDisk.sync(file)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("link", &[from, to])?;
        if !self.0.lock().unwrap().links {
            return Err(ErrorKind::PermissionDenied.into());
        }
        RealDisk.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", &[from, to])?;
        RealDisk.rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.step("remove", &[path])?;
        RealDisk.remove(path)
    }

    fn sync_folder(&mut self, folder: &Path) -> io::Result<()> {
        self.step("sync-folder", &[])?;
        RealDisk.sync_folder(folder)
    }
}

fn open_on(shim: &Shim, path: &Path) -> Store {
    Store::open_on(Box::new(shim.clone()), path, identity()).unwrap()
}

/// Steps of a store that replaces one.
async fn steps(links: bool) -> usize {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let shim = Shim::new(links);
    open_on(&shim, &path).store(&300).await.unwrap();
    shim.calls().len()
}

#[tokio::test]
async fn the_file_is_synced_before_it_is_renamed_and_the_folder_after() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let shim = Shim::new(true);
    open_on(&shim, &path).store(&300).await.unwrap();
    let expected = [
        "remove offset.new",
        "create offset.new",
        "write",
        "sync",
        "remove offset.previous.new",
        "link offset offset.previous.new",
        "rename offset.previous.new offset.previous",
        "rename offset.new offset",
        "sync-folder",
    ];
    assert_eq!(shim.calls(), expected);
}

#[tokio::test]
async fn a_crash_at_any_step_leaves_the_old_offset_or_the_new_one() {
    for links in [true, false] {
        let mut found = Vec::new();
        for step in 0..steps(links).await {
            let (_folder, path) = folder();
            stored_twice(&path).await;
            let shim = Shim::new(links);
            shim.arm(Blow::Crash(step));
            let mut store = open_on(&shim, &path);
            assert!(
                store.store(&300).await.is_err(),
                "killed at {step}: {:?}",
                shim.calls()
            );
            drop(store);
            let loaded = load(&path).await.unwrap().expect("an offset");
            assert!([200, 300].contains(&loaded), "killed at step {step}: {loaded}");
            found.push(loaded);
            let previous = crate::inspect(&path).previous.unwrap().unwrap();
            assert!(
                ["100", "200"].contains(&previous.position.as_str()),
                "killed at step {step}: {previous:?}"
            );
            // Twice, since leftovers of the first crash meet the next store.
            let mut store = open_on(&Shim::new(links), &path);
            for next in [400, 500] {
                store.store(&next).await.unwrap();
                assert_eq!(store.load().await.unwrap(), Some(next));
            }
            let previous = crate::inspect(&path).previous.unwrap().unwrap();
            assert_eq!(previous.position, "400");
        }
        assert!(
            found.is_sorted() && found.contains(&200) && found.contains(&300),
            "{found:?}"
        );
    }
}

#[tokio::test]
async fn a_crash_in_the_first_store_leaves_nothing_or_the_offset() {
    for step in 0..6 {
        let (_folder, path) = folder();
        let shim = Shim::new(true);
        shim.arm(Blow::Crash(step));
        let stored = open_on(&shim, &path).store(&100).await;
        assert_eq!(stored.is_err(), step < shim.calls().len(), "{:?}", shim.calls());
        let loaded = load(&path).await.unwrap();
        assert!(loaded.is_none_or(|loaded| loaded == 100));
        assert_eq!(loaded.is_some(), step >= 5, "killed at step {step}");
        open(&path).store(&200).await.unwrap();
        assert_eq!(load(&path).await.unwrap(), Some(200));
    }
}

#[tokio::test]
async fn a_step_that_fails_leaves_the_old_offset_and_the_next_store_succeeds() {
    for links in [true, false] {
        for kind in [ErrorKind::StorageFull, ErrorKind::Other] {
            for step in 0..steps(links).await {
                let (folder, path) = folder();
                stored_twice(&path).await;
                let shim = Shim::new(links);
                let mut store = open_on(&shim, &path);
                shim.arm(Blow::Fail(step, kind));
                let failure = match store.store(&300).await {
                    Err(failure) => failure,
                    // Without hard links this very error is what makes it copy.
                    Ok(()) => panic!("step {step} ({:?}) failed unseen", shim.calls()[step]),
                };
                assert_eq!(
                    failure.disposition,
                    Disposition::Retry { after: None },
                    "{failure}"
                );
                assert!(failure.hint.is_some());
                let last = shim.calls()[step] == "sync-folder";
                assert_eq!(
                    store.load().await.unwrap(),
                    Some(if last { 300 } else { 200 }),
                    "step {step}"
                );
                assert!(
                    !names(&folder).contains(&"offset.new".into()),
                    "step {step} left its file"
                );
                shim.arm(Blow::None);
                store.store(&300).await.unwrap();
                assert_eq!(store.load().await.unwrap(), Some(300));
                store.store(&400).await.unwrap();
                drop(store);
                assert_eq!(load(&path).await.unwrap(), Some(400));
                assert_eq!(names(&folder), ["offset", "offset.lock", "offset.previous"]);
            }
        }
    }
}

#[tokio::test]
async fn a_file_whose_sync_failed_is_never_synced_again() {
    let (_folder, path) = folder();
    stored_twice(&path).await;
    let shim = Shim::new(true);
    let mut store = open_on(&shim, &path);
    shim.arm(Blow::Fail(3, ErrorKind::Other));
    let failure = store.store(&300).await.unwrap_err();
    assert!(
        failure.to_string().contains("syncing the new file failed"),
        "{failure}"
    );
    assert_eq!(shim.calls()[3..], ["sync", "remove offset.new"]);
    shim.arm(Blow::None);
    store.store(&300).await.unwrap();
    assert_eq!(
        shim.calls()[..4],
        ["remove offset.new", "create offset.new", "write", "sync"]
    );
}
