//! A location compiled to flat lists: what runs for a request there, in order, and nothing else.
//!
//! Built once at load by the modules' `install`; a module that is off is not in any list.

use std::fmt;
use std::sync::Arc;

use tw_conf::Span;
use tw_http::Method;
use tw_log::Level;

use tw_core::vars::{AwaitVariable, VariableUses};

use crate::awaited_variables::AwaitedVariables;
use crate::body::Body;
use crate::config::location::Location;
use crate::config::server::ServerSettings;
use crate::ids::PlanId;
pub use crate::local_future::{LocalFuture, boxed};
use crate::request::{Parts, Request};
use crate::route::Pattern;
use crate::vars::{Computed, Preparations, Var};

/// Phases of a request, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// First, before the location is chosen.
    PostRead,
    /// `rewrite` and friends at server level, before the location is chosen.
    ServerRewrite,
    /// `rewrite` and friends of the location; a changed URI chooses the location again.
    Rewrite,
    /// Limits.
    Preaccess,
    /// Access control.
    Access,
    /// `try_files`.
    Precontent,
    /// Makes the response; the first handler that does not pass wins.
    Content,
}

impl Phase {
    /// Every phase in order, with nginx's name for it.
    pub const ALL: [(Self, &'static str); PHASES] = [
        (Self::PostRead, "post_read"),
        (Self::ServerRewrite, "server_rewrite"),
        (Self::Rewrite, "rewrite"),
        (Self::Preaccess, "preaccess"),
        (Self::Access, "access"),
        (Self::Precontent, "precontent"),
        (Self::Content, "content"),
    ];
}

/// Number of phases.
pub const PHASES: usize = Phase::Content as usize + 1;

/// Decision of a handler.
#[derive(Debug)]
pub enum Outcome {
    /// Nothing; the next handler goes on.
    Pass,
    /// The URI was changed: choose the location again after this phase (only in rewrite phases).
    Rewritten,
    /// The phase is done; its other handlers are skipped (`break`). In the access phase: access is granted, so with `satisfy any`
    /// only [protections](AccessPurpose::Protection) are asked any more.
    PhaseDone,
    /// `r.response` is the head of the response, this is its body.
    Respond(Body),
    /// A response made from its code: error page, redirect, or the built-in page.
    Status(u16),
    /// An internal redirect: the request starts again with another URI and arguments.
    Redirect {
        /// New path, normalised.
        path: Vec<u8>,
        /// New arguments, without `?`.
        args: Vec<u8>,
    },
    /// Go on in a named location (`@name`), keeping the URI.
    Named(Box<[u8]>),
}

impl fmt::Display for Outcome {
    /// For the log of steps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pass => f.write_str("pass"),
            Self::Rewritten => f.write_str("URI changed"),
            Self::PhaseDone => f.write_str("done"),
            Self::Respond(_) => f.write_str("response"),
            Self::Status(code) => write!(f, "status {code}"),
            Self::Redirect { .. } => f.write_str("internal redirect"),
            Self::Named(name) => write!(f, "location \"{}\"", tw_log::Text(name)),
        }
    }
}

/// Result of a handler: an outcome now, or a future if it has to wait. Most requests never make the future.
pub enum Step<'a> {
    /// Decided without waiting.
    Now(Outcome),
    /// Something is not in memory.
    Wait(LocalFuture<'a, Outcome>),
}

impl<'a> Step<'a> {
    /// Nothing decided; the next handler goes on.
    pub const PASS: Self = Step::Now(Outcome::Pass);

    /// Waits for the future that `make` returns, see [`boxed`].
    pub fn wait<F: Future<Output = Outcome> + 'a>(make: impl FnOnce() -> F) -> Self {
        Step::Wait(boxed(make))
    }

    /// A response made from its code.
    pub fn status(code: u16) -> Self {
        Step::Now(Outcome::Status(code))
    }
}

/// A set of methods.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MethodSet(u32);

