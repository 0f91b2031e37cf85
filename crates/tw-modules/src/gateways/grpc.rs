//! `grpc_pass`: requests to a server that speaks HTTP/2, such as gRPC, with trailers of its responses (nginx:
//! ngx_http_grpc_module). Content phase.
//!
//! Bodies are not buffered: both are forwarded as they arrive, at the same time if need be.

mod health_check;

use std::sync::Arc;

use tw_base::{Limit, PrefixedName};
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, IF_IN_LOCATION, LOCATION, SERVER, Setting, Word, record,
};
use tw_connect::tls_directives::UpstreamTlsDirectives;
use tw_connect::upstream_tls::{RawUpstreamTls, TlsProtocol};
use tw_http::escape::Escape;
use tw_http::origin::RequestWriter;
use tw_http::{Version, hop};
use tw_log::{Level, Text};
use tw_phases::forward_head::KeepFields;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::http2::{Http2Codec, Trailers};
use tw_proxy::directives::{ProxyDirectives, UpstreamDirectives};
use tw_proxy::health::PassTarget;
use tw_proxy::settings::{HasProxy, HasUpstream, ProxyKind, RawProxy};
use tw_proxy::{
    self as proxy, BuiltRequest, ProxySettings, RequestBuilder, UpstreamRequest, UpstreamRequestBody,
};
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};

use self::health_check::{GrpcHealthCheck, authority};
use crate::gateways::cgi::address::{AddressScheme, PassAddress, RawPassAddress};
use crate::gateways::pass_module::{Pass, PassModule};
use crate::gateways::proxy::fields::{self, HEAD_SIZE, RequestFields};

const SCHEMES: &[AddressScheme] = &[
    AddressScheme { text: "grpc://", is_written: true, is_secured: false },
    AddressScheme { text: "grpcs://", is_written: true, is_secured: true },
];

/// Properties of this kind of gateway.
const KIND: ProxyKind = ProxyKind {
    prefix: Raw::PREFIX,
    temp_path: None,
    hidden: &[
        "Date",
        "Server",
        "X-Accel-Expires",
        "X-Accel-Redirect",
        "X-Accel-Limit-Rate",
        "X-Accel-Buffering",
        "X-Accel-Charset",
    ],
    answers_404: false,
    buffers: false,
    converts_head: false,
};

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    settings: RawProxy,
    pass: Setting<RawPassAddress>,
    fields: Setting<Vec<(Word, Word)>>,
}

impl HasProxy for Raw {
    fn proxy(&mut self) -> &mut RawProxy {
        &mut self.settings
    }
}

/// The module.
pub(crate) type GrpcPass = Pass<Grpc>;

/// Settings of one location.
pub(crate) struct Grpc {
    settings: Arc<ProxySettings>,
    target: Option<PassAddress>,
    fields: Arc<RequestFields>,
}

/// Records besides those that gateways share.
const OWN: &[Directive<Raw>] = &[
    record::new("grpc_pass", "address", LOCATION | IF_IN_LOCATION, Args::exact(1))
        .doc("The server that answers: [grpc://]host:port, unix:path, or a group, or grpcs:// in front for TLS; may hold variables.")
        .set(|raw, node, _| {
            let target = RawPassAddress::read(node)?;
            raw.pass.set_once(node, target)
        }),
    record::new("grpc_set_header", "field value", HTTP | SERVER | LOCATION, Args::exact(2))
        .default("Content-Length $content_length")
        .doc("A field of the request to the upstream server; an empty value leaves it out.")
        .set(|raw, node, _| {
            let [name, value] = node.words()?;
            raw.fields.push(node, (name.clone(), value.clone()));
            Ok(())
        }),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Raw>]] = &[Raw::CONNECTION, Raw::SOCKET_SIZES, Raw::RESPONSE, Raw::TLS];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Raw::PREFIX, SHARED);

impl UpstreamDirectives for Raw {
    const PREFIX: &'static str = "grpc_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS;
}

impl UpstreamTlsDirectives for Raw {
    const MODULE: &'static str = "ngx_http_grpc_module";
    const TLS_NAME: &'static str = "host of grpc_pass";
    const TLS_CONTEXTS: Contexts = HTTP | SERVER | LOCATION;

    fn upstream_tls(&mut self) -> &mut RawUpstreamTls {
        &mut self.upstream().tls
    }
}

