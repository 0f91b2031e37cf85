//! The course of a request: server, location, then phase after phase until something answers.

pub mod explain;

use std::rc::Rc;
use std::time::Duration;

use tw_core::regex::{BacktrackLimit, Match, Regex};
use tw_core::session::Session;
use tw_http::escape::Escape;
use tw_log::Level;

use super::decision::{decide, loops, no_content};
use super::realpath_root;
use tw_request::body::Body;
use tw_request::config::location::{Satisfy, Visibility};
use tw_request::generation::{LoopGeneration, PlanId};
use tw_request::local_future::boxed;
use tw_request::plan::{AccessPurpose, Handler, Outcome, Phase, Step};
use tw_request::request::{Request, RequestOrigin};
use tw_request::route::{FailedTest, LocationTests, Pattern};
use tw_request::vars::{self, EvalStatus};
use tw_request::wire::ClientGone;

/// Phases that run before a location is chosen once more.
const AGAIN: &[Phase] = &[Phase::ServerRewrite];

/// Next step of a run through the phases.
pub(super) enum NextStep {
    /// Choose the location for the current URI and start over.
    Locate,
    /// Run the location's phases (a named location, chosen already).
    Run,
    /// Send this.
    Respond(Body),
}

/// Serves `r`: returns the body of the response; its head is `r.response`. Waits only for what handlers wait for.
///
/// No `async fn`, whose future would be moved once more.
pub fn run(r: &mut Request) -> impl Future<Output = Body> {
    run_from(r, NextStep::Locate, &[Phase::PostRead, Phase::ServerRewrite])
}

/// Serves a subrequest: without the phases that see a client's request once.
pub(crate) fn run_part(r: &mut Request) -> impl Future<Output = Body> {
    run_from(r, NextStep::Locate, AGAIN)
}

/// Serves a request whose location is known: with the content phase only.
pub(crate) async fn run_content(r: &mut Request) -> Body {
    let generation = r.generation().clone();
    let answered = match r.route.content_plan {
        Some(_) => content_of_earlier_if(r, &generation).await,
        None => phases(r, &generation, &[Phase::Content]).await,
    };
    let next = match answered {
        Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => no_content(r, &generation),
        other => decide(r, &generation, other),
    };
    run_from(r, next, AGAIN).await
}

