//! What can be wrong with a URL, and with what its gaps are filled from.

use std::fmt;
use std::path::PathBuf;

/// A fault of a source URL. Its text holds no password, and no part of the URL that may be a piece of one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlFault {
    /// The URL belongs to MySQL or MariaDB: another connector reads it.
    #[error("the source is a \"{scheme}\" URL, and this connector reads PostgreSQL")]
    Mysql {
        /// `mysql` or `mariadb`.
        scheme: String,
    },
    /// The URL is a broker's.
    #[error("the source is a \"{scheme}\" URL: that is the broker's, which belongs to --broker")]
    Broker {
        /// `amqp` or `amqps`.
        scheme: String,
    },
    /// No URL of PostgreSQL.
    #[error("the source is not a URL of the form postgres://USER@HOST:PORT/DATABASE")]
    Scheme,
    /// A character of a name or a password ended it too early.
    #[error(
        "the URL's user, password, host or database holds a character that must be percent-encoded: \
         \"@\" as %40, \"/\" as %2F, \":\" as %3A, \"%\" as %25"
    )]
    Unescaped,
    /// A percent sign without two hexadecimal digits, an encoded NUL, or bytes that are not UTF-8.
    #[error("the URL's {part} is not percent-encoded UTF-8")]
    Encoding {
        /// Which part.
        part: String,
    },
    /// The URL cannot be taken apart.
    #[error("the URL's {part} {problem}")]
    Syntax {
        /// Which part.
        part: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A key that libpq does not know.
    #[error("unknown key {key} in {origin}{}", did_you_mean(.nearest))]
    UnknownKey {
        /// The key in quotes, or what may be said of it.
        key: String,
        /// Where it stands.
        origin: Origin,
        /// The known key that it resembles most.
        nearest: Option<&'static str>,
    },
    /// A key of libpq that Tailpost does not honour.
    #[error("\"{key}\" in {origin} is not supported: {reason}")]
    Unsupported {
        /// The key.
        key: &'static str,
        /// Where it stands.
        origin: Origin,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// A value that its key does not take.
    #[error("\"{key}\" in {origin} {problem}")]
    Value {
        /// The key.
        key: &'static str,
        /// Where it stands.
        origin: Origin,
        /// What is wrong, as the rest of a sentence.
        problem: String,
    },
    /// Keys that are right each by itself, but not together.
    #[error("{0}")]
    Together(
        /// What is wrong.
        &'static str,
    ),
    /// The service file cannot be read.
    #[error("cannot read the service file {}: {problem}", path.display())]
    ServiceFile {
        /// Which file.
        path: PathBuf,
        /// Why; with the line's number, without its text.
        problem: String,
    },
    /// No service file defines the service.
    #[error("service \"{service}\" is not defined in {looked_in}")]
    NoService {
        /// Which service.
        service: String,
        /// The files read.
        looked_in: String,
    },
    /// No user is given, and the process's own user has no name.
    #[error(
        "the URL names no user, and the user of this process has no name: write postgres://USER@HOST/DATABASE"
    )]
    NoUser,
}

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The URL.
    Url,
    /// An environment variable.
    Variable(&'static str),
    /// The service file.
    ServiceFile(PathBuf),
    /// libpq's default.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url => f.write_str("the URL"),
            Self::Variable(name) => write!(f, "the environment ({name})"),
            Self::ServiceFile(path) => write!(f, "the service file {}", path.display()),
            Self::Default => f.write_str("the defaults"),
        }
    }
}

fn did_you_mean(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!(": did you mean \"{name}\"?"))
}
