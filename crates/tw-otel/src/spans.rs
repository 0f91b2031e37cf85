//! Spans of one request as OTLP has them: the request, its lookups in caches, its attempts at upstream servers, its waits for the
//! disk.
//!
//! Attributes are those of nginx's module, and those of the stable semantic conventions for HTTP beside them. Names that only
//! this server has begin with `tailwater.`.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tw_connect::AttemptPeer;
use tw_disk::DiskWait;
use tw_http::{Framing, HeaderName};
use tw_request::request::Request;
use tw_request::request::trace::{LookupSpan, ParentSpan, RequestTrace, random_span_id};
use tw_request::upstream_state::{Attempt, UpstreamUrl};
use tw_request::vars::Template;

use super::protobuf::Message;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of one attribute of a span.
    const ATTRIBUTE_SIZE_MAX: usize = 8 << 10, bytes, "the rest is cut off";
}

/// Bytes that the spans of most requests have at most.
const SIZE: usize = 2 << 10;

/// Kinds of spans.
const INTERNAL: u64 = 1;
pub(super) const SERVER: u64 = 2;
const CLIENT: u64 = 3;

/// Status code of a span whose operation has failed.
pub(super) const ERROR: u64 = 2;

/// Bits of `flags`: the sampled flag of the context, and what is known of the parent.
pub(super) const SAMPLED: u32 = 1;
const KNOWS_IF_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Attributes of a location, and the name of its spans.
pub(super) struct SpanSettings<'a> {
    pub(super) name: Option<&'a Template>,
    pub(super) attributes: &'a [(Box<[u8]>, Template)],
}

/// Encoded spans of one request.
#[derive(Default)]
pub(super) struct EncodedSpans {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl EncodedSpans {
    /// Each span as a message.
    pub(super) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| self.bytes.get(begin..*end).unwrap_or_default())
    }

    /// Reserves room for so many bytes.
    pub(super) fn reserve(&mut self, size: usize) {
        self.bytes.reserve(size);
    }

    /// Adds a span.
    pub(super) fn add(&mut self, write: impl FnOnce(&mut Message<'_>)) {
        write(&mut Message(&mut self.bytes));
        self.ends.push(self.bytes.len());
    }
}

/// Encodes every span of `r`.
pub(super) fn encode(r: &Request, trace: &RequestTrace, settings: &SpanSettings<'_>) -> EncodedSpans {
    let now = tw_rt::clock::precise();
    let wall = tw_rt::clock::wall_precise();
    let of_request = RequestSpans { r, trace, now, wall };
    let mut encoded = EncodedSpans::default();
    encoded.reserve(SIZE);
    encoded.add(|span| of_request.request(settings, span));
    let lookups: Vec<_> = trace.lookups.iter().map(|lookup| (lookup, random_span_id())).collect();
    for (lookup, id) in &lookups {
        encoded.add(|span| of_request.lookup(lookup, *id, span));
    }
    let mut nth = 0;
    for pass in r.upstream.passes() {
        for (resends, attempt) in pass.attempts.iter().enumerate() {
            let id = trace.attempt_id(nth);
            encoded.add(|span| of_request.attempt(id, attempt, pass.url, resends, span));
            nth += 1;
        }
    }
    for wait in r.costs.account.waits() {
        // A wait within a lookup is a part of it.
        let is_within = |lookup: &LookupSpan| lookup.began <= wait.queued && end_of(wait) <= lookup.ended;
        let within = lookups.iter().find(|(lookup, _)| is_within(lookup));
        let parent = within.map_or(trace.span_id, |(_, id)| *id);
        encoded.add(|span| of_request.wait(wait, parent, span));
    }
    encoded
}

fn end_of(wait: &DiskWait) -> Instant {
    wait.queued + wait.queue + wait.service
}

struct RequestSpans<'a> {
    r: &'a Request,
    trace: &'a RequestTrace,
    /// Time by both clocks.
    now: Instant,
    wall: Duration,
}

