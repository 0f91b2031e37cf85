//! `rewrite`, `if`, `set`, `break`, `return`: small programs that run before the location is chosen, and in it (nginx:
//! ngx_http_rewrite_module). Rewrite phases.
//!
//! ```text
//! directives ─ written → operations as written, `if` with what is in it ─ resolve → Program: a flat list with jumps ─ run
//! ```
//! The program of a `server` block runs in the phase before the location is chosen, that of a location in the one
//! after. The content of an `if` belongs to the program of the block around it; if its condition is true, the request
//! continues with the settings of the `if`.

mod captures;
mod condition;
mod program;
mod raw;
mod replace;
mod return_response;
mod run;
mod set_misc;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{Args, ConfError, Directive, HTTP, record};
use tw_core::module::{Settings, TakeIf};
use tw_request::plan::{Handler, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

use self::condition::IfCondition;
use self::program::Program;
pub(crate) use self::raw::Raw;
use self::raw::{BLOCKS, RawOperation};
use self::run::Run;
use self::set_misc::{Base32, UpstreamLists};

/// The program of one block; it is not inherited.
pub(crate) struct Rewrite {
    program: Program,
    phase: Phase,
    /// `rewrite_log`
    log: bool,
    looks_for_files: bool,
    base32: Base32,
    lists: UpstreamLists,
}

const OWN: &[Directive<Raw>] = &[
    record::new(
        "rewrite",
        "regex replacement [last | break | redirect | permanent]",
        BLOCKS,
        Args::range(2, 3),
    )
    .doc("Changes a URI that matches, or redirects the client.")
    .set(|raw, node, _| {
        raw.operations.push(RawOperation::rewrite(node)?);
        Ok(())
    }),
    record::new("return", "code [text] | code URL | URL", BLOCKS, Args::range(1, 2))
        .doc("Ends the request with this code; 444 closes the connection without an answer.")
        .set(|raw, node, _| {
            raw.operations.push(RawOperation::Return(return_response::RawReturn::parse(node)?));
            Ok(())
        }),
    record::new("break", "", BLOCKS, Args::NONE)
        .doc("Ends the program of the block; the request goes on where it is.")
        .set(|raw, _, _| {
            raw.operations.push(RawOperation::Break);
            Ok(())
        }),
    record::new("set", "$variable value", BLOCKS, Args::exact(2)).doc("Gives a variable a value.").set(
        |raw, node, _| {
            raw.operations.push(RawOperation::set(node)?);
            Ok(())
        },
    ),
    record::flag("rewrite_log", HTTP | BLOCKS)
        .default("off")
        .doc("Writes what rewrite and if do into the error log, at level notice.")
        .set(|raw, node, _| raw.log.set_flag(node)),
];

const LISTS: &[&[Directive<Raw>]] = &[OWN, set_misc::directives::DIRECTIVES];

impl Settings<Http> for Rewrite {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);

    const LIMITS: &'static [Limit] = set_misc::LIMITS;

    const TAKE_IF: Option<TakeIf<Raw>> = Some(|raw, inner, block, _| {
        let condition = IfCondition::parse(block)?;
        let operations = std::mem::take(&mut inner.operations);
        let base32 = std::mem::take(&mut inner.base32);
        raw.operations.push(RawOperation::If(condition, operations, base32));
        Ok(())
    });

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let phase = if cx.block.location().is_some() { Phase::Rewrite } else { Phase::ServerRewrite };
        let looks_for_files = raw.operations.iter().any(RawOperation::looks_for_files);
        let base32 = raw.base32.resolve(&outer.map_or_else(Base32::default, |o| o.base32.clone()));
        let lists = set_misc::join_lists(raw.lists, outer.map(|o| &o.lists));
        if outer.is_none() {
            raw.operations.iter().for_each(|operation| operation.warn_at_http_level(cx));
        }
        let mut program = Program::compile(raw.operations, phase, &base32, &lists, cx);
        if outer.is_none() {
            // The program of `http` has defined its variables; servers must not share the program itself.
            program = Program::default();
        }
        let log = raw.log.or(outer.map(|o| o.log), false);
        Ok(Self { program, phase, looks_for_files, log, base32, lists })
    }

    fn are_shared(&self) -> bool {
        self.program.is_empty()
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.program.is_empty() {
            plan.add(self.phase, self.clone());
        }
        if self.looks_for_files {
            plan.look_for_files();
        }
    }
}

impl Handler for Rewrite {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let mut run = Run::new(&self.program, self.log, r);
        match run.advance(r) {
            Ok(outcome) => Step::Now(outcome),
            Err(file) => Step::Wait(Box::pin(run.wait(r, file))),
        }
    }
}
