//! The text of a broker URL taken apart.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::percent_decode_str;

use crate::url::{BrokerUrl, Mechanism, Secret, TlsSettings};
use crate::url_fault::UrlFault;

const DEFAULT_CREDENTIAL: &str = "guest";
const DEFAULT_VHOST: &str = "/";
const PORT: u16 = 5672;
const TLS_PORT: u16 = 5671;
/// Finds a dead peer in 40 s (lapin waits for two intervals), before a confirm's deadline of 60 s.
const DEFAULT_HEARTBEAT_SECONDS: u16 = 20;
/// A virtual host is a short string.
const VHOST_MAX: usize = 255;

const KEYS: &[&str] = &[
    "cacertfile",
    "certfile",
    "keyfile",
    "verify",
    "server_name_indication",
    "auth_mechanism",
    "heartbeat",
    "connection_timeout",
    "channel_max",
];

/// Splits a list at its commas. A part without a scheme belongs to the one before: passwords may hold commas.
pub(crate) fn split(text: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for part in text.split(',') {
        match parts.last_mut() {
            Some(last) if !part.contains("://") => {
                last.push(',');
                last.push_str(part);
            }
            _ => parts.push(part.trim().to_owned()),
        }
    }
    parts
}

pub(crate) fn parse(text: &str) -> Result<BrokerUrl, Vec<UrlFault>> {
    let parts = Parts::of(text).map_err(|fault| vec![fault])?;
    let mut faults = Vec::new();
    let url = parts.parse(&mut faults);
    match url {
        Some(url) if faults.is_empty() => Ok(url),
        _ => Err(faults),
    }
}

/// A URL cut at its separators.
struct Parts<'a> {
    tls: bool,
    user: Option<&'a str>,
    password: Option<&'a str>,
    host: &'a str,
    port: Option<&'a str>,
    vhost: Option<&'a str>,
    query: &'a str,
}

impl<'a> Parts<'a> {
    /// Cuts. A separator in the wrong place is reported alone: what stands around it may be a piece of a password.
    fn of(text: &'a str) -> Result<Self, UrlFault> {
        let (scheme, rest) = text.split_once("://").ok_or(UrlFault::Scheme)?;
        let tls = match scheme.to_ascii_lowercase().as_str() {
            "amqp" => false,
            "amqps" => true,
            _ => return Err(UrlFault::Scheme),
        };
        if rest.contains('#') {
            return Err(UrlFault::Stray('#'));
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, rest) = rest.split_at(end);
        if rest.contains('@') {
            return Err(UrlFault::Stray('@'));
        }
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let vhost = path.strip_prefix('/');
        if vhost.is_some_and(|vhost| vhost.contains('/')) {
            return Err(UrlFault::Stray('/'));
        }
        let (userinfo, host) = authority
            .rsplit_once('@')
            .map_or((None, authority), |(user, host)| (Some(user), host));
        let (user, password) = userinfo.map_or((None, None), |userinfo| match userinfo.split_once(':') {
            Some((user, password)) => (Some(user), Some(password)),
            None => (Some(userinfo), None),
        });
        let (host, port) = cut_port(host);
        Ok(Self {
            tls,
            user,
            password,
            host,
            port,
            vhost,
            query,
        })
    }

    fn parse(&self, faults: &mut Vec<UrlFault>) -> Option<BrokerUrl> {
        let user = self.text("user name", self.user, DEFAULT_CREDENTIAL, faults);
        let password = self.text("password", self.password, DEFAULT_CREDENTIAL, faults);
        let vhost = self.text("virtual host", self.vhost, DEFAULT_VHOST, faults);
        if vhost.as_ref().is_some_and(|vhost| vhost.len() > VHOST_MAX) {
            faults.push(UrlFault::VhostTooLong);
        }
        let host = host(self.host).map_err(|fault| faults.push(fault)).ok();
        let port = self.port(faults);
        let query = Query::parse(self.query, self.tls, faults);
        Some(BrokerUrl {
            tls: self.tls.then_some(query.tls),
            host: host?,
            port: port?,
            user: user?,
            password: Secret::new(password?),
            password_given: self.password.is_some(),
            vhost: vhost?,
            mechanisms: query.mechanisms,
            heartbeat: query.heartbeat,
            connection_timeout: query.connection_timeout,
            channel_max: query.channel_max,
        })
    }

    fn text(
        &self,
        part: &'static str,
        raw: Option<&str>,
        default: &str,
        faults: &mut Vec<UrlFault>,
    ) -> Option<String> {
        let decoded = raw.map_or(Some(default.to_owned()), decode);
        if decoded.is_none() {
            faults.push(UrlFault::Encoding(part));
        }
        decoded
    }

    fn port(&self, faults: &mut Vec<UrlFault>) -> Option<u16> {
        let port = match self.port {
            None | Some("") => Some(if self.tls { TLS_PORT } else { PORT }),
            Some(port) => number(port).filter(|&port| port > 0),
        };
        if port.is_none() {
            faults.push(UrlFault::Port);
        }
        port
    }
}

/// Cuts `host:port` and `[address]:port`.
fn cut_port(text: &str) -> (&str, Option<&str>) {
    match text.rfind(']') {
        Some(end) => match text[end + 1..].strip_prefix(':') {
            Some(port) => (&text[..=end], Some(port)),
            None => (text, None),
        },
        None if text.starts_with('[') => (text, None),
        None => text
            .split_once(':')
            .map_or((text, None), |(host, port)| (host, Some(port))),
    }
}

