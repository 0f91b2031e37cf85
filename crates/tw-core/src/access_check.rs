//! Decisions about a session that are the same in every protocol: who may, and how many at a time.

use std::sync::Arc;

/// When a session is decided about. A protocol has a phase for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessStage {
    /// Whether it is one too many.
    Limits,
    /// Whether it may at all.
    Access,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessDecision {
    /// Nothing: whoever comes next decides.
    Pass,
    /// It may; whether others are asked as well is up to the protocol.
    Granted,
    /// It may not. The words are for the error log, if nobody else grants it.
    Forbidden(&'static str),
    /// It ends with this status. Why is logged already.
    Refused(u16),
}

/// Decides about sessions.
pub trait AccessCheck<S>: Send + Sync + 'static {
    /// Decides about `s`. Never waits.
    fn check(&self, s: &mut S) -> AccessDecision;
}

/// A plan to which modules of every protocol can add.
pub trait AccessPlan<S> {
    /// Adds a judge to the end of a stage.
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<S>>);
}
