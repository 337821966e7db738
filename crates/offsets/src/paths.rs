//! Names of the files beside the offset.

use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) current: PathBuf,
    /// The next generation while it is written.
    pub(crate) new: PathBuf,
    /// The generation before.
    pub(crate) previous: PathBuf,
    /// The generation before while it takes its place.
    pub(crate) previous_new: PathBuf,
    pub(crate) lock: PathBuf,
    pub(crate) folder: PathBuf,
}

impl Paths {
    pub(crate) fn new(path: &Path) -> Self {
        let beside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            PathBuf::from(name)
        };
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        Self {
            current: path.to_owned(),
            new: beside(".new"),
            previous: beside(".previous"),
            previous_new: beside(".previous.new"),
            lock: beside(".lock"),
            folder: folder.to_owned(),
        }
    }
}
