//! `valid_referers`: a variable that marks requests from pages of other sites (nginx: ngx_http_referer_module).
//! Computed variable.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, LOCATION, Node, SERVER, Setting, Span, Word, record};
use tw_core::host_names::{DuplicateHostName, HostName, HostNames, InvalidHostName, Wildcards};
use tw_core::module::Settings;
use tw_core::regex::{BacktrackLimit, Caseless, Match, Regex};
use tw_core::server_names::ServerName;
use tw_http::HeaderName;
use tw_log::Level;
use tw_request::plan::Plan;
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::{Value, VarDef};

/// Longest host of a referer that is looked up.
const HOST_MAX: usize = 256;
/// The shortest referer that may have a host.
const SHORTEST: usize = "http://i.ru".len();

/// Referers as written.
#[derive(Default)]
pub(crate) struct Raw {
    /// Of the last directive, for messages.
    span: Option<Span>,
    names: Vec<Word>,
    regexes: Vec<Word>,
    none: bool,
    blocked: bool,
    server_names: bool,
    max_size: Setting<u64>,
    bucket_size: Setting<u64>,
}

/// Referers of one location.
pub(crate) struct Referers {
    valid: Option<Arc<Valid>>,
    slot: u16,
}

/// Valid referers.
struct Valid {
    /// Hosts to indices of `paths`.
    hosts: HostNames<u32>,
    /// Beginnings of paths; the empty one stands for any.
    paths: Vec<Box<[u8]>>,
    /// For hosts only, of `server_names`.
    host_regexes: Vec<Arc<Regex>>,
    /// For what follows the scheme.
    regexes: Vec<Arc<Regex>>,
    /// Set if a request without the field is valid.
    none: bool,
    /// Set if a field without scheme is valid.
    blocked: bool,
}

impl Settings<Http> for Referers {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new(
            "valid_referers",
            "none | blocked | server_names | string …",
            SERVER | LOCATION,
            Args::at_least(1),
        )
        .doc("Pages that may refer to this one: names with wildcards and beginnings of paths, or regular expressions.")
        .set(|raw, node, _| read(raw, node)),
        record::number("referer_hash_max_size", SERVER | LOCATION)
            .default("2048")
            .since("1.0.5")
            .doc("Size of the table of referers; without effect.")
            .set(|raw, node, _| raw.max_size.set_number(node)),
        record::number("referer_hash_bucket_size", SERVER | LOCATION)
            .default("64")
            .since("1.0.5")
            .doc("Size of buckets of the table of referers; without effect.")
            .set(|raw, node, _| raw.bucket_size.set_number(node)),
    ];

    const VARIABLES: &'static [VarDef] = &[VarDef::cached(
        "invalid_referer",
        |_, _| Value::Found,
        "1 if valid_referers does not know the page that refers to this one, else empty.",
    )];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let valid = match raw.span {
            Some(span) => Some(Arc::new(Valid::resolve(raw, span, outer, cx)?)),
            None => outer.and_then(|outer| outer.valid.clone()),
        };
        Ok(Self { valid, slot: cx.slot("invalid_referer") })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if let Some(valid) = &self.valid {
            let valid = valid.clone();
            let compute = move |r: &Request, out: &mut Vec<u8>| {
                if !valid.has(r) {
                    out.push(b'1');
                }
                Value::Found
            };
            plan.compute(self.slot, Arc::new(compute));
        }
    }
}

fn read(raw: &mut Raw, node: &Node) -> Result<(), ConfError> {
    raw.span = Some(node.span);
    for word in &node.args {
        match &*word.bytes {
            b"" => return Err(node.fail("invalid referer \"\"")),
            b"none" => raw.none = true,
            b"blocked" => raw.blocked = true,
            b"server_names" => raw.server_names = true,
            b"~" => return Err(node.fail("empty regex in \"~\"")),
            [b'~', ..] => raw.regexes.push(word.clone()),
            _ => raw.names.push(word.clone()),
        }
    }
    Ok(())
}

impl Valid {
    fn resolve(
        raw: Raw,
        span: Span,
        outer: Option<&Referers>,
        cx: &mut Resolve<'_>,
    ) -> Result<Self, ConfError> {
        let mut valid = Self {
            hosts: HostNames::default(),
            paths: vec![Box::default()],
            host_regexes: Vec::new(),
            regexes: Vec::new(),
            none: raw.none,
            blocked: raw.blocked,
        };
        let mut names = 0;
        for word in &raw.names {
            let slash = word.bytes.iter().position(|&byte| byte == b'/').unwrap_or(word.bytes.len());
            let (host, path) = word.bytes.split_at(slash);
            let fail = |message| ConfError::new(message).at(word.span);
            valid.add(host_name(host).map_err(fail)?, path).map_err(fail)?;
            names += 1;
        }
        for word in &raw.regexes {
            let regex = cx.regex(&word.bytes[1..], Caseless::Yes).map_err(|error| {
                let pattern = String::from_utf8_lossy(&word.bytes[1..]);
                ConfError::new(format!("regex compilation failed: {error} in \"{pattern}\"")).at(word.span)
            })?;
            valid.regexes.push(regex);
        }
        if raw.server_names {
            for name in cx.block.server_names().to_vec() {
                match name {
                    ServerName::Regex(regex) => {
                        valid.host_regexes.push(regex);
                        continue;
                    }
                    ServerName::Host(host) => {
                        valid.add(host, b"").map_err(|message| ConfError::new(message).at(span))?
                    }
                }
                names += 1;
            }
        }
        if (valid.none || valid.blocked) && names == 0 {
            return Err(ConfError::new(
                "the \"none\" or \"blocked\" referers are specified in the \"valid_referers\" directive without any \
                 valid referer",
            ));
        }
        // As in nginx: names are replaced, expressions are inherited.
        if let Some(outer) = outer.and_then(|outer| outer.valid.as_ref()) {
            for (own, outer) in
                [(&mut valid.regexes, &outer.regexes), (&mut valid.host_regexes, &outer.host_regexes)]
            {
                if own.is_empty() {
                    own.clone_from(outer);
                }
            }
        }
        Ok(valid)
    }

