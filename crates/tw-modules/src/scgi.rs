//! `scgi_pass` and its kin: requests go to an application that speaks SCGI (nginx: ngx_http_scgi_module). Content phase.

use bytes::Bytes;
use tw_conf::{ConfError, Directive, record};
use tw_http::{Framing as Announced, Method};
use tw_server::http::gateway::codec::Framing;
use tw_server::http::gateway::codec::http1::Http1;
use tw_server::http::gateway::settings::{HIDDEN_OF_APPLICATIONS, Kind};
use tw_server::http::gateway::words::Next;
use tw_server::http::request::Request;
use tw_server::load::Resolve;

use crate::cgi::address::Scheme;
use crate::cgi::params::Sent;
use crate::cgi::{self, CgiGateway, Language};

/// Bytes that the parameters of a request usually have at most.
const PARAMS_SIZE: usize = 2048;

/// The module.
pub(crate) type ScgiPass = CgiGateway<Scgi>;

/// SCGI has nothing of its own to be said.
pub(crate) struct Scgi;

type Own = cgi::Raw<Scgi>;

const OWN: &[Directive<Own>] = &[cgi::pass("scgi_pass", "address"), cgi::param("scgi_param")];

/// All lists.
const LISTS: &[&[Directive<Own>]] = &[
    OWN,
    tw_server::connection_directives!("scgi_"),
    tw_server::next_upstream_directive!(
        "scgi_",
        "error | timeout | denied | invalid_header | http_500 | http_503 | http_403 | http_404 | http_429 | non_idempotent | off …",
        Next::WORDS_OF_APPLICATIONS
    ),
    tw_server::response_directives!("scgi_"),
    tw_server::gateway_directives!("scgi_"),
    tw_server::cache_directives!(
        "scgi_",
        "error | timeout | invalid_header | updating | http_500 | http_503 | http_403 | http_404 | http_429 | off …",
        Next::STALE_WORDS_OF_APPLICATIONS
    ),
];

impl Language for Scgi {
    const KIND: Kind = Kind {
        prefix: "scgi_",
        temp_path: Some(b"scgi_temp"),
        hidden: HIDDEN_OF_APPLICATIONS,
        answers_404: false,
        buffers: true,
        converts_head: false,
    };
    const SCHEMES: &'static [Scheme] = &[Scheme::unwritten("scgi://")];
    const FRAMING: Framing = Framing::Plain;
    const TAKES_ANY_LENGTH: bool = false;
    const DIRECTIVES: &'static [Directive<Own>] = &record::joined::<_, { record::count(LISTS) }>(LISTS);
    const LIMITS: &'static [tw_base::Limit] = tw_server::gateway_limits!("scgi_");

    type Raw = ();
    type Codec = Http1;

    fn resolve((): (), _: Option<&Self>, _: &mut Resolve<'_>) -> Result<Self, ConfError> {
        Ok(Self)
    }

    fn head(&self, r: &Request, sent: &Sent<'_>) -> Result<Bytes, String> {
        // It comes first.
        // DIFF(nginx): the length is that of what is sent.
        let len = match sent.body {
            Announced::Length(len) => len,
            Announced::None | Announced::Chunked => 0,
        };
        let mut params = Vec::with_capacity(PARAMS_SIZE);
        let mut has_nul = false;
        let mut param = |name: &[u8], value: &[u8]| {
            has_nul |= name.contains(&0) || value.contains(&0);
            for text in [name, value] {
                params.extend_from_slice(text);
                params.push(0);
            }
        };
        param(b"CONTENT_LENGTH", len.to_string().as_bytes());
        sent.each(r, param);
        // DIFF(nginx): a value with a zero byte would end there, and begin a parameter of its own choice.
        if has_nul {
            return Err("scgi parameter has a zero byte".to_owned());
        }
        Ok([params.len().to_string().as_bytes(), b":", &params, b","].concat().into())
    }

    fn codec(&self, method: Method, head_size: usize) -> Http1 {
        Http1::of_application(method, head_size)
    }
}
