//! What every gateway can be told, whatever its upstream servers speak: written once, for any prefix.

use std::sync::Arc;
use std::time::Duration;

use tw_conf::{Buffers, ConfError, Node, Setting, Word};
use tw_core::reach::Reach;
use tw_net::ConnectOptions;

use super::names::Names;
use super::store::{RawStore, Store};
use crate::core::location::{Location, TempPath};
use crate::load::Resolve;
use crate::vars::Template;

/// When a request goes to the next server: words of `proxy_next_upstream`, and what happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Next(u32);

impl Next {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// `error`
    pub const ERROR: Self = Self(1);
    /// `timeout`
    pub const TIMEOUT: Self = Self(1 << 1);
    /// `invalid_header`
    pub const INVALID_HEADER: Self = Self(1 << 2);
    /// `non_idempotent`
    pub const NON_IDEMPOTENT: Self = Self(1 << 3);
    /// `denied`
    pub const DENIED: Self = Self(1 << 4);
    const STATUSES: [(u16, Self); 7] = [
        (500, Self(1 << 8)),
        (502, Self(1 << 9)),
        (503, Self(1 << 10)),
        (504, Self(1 << 11)),
        (403, Self(1 << 12)),
        (404, Self(1 << 13)),
        (429, Self(1 << 14)),
    ];

    /// What words mean; `off` is nothing.
    pub const WORDS: &'static [(&'static str, u32)] = &[
        ("error", Self::ERROR.0),
        ("timeout", Self::TIMEOUT.0),
        ("invalid_header", Self::INVALID_HEADER.0),
        ("non_idempotent", Self::NON_IDEMPOTENT.0),
        ("denied", Self::DENIED.0),
        ("http_500", Self::STATUSES[0].1.0),
        ("http_502", Self::STATUSES[1].1.0),
        ("http_503", Self::STATUSES[2].1.0),
        ("http_504", Self::STATUSES[3].1.0),
        ("http_403", Self::STATUSES[4].1.0),
        ("http_404", Self::STATUSES[5].1.0),
        ("http_429", Self::STATUSES[6].1.0),
        ("off", Self::OFF),
    ];
    const OFF: u32 = 1 << 31;

    /// The word for a status; nothing for others.
    pub fn of_status(status: u16) -> Self {
        Self::STATUSES.iter().find(|(known, _)| *known == status).map_or(Self::NONE, |(_, next)| *next)
    }

    /// Whether all of `what` is in it, and it is something.
    pub fn has(self, what: Self) -> bool {
        what != Self::NONE && self.0 & what.0 == what.0
    }

    /// Both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Fields of a response that have a meaning here, and are ignored where `proxy_ignore_headers` says so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ignored(u32);

impl Ignored {
    /// `X-Accel-Redirect`
    pub const REDIRECT: Self = Self(1);
    /// `X-Accel-Expires`
    pub const EXPIRES_HERE: Self = Self(1 << 1);
    /// `Expires`
    pub const EXPIRES: Self = Self(1 << 2);
    /// `Cache-Control`
    pub const CACHE_CONTROL: Self = Self(1 << 3);
    /// `Set-Cookie`
    pub const SET_COOKIE: Self = Self(1 << 4);
    /// `X-Accel-Limit-Rate`
    pub const LIMIT_RATE: Self = Self(1 << 5);
    /// `X-Accel-Buffering`
    pub const BUFFERING: Self = Self(1 << 6);
    /// `X-Accel-Charset`
    pub const CHARSET: Self = Self(1 << 7);
    /// `Vary`
    pub const VARY: Self = Self(1 << 8);