/// Identity and time of a span.
struct SpanHead<'a> {
    id: [u8; 8],
    parent: Option<ParentSpan>,
    kind: u64,
    name: &'a [u8],
    began: Instant,
    ended: Instant,
}

impl RequestSpans<'_> {
    fn head(&self, head: &SpanHead<'_>, span: &mut Message<'_>) {
        span.bytes(1, &self.trace.trace_id);
        span.bytes(2, &head.id);
        if !self.trace.state.is_empty() {
            span.string(3, &self.trace.state);
        }
        let mut flags = SAMPLED | KNOWS_IF_REMOTE;
        if let Some(parent) = head.parent {
            span.bytes(4, &parent.id);
            flags |= if parent.is_remote { IS_REMOTE } else { 0 };
        }
        span.string(5, head.name);
        span.varint(6, head.kind);
        span.fixed64(7, self.unix_ns(head.began));
        span.fixed64(8, self.unix_ns(head.ended.max(head.began)));
        span.fixed32(16, flags);
    }

    /// Nanoseconds since 1970 of a time that has passed.
    fn unix_ns(&self, at: Instant) -> u64 {
        unix_ns(at, self.now, self.wall)
    }

    /// Identity of a span below that of the request.
    fn child<'a>(
        &self,
        id: [u8; 8],
        kind: u64,
        name: &'a [u8],
        began: Instant,
        ended: Instant,
    ) -> SpanHead<'a> {
        SpanHead { id, parent: Some(local(self.trace.span_id)), kind, name, began, ended }
    }

    fn request(&self, settings: &SpanSettings<'_>, span: &mut Message<'_>) {
        let Self { r, trace, now, .. } = *self;
        let name = match settings.name {
            Some(name) => name.value(r),
            None if r.plan().name.is_empty() => r.client_method_name().into(),
            None => (&*r.plan().name).into(),
        };
        let kind = if r.is_subrequest() { INTERNAL } else { SERVER };
        let id = trace.span_id;
        let parent = trace.parent;
        let began = r.context.started.at;
        let ended = now;
        self.head(&SpanHead { id, parent, kind, name: &name, began, ended }, span);
        let mut attributes = Attributes { span, custom: settings.attributes };
        if r.is_subrequest() {
            attributes.text("url.path", &r.uri.path);
        } else {
            self.client(&mut attributes);
            self.server(&mut attributes);
        }
        let status = r.state.error_status.unwrap_or(r.response.status);
        attributes.number("http.status_code", u64::from(status));
        attributes.number("http.response.status_code", u64::from(status));
        if status >= 500 {
            attributes.text("error.type", status.to_string().as_bytes());
        }
        let account = &r.costs.account;
        if !account.is_inline() {
            attributes.number("tailwater.disk.waits", u64::from(account.jobs()));
            attributes.seconds("tailwater.disk.wait_time", account.wait());
        }
        let mut value = Vec::new();
        for (name, template) in settings.attributes {
            value.clear();
            template.eval(r, &mut value);
            attributes.custom(name, &value);
        }
        if status >= 500 {
            span.message(15, |m| m.varint(3, ERROR));
        }
    }

    /// Attributes of the client and of the request.
    fn client(&self, attributes: &mut Attributes<'_, '_>) {
        let r = self.r;
        attributes.text("http.method", r.client_method_name());
        attributes.text("http.request.method", r.client_method_name());
        attributes.text("http.target", r.head.target());
        attributes.text("url.path", r.head.target().split(|byte| *byte == b'?').next().unwrap_or_default());
        if !r.head.args().is_empty() {
            attributes.text("url.query", r.head.args());
        }
        if !r.plan().name.is_empty() {
            attributes.text("http.route", &r.plan().name);
        }
        let scheme = r.client().scheme().as_str().as_bytes();
        attributes.text("http.scheme", scheme);
        attributes.text("url.scheme", scheme);
        if let Some(version) = r.head.protocol().strip_prefix(b"HTTP/") {
            attributes.text("http.flavor", version);
            // The conventions write versions as ALPN and the RFCs do: 1.1, 2, 3.
            attributes.text(
                "network.protocol.version",
                version.strip_suffix(b".0").filter(|v| *v != b"1").unwrap_or(version),
            );
        }
        if let Some(agent) = r.head.field_known(HeaderName::UserAgent) {
            attributes.text("http.user_agent", agent);
            attributes.text("user_agent.original", agent);
        }
        match r.body.framing(r.head.framing()) {
            Framing::Length(length) => attributes.number("http.request_content_length", length),
            Framing::None => attributes.number("http.request_content_length", 0),
            Framing::Chunked => {}
        }
        attributes.number("http.response_content_length", r.costs.sent.body());
        attributes.text("client.address", r.client_text().as_bytes());
        attributes.text("net.sock.peer.addr", r.peer_text().as_bytes());
        attributes.text("network.peer.address", r.peer_text().as_bytes());
        if let Some(peer) = r.peer().inet() {
            attributes.number("net.sock.peer.port", u64::from(peer.port()));
            attributes.number("network.peer.port", u64::from(peer.port()));
        }
    }

    /// Attributes of the server that answers.
    fn server(&self, attributes: &mut Attributes<'_, '_>) {
        let r = self.r;
        let name = &*r.generation().server(r.route.server).settings.name;
        attributes.text("net.host.name", name);
        attributes.text("server.address", if r.route.host.is_empty() { name } else { &r.route.host });
        let local = r.local_addr().inet().map(|addr| addr.port());
        if let Some(port) = local {
            attributes.number("net.host.port", u64::from(port));
        }
        if let Some(port) = r.head.host_port().or(local) {
            attributes.number("server.port", u64::from(port));
        }
    }

    fn lookup(&self, lookup: &LookupSpan, id: [u8; 8], span: &mut Message<'_>) {
        self.head(&self.child(id, INTERNAL, b"cache lookup", lookup.began, lookup.ended), span);
        if let Some(status) = lookup.status {
            Attributes::of(span).text("tailwater.cache.status", status.word().as_bytes());
        }
    }

    /// Span of an attempt, and how often its request was sent before within its pass.
    fn attempt(
        &self,
        id: [u8; 8],
        attempt: &Attempt,
        url: &UpstreamUrl,
        resends: usize,
        span: &mut Message<'_>,
    ) {
        let r = self.r;
        let method = r.method_name();
        let began = attempt.begun();
        let server = match &attempt.to {
            AttemptPeer::Peer(peer) => peer.name(),
            AttemptPeer::Nobody(group) => group,
        };
        let name = [method, b" ", server.as_bytes()].concat();
        let ended = began + attempt.elapsed();
        self.head(&self.child(id, CLIENT, &name, began, ended), span);
        let mut attributes = Attributes::of(span);
        attributes.text("http.request.method", method);
        if !url.scheme.is_empty() {
            attributes.text("url.full", &[url.scheme.as_bytes(), server.as_bytes(), &url.path].concat());
        }
        if let AttemptPeer::Peer(peer) = &attempt.to {
            let inet = peer.addr().inet();
            attributes.text("server.address", host_of(server).as_bytes());
            attributes.text("network.peer.address", peer_address(inet, peer.text()).as_bytes());
            if let Some(addr) = inet {
                attributes.number("server.port", u64::from(addr.port()));
                attributes.number("network.peer.port", u64::from(addr.port()));
            }
        }
        if resends > 0 {
            attributes.number("http.request.resend_count", resends as u64);
        }
        // The status of a failure is that for the client, and none of the server's.
        let answered = Some(attempt.status).filter(|status| *status > 0 && attempt.failure.is_none());
        if let Some(status) = answered {
            attributes.number("http.response.status_code", u64::from(status));
        }
        let failure = match (&attempt.failure, answered) {
            (Some(failure), _) => Some(failure.to_string()),
            (None, Some(status)) if status >= 400 => Some(status.to_string()),
            (None, _) => None,
        };
        if let Some(failure) = &failure {
            attributes.text("error.type", failure.as_bytes());
        }
        attributes.number("tailwater.upstream.bytes_sent", attempt.sent);
        attributes.number("tailwater.upstream.bytes_received", attempt.received);
        if let Some(queued) = attempt.queued {
            attributes.seconds("tailwater.upstream.queue_time", queued);
        }
        for (event, after) in [("connected", attempt.connected), ("response head", attempt.header)] {
            let Some(after) = after else { continue };
            span.message(11, |m| {
                m.fixed64(1, self.unix_ns(began + after));
                m.string(2, event.as_bytes());
            });
        }
        if failure.is_some() {
            span.message(15, |m| m.varint(3, ERROR));
        }
    }

    fn wait(&self, wait: &DiskWait, parent: [u8; 8], span: &mut Message<'_>) {
        let head = self.child(random_span_id(), INTERNAL, b"disk wait", wait.queued, end_of(wait));
        self.head(&SpanHead { parent: Some(local(parent)), ..head }, span);
        let mut attributes = Attributes::of(span);
        attributes.text("tailwater.disk.operation", wait.op.name().as_bytes());
        attributes.seconds("tailwater.disk.queue_time", wait.queue);
    }
}

