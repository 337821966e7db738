//! What the keys of a URL mean, typed.

use std::time::Duration;

/// libpq's `sslmode`, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SslMode {
    /// Never TLS.
    Disable,
    /// Plaintext first, TLS if the server refuses that.
    Allow,
    /// TLS first, plaintext if the server refuses that. Anybody on the way can force plaintext.
    Prefer,
    /// TLS. The certificate is verified only if a root certificate is at hand.
    Require,
    /// TLS, and the certificate leads to a trusted root.
    VerifyCa,
    /// TLS, and the certificate leads to a trusted root and names the host.
    VerifyFull,
}

impl SslMode {
    /// Returns libpq's name of the mode.
    pub fn name(self) -> &'static str {
        match self {
            Self::Disable => "disable",
            Self::Allow => "allow",
            Self::Prefer => "prefer",
            Self::Require => "require",
            Self::VerifyCa => "verify-ca",
            Self::VerifyFull => "verify-full",
        }
    }
}

/// libpq's `sslnegotiation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SslNegotiation {
    /// An SSLRequest first.
    Postgres,
    /// A TLS handshake at once, with ALPN (PostgreSQL 17 and later).
    Direct,
}

/// libpq's `channel_binding`: whether SCRAM must prove that both ends see the same TLS session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelBinding {
    /// Never.
    Disable,
    /// Where the server offers it.
    Prefer,
    /// Or no session.
    Require,
}

/// libpq's `target_session_attrs`: which server of several will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetSession {
    /// Any.
    Any,
    /// Transactions may write by default, and it is no standby.
    ReadWrite,
    /// Transactions may not write by default, or it is a standby.
    ReadOnly,
    /// Not a standby.
    Primary,
    /// A standby.
    Standby,
    /// A standby if one of the hosts is, else any.
    PreferStandby,
}

/// How a server may ask a client to prove who it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthMethod {
    /// The server asked for nothing (trust, peer, a certificate).
    None,
    /// The password in clear.
    Password,
    /// A salted MD5 hash.
    Md5,
    /// SCRAM-SHA-256, with or without channel binding.
    ScramSha256,
}

impl AuthMethod {
    /// Returns libpq's name of the method.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Password => "password",
            Self::Md5 => "md5",
            Self::ScramSha256 => "scram-sha-256",
        }
    }
}

/// libpq's `require_auth`: which methods are acceptable. The default accepts all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequireAuth {
    pub(crate) none: bool,
    pub(crate) password: bool,
    pub(crate) md5: bool,
    pub(crate) scram_sha_256: bool,
}

impl RequireAuth {
    /// Every method.
    pub(crate) const ALL: Self = Self {
        none: true,
        password: true,
        md5: true,
        scram_sha_256: true,
    };
    /// No method.
    pub(crate) const NOTHING: Self = Self {
        none: false,
        password: false,
        md5: false,
        scram_sha_256: false,
    };

    /// Tells whether `method` is acceptable.
    pub fn allows(self, method: AuthMethod) -> bool {
        match method {
            AuthMethod::None => self.none,
            AuthMethod::Password => self.password,
            AuthMethod::Md5 => self.md5,
            AuthMethod::ScramSha256 => self.scram_sha_256,
        }
    }

    /// Makes `method` acceptable, or not.
    pub(crate) fn set(&mut self, method: AuthMethod, acceptable: bool) {
        match method {
            AuthMethod::None => self.none = acceptable,
            AuthMethod::Password => self.password = acceptable,
            AuthMethod::Md5 => self.md5 = acceptable,
            AuthMethod::ScramSha256 => self.scram_sha_256 = acceptable,
        }
    }
}

/// How dead peers are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Keepalive {
    pub(crate) enabled: bool,
    pub(crate) idle: Duration,
    pub(crate) interval: Duration,
    pub(crate) count: u32,
    /// `TCP_USER_TIMEOUT`; `None` leaves it to the system.
    pub(crate) user_timeout: Option<Duration>,
}
