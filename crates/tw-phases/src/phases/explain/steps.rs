//! Explanation of the phases of a request: those that find its location are run, and handlers that only look at files.

use std::rc::Rc;

use super::explanation::{Explanation, text, uri_of};
use super::location::explain_location;
use super::response::{explain_end, explain_response};
use crate::phases::{AGAIN, NextStep, call_handler, decide, locate};
use crate::realpath_root;
use tw_request::config::location::Visibility;
use tw_request::generation::LoopGeneration;
use tw_request::plan::{Outcome, Phase, Plan, UPSTREAM};
use tw_request::request::Request;
use tw_request::vars;

/// Goes through the phases as `run_from` does, as far as handlers only look.
pub(super) async fn explain_steps(r: &mut Request, explanation: &mut Explanation) {
    let generation = r.generation().clone();
    let mut next = NextStep::Locate;
    let mut first: &[Phase] = &[Phase::PostRead, Phase::ServerRewrite];
    loop {
        let outcome = match next {
            NextStep::Respond(_) => return explain_response(r, explanation),
            NextStep::Locate => {
                r.route.plan = generation.server(r.route.server).plan;
                let before = std::mem::replace(&mut first, AGAIN);
                match explain_phases(r, &generation, before, explanation).await {
                    Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => {
                        next = locate(r, &generation);
                        if let NextStep::Run = next {
                            explain_location(r, explanation);
                        } else if generation.plan(r.route.plan).core.visibility == Visibility::Internal {
                            explain_location(r, explanation);
                            explanation.add("", "internal: requests of clients get 404", None);
                        }
                        continue;
                    }
                    other => other,
                }
            }
            NextStep::Run => match explain_phases(r, &generation, &[Phase::Rewrite], explanation).await {
                Outcome::Pass | Outcome::PhaseDone => match explain_content(r, explanation).await {
                    Some(outcome) => outcome,
                    None => return,
                },
                Outcome::Rewritten if r.state.redirects_left == 0 => {
                    return explanation.add("response", "500: the rewrites go in a circle", None);
                }
                Outcome::Rewritten => {
                    r.state.redirects_left -= 1;
                    next = NextStep::Locate;
                    continue;
                }
                other => other,
            },
        };
        next = follow(r, &generation, outcome, explanation);
    }
}

/// Follows an outcome to a response, its error page, or another location.
fn follow(
    r: &mut Request,
    generation: &Rc<LoopGeneration>,
    outcome: Outcome,
    explanation: &mut Explanation,
) -> NextStep {
    let named = match &outcome {
        Outcome::Named(name) => Some(text(name)),
        _ => None,
    };
    let status = match &outcome {
        Outcome::Status(status) => Some(*status),
        _ => None,
    };
    let uri = uri_of(r);
    let next = decide(r, generation, outcome);
    match (&next, status, named) {
        (NextStep::Respond(_), ..) => {}
        (_, Some(status), _) => {
            explanation.add("error_page", format!("{status} goes on as {} (was {uri})", uri_of(r)), None);
        }
        (NextStep::Run, None, Some(name)) => {
            explanation.add("redirect", format!("to the named location {name}"), None)
        }
        _ => explanation.add("redirect", format!("internal, to {}", uri_of(r)), None),
    }
    if let NextStep::Run = next {
        explain_location(r, explanation);
    }
    next
}

