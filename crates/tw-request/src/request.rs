//! Request of a client, or subrequest, while it is served.
//!
//! Its loop uses the memory of a request again and again: everything in it keeps its capacity, so a request for a hot file
//! allocates nothing.
//!
//! ```text
//! state       progress through routing       context    times, addresses, trace
//! costs       bytes sent, disk time          extensions values of modules
//! response    head of the response           upstream   attempts, cache lookup
//! file_name   `root`, `alias`                log        lines in the error log
//! ```

mod cache_use;
mod context;
mod costs;
mod extensions;
mod file_name;
mod listen_group;
mod log;
mod parts;
mod spare;
mod state;
pub mod trace;
mod tracing;

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use bytes::Bytes;
use tw_core::vars::Bindings;
use tw_disk::Disk;
use tw_http::{Method, RequestHead, ResponseHead};
use tw_log::Level;
use tw_net::Addr;

use self::context::RealClientAddr;
pub use self::context::SubrequestPosition;
pub use self::context::{RequestArrival, RequestContext, Started};
pub use self::costs::{Costs, Sent};
pub use self::extensions::Extensions;
pub use self::parts::Parts;
pub(crate) use self::state::LIMITS;
pub use self::state::{
    After, AliasEnd, ConditionCheck, ErrorPages, INTERNAL_REDIRECTS_MAX, Ranges, RequestOrigin, RequestState,
    Rewritten,
};
use super::body::Body;
use super::client::Client;
use super::ids::{PlanId, ServerId};
use super::memory_share::MemoryShare;
use super::plan::{LogHandler, Plan};
use super::random_id::random_id;
use super::request_body::RequestBody;
use super::upstream_state::{UpstreamState, UpstreamUrl};
use super::wire::OptionalWire;
use crate::protocol::LoopGeneration;

/// Request with the head of its response.
pub struct Request {
    /// Head as the client sent it.
    pub head: RequestHead,
    /// Client, wire and configuration; `None` only between two requests.
    binding: Option<Binding>,
    /// Server and plan that answer.
    pub route: Route,
    /// Current URI.
    pub uri: Uri,
    /// Values of variables: slots, and captures of the last regular expression.
    pub bindings: Bindings,
    /// Progress through routing.
    pub state: RequestState,
    /// Body of the request.
    pub body: RequestBody,
    /// Head of the response.
    pub response: ResponseHead,
    /// Times, identifiers, addresses and trace.
    pub context: RequestContext,
    /// Values of modules.
    pub extensions: Extensions,
    /// Upstream attempts and the cache lookup.
    pub upstream: UpstreamState,
    /// Resources used.
    pub costs: Costs,
    /// Handlers of its log phase besides those of its location, in whatever location it ends.
    log_handlers: Vec<Box<dyn LogHandler>>,
}

/// Server and plan that answer a request.
pub struct Route {
    /// Server.
    pub server: ServerId,
    /// Plan of the location, or of the server.
    pub plan: PlanId,
    /// Plan whose content handler answers in the place of `plan`'s: that of an earlier `if` of the location.
    pub content_plan: Option<PlanId>,
    /// Host: of the request line or `Host`, in lower case, without port; empty if there is none.
    pub host: Vec<u8>,
    /// `$realpath_root`, computed if the plan needs it.
    pub realpath_root: Option<Vec<u8>>,
}

/// Access of a request to its client.
pub type RequestWire = OptionalWire<Request, Body>;

/// Client, wire and configuration of a request.
struct Binding {
    client: Rc<Client>,
    wire: RequestWire,
    generation: Rc<LoopGeneration>,
}

/// Current URI: that of the client until a rewrite.
#[derive(Debug, Default)]
pub struct Uri {
    /// Normalised path.
    pub path: Vec<u8>,
    /// Arguments without `?`.
    pub args: Vec<u8>,
}

impl Request {
    /// Request without a client.
    pub(crate) fn new() -> Self {
        Self {
            head: RequestHead::new(),
            binding: None,
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
            response: ResponseHead::new(200),
            extensions: Extensions::default(),
            upstream: UpstreamState::default(),
            context: RequestContext {
                started: Started::now(RequestArrival::Awaited),
                read_at: 0,
                id: Cell::new(None),
                real_client_addr: None,
                moved_peer: None,
                position: None,
                trace: OnceCell::new(),
                deadline: None,
            },
            costs: Costs::default(),
            log_handlers: Vec::new(),
        }
    }

    /// Binds the request to a client and the current generation of its loop.
    pub fn bind(&mut self, client: &Rc<Client>, wire: RequestWire) {
        self.binding =
            Some(Binding { client: client.clone(), wire, generation: client.event_loop.generation() });
    }

