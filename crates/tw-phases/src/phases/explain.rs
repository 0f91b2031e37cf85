//! Explanation of a request (`--explain`): the phases up to the response, run for a synthetic request, step by step.
//!
//! Server, location and rewrites are found by the code that serves requests, on a loop of its own, so the result is that of a
//! server. Of the handlers after the rewrite phases, those that only look at files are run, and their redirects followed to the
//! response. The others are only named: they may ask other servers or change something.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tw_accept::{find_destination, local_address, no_destination};
use tw_conf::Span;
use tw_core::event_loop::{Counts, LoopConfiguration, LoopCore};
use tw_core::host_names::HostName;
use tw_core::server_names::ServerName;
use tw_http::Progress;
use tw_net::Addr;
use tw_rt::{Deadline, LoopOptions};
use tw_tls_settings::TlsInfo;

use super::{AGAIN, NextStep, call_handler, decide, locate};
use crate::realpath_root;
use crate::start;
use tw_request::client::{Client, Scheme};
use tw_request::config::location::{Location, Visibility};
use tw_request::event_loop::Loop;
use tw_request::generation::{GenerationRef, ListenGroup, LoopGeneration, ServerId};
use tw_request::plan::{Outcome, Phase, Plan, UPSTREAM};
use tw_request::request::{Request, RequestWire};
use tw_request::request_body::RequestBody;
use tw_request::route::Pattern;
use tw_request::vars;

/// Longest time for all rewrite phases of one explanation; only a disk that stands still takes it.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Port of a request if no server listens on an address with a port.
const DEFAULT_PORT: u16 = 80;

/// The request to explain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestToExplain {
    /// Method.
    pub method: Vec<u8>,
    /// The host as it stands in the URL: a name or an address, without port; IPv6 in brackets. Empty for a path alone, which the only
    /// server answers, or the default server of the first address.
    pub host: Vec<u8>,
    /// The port it goes to, without meaning if there is no host; `None` for that of the first address with a server of the host's name, or of
    /// the first address of all.
    pub port: Option<u16>,
    /// Scheme, if the URL has one; else that of the listening address.
    pub scheme: Option<Scheme>,
    /// Path and arguments.
    pub target: Vec<u8>,
    /// Fields of the head beside `Host` and `Connection`.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    /// Body.
    pub body: Vec<u8>,
    /// Modules say all that they know.
    pub is_detailed: bool,
}

/// Extension of a request about which modules say all that they know.
pub struct DetailedExplanation;

/// One line of an explanation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// Subject: `server`, `location` …
    pub about: &'static str,
    /// Statement.
    pub text: String,
    /// Place of the directive.
    pub span: Option<Span>,
    /// File that the line is about.
    pub file: Option<Vec<u8>>,
}

/// Explanation of a request.
#[derive(Debug, Default)]
pub struct Explanation {
    /// In the order in which it would happen.
    pub lines: Vec<Line>,
}

impl Explanation {
    fn add(&mut self, about: &'static str, text: impl Into<String>, span: Option<Span>) {
        self.lines.push(Line { about, text: text.into(), span, file: None });
    }

    fn add_file(&mut self, path: Vec<u8>) {
        self.lines.push(Line { about: "file", text: text(&path), span: None, file: Some(path) });
    }
}

/// Makes the HTTP of a loop that serves requests by a configuration.
pub type NewLoop = fn(Rc<LoopCore>, GenerationRef) -> Rc<Loop>;

/// Explains requests by `generation`, which is not in use. Starts a thread with a loop, which `new_loop` makes, and ends it. The inner
/// errors are the reasons why there is nothing to explain.
///
/// # Errors
/// Failure to start the thread, or its early end.
pub fn explain(
    generation: GenerationRef,
    requests: Vec<RequestToExplain>,
    new_loop: NewLoop,
) -> io::Result<Vec<Result<Explanation, String>>> {
    let (sender, receiver) = mpsc::channel();
    let event_loop = tw_rt::LoopThread::<()>::start(LoopOptions::new(0), move |_| async move {
        for request in &requests {
            // Sending cannot fail: the receiver outlives this thread.
            let _ = sender.send(explain_here(generation.clone(), request, new_loop).await);
        }
    })?;
    let ended = event_loop.join();
    if let Err(ended) = ended {
        return Err(io::Error::other(format!("the loop ended early: {ended:?}")));
    }
    Ok(receiver.iter().collect())
}

