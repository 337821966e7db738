//! Where in a row the mapping finds what it needs: resolved by name once for each shape of a table.

use std::sync::Arc;

use crate::config::{Plan, TemplateKind};
use crate::label::escaped;
use crate::nearest::nearest;
use crate::{ColumnKind, Field, MapError, Preset, Table, Template};

/// Shapes remembered: partitions and tables in use at one time. Each costs a few hundred bytes, and a miss a few
/// microseconds.
const SHAPES: usize = 64;

/// Indexes into the values of a row.
#[derive(Debug)]
pub(crate) struct Layout {
    fields: [Option<usize>; Field::COUNT],
    /// One for each header of the plan; `None` where this table has no such column.
    pub(crate) headers: Vec<Option<usize>>,
    /// One for each placeholder, in order.
    pub(crate) exchange: Vec<usize>,
    /// One for each placeholder, in order.
    pub(crate) routing_key: Vec<usize>,
    /// The event's id.
    pub(crate) event_id: usize,
    /// The payload.
    pub(crate) payload: usize,
    /// Kind of the payload's column.
    pub(crate) payload_kind: ColumnKind,
}

impl Layout {
    /// Resolves the plan's names against a table. All that is missing is reported at once.
    pub(crate) fn resolve(plan: &Plan, table: &Table) -> Result<Self, MapError> {
        let mut missing = Missing {
            plan,
            table,
            wanted: Vec::new(),
        };
        let fields = Field::ALL.map(|field| {
            let column = plan.column(field)?;
            let found = find(table, column);
            if found.is_none() && plan.requires(field) {
                missing.wanted.push(Wanted::Field(field, column));
            }
            found
        });
        let exchange = missing.placeholders(&plan.exchange, TemplateKind::Exchange);
        let routing_key = missing.placeholders(&plan.routing_key, TemplateKind::RoutingKey);
        let headers: Vec<Option<usize>> = plan
            .headers
            .iter()
            .map(|header| find(table, &header.column))
            .collect();
        let at = |field: Field| fields[field as usize];
        let (Some(event_id), Some(payload), true) =
            (at(Field::EventId), at(Field::Payload), missing.wanted.is_empty())
        else {
            return Err(missing.error());
        };
        let texts = fields.iter().flatten().filter(|index| **index != payload);
        let texts = texts
            .chain(headers.iter().flatten())
            .chain(&exchange)
            .chain(&routing_key);
        refuse_bytes(table, texts)?;
        let payload_kind = table
            .columns
            .get(payload)
            .map_or(ColumnKind::Other, |column| column.kind);
        Ok(Self {
            fields,
            headers,
            exchange,
            routing_key,
            event_id,
            payload,
            payload_kind,
        })
    }

    /// Index of the field's column, if the table has it.
    pub(crate) fn field(&self, field: Field) -> Option<usize> {
        self.fields[field as usize]
    }
}

/// The layouts in use, the last used first. A table is held for as long as its layout, so that no other table can take
/// its address.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layouts(Vec<(Arc<Table>, Arc<Layout>)>);

impl Layouts {
    /// Returns the layout for `table`, resolving it the first time.
    pub(crate) fn of(&mut self, plan: &Plan, table: &Arc<Table>) -> Result<&Layout, MapError> {
        let found = self.0.iter().position(|(known, _)| Arc::ptr_eq(known, table));
        match found {
            Some(0) => {}
            Some(at) => {
                let entry = self.0.remove(at);
                self.0.insert(0, entry);
            }
            None => {
                let layout = Layout::resolve(plan, table)?;
                self.0.truncate(SHAPES - 1);
                self.0.insert(0, (Arc::clone(table), Arc::new(layout)));
            }
        }
        Ok(&self.0[0].1)
    }
}

/// The table's name in texts, `"public.outbox_event"`.
pub(crate) fn table_name(table: &Table) -> String {
    format!(
        "\"{}.{}\"",
        escaped(&table.schema, 100),
        escaped(&table.name, 100)
    )
}

/// The name of the column in texts, without quotes.
pub(crate) fn column_name(table: &Table, index: usize) -> String {
    table
        .columns
        .get(index)
        .map(|column| escaped(&column.name, 100))
        .unwrap_or_default()
}

fn find(table: &Table, name: &str) -> Option<usize> {
    table.columns.iter().position(|column| column.name == name)
}

/// Raw bytes have no one text: only a payload may be of bytes.
fn refuse_bytes<'a>(table: &Table, indexes: impl Iterator<Item = &'a usize>) -> Result<(), MapError> {
    for index in indexes {
        if table
            .columns
            .get(*index)
            .is_some_and(|column| column.kind == ColumnKind::Bytes)
        {
            let (name, table) = (column_name(table, *index), table_name(table));
            let what = format!("column \"{name}\" of table {table} holds raw bytes where text is needed");
            let hint = format!(
                "only the payload may be of bytes; name a text column in place of \"{name}\" \
                 (--column, --header, --exchange, --routing-key)"
            );
            return Err(MapError::Shape { what, hint });
        }
    }
    Ok(())
}

