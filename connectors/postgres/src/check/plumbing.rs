//! How the session reaches the server.

use tailpost_database::postgres::{SqlSession, SslMode};

use super::{Finding, Status};
use crate::PgError;
use crate::catalog::{Field, rows};
use crate::config::PgConfig;

pub(super) async fn findings(sql: &SqlSession, config: &PgConfig) -> Result<Vec<Finding>, PgError> {
    const ENCRYPTION: &str = "
        SELECT s.ssl, s.version FROM pg_catalog.pg_stat_ssl s WHERE s.pid = pg_catalog.pg_backend_pid()";
    let mut encryption = "none".to_owned();
    if let Some(row) = rows(sql, ENCRYPTION, &[]).await?.first()
        && row.field(0)?
    {
        encryption = row.field::<Option<String>>(1)?.unwrap_or_else(|| "TLS".into());
    }
    let local = sql.host().is_loopback();
    let encrypted = encryption != "none";
    let mut findings = vec![
        Finding::test(local || encrypted, Status::Warn, "encryption", encryption, needed(local))
            .mend("payloads and log-in cross the network in clear: set ssl = on on the server, sslmode=verify-full in --source"),
    ];
    if !local {
        let mode = config.url.ssl_mode();
        let verified = mode == SslMode::VerifyFull;
        findings.push(
            Finding::test(verified, Status::Warn, "sslmode", word(mode), "verify-full").mend(
                "whoever is between can pose as the server: sslmode=verify-full&sslrootcert=PATH (or system) in --source",
            ),
        );
    }
    Ok(findings)
}

fn needed(local: bool) -> &'static str {
    if local {
        "nothing, it stays on this machine"
    } else {
        "TLS"
    }
}

fn word(mode: SslMode) -> &'static str {
    match mode {
        SslMode::Disable => "disable",
        SslMode::Allow => "allow",
        SslMode::Prefer => "prefer",
        SslMode::Require => "require",
        SslMode::VerifyCa => "verify-ca",
        SslMode::VerifyFull => "verify-full",
    }
}