async fn explain_here(
    generation: GenerationRef,
    request: &RequestToExplain,
    new_loop: NewLoop,
) -> Result<Explanation, String> {
    let mut explanation = Explanation::default();
    let request = &if request.host.is_empty() {
        match at_default_server(&generation, request) {
            Some(request) => request,
            None => return Err("no server of \"http\" listens on an address with a port".to_owned()),
        }
    } else {
        request.clone()
    };
    let port = request.port.or_else(|| port_of_host(&generation, &request.host)).unwrap_or(DEFAULT_PORT);
    let Some(at) = find_group(&generation.groups, &request.host, port) else {
        let addresses = generation.groups.iter().map(|listen| &listen.address);
        return Err(no_destination(addresses, port));
    };
    let is_secure = speaks_tls(&generation.groups[at]);
    let address = generation.groups[at].address.clone();
    let kind = generation.groups[at].kind;
    let client = Addr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 50_000)));
    let core = LoopCore::new(0, Arc::new(Counts::default()), generation.process());
    let event_loop = new_loop(core, generation);
    let client = Client::new(1, client, Rc::new(address.clone()), kind, event_loop.clone());
    if is_secure {
        let name = String::from_utf8_lossy(&request.host).into_owned();
        // The client is new.
        let _ = client.tls.set(Box::new(TlsInfo::of_name(Some(name.into()))));
    }
    client.local_or(|| Some(local_address(&address, &request.host)));
    let mut r = event_loop.take_request();
    r.bind(&client, RequestWire::NONE);
    r.begin();
    let outcome = match read(&mut r, at, request, port) {
        Ok(()) => {
            start::set_uri(&mut r);
            explain_server(&r, at, request.scheme, &mut explanation);
            let mut deadline = Deadline::new();
            deadline.set(TIMEOUT);
            let state = deadline.guard(state(&mut r, &mut explanation)).await;
            state.map_err(|_| "the disk does not answer".to_owned()).map(|()| explanation)
        }
        Err(refused) => Err(refused),
    };
    event_loop.give_back(r);
    outcome
}

/// A request for a path alone, with the host and port of the default server of the first address. If there is one server, that is it.
fn at_default_server(generation: &GenerationRef, request: &RequestToExplain) -> Option<RequestToExplain> {
    let mut groups = generation.groups.iter().filter(|group| !group.is_quic());
    let (group, address) = groups.find_map(|group| Some((group, group.address.inet()?)))?;
    let server = generation.server(group.default_server);
    let exact = server.settings.names.iter().find_map(|name| match name {
        ServerName::Host(host @ HostName::Exact(_)) => Some(host.to_bytes().to_vec()),
        ServerName::Host(_) | ServerName::Regex(_) => None,
    });
    let host = match address.ip() {
        ip if ip.is_unspecified() => b"localhost".to_vec(),
        IpAddr::V4(ip) => ip.to_string().into_bytes(),
        IpAddr::V6(ip) => format!("[{ip}]").into_bytes(),
    };
    let host = exact.filter(|name| !name.is_empty()).unwrap_or(host);
    Some(RequestToExplain { host, port: Some(address.port()), ..request.clone() })
}

/// Port of the first address with a server whose name fits `host`, else of the first address. `None` if no address has a port.
fn port_of_host(generation: &GenerationRef, host: &[u8]) -> Option<u16> {
    let has_name = |group: &&ListenGroup| {
        let names = group.members.iter().flat_map(|server| &generation.server(*server).settings.names);
        names.into_iter().any(|name| name.matches(host))
    };
    let inet: Vec<_> = generation.groups.iter().filter(|group| group.address.inet().is_some()).collect();
    let group = inet.iter().copied().find(has_name).or(inet.first().copied());
    group.and_then(|group| group.address.inet()).map(|address| address.port())
}

/// Index of the listening address that a client comes to: over TCP, with which clients begin, else over QUIC.
fn find_group(groups: &[ListenGroup], host: &[u8], port: u16) -> Option<usize> {
    let find = |is_quic: bool| {
        let of_kind: Vec<_> =
            groups.iter().enumerate().filter(|(_, group)| group.is_quic() == is_quic).collect();
        let addresses = of_kind.iter().map(|(_, group)| &group.address);
        let found = find_destination(addresses, host, port)?;
        of_kind.get(found).map(|(at, _)| *at)
    };
    find(false).or_else(|| find(true))
}

fn speaks_tls(group: &ListenGroup) -> bool {
    group.ssl || group.is_quic()
}

