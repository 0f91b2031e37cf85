//! Gateways to application servers: a request is sent as parameters and a body, a response is read as fields and a
//! body. The common part of FastCGI, uwsgi and SCGI (nginx: ngx_http_fastcgi_module, ngx_http_uwsgi_module,
//! ngx_http_scgi_module). Content phase.
//!
//! A [`Language`] defines the format of parameters and the parser of responses; the proxy engine does the rest.

pub(crate) mod address;
mod health_check;
pub(crate) mod params;

use std::sync::Arc;

use tw_conf::{
    Args, ConfError, Directive, IF_IN_LOCATION, IneffectiveDirectives, LOCATION, Setting, Span, record,
};
use tw_connect::upstream_tls::TlsProtocol;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_http::{Framing, Method};
use tw_log::{Level, Text};
use tw_server::config::location::Location;
use tw_server::http::Http;
use tw_server::http::cache::{self, Lookup, SentBody};
use tw_server::http::forward_head::RewriteFields;
use tw_server::http::plan::{Handler, Outcome, Plan, Step};
use tw_server::http::proxy::codec::{BodyFraming, Codec};
use tw_server::http::proxy::health::PassTarget;
use tw_server::http::proxy::settings::{HasProxy, ProxyKind, RawProxy};
use tw_server::http::proxy::{
    self, BuiltRequest, ProxySettings, RequestBuilder, UpstreamRequest, UpstreamRequestBody,
};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::{Template, VarDef};

use crate::gateways::pass_module::{self, PassModule};

use address::{AddressDestination, AddressScheme, PassAddress, RawPassAddress};
use health_check::CgiHealthCheck;
use params::{Params, RawParam, RequestParams};

/// Default key of cached responses.
// DIFF(nginx): without a key, nginx takes all responses of a location for the same.
const USUAL_KEY: &[u8] = b"$scheme$request_method$host$request_uri";