impl MethodSet {
    /// Adds one.
    pub fn add(&mut self, method: Method) {
        self.0 |= 1 << method as u32;
    }

    /// Returns true if the set has `method`.
    pub fn has(self, method: Method) -> bool {
        self.0 & 1 << method as u32 != 0
    }
}

/// Subject of the line of [`Handler::explain`] that names the upstream server.
pub const UPSTREAM: &str = "upstream";

/// Purpose of a handler of the access phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccessPurpose {
    /// Lets clients in: by address, credentials, or what else they have. With `satisfy any`, one of these is enough.
    Admission,
    /// Keeps requests off, whoever sends them: `satisfy` does not apply.
    Protection,
}

/// Runs in a phase.
pub trait Handler: Send + Sync {
    /// Decides about `r`. Must not wait except in the returned future.
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a>;

    /// Describes the effect on `r` for `--explain`: subject of each line, empty if it continues the one before, and text. Does
    /// no I/O and never waits.
    fn explain(&self, _: &mut Request) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    /// Returns true if `--explain` may run it: it looks at files at most, asks no other server and changes nothing.
    fn only_looks(&self) -> bool {
        false
    }

    /// Purpose in the access phase.
    fn access_purpose(&self) -> AccessPurpose {
        AccessPurpose::Admission
    }

    /// Logs a refusal of this handler with `satisfy any`, when no other handler of the access phase has let the request in.
    fn refused(&self, r: &Request) {
        r.log(Level::Error, format_args!("access forbidden by rule"));
    }
}

/// Sees every response before its head is sent: may change `r.response` and wrap the body. Never waits.
pub trait HeaderFilter: Send + Sync {
    /// Filters the response of `r`.
    fn filter(&self, r: &mut Request, body: Body) -> Body;
}

/// Sees the whole body of a response before anything of it is sent, and before header filters and ranges. Subrequests do not
/// pass through it, nor does the page that replaces a response refused by it.
pub trait WholeBodyFilter: Send + Sync {
    /// Filters the response of `r`. May wait for the body. The error is the status to answer with instead.
    fn filter<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>>;
}

/// Runs before the header filters of a response, also of a subrequest: may change `r.response` and wrap the body. May wait.
pub trait ResponseStep: Send + Sync {
    /// Runs for the response of `r`. The error is the status to answer with instead.
    fn run<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>>;
}

/// Runs after the response, before the log handlers. May wait. A request that is cut, because its client is gone or the loop ends, has
/// none.
pub trait LogStep: Send + Sync {
    /// Runs for `r`.
    fn run<'a>(&'a self, r: &'a mut Request) -> LocalFuture<'a, ()>;
}

/// Runs when a body whose response may have trailers ([`ResponseHead::trailers`](tw_http::ResponseHead)) has been pulled
/// to its end: may add some. Never waits.
pub trait TrailerFilter: Send + Sync {
    /// Adds to the trailers of `r`.
    fn fill(&self, r: &mut Request);
}

/// Runs when a request is over; `r.costs.sent` is final. Never waits.
pub trait LogHandler: Send + Sync {
    /// Records `r`.
    fn log(&self, r: &Request);
}