    /// The names.
    pub const WORDS: &'static [(&'static str, u32)] = &[
        ("X-Accel-Redirect", Self::REDIRECT.0),
        ("X-Accel-Expires", Self::EXPIRES_HERE.0),
        ("X-Accel-Limit-Rate", Self::LIMIT_RATE.0),
        ("X-Accel-Buffering", Self::BUFFERING.0),
        ("X-Accel-Charset", Self::CHARSET.0),
        ("Expires", Self::EXPIRES.0),
        ("Cache-Control", Self::CACHE_CONTROL.0),
        ("Set-Cookie", Self::SET_COOKIE.0),
        ("Vary", Self::VARY.0),
    ];

    /// Whether this one is.
    pub fn has(self, field: Self) -> bool {
        self.0 & field.0 != 0
    }
}

/// Where connections come from.
#[derive(Clone)]
pub enum Bind {
    /// From where the kernel says.
    Off,
    /// From this address, which may hold variables.
    From {
        /// The address.
        address: Template,
        /// Whether it need not be ours.
        is_transparent: bool,
    },
}

/// Settings of a gateway at one location.
#[derive(Clone)]
pub struct Gateway {
    /// `connect_timeout`
    pub connect_timeout: Duration,
    /// `send_timeout`, between two writes.
    pub send_timeout: Duration,
    /// `read_timeout`, between two reads.
    pub read_timeout: Duration,
    /// `next_upstream`
    pub next: Next,
    /// `next_upstream_tries`; 0 is no limit.
    pub next_tries: u64,
    /// `next_upstream_timeout`; zero is no limit.
    pub next_timeout: Duration,
    /// `buffer_size`: bytes of the head of a response.
    pub buffer_size: usize,
    /// `buffers`: what is kept of a body in memory.
    pub buffers: Buffers,
    /// `max_temp_file_size`: bytes of a body in a file; 0 is none.
    pub max_temp_file_size: u64,
    /// `temp_path`
    pub temp_path: Arc<TempPath>,
    /// `buffering`
    pub buffering: bool,
    /// `request_buffering`
    pub request_buffering: bool,
    /// `pass_request_headers`
    pub pass_request_headers: bool,
    /// `pass_request_body`
    pub pass_request_body: bool,
    /// `intercept_errors`
    pub intercept_errors: bool,
    /// `ignore_client_abort`
    pub ignore_client_abort: bool,
    /// `force_ranges`
    pub force_ranges: bool,
    /// `ignore_headers`
    pub ignored: Ignored,
    /// Fields that are not passed on: those of the protocol and `hide_header`, without `pass_header`.
    pub hidden: Arc<Names>,
    /// `limit_rate`: bytes per second that are read of a response.
    pub limit_rate: Option<Template>,
    /// `store`: where copies of responses go.
    pub store: Option<Store>,
    store_access: u32,
    /// `bind`
    pub bind: Bind,
    /// `socket_keepalive`, `socket_rcvbuf`, `socket_sndbuf`.
    pub socket: ConnectOptions,
    /// `allow_upstream`: a server is asked only if all of these are neither empty nor `0`.
    pub allow: Arc<[Template]>,
    hide: Arc<[Box<[u8]>]>,
    pass: Arc<[Box<[u8]>]>,
}

