//! What was typed, understood: all faults at once, nothing half valid.

use std::fmt;

use tailpost_database::Environment;
use tailpost_database::postgres::{Url, UrlFault};
use tailpost_pgoutput::quote::valid_slot_name;

use crate::args::SourceArgs;
use crate::preflight::Wanted;
use crate::tables::TableName;

/// One fault of the configuration. Holds no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFault {
    /// The flag, as `--slot`.
    pub flag: &'static str,
    /// What is wrong with it.
    pub what: String,
    /// How to mend it.
    pub hint: Option<String>,
}

impl fmt::Display for ConfigFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.what)
    }
}

impl std::error::Error for ConfigFault {}

/// A PostgreSQL source, valid as far as can be told without a connection. `Debug` shows no secret.
#[derive(Clone, Debug)]
pub struct PgConfig {
    /// Where it is.
    pub url: Url,
    /// The relay's name.
    pub name: String,
    /// The name of the relay's sessions, `tailpost/NAME@HOST`.
    pub application_name: String,
    /// Slot.
    pub slot: String,
    /// Publications; at least one.
    pub publications: Vec<String>,
    /// Tables; at least one, each once.
    pub tables: Vec<TableName>,
}

impl PgConfig {
    /// Understands what was typed. `host` is this machine's name; `environment` fills the URL's gaps.
    ///
    /// # Errors
    /// Every fault, in the order of the flags.
    pub fn parse(
        args: &SourceArgs,
        host: &str,
        environment: &dyn Environment,
    ) -> Result<Self, Vec<ConfigFault>> {
        let mut faults = Vec::new();
        let url = url(args, environment, &mut faults);
        let tables = tables(&args.table, &mut faults);
        let name = name(args, &mut faults);
        if let Err(error) = valid_slot_name(&args.slot) {
            faults.push(fault("--slot", error.to_string(), None));
        }
        let publications = publications(args, &mut faults);
        match url {
            Some(url) if faults.is_empty() => {
                let application_name = url
                    .application_name()
                    .map_or_else(|| session_name(&name, host), str::to_owned);
                Ok(Self {
                    url,
                    name,
                    application_name,
                    slot: args.slot.clone(),
                    publications,
                    tables,
                })
            }
            _ => Err(faults),
        }
    }

    /// What must hold before a stream is opened, for a mapping that needs `columns`.
    pub fn wanted(&self, columns: Vec<String>) -> Wanted {
        Wanted {
            slot: self.slot.clone(),
            publications: self.publications.clone(),
            tables: self.tables.clone(),
            columns,
        }
    }
}

/// Builds `tailpost/NAME@HOST` in the 63 bytes that the server keeps: a long host is cut, since the name tells more.
fn session_name(name: &str, host: &str) -> String {
    let mut text = format!("tailpost/{name}@{host}");
    let mut end = text.len().min(63);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

fn fault(flag: &'static str, what: impl Into<String>, hint: Option<&str>) -> ConfigFault {
    ConfigFault {
        flag,
        what: what.into(),
        hint: hint.map(Into::into),
    }
}

fn url(args: &SourceArgs, environment: &dyn Environment, faults: &mut Vec<ConfigFault>) -> Option<Url> {
    let Some(source) = &args.source else {
        let hint = "give --source postgres://USER@HOST/DATABASE, or set TAILPOST_SOURCE";
        faults.push(fault("--source", "no database is given", Some(hint)));
        return None;
    };
    match Url::parse(source.expose(), environment) {
        Ok(url) => Some(match &args.source_password_file {
            Some(path) => url.with_password_file(path.clone()),
            None => url,
        }),
        Err(found) => {
            faults.extend(
                found
                    .iter()
                    .map(|found| fault("--source", found.to_string(), url_hint(found, source.expose()))),
            );
            None
        }
    }
}

fn url_hint(found: &UrlFault, typed: &str) -> Option<&'static str> {
    match found {
        UrlFault::Mysql { .. } => Some("MySQL and MariaDB are not read yet"),
        UrlFault::Broker { .. } => {
            Some("give the broker's URL with --broker and the database's with --source")
        }
        UrlFault::Scheme if resembles_postgres(typed) => Some("did you mean postgres://?"),
        UrlFault::Scheme => Some("as in postgres://app@db.example:5432/shop?sslmode=verify-full"),
        _ => None,
    }
}

/// Tells a slip of the scheme. The hint names what was meant, never what was typed.
fn resembles_postgres(typed: &str) -> bool {
    let scheme = typed.split("://").next().unwrap_or_default().to_ascii_lowercase();
    let distance = |name| strsim::osa_distance(&scheme, name);
    typed.contains("://")
        && ["postgres", "postgresql"]
            .into_iter()
            .any(|name| distance(name) <= 3)
}

fn tables(typed: &[String], faults: &mut Vec<ConfigFault>) -> Vec<TableName> {
    const HINT: &str = "write it as in SQL: outbox_event, sales.outbox_event, \"Sales\".\"Outbox\"";
    let mut tables: Vec<TableName> = Vec::new();
    for text in typed.iter().flat_map(|text| split_list(text)) {
        match text.parse::<TableName>() {
            Ok(table) if tables.contains(&table) => {
                faults.push(fault(
                    "--table",
                    format!("table {table} is given twice"),
                    Some("name each table once"),
                ));
            }
            Ok(table) => tables.push(table),
            Err(error) => faults.push(fault("--table", format!("{error}, in {text:?}"), Some(HINT))),
        }
    }
    if tables.is_empty() && faults.iter().all(|fault| fault.flag != "--table") {
        faults.push(fault("--table", "no table is given", Some(HINT)));
    }
    tables
}

