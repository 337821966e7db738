//! The outbox table's definition.

/// Returns the statement that creates the outbox table in PostgreSQL 13 or newer, if it is not there. `table` is its name as
/// SQL, quoted by the caller: `"public"."outbox_event"`.
pub fn postgres(table: &str) -> String {
    include_str!("../ddl/postgres.sql").replace("{table}", table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Field, Preset};

    #[test]
    fn the_table_has_a_column_for_every_field_of_the_preset() {
        let sql = postgres("\"sales\".\"outbox_event\"");
        assert!(
            sql.contains("CREATE TABLE IF NOT EXISTS \"sales\".\"outbox_event\" ("),
            "{sql}"
        );
        assert!(!sql.contains('{'), "{sql}");
        for field in Field::ALL {
            let column = Preset::Tailpost.column(field).expect("the preset has all fields");
            assert!(
                sql.lines()
                    .any(|line| line.trim_start().starts_with(&format!("{column} "))),
                "{column}"
            );
        }
    }
}
