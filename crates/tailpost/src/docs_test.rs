//! `docs/configuration.md` against the command line itself: every flag is documented with its default, and nothing that is
//! documented is missing.

use std::collections::BTreeMap;

use clap::{Command, CommandFactory};

use crate::args::Cli;

/// Every flag with its default (empty where there is none).
fn flags(command: &Command, found: &mut BTreeMap<String, String>) {
    for argument in command
        .get_arguments()
        .filter(|argument| !argument.is_global_set())
    {
        let Some(long) = argument
            .get_long()
            .filter(|long| !["help", "version"].contains(long))
        else {
            continue;
        };
        let takes_value = argument.get_num_args().is_none_or(|range| range.takes_values());
        let default = argument
            .get_default_values()
            .iter()
            .map(|value| value.to_string_lossy().into_owned());
        let default = if takes_value {
            default.collect::<Vec<_>>().join(",")
        } else {
            String::new()
        };
        let want = format!("TAILPOST_{}", long.to_uppercase().replace('-', "_"));
        assert_eq!(
            argument.get_env().and_then(|name| name.to_str()),
            Some(want.as_str()),
            "--{long}"
        );
        found.insert(long.to_owned(), default);
    }
    command
        .get_subcommands()
        .for_each(|subcommand| flags(subcommand, found));
}

/// The documented flags with the text of their default.
fn documented() -> BTreeMap<String, String> {
    let page = include_str!("../../../docs/configuration.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `--"));
    rows.map(|row| {
        let flag: String = row
            .chars()
            .take_while(|c| c.is_ascii_lowercase() || *c == '-')
            .collect();
        let default = row
            .trim_end_matches('|')
            .rsplit('|')
            .next()
            .unwrap_or_default()
            .trim();
        (flag, default.to_owned())
    })
    .collect()
}

#[test]
fn every_flag_is_documented_with_its_default_and_no_other() {
    let mut real = BTreeMap::new();
    flags(&Cli::command(), &mut real);
    let documented = documented();
    assert_eq!(
        real.keys().collect::<Vec<_>>(),
        documented.keys().collect::<Vec<_>>()
    );
    for (flag, default) in real.iter().filter(|(_, default)| !default.is_empty()) {
        let text = &documented[flag];
        assert!(
            text.starts_with(&format!("`{default}`")),
            "--{flag}: the default is {default}, documented is {text}"
        );
    }
}

#[test]
fn the_command_line_is_sound() {
    Cli::command().debug_assert();
}
