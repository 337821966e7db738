//! The values of all keys, each from the strongest of its origins: URL, service file, environment.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::str::FromStr;

use super::fault::{Origin, UrlFault};
use super::keys::{self, Treatment};
use super::{service, uri};
use crate::Environment;

/// Keys, values, and the faults found so far.
pub(super) struct Values {
    map: BTreeMap<&'static str, Value>,
    pub(super) faults: Vec<UrlFault>,
}

struct Value {
    text: String,
    origin: Origin,
    /// It may be shown in a fault.
    shown: bool,
}

impl Values {
    /// Collects from all origins. `Err` when the URL cannot even be taken apart.
    pub(super) fn collect(text: &str, environment: &dyn Environment) -> Result<Self, Vec<UrlFault>> {
        let pieces = uri::split(text)?;
        let mut values = Self {
            map: BTreeMap::new(),
            faults: Vec::new(),
        };
        for (name, value) in pieces.pairs {
            values.put_from_url(&name, value, pieces.plain);
        }
        values.fill_from_service(environment);
        values.fill_from_variables(environment);
        Ok(values)
    }

    /// Returns the value of `key`, if it has one that is not empty.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.map
            .get(key)
            .map(|value| value.text.as_str())
            .filter(|text| !text.is_empty())
    }

    /// Returns the value as a path.
    pub(super) fn path(&self, key: &str) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// Returns the value as a number that lies in `range`; notes a fault if it is none.
    pub(super) fn number<N>(&mut self, key: &'static str, range: std::ops::RangeInclusive<N>) -> Option<N>
    where
        N: FromStr + PartialOrd + std::fmt::Display,
    {
        let number = self
            .text(key)?
            .trim()
            .parse::<N>()
            .ok()
            .filter(|number| range.contains(number));
        if number.is_none() {
            self.fault(
                key,
                &format!("is not a whole number from {} to {}", range.start(), range.end()),
            );
        }
        number
    }

    /// Returns what `choices` maps the value to; notes a fault that lists them if it is none of them.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(key)?;
        if let Some((_, chosen)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*chosen);
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.fault(key, &format!("is none of {}", names.join(", ")));
        None
    }

    /// Notes that the value of `key` is wrong; shows it where that is safe.
    pub(super) fn fault(&mut self, key: &'static str, problem: &str) {
        let value = self.map.get(key);
        let origin = value.map_or(Origin::Default, |value| value.origin.clone());
        // An empty answer for a port or a host says enough; what stands in the authority may be a piece of a password.
        let shown = value
            .filter(|value| value.shown && !matches!(key, "password" | "host" | "port" | "user" | "dbname"));
        let problem = match shown {
            Some(value) => format!("{problem}: \"{}\"", value.text.escape_debug()),
            None => problem.to_owned(),
        };
        self.faults.push(UrlFault::Value { key, origin, problem });
    }

    fn put_from_url(&mut self, name: &str, text: String, plain: bool) {
        let Some(key) = keys::find(name) else {
            let fits = plain
                && name.len() <= 40
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
            let (key, nearest) = if fits {
                (format!("\"{name}\""), keys::nearest(name))
            } else {
                ("(not shown: it may be a piece of a password)".into(), None)
            };
            return self.faults.push(UrlFault::UnknownKey {
                key,
                origin: Origin::Url,
                nearest,
            });
        };
        match key.treatment {
            Treatment::Honoured => {
                self.map.insert(
                    key.name,
                    Value {
                        text,
                        origin: Origin::Url,
                        shown: plain,
                    },
                );
            }
            Treatment::Ignored => {}
            Treatment::Refused(reason) => {
                self.faults.push(UrlFault::Unsupported {
                    key: key.name,
                    origin: Origin::Url,
                    reason,
                });
            }
        }
    }

    fn fill_from_service(&mut self, environment: &dyn Environment) {
        let variable = |name| environment.variable(name);
        let Some(service) = self
            .text("service")
            .map(str::to_owned)
            .or_else(|| variable("PGSERVICE"))
        else {
            return;
        };
        let file = self
            .text("servicefile")
            .map(str::to_owned)
            .or_else(|| variable("PGSERVICEFILE"));
        match service::load(&service, file.as_deref(), environment) {
            Ok(service) => {
                let origin = Origin::ServiceFile(service.path);
                for (name, text) in service.pairs {
                    self.fill(&name, text, origin.clone());
                }
            }
            Err(faults) => self.faults.extend(faults),
        }
    }

    fn fill_from_variables(&mut self, environment: &dyn Environment) {
        for key in keys::KEYS {
            if let Some((name, text)) = key
                .variable
                .and_then(|name| Some((name, environment.variable(name)?)))
            {
                self.fill(key.name, text, Origin::Variable(name));
            }
        }
    }

    /// Sets what is not set yet.
    fn fill(&mut self, name: &str, text: String, origin: Origin) {
        let Some(key) = keys::find(name) else { return };
        match key.treatment {
            Treatment::Honoured => {
                self.map.entry(key.name).or_insert(Value {
                    text,
                    origin,
                    shown: true,
                });
            }
            Treatment::Ignored => {}
            Treatment::Refused(reason) => {
                self.faults.push(UrlFault::Unsupported {
                    key: key.name,
                    origin,
                    reason,
                });
            }
        }
    }
}