/// The same as written.
#[derive(Default)]
pub struct Raw {
    /// `connect_timeout`
    pub connect_timeout: Setting<Duration>,
    /// `send_timeout`
    pub send_timeout: Setting<Duration>,
    /// `read_timeout`
    pub read_timeout: Setting<Duration>,
    /// `next_upstream`
    pub next: Setting<u32>,
    /// `next_upstream_tries`
    pub next_tries: Setting<u64>,
    /// `next_upstream_timeout`
    pub next_timeout: Setting<Duration>,
    /// `buffer_size`
    pub buffer_size: Setting<usize>,
    /// `buffers`
    pub buffers: Setting<Buffers>,
    /// `busy_buffers_size`
    pub busy_buffers_size: Setting<usize>,
    /// `max_temp_file_size`
    pub max_temp_file_size: Setting<u64>,
    /// `temp_file_write_size`
    pub temp_file_write_size: Setting<usize>,
    /// `temp_path`
    pub temp_path: Setting<TempPath>,
    /// `buffering`
    pub buffering: Setting<bool>,
    /// `request_buffering`
    pub request_buffering: Setting<bool>,
    /// `pass_request_headers`
    pub pass_request_headers: Setting<bool>,
    /// `pass_request_body`
    pub pass_request_body: Setting<bool>,
    /// `intercept_errors`
    pub intercept_errors: Setting<bool>,
    /// `ignore_client_abort`
    pub ignore_client_abort: Setting<bool>,
    /// `force_ranges`
    pub force_ranges: Setting<bool>,
    /// `ignore_headers`
    pub ignored: Setting<u32>,
    /// `hide_header`
    pub hide: Setting<Vec<Box<[u8]>>>,
    /// `pass_header`
    pub pass: Setting<Vec<Box<[u8]>>>,
    /// `limit_rate`
    pub limit_rate: Setting<Word>,
    /// `store`
    pub store: Setting<RawStore>,
    /// `store_access`
    pub store_access: Setting<u32>,
    /// `bind`
    pub bind: Setting<RawBind>,
    /// `socket_keepalive`
    pub socket_keepalive: Setting<bool>,
    /// `socket_rcvbuf`
    pub socket_rcvbuf: Setting<usize>,
    /// `socket_sndbuf`
    pub socket_sndbuf: Setting<usize>,
    /// `allow_upstream`
    pub allow: Setting<Vec<Word>>,
}

/// `bind` as written.
pub enum RawBind {
    /// `off`
    Off,
    /// An address.
    From(Word, bool),
}

/// A module's settings as written, in which there are those of a gateway.
pub trait HasGateway {
    /// Those.
    fn gateway(&mut self) -> &mut Raw;
}

/// What differs between the gateways.
pub struct Kind {
    /// Prefix of its directives, such as `proxy_`.
    pub prefix: &'static str,
    /// Name of its directory for temporary files.
    pub temp_path: &'static [u8],
    /// Fields of responses that are not passed on unless `pass_header` says so.
    pub hidden: &'static [&'static str],
}

/// The limits of the directives with a prefix.
#[macro_export]
macro_rules! gateway_limits {
    ($prefix:literal) => {
        &[
            tw_base::Limit::directive(
                concat!($prefix, "buffer_size"),
                "Bytes of the head of a response",
                "502",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "buffers"),
                "Bytes of a response's body in memory",
                "the rest goes to a temporary file, or waits",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "max_temp_file_size"),
                "Bytes of a response's body in a temporary file",
                "the upstream server waits",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "connect_timeout"),
                "Time until a connection is there",
                "the next server, or 504",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "send_timeout"),
                "Time between two writes of a request",
                "the next server, or 504",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "read_timeout"),
                "Time between two reads of a response",
                "the next server, or 504",
            ),
            tw_base::Limit::directive(
                concat!($prefix, "next_upstream_tries"),
                "Servers that one request is sent to",
                "the last one's answer",
            ),
        ]
    };
}