fn local(id: [u8; 8]) -> ParentSpan {
    ParentSpan { id, is_sampled: true, is_remote: false }
}

/// Host of `host:port`.
fn host_of(server: &str) -> &str {
    match server.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => server,
    }
}

/// Address without port, or the path of a Unix socket.
fn peer_address(inet: Option<SocketAddr>, text: &str) -> String {
    inet.map_or_else(|| text.trim_start_matches("unix:").to_owned(), |addr| addr.ip().to_string())
}

/// Writer of the attributes of a span. Those that the configuration sets are not written twice.
struct Attributes<'a, 'm> {
    span: &'a mut Message<'m>,
    custom: &'a [(Box<[u8]>, Template)],
}

impl<'a, 'm> Attributes<'a, 'm> {
    fn of(span: &'a mut Message<'m>) -> Self {
        Self { span, custom: &[] }
    }

    fn is_custom(&self, key: &str) -> bool {
        self.custom.iter().any(|(name, _)| **name == *key.as_bytes())
    }

    fn text(&mut self, key: &str, value: &[u8]) {
        if !self.is_custom(key) {
            push_attribute(self.span, 9, key.as_bytes(), |m| m.string(1, cut(value)));
        }
    }

    fn number(&mut self, key: &str, value: u64) {
        if !self.is_custom(key) {
            push_attribute(self.span, 9, key.as_bytes(), |m| m.varint(3, value));
        }
    }

