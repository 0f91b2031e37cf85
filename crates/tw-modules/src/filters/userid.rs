//! `userid`: cookies that identify a browser (nginx: ngx_http_userid_filter_module). Header filter.
//!
//! An id is four words: service, time, process, sequence. Its cookie is their bytes in base64, its variable their
//! digits.

use std::io::Write as _;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tw_conf::{Args, ConfError, Directive, HTTP, LOCATION, Node, SERVER, Setting, record};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_http::base64::{self, Alphabet};
use tw_http::date;
use tw_log::{Level, Text};
use tw_net::Addr;
use tw_request::body::Body;
use tw_request::cookie::find_cookie;
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Template, Value, VarDef};

const ALL: u32 = HTTP | SERVER | LOCATION;

/// Bytes of an id in base64 that are read: the rest is a mark and padding, or garbage of old versions.
const ID_DIGITS: usize = 22;
/// First sequence number of `on`.
const SEQUENCE_START: u32 = 0x0303_0302;
/// Distance of sequence numbers; the last byte stays.
const SEQUENCE_STEP: u32 = 0x100;
/// `31 Dec 2037 23:55:55 GMT`, for `userid_expires max`.
const MAX_AT: i64 = 2_145_916_555;

const GOT: &str = "uid_got";
const SET: &str = "uid_set";

/// Words of `userid_flags`, and the attribute that each adds to the cookie.
const FLAGS: &[(&str, u32)] = &[
    ("off", 0),
    ("secure", 1),
    ("httponly", 2),
    ("samesite=strict", 4),
    ("samesite=lax", 8),
    ("samesite=none", 16),
];

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    mode: Setting<Mode>,
    name: Setting<Box<[u8]>>,
    domain: Setting<Box<[u8]>>,
    path: Setting<Box<[u8]>>,
    p3p: Setting<Box<[u8]>>,
    expires: Setting<Expires>,
    flags: Setting<u32>,
    mark: Setting<Option<u8>>,
    service: Setting<u64>,
}

/// `userid`
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Off,
    /// Cookies are read and not set.
    Log,
    V1,
    On,
}

/// `userid_expires`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expires {
    /// With the browser's session.
    Off,
    /// At the end of 2037.
    Max,
    /// Seconds after the response.
    After(i64),
}

/// Settings of one block.
pub(crate) struct UserId {
    mode: Mode,
    name: Box<[u8]>,
    domain: Box<[u8]>,
    path: Box<[u8]>,
    p3p: Box<[u8]>,
    expires: Expires,
    flags: u32,
    mark: Option<u8>,
    service: Option<u64>,
    reset: Template,
    got_slot: u16,
    set_slot: u16,
}

/// An id; each word in the order of bytes of this machine, as nginx has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id([u32; 4]);

