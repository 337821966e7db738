//! From the values of all keys to a [`Url`]: every value is checked, every fault is noted.

use std::path::PathBuf;
use std::time::Duration;

use super::fault::UrlFault;
use super::hosts;
use super::settings::{
    AuthMethod, ChannelBinding, Keepalive, RequireAuth, SslMode, SslNegotiation, TargetSession,
};
use super::url::Url;
use super::values::Values;
use crate::tls::{ClientTls, Identity, Roots, Verify};
use crate::{Environment, Secret};

/// Tried by default before an address is given up; libpq would wait for as long as the system does.
const CONNECT_TIMEOUT_DEFAULT: Duration = Duration::from_secs(10);
/// Default for `TCP_USER_TIMEOUT`: as long as the default keepalives take to find a peer dead.
const USER_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

pub(super) fn resolve(text: &str, environment: &dyn Environment) -> Result<Url, Vec<UrlFault>> {
    let mut values = Values::collect(text, environment)?;
    refuse_what_is_not_spoken(&mut values);
    let ssl_mode_given = values.text("sslmode").is_some();
    let (ssl_mode, tls) = tls(&mut values, environment);
    let user = user(&mut values, environment);
    let url = Url {
        hosts: hosts::hosts(&mut values, &environment.socket_folder()),
        database: values.text("dbname").unwrap_or(&user).to_owned(),
        user,
        password: values.text("password").map(Secret::from),
        password_file: None,
        passfile: values
            .path("passfile")
            .or_else(|| environment.home().map(|home| home.join(".pgpass"))),
        ssl_mode,
        ssl_mode_given,
        ssl_negotiation: ssl_negotiation(&mut values, ssl_mode),
        tls,
        channel_binding: channel_binding(&mut values, ssl_mode),
        require_auth: require_auth(&mut values),
        target_session: target_session(&mut values),
        load_balance: values
            .choice("load_balance_hosts", &[("disable", false), ("random", true)])
            .unwrap_or(false),
        connect_timeout: connect_timeout(&mut values),
        keepalive: keepalive(&mut values),
        application_name: application_name(&values),
        options: values.text("options").map(str::to_owned),
    };
    if values.faults.is_empty() {
        Ok(url)
    } else {
        Err(values.faults)
    }
}

fn user(values: &mut Values, environment: &dyn Environment) -> String {
    if let Some(user) = values.text("user") {
        return user.to_owned();
    }
    environment.user().unwrap_or_else(|| {
        values.faults.push(UrlFault::NoUser);
        String::new()
    })
}

fn application_name(values: &Values) -> Option<String> {
    values
        .text("application_name")
        .or_else(|| values.text("fallback_application_name"))
        .map(str::to_owned)
}

/// Keys that are honoured by being what we do anyway.
fn refuse_what_is_not_spoken(values: &mut Values) {
    if let Some(encoding) = values.text("client_encoding") {
        let plain = encoding.to_ascii_lowercase().replace(['-', '_'], "");
        if !matches!(plain.as_str(), "utf8" | "unicode" | "auto") {
            values.fault("client_encoding", "must be UTF8 or auto");
        }
    }
    // Each list names what libpq takes and we can do.
    values.choice("gssencmode", &[("disable", ()), ("prefer", ())]);
    values.choice("sslcompression", &[("0", ())]);
    values.choice("min_protocol_version", &[("3.0", ())]);
    values.choice("ssl_max_protocol_version", &[("TLSv1.3", ())]);
}

fn tls(values: &mut Values, environment: &dyn Environment) -> (SslMode, ClientTls) {
    let modes = [
        ("disable", SslMode::Disable),
        ("allow", SslMode::Allow),
        ("prefer", SslMode::Prefer),
        ("require", SslMode::Require),
        ("verify-ca", SslMode::VerifyCa),
        ("verify-full", SslMode::VerifyFull),
    ];
    let system = values.text("sslrootcert") == Some("system");
    // The system's roots vouch for any name, so they are of use only where the name is checked (as libpq rules).
    let default = if system {
        SslMode::VerifyFull
    } else {
        SslMode::Prefer
    };
    let mode = values.choice("sslmode", &modes).unwrap_or(default);
    if system && mode != SslMode::VerifyFull {
        values
            .faults
            .push(UrlFault::Together("sslrootcert=system needs sslmode=verify-full"));
    }
    let folder = environment.home().map(|home| home.join(".postgresql"));
    let roots = match values.path("sslrootcert") {
        Some(_) if system => Roots::System,
        Some(path) => Roots::File(path),
        None => folder.as_ref().map_or(Roots::Absent, |folder| {
            Roots::FileIfPresent(folder.join("root.crt"))
        }),
    };
    let versions = [
        ("TLSv1", false),
        ("TLSv1.1", false),
        ("TLSv1.2", false),
        ("TLSv1.3", true),
    ];
    let tls = ClientTls {
        verify: match mode {
            SslMode::VerifyFull => Verify::Name,
            SslMode::VerifyCa => Verify::Chain,
            SslMode::Disable | SslMode::Allow | SslMode::Prefer | SslMode::Require => Verify::ChainIfRoots,
        },
        roots,
        identity: identity(values, folder),
        sni: values
            .choice("sslsni", &[("1", true), ("0", false)])
            .unwrap_or(true),
        tls13_only: values
            .choice("ssl_min_protocol_version", &versions)
            .unwrap_or(false),
        alpn: None,
    };
    (mode, tls)
}