/// Handlers and settings of one location, or of a server outside any location.
pub struct Plan {
    /// The location's name as written; empty for the server's own plan.
    pub name: Box<[u8]>,
    /// Settings of the server it belongs to.
    pub server: Arc<ServerSettings>,
    /// Core settings of the location.
    pub core: Arc<Location>,
    /// Heading of the location; `None` for the server's own plan.
    pub heading: Option<Heading>,
    /// Variable of a predicate location.
    pub predicate: Option<Var>,
    /// Plans of its `if` blocks, in the order they are written.
    pub ifs: Vec<PlanId>,
    /// `limit_except`: the plan for all methods but these.
    pub limit_except: Option<(MethodSet, PlanId)>,
    /// True if a URI that lacks only the slash at the end of the location's name is redirected to it.
    pub adds_slash: bool,
    /// Preparations of variables used here.
    pub prepared: Preparations,
    /// Warnings to be reported once all modules have installed their handlers.
    pub warnings: Vec<(Span, String)>,
    /// True if a directive such as `proxy_pass` sets a content handler, so that no file answers.
    names_content: bool,
    /// True if a module looks for files before the request is answered.
    looks_for_files: bool,
    /// `http2_chunk_size`
    pub chunk_size: usize,
    /// Parts of modules.
    pub parts: Parts,
    /// Handler of CONNECT requests, which enter no location then.
    connect: Option<Box<dyn Handler>>,
    phases: [Vec<Box<dyn Handler>>; PHASES],
    first_filters: Vec<Box<dyn HeaderFilter>>,
    whole_body_filters: Vec<Box<dyn WholeBodyFilter>>,
    response_steps: Vec<Box<dyn ResponseStep>>,
    header_filters: Vec<Box<dyn HeaderFilter>>,
    trailer_filters: Vec<Box<dyn TrailerFilter>>,
    log_steps: Vec<Box<dyn LogStep>>,
    log: Vec<Box<dyn LogHandler>>,
    /// Variables that its modules read, as long as the configuration is loaded.
    pub variable_uses: VariableUses,
    /// Variables that are computed in this location's own way, by slot.
    computed: Vec<(u16, Computed)>,
    made_by: MadeBy,
}

/// Pattern and place of a location in the configuration.
pub struct Heading {
    /// Pattern of its URIs.
    pub pattern: Pattern,
    /// Place in the configuration.
    pub span: Option<Span>,
}

/// Modules of the entries of a plan, beside the lists that requests walk over.
#[derive(Default)]
struct MadeBy {
    phases: [Vec<&'static str>; PHASES],
    header_filters: Vec<&'static str>,
    log: Vec<&'static str>,
    /// True if an entry was added since the last module was noted.
    is_behind: bool,
}

impl Plan {
    /// Plan without handlers.
    pub fn new(name: Box<[u8]>, server: Arc<ServerSettings>, core: Arc<Location>) -> Self {
        Self {
            name,
            server,
            core,
            heading: None,
            ifs: Vec::new(),
            limit_except: None,
            predicate: None,
            adds_slash: false,
            prepared: Preparations::default(),
            warnings: Vec::new(),
            names_content: false,
            looks_for_files: false,
            chunk_size: usize::MAX,
            parts: Parts::default(),
            connect: None,
            phases: Default::default(),
            first_filters: Vec::new(),
            whole_body_filters: Vec::new(),
            response_steps: Vec::new(),
            header_filters: Vec::new(),
            trailer_filters: Vec::new(),
            log_steps: Vec::new(),
            log: Vec::new(),
            variable_uses: VariableUses::default(),
            computed: Vec::new(),
            made_by: MadeBy::default(),
        }
    }

    /// Notes that `module` made every entry that has no maker yet. Called after each module's `install`.
    pub fn credit(&mut self, module: &'static str) {
        let made_by = &mut self.made_by;
        // Most modules add nothing to most plans.
        if !std::mem::take(&mut made_by.is_behind) {
            return;
        }
        for (names, handlers) in made_by.phases.iter_mut().zip(&self.phases) {
            names.resize(handlers.len(), module);
        }
        made_by.header_filters.resize(self.header_filters.len(), module);
        made_by.log.resize(self.log.len(), module);
    }

    /// Names of the modules whose handlers run in one phase, in order.
    pub fn modules(&self, phase: Phase) -> &[&'static str] {
        &self.made_by.phases[phase as usize]
    }

    /// Names of the modules whose header filters see the response, in order.
    pub fn filter_modules(&self) -> &[&'static str] {
        &self.made_by.header_filters
    }

    /// Names of the modules whose log handlers run, in order.
    pub fn log_modules(&self) -> &[&'static str] {
        &self.made_by.log
    }

    /// Says how a slot is computed here, if nothing was stored in it. The value is kept in the request.
    pub fn compute(&mut self, slot: u16, computed: Computed) {
        self.computed.push((slot, computed));
    }