/// The records of the directives that every gateway has, with a prefix.
#[macro_export]
macro_rules! gateway_directives {
    ($prefix:literal) => {{
        use tw_conf::{Args, HTTP, LOCATION, SERVER, record};
        use $crate::http::gateway::settings::{HasGateway, Ignored, Next, read_bind, read_rate};
        const ALL: u32 = HTTP | SERVER | LOCATION;
        &[
            record::time(concat!($prefix, "connect_timeout"), ALL)
                .default("60s")
                .doc("Time until a connection to an upstream server is there.")
                .set(|raw, node, _| raw.gateway().connect_timeout.set_msec(node)),
            record::time(concat!($prefix, "send_timeout"), ALL)
                .default("60s")
                .doc("Time between two writes of a request to an upstream server.")
                .set(|raw, node, _| raw.gateway().send_timeout.set_msec(node)),
            record::time(concat!($prefix, "read_timeout"), ALL)
                .default("60s")
                .doc("Time between two reads of a response of an upstream server.")
                .set(|raw, node, _| raw.gateway().read_timeout.set_msec(node)),
            record::new(
                concat!($prefix, "next_upstream"),
                "error | timeout | denied | invalid_header | http_500 | http_502 | http_503 | http_504 | http_403 | http_404 | http_429 | non_idempotent | off …",
                ALL,
                Args::at_least(1),
            )
            .default("error timeout")
            .doc("After which failures a request goes to the next server.")
            .set(|raw, node, cx| raw.gateway().next.add_bits(node, Next::WORDS, cx)),
            record::number(concat!($prefix, "next_upstream_tries"), ALL)
                .default("0")
                .since("1.7.5")
                .doc("Servers that a request is sent to at most; 0 means all.")
                .set(|raw, node, _| raw.gateway().next_tries.set_number(node)),
            record::time(concat!($prefix, "next_upstream_timeout"), ALL)
                .default("0")
                .since("1.7.5")
                .doc("Time in which a request may go to a next server; 0 means no limit.")
                .set(|raw, node, _| raw.gateway().next_timeout.set_msec(node)),
            record::size(concat!($prefix, "buffer_size"), ALL)
                .default("4k|8k")
                .doc("Bytes of the head of a response.")
                .set(|raw, node, _| raw.gateway().buffer_size.set_size(node)),
            record::buffers(concat!($prefix, "buffers"), ALL)
                .default("8 4k|8k")
                .doc("What is kept of the body of a response in memory while the client is slower than the upstream server.")
                .set(|raw, node, _| raw.gateway().buffers.set_buffers(node)),
            record::size(concat!($prefix, "busy_buffers_size"), ALL)
                .default("8k|16k")
                .doc("Checked as nginx does, and without effect: what the client has not taken yet is not held in buffers of its own.")
                .set(|raw, node, _| raw.gateway().busy_buffers_size.set_size(node)),
            record::size(concat!($prefix, "max_temp_file_size"), ALL)
                .default("1024m")
                .doc("Bytes of the body of a response in a temporary file; 0 means none.")
                .set(|raw, node, _| raw.gateway().max_temp_file_size.set_offset(node)),
            record::size(concat!($prefix, "temp_file_write_size"), ALL)
                .default("8k|16k")
                .doc("Checked as nginx does, and without effect: what is in memory is written at once.")
                .set(|raw, node, _| raw.gateway().temp_file_write_size.set_size(node)),
            record::new(concat!($prefix, "temp_path"), "path [level1 [level2 [level3]]]", ALL, Args::range(1, 4))
                .doc("Directory of temporary files of responses.")
                .set(|raw, node, cx| {
                    let path = $crate::core::location::TempPath::parse(node, cx)?;
                    raw.gateway().temp_path.set_once(node, path)
                }),
            record::flag(concat!($prefix, "buffering"), ALL)
                .default("on")
                .doc("Whether a response is read ahead of a slow client.")
                .set(|raw, node, _| raw.gateway().buffering.set_flag(node)),
            record::flag(concat!($prefix, "request_buffering"), ALL)
                .default("on")
                .since("1.7.11")
                .doc("Whether the body of a request is read before an upstream server is asked.")
                .set(|raw, node, _| raw.gateway().request_buffering.set_flag(node)),
            record::flag(concat!($prefix, "pass_request_headers"), ALL)
                .default("on")
                .doc("Whether fields of the request are passed on.")
                .set(|raw, node, _| raw.gateway().pass_request_headers.set_flag(node)),
            record::flag(concat!($prefix, "pass_request_body"), ALL)
                .default("on")
                .doc("Whether the body of the request is passed on.")
                .set(|raw, node, _| raw.gateway().pass_request_body.set_flag(node)),
            record::flag(concat!($prefix, "intercept_errors"), ALL)
                .default("off")
                .doc("Whether error_page applies to the statuses of upstream servers.")
                .set(|raw, node, _| raw.gateway().intercept_errors.set_flag(node)),
            record::flag(concat!($prefix, "ignore_client_abort"), ALL)
                .default("off")
                .doc("Whether a request goes on when its client has gone.")
                .set(|raw, node, _| raw.gateway().ignore_client_abort.set_flag(node)),
            record::flag(concat!($prefix, "force_ranges"), ALL)
                .default("off")
                .since("1.7.7")
                .doc("Whether ranges are answered whatever the upstream server says.")
                .set(|raw, node, _| raw.gateway().force_ranges.set_flag(node)),
            record::new(concat!($prefix, "ignore_headers"), "field …", ALL, Args::at_least(1))
                .doc("Fields of responses that have no meaning here.")
                .set(|raw, node, cx| raw.gateway().ignored.add_bits(node, Ignored::WORDS, cx)),
            record::new(concat!($prefix, "hide_header"), "field", ALL, Args::exact(1))
                .doc("A field of responses that is not passed on.")
                .set(|raw, node, _| {
                    let name = node.arg(0)?.bytes.to_ascii_lowercase();
                    raw.gateway().hide.push(node, name.into());
                    Ok(())
                }),
            record::new(concat!($prefix, "pass_header"), "field", ALL, Args::exact(1))
                .doc("A field of responses that is passed on although it usually is not.")
                .set(|raw, node, _| {
                    let name = node.arg(0)?.bytes.to_ascii_lowercase();
                    raw.gateway().pass.push(node, name.into());
                    Ok(())
                }),
            record::new(concat!($prefix, "limit_rate"), "rate", ALL, Args::exact(1))
                .default("0")
                .since("1.7.7")
                .doc("Bytes per second that are read of a response; may hold variables. 0 means no limit.")
                .set(|raw, node, _| {
                    let word = read_rate(node)?;
                    raw.gateway().limit_rate.set_once(node, word)
                }),
            record::new(concat!($prefix, "store"), "on | off | path", ALL, Args::exact(1))
                .default("off")
                .doc("Whether a copy of a response becomes a file, and which one; may hold variables.")
                .set(|raw, node, _| {
                    let store = $crate::http::gateway::store::RawStore::read(node)?;
                    raw.gateway().store.set_once(node, store)
                }),
            record::new(concat!($prefix, "store_access"), "users:permissions …", ALL, Args::range(1, 3))
                .default("user:rw")
                .doc("Permissions of such files.")
                .set(|raw, node, _| raw.gateway().store_access.set_with(node, $crate::core::permissions::read)),
            record::new(concat!($prefix, "bind"), "address [transparent] | off", ALL, Args::range(1, 2))
                .since("0.8.22")
                .doc("Where connections to upstream servers come from; may hold variables.")
                .set(|raw, node, _| {
                    let bind = read_bind(node)?;
                    raw.gateway().bind.set_once(node, bind)
                }),
            record::flag(concat!($prefix, "socket_keepalive"), ALL)
                .default("off")
                .since("1.15.6")
                .doc("Sets SO_KEEPALIVE on connections to upstream servers.")
                .set(|raw, node, _| raw.gateway().socket_keepalive.set_flag(node)),
            record::size(concat!($prefix, "socket_rcvbuf"), ALL)
                .since("1.31.3")
                .doc("Sets SO_RCVBUF on connections to upstream servers.")
                .set(|raw, node, _| raw.gateway().socket_rcvbuf.set_size(node)),
            record::size(concat!($prefix, "socket_sndbuf"), ALL)
                .since("1.31.3")
                .doc("Sets SO_SNDBUF on connections to upstream servers.")
                .set(|raw, node, _| raw.gateway().socket_sndbuf.set_size(node)),
            record::new(concat!($prefix, "allow_upstream"), "string …", ALL, Args::at_least(1))
                .since("1.29.3")
                .doc("When a server is asked: if no string is empty or 0.")
                .set(|raw, node, _| {
                    node.args.iter().for_each(|word| raw.gateway().allow.push(node, word.clone()));
                    Ok(())
                }),
        ]
    }};
}

