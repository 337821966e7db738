//! What a URL's gaps are filled from, behind a trait so that parsing is tested without touching the process.

use std::path::PathBuf;

/// The process's surroundings, as far as a database client looks at them.
pub trait Environment {
    /// Returns the environment variable `name`, if it is set, not empty, and UTF-8.
    fn variable(&self, name: &str) -> Option<String>;

    /// Returns the home folder of the user that the process runs as.
    fn home(&self) -> Option<PathBuf>;

    /// Returns the name of the user that the process runs as.
    fn user(&self) -> Option<String>;

    /// Returns the folder of the local server's Unix socket, where no host is named. libpq has it compiled in: Debian's and
    /// Red Hat's packages `/var/run/postgresql`, others `/tmp`.
    fn socket_folder(&self) -> PathBuf {
        let packaged = PathBuf::from("/var/run/postgresql");
        if packaged.is_dir() {
            packaged
        } else {
            PathBuf::from("/tmp")
        }
    }
}

/// The real surroundings.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn home(&self) -> Option<PathBuf> {
        std::env::home_dir().filter(|path| !path.as_os_str().is_empty())
    }

    fn user(&self) -> Option<String> {
        whoami::username().ok()
    }
}

/// An environment of the test's own making.
#[cfg(test)]
#[derive(Clone, Debug, Default)]
pub(crate) struct FakeEnvironment {
    pub(crate) variables: std::collections::BTreeMap<String, String>,
    pub(crate) home: Option<PathBuf>,
    pub(crate) user: Option<String>,
}

#[cfg(test)]
impl FakeEnvironment {
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }
}

#[cfg(test)]
impl Environment for FakeEnvironment {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables
            .get(name)
            .filter(|value| !value.is_empty())
            .cloned()
    }

    fn home(&self) -> Option<PathBuf> {
        self.home.clone()
    }

    fn user(&self) -> Option<String> {
        self.user.clone()
    }

    fn socket_folder(&self) -> PathBuf {
        "/run/pg".into()
    }
}