    fn seconds(&mut self, key: &str, value: Duration) {
        push_attribute(self.span, 9, key.as_bytes(), |m| m.double(4, value.as_secs_f64()));
    }

    /// An attribute of the configuration. The conventions have lists of values for fields.
    fn custom(&mut self, key: &[u8], value: &[u8]) {
        let is_field =
            [&b"http.request.header."[..], b"http.response.header."].iter().any(|of| key.starts_with(of));
        push_attribute(self.span, 9, key, |m| {
            if is_field {
                m.message(5, |m| m.message(1, |m| m.string(1, cut(value))))
            } else {
                m.string(1, cut(value))
            }
        });
    }
}

/// Nanoseconds since 1970 of a time that has passed. `now` and `wall` are the time by both clocks.
pub(super) fn unix_ns(at: Instant, now: Instant, wall: Duration) -> u64 {
    let at = wall.saturating_sub(now.saturating_duration_since(at));
    u64::try_from(at.as_nanos()).unwrap_or(u64::MAX)
}

/// The part of a value that an attribute may have.
pub(super) fn cut(value: &[u8]) -> &[u8] {
    value.get(..ATTRIBUTE_SIZE_MAX).unwrap_or(value)
}

/// Writes a `KeyValue`, whose value `value` writes.
pub(super) fn push_attribute(
    to: &mut Message<'_>,
    field: u32,
    key: &[u8],
    value: impl FnOnce(&mut Message<'_>),
) {
    to.message(field, |m| {
        m.string(1, key);
        m.message(2, value);
    });
}
