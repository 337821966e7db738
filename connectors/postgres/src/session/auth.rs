//! Proves who we are, and asks the server for as much. A plain state machine: messages in, answers out.
//!
//! Sources: PostgreSQL manual, "Message Flow", "SASL Authentication"; RFC 5802 and RFC 7677 (SCRAM-SHA-256), RFC 5929
//! (`tls-server-end-point`). The count of SCRAM iterations is capped by postgres-protocol.
//!
//! A password goes out in clear only where nobody else can read it, and once SCRAM has begun the session is good only
//! with the server's own signature.

use std::io;

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, SCRAM_SHA_256, SCRAM_SHA_256_PLUS, ScramSha256};
use postgres_protocol::message::backend::{AuthenticationSaslBody, Message};
use postgres_protocol::message::frontend;
use tailpost_database::Secret;
use tailpost_database::postgres::{AuthMethod, ChannelBinding, RequireAuth};

use crate::PgError;

/// What is needed to log in.
#[derive(Debug)]
pub(crate) struct Credentials {
    /// The server, for messages.
    pub(crate) host: String,
    /// User.
    pub(crate) user: String,
    /// Password, if there is one.
    pub(crate) password: Option<Secret>,
    /// Hash of the server's certificate.
    pub(crate) server_end_point: Option<Vec<u8>>,
    /// The connection is encrypted.
    pub(crate) tls: bool,
    /// Nobody else can read the connection.
    pub(crate) private: bool,
    /// Whether SCRAM is bound to the TLS session.
    pub(crate) channel_binding: ChannelBinding,
    /// Which methods are acceptable.
    pub(crate) require: RequireAuth,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Send this, and wait.
    Send(BytesMut),
    /// Wait.
    Wait,
    /// Logged in.
    Done,
}

enum State {
    Begin,
    /// A password or its hash was sent: only the server judges.
    Sent,
    ScramFirst(ScramSha256),
    ScramFinal(ScramSha256),
    /// The server proved that it knows the password's verifier.
    ScramVerified,
    Failed,
}

/// The client's side of one log-in.
pub(crate) struct Login {
    credentials: Credentials,
    state: State,
    bound: bool,
}