fn identity(values: &mut Values, folder: Option<PathBuf>) -> Option<Identity> {
    let modes = [("disable", false), ("allow", true), ("require", true)];
    if values.choice("sslcertmode", &modes) == Some(false) {
        return None;
    }
    let default = |name| folder.as_ref().map(|folder| folder.join(name));
    let given = values.path("sslcert");
    Some(Identity {
        required: given.is_some() || values.text("sslcertmode") == Some("require"),
        certificate: given.or_else(|| default("postgresql.crt"))?,
        key: values.path("sslkey").or_else(|| default("postgresql.key"))?,
    })
}

fn ssl_negotiation(values: &mut Values, mode: SslMode) -> SslNegotiation {
    let choices = [
        ("postgres", SslNegotiation::Postgres),
        ("direct", SslNegotiation::Direct),
    ];
    let negotiation = values
        .choice("sslnegotiation", &choices)
        .unwrap_or(SslNegotiation::Postgres);
    if negotiation == SslNegotiation::Direct && mode < SslMode::Require {
        let together = "sslnegotiation=direct needs sslmode=require, verify-ca or verify-full";
        values.faults.push(UrlFault::Together(together));
    }
    negotiation
}

fn channel_binding(values: &mut Values, mode: SslMode) -> ChannelBinding {
    let choices = [
        ("disable", ChannelBinding::Disable),
        ("prefer", ChannelBinding::Prefer),
        ("require", ChannelBinding::Require),
    ];
    let binding = values
        .choice("channel_binding", &choices)
        .unwrap_or(ChannelBinding::Prefer);
    if binding == ChannelBinding::Require && mode == SslMode::Disable {
        let together = "channel_binding=require needs TLS: sslmode=disable rules it out";
        values.faults.push(UrlFault::Together(together));
    }
    binding
}

fn target_session(values: &mut Values) -> TargetSession {
    let choices = [
        ("any", TargetSession::Any),
        ("read-write", TargetSession::ReadWrite),
        ("read-only", TargetSession::ReadOnly),
        ("primary", TargetSession::Primary),
        ("standby", TargetSession::Standby),
        ("prefer-standby", TargetSession::PreferStandby),
    ];
    values
        .choice("target_session_attrs", &choices)
        .unwrap_or(TargetSession::Any)
}

/// A list of methods, or a list of methods each with "!" before it (manual, `require_auth`).
fn require_auth(values: &mut Values) -> RequireAuth {
    let Some(list) = values.text("require_auth").map(str::to_owned) else {
        return RequireAuth::ALL;
    };
    let entries: Vec<&str> = list.split(',').map(str::trim).collect();
    let negative = entries.iter().filter(|entry| entry.starts_with('!')).count();
    if negative != 0 && negative != entries.len() {
        values.fault("require_auth", "mixes methods with and without \"!\"");
        return RequireAuth::NOTHING;
    }
    let mut auth = if negative == 0 {
        RequireAuth::NOTHING
    } else {
        RequireAuth::ALL
    };
    for entry in entries {
        let method = match entry.trim_start_matches('!') {
            "none" => AuthMethod::None,
            "password" => AuthMethod::Password,
            "md5" => AuthMethod::Md5,
            "scram-sha-256" => AuthMethod::ScramSha256,
            // Known to libpq, never acceptable to us, whatever the list says.
            "gss" | "sspi" | "oauth" => continue,
            _ => {
                values.fault(
                    "require_auth",
                    "names a method other than none, password, md5, scram-sha-256, gss, sspi, oauth",
                );
                return RequireAuth::NOTHING;
            }
        };
        auth.set(method, negative == 0);
    }
    if auth == RequireAuth::NOTHING {
        values.fault("require_auth", "leaves no method that Tailpost can use");
    }
    auth
}

/// `0` or less waits for ever, as in libpq.
fn connect_timeout(values: &mut Values) -> Option<Duration> {
    match values.number::<i32>("connect_timeout", i32::MIN..=i32::MAX) {
        None => Some(CONNECT_TIMEOUT_DEFAULT),
        Some(seconds) => u64::try_from(seconds)
            .ok()
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
    }
}

/// `0` takes the default: ours, which are shorter than the system's two hours.
fn keepalive(values: &mut Values) -> Keepalive {
    let mut seconds = |key, default: u32| {
        let given = values.number::<u32>(key, 0..=32_767).filter(|number| *number > 0);
        given.unwrap_or(default)
    };
    let idle = Duration::from_secs(seconds("keepalives_idle", 30).into());
    let interval = Duration::from_secs(seconds("keepalives_interval", 10).into());
    let count = seconds("keepalives_count", 3).min(127);
    let user_timeout = match values.number::<u32>("tcp_user_timeout", 0..=i32::MAX.unsigned_abs()) {
        None => Some(USER_TIMEOUT_DEFAULT),
        Some(0) => None,
        Some(millis) => Some(Duration::from_millis(millis.into())),
    };
    let enabled = values
        .choice("keepalives", &[("1", true), ("0", false)])
        .unwrap_or(true);
    Keepalive {
        enabled,
        idle,
        interval,
        count,
        user_timeout,
    }
}
