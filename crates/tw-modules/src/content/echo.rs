//! `echo` and its like: small programs that make a response, and lines around one (echo-nginx-module). Content phase;
//! header filter, before `add_header`.
//!
//! ```text
//! directives ─ command → Program: a flat list with one kind of loop ─ run → texts and subrequests, in order ─► the response
//! ```
//! A program runs while its response is pulled, so it makes no more than its client takes.
// DIFF(nginx): a request body that the program reads is read before the response begins.

mod around;
mod command;
mod limits;
mod run;
mod state;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, IF_IN_LOCATION, LOCATION, Setting, record};
use tw_core::module::Settings;
use tw_http::target;
use tw_phases::phases;
use tw_request::body::Body;
use tw_request::plan::{Handler, HeaderFilter, Outcome, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::request_body;
use tw_request::vars::VarDef;

use self::around::{Surrounded, SurroundingLines};
use self::command::{Program, RawCommand, RawProgram, RawText};
use self::run::{Failed, Run};

const BLOCKS: u32 = LOCATION | IF_IN_LOCATION;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    program: RawProgram,
    status: Setting<u16>,
    before: Vec<RawText>,
    after: Vec<RawText>,
}

/// Program of one location, and lines around its responses; not inherited.
pub(crate) struct Echo {
    program: Arc<Program>,
    status: u16,
    around: Arc<SurroundingLines>,
}

impl Settings<Http> for Echo {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("echo", "[-n] [--] [text …]", BLOCKS, Args::ANY)
            .since("Tailwater 0.1")
            .doc("Answers with its arguments, blanks between them and a line end behind them, which `-n` leaves out.")
            .set(|raw, node, _| raw.program.add(RawCommand::Text(RawText::line(node)))),
        record::new("echo_duplicate", "count text", BLOCKS, Args::exact(2))
            .since("Tailwater 0.1")
            .doc("Repeats a text; the count may have underscores.")
            .set(|raw, node, _| raw.program.add(RawCommand::duplicate(node)?)),
        record::new("echo_flush", "", BLOCKS, Args::NONE)
            .since("Tailwater 0.1")
            .doc("Sends what is there; filters hold nothing back then.")
            .set(|raw, _, _| raw.program.add(RawCommand::Flush)),
        record::new("echo_sleep", "seconds", BLOCKS, Args::exact(1))
            .since("Tailwater 0.1")
            .doc("Waits, at most a day; the seconds may have three decimals.")
            .set(|raw, node, _| raw.program.add(RawCommand::sleep(node)?)),
        // DIFF(nginx): no event loop waits for one request.
        record::new("echo_blocking_sleep", "seconds", BLOCKS, Args::exact(1))
            .since("Tailwater 0.1")
            .doc("Another name of echo_sleep: only the request waits.")
            .set(|raw, node, _| raw.program.add(RawCommand::sleep(node)?)),
        record::new("echo_reset_timer", "", BLOCKS, Args::NONE)
            .since("Tailwater 0.1")
            .doc("Makes $echo_timer_elapsed begin anew.")
            .set(|raw, _, _| raw.program.add(RawCommand::ResetTimer)),
        record::new("echo_read_request_body", "", BLOCKS, Args::NONE)
            .since("Tailwater 0.1")
            .doc("Reads the body of the request, before the response begins.")
            .set(|raw, _, _| raw.program.add(RawCommand::ReadBody)),
        record::new("echo_location", "uri [args]", BLOCKS, Args::range(1, 2))
            .since("Tailwater 0.1")
            .doc("Answers with the response of another location; the commands behind it run when it has ended.")
            .set(|raw, node, _| raw.program.add(RawCommand::location(node, command::Wait::ForEnd)?)),
        record::new("echo_location_async", "uri [args]", BLOCKS, Args::range(1, 2))
            .since("Tailwater 0.1")
            .doc("Answers with the response of another location, while the commands behind it run already.")
            .set(|raw, node, _| raw.program.add(RawCommand::location(node, command::Wait::No)?)),
        record::new("echo_subrequest", "method uri [-q args] [-b body]", BLOCKS, Args::at_least(2))
            .since("Tailwater 0.1")
            .doc("echo_location with a method and a body.")
            .set(|raw, node, _| raw.program.add(RawCommand::subrequest(node, command::Wait::ForEnd)?)),
        record::new("echo_subrequest_async", "method uri [-q args] [-b body]", BLOCKS, Args::at_least(2))
            .since("Tailwater 0.1")
            .doc("echo_location_async with a method and a body.")
            .set(|raw, node, _| raw.program.add(RawCommand::subrequest(node, command::Wait::No)?)),
        record::new("echo_foreach_split", "separator text", BLOCKS, Args::exact(2))
            .since("Tailwater 0.1")
            .doc("Runs the commands up to echo_end for each part of a text, which is $echo_it; not within another loop.")
            .set(|raw, node, _| raw.program.begin_loop(node)),
        record::new("echo_end", "", BLOCKS, Args::NONE)
            .since("Tailwater 0.1")
            .doc("The end of echo_foreach_split.")
            .set(|raw, node, _| raw.program.end_loop(node)),
        record::new("echo_request_body", "", BLOCKS, Args::NONE)
            .since("Tailwater 0.1")
            .doc("Answers with the body of the request, if that was read.")
            .set(|raw, _, _| raw.program.add(RawCommand::RequestBody)),
        record::new("echo_exec", "uri [args] | @name", BLOCKS, Args::range(1, 2))
            .since("Tailwater 0.1")
            .doc("Goes on in another location; no command before it may have made a part of the response.")
            .set(|raw, node, _| raw.program.add(RawCommand::exec(node)?)),
        record::new("echo_status", "code", BLOCKS, Args::exact(1))
            .default("200")
            .since("Tailwater 0.1")
            .doc("The code of the response of echo and its like, from 200 to 599.")
            .set(|raw, node, _| {
                raw.status.set_with(node, |node| match node.number()? {
                    code @ 200..=599 => Ok(code as u16),
                    _ => Err(node.error("value must be between 200 and 599")),
                })
            }),
        record::new("echo_before_body", "[-n] [--] [text …]", BLOCKS, Args::ANY)
            .since("Tailwater 0.1")
            .doc("A line before the body of a response, whatever makes that.")
            .set(|raw, node, _| {
                raw.before.push(RawText::line(node));
                Ok(())
            }),
        record::new("echo_after_body", "[-n] [--] [text …]", BLOCKS, Args::ANY)
            .since("Tailwater 0.1")
            .doc("A line after the body of a response, whatever makes that.")
            .set(|raw, node, _| {
                raw.after.push(RawText::line(node));
                Ok(())
            }),
    ];

    const VARIABLES: &'static [VarDef] = state::VARIABLES;

    const LIMITS: &'static [Limit] = limits::LIMITS;

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let mut lines =
            |lines: Vec<RawText>| lines.into_iter().map(|line| line.compile(cx)).collect::<Result<_, _>>();
        let around = SurroundingLines { before: lines(raw.before)?, after: lines(raw.after)? };
        Ok(Self {
            program: Arc::new(raw.program.compile(cx)?),
            status: raw.status.or(None, 200),
            around: Arc::new(around),
        })
    }

    fn are_shared(&self) -> bool {
        self.program.is_empty() && self.around.is_empty()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.program.is_empty() {
            plan.set_content(self.clone());
        }
        if !self.around.is_empty() {
            plan.add_header_filter(self.clone());
        }
    }
}

