//! What can be wrong with a broker URL.

/// A fault of a broker URL. Its text names the part and the remedy, never a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlFault {
    /// A fault of one URL of several.
    #[error("broker URL {number}: {fault}")]
    InUrl {
        /// Its place, from 1.
        number: usize,
        /// The fault.
        fault: Box<UrlFault>,
    },
    /// Another scheme, or none.
    #[error("a broker URL begins with amqp:// or amqps://")]
    Scheme,
    /// A raw `@`, `/`, `?` or `#` where it may belong to a password.
    #[error(
        "the broker URL has a stray {0}: in a user name, password or virtual host write / as %2F, ? as %3F, # as %23, \
         @ as %40"
    )]
    Stray(char),
    /// No host.
    #[error("the broker URL has no host")]
    NoHost,
    /// Not a name or an address.
    #[error("the host of the broker URL is neither a name nor an address (IPv6 addresses stand in brackets)")]
    Host,
    /// Not a port.
    #[error("the port of the broker URL is not a number from 1 to 65535 (a : in a password is written %3A)")]
    Port,
    /// A percent sign without two hexadecimal digits, or bytes that are not UTF-8.
    #[error("the {0} of the broker URL is not percent-encoded UTF-8 (a % itself is written %25)")]
    Encoding(&'static str),
    /// Longer than AMQP allows.
    #[error("the virtual host of the broker URL is longer than 255 bytes")]
    VhostTooLong,
    /// A key that RabbitMQ does not have.
    #[error("the broker URL has the unknown key {key}{}", nearest(.key, .known))]
    UnknownKey {
        /// The key, `?` when it is no word.
        key: String,
        /// All keys.
        known: &'static [&'static str],
    },
    /// Given twice.
    #[error("the broker URL has the key {0} twice")]
    Repeated(&'static str),
    /// Without an effect in `amqp://`.
    #[error("the key {0} of the broker URL has no effect without TLS: write amqps://")]
    NeedsTls(&'static str),
    /// A value that the key does not take.
    #[error("the key {key} of the broker URL takes {expected}")]
    Value {
        /// The key.
        key: &'static str,
        /// What it takes.
        expected: &'static str,
    },
    /// Half of a client certificate.
    #[error("the broker URL needs certfile and keyfile together")]
    HalfIdentity,
    /// A login by certificate without one.
    #[error("auth_mechanism=external needs amqps:// with certfile and keyfile")]
    ExternalWithoutCertificate,
}

fn nearest(key: &str, known: &[&str]) -> String {
    match known
        .iter()
        .map(|name| (strsim::levenshtein(key, name), name))
        .min()
    {
        Some((distance, name)) if distance <= 1 + name.len() / 3 => format!(", did you mean {name}?"),
        Some(_) | None => format!(", known are {}", known.join(", ")),
    }
}
