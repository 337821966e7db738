//! What tells one log from another, and whether a position of one lies on the other: a promoted server goes on under a new
//! timeline from where it had got to, and uses the places after that again for other transactions.

use std::sync::{Arc, Mutex, PoisonError};

use tailpost_database::postgres::{SqlSession, Url};
use tailpost_pgoutput::Lsn;

use crate::PgError;
use crate::session::{Session, within};

/// What tells one log from another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The cluster's system identifier.
    pub system_id: String,
    /// The timeline; a promotion begins a new one.
    pub timeline: u32,
    /// The database.
    pub database: String,
}

impl Identity {
    /// Asks the server that a stream would be opened on, over sessions of its own.
    ///
    /// # Errors
    /// No session.
    pub async fn read(url: &Url, application_name: &str) -> Result<Self, PgError> {
        // Only an SQL session looks at target_session_attrs.
        let sql = SqlSession::connect(url, application_name).await?;
        let mut session = Session::connect(url, Some(sql.host()), application_name).await?;
        Ok(within("identify itself", identify(&mut session)).await?.0)
    }
}

/// The log that the positions at hand are of. Shared by a source, which learns of promotions, and an offset file, which
/// remembers it over restarts. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct KnownIdentity(Arc<Mutex<Option<Identity>>>);

impl KnownIdentity {
    /// What is known; `None` before anything was read.
    pub fn get(&self) -> Option<Identity> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Notes whose the positions are from now on.
    pub fn set(&self, identity: Identity) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(identity);
    }
}

/// `IDENTIFY_SYSTEM`: who the server is, and the end of its log.
pub(crate) async fn identify(session: &mut Session) -> Result<(Identity, Lsn), PgError> {
    let rows = session.simple_query("IDENTIFY_SYSTEM").await?;
    let odd = || PgError::Protocol("IDENTIFY_SYSTEM gave an answer that is not understood".into());
    let [row] = rows.as_slice() else { return Err(odd()) };
    let [Some(system_id), Some(timeline), Some(end), Some(database)] = row.as_slice() else {
        return Err(odd());
    };
    let identity = Identity {
        system_id: system_id.clone(),
        timeline: timeline.parse().map_err(|_| odd())?,
        database: database.clone(),
    };
    Ok((identity, end.parse().map_err(|_| odd())?))
}

/// Judges whether `resume`, a position of the log `before`, lies on the log of the server that is `now`.
///
/// # Errors
/// [`PgError::IdentityChanged`] for another cluster, database or branch; [`PgError::BeyondEnd`] where the server left the
/// old timeline before `resume`: what follows there is something else.
pub(crate) async fn judge(
    session: &mut Session,
    before: &Identity,
    now: &Identity,
    resume: Option<Lsn>,
) -> Result<(), PgError> {
    same("system identifier", &before.system_id, &now.system_id)?;
    same("database", &before.database, &now.database)?;
    if before.timeline == now.timeline {
        return Ok(());
    }
    let history = if now.timeline > before.timeline {
        within("send its timeline's history", history(session, now.timeline)).await?
    } else {
        String::new()
    };
    match (switch_point(&history, before.timeline), resume) {
        (None, _) => same(
            "timeline",
            &before.timeline.to_string(),
            &now.timeline.to_string(),
        ),
        (Some(end), Some(stored)) if stored > end => Err(PgError::BeyondEnd { stored, end }),
        (Some(switch), _) => {
            let (before, now) = (before.timeline, now.timeline);
            tracing::warn!(before, now, %switch, "the server is on another timeline: a standby was promoted");
            Ok(())
        }
    }
}

fn same(what: &'static str, before: &str, now: &str) -> Result<(), PgError> {
    if before == now {
        return Ok(());
    }
    Err(PgError::IdentityChanged {
        what,
        before: before.into(),
        now: now.into(),
    })
}

/// `TIMELINE_HISTORY`: the text of the timeline's history file.
async fn history(session: &mut Session, timeline: u32) -> Result<String, PgError> {
    let rows = session
        .simple_query(&format!("TIMELINE_HISTORY {timeline}"))
        .await?;
    let content = rows
        .into_iter()
        .next()
        .and_then(|row| row.into_iter().nth(1))
        .flatten();
    content.ok_or_else(|| PgError::Protocol("TIMELINE_HISTORY gave an answer that is not understood".into()))
}

/// Where the history leaves `timeline`: its lines are `TIMELINE <tab> LSN <tab> REASON`, comments begin with `#`
/// (PostgreSQL manual, "Continuous Archiving", Timelines).
fn switch_point(history: &str, timeline: u32) -> Option<Lsn> {
    history.lines().find_map(|line| {
        let mut fields = line.split('\t');
        let found = fields.next()?.trim().parse::<u32>().ok()? == timeline;
        let end = fields.next()?.trim().parse().ok()?;
        found.then_some(end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_says_where_each_timeline_was_left() {
        let history = "# made at promotion\n1\t0/1531E08\tno recovery target specified\n\n2\t0/2000000\tx\n";
        assert_eq!(switch_point(history, 1), Some(Lsn(0x153_1E08)));
        assert_eq!(switch_point(history, 2), Some(Lsn(0x200_0000)));
        assert_eq!(switch_point(history, 3), None);
        assert_eq!(switch_point("garbage\n1\tx\n", 1), None);
    }
}
