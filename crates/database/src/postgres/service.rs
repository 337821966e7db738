//! The connection service file (manual, "The Connection Service File").

use std::io;
use std::path::{Path, PathBuf};

use super::fault::UrlFault;
use super::keys;
use crate::Environment;

/// The settings of one service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) path: PathBuf,
    /// Keys and values; the first of a key wins.
    pub(super) pairs: Vec<(String, String)>,
}

/// Finds `service` in `named`, or in libpq's places: `~/.pg_service.conf`, then `$PGSYSCONFDIR/pg_service.conf`. (libpq's built-in
/// system folder differs from build to build and is not looked into.)
pub(super) fn load(
    service: &str,
    named: Option<&str>,
    environment: &dyn Environment,
) -> Result<Service, Vec<UrlFault>> {
    let mut looked_in = Vec::new();
    for path in places(named, environment) {
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound && named.is_none() => continue,
            Err(error) => {
                let problem = error.to_string();
                return Err(vec![UrlFault::ServiceFile { path, problem }]);
            }
        };
        if let Some(pairs) = section(&text, service, &path)? {
            return Ok(Service { path, pairs });
        }
        looked_in.push(path.display().to_string());
    }
    let looked_in = if looked_in.is_empty() {
        "any service file: none exists".into()
    } else {
        looked_in.join(", ")
    };
    Err(vec![UrlFault::NoService {
        service: service.to_owned(),
        looked_in,
    }])
}

fn places(named: Option<&str>, environment: &dyn Environment) -> Vec<PathBuf> {
    if let Some(named) = named {
        return vec![PathBuf::from(named)];
    }
    let home = environment.home().map(|home| home.join(".pg_service.conf"));
    let system = environment
        .variable("PGSYSCONFDIR")
        .map(|folder| Path::new(&folder).join("pg_service.conf"));
    home.into_iter().chain(system).collect()
}

/// Reads the section `[service]`; `None` if the file has none. Values are never part of a fault: they may be passwords.
fn section(text: &str, service: &str, path: &Path) -> Result<Option<Vec<(String, String)>>, Vec<UrlFault>> {
    let mut faults = Vec::new();
    let mut found: Option<Vec<(String, String)>> = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            if found.is_some() {
                break;
            }
            if header.strip_suffix(']') == Some(service) {
                found = Some(Vec::new());
            }
            continue;
        }
        let Some(pairs) = &mut found else { continue };
        match setting(line) {
            Ok(pair) => pairs.push(pair),
            Err(problem) => faults.push(UrlFault::ServiceFile {
                path: path.to_owned(),
                problem: format!("line {}: {problem}", at + 1),
            }),
        }
    }
    if faults.is_empty() { Ok(found) } else { Err(faults) }
}

fn setting(line: &str) -> Result<(String, String), String> {
    if line.starts_with("ldap://") {
        return Err("LDAP look-ups are not supported".into());
    }
    let (key, value) = line.split_once('=').ok_or("not of the form KEY=VALUE")?;
    let key = key.trim();
    if matches!(key, "service" | "servicefile") {
        return Err(format!("a service cannot name another: \"{key}\""));
    }
    if keys::find(key).is_none() {
        let nearest = keys::nearest(key)
            .map(|name| format!(": did you mean \"{name}\"?"))
            .unwrap_or_default();
        return Err(format!("unknown key{nearest}"));
    }
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;

    const FILE: &str = "# a comment\n\n[other]\nhost=wrong\nnonsense=1\n[orders]\nhost=db.example\n port = 5433\npassword=p=w#x\n[orders]\nhost=again\n";

    #[test]
    fn first_section_of_the_name_is_read_and_others_are_passed() {
        let pairs = section(FILE, "orders", Path::new("f"))
            .expect("no fault")
            .expect("the section");
        let expected = [("host", "db.example"), ("port", " 5433"), ("password", "p=w#x")];
        assert_eq!(
            pairs,
            expected.map(|(key, value)| (key.to_owned(), value.to_owned()))
        );
        assert_eq!(section(FILE, "none", Path::new("f")), Ok(None));
    }

    #[test]
    fn every_bad_line_of_the_section_is_reported_without_its_value() {
        let text = "[s]\nhoost=canary1\nservice=canary2\njust canary3\nldap://canary4\n";
        let faults = section(text, "s", Path::new("/f")).expect_err("faults");
        let text: Vec<String> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(text.len(), 4);
        assert!(
            text[0].ends_with("line 2: unknown key: did you mean \"host\"?"),
            "{}",
            text[0]
        );
        assert!(text.iter().all(|fault| !fault.contains("canary")), "{text:?}");
    }

    #[test]
    fn home_file_comes_before_the_system_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let system = folder.path().join("etc");
        std::fs::create_dir(&system).expect("a folder");
        std::fs::write(
            system.join("pg_service.conf"),
            "[s]\nhost=system\n[t]\nhost=only\n",
        )
        .expect("a file");
        std::fs::write(folder.path().join(".pg_service.conf"), "[s]\nhost=home\n").expect("a file");
        let environment = FakeEnvironment {
            home: Some(folder.path().into()),
            ..Default::default()
        }
        .with("PGSYSCONFDIR", &system.display().to_string());
        assert_eq!(load("s", None, &environment).expect("s").pairs[0].1, "home");
        assert_eq!(load("t", None, &environment).expect("t").pairs[0].1, "only");
        let fault = load("u", None, &environment).expect_err("no u")[0].to_string();
        assert!(
            fault.contains(".pg_service.conf") && fault.contains("etc/pg_service.conf"),
            "{fault}"
        );
    }

    #[test]
    fn a_service_file_that_is_named_must_exist() {
        let faults = load("s", Some("/nonexistent/f"), &FakeEnvironment::default()).expect_err("a fault");
        assert!(matches!(&faults[0], UrlFault::ServiceFile { .. }));
    }
}
