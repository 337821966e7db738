//! Whose offset it is.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The field that holds the connector's name.
const CONNECTOR: &str = "connector";

/// The source and the relay that an offset belongs to: named fields that must all match before the offset is used, and
/// the timeline, which may differ: after a promotion the log goes on under a newer one, and only the connector can judge
/// whether the stored position lies on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) fields: BTreeMap<String, String>,
    /// The timeline of the log; `None` where the source has none.
    pub timeline: Option<u64>,
}

impl Identity {
    /// The identity of an offset of `connector` (`postgres`, `mysql`: as the command line names it) with its fields.
    /// For PostgreSQL: `system_id`, `database`, `slot`, `name`.
    pub fn new<K: Into<String>, V: Into<String>>(
        connector: &str,
        fields: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut fields: BTreeMap<String, String> = fields
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect();
        fields.insert(CONNECTOR.into(), connector.into());
        Self {
            fields,
            timeline: None,
        }
    }

    /// Adds the timeline.
    #[must_use]
    pub fn with_timeline(mut self, timeline: u64) -> Self {
        self.timeline = Some(timeline);
        self
    }

    /// The connector's name, as the command line spells it.
    pub fn connector(&self) -> Option<&str> {
        self.field(CONNECTOR)
    }

    /// The value of the field `name`.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }

    /// The fields with their values, sorted by name; the timeline is not among them.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &str)> {
        self.fields
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The first field in which `stored` differs from this identity, with its values there and here.
    pub(crate) fn difference(&self, stored: &Self) -> Option<Difference> {
        let names = self.fields.keys().chain(stored.fields.keys());
        names
            .into_iter()
            .find(|name| self.fields.get(*name) != stored.fields.get(*name))
            .map(|name| Difference {
                field: name.clone(),
                stored: stored.field(name).unwrap_or_default().into(),
                ours: self.field(name).unwrap_or_default().into(),
            })
    }
}

/// A field in which two identities differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Its name.
    pub field: String,
    /// Its value in the file; empty where the file has none.
    pub stored: String,
    /// Its value in this relay; empty where it has none.
    pub ours: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "its {} is {:?}, and this relay's is {:?}",
            self.field.escape_debug(),
            self.stored,
            self.ours
        )
    }
}

/// The timeline that the next stores are stamped with. Clones share it: the connector sets it when it finds, at a
/// reconnect, that the server was promoted, before it reads on.
#[derive(Clone, Default)]
pub struct Timeline(Arc<AtomicU64>);

impl Timeline {
    pub(crate) fn new(timeline: Option<u64>) -> Self {
        let shared = Self::default();
        shared.0.store(timeline.unwrap_or(0), Relaxed);
        shared
    }

    /// Stamps the next stores with `timeline`; 0 means that there is none.
    pub fn set(&self, timeline: u64) {
        self.0.store(timeline, Relaxed);
    }

    /// The timeline; `None` where there is none.
    pub fn current(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|timeline| *timeline != 0)
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.current().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_in_any_field_but_never_in_the_timeline() {
        let ours = Identity::new("postgres", [("slot", "a"), ("name", "b")]).with_timeline(3);
        assert_eq!(ours.difference(&ours.clone().with_timeline(2)), None);
        let fewer = Identity::new("postgres", [("slot", "a")]);
        let other = Identity::new("mysql", [("slot", "a"), ("name", "b")]);
        for (stored, field) in [(&fewer, "name"), (&other, "connector")] {
            assert_eq!(ours.difference(stored).map(|d| d.field).as_deref(), Some(field));
            assert!(stored.difference(&ours).is_some());
        }
    }
}