    /// Computation of a slot that is special to this plan.
    pub fn computed(&self, slot: u16) -> Option<&Computed> {
        self.computed.iter().find(|(at, _)| *at == slot).map(|(_, computed)| computed)
    }

    /// Adds a handler to the end of a phase.
    pub fn add(&mut self, phase: Phase, handler: impl Handler + 'static) {
        self.made_by.is_behind = true;
        self.phases[phase as usize].push(Box::new(handler));
    }

    /// From now on a URI that lacks only the slash at the end of the location's name is sent there (301), as it is to a
    /// directory: what answers in the location has paths below that slash.
    pub fn add_slash(&mut self) {
        self.adds_slash = true;
    }

    /// Notes that something here looks whether files exist.
    pub fn look_for_files(&mut self) {
        self.looks_for_files = true;
    }

    /// Returns true if a module before this one looks for files.
    pub fn looks_for_files(&self) -> bool {
        self.looks_for_files
    }

    /// Adds a warning to the report of loading the configuration.
    pub fn warn(&mut self, span: Span, message: String) {
        self.warnings.push((span, message));
    }

    /// Makes `handler` the only one of the content phase, as `return` or a proxy does.
    pub fn set_content(&mut self, handler: impl Handler + 'static) {
        let content = &mut self.phases[Phase::Content as usize];
        content.clear();
        self.names_content = true;
        self.made_by.is_behind = true;
        self.made_by.phases[Phase::Content as usize].clear();
        content.push(Box::new(handler));
    }

    /// Makes `handler` the one that answers the CONNECT requests of the server whose own plan this is. They enter no
    /// location; the phases before the content are those of the server.
    pub fn set_connect(&mut self, handler: impl Handler + 'static) {
        self.connect = Some(Box::new(handler));
    }

    /// Handler of `r`, if it is a CONNECT request that enters no location.
    pub fn connect_handler(&self, r: &Request) -> Option<&dyn Handler> {
        // A part of a response has no connection that could become a tunnel.
        self.connect.as_deref().filter(|_| r.method() == Method::Connect && !r.is_subrequest())
    }

    /// Returns true after a call of [`set_content`](Self::set_content).
    pub fn names_content(&self) -> bool {
        self.names_content
    }

    /// Adds a header filter; filters run in the order of the list of modules.
    pub fn add_header_filter(&mut self, filter: impl HeaderFilter + 'static) {
        self.made_by.is_behind = true;
        self.header_filters.push(Box::new(filter));
    }

    /// Adds a filter that runs on a handler's response before conditions and ranges, and may replace the response.
    /// Error pages do not pass through the filter.
    pub fn add_first_filter(&mut self, filter: impl HeaderFilter + 'static) {
        self.first_filters.push(Box::new(filter));
    }

    /// Adds a filter of whole bodies.
    pub fn add_whole_body_filter(&mut self, filter: impl WholeBodyFilter + 'static) {
        self.whole_body_filters.push(Box::new(filter));
    }

    /// Adds a step before the header filters.
    pub fn add_response_step(&mut self, step: impl ResponseStep + 'static) {
        self.response_steps.push(Box::new(step));
    }

    /// Adds a step before the log handlers.
    pub fn add_log_step(&mut self, step: impl LogStep + 'static) {
        self.log_steps.push(Box::new(step));
    }

    /// Adds a trailer filter.
    pub fn add_trailer_filter(&mut self, filter: impl TrailerFilter + 'static) {
        self.trailer_filters.push(Box::new(filter));
    }

    /// Adds a log handler.
    pub fn add_log(&mut self, handler: impl LogHandler + 'static) {
        self.made_by.is_behind = true;
        self.log.push(Box::new(handler));
    }

    /// The handlers of one phase in order.
    pub fn handlers(&self, phase: Phase) -> &[Box<dyn Handler>] {
        &self.phases[phase as usize]
    }

