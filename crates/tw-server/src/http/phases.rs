//! The course of a request: server, location, then phase after phase until something answers.

use std::rc::Rc;

use tw_log::Level;

use super::body::Body;
use super::decision::{decide, loops, no_content};
use super::generation::PlanId;
use super::plan::{Outcome, Phase, Step};
use super::realpath_root;
use super::request::{LoopGeneration, Origin, Request};
use crate::core::location::LocationAccess;
use crate::regex::BacktrackLimit;

/// How a run through the phases goes on.
pub(super) enum Next {
    /// Choose the location for the current URI and start over.
    Locate,
    /// Run the location's phases (a named location, chosen already).
    Run,
    /// Send this.
    Respond(Body),
}

/// Serves `r`: returns the body of the response; its head is `r.out`. Waits only for what handlers wait for.
pub async fn run(r: &mut Request) -> Body {
    run_from(r, Next::Locate).await
}

async fn run_from(r: &mut Request, mut next: Next) -> Body {
    let generation = r.generation().clone();
    loop {
        next = match next {
            Next::Respond(body) => return body,
            Next::Locate => {
                r.plan = generation.server(r.server).plan;
                match phases(r, &generation, &[Phase::PostRead, Phase::ServerRewrite]).await {
                    Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => locate(r, &generation),
                    other => decide(r, &generation, other),
                }
            }
            Next::Run => match location_phases(r, &generation).await {
                Outcome::Pass | Outcome::PhaseDone => no_content(r, &generation),
                Outcome::Rewritten if r.course.redirects_left == 0 => {
                    loops(r, "rewrite or internal redirection cycle")
                }
                Outcome::Rewritten => {
                    r.course.redirects_left -= 1;
                    locate(r, &generation)
                }
                other => decide(r, &generation, other),
            },
        }
    }
}

/// Answers `r` with a status that was decided before any phase ran, such as that of a malformed head.
pub async fn fail(r: &mut Request, status: u16) -> Body {
    let generation = r.generation().clone();
    r.plan = generation.server(r.server).plan;
    instead(r, status).await
}

/// Answers `r` with a status instead of the response that was made for it.
pub async fn instead(r: &mut Request, status: u16) -> Body {
    let generation = r.generation().clone();
    match decide(r, &generation, Outcome::Status(status)) {
        Next::Respond(body) => body,
        next => Box::pin(run_from(r, next)).await,
    }
}

async fn location_phases(r: &mut Request, generation: &LoopGeneration) -> Outcome {
    if let Some(code) = super::request_body::refuse_or_none(r) {
        return Outcome::Status(code);
    }
    match phases(r, generation, &[Phase::Rewrite]).await {
        Outcome::Pass | Outcome::PhaseDone => {}
        other => return other,
    }
    phases(r, generation, &[Phase::Preaccess, Phase::Access, Phase::Precontent, Phase::Content]).await
}

/// Runs phases until a handler decides something that ends them.
async fn phases(r: &mut Request, generation: &LoopGeneration, list: &[Phase]) -> Outcome {
    let plan = generation.plan(r.plan);
    if plan.uses_realpath_root && list.first() != Some(&Phase::Preaccess) {
        Box::pin(realpath_root::fill(r)).await;
    }
    for phase in list {
        for handler in plan.handlers(*phase) {
            let outcome = match handler.handle(r) {
                Step::Now(outcome) => outcome,
                Step::Wait(future) => future.await,
            };
            match outcome {
                Outcome::Pass => {}
                Outcome::PhaseDone => break,
                other => return other,
            }
        }
    }
    Outcome::Pass
}

fn locate(r: &mut Request, generation: &Rc<LoopGeneration>) -> Next {
    let server = generation.server(r.server);
    let path = std::mem::take(&mut r.uri.path);
    let mut captures = std::mem::take(&mut r.captures);
    let found =
        server.locations.find(&path, &mut captures, &mut |regex, captures| r.store_named(regex, captures));
    (r.uri.path, r.captures) = (path, captures);
    let plan = match found {
        Ok(found) => found.unwrap_or(server.plan),
        Err(BacktrackLimit) => {
            r.log(
                Level::Error,
                format_args!("regex exceeded its limit of backtracking on \"{}\"", tw_log::Text(&r.uri.path)),
            );
            return decide(r, generation, Outcome::Status(500));
        }
    };
    enter(r, generation, plan)
}

/// Puts `r` into the location of `plan`.
pub(super) fn enter(r: &mut Request, generation: &Rc<LoopGeneration>, plan: PlanId) -> Next {
    r.plan = plan;
    let core = &generation.plan(plan).core;
    if core.access == LocationAccess::Internal && r.course.origin == Origin::Client {
        return decide(r, generation, Outcome::Status(404));
    }
    r.conn().enter_location(core);
    Next::Run
}
