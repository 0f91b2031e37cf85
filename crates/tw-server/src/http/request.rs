//! One request while it is served.
//!
//! A request is a box that its loop uses again and again: everything in it keeps its memory, so a request for a hot file
//! allocates nothing.

use std::any::Any;
use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::rc::Rc;
use std::time::Instant;

use tw_base::Limit;
use tw_core::generation::DebugLines;
use tw_core::vars::Bindings;
use tw_disk::{Account, Disk, JobClass, JobSource};
use tw_http::{Method, RequestHead, ResponseHead};
use tw_log::Level;
use tw_net::Addr;
use tw_rt::clock::UnixTime;

use super::client::Client;
use super::generation::{LoopGeneration, PlanId, ServerId};
use super::plan::Plan;
use super::proxy::upstream_state::{UpstreamContext, UpstreamState};
use super::request_body::RequestBody;
use super::subrequest::PartOf;
use super::variables::random_id;
use super::wire::Wire;
use crate::config::location::{Root, RootKind};

/// Internal redirects of one request before it is ended with 500 (nginx's NGX_HTTP_MAX_URI_CHANGES).
pub const INTERNAL_REDIRECTS_MAX: u8 = 10;

pub(crate) const LIMITS: &[Limit] = &[Limit::count(
    "INTERNAL_REDIRECTS_MAX",
    INTERNAL_REDIRECTS_MAX as u64,
    "Internal redirects of one request, rewrites included",
    "500",
)];

/// A request and its response.
pub struct Request {
    /// The head as the client sent it.
    pub head: RequestHead,
    /// Whose request it is; `None` only between two requests.
    connection: Option<Link>,
    /// What answers it.
    pub route: Route,
    /// The current URI.
    pub uri: Uri,
    /// What its variables are bound to: the values of slots, and what the last regular expression captured.
    pub bindings: Bindings,
    /// How it came to this location.
    pub state: RequestState,
    /// The body of the request.
    pub body: RequestBody,
    /// The head of the response.
    pub out: ResponseHead,
    /// What is known of it besides.
    pub facts: Facts,
    /// What it costs.
    pub costs: Costs,
}

/// What answers a request.
pub struct Route {
    /// The server.
    pub server: ServerId,
    /// The plan it runs by: of a location, or of the server.
    pub plan: PlanId,
    /// The plan whose content handler answers in the place of `plan`'s: an earlier `if` of the location has named it.
    pub(crate) content_plan: Option<PlanId>,
    /// The host: of the request line or `Host`, in lower case, without port; empty if there is none.
    pub host: Vec<u8>,
    /// `$realpath_root`, computed when the plan asks for it.
    pub realpath_root: Option<Vec<u8>>,
}

/// What is known of a request besides what its head says.
pub struct Facts {
    /// When the first byte of the request was there.
    pub started: Started,
    /// When its head had been read, in the ticks of the loop's table of files.
    pub(crate) read_at: u64,
    /// `$request_id`, made when it is first asked for.
    pub id: Cell<Option<[u8; 16]>>,
    /// Who the client is, if that is not the peer of the connection.
    told: Option<Box<Told>>,
    /// What it is a part of, if it is a subrequest.
    pub(crate) part_of: Option<PartOf>,
    /// What modules keep with it.
    pub states: States,
    /// The upstream servers that were asked.
    pub upstream: UpstreamState,
}

/// What a request costs.
pub struct Costs {
    /// What has been sent.
    pub sent: Sent,
    /// What the disk cost.
    pub account: Account,
    /// `$limit_rate`, when something other than the configuration set it; bytes per second.
    pub limit_rate: Option<u64>,
}

impl Default for Costs {
    fn default() -> Self {
        let account = Account::new(JobClass::Hit, JobSource::NONE);
        Self { sent: Sent::default(), account, limit_rate: None }
    }
}

/// Who asks, as `real_ip_header` and the like found out.
struct Told {
    addr: Addr,
    text: Box<str>,
}

/// What modules keep with a request: at most one value of a type, dropped when the request is over, so that it can also be
/// a guard. Subrequests share what their parent had when they began.
#[derive(Default, Clone)]
pub struct States {
    own: Vec<Rc<dyn Any>>,
    /// What requests beside this one have, too.
    common: Vec<Rc<dyn Any>>,
}

