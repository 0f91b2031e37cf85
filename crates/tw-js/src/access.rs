//! `js_access`: a function decides whether a request may go on. Access phase.

use tw_phases::phases;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::request::Request;
use tw_script::{CallKind, Effect};

use crate::content::{redirect, returned};
use crate::request_call::{Failed, Progress, RequestCall, ScriptFunction};
use crate::snapshot;

/// Decides by a function.
pub(crate) struct AccessHandler(pub(crate) ScriptFunction);

impl Handler for AccessHandler {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::Wait(Box::pin(async {
            let wire = r.wire().clone();
            match wire.unless_gone(self.decide(r)).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(Failed { status })) => Outcome::Status(status),
                Err(gone) => phases::client_closed(r, &gone),
            }
        }))
    }
}

impl AccessHandler {
    /// The function grants access by its return, leaves the decision to others by `r.decline()`, and refuses by `r.return()`.
    async fn decide(&self, r: &mut Request) -> Result<Outcome, Failed> {
        let snapshot = snapshot::of_request(r, None);
        let mut call = RequestCall::start(r, &self.0, CallKind::Access, snapshot).await?;
        let mut decision = Outcome::PhaseDone;
        loop {
            match call.next(r).await? {
                Progress::Effect(Effect::Return { status, text }) => decision = returned(r, status, text),
                Progress::Effect(Effect::Decline) => decision = Outcome::Pass,
                Progress::Effect(Effect::InternalRedirect { uri }) => decision = redirect(r, &uri),
                Progress::Effect(_) | Progress::Handled => {}
                Progress::Done(_) => return Ok(decision),
            }
        }
    }
}
