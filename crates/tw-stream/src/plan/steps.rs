//! Entries of the phases: checks and handlers that never wait, and steps that may.

use std::sync::Arc;

use tw_core::access_check::{AccessCheck, run_check};

use super::{LocalFuture, PrereadHandler};
use crate::session::StreamSession;
use crate::status::{PhaseResult, SessionStatus};

/// Step of a phase that may wait, as for a script.
pub trait SessionStep: Send + Sync {
    /// Runs the step for `s`.
    fn run<'a>(&'a self, s: &'a mut StreamSession) -> LocalFuture<'a, StepDecision>;
}

/// Decision of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepDecision {
    /// The next entry of the phase decides.
    Pass,
    /// The phase is over: no other entry of it runs.
    PhaseDone,
    /// The session ends. The step has logged the reason.
    End(SessionStatus),
}

/// Task of a module that runs as long as the configuration is that of new sessions.
pub trait BackgroundTask: Send + Sync {
    /// Returns true if the loop of this number runs the task.
    fn runs_on(&self, event_loop: usize) -> bool;

    /// Runs the task. `session` makes a session without a client, in the place of one of the server.
    fn run(self: Arc<Self>, session: Box<dyn Fn() -> StreamSession>) -> LocalFuture<'static, ()>;
}

/// Entry of a phase in which access is decided.
pub(crate) enum AccessEntry {
    /// Check that never waits.
    Check(Arc<dyn AccessCheck<StreamSession>>),
    /// Step that may wait.
    Step(Arc<dyn SessionStep>),
}

/// Entry of the preread phase.
pub(crate) enum PrereadEntry {
    /// Handler that never waits, except for bytes.
    Handler(Arc<dyn PrereadHandler>),
    /// Step that may wait.
    Step(Arc<dyn SessionStep>),
}

/// Runs the entries of a phase, until one of them grants access.
pub(crate) async fn run_access(entries: &[AccessEntry], s: &mut StreamSession) -> PhaseResult {
    for entry in entries {
        match entry {
            AccessEntry::Check(check) => {
                if run_check(&**check, s)?.is_break() {
                    break;
                }
            }
            AccessEntry::Step(step) => match step.run(s).await {
                StepDecision::Pass => {}
                StepDecision::PhaseDone => break,
                StepDecision::End(status) => return Err(status),
            },
        }
    }
    Ok(())
}

/// Runs steps that decide nothing.
pub(crate) async fn run_steps(steps: &[Arc<dyn SessionStep>], s: &mut StreamSession) {
    for step in steps {
        step.run(s).await;
    }
}
