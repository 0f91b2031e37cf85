//! The course of a request: server, location, then phase after phase until something answers.

use super::body::Body;
use super::generation::PlanId;
use super::plan::{Outcome, Phase, Plan, Step};
use super::request::{AliasEnd, LoopGeneration, Origin, Request};
use super::respond;
use super::route::Found;
use super::special;
use crate::core::location::LocationAccess;
use crate::regex::BacktrackLimit;
use std::rc::Rc;
use tw_log::Level;

/// How a run through the phases goes on.
enum Next {
    /// Choose the location for the current URI and start over.
    Locate,
    /// Run the location's phases (a named location, chosen already).
    Run,
    /// Send this.
    Respond(Body),
}

/// Serves `r`: returns the body of the response; its head is `r.out`. Waits only for what handlers wait for.
pub async fn run(r: &mut Request) -> Body {
    let generation = r.generation().clone();
    let mut next = Next::Locate;
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
    match decide(r, &generation, Outcome::Status(status)) {
        Next::Respond(body) => body,
        Next::Locate | Next::Run => Box::pin(run(r)).await,
    }
}

async fn location_phases(r: &mut Request, generation: &LoopGeneration) -> Outcome {
    match phases(r, generation, &[Phase::Rewrite]).await {
        Outcome::Pass | Outcome::PhaseDone => {}
        other => return other,
    }
    if let Some(code) = super::request_body::refuse_or_none(r) {
        return Outcome::Status(code);
    }
    phases(r, generation, &[Phase::Preaccess, Phase::Access, Phase::Precontent, Phase::Content]).await
}

/// Runs phases until a handler decides something that ends them.
async fn phases(r: &mut Request, generation: &LoopGeneration, list: &[Phase]) -> Outcome {
    let plan: &Plan = generation.plan(r.plan);
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
    let mut matched = None;
    let found = server.locations.find(&r.uri.path, &mut r.captures, &mut matched);
    if let Some(regex) = matched {
        r.store_named_captures(regex);
    }
    let plan = match found {
        Ok(Found::Plan(plan)) => plan,
        Ok(Found::None) => server.plan,
        Ok(Found::AddSlash(plan)) => {
            r.plan = plan;
            let outcome = special::add_slash(r);
            return decide(r, generation, outcome);
        }
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

fn enter(r: &mut Request, generation: &Rc<LoopGeneration>, plan: PlanId) -> Next {
    r.plan = plan;
    let core = &generation.plan(plan).core;
    if core.access == LocationAccess::Internal && r.course.origin == Origin::Client {
        return decide(r, generation, Outcome::Status(404));
    }
    r.conn().enter_location(core);
    Next::Run
}

fn no_content(r: &mut Request, generation: &Rc<LoopGeneration>) -> Next {
    if r.uri.path.ends_with(b"/") {
        let mut path = Vec::new();
        let name = r.filename(&mut path);
        r.log(
            Level::Error,
            format_args!("directory index of \"{}\" is forbidden", tw_log::Text(name.to_bytes())),
        );
        return decide(r, generation, Outcome::Status(403));
    }
    r.log(Level::Error, format_args!("no handler found"));
    decide(r, generation, Outcome::Status(404))
}

fn loops(r: &mut Request, what: &str) -> Next {
    r.log(
        Level::Error,
        format_args!("{what} while internally redirecting to \"{}\"", tw_log::Text(&r.uri.path)),
    );
    // No error page again: looking it up may be what goes round in circles.
    Next::Respond(special::builtin(r, 500))
}

/// Turns the decision of a handler into what happens next.
fn decide(r: &mut Request, generation: &Rc<LoopGeneration>, outcome: Outcome) -> Next {
    match outcome {
        Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => no_content(r, generation),
        Outcome::Respond(body) => match respond::check(r, body) {
            Ok(body) => Next::Respond(body),
            Err(status) => decide(r, generation, Outcome::Status(status)),
        },
        Outcome::Status(code) => match special::respond(r, code, generation) {
            special::Special::Respond(body) => Next::Respond(body),
            special::Special::Again(outcome) => decide(r, generation, outcome),
        },
        Outcome::Redirect { .. } | Outcome::Named(_) if r.course.redirects_left == 0 => {
            loops(r, "rewrite or internal redirection cycle")
        }
        Outcome::Redirect { path, args } => {
            r.course.redirects_left -= 1;
            r.course.origin = Origin::Internal;
            r.course.alias_end = AliasEnd::Nothing;
            r.uri.path = path;
            r.uri.args = args;
            Next::Locate
        }
        Outcome::Named(name) => {
            r.course.redirects_left -= 1;
            r.course.origin = Origin::Internal;
            match generation.server(r.server).named.get(&name) {
                Some(plan) => enter(r, generation, *plan),
                None => {
                    r.log(
                        Level::Error,
                        format_args!("could not find named location \"{}\"", tw_log::Text(&name)),
                    );
                    decide(r, generation, Outcome::Status(500))
                }
            }
        }
    }
}
