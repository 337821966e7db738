//! `tailpost postgres offset show|set`.

use std::path::Path;

use tailpost_offsets::{OffsetError, Record, inspect, set, take_previous};
use tailpost_pgoutput::Lsn;
use tailpost_postgres::args::OffsetSetArgs;
use tailpost_postgres::{Identity, PgConfig, offset};
use tailpost_relay::Failure;

use super::{Error, agrees, print, sql};
use crate::args::OffsetCommand;
use crate::config::{self, Faults, OffsetsAt};
use crate::exit::Exit;
use crate::offsets::identity;

pub(super) async fn execute(command: OffsetCommand, mut faults: Faults) -> Result<Exit, Error> {
    let (flags, set) = match command {
        OffsetCommand::Show(flags) => (flags, None),
        OffsetCommand::Set { set, flags } => (flags, Some(set)),
    };
    config::start_logs(&flags.log, &mut faults);
    let source = config::source(&flags.source, &mut faults);
    let offsets = config::offsets(&flags.state, &mut faults);
    let to = set
        .as_ref()
        .and_then(|set| position(set, offsets.as_ref(), &mut faults));
    let (source, offsets) = faults.judge(source.zip(offsets))?;
    match (set, offsets) {
        (None, at) => show(&source, &at).await,
        (Some(args), OffsetsAt::Slot) => set_slot(&source, &args, to).await,
        (Some(args), OffsetsAt::File(path)) => set_file(&source, &path, &args, to).await,
    }
}

/// Where to move to; `None` is the previous generation of a file.
fn position(args: &OffsetSetArgs, offsets: Option<&OffsetsAt>, faults: &mut Faults) -> Option<Lsn> {
    if args.previous && offsets == Some(&OffsetsAt::Slot) {
        let error: Result<Lsn, _> = Err("a slot keeps no previous generation; give --offsets file:PATH");
        return faults.take("--previous", error);
    }
    faults.take("LSN", args.position.as_ref()?.parse())
}

async fn show(source: &PgConfig, at: &OffsetsAt) -> Result<Exit, Error> {
    let mut damaged = false;
    if let OffsetsAt::File(path) = at {
        let found = inspect(path);
        damaged = found.current.is_err();
        print(&format!(
            "file          {}\noffset        {}\nprevious      {}\n",
            path.display(),
            describe(found.current),
            describe(found.previous)
        ))?;
    }
    print(&offset::show(&sql(source).await?, source).await?.to_string())?;
    Ok(if damaged { Exit::Offsets } else { Exit::Done })
}

fn describe(found: Result<Option<Record>, OffsetError>) -> String {
    match found {
        Ok(Some(record)) => record.position,
        Ok(None) => "none: no such file".into(),
        Err(error) => {
            let failure = Failure::from(error);
            match &failure.hint {
                Some(hint) => format!("{failure}; {hint}"),
                None => failure.to_string(),
            }
        }
    }
}

/// The previous generation. The relay stores before it reports: what the slot has confirmed was in the damaged file, and
/// the server sends nothing before it again.
async fn previous(source: &PgConfig, path: &Path) -> Result<Result<Record, OffsetError>, Error> {
    let kept = match take_previous(path) {
        Ok(kept) => kept,
        Err(error) => return Ok(Err(error)),
    };
    let slot = offset::show(&sql(source).await?, source).await?.confirmed_flush;
    if kept.position.parse::<Lsn>().is_ok_and(|position| position < slot) {
        let server = Identity::read(&source.url, &source.application_name).await?;
        return Ok(set(path, identity(source, &server), &slot));
    }
    Ok(Ok(kept))
}

async fn set_slot(source: &PgConfig, args: &OffsetSetArgs, to: Option<Lsn>) -> Result<Exit, Error> {
    let Some(to) = to else { return Ok(Exit::Usage) };
    let session = sql(source).await?;
    let planned = offset::plan_set(&session, source, to).await?;
    if !args.yes && !agrees(&format!("{planned}. Move it?"))? {
        return Ok(Exit::Unexpected);
    }
    let now = offset::set(&session, &planned).await?;
    print(&format!("slot {} stands at {now}\n", source.slot))?;
    Ok(Exit::Done)
}

async fn set_file(
    source: &PgConfig,
    path: &Path,
    args: &OffsetSetArgs,
    to: Option<Lsn>,
) -> Result<Exit, Error> {
    let question = match to {
        Some(to) => format!(
            "Events at or before {to} that are not published yet never will be. Store it in {}?",
            path.display()
        ),
        None => format!(
            "Take the previous generation of {}, or the slot's position where that stands after it? At worst events are \
             repeated.",
            path.display()
        ),
    };
    if !args.yes && !agrees(&question)? {
        return Ok(Exit::Unexpected);
    }
    let record = match to {
        Some(to) => {
            let server = Identity::read(&source.url, &source.application_name).await?;
            set(path, identity(source, &server), &to)
        }
        None => previous(source, path).await?,
    };
    let record = record.map_err(Failure::from)?;
    print(&format!("{} holds {}\n", path.display(), record.position))?;
    Ok(Exit::Done)
}
