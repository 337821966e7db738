//! The password file `.pgpass` (manual, "The Password File"): `HOST:PORT:DATABASE:USER:PASSWORD` lines, the first that matches wins.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::host::{HostLabel, Place};
use crate::Secret;

/// What became of looking into the file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// A line matched.
    Found(Secret),
    /// No line matched, or there is no file.
    Absent,
    /// The file is there and must not be used: why.
    Ignored(&'static str),
}

/// Looks up the password for `user` in `database` on `host`. Reads a file: not for an async task.
pub(super) fn look_up(path: &Path, host: &HostLabel, database: &str, user: &str) -> io::Result<Lookup> {
    if let Some(why) = refuse(path)? {
        return Ok(why);
    }
    let text = fs::read_to_string(path)?;
    let port = host.port().to_string();
    let names = host_names(host);
    let found = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .find_map(|line| {
            let (host, rest) = field(line)?;
            let (line_port, rest) = field(rest)?;
            let (line_database, rest) = field(rest)?;
            let (line_user, rest) = field(rest)?;
            let matches = names.iter().any(|name| host.matches(name))
                && line_port.matches(&port)
                && line_database.matches(database)
                && line_user.matches(user);
            matches.then(|| Secret::from(last_field(rest)))
        });
    Ok(found
        .filter(|secret| !secret.expose().is_empty())
        .map_or(Lookup::Absent, Lookup::Found))
}

/// Tells whether the file would be refused, without reading it.
pub(super) fn refuse(path: &Path) -> io::Result<Option<Lookup>> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(Some(Lookup::Absent));
        }
        Err(error) => return Err(error),
    };
    if !metadata.is_file() {
        return Ok(Some(Lookup::Ignored("it is no regular file")));
    }
    if metadata.permissions().mode() & 0o077 != 0 {
        return Ok(Some(Lookup::Ignored(
            "others than its owner have access to it: chmod 0600",
        )));
    }
    Ok(None)
}

/// A Unix socket in a usual folder is `localhost`.
fn host_names(host: &HostLabel) -> Vec<String> {
    let mut names = vec![host.name()];
    if let Place::Unix(folder) = &*host.place
        && ["/tmp", "/run/postgresql", "/var/run/postgresql"]
            .iter()
            .any(|usual| folder == Path::new(usual))
    {
        names.push("localhost".into());
    }
    names
}

/// One field of a line, its escapes resolved.
enum Field {
    Any,
    Text(String),
}

impl Field {
    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Text(text) => text == value,
        }
    }
}

/// Splits the first field off `line`; `None` if no colon ends it.
fn field(line: &str) -> Option<(Field, &str)> {
    let mut text = String::new();
    let mut escaped = false;
    for (at, c) in line.char_indices() {
        match c {
            '\\' if !escaped => escaped = true,
            ':' if !escaped => {
                let field = if &line[..at] == "*" {
                    Field::Any
                } else {
                    Field::Text(text)
                };
                return Some((field, &line[at + 1..]));
            }
            _ => {
                escaped = false;
                text.push(c);
            }
        }
    }
    None
}

/// The password is the rest of the line up to a colon, its escapes resolved.
fn last_field(rest: &str) -> String {
    let mut text = String::new();
    let mut characters = rest.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => text.extend(characters.next()),
            ':' => break,
            _ => text.push(c),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;

    fn file(text: &str, mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(text.as_bytes()).expect("written");
        file.as_file()
            .set_permissions(fs::Permissions::from_mode(mode))
            .expect("mode set");
        file
    }

    fn tcp(name: &str, port: u16) -> HostLabel {
        HostLabel {
            place: Arc::new(Place::Tcp {
                name: name.into(),
                address: None,
            }),
            port,
            encryption: None,
        }
    }

    fn found(text: &str, host: &HostLabel) -> Lookup {
        look_up(file(text, 0o600).path(), host, "shop", "relay").expect("a readable file")
    }

    #[test]
    fn first_matching_line_wins_and_wildcards_match() {
        let text = "# db:5432:shop:relay:comment\ndb:5432:other:relay:1\ndb:*:shop:*:two\n*:*:*:*:three\n";
        assert_eq!(found(text, &tcp("db", 5432)), Lookup::Found("two".into()));
        assert_eq!(found(text, &tcp("elsewhere", 1)), Lookup::Found("three".into()));
        assert_eq!(found("db:5433:shop:relay:x\n", &tcp("db", 5432)), Lookup::Absent);
    }

    #[test]
    fn escapes_are_resolved_in_fields_and_password() {
        assert_eq!(found("::1:5432:shop:relay:x", &tcp("::1", 5432)), Lookup::Absent);
        assert_eq!(
            found("\\:\\:1:5432:shop:relay:a\\:b\\\\c\r\n", &tcp("::1", 5432)),
            Lookup::Found("a:b\\c".into())
        );
        assert_eq!(
            found("\\*:5432:shop:relay:x", &tcp("db", 5432)),
            Lookup::Absent,
            "an escaped star is a star"
        );
    }

    #[test]
    fn unix_socket_in_a_usual_folder_is_localhost() {
        let socket = |folder: &str| HostLabel {
            place: Arc::new(Place::Unix(folder.into())),
            port: 5432,
            encryption: None,
        };
        let text = "localhost:5432:shop:relay:local\n/srv/pg:5432:shop:relay:srv\n";
        assert_eq!(
            found(text, &socket("/var/run/postgresql")),
            Lookup::Found("local".into())
        );
        assert_eq!(found(text, &socket("/srv/pg")), Lookup::Found("srv".into()));
        assert_eq!(found(text, &socket("/other")), Lookup::Absent);
    }

    #[test]
    fn file_that_others_can_read_is_ignored() {
        let open = file("*:*:*:*:x", 0o640);
        let looked = look_up(open.path(), &tcp("db", 5432), "shop", "relay").expect("looked");
        assert!(matches!(looked, Lookup::Ignored(_)));
        let folder = look_up(Path::new("/"), &tcp("db", 5432), "shop", "relay").expect("looked");
        assert!(matches!(folder, Lookup::Ignored(_)));
        let none = look_up(Path::new("/nonexistent/x"), &tcp("db", 5432), "shop", "relay").expect("looked");
        assert_eq!(none, Lookup::Absent);
    }
}
