//! Access checks on a session that work the same way in every protocol: access rules and limits on the number of
//! connections.

use std::ops::ControlFlow;
use std::sync::Arc;

use tw_log::Level;

use crate::session::Session;
use crate::vars::EvalStatus;

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

/// Reason why the checks of a phase have ended a session. It is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessRefusal {
    /// A variable could not be computed: what was decided by it must not stand.
    NotComputed,
    /// Access is denied.
    Forbidden,
    /// A check has refused the session with this status.
    Refused(u16),
}

/// Runs the checks of a phase, until one of them grants access. Never waits.
///
/// # Errors
/// A check that ends the session, or a variable that could not be computed.
pub fn run_checks<S: Session>(checks: &[Arc<dyn AccessCheck<S>>], s: &mut S) -> Result<(), AccessRefusal> {
    for check in checks {
        if run_check(&**check, s)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Runs one check. `Break` means that it grants access. Never waits.
///
/// # Errors
/// As [`run_checks`].
pub fn run_check<S: Session>(
    check: &dyn AccessCheck<S>,
    s: &mut S,
) -> Result<ControlFlow<()>, AccessRefusal> {
    let decision = check.check(s);
    if s.bindings().take_eval_status() == EvalStatus::Failed {
        return Err(AccessRefusal::NotComputed);
    }
    match decision {
        AccessDecision::Pass => Ok(ControlFlow::Continue(())),
        AccessDecision::Granted => Ok(ControlFlow::Break(())),
        AccessDecision::Forbidden(reason) => {
            s.log(Level::Error, format_args!("{reason}"));
            Err(AccessRefusal::Forbidden)
        }
        AccessDecision::Refused { status, .. } => Err(AccessRefusal::Refused(status)),
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Plain, table};

    /// A check with a decision that is made.
    struct Decided(AccessDecision);

    impl AccessCheck<Plain> for Decided {
        fn check(&self, _: &mut Plain) -> AccessDecision {
            self.0
        }
    }

    #[test]
    fn first_check_that_decides_ends_the_phase() {
        use AccessDecision::{Forbidden, Granted, Pass};
        let refused = AccessDecision::Refused { status: 503, retry_after: None };
        for (decisions, expected, logged) in [
            (&[][..], Ok(()), &[][..]),
            (&[Pass, Pass], Ok(()), &[]),
            (&[Granted, refused], Ok(()), &[]),
            (&[Pass, refused, Forbidden("never")], Err(AccessRefusal::Refused(503)), &[]),
            (&[Forbidden("by rule"), Granted], Err(AccessRefusal::Forbidden), &["error: by rule"]),
        ] {
            let checks: Vec<Arc<dyn AccessCheck<Plain>>> =
                decisions.iter().map(|decision| Arc::new(Decided(*decision)) as _).collect();
            let mut session = Plain::new(table());
            assert_eq!(run_checks(&checks, &mut session), expected, "{decisions:?}");
            assert_eq!(*session.logged.borrow(), logged, "{decisions:?}");
        }
    }
}