impl States {
    /// The value of this type.
    pub fn get<T: 'static>(&self) -> Option<Rc<T>> {
        let all = || self.own.iter().chain(&self.common);
        all().find(|state| state.is::<T>())?.clone().downcast().ok()
    }

    /// Keeps `state`, in the place of one of its type.
    pub fn put<T: 'static>(&mut self, state: Rc<T>) {
        self.own.retain(|known| !known.is::<T>());
        self.own.push(state);
    }

    /// The same for what is no guard: a request that runs beside this one, and perhaps longer, has it, too. A type is kept by
    /// one of the two.
    pub fn put_common<T: 'static>(&mut self, state: Rc<T>) {
        self.common.retain(|known| !known.is::<T>());
        self.common.push(state);
    }

    /// Drops what guards the request.
    fn leave_own(&mut self) {
        self.own.clear();
    }

    fn clear(&mut self) {
        self.own.clear();
        self.common.clear();
    }
}

/// Who asks, the way there, and the configuration the request is served by.
struct Link {
    client: Rc<Client>,
    wire: Wire,
    generation: Rc<LoopGeneration>,
}

/// The current URI: what the client asked for, until something rewrites it.
#[derive(Debug, Default)]
pub struct Uri {
    /// Normalised path.
    pub path: Vec<u8>,
    /// Arguments without `?`.
    pub args: Vec<u8>,
}

/// How a request came to where it is.
#[derive(Debug)]
pub struct RequestState {
    /// Internal redirects left.
    pub redirects_left: u8,
    /// Who sent it to the current location.
    pub origin: RequestOrigin,
    /// The status the client will see whatever the response's own is (nginx: err_status).
    pub error_status: Option<u16>,
    /// Whether `error_page` still applies.
    pub error_pages: ErrorPages,
    /// The method, when an error page changed it to GET.
    pub method: Option<Method>,
    /// Whether the client's connection may be used again after this request.
    pub after: After,
    /// Whether a part of the response may be sent.
    pub ranges: Ranges,
    /// Who decides about the conditions of the request.
    pub conditions: Conditions,
    /// What follows the path of an `alias` in a regular expression.
    pub alias_end: AliasEnd,
    /// Whether `rewrite` has given the URI its last form.
    pub rewritten: Rewritten,
    /// True while its connection still has to write it into the log.
    pub(crate) is_log_due: bool,
}

/// Whether `rewrite` has given the URI its last form, of which the name of the location is no part (nginx: valid_location).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rewritten {
    /// It has not: a location is chosen by the URI.
    No,
    /// It has: a `break` keeps it here.
    Here,
}

/// What follows the path of an `alias` in a regular expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AliasEnd {
    /// Nothing: the path is complete.
    Nothing,
    /// The URI, which `try_files` has found there (nginx: add_uri_to_alias).
    Uri,
}

/// Whether a response may be sent in part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ranges {
    /// `Range` is answered, and `Accept-Ranges` says so.
    Allowed,
    /// The same for one range; who asks for more gets all.
    One,
    /// `Range` is ignored.
    Refused,
}

/// Who decides about `If-Modified-Since` and the other conditions of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conditions {
    /// They are asked of the response.
    Open,
    /// As `Open`, and a time counts only where no tag is given.
    OpenByRfc9110,
    /// Whoever made the response has decided.
    Answered,
}

/// Who chose the current URI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestOrigin {
    /// The client.
    Client,
    /// The server itself; `internal` locations may answer.
    Internal,
}

/// Whether a status may have an error page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorPages {
    /// It may.
    Allowed,
    /// This is the error page of another status already.
    Used,
}

/// What becomes of the connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It waits for the next request.
    KeepAlive,
    /// It is closed, once the client has had the chance to read the response.
    Close,
    /// It is closed at once.
    Abort,
}

impl After {
    /// Not kept alive, whatever else it is.
    #[must_use]
    pub fn or_close(self) -> Self {
        match self {
            Self::KeepAlive | Self::Close => Self::Close,
            Self::Abort => Self::Abort,
        }
    }
}

/// When a request began.
#[derive(Debug, Clone, Copy)]
pub struct Started {
    /// Monotonic.
    pub at: Instant,
    /// Wall clock.
    pub unix: UnixTime,
    /// Whether the connection had to wait for it.
    pub arrival: Arrival,
}

/// How a request came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrival {
    /// The connection was waiting for it.
    Awaited,
    /// Some of it was there before the last response was sent (pipelining).
    Pipelined,
}

/// Bytes that went to the client.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sent {
    /// Head and body, as they went over the wire.
    pub bytes: u64,
    /// Bytes of the head.
    pub head: u64,
    /// Whether the whole response was sent.
    pub complete: bool,
}