/// What a table should have and has not.
struct Missing<'a> {
    plan: &'a Plan,
    table: &'a Table,
    wanted: Vec<Wanted<'a>>,
}

enum Wanted<'a> {
    Field(Field, &'a str),
    Placeholder(TemplateKind, &'a str, &'a str),
}

impl<'a> Missing<'a> {
    fn placeholders(&mut self, template: &'a Template, kind: TemplateKind) -> Vec<usize> {
        let mut found = Vec::new();
        for name in template.placeholders() {
            let column = self.plan.placeholder_column(name);
            let named_already =
                |wanted: &Wanted<'_>| matches!(wanted, Wanted::Field(_, missing) if *missing == column);
            match find(self.table, column) {
                Some(index) => found.push(index),
                None if self.wanted.iter().any(named_already) => {}
                None => self.wanted.push(Wanted::Placeholder(kind, name, column)),
            }
        }
        found
    }

    fn error(&self) -> MapError {
        let (mut whats, mut hints) = (Vec::new(), Vec::new());
        for wanted in &self.wanted {
            match wanted {
                Wanted::Field(field, column) => {
                    whats.push(format!(
                        "no column \"{}\" for field {field}",
                        escaped(column, 100)
                    ));
                    let near = self.near(column, false);
                    hints.push(format!("name the column with --column {field}=COLUMN{near}"));
                }
                Wanted::Placeholder(kind, name, column) => {
                    whats.push(format!(
                        "no column \"{}\" for the {kind} template",
                        escaped(column, 100)
                    ));
                    let (flag, near) = (kind.flag(), self.near(name, true));
                    hints.push(format!("change {{{}}} in {flag}{near}", escaped(name, 100)));
                }
            }
        }
        if let Some(preset) = self.other_preset() {
            hints.insert(
                0,
                format!("the table is laid out as for --preset {preset}: use that"),
            );
        }
        let what = format!("table {} has {}", table_name(self.table), whats.join(", "));
        MapError::Shape {
            what,
            hint: hints.join("; "),
        }
    }

    /// Says which of the table's columns, or of the fields, is the nearest.
    fn near(&self, name: &str, fields: bool) -> String {
        let columns = self.table.columns.iter().map(|column| column.name.as_str());
        let known = Field::ALL.iter().filter(|_| fields).map(|field| field.name());
        let near = nearest(name, known.chain(columns));
        near.map(|near| format!(" (the nearest is \"{}\")", escaped(near, 100)))
            .unwrap_or_default()
    }

