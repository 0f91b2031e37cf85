//! `memcached_pass`: a value of memcached as the response (nginx: ngx_http_memcached_module). Content phase.

use std::sync::Arc;

use bytes::Bytes;
use tw_base::{Limit, PrefixedName};
use tw_conf::{Args, ConfError, Directive, IF_IN_LOCATION, LOCATION, Setting, record};
use tw_connect::upstream_tls::UpstreamTls;
use tw_http::escape::Escape;
use tw_http::{Method, target};
use tw_log::Level;
use tw_phases::forward_head::KeepFields;
use tw_proxy::codec::memcached::MemcachedCodec;
use tw_proxy::codec::{BodyFraming, Codec};
use tw_proxy::directives::UpstreamDirectives;
use tw_proxy::health::{Checkable, PassTarget};
use tw_proxy::settings::{HasProxy, ProxyKind, RawProxy};
use tw_proxy::{self as proxy, ProxySettings, UpstreamRequest, UpstreamRequestBody, UpstreamSettings};
use tw_request::config::upstream::UpstreamGroup;
use tw_request::plan::{Handler, Outcome, Step};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};
use tw_request::vars::Template;

use crate::gateways::cgi::address::{AddressScheme, FixedAddress, PassAddress, RawPassAddress};
use crate::gateways::cgi::params;
use crate::gateways::pass_module::{Pass, PassModule};

const SCHEMES: &[AddressScheme] = &[AddressScheme::unwritten("memcached://")];

/// Properties of this kind of gateway.
const KIND: ProxyKind = ProxyKind {
    prefix: Raw::PREFIX,
    temp_path: None,
    hidden: &[],
    answers_404: true,
    buffers: false,
    converts_head: false,
};

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    settings: RawProxy,
    pass: Setting<RawPassAddress>,
    gzip_flag: Setting<u64>,
}

impl HasProxy for Raw {
    fn proxy(&mut self) -> &mut RawProxy {
        &mut self.settings
    }
}

/// The module.
pub(crate) type MemcachedPass = Pass<Memcached>;

/// Settings of one location.
pub(crate) struct Memcached {
    settings: Arc<ProxySettings>,
    /// Destination of requests, and their key.
    passed: Option<(PassAddress, Template)>,
    gzip_flag: u64,
}

const OWN: &[Directive<Raw>] = &[
    record::new("memcached_pass", "address", LOCATION | IF_IN_LOCATION, Args::exact(1))
        .doc("The memcached that answers with the value of $memcached_key: host:port, unix:path, or a group; may hold variables.")
        .set(|raw, node, _| {
            let target = RawPassAddress::read(node)?;
            raw.pass.set_once(node, target)
        }),
    record::number("memcached_gzip_flag", params::ALL)
        .since("1.3.6")
        .doc("Bits of a value's flags that say that it is compressed with gzip.")
        .set(|raw, node, _| raw.gzip_flag.set_number(node)),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Raw>]] = &[Raw::CONNECTION];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Raw::PREFIX, SHARED);

impl UpstreamDirectives for Raw {
    const PREFIX: &'static str = "memcached_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS_OF_MEMCACHED;
}

impl PassModule for Memcached {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);
    const LIMITS: &'static [Limit] = Raw::CONNECTION_LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let passed = match (raw.pass.span(), raw.pass.take()) {
            (span, Some(target)) => {
                Some((target.resolve(SCHEMES, cx)?, cx.template_text(b"$memcached_key", span)?))
            }
            // A part of a location has the target of the whole.
            (_, None) if cx.block.is_nameless() => outer.and_then(|o| o.passed.clone()),
            (_, None) => None,
        };
        let settings =
            Arc::new(ProxySettings::resolve(raw.settings, outer.map(|o| &*o.settings), &KIND, cx)?);
        let gzip_flag = raw.gzip_flag.or(outer.map(|o| o.gzip_flag), 0);
        if let Some((target, _)) = &passed {
            *cx.block.notes.of() = match target.fixed() {
                None => PassTarget::Anywhere,
                Some(to) => PassTarget::To(Arc::new(MemcachedHealthCheck {
                    settings: settings.clone(),
                    to: to.clone(),
                })),
            };
        }
        Ok(Self { settings, passed, gzip_flag })
    }

    fn settings(&self) -> &ProxySettings {
        &self.settings
    }

    fn passes(&self) -> bool {
        self.passed.is_some()
    }

    fn has_names(&self) -> bool {
        self.passed.as_ref().is_some_and(|(target, _)| target.has_names())
    }
}

