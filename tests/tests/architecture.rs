//! The workspace's shape: who may depend on whom (edges), read from `cargo metadata`, and the size of files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// What each package may use of ours, tests apart. What is not listed may use nothing of ours.
const ALLOWED: &[(&str, &[&str])] = &[
    ("tailpost-relay", &["tailpost-outbox"]),
    ("tailpost-rabbitmq", &["tailpost-relay", "tailpost-outbox"]),
    (
        "tailpost-offsets",
        &["tailpost-relay", "tailpost-outbox", "tailpost-database"],
    ),
    ("tailpost-telemetry", &["tailpost-relay", "tailpost-outbox"]),
    ("tailpost-testkit", &["tailpost-relay", "tailpost-outbox"]),
    (
        "tailpost-postgres",
        &[
            "tailpost-relay",
            "tailpost-outbox",
            "tailpost-database",
            "tailpost-pgoutput",
        ],
    ),
];
/// These see everything.
const EVERYTHING: &[&str] = &["tailpost", "tailpost-tests"];
/// Client libraries that must not stand in these packages at all: a publish path without them must stay possible.
const DRIVERS: &[&str] = &["lapin", "tokio-postgres", "mysql_async"];
const DRIVER_FREE: &[&str] = &["tailpost-outbox", "tailpost-relay", "tailpost-pgoutput"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Every package of the workspace with its dependencies, development ones apart.
fn packages() -> Result<BTreeMap<String, BTreeSet<String>>> {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .context("cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().context("packages")?;
    packages.iter().map(package).collect()
}

fn package(package: &Value) -> Result<(String, BTreeSet<String>)> {
    let name = package["name"].as_str().context("name")?.to_owned();
    let dependencies = package["dependencies"].as_array().context("dependencies")?;
    let normal = dependencies
        .iter()
        .filter(|dependency| dependency["kind"].as_str() != Some("dev"));
    let names = normal
        .filter_map(|dependency| dependency["name"].as_str())
        .map(str::to_owned)
        .collect();
    Ok((name, names))
}

#[test]
fn packages_depend_along_the_allowed_edges_only() -> Result<()> {
    let packages = packages()?;
    ensure!(
        packages.len() >= 10,
        "{} packages are few: is this the workspace?",
        packages.len()
    );
    for (package, dependencies) in &packages {
        if EVERYTHING.contains(&package.as_str()) {
            continue;
        }
        let allowed = ALLOWED
            .iter()
            .find(|(name, _)| name == package)
            .map_or(&[][..], |(_, allowed)| allowed);
        for ours in dependencies.iter().filter(|name| packages.contains_key(*name)) {
            ensure!(
                allowed.contains(&ours.as_str()),
                "{package} must not depend on {ours}"
            );
        }
        for driver in DRIVERS {
            let free = DRIVER_FREE.contains(&package.as_str());
            ensure!(
                !(free && dependencies.contains(*driver)),
                "{package} must not know {driver}"
            );
        }
    }
    Ok(())
}

/// The longest file, in lines; tests and tables apart, which may be long.
const LINES_MAX: usize = 700;

#[test]
fn no_file_of_the_product_is_too_long_to_read() -> Result<()> {
    let files = Command::new("git")
        .args(["ls-files", "crates/*.rs", "connectors/*.rs"])
        .current_dir(root())
        .output()?;
    let files = String::from_utf8(files.stdout)?;
    let product = files
        .lines()
        .filter(|file| !file.contains("test") && !file.ends_with("args.rs"));
    let mut seen = 0;
    for file in product {
        seen += 1;
        let lines = std::fs::read_to_string(root().join(file))?.lines().count();
        ensure!(lines <= LINES_MAX, "{file} has {lines} lines; split it");
    }
    ensure!(seen > 50, "{seen} files are few: is this the workspace?");
    Ok(())
}

#[test]
fn there_is_one_tls_stack_with_one_provider() -> Result<()> {
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    for unwanted in ["aws-lc-rs", "openssl", "native-tls"] {
        ensure!(
            !lock.contains(&format!("name = \"{unwanted}\"")),
            "{unwanted} is in Cargo.lock"
        );
    }
    ensure!(
        lock.matches("name = \"rustls\"\n").count() == 1,
        "rustls must be there once"
    );
    Ok(())
}
