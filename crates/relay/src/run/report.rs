//! How failures are shown: in the log, once, and in [`Progress`].

use crate::core::Poison;
use crate::{Cause, Disposition, Failure, Link, Progress};
use tailpost_outbox::MapError;

pub(crate) fn describe(failure: &Failure) -> String {
    match &failure.hint {
        Some(hint) => format!("{failure} ({hint})"),
        None => failure.to_string(),
    }
}

pub(crate) fn show_halt(progress: &Progress, failure: &Failure) {
    tracing::error!(error = %failure, hint = %failure.hint.as_deref().unwrap_or_default(), "halted: the position is kept");
    progress.update(|state| state.halted = Some(describe(failure)));
}

pub(crate) fn show_source_failure(progress: &Progress, failure: &Failure) {
    let link = match &failure.disposition {
        Disposition::Standby { holder } => Link::Standby {
            holder: holder.clone(),
        },
        _ => Link::Retrying {
            why: describe(failure),
        },
    };
    let mut changed = false;
    progress.update(|state| {
        changed = state.source != link;
        state.source = link.clone();
    });
    match link {
        // Said once, not at every try.
        Link::Standby { holder } if changed => {
            tracing::info!(%holder, "standing by: somebody else holds the lock")
        }
        Link::Retrying { .. } if changed => {
            let hint = tracing::field::display(failure.hint.as_deref().unwrap_or_default());
            tracing::warn!(error = %failure, hint, "no source; trying again");
        }
        Link::Starting | Link::Connected | Link::Standby { .. } | Link::Retrying { .. } => {}
    }
}

pub(crate) fn poison_failure(poison: Poison) -> Failure {
    Failure::new(poison.what, Disposition::Halt(Cause::Poison))
        .with_hint("the position stands before it; mend or remove what makes it impossible, then start again")
}

pub(crate) fn map_failure(error: MapError) -> Failure {
    match error {
        MapError::Poison { what } => poison_failure(Poison { what }),
        MapError::Shape { what, hint } => Failure::new(what, Disposition::Halt(Cause::Setup)).with_hint(hint),
    }
}