/// Protocol of an application server.
pub(crate) trait Language: Sized + Send + Sync + 'static {
    /// Properties of this kind of gateway.
    const KIND: ProxyKind;
    /// Schemes that an address may have; the first is that of addresses without one.
    const SCHEMES: &'static [AddressScheme];
    /// Framing of the request body.
    const FRAMING: BodyFraming;
    /// Set if a body of unknown length may be passed on.
    const TAKES_ANY_LENGTH: bool;
    /// All records.
    const DIRECTIVES: &'static [Directive<Raw<Self>>];
    /// Variables of the protocol.
    const VARIABLES: &'static [VarDef] = &[];
    /// The limits of its directives.
    const LIMITS: &'static [tw_base::Limit];

    /// Settings of the protocol as written.
    type Raw: Default + 'static;
    /// Parser of responses.
    type Codec: Codec + Clone;

    /// Resolves settings as written.
    fn resolve(raw: Self::Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError>;

    /// Installs the variables at a location. `passed` is the position of the pass directive there, and its parameters.
    fn install(&self, _passed: Option<(Span, &Params)>, _plan: &mut Plan) {}

    /// Text that is sent before the body of `r`.
    ///
    /// # Errors
    /// The parameters are too many; the text is for the log.
    fn head(&self, r: &Request, sent: &RequestParams<'_>) -> Result<Vec<u8>, String>;

    /// Text as of [`head`](Self::head), with the end of an empty body; and the framing of a body that follows.
    ///
    /// # Errors
    /// As [`head`](Self::head).
    fn beginning(&self, r: &Request, sent: &RequestParams<'_>) -> Result<(Vec<u8>, BodyFraming), String> {
        let mut head = self.head(r, sent)?;
        let framing = match sent.body {
            // Without a body, its end marker is appended to the head, so that one write sends both.
            Framing::None => {
                head.extend_from_slice(&Self::FRAMING.end());
                BodyFraming::Plain
            }
            Framing::Length(_) | Framing::Chunked => Self::FRAMING,
        };
        Ok((head, framing))
    }

    /// Parser of the response to a request with this method.
    fn codec(&self, method: Method, head_size: usize) -> Self::Codec;
}

/// Settings as written.
pub(crate) struct Raw<L: Language> {
    settings: RawProxy,
    pass: Setting<RawPassAddress>,
    params: Setting<Vec<RawParam>>,
    without_effect: IneffectiveDirectives,
    pub(crate) own: L::Raw,
}

impl<L: Language> Default for Raw<L> {
    fn default() -> Self {
        Self {
            settings: RawProxy::default(),
            pass: Setting::default(),
            params: Setting::default(),
            without_effect: IneffectiveDirectives::default(),
            own: L::Raw::default(),
        }
    }
}

impl<L: Language> HasProxy for Raw<L> {
    fn proxy(&mut self) -> &mut RawProxy {
        &mut self.settings
    }
}

/// The record of the directive that names the application.
pub(crate) const fn pass<L: Language>(name: &'static str, syntax: &'static str) -> Directive<Raw<L>> {
    record::new(name, syntax, LOCATION | IF_IN_LOCATION, Args::exact(1))
        .doc("The application that answers: host:port, unix:path, or a group; may hold variables.")
        .set(|raw, node, _| {
            let target = RawPassAddress::read(node)?;
            raw.pass.set_once(node, target)
        })
}

/// Record of the directive that sets a parameter.
pub(crate) const fn param<L: Language>(name: &'static str) -> Directive<Raw<L>> {
    record::new(name, "parameter value [if_not_empty]", params::ALL, Args::range(2, 3))
        .default("HTTP_HOST $host$is_request_port$request_port")
        .doc("A parameter of requests to applications; one of HTTP_ stands for the field of the request.")
        .set(|raw, node, _| {
            let param = RawParam::read(node)?;
            raw.params.push(node, param);
            Ok(())
        })
}

/// Record of a directive for a table or buffer that does not exist here.
pub(crate) const fn without_effect<L: Language>(
    name: &'static str,
    syntax: &'static str,
    default: &'static str,
) -> Directive<Raw<L>> {
    record::new(name, syntax, params::ALL, Args::exact(1))
        .default(default)
        .doc("Accepted and without effect: there is no table or buffer here that needs this size.")
        .set(|raw, node, _| {
            node.size()?;
            raw.without_effect.set_once(node)
        })
}

/// Settings of one location.
pub(crate) struct CgiGateway<L> {
    settings: Arc<ProxySettings>,
    target: Option<PassAddress>,
    /// Position of the pass directive, if it is in this block.
    written: Option<Span>,
    params: Arc<Params>,
    usual_key: Template,
    language: Arc<L>,
}

impl<L: Language> Settings<Http> for CgiGateway<L> {
    type Raw = Raw<L>;

    const DIRECTIVES: &'static [Directive<Raw<L>>] = L::DIRECTIVES;
    const VARIABLES: &'static [VarDef] = L::VARIABLES;
    const LIMITS: &'static [tw_base::Limit] = L::LIMITS;

    fn resolve(raw: Raw<L>, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let written = raw.pass.span();
        let target = match raw.pass.take() {
            Some(target) => Some(target.resolve(L::SCHEMES, cx)?),
            // A part of a location has the target of the whole.
            None if cx.block.is_nameless() => outer.and_then(|o| o.target.clone()),
            None => None,
        };
        let cache_at = raw.settings.cache.zone.span();
        let mut settings = ProxySettings::resolve(raw.settings, outer.map(|o| &*o.settings), &L::KIND, cx)?;
        if let Some(span) = cache_at
            && settings.cache.is_on()
            && !settings.cache.has_key()
        {
            let prefix = L::KIND.prefix;
            cx.warn(span, format!("no \"{prefix}cache_key\" for \"{prefix}cache\""));
        }
        if target.as_ref().is_some_and(|target| target.may_be_secured(L::SCHEMES)) {
            settings.upstream.tls.enable(L::KIND.prefix, TlsProtocol::Any, cx)?;
        }
        let params = match (raw.params.take(), outer) {
            (None, Some(outer)) => outer.params.clone(),
            (written, _) => Arc::new(Params::resolve(written.unwrap_or_default(), cx)?),
        };
        let usual_key = match outer {
            Some(outer) => outer.usual_key.clone(),
            None => cx.template_text(USUAL_KEY, None)?,
        };
        let language = Arc::new(L::resolve(raw.own, outer.map(|o| &*o.language), cx)?);
        let settings = Arc::new(settings);
        if let Some(target) = &target {
            cx.block.passing = match target.fixed() {
                None => PassTarget::Anywhere,
                Some(to) => {
                    let settings = settings.clone();
                    let to = to.clone();
                    let language = language.clone();
                    PassTarget::To(Arc::new(CgiHealthCheck {
                        settings,
                        to,
                        params: params.clone(),
                        language,
                    }))
                }
            };
        }
        Ok(Self { settings, target, written, params, usual_key, language })
    }

    fn are_shared(&self) -> bool {
        pass_module::are_shared(self)
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        self.language.install(self.written.map(|span| (span, &*self.params)), plan);
        pass_module::install(self, plan);
    }

    fn reach(&self, core: &Location, reach: &mut Reach) {
        pass_module::reach(self, core, reach);
    }
}

impl<L: Language> PassModule for CgiGateway<L> {
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

impl<L: Language> Handler for CgiGateway<L> {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        Step::wait(|| self.pass(r))
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        let to = self.target.as_ref().and_then(|target| target.explain(r, L::SCHEMES));
        let script = self.params.value(b"SCRIPT_FILENAME").map(|path| Text(&path.value(r)).to_string());
        let script = script.filter(|_| to.is_some()).map(|path| ("script", path));
        let cache = self.settings.cache.explain(r, |r, key| self.usual_key.eval(r, key));
        to.into_iter().chain(script).chain(cache).collect()
    }
}

impl<L: Language> CgiGateway<L> {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some(target) = &self.target else { return Outcome::Pass };
        let to = match target.destination(r, L::SCHEMES) {
            Ok(to) => to,
            Err(status) => return Outcome::Status(status),
        };
        let needs_length = !L::TAKES_ANY_LENGTH && r.head.framing() == Framing::Chunked;
        if let Err(status) = proxy::read_body(r, &self.settings, needs_length).await {
            return Outcome::Status(status);
        }
        let key = |r: &Request, key: &mut Vec<u8>| self.usual_key.eval(r, key);
        let sent = if self.settings.request.pass_body { SentBody::Client } else { SentBody::None };
        let forward = &self.settings.response.forward;
        let lookup = match cache::look_up(r, &self.settings.cache, forward, self, sent, key).await {
            Ok(lookup) => lookup,
            Err(answer) => return answer,
        };
        // DIFF(nginx): GET cannot be asked in the place of HEAD, and what answers HEAD would answer GET from then on.
        let lookup = lookup.filter(|lookup| !(r.method() == Method::Head && lookup.leads()));
        r.set_upstream_url(to.scheme.text, |_, _| {});
        if pass_module::is_rebuilt(r, &self.settings) {
            // Boxed: other requests stay smaller without this state.
            return Box::pin(self.pass_rebuilt(r, &to, lookup)).await;
        }
        let request = match self.write(r, &self.sent(r, lookup.as_deref())) {
            Ok(made) => self.upstream_request(r, &to, made, None),
            Err(status) => return Outcome::Status(status),
        };
        proxy::pass(r, &self.settings, self, lookup, &request).await
    }

    /// Passes a request that is built anew for each server.
    async fn pass_rebuilt(
        &self,
        r: &mut Request,
        to: &AddressDestination<'_>,
        lookup: Option<Box<Lookup>>,
    ) -> Outcome {
        let sent = self.sent(r, lookup.as_deref());
        let make = |r: &Request| self.write(r, &sent);
        let empty = BuiltRequest { head: Vec::new(), body: self.body(), framing: L::FRAMING };
        let request = self.upstream_request(r, to, empty, Some(&make));
        proxy::pass(r, &self.settings, self, lookup, &request).await
    }

    fn body(&self) -> UpstreamRequestBody {
        if self.settings.request.pass_body {
            UpstreamRequestBody::Client
        } else {
            UpstreamRequestBody::Nothing
        }
    }

    /// Parts of the request that are sent.
    fn sent(&self, r: &Request, lookup: Option<&Lookup>) -> RequestParams<'_> {
        RequestParams {
            params: &self.params,
            is_client_passed: self.settings.request.pass_headers,
            conditions: lookup.and_then(|lookup| lookup.conditions(r, &self.settings.cache)),
            body: if self.settings.request.pass_body {
                r.body.framing(r.head.framing())
            } else {
                Framing::None
            },
        }
    }

    /// Writes a request. The error is a status.
    fn write(&self, r: &Request, sent: &RequestParams<'_>) -> Result<BuiltRequest, u16> {
        let (head, framing) = self.language.beginning(r, sent).map_err(|message| {
            r.log(Level::Alert, format_args!("{message}"));
            500_u16
        })?;
        Ok(BuiltRequest { head, body: self.body(), framing })
    }

    fn upstream_request<'a>(
        &'a self,
        r: &Request,
        to: &'a AddressDestination<'_>,
        made: BuiltRequest,
        rebuild: Option<RequestBuilder<'a>>,
    ) -> UpstreamRequest<'a, L::Codec> {
        UpstreamRequest {
            settings: &self.settings.upstream,
            response: Some(&self.settings.response),
            group: &to.group,
            secured: if to.scheme.is_secured {
                self.settings.upstream.tls.for_host(r, &to.host)
            } else {
                None
            },
            head: made.head,
            body: made.body,
            framing: made.framing,
            rebuild,
            codec: self.language.codec(r.method(), self.settings.upstream.buffer_size),
        }
    }
}

impl<L: Language> RewriteFields for CgiGateway<L> {
    fn location(&self, _: &Request, _: &[u8], _: bool) -> Option<Vec<u8>> {
        None
    }

    fn cache_key(&self, r: &Request, out: &mut Vec<u8>) {
        self.usual_key.eval(r, out);
    }

    fn cookie(&self, _: &Request, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}