impl Login {
    pub(crate) fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            state: State::Begin,
            bound: false,
        }
    }

    /// Answers one of the server's authentication messages.
    ///
    /// # Errors
    /// A method that is not acceptable, a wrong signature, a message out of turn. The login is over then.
    pub(crate) fn answer(&mut self, message: &Message) -> Result<Step, PgError> {
        let state = std::mem::replace(&mut self.state, State::Failed);
        match (message, state) {
            (Message::AuthenticationOk, state) => self.ok(&state),
            (Message::AuthenticationCleartextPassword, State::Begin) => self.clear(),
            (Message::AuthenticationMd5Password(body), State::Begin) => self.md5(body.salt()),
            (Message::AuthenticationSasl(body), State::Begin) => self.scram(body),
            (Message::AuthenticationSaslContinue(body), State::ScramFirst(mut scram)) => {
                scram
                    .update(body.data())
                    .map_err(|error| failed(format!("SCRAM: {error}")))?;
                let mut buffer = BytesMut::new();
                frontend::sasl_response(scram.message(), &mut buffer).map_err(unsendable)?;
                self.state = State::ScramFinal(scram);
                Ok(Step::Send(buffer))
            }
            (Message::AuthenticationSaslFinal(body), State::ScramFinal(mut scram)) => {
                scram.finish(body.data()).map_err(|error| {
                    failed(format!(
                        "the server could not prove that it knows the password (SCRAM: {error})"
                    ))
                })?;
                self.state = State::ScramVerified;
                Ok(Step::Wait)
            }
            (
                Message::AuthenticationGss
                | Message::AuthenticationSspi
                | Message::AuthenticationKerberosV5
                | Message::AuthenticationScmCredential
                | Message::AuthenticationGssContinue(_),
                _,
            ) => Err(failed(
                "the server asks for GSSAPI, SSPI or Kerberos, which are not supported",
            )),
            _ => Err(failed("the server sent an authentication message out of turn")),
        }
    }

    fn ok(&self, state: &State) -> Result<Step, PgError> {
        match state {
            State::Begin => self.allow(AuthMethod::None)?,
            State::Sent | State::ScramVerified => {}
            State::ScramFirst(_) | State::ScramFinal(_) | State::Failed => {
                return Err(failed(
                    "the server ended SCRAM without proving that it knows the password",
                ));
            }
        }
        if self.credentials.channel_binding == ChannelBinding::Require && !self.bound {
            return Err(failed(
                "channel_binding=require, and the server did not bind the TLS session",
            ));
        }
        Ok(Step::Done)
    }

    fn clear(&mut self) -> Result<Step, PgError> {
        self.allow(AuthMethod::Password)?;
        if !self.credentials.private {
            return Err(PgError::ClearPassword {
                host: self.credentials.host.clone(),
            });
        }
        let mut buffer = BytesMut::new();
        frontend::password_message(self.password()?.expose().as_bytes(), &mut buffer).map_err(unsendable)?;
        self.state = State::Sent;
        Ok(Step::Send(buffer))
    }

    fn md5(&mut self, salt: [u8; 4]) -> Result<Step, PgError> {
        self.allow(AuthMethod::Md5)?;
        let user = self.credentials.user.as_bytes();
        let hash = md5_hash(user, self.password()?.expose().as_bytes(), salt);
        let mut buffer = BytesMut::new();
        frontend::password_message(hash.as_bytes(), &mut buffer).map_err(unsendable)?;
        self.state = State::Sent;
        Ok(Step::Send(buffer))
    }

    fn scram(&mut self, body: &AuthenticationSaslBody) -> Result<Step, PgError> {
        self.allow(AuthMethod::ScramSha256)?;
        let offered: Vec<&str> = body
            .mechanisms()
            .collect()
            .map_err(|error| failed(format!("SASL: {error}")))?;
        let (mechanism, binding) = self.choose(&offered)?;
        self.bound = mechanism == SCRAM_SHA_256_PLUS;
        let scram = ScramSha256::new(self.password()?.expose().as_bytes(), binding);
        let mut buffer = BytesMut::new();
        frontend::sasl_initial_response(mechanism, scram.message(), &mut buffer).map_err(unsendable)?;
        self.state = State::ScramFirst(scram);
        Ok(Step::Send(buffer))
    }

    /// Chooses the mechanism, and says what we could have done: the flag `y` ("we can bind, you did not offer it") lets
    /// an honest server notice that somebody on the way took its offer out (RFC 5802, section 6).
    fn choose(&self, offered: &[&str]) -> Result<(&'static str, sasl::ChannelBinding), PgError> {
        let wanted = self.credentials.channel_binding;
        let plus = offered.contains(&SCRAM_SHA_256_PLUS);
        if plus && !self.credentials.tls {
            return Err(failed(
                "the server offers channel binding over an unencrypted connection",
            ));
        }
        let end_point = match wanted {
            ChannelBinding::Disable => None,
            ChannelBinding::Prefer | ChannelBinding::Require => self.credentials.server_end_point.clone(),
        };
        match end_point {
            Some(end_point) if plus => Ok((
                SCRAM_SHA_256_PLUS,
                sasl::ChannelBinding::tls_server_end_point(end_point),
            )),
            _ if wanted == ChannelBinding::Require => Err(failed(
                "channel_binding=require, and channel binding is not possible with this server",
            )),
            _ if !offered.contains(&SCRAM_SHA_256) => {
                Err(failed("the server offers no SASL mechanism that is known here"))
            }
            Some(_) => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unrequested())),
            None => Ok((SCRAM_SHA_256, sasl::ChannelBinding::unsupported())),
        }
    }

    fn allow(&self, method: AuthMethod) -> Result<(), PgError> {
        if self.credentials.require.allows(method) {
            return Ok(());
        }
        Err(failed(format!(
            "the server uses method {}, which require_auth does not allow",
            method.name()
        )))
    }

    fn password(&self) -> Result<&Secret, PgError> {
        self.credentials
            .password
            .as_ref()
            .ok_or_else(|| failed("the server wants a password and there is none"))
    }
}

fn failed(why: impl Into<String>) -> PgError {
    PgError::Authentication(why.into())
}

fn unsendable(error: io::Error) -> PgError {
    failed(format!("the password cannot be sent: {error}"))
}

#[cfg(test)]
mod tests;