/// Makes the head and reads it as it would be read from a socket.
fn read(r: &mut Request, at: usize, request: &RequestToExplain, port: u16) -> Result<(), String> {
    let generation = r.generation().clone();
    let group = &generation.groups[at];
    r.route.server = group.default_server;
    let port = match port {
        port if port == r.client().scheme().default_port() => String::new(),
        port => format!(":{port}"),
    };
    let mut head = [&*request.method, b" ", &request.target, b" HTTP/1.1\r\nHost: ", &request.host].concat();
    head.extend_from_slice(port.as_bytes());
    head.extend_from_slice(b"\r\nConnection: close\r\n");
    for (name, value) in &request.fields {
        head.extend_from_slice(&[name, &b": "[..], value, b"\r\n"].concat());
    }
    head.extend_from_slice(b"\r\n");
    r.head.push(&head);
    let limits = generation.server(r.route.server).settings.head;
    match r.head.parse(&limits) {
        Ok(Progress::Complete) => {
            if !request.body.is_empty() {
                r.body = RequestBody::of_bytes(request.body.clone().into());
            }
            if request.is_detailed {
                r.extensions.put(Rc::new(DetailedExplanation));
            }
            start::choose_server(r, group);
            Ok(())
        }
        Ok(Progress::NeedMore) => Err("the URL is not one line".to_owned()),
        Err(error) => {
            let text = r.head.error_text(error);
            let status = error.status();
            Err(format!("such a request is refused with {status}: {text}"))
        }
    }
}

fn explain_server(r: &Request, at: usize, scheme: Option<Scheme>, explanation: &mut Explanation) {
    let generation = r.generation();
    let group = &generation.groups[at];
    let address = &generation.groups[at].address;
    let server = generation.server(r.route.server);
    let listen = server.settings.listens.iter().find(|listen| listen.addresses.contains(address));
    let note = if group.proxy_protocol { ", behind the PROXY protocol" } else { "" };
    let protocols = protocols(r, group);
    explanation.add("listen", format!("{address}{note}{protocols}"), listen.and_then(|listen| listen.span));
    match (scheme, speaks_tls(group)) {
        (Some(Scheme::Http), true) => {
            let text = "http:// is refused here with 400 (error_page 497); what follows is for https://";
            explanation.add("", text, None);
        }
        (Some(Scheme::Https), false) => {
            explanation.add("", "the address does not speak TLS; what follows is for http://", None);
        }
        _ => {}
    }
    let host = String::from_utf8_lossy(&r.route.host);
    let name = match &*server.settings.name {
        b"" => "without a name".to_owned(),
        name => String::from_utf8_lossy(name).into_owned(),
    };
    explanation.add("server", format!("{name}: {}", why_server(r, group, &host)), Some(server.span));
}

/// Protocols that the server speaks at an address with TLS, and over QUIC at the same address and port.
fn protocols(r: &Request, group: &ListenGroup) -> String {
    let generation = r.generation();
    let server = generation.server(r.route.server);
    let is_its_quic = |other: &&ListenGroup| {
        other.is_quic() && other.address == group.address && other.members.contains(&r.route.server)
    };
    let mut spoken = Vec::new();
    match (group.ssl, group.speaks_http2(server)) {
        (true, true) => spoken.push("TLS: HTTP/2, HTTP/1.1"),
        (true, false) => spoken.push("TLS: HTTP/1.1"),
        (false, _) => {}
    }
    if server.protocols.http3 && generation.groups.iter().any(|other| is_its_quic(&other)) {
        spoken.push("QUIC: HTTP/3");
    }
    if spoken.is_empty() { String::new() } else { format!(" ({})", spoken.join("; ")) }
}

fn why_server(r: &Request, group: &ListenGroup, host: &str) -> String {
    let generation = r.generation();
    let takes =
        |id: ServerId, name: &&ServerName| name.matches(host.as_bytes()) && group.members.contains(&id);
    let name =
        generation.server(r.route.server).settings.names.iter().find(|name| takes(r.route.server, name));
    match name {
        Some(ServerName::Host(HostName::Exact(_))) if host.is_empty() => {
            "for requests without a host".to_owned()
        }
        Some(ServerName::Host(HostName::Exact(_))) => format!("server_name is \"{host}\""),
        Some(ServerName::Host(name)) => {
            format!("\"{host}\" fits server_name \"{}\"", text(&name.to_bytes()))
        }
        Some(ServerName::Regex(regex)) => {
            format!("\"{host}\" matches server_name \"~{}\"", regex.pattern())
        }
        None if group.members.len() == 1 => "the only server of the address".to_owned(),
        None => format!("no server_name fits \"{host}\", so the default server of the address answers"),
    }
}