impl Sent {
    /// Bytes of the body over the wire.
    pub fn body(&self) -> u64 {
        self.bytes.saturating_sub(self.head)
    }
}

impl Request {
    /// A request that belongs to nobody yet.
    pub(crate) fn new() -> Self {
        Self {
            head: RequestHead::new(),
            connection: None,
            route: Route {
                server: ServerId(0),
                plan: PlanId(0),
                content_plan: None,
                host: Vec::new(),
                realpath_root: None,
            },
            uri: Uri::default(),
            bindings: Bindings::default(),
            state: RequestState::new(),
            body: RequestBody::default(),
            out: ResponseHead::new(200),
            facts: Facts {
                started: Started::now(Arrival::Awaited),
                read_at: 0,
                id: Cell::new(None),
                told: None,
                part_of: None,
                states: States::default(),
                upstream: UpstreamState::default(),
            },
            costs: Costs::default(),
        }
    }

    /// Binds it to a client and its loop's current generation.
    pub(crate) fn bind(&mut self, client: &Rc<Client>, wire: Wire) {
        self.connection = Some(Link { client: client.clone(), wire, generation: client.home.generation() });
    }

    /// Makes it a request of the same client for `uri`, as a part of `parent`.
    pub(crate) fn bind_to(&mut self, parent: &Self, uri: Uri, part_of: PartOf) {
        let Link { client, wire, generation } = parent.connection();
        let (client, wire, generation) = (client.clone(), wire.clone(), generation.clone());
        self.connection = Some(Link { client, wire, generation });
        self.head.copy_head(&parent.head);
        self.route.server = parent.route.server;
        self.route.plan = parent.route.plan;
        self.route.content_plan = parent.route.content_plan;
        self.route.host.extend_from_slice(&parent.route.host);
        self.uri = uri;
        self.state.origin = RequestOrigin::Internal;
        self.state.method = Some(Method::Get);
        self.body = RequestBody::absent();
        self.facts.started = Started::now(parent.facts.started.arrival);
        self.facts.read_at = parent.facts.read_at;
        // One for all of them, whichever asks for it first.
        let id = parent.facts.id.get().unwrap_or_else(random_id);
        parent.facts.id.set(Some(id));
        self.facts.id.set(Some(id));
        self.facts.states = parent.facts.states.clone();
        if let Some(told) = &parent.facts.told {
            self.set_client_addr(told.addr.clone());
        }
        self.facts.part_of = Some(part_of);
    }

    /// Takes the client away, who waits for no response: what he is known by stays. Returns the way to him.
    pub(crate) fn leave_client(&mut self) -> Wire {
        // The connection is not at hand from here on.
        self.local_addr();
        let connection = self.connection.as_mut().expect("a request is bound before anyone sees it");
        std::mem::replace(&mut connection.wire, Wire::Nobody)
    }

    /// Takes back what [`leave_client`](Self::leave_client) gave.
    pub(crate) fn return_to(&mut self, wire: Wire) {
        if let Some(connection) = &mut self.connection {
            connection.wire = wire;
        }
    }

    /// Makes it go its own way from `parent`, of which it is a part: beside it, and perhaps longer than that.
    pub(crate) fn part_from(&mut self, parent: &Self) {
        self.leave_client();
        self.bindings.copy_values(&parent.bindings);
        self.state.method = parent.state.method;
        // What guards the parent ends with the parent.
        self.facts.states.leave_own();
    }

    /// Makes it one that its parent's location answers at once, as it would answer `parent`: the phases have run that decide how.
    pub(crate) fn stay_where(&mut self, parent: &Self) {
        self.state.method = parent.state.method;
        self.state.alias_end = parent.state.alias_end;
        self.state.rewritten = parent.state.rewritten;
        self.bindings.captures.get_mut().clone_from(&parent.bindings.captures.borrow());
    }

    /// Whether it is a part of another request: its head is its client's, its response is a part of another.
    pub fn is_subrequest(&self) -> bool {
        self.facts.part_of.is_some()
    }

    /// The client's address.
    pub fn client_addr(&self) -> &Addr {
        self.facts.told.as_ref().map_or_else(|| self.client().peer(), |told| &told.addr)
    }

    /// The client's address as text without port: `$remote_addr`.
    pub fn client_text(&self) -> &str {
        self.facts.told.as_ref().map_or_else(|| self.client().peer_text(), |told| &told.text)
    }

