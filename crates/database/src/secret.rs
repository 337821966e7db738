//! A string that is never printed.

use std::fmt;

/// A password or another secret. `Debug` and `Display` print `***`; only [`Secret::expose`] gives the text.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the wire only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_prints_as_stars_only() {
        let secret = Secret::from("canary");
        assert_eq!(
            format!("{secret} {secret:?} {:?}", Some(&secret)),
            "*** *** Some(***)"
        );
        assert_eq!(secret.expose(), "canary");
    }
}
