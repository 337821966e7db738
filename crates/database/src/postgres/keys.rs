//! Every key of libpq (manual, "Parameter Key Words"), and what becomes of it.

use std::cmp::Ordering;

/// A key that libpq knows.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// The environment variable that fills its gap (manual, "Environment Variables").
    pub(super) variable: Option<&'static str>,
    pub(super) treatment: Treatment,
}

#[derive(Debug)]
pub(super) enum Treatment {
    /// Read by `resolve.rs`.
    Honoured,
    /// Changes nothing for us.
    Ignored,
    /// Would change something that we cannot do: a fault, with the reason.
    Refused(&'static str),
}

use Treatment::{Honoured, Ignored, Refused};

const fn key(name: &'static str, variable: &'static str, treatment: Treatment) -> Key {
    let variable = if variable.is_empty() { None } else { Some(variable) };
    Key {
        name,
        variable,
        treatment,
    }
}

const NO_CRL: &str =
    "revocation lists are not checked; leave it out knowingly, or replace the certificate authority";
const NO_GSS: &str = "GSSAPI is not spoken";
const NO_OAUTH: &str = "OAuth is not spoken";
const NO_SCRAM_KEYS: &str = "give the password instead";

pub(super) static KEYS: &[Key] = &[
    key("host", "PGHOST", Honoured),
    key("hostaddr", "PGHOSTADDR", Honoured),
    key("port", "PGPORT", Honoured),
    key("dbname", "PGDATABASE", Honoured),
    key("user", "PGUSER", Honoured),
    key("password", "PGPASSWORD", Honoured),
    key("passfile", "PGPASSFILE", Honoured),
    key("service", "PGSERVICE", Honoured),
    key("servicefile", "PGSERVICEFILE", Honoured),
    key("require_auth", "PGREQUIREAUTH", Honoured),
    key("channel_binding", "PGCHANNELBINDING", Honoured),
    key("connect_timeout", "PGCONNECT_TIMEOUT", Honoured),
    key("client_encoding", "PGCLIENTENCODING", Honoured),
    key("options", "PGOPTIONS", Honoured),
    key("application_name", "PGAPPNAME", Honoured),
    key("fallback_application_name", "", Honoured),
    key("keepalives", "", Honoured),
    key("keepalives_idle", "", Honoured),
    key("keepalives_interval", "", Honoured),
    key("keepalives_count", "", Honoured),
    key("tcp_user_timeout", "", Honoured),
    key("target_session_attrs", "PGTARGETSESSIONATTRS", Honoured),
    key("load_balance_hosts", "PGLOADBALANCEHOSTS", Honoured),
    key("sslmode", "PGSSLMODE", Honoured),
    key("sslnegotiation", "PGSSLNEGOTIATION", Honoured),
    key("sslrootcert", "PGSSLROOTCERT", Honoured),
    key("sslcert", "PGSSLCERT", Honoured),
    key("sslkey", "PGSSLKEY", Honoured),
    key("sslcertmode", "PGSSLCERTMODE", Honoured),
    key("sslsni", "PGSSLSNI", Honoured),
    key("sslcompression", "PGSSLCOMPRESSION", Honoured),
    key("ssl_min_protocol_version", "PGSSLMINPROTOCOLVERSION", Honoured),
    key("ssl_max_protocol_version", "PGSSLMAXPROTOCOLVERSION", Honoured),
    key("gssencmode", "PGGSSENCMODE", Honoured),
    key("min_protocol_version", "PGMINPROTOCOLVERSION", Honoured),
    key("max_protocol_version", "PGMAXPROTOCOLVERSION", Ignored),
    key("krbsrvname", "PGKRBSRVNAME", Ignored),
    key("gsslib", "PGGSSLIB", Ignored),
    key("gssdelegation", "PGGSSDELEGATION", Ignored),
    key(
        "sslpassword",
        "",
        Refused("keys with a passphrase are not read; give a key file without one, mode 0600"),
    ),
    key("sslcrl", "PGSSLCRL", Refused(NO_CRL)),
    key("sslcrldir", "PGSSLCRLDIR", Refused(NO_CRL)),
    key(
        "sslkeylogfile",
        "",
        Refused("it would let others read the session"),
    ),
    key(
        "requirepeer",
        "PGREQUIREPEER",
        Refused("the server's operating system user is not checked"),
    ),
    key("requiressl", "PGREQUIRESSL", Refused("write sslmode=require")),
    key(
        "replication",
        "",
        Refused("Tailpost decides itself which of its sessions replicate"),
    ),
    key("gssapi", "", Refused(NO_GSS)),
    key("scram_client_key", "", Refused(NO_SCRAM_KEYS)),
    key("scram_server_key", "", Refused(NO_SCRAM_KEYS)),
    key("oauth_issuer", "", Refused(NO_OAUTH)),
    key("oauth_client_id", "", Refused(NO_OAUTH)),
    key("oauth_client_secret", "", Refused(NO_OAUTH)),
    key("oauth_scope", "", Refused(NO_OAUTH)),
];

/// Finds a key by its exact name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the known key that `name` resembles most, if it resembles any.
pub(super) fn nearest(name: &str) -> Option<&'static str> {
    let lower = name.to_ascii_lowercase().replace('-', "_");
    KEYS.iter()
        .map(|key| (key.name, strsim::jaro_winkler(&lower, key.name)))
        .filter(|(_, likeness)| *likeness > 0.8)
        .max_by(|(_, a), (_, b)| a.partial_cmp(b).unwrap_or(Ordering::Equal))
        .map(|(known, _)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_key_is_the_one_meant() {
        assert_eq!(nearest("ssl_mode"), Some("sslmode"));
        assert_eq!(nearest("sslMode"), Some("sslmode"));
        assert_eq!(nearest("ssl-root-cert"), Some("sslrootcert"));
        assert_eq!(nearest("connection_timeout"), Some("connect_timeout"));
        assert_eq!(nearest("zzz"), None);
    }

    #[test]
    fn no_key_is_listed_twice() {
        for (at, key) in KEYS.iter().enumerate() {
            assert!(
                KEYS.iter().skip(at + 1).all(|other| other.name != key.name),
                "{}",
                key.name
            );
        }
    }
}
