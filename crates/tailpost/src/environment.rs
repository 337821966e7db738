//! The environment: a misspelt `TAILPOST_*` variable is an error, for a setting that is silently ignored is a trap.

use std::collections::BTreeSet;

use clap::Command;

/// Set by Kubernetes for a service named `tailpost`.
const NOT_OURS: [&str; 2] = ["TAILPOST_PORT", "TAILPOST_SERVICE_"];
/// How alike a known name must be to be suggested.
const ALIKE: f64 = 0.75;

/// Says what is wrong with the variables of the environment, given the commands that define the right ones.
pub(crate) fn faults(command: &Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let mut known = BTreeSet::new();
    collect(command, &mut known);
    names
        .filter(|name| name.starts_with("TAILPOST_") && !known.contains(name))
        .filter(|name| !NOT_OURS.iter().any(|prefix| name.starts_with(prefix)))
        .map(|name| describe(&name, &known))
        .collect()
}

fn collect(command: &Command, known: &mut BTreeSet<String>) {
    let own = command
        .get_arguments()
        .filter_map(|arg| arg.get_env())
        .filter_map(|name| name.to_str());
    known.extend(own.map(str::to_owned));
    for subcommand in command.get_subcommands() {
        collect(subcommand, known);
    }
}

fn describe(name: &str, known: &BTreeSet<String>) -> String {
    let nearest = known
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(likeness, _)| *likeness >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((_, candidate)) => format!("unknown environment variable {name}; did you mean {candidate}?"),
        None => format!("unknown environment variable {name}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn a_misspelt_variable_is_a_fault_that_names_the_nearest() {
        let command = Command::new("tailpost").subcommand(Command::new("run").args([
            Arg::new("source").env("TAILPOST_SOURCE"),
            Arg::new("slot").env("TAILPOST_SLOT"),
        ]));
        let names = [
            "TAILPOST_SUORCE",
            "TAILPOST_SLOT",
            "TAILPOST_SERVICE_HOST",
            "TAILPOST_PORT_9464_TCP",
            "PATH",
            "TAILPOST_Q",
        ];
        let faults = faults(&command, names.into_iter().map(str::to_owned));
        assert_eq!(faults.len(), 2, "{faults:?}");
        assert!(
            faults[0].contains("TAILPOST_SUORCE") && faults[0].ends_with("did you mean TAILPOST_SOURCE?"),
            "{faults:?}"
        );
    }
}