    /// Adds a host with the beginning of its paths. The error is nginx's message.
    fn add(&mut self, host: HostName, path: &[u8]) -> Result<(), String> {
        let at = match path {
            b"" => 0,
            path => {
                self.paths.push(path.into());
                self.paths.len() as u32 - 1
            }
        };
        let shown = host.to_bytes();
        self.hosts.add(host, at).map_err(|DuplicateHostName| {
            format!("conflicting parameter \"{}\"", String::from_utf8_lossy(&shown))
        })
    }

    /// Returns `true` if the referer of `r` is valid. An expression that fails is logged and does not match.
    fn has(&self, r: &Request) -> bool {
        let referer = r.head.field_known(HeaderName::Referer);
        self.is_valid(referer).unwrap_or_else(|BacktrackLimit| {
            let referer = tw_log::Text(referer.unwrap_or_default());
            r.log(
                Level::Error,
                format_args!("regex of a referer exceeded its limit of backtracking on \"{referer}\""),
            );
            false
        })
    }

    fn is_valid(&self, referer: Option<&[u8]>) -> Result<bool, BacktrackLimit> {
        if self.hosts.is_empty() && self.regexes.is_empty() && self.host_regexes.is_empty() {
            return Ok(true);
        }
        let Some(referer) = referer else { return Ok(self.none) };
        let Some(rest) = after_scheme(referer) else { return Ok(self.blocked) };
        let end = rest.iter().position(|byte| matches!(byte, b'/' | b':')).unwrap_or(rest.len());
        let mut host = [0; HOST_MAX];
        let Some(host) = host.get_mut(..end) else { return Ok(false) };
        host.copy_from_slice(&rest[..end]);
        host.make_ascii_lowercase();
        if let Some(at) = self.hosts.find(host) {
            let path =
                rest[end..].iter().position(|&byte| byte == b'/').map_or(&b""[..], |at| &rest[end + at..]);
            return Ok(self.paths.get(at as usize).is_some_and(|beginning| path.starts_with(beginning)));
        }
        for (regexes, subject) in [(&self.host_regexes, &*host), (&self.regexes, rest)] {
            for regex in regexes {
                if regex.is_match(subject)? == Match::Yes {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// The host of a line. The error is nginx's message.
fn host_name(host: &[u8]) -> Result<HostName, String> {
    HostName::parse(host, Wildcards::Allowed).map_err(|InvalidHostName| {
        format!("invalid hostname or wildcard \"{}\"", String::from_utf8_lossy(host))
    })
}

/// Rest behind `http://` or `https://`; `None` if the field does not begin so.
fn after_scheme(referer: &[u8]) -> Option<&[u8]> {
    if referer.len() < SHORTEST {
        return None;
    }
    [&b"http://"[..], b"https://"].into_iter().find_map(|scheme| {
        let (begin, rest) = referer.split_at(scheme.len());
        begin.eq_ignore_ascii_case(scheme).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn valid(hosts: &[&str], regexes: &[&str], none: bool, blocked: bool) -> Valid {
        let regex = |pattern: &&str| Arc::new(Regex::new(pattern.as_bytes(), Caseless::Yes).unwrap());
        let mut valid = Valid {
            hosts: HostNames::default(),
            paths: vec![Box::default()],
            host_regexes: Vec::new(),
            regexes: regexes.iter().map(regex).collect(),
            none,
            blocked,
        };
        for host in hosts {
            let (host, path) = host.split_at(host.find('/').unwrap_or(host.len()));
            valid.add(host_name(host.as_bytes()).unwrap(), path.as_bytes()).unwrap();
        }
        valid
    }

    #[test]
    fn referers() {
        let strict =
            valid(&["www.example.com", "*.example.org/path", "other.*"], &["^re[0-9]+\\.net:"], false, false);
        let lax = valid(&["www.example.com"], &[], true, true);
        let long = format!("http://{}/", "h".repeat(257));
        for (referer, expected) in [
            (None, [false, true]),
            (Some(""), [false, true]),
            (Some("hidden by a proxy"), [false, true]),
            (Some("http://a.b"), [false, true]),
            (Some("ftp://www.example.com/"), [false, true]),
            (Some("http://www.example.com"), [true, true]),
            (Some("HTTPS://WWW.example.com:81/any"), [true, true]),
            (Some("http://www.example.net/"), [false, false]),
            (Some("http://a.example.org/path/more"), [true, false]),
            (Some("http://a.example.org:80/path"), [true, false]),
            (Some("http://a.example.org/other"), [false, false]),
            (Some("http://a.example.org"), [false, false]),
            (Some("http://other.info/"), [true, false]),
            (Some("http://RE12.net:80/"), [true, false]),
            (Some("http://re12.net/"), [false, false]),
            (Some(&*long), [false, false]),
        ] {
            let results = [&strict, &lax].map(|valid| valid.is_valid(referer.map(str::as_bytes)).unwrap());
            assert_eq!(results, expected, "{referer:?}");
        }
        assert_eq!(valid(&[], &[], false, false).is_valid(None), Ok(true), "nothing is asked for");
    }
}
