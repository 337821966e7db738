//! `tailpost postgres VERB`.

mod check;
mod drop;
mod init;
mod offset;
mod peek;
mod run;

use std::io::{self, IsTerminal, Write};

use tailpost_database::postgres::SqlSession;
use tailpost_postgres::{PgConfig, PgError};
use tailpost_relay::{Disposition, Failure};

use crate::args::PostgresVerb;
use crate::config::Faults;
use crate::exit::Exit;

/// How a verb failed.
pub(crate) enum Error {
    /// The command line or the environment is wrong.
    Usage(Faults),
    /// The rest.
    Failure(Failure),
    /// Standard output cannot be written.
    Output(io::Error),
}

impl From<Faults> for Error {
    fn from(faults: Faults) -> Self {
        Self::Usage(faults)
    }
}

/// `run` waits for whoever holds the position; the other verbs end, and say what frees it.
impl From<Failure> for Error {
    fn from(mut failure: Failure) -> Self {
        if let (Disposition::Standby { .. }, None) = (&failure.disposition, &failure.hint) {
            failure.hint = Some("stop the relay first".into());
        }
        Self::Failure(failure)
    }
}

impl From<PgError> for Error {
    fn from(error: PgError) -> Self {
        Failure::from(error).into()
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

/// Runs the verb. `faults` are those of the environment, reported with the command line's own.
pub(crate) async fn execute(verb: PostgresVerb, faults: Faults) -> Result<Exit, Error> {
    match verb {
        PostgresVerb::Run(command) => Box::pin(run::execute(command, faults)).await,
        PostgresVerb::Init(command) => Box::pin(init::execute(command, faults)).await,
        PostgresVerb::Check(command) => check::execute(command, faults).await,
        PostgresVerb::Peek(command) => peek::execute(command, faults).await,
        PostgresVerb::Offset(command) => offset::execute(command, faults).await,
        PostgresVerb::Drop(command) => drop::execute(command, faults).await,
        PostgresVerb::Schema(args) => {
            faults.judge(Some(()))?;
            let table = args.table.parse();
            let mut faults = Faults::default();
            let table = faults.take("--table", table);
            print(&tailpost_postgres::schema::statements(&faults.judge(table)?))?;
            Ok(Exit::Done)
        }
    }
}

async fn sql(config: &PgConfig) -> Result<SqlSession, PgError> {
    Ok(SqlSession::connect(&config.url, &config.application_name).await?)
}

/// Writes to standard output.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Asks on the terminal. Without one it is the command line that is wrong: it lacks the yes.
fn agrees(question: &str) -> Result<bool, Error> {
    if !io::stdin().is_terminal() {
        let fault = format!("{question} There is no terminal to ask on; add --yes to agree");
        return Err(Faults::new(vec![fault]).into());
    }
    print(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    // An answer that cannot be read is a no.
    let read = io::stdin().read_line(&mut answer).is_ok();
    Ok(read && matches!(answer.trim(), "y" | "Y" | "yes"))
}
