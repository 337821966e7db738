//! What can go wrong with the broker, what the relay does about it, and how to mend it.
//!
//! Reply codes: AMQP 0-9-1 specification, section 1.3; what RabbitMQ means by them:
//! <https://www.rabbitmq.com/amqp-0-9-1-reference#constants>. Its reply texts name exchanges, virtual hosts and users,
//! never a payload.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lapin::ErrorKind;
use tailpost_outbox::headers;
use tailpost_relay::{Cause, Disposition, Failure};

/// An error of the broker's connection. [`From`] makes it the relay's [`Failure`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SinkError {
    /// TCP could not connect, or the name did not resolve.
    #[error("could not connect to the broker at {address}")]
    Unreachable {
        /// Host and port.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// It did not answer in time.
    #[error("the broker at {address} did not finish {stage} within {} ms", .after.as_millis())]
    TimedOut {
        /// Host and port.
        address: String,
        /// What was waited for.
        stage: &'static str,
        /// For how long.
        after: Duration,
    },
    /// The TLS handshake broke off.
    #[error("could not agree on TLS with the broker at {address}")]
    Handshake {
        /// Host and port.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// One side does not accept the other's certificate.
    #[error("the TLS certificates do not satisfy both sides ({address})")]
    Certificate {
        /// Host and port.
        address: String,
        /// Which side, and why.
        source: io::Error,
    },
    /// A certificate or key file.
    #[error("could not use the file \"{}\": {reason}", .path.display())]
    TlsFile {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// TLS cannot be set up as asked.
    #[error("cannot set up TLS: {0}")]
    TlsSetup(String),
    /// The password file.
    #[error("could not read the password file \"{}\"", .path.display())]
    PasswordFile {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// 403 at login.
    #[error("the broker refused the login of user \"{user}\": {text}")]
    Login {
        /// Who.
        user: String,
        /// The broker's words.
        text: String,
    },
    /// The broker offers none of the mechanisms wanted.
    #[error("the broker offers none of the login mechanisms {wanted}: it has {offered}")]
    Mechanism {
        /// Ours.
        wanted: String,
        /// The broker's.
        offered: String,
    },
    /// 530 at login.
    #[error("the broker did not open virtual host \"{vhost}\": {text}")]
    Vhost {
        /// Which.
        vhost: String,
        /// The broker's words.
        text: String,
    },
    /// 404: the exchange is missing.
    #[error("the broker does not find the exchange: {0}")]
    NotFound(String),
    /// 403 at work: no permission, or an internal exchange.
    #[error("the broker refused access: {0}")]
    AccessRefused(String),
    /// 406 at a declaration: it exists with other arguments; or another refusal of a declaration.
    #[error("the broker refused to declare exchange \"{exchange}\": {text}")]
    Declare {
        /// Which.
        exchange: String,
        /// The broker's words.
        text: String,
    },
    /// 406, 501, 502, 505 and 311 while publishing: it closed the channel or the connection over a message.
    #[error("the broker refused a message and closed its channel ({code}): {text}")]
    MessageRefused {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// Closed by the broker for another reason.
    #[error("the broker closed the connection ({code}): {text}")]
    Closed {
        /// AMQP reply code.
        code: u16,
        /// The broker's words.
        text: String,
    },
    /// The connection broke.
    #[error("the connection to the broker was lost")]
    Lost(#[source] LostCause),
    /// A confirm that was never asked for.
    #[error("a publish ended unconfirmed: publisher confirms are off")]
    ConfirmsOff,
    /// A return that belongs to no unanswered event.
    #[error("the broker returned a message that no unanswered event owns")]
    StrayReturn,
    /// A message without a position, or one that is in flight already.
    #[error("event {seq} has no header {} of its own", headers::POSITION)]
    NoPosition {
        /// The relay's number of the event.
        seq: u64,
    },
    /// A message with a name over 255 bytes, which `refuse` had to catch.
    #[error("event {seq} was published although it cannot be sent")]
    NotRefused {
        /// The relay's number of the event.
        seq: u64,
    },
}

/// Why the connection broke, on one line.
#[derive(Debug)]
pub struct LostCause(lapin::Error);

impl LostCause {
    /// lapin's kind of error.
    pub(crate) fn kind(&self) -> &ErrorKind {
        self.0.kind()
    }
}

impl From<lapin::Error> for LostCause {
    fn from(error: lapin::Error) -> Self {
        Self(error)
    }
}

impl fmt::Display for LostCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            // lapin's word for an orderly end of the stream.
            ErrorKind::IOError(error) if error.kind() == io::ErrorKind::ConnectionAborted => {
                f.write_str("the broker closed the socket")
            }
            ErrorKind::IOError(error) => error.fmt(f),
            ErrorKind::ParsingError(_) => f.write_str("it sent bytes that are not AMQP 0-9-1"),
            _ => self.0.fmt(f),
        }
    }
}

impl std::error::Error for LostCause {}

impl SinkError {
    /// What the relay does about it.
    pub fn disposition(&self) -> Disposition {
        match self {
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::Handshake { .. }
            | Self::Closed { .. }
            | Self::Lost(_) => Disposition::Retry { after: None },
            Self::Certificate { .. }
            | Self::TlsFile { .. }
            | Self::TlsSetup(_)
            | Self::PasswordFile { .. }
            | Self::Login { .. }
            | Self::Mechanism { .. }
            | Self::Vhost { .. }
            | Self::NotFound(_)
            | Self::AccessRefused(_)
            | Self::Declare { .. } => Disposition::Setup,
            Self::MessageRefused { .. } => Disposition::Park,
            Self::ConfirmsOff | Self::StrayReturn | Self::NoPosition { .. } | Self::NotRefused { .. } => {
                Disposition::Halt(Cause::Unexpected)
            }
        }
    }

    /// How to mend it, where there is something to mend.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Certificate { .. } => {
                "name the broker's authority with cacertfile, ours with certfile and keyfile, and the name in its \
                 certificate with server_name_indication"
            }
            Self::TlsFile { .. } => "the file holds PEM, readable for this process",
            Self::PasswordFile { .. } => "--broker-password-file names a file that this process can read",
            Self::Login { .. } => {
                "check user and password: rabbitmqctl authenticate_user USER; guest may log in locally only"
            }
            Self::Mechanism { .. } => "choose with auth_mechanism, or enable the mechanism at the broker",
            Self::Vhost { vhost, .. } if vhost.is_empty() => {
                "a path of / alone names the empty virtual host: drop the slash, or write /%2f"
            }
            Self::Vhost { .. } => {
                "create it and give the user rights there: rabbitmqctl add_vhost VHOST, then set_permissions -p VHOST \
                 USER CONFIGURE WRITE READ"
            }
            Self::NotFound(_) => "declare the exchange: tailpost postgres init --declare-exchange topic",
            Self::AccessRefused(text) => access_hint(text),
            Self::Declare { .. } => {
                "use the exchange as it is, or delete it first, or choose another name or type"
            }
            Self::MessageRefused { code: 406, .. } => {
                "compare --max-message-bytes with the broker's max_message_size"
            }
            Self::Handshake { .. } => "amqps needs the broker's TLS port, 5671 by default",
            Self::Lost(error) if matches!(error.kind(), ErrorKind::ParsingError(_)) => {
                "is this the port of AMQP 0-9-1?"
            }
            Self::Unreachable { .. }
            | Self::TimedOut { .. }
            | Self::TlsSetup(_)
            | Self::MessageRefused { .. }
            | Self::Closed { .. }
            | Self::Lost(_)
            | Self::ConfirmsOff
            | Self::StrayReturn
            | Self::NoPosition { .. }
            | Self::NotRefused { .. } => return None,
        };
        Some(hint.to_owned())
    }

    /// An error of lapin's while messages are published. `user` and `vhost` are not at fault then.
    pub(crate) fn publishing(error: lapin::Error) -> Self {
        let Some((code, text)) = reply(&error) else {
            return Self::Lost(error.into());
        };
        match code {
            404 => Self::NotFound(text),
            403 => Self::AccessRefused(text),
            311 | 406 | 501 | 502 | 505 => Self::MessageRefused { code, text },
            _ => Self::Closed { code, text },
        }
    }

    /// An error of lapin's while an exchange is declared or looked up.
    pub(crate) fn declaring(exchange: &str, error: lapin::Error) -> Self {
        let Some((code, text)) = reply(&error) else {
            return Self::Lost(error.into());
        };
        match code {
            404 => Self::NotFound(text),
            403 => Self::AccessRefused(text),
            // 503: the type of the exchange is unknown.
            406 | 503 => Self::Declare {
                exchange: exchange.to_owned(),
                text,
            },
            _ => Self::Closed { code, text },
        }
    }

    /// An error of lapin's before the connection is open.
    pub(crate) fn opening(user: &str, vhost: &str, error: lapin::Error) -> Self {
        let Some((code, text)) = reply(&error) else {
            return Self::Lost(error.into());
        };
        match code {
            403 => Self::Login {
                user: user.to_owned(),
                text,
            },
            // Also a limit of connections, which passes by itself.
            530 if !text.contains("limit") => Self::Vhost {
                vhost: vhost.to_owned(),
                text,
            },
            _ => Self::Closed { code, text },
        }
    }
}