impl Settings<Http> for UserId {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("userid", "on | v1 | log | off", ALL, Args::exact(1))
            .default("off")
            .doc("Sets cookies by which a browser is known again, and reads them; `log` only reads them.")
            .set(|raw, node, _| {
                let modes = [("off", Mode::Off), ("log", Mode::Log), ("v1", Mode::V1), ("on", Mode::On)];
                raw.mode.set_one_of(node, &modes)
            }),
        record::new("userid_name", "name", ALL, Args::exact(1))
            .default("uid")
            .doc("Name of the cookie.")
            .set(|raw, node, _| raw.name.set_bytes(node)),
        record::new("userid_domain", "name | none", ALL, Args::exact(1))
            .default("none")
            .doc("Domain of the cookie.")
            .set(|raw, node, _| raw.domain.set_with(node, none_or)),
        record::new("userid_path", "path", ALL, Args::exact(1))
            .default("/")
            .doc("Path of the cookie.")
            .set(|raw, node, _| raw.path.set_bytes(node)),
        record::new("userid_p3p", "string | none", ALL, Args::exact(1))
            .default("none")
            .doc("Value of the field P3P, which goes with the cookie.")
            .set(|raw, node, _| raw.p3p.set_with(node, none_or)),
        record::new("userid_expires", "time | max | off", ALL, Args::exact(1))
            .default("off")
            .doc("Time for which the browser keeps the cookie; with off, until the browser is closed.")
            .set(|raw, node, _| raw.expires.set_with(node, Expires::read)),
        record::new("userid_flags", "off | flag …", ALL, Args::at_least(1))
            .default("off")
            .since("1.19.3")
            .doc("Flags of the cookie: secure, httponly, samesite=strict, samesite=lax, samesite=none.")
            .set(|raw, node, cx| raw.flags.add_bits(node, FLAGS, cx)),
        record::new("userid_mark", "letter | digit | = | off", ALL, Args::exact(1))
            .default("off")
            .doc("Last character of the cookie; one with another mark is sent again with this one.")
            .set(|raw, node, _| raw.mark.set_with(node, read_mark)),
        record::new("userid_service", "number", ALL, Args::exact(1))
            .default("IP address of the server")
            .doc("The first word of ids, for several servers; without it the last four bytes of the address for `on`, 0 for `v1`.")
            .set(|raw, node, _| raw.service.set_number(node)),
    ];

    const VARIABLES: &'static [VarDef] = &[
        VarDef::stored(GOT, "Name and id of the cookie that came, as `uid=…`."),
        VarDef::stored(SET, "Name and id of the cookie that is set, as `uid=…`."),
        VarDef::one(
            "uid_reset",
            reset,
            "Not empty and not `0`: the cookie is replaced by a new one; `log` also logs that.",
        )
        .assigned_by(|r, value| r.extensions.put(std::rc::Rc::new(Reset(value)))),
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let bytes = |setting: Setting<Box<[u8]>>, outer: Option<&Box<[u8]>>, default: &[u8]| {
            setting.or_else(|| outer.cloned(), || default.into())
        };
        Ok(Self {
            mode: raw.mode.or(outer.map(|o| o.mode), Mode::Off),
            name: bytes(raw.name, outer.map(|o| &o.name), b"uid"),
            domain: bytes(raw.domain, outer.map(|o| &o.domain), b""),
            path: bytes(raw.path, outer.map(|o| &o.path), b"/"),
            p3p: bytes(raw.p3p, outer.map(|o| &o.p3p), b""),
            expires: raw.expires.or(outer.map(|o| o.expires), Expires::Off),
            flags: raw.flags.or(outer.map(|o| o.flags), 0),
            mark: raw.mark.or(outer.map(|o| o.mark), None),
            service: raw.service.take().or(outer.and_then(|o| o.service)),
            reset: cx.template_text(b"$uid_reset", None)?,
            got_slot: cx.slot(GOT),
            set_slot: cx.slot(SET),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.mode > Mode::Off {
            let conf = self.clone();
            plan.compute(
                self.got_slot,
                Arc::new(move |r, out| conf.put(conf.got(r, ErrorLogging::Errors), out)),
            );
        }
        if self.mode > Mode::Log {
            let conf = self.clone();
            plan.compute(self.set_slot, Arc::new(move |r, out| conf.put(conf.id_to_set(r), out)));
            plan.add_header_filter(self.clone());
        }
    }
}

/// Value of `$uid_reset`.
struct Reset(Vec<u8>);

fn reset(r: &Request, out: &mut Vec<u8>) -> Value {
    if let Some(reset) = r.extensions.get::<Reset>() {
        out.extend_from_slice(&reset.0);
    }
    Value::Found
}

fn none_or(node: &Node) -> Result<Box<[u8]>, ConfError> {
    let word = node.arg(0)?;
    Ok(if word.is("none") { [].into() } else { word.bytes.clone() })
}

impl Expires {
    fn read(node: &Node) -> Result<Self, ConfError> {
        match node.arg(0)? {
            word if word.is("max") => Ok(Self::Max),
            word if word.is("off") => Ok(Self::Off),
            _ => match node.sec()?.as_secs() {
                0 => Ok(Self::Off),
                secs => Ok(Self::After(i64::try_from(secs).unwrap_or(i64::MAX))),
            },
        }
    }
}

fn read_mark(node: &Node) -> Result<Option<u8>, ConfError> {
    match &*node.arg(0)?.bytes {
        b"off" => Ok(None),
        [mark] if mark.is_ascii_alphanumeric() || *mark == b'=' => Ok(Some(*mark)),
        _ => Err(node.error("value must be \"off\" or a single letter, digit or \"=\"")),
    }
}