    /// Makes it a subrequest of `parent` for `uri`.
    pub fn bind_to(&mut self, parent: &Self, uri: Uri, position: SubrequestPosition) {
        let Binding { client, wire, generation } = parent.binding();
        let client = client.clone();
        let wire = wire.clone();
        let generation = generation.clone();
        self.binding = Some(Binding { client, wire, generation });
        self.head.copy_head(&parent.head);
        self.route.server = parent.route.server;
        self.route.plan = parent.route.plan;
        self.route.content_plan = parent.route.content_plan;
        self.route.host.extend_from_slice(&parent.route.host);
        self.uri = uri;
        self.state.origin = RequestOrigin::Internal;
        self.state.has_client_target = false;
        self.state.method = Some(Method::Get);
        self.body = RequestBody::absent();
        self.context.started = Started::now(parent.context.started.arrival);
        self.context.read_at = parent.context.read_at;
        // All subrequests share the ID of the main request, whichever request reads the variable first.
        self.context.id.set(Some(parent.id()));
        self.extensions = parent.extensions.clone();
        self.continue_trace(parent);
        if let Some(real) = &parent.context.real_client_addr {
            self.set_client_addr(real.addr.clone());
        }
        if let Some(moved) = &parent.context.moved_peer {
            self.set_moved_peer(moved.addr.clone());
        }
        self.context.position = Some(position);
    }

    /// Takes the wire away: the client gets no further response. Its data stays. Returns the wire.
    pub fn leave_client(&mut self) -> RequestWire {
        // The address cannot be asked for without the wire.
        self.local_addr();
        let binding = self.binding.as_mut().expect("a request is bound before anyone sees it");
        std::mem::replace(&mut binding.wire, RequestWire::NONE)
    }

    /// Restores the wire that [`leave_client`](Self::leave_client) returned.
    pub fn return_to(&mut self, wire: RequestWire) {
        if let Some(binding) = &mut self.binding {
            binding.wire = wire;
        }
    }

    /// Makes this subrequest of `parent` a background request, which may outlive `parent`.
    pub fn part_from(&mut self, parent: &Self) {
        self.leave_client();
        self.bindings.copy_values(&parent.bindings);
        self.state.method = parent.state.method;
        // Guards such as the counted connection of `limit_conn` end with the parent.
        self.extensions.leave_own();
    }

    /// Makes the location of `parent` answer this subrequest at once as it would answer `parent`, whose phases have run.
    pub fn stay_where(&mut self, parent: &Self) {
        self.state.method = parent.state.method;
        self.state.origin = parent.state.origin;
        self.state.has_client_target = parent.state.has_client_target;
        self.state.alias_end = parent.state.alias_end;
        self.state.rewritten = parent.state.rewritten;
        self.bindings.captures.get_mut().clone_from(&parent.bindings.captures.borrow());
    }

    /// `$request_id`, made on first use.
    pub fn id(&self) -> [u8; 16] {
        let id = self.context.id.get().unwrap_or_else(random_id);
        self.context.id.set(Some(id));
        id
    }

    /// Returns true for a subrequest: its head is that of the client's request, its response a part of the parent's.
    pub fn is_subrequest(&self) -> bool {
        self.context.position.is_some()
    }

    /// Address of the client.
    pub fn client_addr(&self) -> &Addr {
        self.context.real_client_addr.as_ref().map_or_else(|| self.peer(), |real| &real.addr)
    }

    /// Address of the client as text without port: `$remote_addr`.
    pub fn client_text(&self) -> &str {
        self.context.real_client_addr.as_ref().map_or_else(|| self.peer_text(), |real| &real.text)
    }

    /// Address of the connection's other end, which a client over QUIC may change between requests.
    pub fn peer(&self) -> &Addr {
        self.context.moved_peer.as_ref().map_or_else(|| self.client().peer(), |moved| &moved.addr)
    }

    /// Address of the connection's other end as text without port.
    pub fn peer_text(&self) -> &str {
        self.context.moved_peer.as_ref().map_or_else(|| self.client().peer_text(), |moved| &moved.text)
    }

    /// Sets the address of the connection's other end, which has moved since its handshake.
    pub fn set_moved_peer(&mut self, addr: Addr) {
        self.context.moved_peer = Some(RealClientAddr::boxed(addr));
    }

    /// Address that the client connected to. One system call, the first time.
    pub fn local_addr(&self) -> &Addr {
        let Binding { client, wire, .. } = self.binding();
        client.local_or(|| wire.get()?.local_addr())
    }

    /// Sets the address of the client.
    pub fn set_client_addr(&mut self, addr: Addr) {
        self.context.real_client_addr = Some(RealClientAddr::boxed(addr));
    }

    /// Enters the plan of `if` block number `nth` of the location with plan `of`.
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

    /// Plan whose content handlers answer.
    pub fn content_plan(&self) -> PlanId {
        self.route.content_plan.unwrap_or(self.route.plan)
    }

    /// Gives a subrequest a body of its own, or none, whatever the client's request has.
    pub fn replace_body(&mut self, body: Option<Bytes>) {
        self.head.announce_body(body.as_ref().map(|body| body.len() as u64));
        self.body = RequestBody::of_bytes(body.unwrap_or_default());
    }

    /// Drops the client and all values; memory stays.
    pub fn unbind(&mut self) {
        self.clear();
        self.head.clear();
        self.binding = None;
    }

    fn binding(&self) -> &Binding {
        self.binding.as_ref().expect("a request is bound before anyone sees it")
    }

