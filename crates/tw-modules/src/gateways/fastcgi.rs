//! `fastcgi_pass`: requests to an application server that speaks FastCGI, such as PHP (nginx: ngx_http_fastcgi_module).
//! Content phase.

use std::sync::Arc;

use tw_base::{Limit, PrefixedName};
use tw_conf::{Args, ConfError, Directive, Setting, Span, Word, record};
use tw_core::regex::{Captures, Caseless, Match, Regex};
use tw_http::Method;
use tw_http_cache::settings::CacheDirectives;
use tw_proxy::codec::BodyFraming;
use tw_proxy::codec::fastcgi::{FastCgiCodec, FastCgiRequest, FastCgiSettings};
use tw_proxy::directives::{ProxyDirectives, UpstreamDirectives};
use tw_proxy::settings::{HIDDEN_OF_APPLICATIONS, ProxyKind};
use tw_request::plan::Plan;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::retry_conditions::{RetryOn, RetryWords};
use tw_request::route::Pattern;
use tw_request::vars::{Value, VarDef};

use crate::gateways::cgi::address::AddressScheme;
use crate::gateways::cgi::params::{self, Params, RequestParams, Writer};
use crate::gateways::cgi::{self, CgiGateway, Language};
use crate::gateways::pass_module::Pass;

/// Bytes that the head of a request usually has at most.
const HEAD_SIZE: usize = 2048;

/// The module.
pub(crate) type FastCgiPass = Pass<CgiGateway<Responder>>;

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    index: Setting<Word>,
    split: Setting<Word>,
    caught: Setting<Vec<Box<[u8]>>>,
    keeps_open: Setting<bool>,
}

/// Settings of one location.
pub(crate) struct Responder {
    terms: FastCgiSettings,
    paths: Arc<Paths>,
    slots: [u16; 2],
}

/// Split of a path into script and path info.
#[derive(Default)]
struct Paths {
    /// `fastcgi_index`
    index: Box<[u8]>,
    /// `fastcgi_split_path_info`
    split: Option<Arc<Regex>>,
}

type Own = cgi::Raw<Responder>;

const OWN: &[Directive<Own>] = &[
    cgi::pass("fastcgi_pass", "address"),
    cgi::param("fastcgi_param"),
    record::new("fastcgi_index", "name", params::ALL, Args::exact(1))
        .doc("File name that is added to $fastcgi_script_name if the script name ends with a slash.")
        .set(|raw, node, _| raw.own.index.set_once(node, node.arg(0)?.clone())),
    record::new("fastcgi_split_path_info", "regex", params::ALL, Args::exact(1))
        .since("0.7.31")
        .doc("Two groups of the path: $fastcgi_script_name and $fastcgi_path_info.")
        .set(|raw, node, _| raw.own.split.set_once(node, node.arg(0)?.clone())),
    record::new("fastcgi_catch_stderr", "string", params::ALL, Args::exact(1))
        .doc("A text that makes a response invalid if the application says it in stderr before its head.")
        .set(|raw, node, _| {
            let text = node.arg(0)?.bytes.clone();
            raw.own.caught.push(node, text);
            Ok(())
        }),
    record::flag("fastcgi_keep_conn", params::ALL)
        .default("off")
        .since("1.1.4")
        .doc("Asks applications to keep connections open, for the keepalive of a group.")
        .set(|raw, node, _| raw.own.keeps_open.set_flag(node)),
    cgi::without_effect("fastcgi_send_lowat", "size", "0"),
];

/// Records that gateways share.
const SHARED: &[&[Directive<Own>]] =
    &[Own::CONNECTION, Own::SOCKET_SIZES, Own::RESPONSE, Own::BODIES, Own::CACHE];

static NAMES: [PrefixedName; record::count(SHARED)] = record::names(Own::PREFIX, SHARED);

impl UpstreamDirectives for Own {
    const PREFIX: &'static str = "fastcgi_";
    const NEXT_UPSTREAM: RetryWords = RetryOn::WORDS_OF_APPLICATIONS;
}

impl CacheDirectives for Own {
    const USE_STALE: RetryWords = RetryOn::STALE_WORDS_OF_APPLICATIONS;
}