fn name(args: &SourceArgs, faults: &mut Vec<ConfigFault>) -> String {
    let name = args.name.clone().unwrap_or_else(|| args.slot.clone());
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if args.name.is_some() && (name.is_empty() || name.len() > 50 || !name.chars().all(fits)) {
        let hint = "use 1 to 50 of a to z, A to Z, 0 to 9, '-', '_' and '.'";
        faults.push(fault(
            "--name",
            format!("{name:?} cannot be a relay's name"),
            Some(hint),
        ));
    }
    name
}

fn publications(args: &SourceArgs, faults: &mut Vec<ConfigFault>) -> Vec<String> {
    let typed: Vec<&str> = args
        .publication
        .iter()
        .flat_map(|text| split_list(text))
        .collect();
    if typed.is_empty() {
        return vec![args.slot.clone()];
    }
    let mut publications = Vec::new();
    for text in typed {
        match text.parse::<TableName>() {
            Ok(TableName { schema: None, name }) if !publications.contains(&name) => publications.push(name),
            Ok(TableName { schema: None, name }) => {
                faults.push(fault(
                    "--publication",
                    format!("publication {name:?} is given twice"),
                    None,
                ));
            }
            Ok(_) | Err(_) => {
                let hint =
                    "write it as in SQL: at most 63 bytes, in double quotes where it has capitals or signs";
                faults.push(fault(
                    "--publication",
                    format!("{text:?} cannot be a publication's name"),
                    Some(hint),
                ));
            }
        }
    }
    publications
}

/// Splits at commas outside of double quotes: how one environment variable holds a list. Empty parts are dropped.
fn split_list(text: &str) -> Vec<&str> {
    let mut quoted = false;
    text.split(|c: char| {
        quoted ^= c == '"';
        c == ',' && !quoted
    })
    .map(|part| part.trim_matches(|c: char| c.is_ascii_whitespace()))
    .filter(|part| !part.is_empty())
    .collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use tailpost_database::Secret;

    use super::*;

    struct Bare;

    impl Environment for Bare {
        fn variable(&self, _: &str) -> Option<String> {
            None
        }

        fn home(&self) -> Option<PathBuf> {
            None
        }

        fn user(&self) -> Option<String> {
            Some("app".into())
        }
    }

    fn args(source: &str) -> SourceArgs {
        SourceArgs {
            source: Some(Secret::from(source)),
            source_password_file: None,
            table: vec!["outbox_event".into()],
            name: None,
            slot: "tailpost".into(),
            publication: Vec::new(),
        }
    }

    #[test]
    fn publication_and_name_are_as_the_slot_unless_given() {
        let config = PgConfig::parse(&args("postgres://h/d"), "box", &Bare).expect("valid");
        assert_eq!(config.publications, ["tailpost"]);
        assert_eq!(config.name, "tailpost");
        assert_eq!(config.application_name, "tailpost/tailpost@box");
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let mut args = args("mysql://u:canary@h/d");
        args.slot = "Bad-Slot".into();
        args.table = vec!["a.b.c".into(), "ok".into(), "OK".into()];
        args.name = Some("a\nb".into());
        args.publication = vec!["a.b".into()];
        let faults = PgConfig::parse(&args, "box", &Bare).expect_err("five faults");
        let flags: Vec<_> = faults.iter().map(|fault| fault.flag).collect();
        assert_eq!(
            flags,
            [
                "--source",
                "--table",
                "--table",
                "--name",
                "--slot",
                "--publication"
            ]
        );
        assert!(
            faults[0]
                .hint
                .as_deref()
                .is_some_and(|hint| hint.contains("not read yet"))
        );
        assert!(!format!("{faults:?}").contains("canary"));
    }

    #[test]
    fn a_slip_of_the_scheme_finds_postgres_and_another_scheme_does_not() {
        let hint = |source| {
            let faults = PgConfig::parse(&args(source), "box", &Bare).expect_err("no scheme");
            faults[0].hint.clone().unwrap_or_default()
        };
        for slip in [
            "psotgres://h/d",
            "postgre://h/d",
            "pgsql://h/d",
            "postgressql://h/d",
        ] {
            let near = slip != "pgsql://h/d";
            assert_eq!(hint(slip).contains("did you mean postgres://?"), near, "{slip}");
        }
        assert!(!hint("http://h/d").contains("did you mean"));
        assert!(!hint("postgres").contains("did you mean"));
    }

    #[test]
    fn a_list_in_one_variable_is_split_outside_quotes() {
        let mut args = args("postgres://h/d");
        args.table = vec![r#"a, "b,c""#.into()];
        args.publication = vec![r#"P,"P""#.into()];
        let config = PgConfig::parse(&args, "box", &Bare).expect("valid");
        assert_eq!(
            config.tables.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["a", "\"b,c\""]
        );
        assert_eq!(config.publications, ["p", "P"]);
    }

    #[test]
    fn a_session_name_fits_what_the_server_keeps() {
        let name = session_name(&"n".repeat(50), &"é".repeat(40));
        assert!(name.len() <= 63 && name.starts_with("tailpost/nnn"));
    }
}
