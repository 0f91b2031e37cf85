//! `more_set_headers` and its like: set, add or remove any field of responses and requests (headers-more-nginx-module).
//! Header filter, before `add_header`; preaccess phase for fields of requests, right behind the rewrite phase.
//!
//! Unlike those of `add_header`, the rules of enclosing blocks hold, too, and run first.

mod rule;

use std::sync::Arc;

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, HTTP, IF_IN_LOCATION, LOCATION, SERVER, record};
use tw_core::module::Settings;
use tw_http::host::Host;
use tw_http::{HeaderName, ResponseHead, date};
use tw_log::{Level, Text};
use tw_module_support::changed_body::{refuse_ranges, without_length};
use tw_request::body::Body;
use tw_request::plan::{Handler, HeaderFilter, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

use self::rule::{Change, Effect, FieldNames, Mode, RawRule, Rule, Side, Verb};

const ALL_IF: u32 = HTTP | SERVER | LOCATION | IF_IN_LOCATION;

/// Rules as written, in their order.
#[derive(Default)]
pub(crate) struct Raw {
    responses: Vec<RawRule>,
    requests: Vec<RawRule>,
}

/// Rules of one location: those of the enclosing blocks first.
pub(crate) struct HeadersMore {
    responses: Arc<[Arc<Rule>]>,
    requests: Arc<[Arc<Rule>]>,
}

impl Settings<Http> for HeadersMore {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "more_set_headers",
            "[-t types] … [-s codes] … [-a] field …",
            ALL_IF,
            Args::at_least(1),
        )
        .since("Tailwater 0.1")
        .doc("Sets fields, `'Name: value'`, of all responses, or of those with these media types and codes; without a value it removes them, and `-a` adds to those that are there.")
        .set(|raw, node, cx| {
            raw.responses.push(RawRule::read(node, Verb::Set, Side::Response, cx)?);
            Ok(())
        }),
        record::new("more_clear_headers", "[-t types] … [-s codes] … name …", ALL_IF, Args::at_least(1))
            .since("Tailwater 0.1")
            .doc("Removes fields of responses; `*` at the end of a name is any rest. `Server` and `Date` can be removed, too.")
            .set(|raw, node, cx| {
                raw.responses.push(RawRule::read(node, Verb::Clear, Side::Response, cx)?);
                Ok(())
            }),
        record::new("more_set_input_headers", "[-r] [-t types] … field …", ALL_IF, Args::at_least(1))
            .since("Tailwater 0.1")
            .doc("Sets fields of requests as all later phases, variables and upstream servers see them; `-r` replaces only those that are there.")
            .set(|raw, node, cx| {
                raw.requests.push(RawRule::read(node, Verb::Set, Side::Request, cx)?);
                Ok(())
            }),
        record::new("more_clear_input_headers", "[-t types] … name …", ALL_IF, Args::at_least(1))
            .since("Tailwater 0.1")
            .doc("Removes fields of requests; `*` at the end of a name is any rest.")
            .set(|raw, node, cx| {
                raw.requests.push(RawRule::read(node, Verb::Clear, Side::Request, cx)?);
                Ok(())
            }),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self {
            responses: join(outer.map(|o| &o.responses), raw.responses, cx)?,
            requests: join(outer.map(|o| &o.requests), raw.requests, cx)?,
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.responses.is_empty() {
            plan.add_header_filter(self.clone());
        }
        if !self.requests.is_empty() {
            plan.add(Phase::Preaccess, self.clone());
        }
    }
}

/// The rules of the enclosing block, and then those of this one.
fn join(
    outer: Option<&Arc<[Arc<Rule>]>>,
    own: Vec<RawRule>,
    cx: &mut Resolve<'_>,
) -> Result<Arc<[Arc<Rule>]>, ConfError> {
    if let (Some(outer), true) = (outer, own.is_empty()) {
        return Ok(outer.clone());
    }
    let own = own.into_iter().map(|rule| Ok(Arc::new(rule.resolve(cx)?)));
    outer.into_iter().flat_map(|rules| rules.iter()).cloned().map(Ok).chain(own).collect()
}

