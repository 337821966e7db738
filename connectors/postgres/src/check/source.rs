//! Tables, publications, slot.

use tailpost_database::postgres::SqlSession;
use tailpost_pgoutput::Lsn;
use tailpost_pgoutput::quote::quote_identifier;

use super::{Finding, MappedColumns, Status, human_bytes};
use crate::PgError;
use crate::catalog::{Field, row};
use crate::config::PgConfig;
use crate::preflight::Server;
use crate::tables::{Generated, OutboxTable, TableName, TableSet};
use crate::{publication, slot};

/// Types whose text or bytes make a body: json, jsonb, text, varchar, char, bytea, xml.
const PAYLOAD_TYPES: [u32; 7] = [114, 3802, 25, 1043, 1042, 17, 142];

pub(super) fn broken_table(name: &TableName, error: &PgError) -> Finding {
    Finding::new(
        Status::Fault,
        format!("table {name}"),
        error.to_string(),
        "a permanent table",
    )
    .mend(error.hint().unwrap_or_default())
}

pub(super) fn table(table: &OutboxTable, columns: MappedColumns<'_>) -> Vec<Finding> {
    let label = table.root.label();
    let kind = if table.partitioned() {
        format!("partitioned, {} partitions", table.leaves().count())
    } else {
        "permanent".into()
    };
    let mut findings = vec![Finding::new(
        Status::Ok,
        format!("table {label}"),
        kind,
        "a permanent table",
    )];
    let missing: Vec<&str> = columns
        .required
        .iter()
        .filter(|name| table.column(name).is_none())
        .map(String::as_str)
        .collect();
    let value = if missing.is_empty() {
        "all there".into()
    } else {
        format!("no column {}", missing.join(", "))
    };
    findings.push(
        Finding::test(
            missing.is_empty(),
            Status::Fault,
            format!("columns of {label}"),
            value,
            columns.required.join(", "),
        )
        .mend("name the columns with --column FIELD=COLUMN, or choose the --preset that fits the table"),
    );
    let absent: Vec<&str> = columns
        .headers
        .iter()
        .filter(|name| table.column(name).is_none())
        .map(String::as_str)
        .collect();
    if !absent.is_empty() {
        let value = format!("no column {}", absent.join(", "));
        let finding = Finding::new(
            Status::Warn,
            format!("headers of {label}"),
            value,
            "a column for each --header",
        );
        findings
            .push(finding.mend(
                "the headers of these columns will be absent; check the names in --header NAME=COLUMN",
            ));
    }
    findings.extend(columns.payload.and_then(|name| table.column(name)).map(|column| {
        let fits = PAYLOAD_TYPES.contains(&column.base_type_oid) && column.generated == Generated::No;
        Finding::test(
            fits,
            Status::Warn,
            format!("payload {}", column.name),
            &column.type_name,
            "json, jsonb, text, varchar or bytea",
        )
        .mend("its text as PostgreSQL prints it becomes the body")
    }));
    findings
}

pub(super) async fn publications(
    sql: &SqlSession,
    config: &PgConfig,
    tables: &TableSet,
    columns: &[String],
    server: &Server,
) -> Result<Vec<Finding>, PgError> {
    let found = publication::read(sql, &config.publications, server.version_num).await?;
    let mut findings = Vec::new();
    for fault in found.faults(&config.publications, tables, columns, server.version_num) {
        let what = format!("publication {}", config.publications.join(", "));
        findings.push(
            Finding::new(Status::Fault, what, fault.to_string(), "every insert, whole").mend(fault.hint()),
        );
    }
    let partitioned = tables.tables().iter().any(OutboxTable::partitioned);
    for publication in &found.found {
        let what = format!("publication {}", publication.name);
        let name = quote_identifier(&publication.name);
        if findings.is_empty() {
            findings.push(Finding::new(
                Status::Ok,
                &what,
                "covers every insert",
                "every insert, whole",
            ));
        }
        if !publication.others.is_empty() {
            let value = format!("publishes {} too", publication.others.join(", "));
            findings.push(Finding::new(Status::Warn, &what, value, "inserts only").mend(format!(
                "the rest is decoded for nothing, and a table without replica identity refuses updates and deletes: \
                 ALTER PUBLICATION {name} SET (publish = 'insert')"
            )));
        }
        if partitioned && !publication.via_root {
            let value = "publish_via_partition_root = false";
            findings.push(
                Finding::new(Status::Warn, &what, value, "true for partitioned tables").mend(format!(
                    "rows of a partition that is dropped before they are read are not recognised: \
                 ALTER PUBLICATION {name} SET (publish_via_partition_root = true)"
                )),
            );
        }
    }
    Ok(findings)
}

pub(super) async fn slot(
    sql: &SqlSession,
    config: &PgConfig,
    server: &Server,
) -> Result<Vec<Finding>, PgError> {
    let what = format!("slot {}", config.slot);
    let Some(slot) = slot::read(sql, &config.slot, server.version_num).await? else {
        let error = PgError::SlotMissing {
            slot: config.slot.clone(),
        };
        return Ok(vec![
            Finding::new(Status::Fault, what, "missing", "exists").mend(error.hint().unwrap_or_default()),
        ]);
    };
    if let Err(error) = slot.judge(&server.database) {
        let mut findings: Vec<Finding> = slot
            .faults(&server.database)
            .iter()
            .map(|fault| {
                Finding::new(Status::Fault, &what, fault.to_string(), "logical, pgoutput").mend(fault.hint())
            })
            .collect();
        if findings.is_empty() {
            let hint = error.hint().unwrap_or_default();
            findings.push(Finding::new(Status::Fault, what, error.to_string(), "valid").mend(hint));
        }
        return Ok(findings);
    }
    let mut findings = vec![Finding::new(
        Status::Ok,
        &what,
        "logical, pgoutput, valid",
        "logical, pgoutput, valid",
    )];
    let value = match slot.active_pid {
        Some(pid) => format!("streaming to {}", slot::holder(sql, pid).await?),
        None => "free".into(),
    };
    findings.push(Finding::new(
        Status::Ok,
        format!("{what}: use"),
        value,
        "free, or this relay",
    ));
    if !server.in_recovery {
        findings.extend(lag(sql, &what, &slot).await?);
    }
    Ok(findings)
}

async fn lag(sql: &SqlSession, what: &str, slot: &slot::Slot) -> Result<Vec<Finding>, PgError> {
    const END: &str = "SELECT pg_catalog.pg_current_wal_flush_lsn()";
    let end = row(sql, END, &[]).await?.lsn(0)?.unwrap_or(Lsn::ZERO);
    let behind = |from: Option<Lsn>| human_bytes(end.0.saturating_sub(from.unwrap_or(end).0));
    let status = slot.wal_status.as_deref().unwrap_or("unknown");
    let safe = slot.safe_wal_size.map_or_else(String::new, |bytes| {
        format!(
            ", {} until it is in danger",
            human_bytes(u64::try_from(bytes).unwrap_or_default())
        )
    });
    Ok(vec![
        Finding::new(Status::Ok, format!("{what}: not confirmed"), behind(slot.confirmed_flush), "little while running"),
        Finding::test(
            status == "reserved",
            Status::Warn,
            format!("{what}: log kept"),
            format!("{} ({status}{safe})", behind(slot.restart_lsn)),
            "reserved",
        )
        .mend("the server keeps more log than max_wal_size for it: start the relay, or end the oldest open transaction"),
    ])
}