    /// The filters that come before conditions, in order.
    pub fn first_filters(&self) -> &[Box<dyn HeaderFilter>] {
        &self.first_filters
    }

    /// The header filters in order.
    pub fn header_filters(&self) -> &[Box<dyn HeaderFilter>] {
        &self.header_filters
    }

    /// The filters of whole bodies in order.
    pub fn whole_body_filters(&self) -> &[Box<dyn WholeBodyFilter>] {
        &self.whole_body_filters
    }

    /// The steps before the header filters, in order.
    pub fn response_steps(&self) -> &[Box<dyn ResponseStep>] {
        &self.response_steps
    }

    /// Returns true if something has to be waited for before the header filters.
    pub fn has_waits_before_filters(&self) -> bool {
        !self.whole_body_filters.is_empty() || !self.response_steps.is_empty()
    }

    /// The steps before the log handlers, in order.
    pub fn log_steps(&self) -> &[Box<dyn LogStep>] {
        &self.log_steps
    }

    /// Has awaited variables computed before each place in which `module` reads them: before its handlers, its header filters and its log
    /// handlers. What has no such place is read by the handlers of the content, or by what they call; or by variables of the module, if it
    /// has any (`has_variables`), which the first handler may read.
    pub fn await_variables(
        &mut self,
        module: &str,
        variables: Vec<AwaitVariable<Request>>,
        has_variables: bool,
    ) {
        let awaited = AwaitedVariables(variables.into());
        let mut has_place = false;
        for (handlers, modules) in self.phases.iter_mut().zip(&mut self.made_by.phases) {
            if let Some(at) = modules.iter().position(|candidate| *candidate == module) {
                has_place = true;
                let name = modules.get(at).copied().unwrap_or_default();
                handlers.insert(at, Box::new(awaited.clone()));
                modules.insert(at, name);
            }
        }
        if self.made_by.header_filters.contains(&module) {
            has_place = true;
            self.response_steps.push(Box::new(awaited.clone()));
        }
        if self.made_by.log.contains(&module) {
            has_place = true;
            self.log_steps.push(Box::new(awaited.clone()));
        }
        if !has_place {
            // The first phase from here on that has handlers.
            let from = if has_variables { 0 } else { Phase::Precontent as usize };
            let at = (from..PHASES).find(|at| !self.phases[*at].is_empty()).unwrap_or(from);
            self.phases[at].insert(0, Box::new(awaited));
            self.made_by.phases[at].insert(0, "variables");
        }
    }

    /// The trailer filters in order.
    pub fn trailer_filters(&self) -> &[Box<dyn TrailerFilter>] {
        &self.trailer_filters
    }

    /// The log handlers in order.
    pub fn log_handlers(&self) -> &[Box<dyn LogHandler>] {
        &self.log
    }
}

impl<T: Handler> Handler for Arc<T> {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        (**self).handle(r)
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        (**self).explain(r)
    }

    fn only_looks(&self) -> bool {
        (**self).only_looks()
    }

    fn access_purpose(&self) -> AccessPurpose {
        (**self).access_purpose()
    }

    fn refused(&self, r: &Request) {
        (**self).refused(r);
    }
}

impl<T: HeaderFilter> HeaderFilter for Arc<T> {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        (**self).filter(r, body)
    }
}

impl<T: WholeBodyFilter> WholeBodyFilter for Arc<T> {
    fn filter<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        (**self).filter(r, body)
    }
}

impl<T: ResponseStep> ResponseStep for Arc<T> {
    fn run<'a>(&'a self, r: &'a mut Request, body: Body) -> LocalFuture<'a, Result<Body, u16>> {
        (**self).run(r, body)
    }
}

impl<T: TrailerFilter> TrailerFilter for Arc<T> {
    fn fill(&self, r: &mut Request) {
        (**self).fill(r);
    }
}

impl<T: LogHandler> LogHandler for Arc<T> {
    fn log(&self, r: &Request) {
        (**self).log(r);
    }
}
