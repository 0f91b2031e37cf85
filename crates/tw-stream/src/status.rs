//! Status of a session, and the result of its phases.

use tw_core::access_check::AccessRefusal;

/// End of a session, as `$status` has it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SessionStatus(pub u16);

impl SessionStatus {
    /// The session is complete.
    pub const OK: Self = Self(200);
    /// The client has sent something that cannot be read.
    pub const BAD_REQUEST: Self = Self(400);
    /// Access is denied.
    pub const FORBIDDEN: Self = Self(403);
    /// Failure of this server.
    pub const INTERNAL_SERVER_ERROR: Self = Self(500);
    /// The connection was passed to another listening address, where the session goes on: it is not logged.
    pub const PASSED: Self = Self(0);
    /// No upstream server could be connected to.
    pub const BAD_GATEWAY: Self = Self(502);
    /// End of a session whose place was needed.
    pub const SERVICE_UNAVAILABLE: Self = Self(503);
}

impl From<AccessRefusal> for SessionStatus {
    fn from(refusal: AccessRefusal) -> Self {
        match refusal {
            AccessRefusal::NotComputed => Self::INTERNAL_SERVER_ERROR,
            AccessRefusal::Forbidden => Self::FORBIDDEN,
            AccessRefusal::Refused(status) => Self(status),
        }
    }
}

/// Result of a phase: the next one follows, or the session ends with this status.
pub(crate) type PhaseResult = Result<(), SessionStatus>;
