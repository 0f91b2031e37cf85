//! Access checks on a session that work the same way in every protocol: access rules and limits on the number of
//! connections.

use std::sync::Arc;

/// Phase of an access check. Each protocol maps it to one of its own phases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessStage {
    /// Limits on rate or number (`limit_conn`).
    Limits,
    /// Access rules (`allow`, `deny`).
    Access,
}

/// Result of an access check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessDecision {
    /// No decision: the next check decides.
    Pass,
    /// Access is granted; the protocol decides if further checks still run.
    Granted,
    /// Access is denied. The text goes into the error log, unless another check grants access.
    Forbidden(&'static str),
    /// The session ends with this status. The check has logged the reason.
    Refused {
        /// Status of the response, or of the session.
        status: u16,
        /// Seconds after which the client may try again, if its protocol can tell it.
        retry_after: Option<u32>,
    },
}

/// Access check on sessions.
pub trait AccessCheck<S>: Send + Sync + 'static {
    /// Checks `s`. Never waits.
    fn check(&self, s: &mut S) -> AccessDecision;
}

/// Plan to which modules of every protocol can add access checks.
pub trait AccessPlan<S> {
    /// Appends a check to the end of a stage.
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<S>>);
}

/// Plan of a protocol whose sessions begin with a phase behind accept, in which the address of the client is decided.
pub trait PostAcceptPlan<S> {
    /// Appends a check that runs before those of all stages.
    fn add_post_accept(&mut self, check: Arc<impl AccessCheck<S>>);
}