/// Goes on with `next`. `first` is what runs before the first location is chosen; what sees a request once is not in it
/// for a request that has been answered already.
async fn run_from(r: &mut Request, mut next: NextStep, mut first: &[Phase]) -> Body {
    let generation = r.generation().clone();
    loop {
        next = match next {
            NextStep::Respond(body) => return body,
            NextStep::Locate => {
                r.route.plan = generation.server(r.route.server).plan;
                set_deadline(r);
                let before = std::mem::replace(&mut first, AGAIN);
                match phases(r, &generation, before).await {
                    Outcome::Pass | Outcome::PhaseDone | Outcome::Rewritten => locate(r, &generation),
                    other => decide(r, &generation, other),
                }
            }
            NextStep::Run => match location_phases(r, &generation).await {
                Outcome::Pass | Outcome::PhaseDone => no_content(r, &generation),
                Outcome::Rewritten if r.state.redirects_left == 0 => {
                    let uri = std::mem::take(&mut r.uri.path);
                    let next = loops(r, format_args!("while processing \"{}\"", tw_log::Text(&uri)));
                    r.uri.path = uri;
                    next
                }
                Outcome::Rewritten => {
                    r.state.redirects_left -= 1;
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
    r.route.plan = generation.server(r.route.server).plan;
    replace_response(r, status).await
}

/// Answers `r` with a status instead of the response that was made for it.
pub async fn replace_response(r: &mut Request, status: u16) -> Body {
    follow(r, Outcome::Status(status)).await
}

/// Goes on with `r`, which has been answered, as `outcome` says.
pub(crate) async fn follow(r: &mut Request, outcome: Outcome) -> Body {
    let generation = r.generation().clone();
    match decide(r, &generation, outcome) {
        NextStep::Respond(body) => body,
        next => boxed(|| run_from(r, next, AGAIN)).await,
    }
}

async fn location_phases(r: &mut Request, generation: &LoopGeneration) -> Outcome {
    if let Some(code) = tw_request::request_body::read::check_announced_size(r) {
        return Outcome::Status(code);
    }
    let plan = r.route.plan;
    let rewritten = phases(r, generation, &[Phase::Rewrite]).await;
    if r.route.plan != plan && generation.plan(r.route.plan).prepared.has(vars::REALPATH_ROOT) {
        Box::pin(realpath_root::fill(r)).await;
    }
    match rewritten {
        Outcome::Pass | Outcome::PhaseDone => {}
        other => return other,
    }
    match phases(r, generation, &[Phase::Preaccess]).await {
        Outcome::Pass | Outcome::PhaseDone => {}
        other => return other,
    }
    // Access is checked for the main request only, as in nginx: a client that may have a page may have its parts.
    if !generation.plan(r.route.plan).handlers(Phase::Access).is_empty() && !r.is_subrequest() {
        match access(r, generation).await {
            Outcome::Pass => {}
            other => return other,
        }
    }
    if let Some(handler) = generation.plan(r.route.plan).connect_handler(r) {
        return Box::pin(call_handler(handler, r)).await;
    }
    if r.route.content_plan.is_some() {
        return Box::pin(async {
            match phases(r, generation, &[Phase::Precontent]).await {
                Outcome::Pass | Outcome::PhaseDone => content_of_earlier_if(r, generation).await,
                other => other,
            }
        })
        .await;
    }
    phases(r, generation, &[Phase::Precontent, Phase::Content]).await
}

/// The content phase of a request whose content handler was named by an `if` before the one that it is in.
async fn content_of_earlier_if(r: &mut Request, generation: &LoopGeneration) -> Outcome {
    for handler in generation.plan(r.content_plan()).handlers(Phase::Content) {
        match call_handler(&**handler, r).await {
            Outcome::Pass => {}
            other => return other,
        }
    }
    Outcome::Pass
}

/// Runs phases until a handler decides something that ends them.
async fn phases(r: &mut Request, generation: &LoopGeneration, list: &[Phase]) -> Outcome {
    let plan = generation.plan(r.route.plan);
    if plan.prepared.has(vars::REALPATH_ROOT) && list.first() < Some(&Phase::Preaccess) {
        Box::pin(realpath_root::fill(r)).await;
    }
    for phase in list {
        for handler in plan.handlers(*phase) {
            let outcome = call_handler(&**handler, r).await;
            if !matches!(outcome, Outcome::Pass) {
                r.debug(format_args!("{phase:?} phase: {outcome}"));
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::PhaseDone => break,
                other => return other,
            }
        }
    }
    Outcome::Pass
}

async fn call_handler(handler: &dyn Handler, r: &mut Request) -> Outcome {
    let outcome = match handler.handle(r) {
        Step::Now(outcome) => outcome,
        Step::Wait(future) => future.await,
    };
    if r.bindings.take_eval_status() == EvalStatus::Failed { Outcome::Status(500) } else { outcome }
}

/// Asks the handlers of the access phase, and decides as `satisfy` says. It applies to admissions; a protection refuses in any case, and
/// lets nobody in.
async fn access(r: &mut Request, generation: &LoopGeneration) -> Outcome {
    let plan = generation.plan(r.route.plan);
    let rule = plan.core.access;
    let mut refused: Option<(u16, &dyn Handler)> = None;
    let mut is_granted = false;
    let handlers = plan.handlers(Phase::Access);
    for (at, handler) in handlers.iter().enumerate() {
        if rule.satisfy == Satisfy::Any {
            match handler.access_purpose() {
                AccessPurpose::Admission if is_granted => continue,
                // No further handler can let the client in.
                AccessPurpose::Protection
                    if refused.is_some() && !is_granted && are_protections(&handlers[at..]) =>
                {
                    break;
                }
                _ => {}
            }
        }
        let outcome = call_handler(&**handler, r).await;
        r.debug(format_args!("Access phase: {outcome}"));
        match outcome {
            Outcome::Pass => {}
            Outcome::PhaseDone if rule.satisfy == Satisfy::Any => {
                r.response.fields.remove(b"WWW-Authenticate");
                r.response.fields.remove(b"Proxy-Authenticate");
                (is_granted, refused) = (true, None);
            }
            Outcome::PhaseDone => {}
            // All of these but the status of a client that is gone (499).
            Outcome::Status(code @ 400..=498)
                if rule.satisfy == Satisfy::Any && handler.access_purpose() == AccessPurpose::Admission =>
            {
                // A password may still help.
                if !matches!(refused, Some((401 | 407, _))) {
                    refused = Some((code, &**handler));
                }
            }
            Outcome::Status(code @ (401 | 407)) => return unauthorized(r, code, rule.delay).await,
            other => return other,
        }
    }
    match refused {
        None => Outcome::Pass,
        Some((code @ (401 | 407), _)) => unauthorized(r, code, rule.delay).await,
        Some((code, handler)) => {
            handler.refused(r);
            Outcome::Status(code)
        }
    }
}

fn are_protections(handlers: &[Box<dyn Handler>]) -> bool {
    handlers.iter().all(|handler| handler.access_purpose() == AccessPurpose::Protection)
}

/// Holds a refusal back for a while.
async fn unauthorized(r: &mut Request, code: u16, delay: Duration) -> Outcome {
    if !delay.is_zero() {
        r.log(Level::Info, format_args!("delaying unauthorized request"));
        if let Err(error) = r.wire().clone().sleep(delay).await {
            return client_closed(r, &error);
        }
    }
    Outcome::Status(code)
}

/// Ends a request whose client went away while it was held back.
pub fn client_closed(r: &Request, client_gone: &ClientGone) -> Outcome {
    r.log(Level::Info, format_args!("{client_gone}"));
    Outcome::Status(499)
}

/// Runs the log phase of a request that is over.
pub(crate) fn log(r: &mut Request) {
    r.upstream.close();
    r.count_cache_use();
    let generation = r.generation().clone();
    generation.plan(r.route.plan).log_handlers().iter().for_each(|handler| handler.log(r));
    r.take_log_handlers().iter().for_each(|handler| handler.log(r));
}

fn locate(r: &mut Request, generation: &Rc<LoopGeneration>) -> NextStep {
    let server = generation.server(r.route.server);
    if generation.plan(server.plan).connect_handler(r).is_some() {
        return enter(r, generation, server.plan);
    }
    let plan = match server.locations.find(&r.uri.path, &mut RequestTests { r, generation }) {
        Ok(plan_id) => plan_id.unwrap_or(server.plan),
        Err(FailedTest) => return decide(r, generation, Outcome::Status(500)),
    };
    let next = enter(r, generation, plan);
    let found_plan = generation.plan(plan);
    // A prefix is longer than the URI only if the URI lacks its final slash.
    let is_plain = found_plan
        .heading
        .as_ref()
        .is_some_and(|heading| matches!(heading.pattern, Pattern::Exact(_) | Pattern::Prefix { .. }));
    let lacks_slash = found_plan.adds_slash && is_plain && found_plan.name.len() == r.uri.path.len() + 1;
    if !lacks_slash || !matches!(next, NextStep::Run) {
        return next;
    }
    let mut location = Vec::new();
    Escape::Uri.push(&found_plan.name, &mut location);
    if !r.uri.args.is_empty() {
        location.push(b'?');
        location.extend_from_slice(&r.uri.args);
    }
    r.response.location = location.into();
    decide(r, generation, Outcome::Status(301))
}

/// Tests of a request that is on its way to its location. What fails is in the error log.
struct RequestTests<'a> {
    r: &'a Request,
    generation: &'a LoopGeneration,
}

impl LocationTests for RequestTests<'_> {
    fn matches(&mut self, regex: &Regex, uri: &[u8]) -> Result<Match, FailedTest> {
        let matched = {
            let mut captures = self.r.bindings.captures.borrow_mut();
            let matched = regex.captures_of_match(uri, &mut captures);
            if matched == Ok(Match::Yes) {
                self.r.store_named(regex, &captures);
            }
            matched
        };
        matched.map_err(|BacktrackLimit| {
            self.r.log(
                Level::Error,
                format_args!("regex exceeded its limit of backtracking on \"{}\"", tw_log::Text(uri)),
            );
            FailedTest
        })
    }

    fn is_set(&mut self, plan: PlanId) -> Result<bool, FailedTest> {
        let Some(predicate) = &self.generation.plan(plan).predicate else { return Ok(false) };
        // Only errors of this evaluation count.
        self.r.bindings.take_eval_status();
        let is_set = predicate.is_set(self.r);
        match self.r.bindings.take_eval_status() {
            EvalStatus::Ok => Ok(is_set),
            EvalStatus::Cycle | EvalStatus::Failed => Err(FailedTest),
        }
    }
}

/// Sets the deadline of `r` by `request_timeout` of its plan, if the configuration uses that.
fn set_deadline(r: &Request) {
    if let Some(deadline) = &r.context.deadline {
        deadline.set(r.plan().core.request_timeout);
    }
}

/// Puts `r` into the location of `plan`.
pub(super) fn enter(r: &mut Request, generation: &Rc<LoopGeneration>, plan: PlanId) -> NextStep {
    r.route.plan = plan;
    r.route.content_plan = None;
    set_deadline(r);
    let found_plan = generation.plan(plan);
    r.debug(format_args!("using configuration \"{}\"", tw_log::Text(&found_plan.name)));
    if found_plan.core.visibility == Visibility::Internal && r.state.origin == RequestOrigin::Client {
        return decide(r, generation, Outcome::Status(404));
    }
    if let Some((methods, others)) = found_plan.limit_except
        && !methods.has(r.method())
    {
        r.route.plan = others;
    }
    NextStep::Run
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use tw_http_testkit::{generation, with_request_of};
    use tw_request::plan::{Handler, Plan};

    /// Counts how often it runs.
    #[derive(Default)]
    struct Runs(AtomicU32);

    impl Handler for Runs {
        fn handle<'a>(&'a self, _: &'a mut Request) -> Step<'a> {
            self.0.fetch_add(1, Relaxed);
            Step::Now(Outcome::Pass)
        }
    }

    /// Sends `/first` to `/second`, and answers that.
    struct Onward;

    impl Handler for Onward {
        fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
            Step::Now(match &*r.uri.path {
                b"/first" => Outcome::Redirect { path: b"/second".to_vec(), args: Vec::new() },
                _ => Outcome::Respond(Body::Empty),
            })
        }
    }

    /// Handler that returns a fixed outcome for every request.
    struct Say(fn() -> Outcome);

    impl Handler for Say {
        fn handle<'a>(&'a self, _: &'a mut Request) -> Step<'a> {
            Step::Now(self.0())
        }
    }

    /// As [`Say`], for a protection.
    struct Protect(fn() -> Outcome);

    impl Handler for Protect {
        fn handle<'a>(&'a self, _: &'a mut Request) -> Step<'a> {
            Step::Now(self.0())
        }

        fn access_purpose(&self) -> AccessPurpose {
            AccessPurpose::Protection
        }
    }

    /// Result for a request after these outcomes of handlers of the access phase.
    fn access_of(satisfy: &str, says: [fn() -> Outcome; 3]) -> String {
        access_with(satisfy, |plan| says.into_iter().for_each(|say| plan.add(Phase::Access, Say(say))))
    }

    /// Result for a request after these handlers of the access phase.
    fn access_with(satisfy: &str, add: impl Fn(&mut Plan)) -> String {
        let mut generation = generation(&format!("{satisfy} server {{ location / {{ }} }}"));
        generation.config.own.plans.iter_mut().for_each(add);
        with_request_of(generation, "GET / HTTP/1.0\r\n\r\n", |r| {
            r.response.fields.append("WWW-Authenticate", "x");
            let generation = r.generation().clone();
            let mut running = pin!(access(r, &generation));
            let polled = running.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            match polled {
                Poll::Ready(Outcome::Pass) => "granted",
                Poll::Ready(Outcome::Status(401)) => "401",
                Poll::Ready(Outcome::Status(403)) => "403",
                Poll::Ready(Outcome::Status(407)) => "407",
                Poll::Ready(Outcome::Status(500)) => "500",
                Poll::Ready(_) => "something else",
                Poll::Pending => "delayed",
            }
            .to_owned()
        })
    }

    #[test]
    fn satisfy_combines_access_handlers() {
        const PASS: fn() -> Outcome = || Outcome::Pass;
        const GRANT: fn() -> Outcome = || Outcome::PhaseDone;
        const FORBID: fn() -> Outcome = || Outcome::Status(403);
        const UNAUTHORIZED: fn() -> Outcome = || Outcome::Status(401);
        const PROXY_UNAUTHORIZED: fn() -> Outcome = || Outcome::Status(407);
        const FAIL: fn() -> Outcome = || Outcome::Status(500);
        for (says, all, any) in [
            ([PASS, PASS, PASS], "granted", "granted"),
            ([GRANT, PASS, PASS], "granted", "granted"),
            ([GRANT, FORBID, PASS], "403", "granted"),
            ([FORBID, GRANT, PASS], "403", "granted"),
            ([FORBID, PASS, PASS], "403", "403"),
            ([FORBID, UNAUTHORIZED, PASS], "403", "401"),
            ([UNAUTHORIZED, FORBID, PASS], "401", "401"),
            ([UNAUTHORIZED, FORBID, GRANT], "401", "granted"),
            ([PROXY_UNAUTHORIZED, FORBID, UNAUTHORIZED], "407", "407"),
            ([PASS, FAIL, GRANT], "500", "500"),
        ] {
            assert_eq!(access_of("satisfy all;", says), all);
            assert_eq!(access_of("satisfy any;", says), any);
        }
        for (says, delayed) in [
            ([UNAUTHORIZED, PASS, PASS], "delayed"),
            ([PROXY_UNAUTHORIZED, PASS, PASS], "delayed"),
            ([FORBID, PASS, PASS], "403"),
        ] {
            assert_eq!(access_of("auth_delay 1h;", says), delayed);
            assert_eq!(access_of("auth_delay 1h; satisfy any;", says), delayed);
        }
        assert_eq!(access_of("auth_delay 1h; satisfy any;", [UNAUTHORIZED, GRANT, PASS]), "granted");
    }

    #[test]
    fn protections_refuse_whatever_else_is_satisfied() {
        const PASS: fn() -> Outcome = || Outcome::Pass;
        const GRANT: fn() -> Outcome = || Outcome::PhaseDone;
        const FORBID: fn() -> Outcome = || Outcome::Status(403);
        const UNAUTHORIZED: fn() -> Outcome = || Outcome::Status(401);
        const PROTECT: fn() -> Outcome = || Outcome::Status(407);
        for (first, protection, last, all, any) in [
            (PASS, PROTECT, PASS, "407", "407"),
            (GRANT, PROTECT, PASS, "407", "407"),
            (PASS, PROTECT, GRANT, "407", "407"),
            (FORBID, PROTECT, GRANT, "403", "407"),
            (FORBID, PASS, GRANT, "403", "granted"),
            (FORBID, PASS, UNAUTHORIZED, "403", "401"),
            (GRANT, PASS, FORBID, "403", "granted"),
            (UNAUTHORIZED, PASS, FORBID, "401", "401"),
        ] {
            for (satisfy, expected) in [("satisfy all;", all), ("satisfy any;", any)] {
                let text = access_with(satisfy, |plan| {
                    plan.add(Phase::Access, Say(first));
                    plan.add(Phase::Access, Protect(protection));
                    plan.add(Phase::Access, Say(last));
                });
                assert_eq!(text, expected, "{satisfy}");
            }
        }
        // A protection behind all other handlers is asked only if these let the client in.
        for (first, expected) in [(PASS, "407"), (GRANT, "407"), (FORBID, "403"), (UNAUTHORIZED, "401")] {
            for satisfy in ["satisfy all;", "satisfy any;"] {
                let text = access_with(satisfy, |plan| {
                    plan.add(Phase::Access, Say(first));
                    plan.add(Phase::Access, Protect(PROTECT));
                });
                assert_eq!(text, expected, "{satisfy}");
            }
        }
    }

    #[test]
    fn post_read_handlers_run_once() {
        let mut generation = generation("server { location / { } }");
        let post_read = Arc::new(Runs::default());
        let server_rewrite = Arc::new(Runs::default());
        for plan in &mut generation.config.own.plans {
            plan.add(Phase::PostRead, post_read.clone());
            plan.add(Phase::ServerRewrite, server_rewrite.clone());
            plan.add(Phase::Content, Onward);
        }
        let path = with_request_of(generation, "GET /first HTTP/1.0\r\n\r\n", |r| {
            let served = pin!(run(r)).poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(served, Poll::Ready(Body::Empty)));
            r.uri.path.clone()
        });
        assert_eq!(path, b"/second");
        assert_eq!((post_read.0.load(Relaxed), server_rewrite.0.load(Relaxed)), (1, 2));
    }
}
