//! The binary: what was typed (`args`), what it means (`config`), and the verbs that build and run it.

mod args;
mod config;
#[cfg(test)]
mod docs_test;
mod environment;
mod exit;
mod offsets;
mod postgres;
mod secrets;
mod signals;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use tailpost_relay::Failure;
use tokio::runtime::Builder;

use args::{Cli, Connector};
use config::Faults;
use exit::Exit;
use postgres::Error;

/// Its settings are in `.cargo/config.toml`, its reason in the workspace's `Cargo.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    if let Err(error) = secrets::hide(std::env::args_os().skip(1).collect()) {
        return complain(
            &format!("error: could not hide the password of the command line: {error}"),
            Exit::Unexpected,
        );
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() {
                Exit::Usage
            } else {
                Exit::Done
            };
            // Help that cannot be printed has no better place to say so.
            drop(error.print());
            return exit.into();
        }
    };
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let faults = Faults::new(environment::faults(&Cli::command(), names));
    let runtime = match Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(4)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("error: could not start: {error}"), Exit::Unexpected),
    };
    let result = runtime.block_on(async {
        match cli.connector {
            Connector::Postgres(verb) => postgres::execute(*verb, faults).await,
        }
    });
    // What still runs (a name being looked up) is not waited for.
    runtime.shutdown_background();
    match result {
        Ok(exit) => exit.into(),
        Err(Error::Usage(faults)) => complain(
            &format!(
                "{faults}`tailpost postgres --help` lists the commands, `tailpost postgres COMMAND --help` its flags"
            ),
            Exit::Usage,
        ),
        Err(Error::Failure(failure)) => complain(&describe(&failure), Exit::of(&failure)),
        Err(Error::Output(error)) => complain(
            &format!("error: could not write the output: {error}"),
            Exit::Unexpected,
        ),
    }
}

fn describe(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("error: {failure}\nhint: {hint}"),
        None => format!("error: {failure}"),
    }
}

fn complain(text: &str, exit: Exit) -> ExitCode {
    // Without a standard error the exit status must do.
    drop(writeln!(std::io::stderr(), "{text}"));
    exit.into()
}