    /// Client of the request.
    pub fn client(&self) -> &Rc<Client> {
        &self.binding().client
    }

    /// Wire to the client.
    pub fn wire(&self) -> &RequestWire {
        &self.binding().wire
    }

    /// Configuration of the request, from its begin to its end.
    pub fn generation(&self) -> &Rc<LoopGeneration> {
        &self.binding().generation
    }

    /// Begins the next request of the connection.
    pub fn begin(&mut self) {
        let is_first = self.client().requests.get() == 0;
        let arrival =
            if is_first || self.head.is_idle() { RequestArrival::Awaited } else { RequestArrival::Pipelined };
        self.context.started = Started::now(arrival);
    }

    /// Clears the request; memory, and bytes already read of the next one, stay.
    pub fn clear(&mut self) {
        self.route.content_plan = None;
        self.route.host.clear();
        self.uri.path.clear();
        self.uri.args.clear();
        self.bindings.clear();
        self.state = RequestState::new();
        self.body.clear();
        self.response.reset(200);
        self.response.fields.release();
        self.costs = Costs::default();
        self.route.realpath_root = None;
        self.context.id.set(None);
        self.extensions.clear();
        self.upstream.clear();
        self.context.trace = OnceCell::new();
        self.context.real_client_addr = None;
        self.context.moved_peer = None;
        self.context.position = None;
        self.log_handlers.clear();
        self.context.deadline = None;
    }

    /// Current plan.
    pub fn plan(&self) -> &Plan {
        self.generation().plan(self.route.plan)
    }

    /// Request method.
    pub fn method(&self) -> Method {
        self.state.method.unwrap_or_else(|| self.head.method())
    }

    /// Name of the method of the client's request, also in a subrequest with another method; `GET` in an error page.
    pub fn client_method_name(&self) -> &[u8] {
        let method = match &self.context.position {
            Some(position) => position.client_method,
            None => self.state.method,
        };
        method.map_or_else(|| self.head.method_bytes(), |method| method.as_str().as_bytes())
    }

    /// Name of the request method.
    pub fn method_name(&self) -> &[u8] {
        match self.state.method {
            Some(method) => method.as_str().as_bytes(),
            None => self.head.method_bytes(),
        }
    }

    /// Path and arguments as the client sent them; `None` if something has replaced them, or there is no path. A named location and
    /// `try_files` replace nothing.
    pub fn target_as_sent(&self) -> Option<&[u8]> {
        if !(self.state.has_client_target && self.head.target_has_path()) {
            return None;
        }
        let target = self.head.target();
        let path = if target.first() == Some(&b'/') {
            0
        } else {
            // `http://host/path`
            let host = target.windows(3).position(|three| three == b"://")? + 3;
            host + target[host..].iter().position(|byte| *byte == b'/')?
        };
        target.get(path..)
    }

    /// Returns true if the current path is that of the client, who sent it without escapes (nginx: quoted_uri).
    pub fn is_path_unescaped(&self) -> bool {
        let has_escape =
            |target: &[u8]| target.iter().take_while(|byte| **byte != b'?').any(|byte| *byte == b'%');
        self.state.origin == RequestOrigin::Client
            && self.uri.path == self.head.path()
            && self.target_as_sent().is_some_and(|target| !has_escape(target))
    }

    /// Sets the URL of the request to an upstream server: `scheme` with `://`, and the path that `push_path` appends.
    pub fn set_upstream_url(&mut self, scheme: &'static str, push_path: impl FnOnce(&Self, &mut Vec<u8>)) {
        self.upstream.begin_pass();
        let mut path = std::mem::take(&mut self.upstream.url.path);
        path.clear();
        push_path(self, &mut path);
        self.upstream.url = UpstreamUrl { scheme, path };
    }

    /// Disk of the location; without `aio` there, that of the cache of the lookup. `None` if `aio threads=…` names a pool that
    /// does not exist, which was logged.
    pub fn disk(&self) -> Option<&Disk> {
        let aio = &self.plan().core.files.aio;
        let disks = &self.generation().disks;
        if aio.is_usual()
            && let Some(cache) = &self.upstream.cache.cache
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

    /// Memory that the client of the request holds; `None` without a client, or while nothing is counted.
    pub fn memory_share(&self) -> Option<&Rc<MemoryShare>> {
        self.client().memory_share(self.wire().get()?.holder())
    }

    /// Runs `handler` in the log phase of this request, behind those of the location that it ends in. A subrequest has none.
    pub fn add_log_handler(&mut self, handler: impl LogHandler + 'static) {
        self.log_handlers.push(Box::new(handler));
    }

    /// Takes the handlers of [`add_log_handler`](Self::add_log_handler).
    pub fn take_log_handlers(&mut self) -> Vec<Box<dyn LogHandler>> {
        std::mem::take(&mut self.log_handlers)
    }

    /// Seconds since the request began.
    pub fn elapsed(&self) -> std::time::Duration {
        tw_rt::clock::now().saturating_duration_since(self.context.started.at)
    }
}