/// The broker's text tells what was refused; RabbitMQ 3 leaves the kind of right out.
fn access_hint(text: &str) -> &'static str {
    if text.contains("internal exchange") {
        "clients cannot publish to an internal exchange: name another with --exchange"
    } else if text.contains("reserved prefix") || text.contains("default exchange") {
        "such names are the broker's own: name another with --exchange"
    } else {
        "the user needs the right to write to the exchange, and to configure it for init --declare-exchange: rabbitmqctl \
         list_permissions -p VHOST, then set_permissions -p VHOST USER CONFIGURE WRITE READ"
    }
}

/// Code and text of the broker's close, where it closed.
fn reply(error: &lapin::Error) -> Option<(u16, String)> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some((error.get_id(), error.get_message().to_string())),
        _ => None,
    }
}

impl From<SinkError> for Failure {
    fn from(error: SinkError) -> Self {
        let (disposition, hint) = (error.disposition(), error.hint());
        let failure = Self::new(error, disposition);
        match hint {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::AMQPError;

    use super::*;

    fn closed(code: u16, text: &str) -> lapin::Error {
        let error = AMQPError::from_id(code, text.into()).expect("a code of AMQP");
        ErrorKind::ProtocolError(error).into()
    }

    #[test]
    fn missing_exchange_and_missing_permission_are_a_matter_of_set_up_with_a_remedy() {
        for (code, text, remedy) in [
            (
                404,
                "NOT_FOUND - no exchange 'events' in vhost '/'",
                "init --declare-exchange topic",
            ),
            (
                403,
                "ACCESS_REFUSED - write access to exchange 'events' refused",
                "set_permissions",
            ),
            (
                403,
                "ACCESS_REFUSED - cannot publish to internal exchange 'events'",
                "--exchange",
            ),
        ] {
            let failure = Failure::from(SinkError::publishing(closed(code, text)));
            assert_eq!(failure.disposition, Disposition::Setup);
            assert!(failure.to_string().ends_with(text));
            assert!(failure.hint.unwrap().contains(remedy));
        }
    }

    #[test]
    fn channel_closed_over_a_message_may_be_poison() {
        for (code, text) in [(406, "PRECONDITION_FAILED - message size"), (501, "FRAME_ERROR")] {
            assert_eq!(
                SinkError::publishing(closed(code, text)).disposition(),
                Disposition::Park
            );
        }
    }

    #[test]
    fn lost_connection_says_why_once() {
        let lost = SinkError::publishing(io::Error::from(io::ErrorKind::ConnectionReset).into());
        let text = "the connection to the broker was lost: connection reset";
        assert_eq!(Failure::from(lost).to_string(), text);
        let ended = SinkError::publishing(io::Error::from(io::ErrorKind::ConnectionAborted).into());
        assert!(
            Failure::from(ended)
                .to_string()
                .ends_with(": the broker closed the socket")
        );
    }

    #[test]
    fn broker_that_goes_away_is_retried() {
        for code in [320, 541, 504, 506] {
            let error = SinkError::publishing(closed(code, "CONNECTION_FORCED - node down"));
            assert_eq!(error.disposition(), Disposition::Retry { after: None });
        }
        let lost = SinkError::publishing(ErrorKind::MissingHeartbeatError.into());
        assert_eq!(lost.disposition(), Disposition::Retry { after: None });
    }

    #[test]
    fn login_and_virtual_host_are_told_apart_and_a_limit_of_connections_is_retried() {
        let login = SinkError::opening("app", "/", closed(403, "ACCESS_REFUSED - Login was refused"));
        assert!(matches!(&login, SinkError::Login { user, .. } if user == "app"));
        let vhost = SinkError::opening("app", "", closed(530, "NOT_ALLOWED - vhost  not found"));
        assert_eq!(vhost.disposition(), Disposition::Setup);
        assert!(vhost.hint().unwrap().contains("/%2f"));
        let limit =
            "NOT_ALLOWED - access to vhost '/' refused for user 'app': connection limit (1) is reached";
        let limit = SinkError::opening("app", "/", closed(530, limit));
        assert_eq!(limit.disposition(), Disposition::Retry { after: None });
    }
}