/// Reads a rate, which may hold variables: checked now if it does not.
pub fn read_rate(node: &Node) -> Result<Word, ConfError> {
    let word = node.arg(0)?;
    if !word.bytes.contains(&b'$') && word.size().is_none() {
        return Err(node.error("invalid value"));
    }
    Ok(word.clone())
}

/// Reads `bind`.
pub fn read_bind(node: &Node) -> Result<RawBind, ConfError> {
    let address = node.arg(0)?;
    let is_transparent = match node.args.get(1) {
        None => false,
        Some(word) if &*word.bytes == b"transparent" => true,
        Some(word) => return Err(node.fail(format!("invalid parameter \"{word}\""))),
    };
    if &*address.bytes == b"off" && !is_transparent {
        return Ok(RawBind::Off);
    }
    if !address.bytes.contains(&b'$') && bind_address(&address.bytes).is_none() {
        return Err(node.fail(format!("invalid address \"{address}\"")));
    }
    Ok(RawBind::From(address.clone(), is_transparent))
}

/// An address to come from: with or without a port.
pub(super) fn bind_address(text: &[u8]) -> Option<std::net::SocketAddr> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().or_else(|| {
        let text = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        Some(std::net::SocketAddr::new(text.parse().ok()?, 0))
    })
}

impl Gateway {
    /// From settings as written to what is used.
    pub fn resolve(
        raw: Raw,
        outer: Option<&Self>,
        kind: &Kind,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let prefix = kind.prefix;
        let page = rustix::param::page_size();
        let minute = Duration::from_secs(60);
        let next = match raw.next.take() {
            Some(bits) if bits & Next::OFF != 0 => Next::NONE,
            Some(bits) => Next(bits),
            None => outer.map_or(Next::ERROR.and(Next::TIMEOUT), |o| o.next),
        };
        let buffer_size = raw.buffer_size.or(outer.map(|o| o.buffer_size), page);
        let buffers = raw.buffers.or(outer.map(|o| o.buffers), Buffers { count: 8, size: page });
        if buffers.count < 2 {
            return Err(ConfError::new(format!("there must be at least 2 \"{prefix}buffers\"")));
        }
        let larger = buffer_size.max(buffers.size);
        let all_but_one = (buffers.count - 1) * buffers.size;
        if let Some(busy) = raw.busy_buffers_size.get() {
            let busy = *busy;
            if busy < larger {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
                )));
            }
            if busy > all_but_one {
                return Err(ConfError::new(format!(
                    "\"{prefix}busy_buffers_size\" must be less than the size of all \"{prefix}buffers\" minus one buffer"
                )));
            }
        }
        if raw.temp_file_write_size.get().is_some_and(|size| *size < larger) {
            return Err(ConfError::new(format!(
                "\"{prefix}temp_file_write_size\" must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        let max_temp_file_size = raw.max_temp_file_size.or(outer.map(|o| o.max_temp_file_size), 1 << 30);
        if max_temp_file_size != 0 && max_temp_file_size < larger as u64 {
            return Err(ConfError::new(format!(
                "\"{prefix}max_temp_file_size\" must be equal to zero to disable temporary files usage or must be equal to or greater than the maximum of the value of \"{prefix}buffer_size\" and one of the \"{prefix}buffers\""
            )));
        }
        let temp_path = match (raw.temp_path.take(), outer) {
            (Some(path), _) => cx.block.temp_path(path),
            (None, Some(outer)) => outer.temp_path.clone(),
            (None, None) => {
                let path = cx.full_path_c(kind.temp_path);
                cx.block.temp_path(TempPath { path, levels: [0; 3] })
            }
        };
        let list = |own: Setting<Vec<Box<[u8]>>>, outer: Option<&Arc<[Box<[u8]>]>>| match own.take() {
            Some(own) => own.into(),
            None => outer.cloned().unwrap_or_else(|| [].into()),
        };
        let hide = list(raw.hide, outer.map(|o| &o.hide));
        let pass = list(raw.pass, outer.map(|o| &o.pass));
        let usual = kind.hidden.iter().map(|name| name.as_bytes());
        let usual = usual.filter(|name| !pass.iter().any(|passed| passed.eq_ignore_ascii_case(name)));
        let hidden = Arc::new(usual.chain(hide.iter().map(|name| &**name)).collect());
        let limit_rate = match raw.limit_rate.take() {
            Some(word) if &*word.bytes == b"0" => None,
            Some(word) => Some(cx.template(&word)?),
            None => outer.and_then(|o| o.limit_rate.clone()),
        };
        let store_access = raw.store_access.or(outer.map(|o| o.store_access), 0o600);
        let store = match raw.store.take() {
            Some(store) => store.resolve(store_access, cx)?,
            None => outer.and_then(|o| o.store.as_ref()).map(|store| store.with_access(store_access)),
        };
        let bind = match raw.bind.take() {
            Some(RawBind::Off) => Bind::Off,
            Some(RawBind::From(address, is_transparent)) => {
                Bind::From { address: cx.template(&address)?, is_transparent }
            }
            None => outer.map_or(Bind::Off, |o| o.bind.clone()),
        };
        let allow = match raw.allow.take() {
            Some(words) => words.iter().map(|word| cx.template(word)).collect::<Result<Arc<[_]>, _>>()?,
            None => outer.map_or_else(|| [].into(), |o| o.allow.clone()),
        };
        Ok(Self {
            connect_timeout: raw.connect_timeout.or(outer.map(|o| o.connect_timeout), minute),
            send_timeout: raw.send_timeout.or(outer.map(|o| o.send_timeout), minute),
            read_timeout: raw.read_timeout.or(outer.map(|o| o.read_timeout), minute),
            next,
            next_tries: raw.next_tries.or(outer.map(|o| o.next_tries), 0),
            next_timeout: raw.next_timeout.or(outer.map(|o| o.next_timeout), Duration::ZERO),
            buffer_size,
            buffers,
            max_temp_file_size,
            temp_path,
            buffering: raw.buffering.or(outer.map(|o| o.buffering), true),
            request_buffering: raw.request_buffering.or(outer.map(|o| o.request_buffering), true),
            pass_request_headers: raw.pass_request_headers.or(outer.map(|o| o.pass_request_headers), true),
            pass_request_body: raw.pass_request_body.or(outer.map(|o| o.pass_request_body), true),
            intercept_errors: raw.intercept_errors.or(outer.map(|o| o.intercept_errors), false),
            ignore_client_abort: raw.ignore_client_abort.or(outer.map(|o| o.ignore_client_abort), false),
            force_ranges: raw.force_ranges.or(outer.map(|o| o.force_ranges), false),
            ignored: raw.ignored.take().map(Ignored).or(outer.map(|o| o.ignored)).unwrap_or_default(),
            hidden,
            limit_rate,
            store,
            store_access,
            bind,
            socket: ConnectOptions {
                keepalive: raw.socket_keepalive.or(outer.map(|o| o.socket.keepalive), false),
                receive_buffer: raw.socket_rcvbuf.take().or(outer.and_then(|o| o.socket.receive_buffer)),
                send_buffer: raw.socket_sndbuf.take().or(outer.and_then(|o| o.socket.send_buffer)),
                ..ConnectOptions::default()
            },
            allow,
            hide,
            pass,
        })
    }

    /// Bytes of a body in memory at most.
    pub fn memory(&self) -> usize {
        self.buffers.count * self.buffers.size
    }

    /// What the sandbox must allow where the gateway is in use.
    pub fn reach(&self, core: &Location, reach: &mut Reach) {
        reach.connects();
        if matches!(self.bind, Bind::From { .. }) {
            reach.binds();
        }
        reach.changes(&Template::text(self.temp_path.path.to_bytes()), None);
        if let Some(store) = &self.store {
            store.reach(core, reach);
        }
    }
}