/// Logging of mistakes of the client, which happens once.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ErrorLogging {
    Errors,
    Nothing,
}

impl UserId {
    /// Value of the cookie of the request.
    fn cookie<'r>(&self, r: &'r Request) -> Option<(&'r [u8], &'r [u8])> {
        r.head.field_all(b"cookie").find_map(|line| Some((line, find_cookie(line, &self.name)?)))
    }

    /// Id of the cookie of the request.
    fn got(&self, r: &Request, logging: ErrorLogging) -> Option<Id> {
        let (line, cookie) = self.cookie(r)?;
        let digits = cookie.get(..ID_DIGITS);
        let mut bytes = Vec::new();
        let decoded = digits.and_then(|text| base64::decode(text, Alphabet::Standard, &mut bytes).ok());
        let id = decoded.and_then(|()| Id::of_bytes(&bytes));
        if id.is_none() && logging == ErrorLogging::Errors {
            let what = if digits.is_none() { "too short" } else { "invalid" };
            r.log(Level::Error, format_args!("client sent {what} userid cookie \"{}\"", Text(line)));
        }
        // The last word of an id is never 0.
        id.filter(|id| id.0[3] != 0)
    }

    /// Id to set; `None` if the cookie of the request is valid.
    fn id_to_set(&self, r: &Request) -> Option<Id> {
        let Some(got) = self.got(r, ErrorLogging::Nothing) else { return Some(self.create(r)) };
        match &*self.reset.value(r) {
            b"" | b"0" => {
                let (_, cookie) = self.cookie(r)?;
                let marked =
                    self.mark.is_none_or(|mark| cookie.get(ID_DIGITS..ID_DIGITS + 2) == Some(&[mark, b'=']));
                (!marked).then_some(got)
            }
            why => {
                if why == b"log" {
                    let name = Text(&self.name);
                    r.log(Level::Notice, format_args!("userid cookie \"{name}={got}\" was reset"));
                }
                Some(self.create(r))
            }
        }
    }

    /// A new id.
    fn create(&self, r: &Request) -> Id {
        static SEQUENCE_V1: AtomicU32 = AtomicU32::new(1);
        static SEQUENCE: AtomicU32 = AtomicU32::new(SEQUENCE_START);
        // As in nginx, seconds and service numbers have 32 bits.
        let now = tw_rt::clock::unix().secs as u32;
        let service = self.service.map(|service| service as u32);
        if self.mode == Mode::V1 {
            let sequence = SEQUENCE_V1.fetch_add(SEQUENCE_STEP, Relaxed);
            return Id([service.unwrap_or(0), now, process(), sequence]);
        }
        let next = |at: u32| at.wrapping_add(SEQUENCE_STEP).max(SEQUENCE_START);
        let sequence = SEQUENCE.fetch_update(Relaxed, Relaxed, |at| Some(next(at))).unwrap_or(SEQUENCE_START);
        let service = service.map_or_else(|| address(r.local_addr()), u32::to_be);
        Id([service, now.to_be(), process().to_be(), sequence.to_be()])
    }

    /// Appends the value of a variable.
    fn put(&self, id: Option<Id>, out: &mut Vec<u8>) -> Value {
        let Some(id) = id else { return Value::Missing };
        out.extend_from_slice(&self.name);
        // A Vec takes every write.
        let _ = write!(out, "={id}");
        Value::Found
    }

    /// The value of `Set-Cookie`.
    fn set_cookie(&self, r: &Request, id: Id) -> Vec<u8> {
        let mut out = [&*self.name, b"="].concat();
        match self.cookie(r) {
            // The same id with another mark: the text stays as it came.
            Some((_, cookie)) if self.got(r, ErrorLogging::Nothing) == Some(id) => {
                out.extend_from_slice(cookie.get(..ID_DIGITS).unwrap_or_default());
                out.extend_from_slice(&[self.mark.unwrap_or(b'='), b'=']);
            }
            _ => {
                out.extend_from_slice(&base64::encode(&id.bytes()));
                if let (Some(mark), Some(last)) = (self.mark, out.len().checked_sub(2)) {
                    out[last] = mark;
                }
            }
        }
        let at = match self.expires {
            Expires::Off => None,
            Expires::Max => Some(MAX_AT),
            Expires::After(span) => Some(tw_rt::clock::unix().secs.saturating_add(span)),
        };
        if let Some(at) = at {
            out.extend_from_slice(b"; expires=");
            out.extend_from_slice(&date::format_cookie(at));
        }
        if !self.domain.is_empty() {
            out.extend_from_slice(b"; domain=");
            out.extend_from_slice(&self.domain);
        }
        out.extend_from_slice(b"; path=");
        out.extend_from_slice(&self.path);
        for (flag, bit) in FLAGS {
            if self.flags & bit != 0 {
                out.extend_from_slice(b"; ");
                out.extend_from_slice(flag.as_bytes());
            }
        }
        out
    }
}