/// Runs phases, and tells what each handler changed.
async fn explain_phases(
    r: &mut Request,
    generation: &Rc<LoopGeneration>,
    list: &[Phase],
    explanation: &mut Explanation,
) -> Outcome {
    let plan = generation.plan(r.route.plan);
    if plan.prepared.has(vars::REALPATH_ROOT) {
        realpath_root::fill(r).await;
    }
    for phase in list {
        for (handler, module) in plan.handlers(*phase).iter().zip(plan.modules(*phase)) {
            let uri = uri_of(r);
            let before = r.route.plan;
            let explained = handler.explain(r);
            explained.into_iter().for_each(|(about, text)| explanation.add(about, text, None));
            let outcome = call_handler(&**handler, r).await;
            if uri_of(r) != uri {
                explanation.add("rewrite", format!("{uri} becomes {} (module {module})", uri_of(r)), None);
            }
            if r.route.plan != before {
                let inner = generation.plan(r.route.plan);
                let span = inner.heading.as_ref().and_then(|heading| heading.span);
                explanation.add("if", "the condition holds: the settings in its block are used", span);
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::PhaseDone => break,
                Outcome::Respond(body) => {
                    explanation.add(
                        "answer",
                        format!("by module {module} in the {} phase", phase_name(*phase)),
                        None,
                    );
                    return Outcome::Respond(body);
                }
                Outcome::Status(status) => {
                    let name = phase_name(*phase);
                    explanation.add(
                        "answer",
                        format!("{status}, by module {module} in the {name} phase"),
                        None,
                    );
                    return Outcome::Status(status);
                }
                other => return other,
            }
        }
    }
    Outcome::Pass
}

fn phase_name(phase: Phase) -> &'static str {
    Phase::ALL[phase as usize].1
}

/// Goes through the phases behind the rewrites. `None` if the request ends with a handler that does more than look.
async fn explain_content(r: &mut Request, explanation: &mut Explanation) -> Option<Outcome> {
    let generation = r.generation().clone();
    let plan = generation.plan(r.route.plan);
    explain_modules(plan, Phase::Preaccess, explanation);
    explain_modules(plan, Phase::Access, explanation);
    if let Some(handler) = plan.connect_handler(r) {
        let explained = handler.explain(r);
        explanation.add("uri", uri_of(r), None);
        explained.into_iter().for_each(|(about, text)| explanation.add(about, text, None));
        return explain_end(r, plan, explanation);
    }
    explain_modules(plan, Phase::Precontent, explanation);
    for handler in plan.handlers(Phase::Precontent).iter().filter(|handler| handler.only_looks()) {
        let explained = handler.explain(r);
        explained.into_iter().for_each(|(about, text)| explanation.add(about, text, None));
        match call_handler(&**handler, r).await {
            Outcome::Pass => {}
            Outcome::PhaseDone => break,
            other => return Some(other),
        }
    }
    let content = generation.plan(r.content_plan());
    let handlers = content.handlers(Phase::Content);
    let explained: Vec<_> = handlers.iter().flat_map(|handler| handler.explain(r)).collect();
    explanation.add("uri", uri_of(r), None);
    // A request that is passed to an upstream server has no file here.
    let is_file = !explained.iter().any(|(about, _)| *about == UPSTREAM);
    if is_file {
        let mut path = Vec::new();
        r.append_filename(&r.uri.path, &mut path);
        explanation.add_file(path);
    }
    explain_modules(content, Phase::Content, explanation);
    explained.into_iter().for_each(|(about, text)| explanation.add(about, text, None));
    for (handler, module) in handlers.iter().zip(content.modules(Phase::Content)) {
        if !handler.only_looks() {
            return explain_end(r, plan, explanation);
        }
        match call_handler(&**handler, r).await {
            Outcome::Pass => {}
            Outcome::PhaseDone => break,
            outcome @ Outcome::Respond(_) => {
                explanation.add("answer", format!("by module {module} in the content phase"), None);
                return Some(outcome);
            }
            Outcome::Status(status) => {
                let text = format!("{status}, by module {module} in the content phase");
                explanation.add("answer", text, None);
                return Some(Outcome::Status(status));
            }
            other => return Some(other),
        }
    }
    Some(Outcome::Pass)
}

/// Adds the modules of a phase.
fn explain_modules(plan: &Plan, phase: Phase, explanation: &mut Explanation) {
    let modules = plan.modules(phase);
    if !modules.is_empty() {
        explanation.add(phase_name(phase), modules.join(", "), None);
    }
}
