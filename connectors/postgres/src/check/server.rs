//! The server's version and settings.

use std::collections::BTreeMap;

use tailpost_database::postgres::SqlSession;

use super::{Finding, Status};
use crate::PgError;
use crate::catalog::{Field, row, rows};
use crate::preflight::{SERVER_VERSION_MIN, SERVER_VERSION_UNTESTED, Server, ServerFault};

const NAMES: [&str; 6] = [
    "idle_replication_slot_timeout",
    "max_replication_slots",
    "max_slot_wal_keep_size",
    "max_wal_senders",
    "synchronous_standby_names",
    "wal_sender_timeout",
];

/// A setting: its number (or text) and its unit.
struct Setting {
    value: String,
    unit: String,
}

impl Setting {
    fn number(&self) -> i64 {
        self.value.parse().unwrap_or_default()
    }

    fn label(&self) -> String {
        if self.unit.is_empty() {
            self.value.clone()
        } else {
            format!("{} {}", self.value, self.unit)
        }
    }
}

pub(super) async fn findings(
    sql: &SqlSession,
    server: &Server,
    application_name: &str,
) -> Result<Vec<Finding>, PgError> {
    let settings = read(sql).await?;
    let mut findings = vec![version(server), recovery(server), wal_level(server)];
    findings.extend(places(sql, &settings).await?);
    findings.extend(settings.get("max_slot_wal_keep_size").map(keep_size));
    findings.extend(settings.get("idle_replication_slot_timeout").map(idle_timeout));
    findings.extend(settings.get("wal_sender_timeout").map(sender_timeout));
    findings.extend(
        settings
            .get("synchronous_standby_names")
            .map(|names| synchronous(names, application_name)),
    );
    Ok(findings)
}

async fn read(sql: &SqlSession) -> Result<BTreeMap<String, Setting>, PgError> {
    const SETTINGS: &str = "
        SELECT s.name, s.setting, coalesce(s.unit, '') FROM pg_catalog.pg_settings s WHERE s.name = ANY($1)";
    let mut settings = BTreeMap::new();
    for row in &rows(sql, SETTINGS, &[&&NAMES[..]]).await? {
        settings.insert(
            row.field(0)?,
            Setting {
                value: row.field(1)?,
                unit: row.field(2)?,
            },
        );
    }
    Ok(settings)
}

fn version(server: &Server) -> Finding {
    let status = match server.version_num {
        ..SERVER_VERSION_MIN => Status::Fault,
        SERVER_VERSION_UNTESTED.. => Status::Warn,
        _ => Status::Ok,
    };
    Finding::new(status, "server version", &server.version, "14 to 18").mend(if status == Status::Warn {
        "newer than what was tested: read the release notes of tailpost".to_owned()
    } else {
        ServerFault::Version {
            version: server.version.clone(),
        }
        .hint()
    })
}

fn recovery(server: &Server) -> Finding {
    let value = if server.in_recovery { "standby" } else { "primary" };
    Finding::test(
        !server.in_recovery,
        Status::Fault,
        "server role",
        value,
        "primary",
    )
    .mend(ServerFault::InRecovery.hint())
}

fn wal_level(server: &Server) -> Finding {
    let holds = server.wal_level == "logical";
    Finding::test(holds, Status::Fault, "wal_level", &server.wal_level, "logical").mend(
        ServerFault::WalLevel {
            value: server.wal_level.clone(),
        }
        .hint(),
    )
}

/// WAL senders and slots: how many of how many.
async fn places(sql: &SqlSession, settings: &BTreeMap<String, Setting>) -> Result<Vec<Finding>, PgError> {
    const USED: &str = "
        SELECT (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication),
               (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots)";
    let used = row(sql, USED, &[]).await?;
    let mut findings = Vec::new();
    for (at, name) in [(0, "max_wal_senders"), (1, "max_replication_slots")] {
        let max = settings.get(name).map_or(0, Setting::number);
        let used: i64 = used.field(at)?;
        let fault = if at == 0 {
            ServerFault::NoSenderFree { max }
        } else {
            ServerFault::NoSlotFree { max }
        };
        // One that is in use may be our own.
        let status = if max == 0 { Status::Fault } else { Status::Warn };
        findings.push(
            Finding::test(
                used < max,
                status,
                name,
                format!("{used} of {max} in use"),
                "one free",
            )
            .mend(fault.hint()),
        );
    }
    Ok(findings)
}

