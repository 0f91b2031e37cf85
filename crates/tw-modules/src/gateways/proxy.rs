//! `proxy_pass`: requests to an upstream HTTP server (nginx: ngx_http_proxy_module). Content phase.
//!
//! The request is written anew, field by field, and never copied as a whole: ambiguous parts are not forwarded.

mod cookie;
pub(crate) mod fields;
mod health_check;
mod redirect;
mod target;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use tw_base::{Limit, PrefixedName};
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, IF_IN_LOCATION, IneffectiveDirectives, LIMIT_EXCEPT,
    LOCATION, SERVER, Setting, Word, record,
};
use tw_connect::tls_directives::UpstreamTlsDirectives;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol};
use tw_core::session::Session as _;
use tw_http::Method;
use tw_http::origin::RequestWriter;
use tw_http::{Framing, Version};
use tw_http_cache::settings::{CacheDirectives, HasCacheSettings};
use tw_http_cache::{self as cache, Lookup, SentBody};
use tw_log::{Level, Text};
use tw_phases::forward_head::RewriteFields;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::http1::Http1Codec;
use tw_proxy::codec::http2::{Http2Codec, Trailers};
use tw_proxy::directives::{ProxyDirectives, UpstreamDirectives};
use tw_proxy::health::PassTarget;
use tw_proxy::settings::{HasProxy, HasUpstream, ProxyKind, RawProxy};
use tw_proxy::{
    self as proxy, BuiltRequest, ProxySettings, RequestBuilder, UpstreamRequest, UpstreamRequestBody,
};
use tw_request::local_future::boxed;
use tw_request::plan::{Handler, Outcome, Step, UPSTREAM};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};
use tw_request::vars::{Template, VarDef};

use crate::gateways::pass_module::{Pass, PassModule};

use fields::{ForwardedFields, HEAD_SIZE, RequestFields};
use health_check::ProxyHealthCheck;
use target::{PassUrl, RawPassUrl, Slots, UrlDestination, UrlScheme};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Properties of this kind of gateway.
const KIND: ProxyKind = ProxyKind {
    prefix: Raw::PREFIX,
    temp_path: Some(b"proxy_temp"),
    hidden: &[
        "Date",
        "Server",
        "X-Pad",
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
    answers_404: false,
    buffers: true,
    converts_head: true,
};

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    settings: RawProxy,
    pass: Setting<RawPassUrl>,
    fields: Setting<Vec<(Word, Word)>>,
    body: Setting<Word>,
    method: Setting<Word>,
    version: Setting<Version>,
    redirects: Setting<Vec<redirect::RawRedirect>>,
    cookie_domains: Setting<Vec<cookie::RawCookieRule>>,
    cookie_paths: Setting<Vec<cookie::RawCookieRule>>,
    cookie_flags: Setting<Vec<cookie::RawCookieFlags>>,
    pass_trailers: Setting<bool>,
    without_effect: IneffectiveDirectives,
}

impl HasProxy for Raw {
    fn proxy(&mut self) -> &mut RawProxy {
        &mut self.settings
    }
}

impl HasCacheSettings for Raw {
    fn cache_settings(&mut self) -> &mut cache::settings::Raw {
        &mut self.settings.cache
    }
}

/// The module.
pub(crate) type ProxyPass = Pass<Proxy>;

/// Settings of one location.
pub(crate) struct Proxy {
    settings: Arc<ProxySettings>,
    target: Option<PassUrl>,
    fields: Arc<RequestFields>,
    body: Option<Template>,
    method: Option<Template>,
    version: Version,
    redirects: Arc<[redirect::RedirectRule]>,
    /// `proxy_redirect` as it is inherited: with `default`, whose meaning differs between locations.
    written_redirects: Option<Arc<[redirect::InheritedRedirect]>>,
    cookies: Arc<cookie::CookieRules>,
    pass_trailers: bool,
    slots: Slots,
}

