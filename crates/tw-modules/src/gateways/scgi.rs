//! `scgi_pass`: requests to an application server that speaks SCGI (nginx: ngx_http_scgi_module). Content phase.

use tw_base::{Limit, PrefixedName};
use tw_conf::{ConfError, Directive, record};
use tw_http::{Framing, Method, num};
use tw_http_cache::settings::CacheDirectives;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::http1::Http1Codec;
use tw_proxy::directives::{ProxyDirectives, UpstreamDirectives};
use tw_proxy::settings::{HIDDEN_OF_APPLICATIONS, ProxyKind};
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};

use crate::gateways::cgi::address::AddressScheme;
use crate::gateways::cgi::params::{RequestParams, Writer};
use crate::gateways::cgi::{self, CgiGateway, Language};
use crate::gateways::pass_module::Pass;

/// Bytes that the parameters of a request usually have at most.
const PARAMS_SIZE: usize = 2048;

/// The module.
pub(crate) type ScgiPass = Pass<CgiGateway<Scgi>>;

/// SCGI, which has no settings of its own.
pub(crate) struct Scgi;

type Own = cgi::Raw<Scgi>;

const OWN: &[Directive<Own>] = &[cgi::pass("scgi_pass", "address"), cgi::param("scgi_param")];

/// Records that gateways share.
const SHARED: &[&[Directive<Own>]] =
    &[Own::CONNECTION, Own::SOCKET_SIZES, Own::RESPONSE, Own::BODIES, Own::CACHE];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Own::PREFIX, SHARED);

impl UpstreamDirectives for Own {
    const PREFIX: &'static str = "scgi_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS_OF_APPLICATIONS;
}

impl CacheDirectives for Own {
    const USE_STALE: RetryWords = RetryOn::STALE_WORDS_OF_APPLICATIONS;
}

impl Language for Scgi {
    const KIND: ProxyKind = ProxyKind {
        prefix: Own::PREFIX,
        temp_path: Some(b"scgi_temp"),
        hidden: HIDDEN_OF_APPLICATIONS,
        answers_404: false,
        buffers: true,
        converts_head: false,
    };
    const SCHEMES: &'static [AddressScheme] = &[AddressScheme::unwritten("scgi://")];
    const FRAMING: BodyFraming = BodyFraming::Plain;
    const TAKES_ANY_LENGTH: bool = false;
    const DIRECTIVES: &'static [Directive<Own>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);
    const LIMITS: &'static [Limit] = Own::BODY_LIMITS;

    type Raw = ();
    type Codec = Http1Codec;

    fn resolve((): (), _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self)
    }

    fn head(&self, r: &Request, sent: &RequestParams<'_>) -> Result<Vec<u8>, String> {
        // SCGI requires that CONTENT_LENGTH is the first parameter.
        // DIFF(nginx): the length is that of what is sent.
        let len = match sent.body {
            Framing::Length(len) => len,
            Framing::None | Framing::Chunked => 0,
        };
        let mut params = Netstring { text: Vec::with_capacity(PARAMS_SIZE), has_nul: false };
        let room = params.begin(b"CONTENT_LENGTH");
        let value_at = params.text.len();
        num::push_decimal(&mut params.text, len);
        params.end(room, value_at);
        sent.write(r, &mut params);
        let Netstring { text, has_nul } = params;
        // DIFF(nginx): a value with a zero byte would end there, and begin a parameter of its own choice.
        if has_nul {
            return Err("scgi parameter has a zero byte".to_owned());
        }
        Ok([text.len().to_string().as_bytes(), b":", &text, b","].concat())
    }

    fn codec(&self, method: Method, head_size: usize) -> Http1Codec {
        Http1Codec::of_application(method, head_size)
    }
}

/// Names and values, a zero byte behind each.
struct Netstring {
    text: Vec<u8>,
    /// Set if one of them has such a byte itself.
    has_nul: bool,
}

impl Writer for Netstring {
    fn begin(&mut self, name: &[u8]) -> usize {
        self.has_nul |= name.contains(&0);
        self.text.extend_from_slice(name);
        self.text.push(0);
        self.text.len()
    }

    fn out(&mut self) -> &mut Vec<u8> {
        &mut self.text
    }

    fn end(&mut self, _: usize, value_at: usize) {
        self.has_nul |= self.text[value_at..].contains(&0);
        self.text.push(0);
    }
}
