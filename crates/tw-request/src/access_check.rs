//! Access rules and log handlers of modules for all protocols, as handlers of a request.

use std::sync::Arc;

use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::log::{LogPlan, SessionLogger};
use tw_log::Level;

use crate::config::location::Satisfy;
use crate::plan::{Handler, LogHandler, Outcome, Phase, Plan, Step};
use crate::request::Request;

/// Runs an access check in its phase, or a session logger at the end.
struct Run<J>(Arc<J>);

impl AccessPlan<Request> for Plan {
    fn add_access_check(&mut self, stage: AccessStage, check: Arc<impl AccessCheck<Request>>) {
        let phase = match stage {
            AccessStage::Limits => Phase::Preaccess,
            AccessStage::Access => Phase::Access,
        };
        self.add(phase, Run(check));
    }
}

impl<J: AccessCheck<Request>> Handler for Run<J> {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let decision = self.0.check(r);
        Step::by(decision, r)
    }
}

impl LogPlan<Request> for Plan {
    fn add_session_logger(&mut self, logger: Arc<impl SessionLogger<Request>>) {
        self.add_log(Run(logger));
    }
}

impl<J: SessionLogger<Request>> LogHandler for Run<J> {
    fn log(&self, r: &Request) {
        self.0.record(r);
    }
}

impl Step<'_> {
    /// Outcome of a ruling about `r`.
    pub fn by(decision: AccessDecision, r: &mut Request) -> Self {
        match decision {
            AccessDecision::Pass => Self::PASS,
            AccessDecision::Granted => Self::Now(Outcome::PhaseDone),
            AccessDecision::Forbidden(why) => {
                // With `satisfy any` access is not forbidden before all handlers were asked.
                if r.plan().core.access.satisfy == Satisfy::All {
                    r.log(Level::Error, format_args!("{why}"));
                }
                Self::status(403)
            }
            AccessDecision::Refused { status, retry_after } => {
                r.state.retry_after = retry_after;
                Self::status(status)
            }
        }
    }
}