impl HeaderFilter for HeadersMore {
    fn filter(&self, r: &mut Request, mut body: Body) -> Body {
        if r.is_subrequest() {
            return body;
        }
        for rule in self.responses.iter() {
            if !rule.has_status(r.response.status) || !rule.has_type(&r.response.content_type) {
                continue;
            }
            for change in &rule.changes {
                body = change_response(change, r, body);
            }
        }
        body
    }
}

// DIFF(nginx): its module leaves `Last-Modified` of a file.
/// Removes the fields whose names begin alike. `Content-Type` and the lines of this server stay: `Server`, `Date`.
fn remove_by_prefix(names: &FieldNames, out: &mut ResponseHead) {
    for line in [HeaderName::Server, HeaderName::Date] {
        // The line of this server does not take the place of one that came from an upstream server.
        if names.have(line.as_str().as_bytes()) && out.fields.has(line) {
            out.omitted.add(line);
        }
    }
    out.fields.retain(|name, _| !names.have(name));
    if names.have(b"Last-Modified") {
        out.last_modified = None;
    }
    if names.have(b"Location") {
        out.location = Bytes::new();
    }
}

/// Changes fields of the response. Some have a place of their own in its head.
fn change_response(change: &Change, r: &mut Request, body: Body) -> Body {
    let (name, known_name) = match &change.names {
        FieldNames::One(name, known_name) => (name, *known_name),
        FieldNames::Prefix(_) => {
            remove_by_prefix(&change.names, &mut r.response);
            return body;
        }
    };
    let value: Bytes = match &change.effect {
        Effect::Remove => Bytes::new(),
        Effect::Write(_, value) => value.value(r).into(),
    };
    match known_name {
        Some(HeaderName::ContentType) => {
            (r.response.content_type, r.response.charset) = (value, Bytes::new())
        }
        Some(HeaderName::ContentLength) => {
            r.response.fields.remove_known(HeaderName::ContentLength);
            return without_length(body);
        }
        Some(known_name @ (HeaderName::Server | HeaderName::Date)) if value.is_empty() => {
            r.response.fields.remove_known(known_name);
            r.response.omitted.add(known_name);
        }
        _ => {
            match known_name {
                Some(HeaderName::Location) => r.response.location = Bytes::new(),
                Some(HeaderName::LastModified) => r.response.last_modified = date::parse(&value),
                Some(HeaderName::AcceptRanges) if value.is_empty() => refuse_ranges(r),
                _ => {}
            }
            match (&change.effect, value.is_empty()) {
                (_, true) => _ = r.response.fields.remove(name),
                (Effect::Write(Mode::Add, _), false) => r.response.fields.append(name.clone(), value),
                (_, false) => r.response.fields.set(name.clone(), value),
            }
        }
    }
    body
}

impl Handler for HeadersMore {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        for rule in self.requests.iter() {
            if rule.has_type(r.head.field_known(HeaderName::ContentType).unwrap_or_default()) {
                rule.changes.iter().for_each(|change| change_request(change, r));
            }
        }
        Step::PASS
    }
}

/// Removes fields of the request. Without `Host`, the name of the server is the host.
fn remove_request_fields(names: &FieldNames, r: &mut Request) {
    if names.have(b"host") {
        r.route.host.clear();
        r.head.remove_host();
    }
    r.head.remove_fields(|name| names.have(name));
}

/// Changes fields of the request.
fn change_request(change: &Change, r: &mut Request) {
    let (FieldNames::One(name, known_name), Effect::Write(mode, value)) = (&change.names, &change.effect)
    else {
        return remove_request_fields(&change.names, r);
    };
    if *mode == Mode::Replace && r.head.field_all(name).next().is_none() {
        return;
    }
    let value = value.value(r);
    if value.is_empty() {
        return remove_request_fields(&change.names, r);
    }
    if *known_name == Some(HeaderName::Host) {
        // DIFF(nginx): a host that could not have been sent changes nothing.
        let Ok(host) = Host::parse(&value) else {
            let value = Text(&value);
            return r
                .log(Level::Error, format_args!("invalid host \"{value}\" in \"more_set_input_headers\""));
        };
        r.route.host = value.get(..host.len).unwrap_or_default().to_ascii_lowercase();
    }
    r.head.set_field(name, &value);
}
