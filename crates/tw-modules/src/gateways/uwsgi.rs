//! `uwsgi_pass`: requests to an application server that speaks uwsgi, such as those of Python (nginx:
//! ngx_http_uwsgi_module). Content phase.

use tw_base::{Limit, PrefixedName};
use tw_conf::{ConfError, Contexts, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_connect::tls_directives::UpstreamTlsDirectives;
use tw_connect::upstream_tls::RawUpstreamTls;
use tw_http::Method;
use tw_http_cache::settings::CacheDirectives;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::http1::Http1Codec;
use tw_proxy::directives::{ProxyDirectives, UpstreamDirectives};
use tw_proxy::settings::{HIDDEN_OF_APPLICATIONS, HasUpstream, ProxyKind};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};

use crate::gateways::cgi::address::AddressScheme;
use crate::gateways::cgi::params::{self, RequestParams, Writer};
use crate::gateways::cgi::{self, CgiGateway, Language};
use crate::gateways::pass_module::Pass;

/// Bytes of the head of a request.
const HEAD: usize = 4;
/// Bytes of a length.
const LEN: usize = size_of::<u16>();
/// Bytes that the parameters of a request usually have at most.
const PARAMS_SIZE: usize = 2048;

/// The module.
pub(crate) type UwsgiPass = Pass<CgiGateway<Uwsgi>>;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    modifiers: [Setting<u8>; 2],
}

/// Settings of one location.
pub(crate) struct Uwsgi {
    /// Kind of the application, and kind of the request.
    modifiers: [u8; 2],
}

type Own = cgi::Raw<Uwsgi>;

const OWN: &[Directive<Own>] = &[
    cgi::pass("uwsgi_pass", "[protocol://]address"),
    cgi::param("uwsgi_param"),
    record::number("uwsgi_modifier1", params::ALL)
        .default("0")
        .doc("The first modifier of requests: what kind of application is asked.")
        .set(|raw, node, _| set_modifier(&mut raw.own.modifiers[0], node)),
    record::number("uwsgi_modifier2", params::ALL)
        .default("0")
        .doc("The second modifier of requests.")
        .set(|raw, node, _| set_modifier(&mut raw.own.modifiers[1], node)),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Own>]] =
    &[Own::CONNECTION, Own::SOCKET_SIZES, Own::RESPONSE, Own::BODIES, Own::TLS, Own::CACHE];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Own::PREFIX, SHARED);

impl UpstreamDirectives for Own {
    const PREFIX: &'static str = "uwsgi_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS_OF_APPLICATIONS;
}

impl UpstreamTlsDirectives for Own {
    const MODULE: &'static str = "ngx_http_uwsgi_module";
    const TLS_NAME: &'static str = "host from uwsgi_pass";
    const TLS_CONTEXTS: Contexts = HTTP | SERVER | LOCATION;

    fn upstream_tls(&mut self) -> &mut RawUpstreamTls {
        &mut self.upstream().tls
    }
}

impl CacheDirectives for Own {
    const USE_STALE: RetryWords = RetryOn::STALE_WORDS_OF_APPLICATIONS;
}

fn set_modifier(setting: &mut Setting<u8>, node: &Node) -> Result<(), ConfError> {
    let word = node.arg(0)?;
    let number = tw_conf::units::number(&word.bytes).ok_or_else(|| node.error("invalid number"))?;
    let number =
        u8::try_from(number).map_err(|_| node.fail("value must be between 0 and 255").at(word.span))?;
    setting.set_once(node, number)
}

impl Language for Uwsgi {
    const KIND: ProxyKind = ProxyKind {
        prefix: Own::PREFIX,
        temp_path: Some(b"uwsgi_temp"),
        hidden: HIDDEN_OF_APPLICATIONS,
        answers_404: false,
        buffers: true,
        converts_head: false,
    };
    const SCHEMES: &'static [AddressScheme] = &[
        AddressScheme { text: "uwsgi://", is_written: true, is_secured: false },
        AddressScheme { text: "suwsgi://", is_written: true, is_secured: true },
    ];
    const FRAMING: BodyFraming = BodyFraming::Plain;
    const TAKES_ANY_LENGTH: bool = false;
    const DIRECTIVES: &'static [Directive<Own>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);
    const LIMITS: &'static [Limit] = Own::BODY_LIMITS;

    type Raw = Raw;
    type Codec = Http1Codec;

    fn resolve(raw: Raw, outer: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let [first, second] = raw.modifiers;
        let outer = outer.map(|outer| outer.modifiers);
        Ok(Self { modifiers: [first.or(outer.map(|o| o[0]), 0), second.or(outer.map(|o| o[1]), 0)] })
    }

    fn head(&self, r: &Request, sent: &RequestParams<'_>) -> Result<Vec<u8>, String> {
        let mut params = Vec::with_capacity(PARAMS_SIZE);
        params.resize(HEAD, 0);
        let mut params = Packet(params);
        sent.write(r, &mut params);
        let Packet(mut head) = params;
        let len = head.len() - HEAD;
        let [low, high] =
            u16::try_from(len).map_err(|_| format!("uwsgi request is too big: {len}"))?.to_le_bytes();
        head[..HEAD].copy_from_slice(&[self.modifiers[0], low, high, self.modifiers[1]]);
        Ok(head)
    }

    fn codec(&self, method: Method, head_size: usize) -> Http1Codec {
        Http1Codec::of_application(method, head_size)
    }
}

/// A packet: names and values, each with its length in front.
struct Packet(Vec<u8>);

impl Writer for Packet {
    fn begin(&mut self, name: &[u8]) -> usize {
        // A name whose length does not fit into 16 bits makes the whole packet too big, which is refused.
        self.0.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.0.extend_from_slice(name);
        let room = self.0.len();
        self.0.extend_from_slice(&[0; LEN]);
        room
    }

    fn out(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    fn end(&mut self, room: usize, value_at: usize) {
        let len = (self.0.len() - value_at) as u16;
        self.0[room..room + LEN].copy_from_slice(&len.to_le_bytes());
    }
}