fn keep_size(setting: &Setting) -> Finding {
    let limited = setting.number() >= 0;
    let value = if limited {
        setting.label()
    } else {
        "unlimited".into()
    };
    Finding::test(limited, Status::Warn, "max_slot_wal_keep_size", value, "a limit that the disk can hold").mend(
        "while the relay stands still the server keeps its log, until the disk is full; a limit sacrifices the slot \
         instead (then: init --backfill): ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf()",
    )
}

fn idle_timeout(setting: &Setting) -> Finding {
    let off = setting.number() == 0;
    let value = if off { "off".into() } else { setting.label() };
    Finding::test(off, Status::Warn, "idle_replication_slot_timeout", value, "off, or more than any stop").mend(
        "a relay that is stopped for longer loses its slot: ALTER SYSTEM SET idle_replication_slot_timeout = 0; \
         SELECT pg_reload_conf()",
    )
}

fn sender_timeout(setting: &Setting) -> Finding {
    let (what, needed, reload) = ("wal_sender_timeout", "5 s or more", "SELECT pg_reload_conf()");
    let set = |why: &str| format!("{why}: ALTER SYSTEM SET wal_sender_timeout = '60s'; {reload}");
    match setting.number() {
        0 => Finding::new(Status::Warn, what, "off", needed)
            .mend(set("a connection that died unseen keeps the slot busy for ever")),
        ms => Finding::test(ms >= 5_000, Status::Warn, what, setting.label(), needed).mend(set(
            "a short pause of this machine or of the network ends the stream",
        )),
    }
}

fn synchronous(setting: &Setting, application_name: &str) -> Finding {
    let matched = names_us(&setting.value, application_name);
    let value = if setting.value.is_empty() {
        "none"
    } else {
        &setting.value
    };
    Finding::test(!matched, Status::Fault, "synchronous_standby_names", value, "not this relay").mend(format!(
        "the server takes the relay for a synchronous standby: COMMIT would wait for RabbitMQ. List the standbys by \
         name instead of what matches {application_name:?}"
    ))
}

/// Whether the setting matches `application_name`: `*`, or the name in any case. Forms: a list, `FIRST n (list)`,
/// `ANY n (list)`, `n (list)`.
fn names_us(setting: &str, application_name: &str) -> bool {
    let list = setting
        .split_once('(')
        .map_or(setting, |(_, list)| list.trim_end().trim_end_matches(')'));
    list.split(',').map(str::trim).any(|name| {
        let plain = name
            .strip_prefix('"')
            .and_then(|name| name.strip_suffix('"'))
            .unwrap_or(name);
        name == "*" || plain.eq_ignore_ascii_case(application_name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(value: &str) -> Setting {
        Setting {
            value: value.into(),
            unit: "ms".into(),
        }
    }

    #[test]
    fn a_synchronous_standby_list_that_matches_us_is_seen_in_every_form() {
        let us = "tailpost/orders@box";
        for list in [
            "*",
            "FIRST 1 (a, *)",
            "ANY 2 (a,\"tailpost/orders@box\")",
            "\"Tailpost/Orders@box\"",
        ] {
            assert!(names_us(list, us), "{list}");
        }
        for list in ["", "a, b", "FIRST 1 (a, b)", "2 (tailpost, orders)"] {
            assert!(!names_us(list, us), "{list}");
        }
    }

    #[test]
    fn a_sender_time_out_that_is_off_or_short_is_told() {
        assert_eq!(sender_timeout(&setting("60000")).status, Status::Ok);
        assert_eq!(sender_timeout(&setting("0")).status, Status::Warn);
        assert_eq!(sender_timeout(&setting("1000")).status, Status::Warn);
    }

    #[test]
    fn an_unlimited_log_is_told() {
        assert_eq!(keep_size(&setting("-1")).status, Status::Warn);
        assert_eq!(keep_size(&setting("0")).status, Status::Ok);
        assert_eq!(keep_size(&setting("51200")).status, Status::Ok);
    }
}
