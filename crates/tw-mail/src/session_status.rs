//! Ends of sessions and results of logins, as `$status` and counters have them.

use tw_core::access_check::AccessRefusal;

/// End of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SessionStatus {
    /// The session goes on.
    #[default]
    Open,
    /// The client was logged in, and its session with the mail server is over.
    Done,
    /// The client left before it was logged in.
    Left,
    /// The client was too slow to log in.
    TimedOut,
    /// The client has sent too many invalid commands, or one that is too long.
    Invalid,
    /// The PROXY protocol header is invalid, or the TLS handshake failed.
    Handshake,
    /// The last login was refused.
    Refused,
    /// Access is denied.
    Denied,
    /// A limit of connections or of logins is reached.
    Limited,
    /// This server has failed.
    Internal,
    /// The auth server has failed.
    AuthServer,
    /// The mail server has failed.
    MailServer,
}

impl SessionStatus {
    /// The ends that are failures, in the order of [`failure_index`](Self::failure_index).
    pub const FAILURES: [Self; 10] = [
        Self::Left,
        Self::TimedOut,
        Self::Invalid,
        Self::Handshake,
        Self::Refused,
        Self::Denied,
        Self::Limited,
        Self::Internal,
        Self::AuthServer,
        Self::MailServer,
    ];

    /// The status as a number, in the terms of HTTP and `stream`.
    pub const fn code(self) -> u16 {
        match self {
            Self::Open => 0,
            Self::Done => 200,
            Self::Left | Self::TimedOut | Self::Invalid | Self::Handshake => 400,
            Self::Refused => 401,
            Self::Denied | Self::Limited => 403,
            Self::Internal => 500,
            Self::AuthServer | Self::MailServer => 502,
        }
    }

    /// Word for the cause of a failure; empty if there was none.
    pub const fn cause(self) -> &'static str {
        match self {
            Self::Open | Self::Done => "",
            Self::Left => "left",
            Self::TimedOut => "timeout",
            Self::Invalid => "invalid",
            Self::Handshake => "handshake",
            Self::Refused => "refused",
            Self::Denied => "denied",
            Self::Limited => "limited",
            Self::Internal => "internal",
            Self::AuthServer => "auth_server",
            Self::MailServer => "mail_server",
        }
    }

    /// Position in [`FAILURES`](Self::FAILURES).
    pub fn failure_index(self) -> Option<usize> {
        Self::FAILURES.iter().position(|failure| *failure == self)
    }
}

impl From<AccessRefusal> for SessionStatus {
    fn from(refusal: AccessRefusal) -> Self {
        match refusal {
            AccessRefusal::NotComputed => Self::Internal,
            AccessRefusal::Forbidden => Self::Denied,
            AccessRefusal::Refused(_) => Self::Limited,
        }
    }
}

/// Result of a login.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoginResult {
    /// The mail server has accepted the login.
    Accepted,
    /// The auth server or the mail server has refused the login.
    Refused,
    /// The auth server or the mail server failed.
    Failed,
}

impl LoginResult {
    /// All results.
    pub const ALL: [Self; 3] = [Self::Accepted, Self::Refused, Self::Failed];

    /// Word for metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_cause_and_a_status() {
        for (index, failure) in SessionStatus::FAILURES.into_iter().enumerate() {
            assert_eq!(failure.failure_index(), Some(index));
            assert!(!failure.cause().is_empty() && failure.code() >= 400, "{failure:?}");
        }
        assert_eq!(SessionStatus::Done.failure_index(), None);
    }
}