impl Handler for Memcached {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        match r.method() {
            Method::Get | Method::Head => Step::wait(|| self.pass(r)),
            _ => Step::status(405),
        }
    }

    fn explain(&self, r: &mut Request) -> Vec<(&'static str, String)> {
        let Some((target, key)) = &self.passed else { return Vec::new() };
        let to = target.explain(r, SCHEMES).into_iter();
        let key = key.value(r);
        to.map(|(about, text)| (about, format!("{text}, key {}", tw_log::Text(&key)))).collect()
    }
}

impl Memcached {
    async fn pass(&self, r: &mut Request) -> Outcome {
        let Some((target, key)) = &self.passed else { return Outcome::Pass };
        let to = match target.destination(r, SCHEMES) {
            Ok(to) => to,
            Err(status) => return Outcome::Status(status),
        };
        let key = key.value(r);
        if key.is_empty() {
            r.log(Level::Error, format_args!("the \"$memcached_key\" variable is not set"));
            return Outcome::Status(500);
        }
        let core = &r.plan().core;
        let content_type = core.types.find(target::exten(&r.uri.path)).unwrap_or(&core.default_type).clone();
        r.response.content_type = content_type;
        let (head, key) = get(&key);
        let is_head = r.method() == Method::Head;
        let codec = MemcachedCodec::new(key, self.settings.upstream.buffer_size, self.gzip_flag, is_head);
        r.set_upstream_url(to.scheme.text, |_, _| {});
        let request = UpstreamRequest {
            settings: &self.settings.upstream,
            response: Some(&self.settings.response),
            group: &to.group,
            secured: None,
            head,
            body: UpstreamRequestBody::Nothing,
            framing: BodyFraming::Plain,
            rebuild: None,
            codec,
        };
        proxy::pass(r, &self.settings, &KeepFields, None, &request).await
    }
}

/// Command that reads the value of a key, and the key as it is written in it.
fn get(key: &[u8]) -> (Vec<u8>, Bytes) {
    const GET: &[u8] = b"get ";
    let mut command = GET.to_vec();
    Escape::Memcached.push(key, &mut command);
    let at = GET.len()..command.len();
    command.extend_from_slice(b"\r\n");
    let key = Bytes::copy_from_slice(&command[at]);
    (command, key)
}

/// Health check of a location: it reads the key that is written as the path of a request, which need not exist.
struct MemcachedHealthCheck {
    settings: Arc<ProxySettings>,
    to: Arc<FixedAddress>,
}

impl Checkable for MemcachedHealthCheck {
    fn group(&self) -> &Arc<UpstreamGroup> {
        self.to.group()
    }

    fn settings(&self) -> &UpstreamSettings {
        &self.settings.upstream
    }

    fn secured(&self, _: &mut Request) -> Option<UpstreamTls> {
        None
    }

    fn request(&self, r: &mut Request) -> Result<Bytes, String> {
        Ok(get(r.head.target()).0.into())
    }

    fn codec(&self, r: &Request) -> Box<dyn Codec> {
        Box::new(MemcachedCodec::new(get(r.head.target()).1, self.settings.upstream.buffer_size, 0, false))
    }

    fn is_well(&self, status: u16) -> bool {
        matches!(status, 200 | 404)
    }
}