impl Language for Responder {
    const KIND: ProxyKind = ProxyKind {
        prefix: Own::PREFIX,
        temp_path: Some(b"fastcgi_temp"),
        hidden: HIDDEN_OF_APPLICATIONS,
        answers_404: false,
        buffers: true,
        converts_head: false,
    };
    const SCHEMES: &'static [AddressScheme] = &[AddressScheme::unwritten("fastcgi://")];
    const FRAMING: BodyFraming = BodyFraming::Records;
    const TAKES_ANY_LENGTH: bool = true;
    const DIRECTIVES: &'static [Directive<Own>] =
        &record::joined::<_, { OWN.len() + NAMES.len() }>(&[OWN, &record::with_names(SHARED, &NAMES)]);
    const LIMITS: &'static [Limit] = Own::BODY_LIMITS;
    const VARIABLES: &'static [VarDef] = &[
        VarDef::volatile(
            "fastcgi_script_name",
            |r, out| {
                out.extend_from_slice(&r.uri.path);
                Value::Found
            },
            "Path of the request, with fastcgi_index if it ends with a slash, or the first group of fastcgi_split_path_info.",
        ),
        VarDef::volatile(
            "fastcgi_path_info",
            |_, _| Value::Found,
            "The second group of fastcgi_split_path_info.",
        ),
    ];

    type Raw = Raw;
    type Codec = FastCgiCodec;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let slots = [cx.slot("fastcgi_script_name"), cx.slot("fastcgi_path_info")];
        let paths = match (raw.index.take(), raw.split.take(), outer) {
            (None, None, Some(outer)) => outer.paths.clone(),
            (index, split, outer) => Arc::new(Paths {
                index: index
                    .map(|word| word.bytes)
                    .or(outer.map(|o| o.paths.index.clone()))
                    .unwrap_or_default(),
                split: match split {
                    Some(word) => Some(split_regex(&word, cx)?),
                    None => outer.and_then(|o| o.paths.split.clone()),
                },
            }),
        };
        let caught = match raw.caught.take() {
            Some(texts) => texts.into(),
            None => outer.map(|o| o.terms.caught.clone()).unwrap_or_default(),
        };
        let keeps_open = raw.keeps_open.or(outer.map(|o| o.terms.keeps_open), false);
        Ok(Self { terms: FastCgiSettings { keeps_open, caught }, paths, slots })
    }

    fn install(&self, passed: Option<(Span, &Params)>, plan: &mut Plan) {
        if !self.paths.index.is_empty() || self.paths.split.is_some() {
            let names = self.paths.clone();
            let infos = self.paths.clone();
            plan.compute(self.slots[0], Arc::new(move |r: &Request, out: &mut Vec<u8>| names.script(r, out)));
            plan.compute(self.slots[1], Arc::new(move |r: &Request, out: &mut Vec<u8>| infos.info(r, out)));
        }
        if let Some((span, params)) = passed
            && passes_what_is_not_there(plan, params)
        {
            let name = String::from_utf8_lossy(&plan.name).into_owned();
            plan.warn(
                span,
                format!(
                    "location \"{name}\" passes on scripts that may not exist: {TRAP} can make PHP run what was uploaded as photo.jpg; \"try_files $fastcgi_script_name =404;\" prevents that"
                ),
            );
        }
    }

    fn head(&self, r: &Request, sent: &RequestParams<'_>) -> Result<Vec<u8>, String> {
        let mut head = FastCgiRequest::begin(HEAD_SIZE, self.terms.keeps_open);
        sent.write(r, &mut head);
        Ok(head.end())
    }

    fn codec(&self, method: Method, head_size: usize) -> FastCgiCodec {
        FastCgiCodec::new(method, head_size, self.terms.clone())
    }
}

impl Writer for FastCgiRequest {
    fn begin(&mut self, name: &[u8]) -> usize {
        self.begin_param(name)
    }

    fn out(&mut self) -> &mut Vec<u8> {
        FastCgiRequest::out(self)
    }

    fn end(&mut self, room: usize, value_at: usize) {
        self.end_param(room, value_at);
    }
}

/// A path that names a script which is not there, behind a file that is.
const TRAP: &str = "/upload/photo.jpg/x.php";

/// Returns `true` if requests for scripts that do not exist may reach PHP, which then looks for one further up the path
/// (`cgi.fix_pathinfo`).
fn passes_what_is_not_there(plan: &Plan, params: &Params) -> bool {
    let script = params.value(b"SCRIPT_FILENAME");
    let takes_any = match plan.heading.as_ref().map(|heading| &heading.pattern) {
        Some(Pattern::Regex(regex)) => regex.is_match(TRAP.as_bytes()) == Ok(Match::Yes),
        _ => false,
    };
    takes_any && script.is_some_and(|script| script.constant().is_none()) && !plan.looks_for_files()
}

fn split_regex(word: &Word, cx: &mut Resolve<'_>) -> Result<Arc<Regex>, ConfError> {
    let regex = cx.regex(&word.bytes, Caseless::No).map_err(|error| {
        ConfError::new(format!("regex compilation failed: {error} in \"{word}\"")).at(word.span)
    })?;
    match regex.group_count() {
        2 => Ok(regex),
        _ => Err(ConfError::new(format!("pattern \"{word}\" must have 2 captures")).at(word.span)),
    }
}

impl Paths {
    /// Groups of the split path; `None` if it is not split.
    fn parts(&self, r: &Request) -> Option<Captures> {
        let mut captures = Captures::default();
        match self.split.as_ref()?.captures(&r.uri.path, &mut captures) {
            Ok(Match::Yes) => Some(captures),
            _ => None,
        }
    }

    /// `$fastcgi_script_name`
    fn script(&self, r: &Request, out: &mut Vec<u8>) -> Value {
        let parts = self.parts(r);
        let script = match &parts {
            Some(parts) => parts.group(1).unwrap_or_default(),
            None => &r.uri.path,
        };
        out.extend_from_slice(script);
        if script.last() == Some(&b'/') {
            out.extend_from_slice(&self.index);
        }
        Value::Found
    }

    /// `$fastcgi_path_info`
    fn info(&self, r: &Request, out: &mut Vec<u8>) -> Value {
        if let Some(parts) = self.parts(r) {
            out.extend_from_slice(parts.group(2).unwrap_or_default());
        }
        Value::Found
    }
}