fn host(text: &str) -> Result<String, UrlFault> {
    if text.is_empty() {
        return Err(UrlFault::NoHost);
    }
    if let Some(address) = text.strip_prefix('[') {
        let address = address
            .strip_suffix(']')
            .and_then(|address| address.parse::<Ipv6Addr>().ok());
        return address.map(|address| address.to_string()).ok_or(UrlFault::Host);
    }
    let fits = text
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_'));
    if fits {
        Ok(text.to_owned())
    } else {
        Err(UrlFault::Host)
    }
}

/// The keys after `?`.
struct Query {
    tls: TlsSettings,
    mechanisms: Vec<Mechanism>,
    heartbeat: u16,
    connection_timeout: Option<Duration>,
    channel_max: u16,
}

impl Query {
    fn parse(text: &str, tls: bool, faults: &mut Vec<UrlFault>) -> Self {
        let mut values = Values::read(text, faults);
        if !tls {
            let useless = [
                "cacertfile",
                "certfile",
                "keyfile",
                "verify",
                "server_name_indication",
            ];
            faults.extend(
                useless
                    .into_iter()
                    .filter(|key| values.has(key))
                    .map(UrlFault::NeedsTls),
            );
        }
        let identity = values.identity(faults);
        let mechanisms = values.mechanisms(faults);
        if mechanisms.contains(&Mechanism::External) && !(tls && identity.is_some()) {
            faults.push(UrlFault::ExternalWithoutCertificate);
        }
        let seconds = values.number("heartbeat", "whole seconds from 0 to 65535", faults);
        let millis = values.number("connection_timeout", "whole milliseconds", faults);
        let channel_max = values.number("channel_max", "a number from 0 to 65535", faults);
        Self {
            tls: TlsSettings {
                cacertfile: values.take("cacertfile").map(PathBuf::from),
                identity,
                verify_peer: values.verify_peer(faults),
                server_name: values.take("server_name_indication"),
            },
            mechanisms,
            heartbeat: seconds.unwrap_or(DEFAULT_HEARTBEAT_SECONDS),
            connection_timeout: millis.map(Duration::from_millis),
            channel_max: channel_max.unwrap_or_default(),
        }
    }
}

/// Keys and decoded values, as they stood.
struct Values(Vec<(&'static str, String)>);

impl Values {
    fn read(text: &str, faults: &mut Vec<UrlFault>) -> Self {
        let mut values: Vec<(&'static str, String)> = Vec::new();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(&key) = KEYS.iter().find(|key| **key == name) else {
                let word = name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
                let key = if word && name.len() <= 40 { name } else { "?" };
                faults.push(UrlFault::UnknownKey {
                    key: key.to_owned(),
                    known: KEYS,
                });
                continue;
            };
            if key != "auth_mechanism" && values.iter().any(|(given, _)| *given == key) {
                faults.push(UrlFault::Repeated(key));
            }
            match decode(value) {
                Some(value) if !value.is_empty() => values.push((key, value)),
                Some(_) => faults.push(UrlFault::Value {
                    key,
                    expected: "a value",
                }),
                None => faults.push(UrlFault::Encoding(key)),
            }
        }
        Self(values)
    }

    fn has(&self, key: &str) -> bool {
        self.0.iter().any(|(given, _)| *given == key)
    }

    fn take(&mut self, key: &str) -> Option<String> {
        let at = self.0.iter().position(|(given, _)| *given == key)?;
        Some(self.0.remove(at).1)
    }

    fn number<N: FromStr>(
        &mut self,
        key: &'static str,
        expected: &'static str,
        faults: &mut Vec<UrlFault>,
    ) -> Option<N> {
        let text = self.take(key)?;
        let number = number(&text);
        if number.is_none() {
            faults.push(UrlFault::Value { key, expected });
        }
        number
    }

    fn identity(&mut self, faults: &mut Vec<UrlFault>) -> Option<(PathBuf, PathBuf)> {
        match (self.take("certfile"), self.take("keyfile")) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (Some(_), None) | (None, Some(_)) => {
                faults.push(UrlFault::HalfIdentity);
                None
            }
        }
    }

    fn verify_peer(&mut self, faults: &mut Vec<UrlFault>) -> bool {
        match self.take("verify").as_deref() {
            None | Some("verify_peer") => true,
            Some("verify_none") => false,
            Some(_) => {
                faults.push(UrlFault::Value {
                    key: "verify",
                    expected: "verify_peer or verify_none",
                });
                true
            }
        }
    }

    fn mechanisms(&mut self, faults: &mut Vec<UrlFault>) -> Vec<Mechanism> {
        let mut mechanisms = Vec::new();
        while let Some(name) = self.take("auth_mechanism") {
            match name.to_ascii_lowercase().as_str() {
                "plain" => mechanisms.push(Mechanism::Plain),
                "external" => mechanisms.push(Mechanism::External),
                _ => faults.push(UrlFault::Value {
                    key: "auth_mechanism",
                    expected: "plain or external",
                }),
            }
        }
        if mechanisms.is_empty() {
            mechanisms.push(Mechanism::Plain);
        }
        mechanisms
    }
}

/// Digits only: `FromStr` would take a sign.
fn number<N: FromStr>(text: &str) -> Option<N> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

/// Decodes `%XX`; `None` where a percent sign stands alone or the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut rest = text.split('%');
    rest.next();
    let whole = |after: &str| {
        after
            .as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    };
    rest.all(whole)
        .then(|| percent_decode_str(text).decode_utf8().ok().map(String::from))
        .flatten()
}