impl Handler for Echo {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        state::begin(r);
        if self.program.must_wait() {
            Step::Wait(Box::pin(self.wait(r)))
        } else {
            Step::Now(self.respond(r, Run::new(self.program.clone())))
        }
    }
}

impl Echo {
    /// Reads the body of the request if the program wants that, and runs up to its first output, or to another location.
    async fn wait(&self, r: &mut Request) -> Outcome {
        if self.program.reads_body()
            && let Err(status) = request_body::read::read(r).await
        {
            return Outcome::Status(status);
        }
        let mut run = Run::new(self.program.clone());
        if self.program.may_leave() {
            let wire = r.wire().clone();
            match wire.unless_gone(run.begin(r)).await {
                Ok(Ok(None)) => {}
                Ok(Ok(Some(outcome))) => return outcome,
                Ok(Err(Failed)) => return Outcome::Status(500),
                Err(client_gone) => return phases::client_closed(r, &client_gone),
            }
        }
        self.respond(r, run)
    }

    /// Answers with what the program makes. An error in its first commands is one of the request.
    fn respond(&self, r: &mut Request, run: Run) -> Outcome {
        r.response.status = self.status;
        if r.response.content_type.is_empty() {
            let core = r.plan().core.clone();
            let bytes = core.types.find(target::exten(&r.uri.path));
            r.response.content_type = bytes.unwrap_or(&core.default_type).clone();
        }
        match run.into_body(r) {
            Ok(body) => Outcome::Respond(body),
            Err(Failed) => Outcome::Status(500),
        }
    }
}

impl HeaderFilter for Echo {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if tw_http::status::has_no_body(r.response.status) {
            return body;
        }
        state::begin_counting(r);
        Body::Pull(Box::new(Surrounded::new(self.around.clone(), body, r)))
    }
}
