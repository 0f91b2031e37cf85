//! Protocol of an application server, and the directives that all such protocols have.

use tw_base::Limit;
use tw_conf::{
    Args, ConfError, Directive, IF_IN_LOCATION, IneffectiveDirectives, LOCATION, Setting, Span, record,
};
use tw_http::{Framing, Method};
use tw_http_cache::settings::{self as cache_settings, HasCacheSettings};
use tw_proxy::codec::{BodyFraming, Codec};
use tw_proxy::settings::{HasProxy, ProxyKind, RawProxy};
use tw_request::plan::Plan;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::VarDef;

use super::address::{AddressScheme, RawPassAddress};
use super::params::{self, Params, RawParam, RequestParams};

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
    const LIMITS: &'static [Limit];

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
    pub(super) settings: RawProxy,
    pub(super) pass: Setting<RawPassAddress>,
    pub(super) params: Setting<Vec<RawParam>>,
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

impl<L: Language> HasCacheSettings for Raw<L> {
    fn cache_settings(&mut self) -> &mut cache_settings::Raw {
        &mut self.settings.cache
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