impl PassModule for Grpc {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);
    const LIMITS: &'static [Limit] = Raw::CONNECTION_LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let target = match raw.pass.take() {
            Some(target) => Some(target.resolve(SCHEMES, cx)?),
            // A part of a location has the target of the whole.
            None if cx.block.is_nameless() => outer.and_then(|o| o.target.clone()),
            None => None,
        };
        let mut settings = ProxySettings::resolve(raw.settings, outer.map(|o| &*o.settings), &KIND, cx)?;
        settings.request.buffering = false;
        if target.as_ref().is_some_and(|target| target.may_be_secured(SCHEMES)) {
            settings.upstream.tls.enable(KIND.prefix, TlsProtocol::Http2, cx)?;
        }
        let fields = match (raw.fields.take(), outer) {
            (None, Some(outer)) => outer.fields.clone(),
            (written_values, _) => Arc::new(RequestFields::resolve(written_values.unwrap_or_default(), cx)?),
        };
        let settings = Arc::new(settings);
        if let Some(target) = &target {
            *cx.block.notes.of() = match target.fixed() {
                None => PassTarget::Anywhere,
                Some(to) => {
                    let settings = settings.clone();
                    let to = to.clone();
                    let fields = fields.clone();
                    PassTarget::To(Arc::new(GrpcHealthCheck { settings, to, fields }))
                }
            };
        }
        Ok(Self { settings, target, fields })
    }

    fn settings(&self) -> &ProxySettings {
        &self.settings
    }

    fn passes(&self) -> bool {
        self.target.is_some()
    }

    fn has_names(&self) -> bool {
        self.target.as_ref().is_some_and(PassAddress::has_names)
    }
}

impl Handler for Grpc {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::wait(|| self.pass(r))
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        self.target.as_ref().and_then(|target| target.explain(r, SCHEMES)).into_iter().collect()
    }
}

/// Target of a request, and the server that it is for.
#[derive(Clone, Copy)]
struct RequestTarget<'a> {
    method: &'a [u8],
    uri: &'a [u8],
    host: &'a [u8],
}

impl Grpc {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some(target) = &self.target else { return Outcome::Pass };
        let to = match target.destination(r, SCHEMES) {
            Ok(to) => to,
            Err(status) => return Outcome::Status(status),
        };
        let host = authority(to.host);
        r.set_upstream_url(to.scheme.text, push_target);
        let method = r.method_name().to_vec();
        let make = |r: &Request| {
            self.make(r, RequestTarget { method: &method, uri: &r.upstream.url.path, host: &host })
        };
        let (head, rebuild): (_, Option<RequestBuilder<'_>>) = if self.is_rebuilt(r) {
            (Vec::new(), Some(&make))
        } else {
            match make(r) {
                Ok(BuiltRequest { head, .. }) => (head, None),
                Err(status) => return Outcome::Status(status),
            }
        };
        let secured = if to.scheme.is_secured { self.settings.upstream.tls.for_host(r, &host) } else { None };
        let request = UpstreamRequest {
            settings: &self.settings.upstream,
            response: Some(&self.settings.response),
            group: &to.group,
            secured,
            head,
            body: UpstreamRequestBody::Client,
            framing: BodyFraming::Plain,
            rebuild,
            codec: Http2Codec::new(r.method(), self.settings.upstream.buffer_size, Trailers::Forwarded),
        };
        proxy::pass(r, &self.settings, &KeepFields, None, &request).await
    }

    /// The request as it is sent. The error is a status.
    fn make(&self, r: &Request, target: RequestTarget<'_>) -> Result<BuiltRequest, u16> {
        let mut head = Vec::with_capacity(HEAD_SIZE);
        if let Err(error) = self.write(r, target, &mut head) {
            r.log(Level::Error, format_args!("{error}, URI \"{}\"", Text(target.uri)));
            return Err(400);
        }
        Ok(BuiltRequest { head, body: UpstreamRequestBody::Client, framing: BodyFraming::Plain })
    }

    fn write(
        &self,
        r: &Request,
        RequestTarget { method, uri, host }: RequestTarget<'_>,
        head: &mut Vec<u8>,
    ) -> Result<(), tw_http::origin::WriteError> {
        let mut writer = RequestWriter::begin(head, method, uri, Version::HTTP_11)?;
        let passed = fields::ForwardedFields { is_client_passed: true, host, conditions: None };
        self.fields.write(r, &mut writer, r.body.framing(r.head.framing()), &passed)?;
        // `TE` is a hop-by-hop field, which is not forwarded otherwise, but gRPC servers ask for `te: trailers`.
        let takes_trailers = || r.head.field_all(b"TE").any(|value| hop::has_element(value, b"trailers"));
        if !self.fields.sets(b"TE") && takes_trailers() {
            writer.field(b"TE", b"trailers")?;
        }
        writer.end();
        Ok(())
    }
}

/// Appends the target: the client's, as it was sent if nothing has changed it.
fn push_target(r: &Request, out: &mut Vec<u8>) {
    match r.target_as_sent() {
        Some(target) => out.extend_from_slice(target),
        None => {
            Escape::Uri.push(&r.uri.path, out);
            if !r.uri.args.is_empty() {
                out.push(b'?');
                out.extend_from_slice(&r.uri.args);
            }
        }
    }
}