/// Goes through the phases as `run_from` does, as far as handlers only look.
async fn state(r: &mut Request, explanation: &mut Explanation) {
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
                let span = inner.written.as_ref().and_then(|written| written.span);
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

fn explain_location(r: &Request, explanation: &mut Explanation) {
    let generation = r.generation();
    let plan = r.plan();
    let server = generation.server(r.route.server);
    let Some(written) = &plan.written else {
        let text = if server.locations.is_empty() {
            "none: the server has no locations"
        } else {
            "none fits: what stands in the server block itself is used"
        };
        return explanation.add("location", text, None);
    };
    let why = match &written.pattern {
        Pattern::Exact(_) => "the URI itself; nothing comes before it".to_owned(),
        Pattern::Prefix { no_regex: true, .. } => {
            "the longest prefix; with ^~, regular expressions are not tried".to_owned()
        }
        Pattern::Prefix { .. } => "the longest prefix; no regular expression matches".to_owned(),
        Pattern::Predicate(_) => {
            "its variable is neither empty nor 0; no regular expression matches".to_owned()
        }
        Pattern::Regex(_) => match server.locations.prefix_of(&r.uri.path) {
            Some(prefix) => {
                let prefix = text(&generation.plan(prefix).name);
                format!("the first regular expression that matches; it comes before the prefix {prefix}")
            }
            None => "the first regular expression that matches".to_owned(),
        },
        Pattern::Named(_) => "by its name".to_owned(),
    };
    let outer =
        generation.plans.iter().find(|plan| plan.limit_except.is_some_and(|(_, id)| id == r.route.plan));
    let span = outer.map_or(written.span, |outer| outer.written.as_ref().and_then(|written| written.span));
    explanation.add("location", format!("{}: {why}", shown(&written.pattern)), span);
    if outer.is_some() {
        let text =
            format!("{} is none of its methods: the settings in its block are used", r.method().as_str());
        explanation.add("limit_except", text, written.span);
    }
}

/// A location as it is written.
fn shown(pattern: &Pattern) -> String {
    match pattern {
        Pattern::Exact(uri) => format!("= {}", text(uri)),
        Pattern::Prefix { uri, no_regex: true } => format!("^~ {}", text(uri)),
        Pattern::Prefix { uri, .. } | Pattern::Predicate(uri) | Pattern::Named(uri) => text(uri),
        Pattern::Regex(regex) => format!("~ {}", regex.pattern()),
    }
}

fn explain_response(r: &Request, explanation: &mut Explanation) {
    let location = match &*r.response.location {
        b"" => String::new(),
        location => format!(", to {}", text(location)),
    };
    let status = r.state.error_status.unwrap_or(r.response.status);
    explanation.add("response", format!("{status}{location}"), None);
    explain_filters(r.plan(), explanation);
    explain_limits(r, &r.plan().core, explanation);
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

/// Ends the explanation of a request whose content handler is not run.
fn explain_end(r: &Request, plan: &Plan, explanation: &mut Explanation) -> Option<Outcome> {
    explain_filters(plan, explanation);
    explain_limits(r, &plan.core, explanation);
    None
}

/// Adds the modules of a phase.
fn explain_modules(plan: &Plan, phase: Phase, explanation: &mut Explanation) {
    let modules = plan.modules(phase);
    if !modules.is_empty() {
        explanation.add(phase_name(phase), modules.join(", "), None);
    }
}

/// Adds the filters of every response.
fn explain_filters(plan: &Plan, explanation: &mut Explanation) {
    for (about, modules) in [("filters", plan.filter_modules()), ("log", plan.log_modules())] {
        if !modules.is_empty() {
            explanation.add(about, modules.join(", "), None);
        }
    }
}

fn explain_limits(r: &Request, core: &Location, explanation: &mut Explanation) {
    let server = &r.generation().server(r.route.server).settings;
    let size = match core.client_body.max_size {
        0 => "none".to_owned(),
        bytes => size(bytes),
    };
    let times = [
        ("client_header_timeout", Some(server.client_header_timeout)),
        ("client_body_timeout", Some(core.client_body.timeout)),
        ("send_timeout", Some(core.send.timeout)),
        ("keepalive_timeout", Some(core.keepalive.timeout)),
        ("request_timeout", core.request_timeout),
    ];
    let written = |(name, time): &(&str, Option<Duration>)| Some(format!("{name} {}", time_of((*time)?)));
    let times: Vec<_> = times.iter().filter_map(written).collect();
    explanation.add("limits", format!("client_max_body_size {size}, {}", times.join(", ")), None);
    if let Some(rate) = &core.send.limit_rate {
        explanation.add("", format!("limit_rate {} bytes a second", text(&rate.value(r))), None);
    }
}

/// Bytes as a configuration writes them.
fn size(bytes: u64) -> String {
    for (unit, shift) in [("g", 30), ("m", 20), ("k", 10)] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

/// A time as a configuration writes it.
fn time_of(time: Duration) -> String {
    match time.as_millis() {
        millis if millis % 1000 == 0 => format!("{}s", millis / 1000),
        millis => format!("{millis}ms"),
    }
}

/// Path and arguments as they are now.
fn uri_of(r: &Request) -> String {
    let mark = if r.uri.args.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", text(&r.uri.path), text(&r.uri.args))
}

fn text(bytes: &[u8]) -> String {
    tw_log::Text(bytes).to_string()
}

#[cfg(test)]
mod tests;