    /// The address the client connected to. One system call, the first time.
    pub fn local_addr(&self) -> &Addr {
        let Link { client, wire, .. } = self.connection();
        client.local_or(|| wire.local_addr())
    }

    /// Takes `addr` for the client's address from here on.
    pub fn set_client_addr(&mut self, addr: Addr) {
        let text = addr.client_text();
        self.facts.told = Some(Box::new(Told { addr, text }));
    }

    /// Goes on by the plan of an `if` block: the one number `nth` of the location whose plan is `of`.
    ///
    /// A content handler named by an `if` before answers unless this one names another: nothing falls back to files.
    // DIFF(nginx): that handler answers by the settings of its own block; in nginx it finds none and says 500.
    pub fn enter_if(&mut self, of: PlanId, nth: usize) {
        let generation = self.generation().clone();
        if let Some(plan) = generation.plan(of).ifs.get(nth) {
            let before = std::mem::replace(&mut self.route.plan, *plan);
            if generation.plan(*plan).names_content() {
                self.route.content_plan = None;
            } else if generation.plan(before).names_content() {
                self.route.content_plan = Some(before);
            }
        }
    }

    /// The plan whose content handlers answer.
    pub(crate) fn content_plan(&self) -> PlanId {
        self.route.content_plan.unwrap_or(self.route.plan)
    }

    /// Lets go of the client and of everything the request held; memory stays.
    pub(crate) fn unbind(&mut self) {
        self.clear();
        self.head.clear();
        self.connection = None;
    }

    fn connection(&self) -> &Link {
        self.connection.as_ref().expect("a request is bound before anyone sees it")
    }

    /// Who asks.
    pub fn client(&self) -> &Rc<Client> {
        &self.connection().client
    }

    /// The way to the client.
    pub fn wire(&self) -> &Wire {
        &self.connection().wire
    }

    /// The configuration it is served by.
    pub fn generation(&self) -> &Rc<LoopGeneration> {
        &self.connection().generation
    }

    /// Begins the next request of the connection.
    pub(crate) fn begin(&mut self) {
        let is_first = self.client().requests.get() == 0;
        let arrival = if is_first || self.head.is_idle() { Arrival::Awaited } else { Arrival::Pipelined };
        self.facts.started = Started::now(arrival);
    }

    /// Forgets the request; memory, and bytes already read of the next one, stay.
    pub(crate) fn clear(&mut self) {
        self.route.content_plan = None;
        self.route.host.clear();
        self.uri.path.clear();
        self.uri.args.clear();
        self.bindings.clear();
        self.state = RequestState::new();
        self.body = RequestBody::default();
        self.out.reset(200);
        self.costs = Costs::default();
        self.route.realpath_root = None;
        self.facts.id.set(None);
        self.facts.states.clear();
        self.facts.upstream.clear();
        self.facts.told = None;
        self.facts.part_of = None;
    }

    /// Notes that `bytes` went to the client.
    pub(crate) fn count_sent(&mut self, bytes: usize) {
        self.costs.sent.bytes += bytes as u64;
        self.client().home.tally.sent.add(bytes as u64);
        if self.facts.upstream.cache.awaits_first_byte() && self.costs.sent.body() > 0 {
            crate::http::cache::record_first_byte(self);
        }
    }

    /// The plan it runs by.
    pub fn plan(&self) -> &Plan {
        self.generation().plan(self.route.plan)
    }

    /// The request method.
    pub fn method(&self) -> Method {
        self.state.method.unwrap_or_else(|| self.head.method())
    }

    /// The name of the method of the client's request: that of the parent in a subrequest, which is itself asked for with
    /// another one, and `GET` in an error page.
    pub fn client_method_name(&self) -> &[u8] {
        let method = match &self.facts.part_of {
            Some(part) => part.client_method(),
            None => self.state.method,
        };
        method.map_or_else(|| self.head.method_bytes(), |method| method.as_str().as_bytes())
    }

    /// The name of the request method.
    pub fn method_name(&self) -> &[u8] {
        match self.state.method {
            Some(method) => method.as_str().as_bytes(),
            None => self.head.method_bytes(),
        }
    }

    /// Path and arguments as the client sent them; `None` if something has changed them, or there is no path.
    pub fn target_as_sent(&self) -> Option<&[u8]> {
        let is_same = self.state.origin == RequestOrigin::Client
            && self.head.target_has_path()
            && self.uri.path == self.head.path()
            && self.uri.args == self.head.args();
        let target = self.head.target();
        let path = if target.first() == Some(&b'/') {
            0
        } else {
            // `http://host/path`
            let host = target.windows(3).position(|three| three == b"://")? + 3;
            host + target[host..].iter().position(|byte| *byte == b'/')?
        };
        is_same.then(|| &target[path..])
    }

