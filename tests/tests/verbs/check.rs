//! `check`: every fault of a set-up, and the statement that mends it.

use anyhow::{Context, Result, ensure};

use crate::{assert_code, prepared};

/// What breaks a set-up, what `check` must say, and what mends it where the statement printed does not.
struct Break {
    sql: &'static str,
    words: &'static [&'static str],
    mend: Option<&'static str>,
}

/// `$P` is the publication, `$S` the slot.
const BREAKS: [Break; 10] = [
    Break {
        sql: "ALTER PUBLICATION $P SET (publish = 'update, delete')",
        words: &["does not publish inserts"],
        mend: None,
    },
    Break {
        sql: "ALTER PUBLICATION $P DROP TABLE outbox_event",
        words: &["does not cover table public.outbox_event"],
        mend: None,
    },
    Break {
        sql: "ALTER PUBLICATION $P SET TABLE outbox_event WHERE (aggregate_type = 'order')",
        words: &["publishes only some rows"],
        mend: None,
    },
    Break {
        sql: "ALTER PUBLICATION $P SET TABLE outbox_event (id, event_id, aggregate_type, aggregate_id, event_type)",
        words: &["leaves out column \"payload\""],
        mend: None,
    },
    Break {
        sql: "DROP PUBLICATION $P",
        words: &["publication", "does not exist"],
        mend: None,
    },
    Break {
        sql: "ALTER PUBLICATION $P DROP TABLE outbox_event; ALTER TABLE outbox_event SET UNLOGGED",
        words: &["is unlogged"],
        mend: Some("ALTER TABLE outbox_event SET LOGGED; ALTER PUBLICATION $P ADD TABLE outbox_event"),
    },
    Break {
        sql: "ALTER TABLE outbox_event RENAME payload TO body",
        words: &["no column payload", "--column FIELD=COLUMN"],
        mend: Some("ALTER TABLE outbox_event RENAME body TO payload"),
    },
    Break {
        sql: "ALTER TABLE outbox_event RENAME TO elsewhere",
        words: &["table outbox_event", "does not exist", "--table"],
        mend: Some("ALTER TABLE elsewhere RENAME TO outbox_event"),
    },
    Break {
        sql: "SELECT pg_drop_replication_slot('$S')",
        words: &["missing", "tailpost postgres init"],
        mend: Some("SELECT pg_create_logical_replication_slot('$S', 'pgoutput')"),
    },
    Break {
        sql: "SELECT pg_drop_replication_slot('$S'), pg_create_physical_replication_slot('$S')",
        words: &["is physical", "--slot"],
        mend: Some(
            "SELECT pg_drop_replication_slot('$S'); SELECT pg_create_logical_replication_slot('$S', 'pgoutput')",
        ),
    },
];

/// The statements that `check` printed below its faults, without the sentence that follows them.
fn statements(report: &str) -> Vec<String> {
    let mut lines = report.lines().peekable();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        let mend = lines
            .peek()
            .and_then(|next| next.trim_start().strip_prefix("-> "));
        if let (true, Some(mend)) = (line.starts_with("fault"), mend) {
            let end = ["; what was written", "; that does not show"]
                .iter()
                .find_map(|after| mend.find(after))
                .unwrap_or(mend.len());
            found.push(mend[..end].to_owned());
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn check_finds_each_fault_with_status_1_and_the_statement_it_prints_mends_it() -> Result<()> {
    let scene = prepared().await?;
    let broker = scene.vhost.url();
    let args = ["--broker", &broker];
    let fine = scene.verb("check", &args).await?;
    assert_code(
        &fine,
        0,
        &[
            "max_slot_wal_keep_size",
            "unlimited",
            "exchange \"events\" exists",
            "0 to mend",
        ],
    )?;
    for Break { sql, words, mend } in BREAKS {
        let fill = |sql: &str| sql.replace("$P", &scene.slot).replace("$S", &scene.slot);
        for sql in fill(sql).split("; ") {
            scene.database.execute(sql).await?;
        }
        let report = scene.verb("check", &args).await?;
        assert_code(&report, 1, words).with_context(|| sql)?;
        let printed = statements(&report.stdout);
        ensure!(!printed.is_empty(), "no remedy for {sql}: {}", report.stdout);
        let mends = match mend {
            Some(mend) => fill(mend).split("; ").map(str::to_owned).collect(),
            None => printed,
        };
        for mend in &mends {
            scene.database.execute(mend).await?;
        }
        let mended = scene.verb("check", &args).await?;
        assert_code(&mended, 0, &["0 to mend"])
            .with_context(|| format!("{sql} was not mended by {mends:?}"))?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn check_reports_several_faults_at_once_and_looks_at_the_broker_too() -> Result<()> {
    let scene = prepared().await?;
    scene
        .database
        .execute(&format!(
            "ALTER PUBLICATION {} SET (publish = 'delete'); ALTER TABLE outbox_event DROP event_type",
            scene.slot
        ))
        .await?;
    let broker = scene.vhost.url();
    let report = scene
        .verb("check", &["--broker", &broker, "--exchange", "nowhere"])
        .await?;
    let words = [
        "does not publish inserts",
        "no column event_type",
        "exchange \"nowhere\" does not exist",
        "3 to mend",
    ];
    assert_code(&report, 1, &words)?;
    let report = scene
        .verb("check", &["--broker", "amqp://guest:guest@127.0.0.1:1/x"])
        .await?;
    assert_code(&report, 1, &["broker", "could not connect"])
}

/// It is no fault: rows written before the column was added go out without the header. But it may be a slip.
#[tokio::test(flavor = "multi_thread")]
async fn check_tells_of_a_header_whose_column_no_table_has() -> Result<()> {
    let scene = prepared().await?;
    let report = scene.verb("check", &["--header", "tenant=tenannt"]).await?;
    assert_code(&report, 0, &["tenannt", "0 to mend"])
}
