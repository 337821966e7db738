//! The session settings that decide what the text of a value looks like, and that warnings reach us.
//!
//! Sent at start-up they beat what is set for the database, the role and the server. They are read back, because a
//! connection pooler may drop them.
//!
//! Source: PostgreSQL manual, "Client Connection Defaults".

use postgres_protocol::message::backend::{Message, PARAMETER_STATUS_TAG};

use super::{Row, parse};
use crate::PgError;

/// Names and values. `client_min_messages` lets PostgreSQL 18's warning about a missing publication through.
pub(crate) const PINNED: [(&str, &str); 7] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "3"),
    ("bytea_output", "hex"),
    ("client_min_messages", "warning"),
];

/// The query that reads them back.
pub(crate) fn query() -> String {
    let names: Vec<String> = PINNED.iter().map(|(name, _)| format!("'{name}'")).collect();
    format!(
        "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN ({})",
        names.join(", ")
    )
}

/// Checks the answer to [`query`].
///
/// # Errors
/// The first setting that is not as pinned, or absent.
pub(crate) fn verify(rows: &[Row]) -> Result<(), PgError> {
    for (name, want) in PINNED {
        let got = rows.iter().find_map(|row| match row.as_slice() {
            [Some(found), Some(value)] if found.eq_ignore_ascii_case(name) => Some(value.as_str()),
            _ => None,
        });
        check(name, want, got.unwrap_or_default())?;
    }
    Ok(())
}

/// Checks a `ParameterStatus` inside the stream. Settings that are not pinned may change.
///
/// # Errors
/// A pinned setting is not as pinned any more.
pub(crate) fn verify_change(body: &[u8]) -> Result<(), PgError> {
    let bad = |error: std::io::Error| PgError::Protocol(error.to_string());
    let Message::ParameterStatus(status) = parse(PARAMETER_STATUS_TAG, body)? else {
        return Err(PgError::Protocol("parameter status that is none".into()));
    };
    let (name, value) = (status.name().map_err(bad)?, status.value().map_err(bad)?);
    match PINNED
        .iter()
        .find(|(pinned, _)| pinned.eq_ignore_ascii_case(name))
    {
        Some((pinned, want)) => check(pinned, want, value),
        None => Ok(()),
    }
}

/// `DateStyle` is shown with the order of day and month, which ISO output ignores: `ISO, MDY`.
fn check(name: &str, want: &str, got: &str) -> Result<(), PgError> {
    let main = if name == "DateStyle" {
        got.split(',').next().unwrap_or_default()
    } else {
        got
    };
    if main.eq_ignore_ascii_case(want) {
        return Ok(());
    }
    Err(PgError::Setting {
        name: name.into(),
        want: want.into(),
        got: got.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, value: &str) -> Row {
        vec![Some(name.into()), Some(value.into())]
    }

    fn as_pinned() -> Vec<Row> {
        PINNED.iter().map(|(name, value)| row(name, value)).collect()
    }

    #[test]
    fn settings_as_pinned_pass_whatever_the_order_of_day_and_month() {
        let mut rows = as_pinned();
        rows[1] = row("DateStyle", "ISO, DMY");
        assert!(verify(&rows).is_ok());
    }

    #[test]
    fn a_setting_that_is_changed_or_absent_halts_with_its_name() {
        for index in 0..PINNED.len() {
            let mut changed = as_pinned();
            changed[index] = row(PINNED[index].0, "other");
            let mut absent = as_pinned();
            absent.remove(index);
            for rows in [changed, absent] {
                let error = verify(&rows).expect_err("refused");
                assert!(error.to_string().contains(PINNED[index].0), "{error}");
            }
        }
    }

    #[test]
    fn a_pinned_setting_that_changes_inside_the_stream_halts() {
        assert!(verify_change(b"DateStyle\0ISO, YMD\0").is_ok());
        assert!(verify_change(b"in_hot_standby\0off\0").is_ok());
        assert!(matches!(
            verify_change(b"DateStyle\0German, DMY\0"),
            Err(PgError::Setting { .. })
        ));
        assert!(matches!(
            verify_change(b"client_encoding\0LATIN1\0"),
            Err(PgError::Setting { .. })
        ));
        assert!(matches!(verify_change(b"TimeZone"), Err(PgError::Protocol(_))));
    }
}