    /// The disk of the location, or of the cache that the request has asked where the location says nothing. `None` when `aio threads=…` names a pool that does not exist: then it was logged.
    pub fn disk(&self) -> Option<&Disk> {
        let (aio, disks) = (&self.plan().core.files.aio, &self.generation().disks);
        if aio.is_usual()
            && let Some(cache) = &self.facts.upstream.cache.cache
            && let Some(disk) = cache.own_disk(disks)
        {
            return Some(disk);
        }
        let disk = aio.disk(disks, self);
        if disk.is_none() {
            self.log(Level::Error, format_args!("thread pool of \"aio\" not found"));
        }
        disk
    }

    /// Writes the file name of the current URI into `path`, NUL-terminated.
    pub fn filename<'p>(&self, path: &'p mut Vec<u8>) -> &'p CStr {
        self.filename_of(&self.uri.path, path)
    }

    /// Writes the file name of `uri` at this location into `path`, NUL-terminated. Returns an empty name, which no file
    /// has, should a NUL be in it.
    pub fn filename_of<'p>(&self, uri: &[u8], path: &'p mut Vec<u8>) -> &'p CStr {
        path.clear();
        self.append_filename(uri, path);
        path.push(0);
        CStr::from_bytes_with_nul(path).unwrap_or_default()
    }

    /// Appends the file name of `uri`.
    pub fn append_filename(&self, uri: &[u8], path: &mut Vec<u8>) {
        let Root { path: root, kind, .. } = &self.plan().core.root;
        root.eval(self, path);
        match kind {
            RootKind::Root => path.extend_from_slice(uri),
            RootKind::Alias(len) => path.extend_from_slice(uri.get(*len..).unwrap_or_default()),
            RootKind::Whole if self.state.alias_end == AliasEnd::Uri => path.extend_from_slice(uri),
            RootKind::Whole => {}
        }
    }

    /// Writes a line into the location's error log, with who asked for what, as nginx does.
    pub fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let message = format_args!("{message}{}", Whence(self));
        self.client().write(&self.plan().core.error_log, level, message);
    }

    /// Writes a step into the location's error log, if it takes debug lines. Costs a comparison where no log does.
    pub fn debug(&self, message: fmt::Arguments<'_>) {
        if self.generation().debug_lines == DebugLines::Possible {
            self.client().write(&self.plan().core.error_log, Level::Debug, message);
        }
    }

    /// Seconds since the request began.
    pub fn elapsed(&self) -> std::time::Duration {
        tw_rt::clock::now().saturating_duration_since(self.facts.started.at)
    }
}

impl Started {
    fn now(arrival: Arrival) -> Self {
        Self { at: tw_rt::clock::now(), unix: tw_rt::clock::unix(), arrival }
    }
}

impl RequestState {
    fn new() -> Self {
        Self {
            redirects_left: INTERNAL_REDIRECTS_MAX,
            origin: RequestOrigin::Client,
            error_status: None,
            error_pages: ErrorPages::Allowed,
            method: None,
            after: After::KeepAlive,
            ranges: Ranges::Refused,
            conditions: Conditions::Open,
            alias_end: AliasEnd::Nothing,
            rewritten: Rewritten::No,
            is_log_due: false,
        }
    }
}

/// The end of an error log line: `, client: …, server: …, request: "…", host: "…"`.
struct Whence<'a>(&'a Request);

impl fmt::Display for Whence<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use tw_log::Text;
        let r = self.0;
        write!(f, ", client: {}", r.client_text())?;
        write!(f, ", server: {}", Text(&r.generation().server(r.route.server).settings.name))?;
        if !r.head.request_line().is_empty() {
            write!(f, ", request: \"{}\"", Text(r.head.request_line()))?;
        }
        if r.is_subrequest() {
            write!(f, ", subrequest: \"{}\"", Text(&r.uri.path))?;
        }
        UpstreamContext(&r.facts.upstream).fmt(f)?;
        if let Some(host) = r.head.field_known(tw_http::Known::Host) {
            write!(f, ", host: \"{}\"", Text(host))?;
        }
        if let Some(referer) = r.head.field_known(tw_http::Known::Referer) {
            write!(f, ", referrer: \"{}\"", Text(referer))?;
        }
        Ok(())
    }
}