/// Records besides those that gateways share.
const OWN: &[Directive<Raw>] = &[
    record::new("proxy_pass", "URL", LOCATION | IF_IN_LOCATION | LIMIT_EXCEPT, Args::exact(1))
        .doc("Passes requests to a server: http://host[:port][/uri], http://unix:path[:/uri], or a group, or https:// instead; may contain variables.")
        .set(|raw, node, _| {
            let target = RawPassUrl::read(node)?;
            raw.pass.set_once(node, target)
        }),
    record::new("proxy_set_header", "field value", ALL, Args::exact(2))
        .default("Host $proxy_host")
        .doc("A field of the request to the upstream server; an empty value leaves it out.")
        .set(|raw, node, _| {
            let [name, value] = node.words()?;
            raw.fields.push(node, (name.clone(), value.clone()));
            Ok(())
        }),
    record::new("proxy_set_body", "value", ALL, Args::exact(1))
        .doc("The body of the request to the upstream server.")
        .set(|raw, node, _| {
            let word = node.arg(0)?.clone();
            raw.body.set_once(node, word)
        }),
    record::new("proxy_method", "method", ALL, Args::exact(1))
        .doc("The method of the request to the upstream server.")
        .set(|raw, node, _| {
            let word = node.arg(0)?.clone();
            raw.method.set_once(node, word)
        }),
    record::new("proxy_http_version", "1.0 | 1.1 | 2", ALL, Args::exact(1))
        .default("1.1")
        .since("1.1.4")
        .doc("The version that upstream servers are spoken to in.")
        .set(|raw, node, _| {
            let versions =
                [("1.0", Version::HTTP_10), ("1.1", Version::HTTP_11), ("2", Version::HTTP_2)];
            raw.version.set_one_of(node, &versions)
        }),
    record::new("proxy_redirect", "default | off | redirect replacement", ALL, Args::range(1, 2))
        .default("default")
        .doc("Changes the fields Location and Refresh of responses.")
        .set(|raw, node, _| {
            let rule = redirect::RawRedirect::read(node, raw.redirects.get(), raw.pass.get())?;
            raw.redirects.push(node, rule);
            Ok(())
        }),
    record::new("proxy_cookie_domain", "off | domain replacement", ALL, Args::range(1, 2))
        .default("off")
        .since("1.1.15")
        .doc("Changes the domain of cookies in responses.")
        .set(|raw, node, _| {
            let rule = cookie::RawCookieRule::read(node, raw.cookie_domains.get())?;
            raw.cookie_domains.push(node, rule);
            Ok(())
        }),
    record::new("proxy_cookie_path", "off | path replacement", ALL, Args::range(1, 2))
        .default("off")
        .since("1.1.15")
        .doc("Changes the path of cookies in responses.")
        .set(|raw, node, _| {
            let rule = cookie::RawCookieRule::read(node, raw.cookie_paths.get())?;
            raw.cookie_paths.push(node, rule);
            Ok(())
        }),
    record::new("proxy_cookie_flags", "off | cookie [flag …]", ALL, Args::at_least(1))
        .default("off")
        .since("1.19.3")
        .doc("Flags that cookies get or lose: secure, httponly, samesite=strict, lax or none, nosecure, nohttponly, nosamesite.")
        .set(|raw, node, _| {
            let rule = cookie::RawCookieFlags::read(node, raw.cookie_flags.get())?;
            raw.cookie_flags.push(node, rule);
            Ok(())
        }),
    record::flag("proxy_pass_trailers", ALL)
        .default("off")
        .since("1.27.2")
        .doc("Passes trailer fields of responses to clients.")
        .set(|raw, node, _| raw.pass_trailers.set_flag(node)),
    record::flag("proxy_cache_convert_head", ALL)
        .default("on")
        .since("1.9.7")
        .doc("Sends GET instead of HEAD, so that the response can be stored.")
        .set(|raw, node, _| raw.settings.cache.convert_head.set_flag(node)),
    without_effect("proxy_headers_hash_max_size", "size", "512"),
    without_effect("proxy_headers_hash_bucket_size", "size", "64"),
    without_effect("proxy_send_lowat", "size", "0"),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Raw>]] =
    &[Raw::CONNECTION, Raw::SOCKET_SIZES, Raw::RESPONSE, Raw::BODIES, Raw::TLS, Raw::CACHE];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Raw::PREFIX, SHARED);

impl UpstreamDirectives for Raw {
    const PREFIX: &'static str = "proxy_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS;
}

impl UpstreamTlsDirectives for Raw {
    const MODULE: &'static str = "ngx_http_proxy_module";
    const TLS_NAME: &'static str = "$proxy_host";
    const TLS_CONTEXTS: Contexts = HTTP | SERVER | LOCATION;

    fn upstream_tls(&mut self) -> &mut RawUpstreamTls {
        &mut self.upstream().tls
    }
}

