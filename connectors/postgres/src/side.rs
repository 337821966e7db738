//! The SQL session beside a stream: catalog questions, lag, and the first to learn that the server wants to go.

use std::collections::HashMap;
use std::sync::Arc;

use tailpost_database::postgres::{ConnectError, HostLabel, SqlSession, Url};
use tailpost_outbox::ColumnKind;
use tokio::sync::Mutex;

use crate::catalog::{Field, row, rows};
use crate::{PgError, relations};

/// A session that is opened anew when it was lost, on the same server.
#[derive(Debug)]
pub(crate) struct Side {
    url: Url,
    application_name: String,
    host: HostLabel,
    session: Mutex<Option<Arc<SqlSession>>>,
}

impl Side {
    /// Takes over the session that the stream was opened with.
    pub(crate) fn new(url: Url, application_name: String, session: SqlSession) -> Self {
        let host = session.host().clone();
        Self {
            url,
            application_name,
            host,
            session: Mutex::new(Some(Arc::new(session))),
        }
    }

    /// Returns the session, opened anew if there is none. Cancel-safe.
    ///
    /// # Errors
    /// No session, or one of another server.
    pub(crate) async fn session(&self) -> Result<Arc<SqlSession>, PgError> {
        let mut session = self.session.lock().await;
        if let Some(session) = session.as_ref().filter(|session| !session.client().is_closed()) {
            return Ok(Arc::clone(session));
        }
        let fresh = SqlSession::connect(&self.url, &self.application_name).await?;
        let (old, new) = (&self.host, fresh.host());
        if (old.name(), old.port()) != (new.name(), new.port()) {
            return Err(PgError::TwoServers);
        }
        let fresh = Arc::new(fresh);
        *session = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Asks what types hold that are not built in; those that are gone are absent.
    ///
    /// # Errors
    /// The session's.
    pub(crate) async fn kinds(&self, oids: &[u32]) -> Result<HashMap<u32, ColumnKind>, PgError> {
        // A domain may lie over a domain.
        const TYPES: &str = "
            WITH RECURSIVE below(oid, at) AS (
              SELECT t.oid, t.oid FROM pg_catalog.pg_type t WHERE t.oid = ANY($1)
              UNION ALL
              SELECT b.oid, t.typbasetype FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.at WHERE t.typtype = 'd')
            SELECT b.oid, t.oid, t.typtype::text, t.typcategory::text
              FROM below b JOIN pg_catalog.pg_type t ON t.oid = b.at WHERE t.typtype <> 'd'";
        let session = self.session().await?;
        let mut kinds = HashMap::new();
        for row in rows(&session, TYPES, &[&oids]).await? {
            let (oid, base): (u32, u32) = (row.field(0)?, row.field(1)?);
            let (typtype, typcategory): (String, String) = (row.field(2)?, row.field(3)?);
            kinds.insert(oid, relations::user_kind(base, &typtype, &typcategory));
        }
        Ok(kinds)
    }

    /// Whether a relation still exists.
    ///
    /// # Errors
    /// The session's.
    pub(crate) async fn exists(&self, relation: u32) -> Result<bool, PgError> {
        const EXISTS: &str = "SELECT EXISTS (SELECT FROM pg_catalog.pg_class c WHERE c.oid = $1)";
        row(&*self.session().await?, EXISTS, &[&relation]).await?.field(0)
    }
}

/// Tells that the server takes no sessions because it goes, comes, or is gone: nothing that only busyness explains.
pub(crate) fn server_is_gone(error: &ConnectError) -> bool {
    use std::io::ErrorKind;
    match error {
        ConnectError::NotServing { .. } => true,
        ConnectError::Reach { source, .. } => {
            matches!(source.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
        }
        ConnectError::AllHosts(errors) => !errors.is_empty() && errors.iter().all(server_is_gone),
        _ => false,
    }
}