impl HeaderFilter for UserId {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        if r.is_subrequest() {
            return body;
        }
        let mut text = Vec::new();
        // An invalid cookie is logged when its variable is computed.
        let _ = r.slot(self.got_slot, &mut text);
        text.clear();
        let id = match r.slot(self.set_slot, &mut text) {
            Value::Found => Id::of_digits(&text),
            // A variable was read before this location was chosen.
            Value::Missing => self.id_to_set(r),
        };
        let Some(id) = id else { return body };
        let cookie = self.set_cookie(r, id);
        r.response.fields.append("Set-Cookie", Bytes::from(cookie));
        if !self.p3p.is_empty() {
            r.response.fields.append("P3P", Bytes::copy_from_slice(&self.p3p));
        }
        body
    }
}

impl Id {
    fn of_bytes(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<4>() else { return None };
        let words: [[u8; 4]; 4] = words.try_into().ok()?;
        Some(Self(words.map(u32::from_ne_bytes)))
    }

    fn bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Reads the last 32 digits of a variable's value.
    fn of_digits(text: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(text.get(text.len().checked_sub(32)?..)?).ok()?;
        let mut id = [0; 4];
        for (at, word) in id.iter_mut().enumerate() {
            *word = u32::from_str_radix(digits.get(at * 8..at * 8 + 8)?, 16).ok()?;
        }
        Some(Self(id))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|word| write!(f, "{word:08X}"))
    }
}

/// Number that tells this process from others: microseconds of its start and its process number.
fn process() -> u32 {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    *PROCESS.get_or_init(|| ((u32::from(tw_rt::clock::unix().msec) * 50) << 16) | std::process::id())
}

/// The word of our address: the last four bytes; 0 of a Unix socket.
fn address(local: &Addr) -> u32 {
    match local.inet().map(|addr| addr.ip()) {
        Some(IpAddr::V4(addr)) => u32::from_ne_bytes(addr.octets()),
        Some(IpAddr::V6(addr)) => {
            let [.., a, b, c, d] = addr.octets();
            u32::from_ne_bytes([a, b, c, d])
        }
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_as_text() {
        let id = Id([1, 0x0203_0405, u32::MAX, 0x0303_0302]);
        assert_eq!(id.to_string(), "0000000102030405FFFFFFFF03030302");
        assert_eq!(Id::of_digits(format!("a name={id}").as_bytes()), Some(id));
        assert_eq!(Id::of_bytes(&id.bytes()), Some(id));
        for text in ["", "uid=", "0000000102030405FFFFFFFF0303030", "0000000102030405FFFFFFFF0303030x"] {
            assert_eq!(Id::of_digits(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Id::of_bytes(&[0; 15]), None);
    }

    #[test]
    fn times_of_cookies() {
        assert_eq!(date::format_cookie(MAX_AT), b"Thu, 31-Dec-37 23:55:55 GMT");
        assert_eq!(date::format_cookie(784_111_777), b"Sun, 06-Nov-94 08:49:37 GMT");
        assert_eq!(date::format_cookie(MAX_AT + 86_400), b"Fri, 01-Jan-2038 23:55:55 GMT");
    }

    #[test]
    fn words_of_addresses() {
        let word = |text: &str| address(&Addr::Inet(text.parse().unwrap())).to_ne_bytes();
        assert_eq!(word("192.0.2.1:80"), [192, 0, 2, 1]);
        assert_eq!(word("[2001:db8::a0b:c0d]:80"), [10, 11, 12, 13]);
        assert_eq!(address(&Addr::Unix(None)), 0);
    }
}
