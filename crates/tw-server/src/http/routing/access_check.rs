//! What modules of every protocol decide about a session, as steps of a request, and what they record of it.

use std::sync::Arc;

use tw_core::judge::{Judge, Judged, Ruling, Stage};
use tw_core::log::{Recorded, Recorder};
use tw_log::Level;

use crate::config::location::Satisfy;
use crate::http::plan::{Handler, LogHandler, Outcome, Phase, Plan, Step};
use crate::http::request::Request;

/// Runs a judge in a phase, or a recorder at the end.
struct Run<J>(Arc<J>);

impl Judged<Request> for Plan {
    fn add_judge(&mut self, stage: Stage, judge: Arc<impl Judge<Request>>) {
        let phase = match stage {
            Stage::Limits => Phase::Preaccess,
            Stage::Access => Phase::Access,
        };
        self.add(phase, Run(judge));
    }
}

impl<J: Judge<Request>> Handler for Run<J> {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let ruling = self.0.judge(r);
        Step::by(ruling, r)
    }
}

impl Recorded<Request> for Plan {
    fn add_recorder(&mut self, recorder: Arc<impl Recorder<Request>>) {
        self.add_log(Run(recorder));
    }
}

impl<J: Recorder<Request>> LogHandler for Run<J> {
    fn log(&self, r: &Request) {
        self.0.record(r);
    }
}

impl Step<'_> {
    /// What is decided about `r`.
    pub fn by(ruling: Ruling, r: &Request) -> Self {
        match ruling {
            Ruling::Pass => Self::PASS,
            Ruling::Granted => Self::Now(Outcome::PhaseDone),
            Ruling::Forbidden(why) => {
                // With `satisfy any` nothing is forbidden before all handlers were asked.
                if r.plan().core.access.satisfy == Satisfy::All {
                    r.log(Level::Error, format_args!("{why}"));
                }
                Self::status(403)
            }
            Ruling::Refused(status) => Self::status(status),
        }
    }
}
