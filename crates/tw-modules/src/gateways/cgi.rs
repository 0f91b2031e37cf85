//! Gateways to application servers: a request is sent as parameters and a body, a response is read as fields and a
//! body. The common part of FastCGI, uwsgi and SCGI (nginx: ngx_http_fastcgi_module, ngx_http_uwsgi_module,
//! ngx_http_scgi_module). Content phase.
//!
//! A [`Language`] defines the format of parameters and the parser of responses; the proxy engine does the rest.

pub(crate) mod address;
mod health_check;
mod language;
pub(crate) mod params;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive, Span};
use tw_connect::upstream_tls::TlsProtocol;
use tw_http::{Framing, Method};
use tw_http_cache::{self as cache, Lookup, SentBody};
use tw_log::{Level, Text};
use tw_phases::forward_head::RewriteFields;
use tw_proxy::health::PassTarget;
use tw_proxy::{
    self as proxy, BuiltRequest, ProxySettings, RequestBuilder, UpstreamRequest, UpstreamRequestBody,
};
use tw_request::plan::{Handler, Outcome, Plan, Step};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Template, VarDef};

use crate::gateways::pass_module::PassModule;

use address::{AddressDestination, PassAddress};
use health_check::CgiHealthCheck;
pub(crate) use language::{Language, Raw, param, pass, without_effect};
use params::{Params, RequestParams};

/// Default key of cached responses.
// DIFF(nginx): without a key, nginx takes all responses of a location for the same.
const USUAL_KEY: &[u8] = b"$scheme$request_method$host$request_uri";

/// Settings of one location.
pub(crate) struct CgiGateway<L> {
    settings: Arc<ProxySettings>,
    target: Option<PassAddress>,
    /// Position of the pass directive, if it is in this block.
    span: Option<Span>,
    params: Arc<Params>,
    usual_key: Template,
    language: Arc<L>,
}

impl<L: Language> PassModule for CgiGateway<L> {
    type Raw = Raw<L>;

    const DIRECTIVES: &'static [Directive<Raw<L>>] = L::DIRECTIVES;
    const VARIABLES: &'static [VarDef] = L::VARIABLES;
    const LIMITS: &'static [Limit] = L::LIMITS;

    fn resolve(raw: Raw<L>, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let written_span = raw.pass.span();
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
            (raw_params, _) => Arc::new(Params::resolve(raw_params.unwrap_or_default(), cx)?),
        };
        let usual_key = match outer {
            Some(outer) => outer.usual_key.clone(),
            None => cx.template_text(USUAL_KEY, None)?,
        };
        let language = Arc::new(L::resolve(raw.own, outer.map(|o| &*o.language), cx)?);
        let settings = Arc::new(settings);
        if let Some(target) = &target {
            *cx.block.notes.of() = match target.fixed() {
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
        Ok(Self { settings, target, span: written_span, params, usual_key, language })
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

    fn install_variables(&self, plan: &mut Plan) {
        self.language.install(self.span.map(|span| (span, &*self.params)), plan);
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
        if self.is_rebuilt(r) {
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
    fn cache_key(&self, r: &Request, out: &mut Vec<u8>) {
        self.usual_key.eval(r, out);
    }
}
