//! Consequence of a handler's outcome: a response, an error page, another location.

use std::rc::Rc;

use tw_log::Level;

use super::error_response;
use super::phases::{NextStep, enter};
use crate::prepare_response;
use tw_request::generation::LoopGeneration;
use tw_request::plan::Outcome;
use tw_request::request::{AliasEnd, Request, RequestOrigin, Rewritten};
use tw_request::request_body;

/// Turns the decision of a handler into what happens next.
pub(super) fn decide(r: &mut Request, generation: &Rc<LoopGeneration>, outcome: Outcome) -> NextStep {
    match outcome {
        Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => no_content(r, generation),
        Outcome::Respond(body) => {
            match request_body::read::discard(r).and_then(|()| prepare_response::check(r, body)) {
                Ok(body) => NextStep::Respond(body),
                Err(status) => decide(r, generation, Outcome::Status(status)),
            }
        }
        Outcome::Status(code) => match error_response::respond(r, code, generation) {
            error_response::ErrorResponse::Respond(body) => {
                // A malformed body has its error response already, which also announces that the connection is closed.
                let _ = request_body::read::discard(r);
                NextStep::Respond(body)
            }
            error_response::ErrorResponse::Again(outcome) => decide(r, generation, outcome),
        },
        Outcome::Redirect { path, .. } if r.state.redirects_left == 0 => {
            loops(r, format_args!("while internally redirecting to \"{}\"", tw_log::Text(&path)))
        }
        Outcome::Named(name) if r.state.redirects_left == 0 => {
            loops(r, format_args!("while redirect to named location \"{}\"", tw_log::Text(&name)))
        }
        Outcome::Redirect { path, args } => {
            r.state.redirects_left -= 1;
            r.state.origin = RequestOrigin::Internal;
            r.state.has_client_target = false;
            r.state.alias_end = AliasEnd::Nothing;
            r.state.rewritten = Rewritten::No;
            r.uri.path = path;
            r.uri.args = args;
            let path = tw_log::Text(&r.uri.path);
            let args = tw_log::Text(&r.uri.args);
            r.debug(format_args!("internal redirect: \"{path}?{args}\""));
            NextStep::Locate
        }
        Outcome::Named(name) if r.uri.path.is_empty() => {
            let name = tw_log::Text(&name);
            r.log(Level::Error, format_args!("empty URI in redirect to named location \"{name}\""));
            NextStep::Respond(error_response::builtin(r, 500))
        }
        Outcome::Named(name) => {
            r.state.redirects_left -= 1;
            r.state.origin = RequestOrigin::Internal;
            match generation.server(r.route.server).named.get(&name) {
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

/// Consequence for a request that no handler answered.
pub(super) fn no_content(r: &mut Request, generation: &Rc<LoopGeneration>) -> NextStep {
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

/// Ends a request that goes round in circles.
pub(super) fn loops(r: &mut Request, what: std::fmt::Arguments<'_>) -> NextStep {
    r.log(Level::Error, format_args!("rewrite or internal redirection cycle {what}"));
    // No error page is used again, because looking it up may be what loops.
    r.state.after = r.state.after.or_close();
    NextStep::Respond(error_response::builtin(r, 500))
}
