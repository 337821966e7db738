//! Takes a URI apart into libpq's keys and values (manual, "Connection URIs"). It knows the shape only, no key.

use percent_encoding::percent_decode_str;

use super::fault::UrlFault;

/// A URI in pieces.
#[derive(Default)]
pub(super) struct Pieces {
    /// Keys and decoded values in the order of the text; a later one wins.
    pub(super) pairs: Vec<(String, String)>,
    /// The text can be read in only one way. If not, a value may be a piece of a mistyped password and must not be shown.
    pub(super) plain: bool,
}

/// Takes `text` apart.
pub(super) fn split(text: &str) -> Result<Pieces, Vec<UrlFault>> {
    let rest = after_scheme(text).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let mut pieces = Pieces::default();

    // libpq ends the credentials at the first "@" before any "/".
    let before_path = rest.find('/').unwrap_or(rest.len());
    let (credentials, rest) = match rest[..before_path].find('@') {
        Some(at) => (Some(&rest[..at]), &rest[at + 1..]),
        None => (None, rest),
    };
    if let Some(credentials) = credentials {
        let (user, password) = match credentials.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (credentials, None),
        };
        push_unless_empty(&mut pieces, &mut faults, "user", user);
        push_unless_empty(&mut pieces, &mut faults, "password", password.unwrap_or_default());
    }

    let (location, query) = match rest.split_once('?') {
        Some((location, query)) => (location, Some(query)),
        None => (rest, None),
    };
    if location.contains('@') {
        return Err(vec![UrlFault::Unescaped]);
    }
    let (authority, database) = match location.split_once('/') {
        Some((authority, database)) => (authority, Some(database)),
        None => (location, None),
    };
    split_hosts(authority, &mut pieces, &mut faults);
    if let Some(database) = database {
        push_unless_empty(&mut pieces, &mut faults, "dbname", database);
    }
    pieces.plain = query.is_none_or(|query| !query.contains('@'));
    if let Some(query) = query {
        split_query(query, &mut pieces, &mut faults);
    }
    if faults.is_empty() {
        Ok(pieces)
    } else {
        Err(faults)
    }
}

fn after_scheme(text: &str) -> Result<&str, UrlFault> {
    let (scheme, rest) = text.split_once("://").ok_or(UrlFault::Scheme)?;
    let scheme = scheme.to_ascii_lowercase();
    match scheme.as_str() {
        "postgres" | "postgresql" => Ok(rest),
        "mysql" | "mariadb" => Err(UrlFault::Mysql { scheme }),
        "amqp" | "amqps" => Err(UrlFault::Broker { scheme }),
        _ => Err(UrlFault::Scheme),
    }
}

/// `HOST[:PORT],…` becomes libpq's two lists.
fn split_hosts(authority: &str, pieces: &mut Pieces, faults: &mut Vec<UrlFault>) {
    if authority.is_empty() {
        return;
    }
    let mut hosts = Vec::new();
    let mut ports = Vec::new();
    for entry in authority.split(',') {
        match split_host(entry) {
            Ok((host, port)) => {
                hosts.push(host);
                ports.push(port.unwrap_or_default());
            }
            Err(problem) => faults.push(UrlFault::Syntax {
                part: "host",
                problem,
            }),
        }
    }
    push_unless_empty(pieces, faults, "host", &hosts.join(","));
    // Several hosts without ports make a list of empty ports, which leaves no gap for PGPORT. So it is in libpq.
    push_unless_empty(pieces, faults, "port", &ports.join(","));
}

fn split_host(entry: &str) -> Result<(&str, Option<&str>), &'static str> {
    let Some(bracketed) = entry.strip_prefix('[') else {
        return match entry.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                Err("holds several colons: write an IPv6 address in brackets")
            }
            Some((host, port)) => Ok((host, Some(port))),
            None => Ok((entry, None)),
        };
    };
    let (address, rest) = bracketed
        .split_once(']')
        .ok_or("opens a bracket and does not close it")?;
    if address.is_empty() {
        return Err("has nothing between its brackets");
    }
    match rest.strip_prefix(':') {
        Some(port) => Ok((address, Some(port))),
        None if rest.is_empty() => Ok((address, None)),
        None => Err("goes on after its closing bracket"),
    }
}

fn split_query(query: &str, pieces: &mut Pieces, faults: &mut Vec<UrlFault>) {
    if query.is_empty() {
        return;
    }
    for pair in query.split('&') {
        let Some((key, value)) = pair.split_once('=') else {
            faults.push(UrlFault::Syntax {
                part: "query",
                problem: "holds a key without \"=\"",
            });
            continue;
        };
        let Some(key) = decode(key) else {
            faults.push(UrlFault::Encoding { part: "query".into() });
            continue;
        };
        match (key.as_str(), value) {
            // JDBC's spelling, which libpq takes in URIs too.
            ("ssl", "true") => pieces.pairs.push(("sslmode".into(), "require".into())),
            _ => push(pieces, faults, &key, value),
        }
    }
}

/// What is empty before the query is absent: the environment may fill it. In the query it is set, to nothing.
fn push_unless_empty(pieces: &mut Pieces, faults: &mut Vec<UrlFault>, key: &str, raw: &str) {
    if !raw.is_empty() {
        push(pieces, faults, key, raw);
    }
}

fn push(pieces: &mut Pieces, faults: &mut Vec<UrlFault>, key: &str, raw: &str) {
    match decode(raw) {
        Some(value) => pieces.pairs.push((key.to_owned(), value)),
        None => faults.push(UrlFault::Encoding { part: part(key) }),
    }
}

/// What of the URL `key` names, if it may be shown.
fn part(key: &str) -> String {
    match super::keys::find(key) {
        Some(known) => format!("\"{}\"", known.name),
        None => "query".into(),
    }
}

/// Decodes strictly: `percent_decode_str` alone would leave a stray "%" as it is.
fn decode(raw: &str) -> Option<String> {
    let bytes = raw.as_bytes();
    let stray = bytes.iter().enumerate().any(|(at, byte)| {
        let digits = bytes.get(at + 1..at + 3);
        *byte == b'%' && !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    if stray {
        return None;
    }
    let decoded = percent_decode_str(raw).decode_utf8().ok()?;
    (!decoded.contains('\0')).then(|| decoded.into_owned())
}
