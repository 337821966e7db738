//! An environment of a test's own making.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tailpost_database::Environment;
use tailpost_database::postgres::Url;

#[derive(Clone, Default)]
pub(crate) struct Surroundings {
    variables: BTreeMap<String, String>,
    home: Option<PathBuf>,
    nameless: bool,
}

impl Surroundings {
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    pub(crate) fn at_home(mut self, home: &Path) -> Self {
        self.home = Some(home.into());
        self
    }

    pub(crate) fn nameless(mut self) -> Self {
        self.nameless = true;
        self
    }
}

impl Environment for Surroundings {
    fn variable(&self, name: &str) -> Option<String> {
        self.variables.get(name).cloned()
    }

    fn home(&self) -> Option<PathBuf> {
        self.home.clone()
    }

    fn user(&self) -> Option<String> {
        (!self.nameless).then(|| "me".into())
    }

    fn socket_folder(&self) -> PathBuf {
        "/run/pg".into()
    }
}

/// Parses a URL that is right, with nothing around it.
pub(crate) fn url(text: &str) -> Url {
    url_in(text, &Surroundings::default())
}

/// Parses a URL that is right.
pub(crate) fn url_in(text: &str, surroundings: &Surroundings) -> Url {
    Url::parse(text, surroundings).unwrap_or_else(|faults| panic!("{text}: {faults:?}"))
}

/// Parses a URL that is wrong, and returns the faults' texts.
pub(crate) fn faults(text: &str) -> Vec<String> {
    faults_in(text, &Surroundings::default())
}

/// Parses a URL that is wrong, and returns the faults' texts.
pub(crate) fn faults_in(text: &str, surroundings: &Surroundings) -> Vec<String> {
    match Url::parse(text, surroundings) {
        Ok(url) => panic!("{text} has no fault: {url:?}"),
        Err(faults) => faults.iter().map(ToString::to_string).collect(),
    }
}
