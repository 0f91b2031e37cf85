//! Rules for the head and the body of a request.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use tw_disk::DiskError;
use tw_http::HeaderName;
use tw_log::Level;
use tw_request::plan::{AccessPurpose, Handler, Outcome, Step};
use tw_request::request::Request;
use tw_request::request_body::{self, Source};
use tw_waf::{BodyCheck as BodyLength, Phase, Verdict, VerdictAction};

use super::firewall::{INLINE_BODY_MAX, Waf};
use super::inspection::{Inspection, NotChecked, Progress};
use super::report;

/// Bytes of a body that are read of its file at once.
const READ_SIZE: usize = 64 << 10;

/// Rewrite phase: begins the inspection, and runs the rules for the head.
pub(super) struct HeadCheck(pub(super) Arc<Waf>);

impl Handler for HeadCheck {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        if r.is_subrequest() || r.extensions.get::<Inspection>().is_some() {
            return Step::PASS;
        }
        let Some(rules) = &self.0.rules else { return Step::PASS };
        let inspection = Rc::new(Inspection::begin(&self.0, rules, r));
        r.extensions.put(inspection.clone());
        match inspection.run_here(Phase::RequestHeaders) {
            Progress::Done(verdict) => Step::Now(follow(r, &inspection, verdict)),
            Progress::Waits => Step::wait(move || async move {
                let verdict = inspection.finish(r, Phase::RequestHeaders).await;
                after_wait(r, &inspection, verdict)
            }),
        }
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        if Inspection::of(r).is_some() {
            // The rewrite phase runs again after a rewrite.
            return Vec::new();
        }
        report::explain(&self.0, r)
    }

    fn only_looks(&self) -> bool {
        true
    }
}

/// Access phase: reads the body if rules want it, and runs their rules.
pub(super) struct BodyCheck;

impl Handler for BodyCheck {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let Some(inspection) = Inspection::of(r) else { return Step::PASS };
        if inspection.has_checked_body.replace(true) {
            return Step::PASS;
        }
        let reads_body = inspection
            .transaction
            .borrow()
            .as_ref()
            .is_some_and(|transaction| transaction.reads_request_body());
        if !reads_body || !r.body.has_source() {
            return match inspection.run_here(Phase::RequestBody) {
                Progress::Done(verdict) => Step::Now(follow(r, &inspection, verdict)),
                Progress::Waits => Step::wait(move || async move {
                    let verdict = inspection.finish(r, Phase::RequestBody).await;
                    after_wait(r, &inspection, verdict)
                }),
            };
        }
        Step::wait(move || check(r, inspection))
    }

    fn only_looks(&self) -> bool {
        true
    }

    fn access_purpose(&self) -> AccessPurpose {
        AccessPurpose::Protection
    }
}

/// Reads the body and runs its rules.
async fn check(r: &mut Request, inspection: Rc<Inspection>) -> Outcome {
    if let Err(status) = request_body::read::read(r).await {
        return Outcome::Status(status);
    }
    // A body that was read can be taken again and again.
    let source = r.body.take();
    let length = match &source {
        Source::Stored(reader) => reader.remaining(),
        _ => 0,
    };
    let (limit, verdict) = match inspection.transaction.borrow().as_ref() {
        Some(transaction) => (transaction.body_limit(), transaction.check_body_length(length)),
        None => return Outcome::Pass,
    };
    if verdict == BodyLength::TooLarge {
        r.log(
            Level::Error,
            format_args!(
                "ModSecurity: request body of {length} bytes is larger than \"SecRequestBodyLimit\""
            ),
        );
        return Outcome::Status(413);
    }
    let body = match gather(r, source, limit).await {
        Ok(body) => body,
        Err(error) => {
            r.log(Level::Crit, format_args!("{error} while reading the request body for the firewall"));
            return Outcome::Status(500);
        }
    };
    if body.len() <= INLINE_BODY_MAX {
        if let Some(transaction) = inspection.transaction.borrow_mut().as_mut() {
            transaction.set_request_body(&body, length);
        }
        let verdict = inspection.run(r, Phase::RequestBody).await;
        return after_wait(r, &inspection, verdict);
    }
    let set = move |transaction: &mut tw_waf::Transaction| transaction.set_request_body(&body, length);
    let verdict = inspection.run_in_pool(r, Phase::RequestBody, set).await;
    after_wait(r, &inspection, verdict)
}

/// The first bytes of the body, which was read into memory or a file.
async fn gather(r: &mut Request, source: Source, limit: usize) -> Result<Bytes, DiskError> {
    let Source::Stored(mut reader) = source else { return Ok(Bytes::new()) };
    let mut gathered = Vec::new();
    while gathered.len() < limit {
        let want = READ_SIZE.min(limit - gathered.len());
        match reader.next(want, &mut r.costs.account).await? {
            Some(piece) if gathered.is_empty() && reader.remaining() == 0 => return Ok(piece),
            Some(piece) => gathered.extend_from_slice(&piece),
            None => break,
        }
    }
    Ok(gathered.into())
}

/// Continues after rules that may have run in the pool. A request that could not be checked is refused.
fn after_wait(
    r: &mut Request,
    inspection: &Inspection,
    verdict: Result<Option<Verdict>, NotChecked>,
) -> Outcome {
    match verdict {
        Ok(verdict) => follow(r, inspection, verdict),
        Err(error) => {
            r.log(Level::Error, format_args!("request was not checked by the firewall: {error}"));
            if error.is_passing() {
                r.response.fields.set(HeaderName::RetryAfter, "1");
                return Outcome::Status(503);
            }
            Outcome::Status(500)
        }
    }
}

/// Logs what the rules have found, and does what they have decided.
fn follow(r: &mut Request, inspection: &Inspection, verdict: Option<Verdict>) -> Outcome {
    report::log_matches(r, inspection);
    match verdict.map(|verdict| verdict.action) {
        None => Outcome::Pass,
        Some(action) => Outcome::Status(status_of(r, action)),
    }
}

/// Status with which a verdict is carried out. 444 closes the connection.
pub(super) fn status_of(r: &mut Request, action: VerdictAction) -> u16 {
    match action {
        VerdictAction::Deny(status) => status,
        VerdictAction::Drop => 444,
        VerdictAction::Redirect(status, location) => {
            r.response.location = location.into();
            status
        }
    }
}
