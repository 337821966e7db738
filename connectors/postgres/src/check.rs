//! `tailpost postgres check`: everything that a stream needs, line by line, each with the statement that mends it.
//!
//! It reads catalogs only and changes nothing. Unlike [`crate::preflight::verify`] it goes on after a fault.

use tailpost_database::postgres::SqlSession;

use crate::PgError;
use crate::config::PgConfig;
use crate::preflight::Server;
use crate::tables::{TableSet, resolve};

mod plumbing;
mod role;
mod server;
mod source;

pub(crate) use role::Role;

/// How a finding stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// As needed.
    Ok,
    /// It works, but an operator should know.
    Warn,
    /// `run` would refuse it, or lose something.
    Fault,
}

impl Status {
    /// The word of a report.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fault => "fault",
        }
    }
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub what: String,
    /// What was found.
    pub value: String,
    /// What is needed.
    pub needed: String,
    /// How it stands.
    pub status: Status,
    /// The statement, or the sentence, that mends it.
    pub mend: Option<String>,
}

impl Finding {
    fn new(
        status: Status,
        what: impl Into<String>,
        value: impl Into<String>,
        needed: impl Into<String>,
    ) -> Self {
        Self {
            what: what.into(),
            value: value.into(),
            needed: needed.into(),
            status,
            mend: None,
        }
    }

    /// Ok where `holds`, else `worse`.
    fn test(
        holds: bool,
        worse: Status,
        what: impl Into<String>,
        value: impl Into<String>,
        needed: impl Into<String>,
    ) -> Self {
        Self::new(if holds { Status::Ok } else { worse }, what, value, needed)
    }

    /// Adds what mends it, unless it is as needed.
    fn mend(mut self, mend: impl Into<String>) -> Self {
        if self.status != Status::Ok {
            self.mend = Some(mend.into());
        }
        self
    }
}

/// What the mapping asks of the tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct MappedColumns<'a> {
    /// Columns that it cannot do without.
    pub required: &'a [String],
    /// Columns of headers; one that is missing only leaves its header out.
    pub headers: &'a [String],
    /// The column of the body.
    pub payload: Option<&'a str>,
}

/// Checks everything over `sql`, a session of `config`.
///
/// # Errors
/// Only what keeps the catalogs from being read; what is wrong with the set-up is a [`Finding`].
pub async fn check(
    sql: &SqlSession,
    config: &PgConfig,
    columns: MappedColumns<'_>,
) -> Result<Vec<Finding>, PgError> {
    let server = Server::read(sql).await?;
    let mut findings = server::findings(sql, &server, &config.application_name).await?;
    findings.extend(plumbing::findings(sql, config).await?);
    findings.extend(role::replication(sql).await?);
    let mut tables = TableSet::default();
    for name in &config.tables {
        match resolve(sql, std::slice::from_ref(name)).await {
            Ok(found) => {
                for table in found.tables() {
                    findings.extend(source::table(table, columns));
                    findings.push(role::select(sql, table).await?);
                    tables.add(table.clone());
                }
            }
            Err(error @ PgError::Table(_)) => findings.push(source::broken_table(name, &error)),
            Err(error) => return Err(error),
        }
    }
    findings.extend(source::publications(sql, config, &tables, columns.required, &server).await?);
    findings.extend(source::slot(sql, config, &server).await?);
    Ok(findings)
}

/// Tells whether `run` would be refused.
pub fn has_fault(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.status == Status::Fault)
}

/// Prints the findings as lines of aligned columns, what mends a finding below it, and a last line that sums up.
pub fn render_text(findings: &[Finding]) -> String {
    let width = |text: fn(&Finding) -> &str, most: usize| {
        findings
            .iter()
            .map(|finding| text(finding).chars().count())
            .max()
            .unwrap_or(0)
            .min(most)
    };
    let (what, value) = (width(|f| &f.what, 40), width(|f| &f.value, 40));
    let mut text = String::new();
    for finding in findings {
        let line = format!(
            "{:<5}  {:<what$}  {:<value$}  needed: {}",
            finding.status.word(),
            finding.what,
            finding.value,
            finding.needed
        );
        text.push_str(line.trim_end());
        text.push('\n');
        if let Some(mend) = &finding.mend {
            text.push_str("       -> ");
            text.push_str(mend);
            text.push('\n');
        }
    }
    let count = |status| findings.iter().filter(|finding| finding.status == status).count();
    text.push_str(&format!(
        "{} ok, {} to know about, {} to mend\n",
        count(Status::Ok),
        count(Status::Warn),
        count(Status::Fault)
    ));
    text
}

/// Prints a count of bytes for people: `3.2 GiB`.
pub(crate) fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // A figure for reading: the digits lost to f64 are not shown.
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_aligned_and_shows_the_remedy_below_its_fault() {
        let findings = [
            Finding::new(Status::Ok, "server version", "18.6", "14 to 18").mend("not shown"),
            Finding::new(Status::Fault, "wal_level", "replica", "logical")
                .mend("ALTER SYSTEM SET wal_level = logical"),
        ];
        assert_eq!(
            render_text(&findings),
            "ok     server version  18.6     needed: 14 to 18\n\
             fault  wal_level       replica  needed: logical\n       \
             -> ALTER SYSTEM SET wal_level = logical\n\
             1 ok, 0 to know about, 1 to mend\n"
        );
        assert!(has_fault(&findings));
        assert!(!has_fault(&findings[..1]));
    }

    #[test]
    fn bytes_are_printed_in_the_unit_that_reads_best() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(1536), "1.5 KiB");
        assert_eq!(human_bytes(3 << 30), "3.0 GiB");
        assert_eq!(human_bytes(u64::MAX), "16384.0 PiB");
    }
}