impl CacheDirectives for Raw {
    const USE_STALE: RetryWords = RetryOn::STALE_WORDS;
}

impl PassModule for Proxy {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);

    const LIMITS: &'static [Limit] = Raw::BODY_LIMITS;

    const VARIABLES: &'static [VarDef] = &[
        VarDef::stored("proxy_host", "Name and port of the upstream server, as proxy_pass has them."),
        VarDef::stored("proxy_port", "Port of the upstream server, as proxy_pass has it, or 80 or 443."),
        VarDef::one(
            "proxy_add_x_forwarded_for",
            fields::forwarded_for,
            "X-Forwarded-For of the request, with the client's address behind it.",
        ),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let slots = Slots { host: cx.slot("proxy_host"), port: cx.slot("proxy_port") };
        let target = match raw.pass.take() {
            Some(target) => Some(target.resolve(cx)?),
            // A part of a location has the target of the whole.
            None if cx.block.is_nameless() => outer.and_then(|o| o.target.clone()),
            None => None,
        };
        let mut settings = ProxySettings::resolve(raw.settings, outer.map(|o| &*o.settings), &KIND, cx)?;
        let version = raw.version.or(outer.map(|o| o.version), Version::HTTP_11);
        if target.as_ref().is_some_and(PassUrl::may_be_secured) {
            let inside = if version == Version::HTTP_2 { TlsProtocol::Http2 } else { TlsProtocol::Any };
            settings.upstream.tls.enable(KIND.prefix, inside, cx)?;
        }
        let fields = match (raw.fields.take(), outer) {
            (None, Some(outer)) => outer.fields.clone(),
            (written_values, _) => Arc::new(RequestFields::resolve(written_values.unwrap_or_default(), cx)?),
        };
        let template = |word: Option<Word>, outer: Option<&Option<Template>>, cx: &mut Resolve<'_>| match word
        {
            Some(word) => cx.template(&word).map(Some),
            None => Ok(outer.cloned().flatten()),
        };
        let written_redirects = match raw.redirects.take() {
            Some(rules) => {
                let rules =
                    rules.into_iter().map(|rule| rule.resolve(cx)).collect::<Result<Arc<[_]>, _>>()?;
                Some(rules)
            }
            None => outer.and_then(|o| o.written_redirects.clone()),
        };
        let redirects = redirect::rules(written_redirects.as_deref(), target.as_ref(), cx)?;
        let cookies = cookie::CookieRules::resolve(
            raw.cookie_domains.take(),
            raw.cookie_paths.take(),
            raw.cookie_flags.take(),
            outer.map(|o| &*o.cookies),
            cx,
        )?;
        let settings = Arc::new(settings);
        *cx.block.notes.of() = match &target {
            None => PassTarget::Nowhere,
            Some(PassUrl::Variable { .. }) => PassTarget::Anywhere,
            Some(PassUrl::Fixed(to)) => {
                let settings = settings.clone();
                let to = to.clone();
                let fields = fields.clone();
                PassTarget::To(Arc::new(ProxyHealthCheck { settings, to, fields, version, slots }))
            }
        };
        Ok(Self {
            settings,
            target,
            fields,
            body: template(raw.body.take(), outer.map(|o| &o.body), cx)?,
            method: template(raw.method.take(), outer.map(|o| &o.method), cx)?,
            version,
            redirects,
            written_redirects,
            cookies: Arc::new(cookies),
            pass_trailers: raw.pass_trailers.or(outer.map(|o| o.pass_trailers), false),
            slots,
        })
    }

    fn settings(&self) -> &ProxySettings {
        &self.settings
    }

    fn passes(&self) -> bool {
        self.target.is_some()
    }

    fn has_names(&self) -> bool {
        self.target.as_ref().is_some_and(PassUrl::has_names)
    }
}

impl Handler for Proxy {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::wait(|| self.pass(r))
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        let Some(Ok(to)) = self.target.as_ref().map(|target| target.of(r)) else { return Vec::new() };
        r.set_slot(self.slots.host, &to.host);
        r.set_slot(self.slots.port, &to.port);
        let mut uri = Vec::new();
        to.uri.push(r, &mut uri);
        let mut url = Vec::new();
        usual_key(&to, &uri, &mut url);
        let mut lines = vec![(UPSTREAM, Text(&url).to_string())];
        lines.extend(self.settings.cache.explain(r, |_, key| usual_key(&to, &uri, key)));
        lines
    }
}