    /// The other preset, if the table has all the columns that it needs.
    fn other_preset(&self) -> Option<Preset> {
        let other = match self.plan.preset {
            Preset::Tailpost => Preset::Debezium,
            Preset::Debezium => Preset::Tailpost,
        };
        let mut needed = Field::ALL.into_iter().filter(|field| self.plan.requires(*field));
        let fits = needed.all(|field| {
            other
                .column(field)
                .is_some_and(|name| find(self.table, name).is_some())
        });
        fits.then_some(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Column, MappingConfig};

    fn table(columns: &[(&str, ColumnKind)]) -> Table {
        let column = |(name, kind): &(&str, ColumnKind)| Column {
            name: name.to_string(),
            kind: *kind,
        };
        let columns = columns.iter().map(column).collect();
        Table {
            schema: "public".into(),
            name: "outbox_event".into(),
            columns,
        }
    }

    fn standard(without: &[&str], with: &[&str]) -> Table {
        let needed = [
            "id",
            "event_id",
            "aggregate_type",
            "aggregate_id",
            "event_type",
            "payload",
        ];
        let kept = needed.iter().filter(|name| !without.contains(name)).chain(with);
        let columns: Vec<_> = kept.map(|name| (*name, ColumnKind::Text)).collect();
        table(&columns)
    }

    fn plan(change: impl FnOnce(&mut MappingConfig)) -> Plan {
        let mut config = MappingConfig::default();
        change(&mut config);
        Plan::new(config).expect("a sound configuration")
    }

    fn shape(plan: &Plan, table: &Table) -> (String, String) {
        match Layout::resolve(plan, table) {
            Err(MapError::Shape { what, hint }) => (what, hint),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn optional_columns_may_be_missing_and_are_found_where_they_are() {
        let layout = Layout::resolve(&plan(|_| {}), &standard(&[], &["headers"])).expect("a layout");
        assert_eq!(layout.field(Field::Headers), Some(6));
        assert_eq!(layout.field(Field::OccurredAt), None);
        assert_eq!((layout.event_id, layout.payload), (1, 5));
    }

    #[test]
    fn every_missing_column_is_named_with_its_flag_and_the_nearest() {
        let plan = plan(|config| {
            config.columns = vec!["trace_id=trace".parse().expect("a column")];
            config.routing_key = Template::parse("{agregate_type}.{event_type}.{region}").ok();
        });
        let (what, hint) = shape(
            &plan,
            &standard(&["event_id", "event_type"], &["eventId", "regions"]),
        );
        assert_eq!(
            what,
            "table \"public.outbox_event\" has no column \"event_id\" for field event_id, no column \"event_type\" for field \
             event_type, no column \"trace\" for field trace_id, no column \"agregate_type\" for the routing key template, \
             no column \"region\" for the routing key template"
        );
        assert!(
            hint.contains("--column event_id=COLUMN (the nearest is \"eventId\")"),
            "{hint}"
        );
        assert!(
            hint.contains("change {agregate_type} in --routing-key (the nearest is \"aggregate_type\")"),
            "{hint}"
        );
        assert!(
            hint.contains("change {region} in --routing-key (the nearest is \"regions\")"),
            "{hint}"
        );
    }

    #[test]
    fn a_table_of_the_other_preset_is_recognised() {
        let names = ["id", "aggregatetype", "aggregateid", "type", "payload"];
        let debezium = table(&names.map(|name| (name, ColumnKind::Text)));
        let (_, hint) = shape(&plan(|_| {}), &debezium);
        assert!(
            hint.starts_with("the table is laid out as for --preset debezium: use that"),
            "{hint}"
        );
        let (_, hint) = shape(
            &plan(|config| config.preset = Preset::Debezium),
            &standard(&[], &[]),
        );
        assert!(
            hint.starts_with("the table is laid out as for --preset tailpost: use that"),
            "{hint}"
        );
        let (_, hint) = shape(&plan(|_| {}), &standard(&["event_id"], &[]));
        assert!(!hint.contains("--preset"), "{hint}");
    }

    #[test]
    fn bytes_where_text_is_needed_do_not_fit_and_name_the_column() {
        let mut shaped = standard(&[], &["tenant"]);
        shaped.columns[5].kind = ColumnKind::Bytes;
        let with_header = plan(|config| config.headers = vec!["t=tenant".parse().expect("a header")]);
        assert!(Layout::resolve(&with_header, &shaped).is_ok());
        shaped.columns[6].kind = ColumnKind::Bytes;
        assert!(shape(&with_header, &shaped).0.contains("column \"tenant\""));
        assert!(Layout::resolve(&plan(|_| {}), &shaped).is_ok());
        shaped.columns[1].kind = ColumnKind::Bytes;
        let (what, hint) = shape(&plan(|_| {}), &shaped);
        assert_eq!(
            what,
            "column \"event_id\" of table \"public.outbox_event\" holds raw bytes where text is needed"
        );
        assert!(hint.contains("--column"), "{hint}");
    }

    #[test]
    fn a_name_that_is_a_field_and_a_column_means_the_field() {
        let plan = plan(|config| {
            config.columns = vec!["aggregate_type=kind".parse().expect("a column")];
            config.routing_key = Template::parse("{aggregate_type}.{created_at}").ok();
        });
        let layout = Layout::resolve(&plan, &standard(&[], &["kind", "created_at"])).expect("a layout");
        assert_eq!(layout.routing_key, [6, 7]);
    }

    #[test]
    fn layouts_are_resolved_once_for_each_shape_and_bounded() {
        let plan = plan(|_| {});
        let tables: Vec<Arc<Table>> = (0..100).map(|_| Arc::new(standard(&[], &[]))).collect();
        let mut layouts = Layouts::default();
        let first = std::ptr::from_ref(layouts.of(&plan, &tables[0]).expect("a layout"));
        layouts.of(&plan, &tables[1]).expect("a layout");
        assert_eq!(
            first,
            std::ptr::from_ref(layouts.of(&plan, &tables[0]).expect("a layout"))
        );
        for table in &tables {
            layouts.of(&plan, table).expect("a layout");
            layouts.of(&plan, &tables[0]).expect("a layout");
        }
        assert_eq!(layouts.0.len(), SHAPES);
        assert_eq!(
            first,
            std::ptr::from_ref(layouts.of(&plan, &tables[0]).expect("a layout"))
        );
        assert_eq!(Arc::strong_count(&tables[1]), 1, "the least used is given up");
    }

    #[test]
    fn a_table_of_another_shape_is_resolved_anew() {
        let plan = plan(|_| {});
        let mut layouts = Layouts::default();
        let before = layouts
            .of(&plan, &Arc::new(standard(&[], &[])))
            .expect("a layout")
            .payload;
        let after = layouts
            .of(&plan, &Arc::new(standard(&["id"], &[])))
            .expect("a layout")
            .payload;
        assert_eq!((before, after), (5, 4));
        assert!(layouts.of(&plan, &Arc::new(standard(&["payload"], &[]))).is_err());
        assert_eq!(layouts.0.len(), 2);
    }
}
