//! `tailpost postgres schema`: the statements that make the outbox table. No connection is needed.

use crate::tables::TableName;

/// Returns the statements that make `table`, if it is not there. Running them again changes nothing.
pub fn statements(table: &TableName) -> String {
    tailpost_outbox::ddl::postgres(&table.to_sql())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_quoted_in_the_statements() {
        let table = TableName {
            schema: Some("My Schema".into()),
            name: "a\"b".into(),
        };
        assert!(statements(&table).contains(r#""My Schema"."a""b""#));
    }
}