/// Default key of cached responses, without `proxy_cache_key`.
fn usual_key(to: &UrlDestination<'_>, uri: &[u8], key: &mut Vec<u8>) {
    for part in [to.scheme.text().as_bytes(), &to.host, uri] {
        key.extend_from_slice(part);
    }
}

impl Proxy {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some(target) = &self.target else { return Outcome::Pass };
        let to = match target.destination(r) {
            Ok(to) => to,
            Err(status) => return Outcome::Status(status),
        };
        r.set_slot(self.slots.host, &to.host);
        r.set_slot(self.slots.port, &to.port);
        let sends_client_body = self.settings.request.pass_body && self.body.is_none();
        if let Err(status) = proxy::read_body(r, &self.settings, self.body.is_some()).await {
            return Outcome::Status(status);
        }
        r.set_upstream_url(to.scheme.text(), |r, path| to.uri.push(r, path));
        if r.upstream.url.path.is_empty() {
            r.log(Level::Error, format_args!("zero length URI to proxy"));
            return Outcome::Status(500);
        }
        let key = |r: &Request, key: &mut Vec<u8>| usual_key(&to, &r.upstream.url.path, key);
        let sent = if sends_client_body { SentBody::Client } else { SentBody::None };
        let forward = &self.settings.response.forward;
        let lookup = match cache::look_up(r, &self.settings.cache, forward, self, sent, key).await {
            Ok(lookup) => lookup,
            Err(answer) => return answer,
        };
        let (announced, body) = if sends_client_body {
            (r.body.framing(r.head.framing()), UpstreamRequestBody::Client)
        } else {
            (Framing::None, UpstreamRequestBody::Nothing)
        };
        // HTTP/1.0 has no chunks: then the end of the connection would be the end of the body.
        if matches!(announced, Framing::Chunked) && self.version < Version::HTTP_11 {
            return Outcome::Status(411);
        }
        if self.is_rebuilt(r) {
            // Boxed: other requests stay smaller without this state.
            return boxed(|| self.pass_rebuilt(r, &to, announced, body, lookup)).await;
        }
        let request = match self.build(r, &to, announced, lookup.as_deref()) {
            Ok(request) => request,
            Err(status) => return Outcome::Status(status),
        };
        if self.version == Version::HTTP_2 {
            // Boxed: as above.
            return boxed(|| self.pass_http2(r, lookup, request)).await;
        }
        let outcome = proxy::pass(r, &self.settings, self, lookup, &request).await;
        r.upstream.spare_head.set(request.head);
        outcome
    }

    /// Passes a request that is built anew for each server.
    async fn pass_rebuilt(
        &self,
        r: &mut Request,
        to: &UrlDestination<'_>,
        announced: Framing,
        body: UpstreamRequestBody,
        lookup: Option<Box<Lookup>>,
    ) -> Outcome {
        let (method, passed) = self.outgoing(r, to, lookup.as_deref());
        let make = |r: &Request| self.write(r, &method, announced, &passed);
        let empty = BuiltRequest { head: Vec::new(), body, framing: BodyFraming::Plain };
        let request = self.upstream_request(r, to, Method::of(&method), empty, Some(&make));
        match self.version {
            Version::HTTP_2 => self.pass_http2(r, lookup, request).await,
            _ => proxy::pass(r, &self.settings, self, lookup, &request).await,
        }
    }

    /// Passes a request over HTTP/2.
    async fn pass_http2(
        &self,
        r: &mut Request,
        lookup: Option<Box<Lookup>>,
        request: UpstreamRequest<'_, Http1Codec>,
    ) -> Outcome {
        let trailers = if self.pass_trailers { Trailers::Forwarded } else { Trailers::Dropped };
        let codec = Http2Codec::new(request.codec.method(), self.settings.upstream.buffer_size, trailers);
        proxy::pass(r, &self.settings, self, lookup, &request.with_codec(codec)).await
    }

    /// Builds the request for all servers. The error is a status.
    fn build<'a>(
        &'a self,
        r: &Request,
        to: &'a UrlDestination<'_>,
        announced: Framing,
        lookup: Option<&Lookup>,
    ) -> Result<UpstreamRequest<'a, Http1Codec>, u16> {
        let (method, passed) = self.outgoing(r, to, lookup);
        let made = self.write(r, &method, announced, &passed)?;
        Ok(self.upstream_request(r, to, Method::of(&method), made, None))
    }

    /// Method and fields of the request to the server.
    fn outgoing<'a>(
        &self,
        r: &Request,
        to: &'a UrlDestination<'_>,
        lookup: Option<&Lookup>,
    ) -> (Cow<'static, [u8]>, ForwardedFields<'a>) {
        let wants_body = lookup.is_some_and(|lookup| lookup.asks_for_body(r, &self.settings.cache));
        let passed = ForwardedFields {
            is_client_passed: self.settings.request.pass_headers,
            host: &to.host,
            conditions: lookup.and_then(|lookup| lookup.conditions(r, &self.settings.cache)),
        };
        (self.method(r, wants_body), passed)
    }

    fn upstream_request<'a>(
        &'a self,
        r: &Request,
        to: &'a UrlDestination<'_>,
        method: Method,
        made: BuiltRequest,
        rebuild: Option<RequestBuilder<'a>>,
    ) -> UpstreamRequest<'a, Http1Codec> {
        UpstreamRequest {
            settings: &self.settings.upstream,
            response: Some(&self.settings.response),
            group: &to.group,
            secured: match to.scheme {
                UrlScheme::Http => None,
                UrlScheme::Https => self.settings.upstream.tls.for_host(r, &to.host),
            },
            head: made.head,
            body: made.body,
            framing: made.framing,
            rebuild,
            codec: Http1Codec::new(method, self.settings.upstream.buffer_size, self.pass_trailers),
        }
    }

    /// Method of the request to the server; with `wants_body`, a cache needs the response to GET.
    fn method(&self, r: &Request, wants_body: bool) -> Cow<'static, [u8]> {
        match &self.method {
            Some(template) => template.value(r).into(),
            None if wants_body => b"GET".into(),
            None => match r.method() {
                Method::Other => r.method_name().to_vec().into(),
                known_method => known_method.as_str().as_bytes().into(),
            },
        }
    }

    /// Writes a request. The error is a status.
    fn write(
        &self,
        r: &Request,
        method: &[u8],
        announced: Framing,
        passed: &ForwardedFields<'_>,
    ) -> Result<BuiltRequest, u16> {
        let (announced, body) = match &self.body {
            Some(own) => {
                let own = Bytes::from(own.value(r));
                (Framing::Length(own.len() as u64), UpstreamRequestBody::Bytes(own))
            }
            None if self.settings.request.pass_body => (announced, UpstreamRequestBody::Client),
            // DIFF(nginx): no length is announced of a body that does not follow.
            None => (announced, UpstreamRequestBody::Nothing),
        };
        let mut head = r.upstream.spare_head.take();
        head.clear();
        head.reserve(HEAD_SIZE);
        let uri = &r.upstream.url.path;
        let begun = RequestWriter::begin(&mut head, method, uri, self.version);
        let written_framing = begun.and_then(|mut writer| {
            self.fields.write(r, &mut writer, announced, passed)?;
            Ok(writer.end())
        });
        let framing = match written_framing {
            Ok(Framing::Chunked) => BodyFraming::Chunked,
            Ok(_) => BodyFraming::Plain,
            Err(error) => {
                r.log(Level::Error, format_args!("{error}, URI \"{}\"", Text(uri)));
                return Err(400);
            }
        };
        Ok(BuiltRequest { head, body, framing })
    }
}

impl RewriteFields for Proxy {
    fn location(&self, r: &Request, value: &[u8], is_refresh: bool) -> Option<Vec<u8>> {
        redirect::apply(&self.redirects, r, value, is_refresh)
    }

    fn cache_key(&self, r: &Request, out: &mut Vec<u8>) {
        if let Some(Ok(to)) = self.target.as_ref().map(|target| target.of(r)) {
            let mut uri = Vec::new();
            to.uri.push(r, &mut uri);
            usual_key(&to, &uri, out);
        }
    }

    fn cookie(&self, r: &Request, value: &[u8]) -> Option<Vec<u8>> {
        self.cookies.apply(r, value)
    }
}

// DIFF(nginx): directives that size nginx's hash tables, or say what a socket must take, are accepted and change nothing.
const fn without_effect(name: &'static str, syntax: &'static str, default: &'static str) -> Directive<Raw> {
    record::new(name, syntax, ALL, Args::exact(1))
        .default(default)
        .doc("Accepted and without effect: there is no table or buffer here that needs this size.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        })
}
