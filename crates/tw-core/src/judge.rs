//! Decisions about a session that are the same in every protocol: who may, and how many at a time.

use std::sync::Arc;

/// When a session is decided about. A protocol has a phase for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Whether it is one too many.
    Limits,
    /// Whether it may at all.
    Access,
}

/// What was decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ruling {
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
pub trait Judge<S>: Send + Sync + 'static {
    /// Decides about `s`. Never waits.
    fn judge(&self, s: &mut S) -> Ruling;
}

/// A plan to which modules of every protocol can add.
pub trait Judged<S> {
    /// Adds a judge to the end of a stage.
    fn add_judge(&mut self, stage: Stage, judge: Arc<impl Judge<S>>);
}
