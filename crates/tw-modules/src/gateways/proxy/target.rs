//! Destination of `proxy_pass`: parsed once if it is constant, for every request if it has variables.

use std::borrow::Cow;
use std::sync::Arc;

use tw_conf::{ConfError, Node, Span, Word};
use tw_connect::upstream_block::{self, server, warn_without_resolver};
use tw_http::escape::Escape;
use tw_log::Level;
use tw_request::config::upstream::{Groups, UpstreamGroup};
use tw_request::protocol::Resolve;
use tw_request::request::{Request, Rewritten};
use tw_request::route::Pattern;
use tw_request::vars::Template;

/// Variables that this module stores.
#[derive(Clone, Copy)]
pub(super) struct Slots {
    pub(super) host: u16,
    pub(super) port: u16,
}

/// Scheme of a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UrlScheme {
    Http,
    Https,
}

impl UrlScheme {
    const ALL: [Self; 2] = [Self::Http, Self::Https];

    /// As a URL begins.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Http => "http://",
            Self::Https => "https://",
        }
    }

    /// The port of a URL that names none.
    fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// `proxy_pass` as written.
pub(super) struct RawPassUrl {
    url: Word,
}

/// Destination of requests.
#[derive(Clone)]
pub(super) enum PassUrl {
    /// Always there.
    Fixed(Arc<FixedUrl>),
    /// Destination that depends on the request.
    Variable {
        url: Template,
        /// Groups by name.
        groups: Arc<Groups>,
    },
}

/// A target without variables.
pub(super) struct FixedUrl {
    pub(super) scheme: UrlScheme,
    /// The URL as written.
    pub(super) url: Box<[u8]>,
    pub(super) host: Box<[u8]>,
    pub(super) port: Box<[u8]>,
    /// The path in it, if there is one.
    path: Option<Box<[u8]>>,
    /// Bytes of the request's path that it stands for.
    location: usize,
    pub(super) group: Arc<UpstreamGroup>,
}

/// The target of one request.
pub(super) struct UrlDestination<'a> {
    pub(super) scheme: UrlScheme,
    /// `$proxy_host`
    pub(super) host: Cow<'a, [u8]>,
    /// `$proxy_port`
    pub(super) port: Cow<'a, [u8]>,
    pub(super) group: Cow<'a, Arc<UpstreamGroup>>,
    pub(super) uri: UpstreamUri<'a>,
}

/// URI of the request to the server.
pub(super) enum UpstreamUri<'a> {
    /// URI of the client; as it was sent, if nothing has changed it.
    Client,
    /// This path stands for so many bytes of the request's.
    Instead(&'a [u8], usize),
    /// Exactly this.
    Whole(Box<[u8]>),
}

/// The parts of a URL.
struct Parts<'a> {
    scheme: UrlScheme,
    /// Host and port, or a path of a socket.
    host: &'a [u8],
    path: Option<&'a [u8]>,
}

impl RawPassUrl {
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let url = node.arg(0)?;
        let has_variables = url.bytes.contains(&b'$');
        if !has_variables && let Err(message) = parts(&url.bytes) {
            return Err(node.fail(message).at(url.span).or_hint(scheme_hint(&url.lossy())));
        }
        Ok(Self { url: url.clone() })
    }

    /// Returns `true` if it depends on the request.
    pub(super) fn has_variables(&self) -> bool {
        self.url.bytes.contains(&b'$')
    }

    pub(super) fn resolve(self, cx: &mut Resolve<'_>) -> Result<PassUrl, ConfError> {
        let at = |error: ConfError, span: Span| error.at(span);
        if self.url.bytes.contains(&b'$') {
            // A URL that begins with a variable may be any.
            let host = parts(&self.url.bytes).map_or(&*self.url.bytes, |parts| parts.host);
            warn_without_resolver(&self.url, host, cx);
            warn_without_scheme(&self.url, cx);
            return Ok(PassUrl::Variable { url: cx.template(&self.url)?, groups: cx.block.any_upstream() });
        }
        let fail = |message: String| at(ConfError::new(message), self.url.span);
        let Parts { scheme, host, path } = parts(&self.url.bytes).map_err(fail)?;
        let is_pattern = match cx.block.location() {
            Some(Pattern::Regex(_) | Pattern::Predicate(_) | Pattern::Named(_)) => true,
            _ => cx.block.is_nameless(),
        };
        if path.is_some() && is_pattern {
            return Err(fail(
                "\"proxy_pass\" cannot have URI part in location given by regular expression, or inside predicate location, or inside named location, or inside \"if\" statement, or inside \"limit_except\" block"
                    .to_owned(),
            ));
        }
        let location = match cx.block.location() {
            Some(Pattern::Exact(uri) | Pattern::Prefix { uri, .. }) => uri.len(),
            _ => 0,
        };
        let text = String::from_utf8_lossy(host).into_owned();
        let group = upstream_block::named(&self.url, &text, Some(scheme.port()), cx)?;
        let (host, port) = shown(host, scheme);
        Ok(PassUrl::Fixed(Arc::new(FixedUrl {
            scheme,
            url: self.url.bytes.clone(),
            host,
            port,
            path: path.map(Into::into),
            location,
            group,
        })))
    }
}

impl PassUrl {
    /// Destination of `r`. The error, a status, is logged.
    pub(super) fn destination(&self, r: &Request) -> Result<UrlDestination<'_>, u16> {
        self.of(r).map_err(|message| {
            r.log(Level::Error, format_args!("{message}"));
            500
        })
    }

    /// Destination of `r`. The error is for the log.
    pub(super) fn of(&self, r: &Request) -> Result<UrlDestination<'_>, String> {
        match self {
            Self::Fixed(fixed) => Ok(UrlDestination {
                scheme: fixed.scheme,
                host: Cow::Borrowed(&fixed.host),
                port: Cow::Borrowed(&fixed.port),
                group: Cow::Borrowed(&fixed.group),
                uri: match &fixed.path {
                    // A URI that was rewritten here replaces the path of `proxy_pass`, as in nginx.
                    Some(path) if r.state.rewritten == Rewritten::No => {
                        UpstreamUri::Instead(path, fixed.location)
                    }
                    _ => UpstreamUri::Client,
                },
            }),
            Self::Variable { url, groups } => {
                let template = url;
                let url = template.value(r);
                let Parts { scheme, host, path } = parts(&url)?;
                let text = String::from_utf8_lossy(host);
                let group = match groups.find(&text) {
                    Some(group) => group.clone(),
                    None => upstream_block::alone(&text, Some(scheme.port()), || {
                        template.is_given(r, scheme.text().len())
                    })
                    .map_err(|error| format!("{error} in upstream \"{text}\""))?,
                };
                let (host, port) = shown(host, scheme);
                let host = Cow::Owned(host.into());
                let port = Cow::Owned(port.into());
                let uri = match path {
                    Some(path) => UpstreamUri::Whole(path.into()),
                    None => UpstreamUri::Client,
                };
                Ok(UrlDestination { scheme, host, port, group: Cow::Owned(group), uri })
            }
        }
    }

    /// Returns `true` if connections use TLS, or may for some requests.
    pub(super) fn may_be_secured(&self) -> bool {
        match self {
            Self::Fixed(fixed) => fixed.scheme == UrlScheme::Https,
            Self::Variable { .. } => true,
        }
    }

    /// Returns `true` if requests may need the address of a name.
    pub(super) fn has_names(&self) -> bool {
        self.fixed().is_none_or(|fixed| fixed.group.may_have_names())
    }

    /// The target, if it does not depend on the request.
    pub(super) fn fixed(&self) -> Option<&Arc<FixedUrl>> {
        match self {
            Self::Fixed(fixed) => Some(fixed),
            Self::Variable { .. } => None,
        }
    }
}

impl FixedUrl {
    /// Returns `true` if the URL has a path.
    pub(super) fn has_path(&self) -> bool {
        self.path.is_some()
    }
}

impl UpstreamUri<'_> {
    /// Appends the URI.
    pub(super) fn push(&self, r: &Request, out: &mut Vec<u8>) {
        match self {
            Self::Whole(uri) => {
                if uri.first() == Some(&b'?') {
                    out.push(b'/');
                }
                out.extend_from_slice(uri);
            }
            Self::Client => match r.target_as_sent() {
                Some(target) => out.extend_from_slice(target),
                None => push_path(r, 0, out),
            },
            Self::Instead(path, location) => {
                out.extend_from_slice(path);
                push_path(r, (*location).min(r.uri.path.len()), out);
            }
        }
    }
}

/// Appends the path of the request from `from` on, and its arguments. The path is escaped unless the client sent it without escapes.
fn push_path(r: &Request, from: usize, out: &mut Vec<u8>) {
    let path = r.uri.path.get(from..).unwrap_or_default();
    if r.is_path_unescaped() {
        out.extend_from_slice(path)
    } else {
        Escape::Uri.push(path, out)
    }
    if !r.uri.args.is_empty() {
        out.push(b'?');
        out.extend_from_slice(&r.uri.args);
    }
}

/// Hint about a URL that lacks its scheme, or has another one.
fn scheme_hint(url: &str) -> Option<String> {
    const OTHERS: [(&str, &str); 7] = [
        ("grpc", "grpc_pass"),
        ("grpcs", "grpc_pass"),
        ("fastcgi", "fastcgi_pass"),
        ("uwsgi", "uwsgi_pass"),
        ("suwsgi", "uwsgi_pass"),
        ("scgi", "scgi_pass"),
        ("memcached", "memcached_pass"),
    ];
    let is_usable = |rest: &str| {
        let host = if rest.starts_with("unix:") { rest } else { rest.split(['/', '?']).next()? };
        server::place(host, Some(80)).is_ok().then(|| host.ends_with(":443"))
    };
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if let Some((_, directive)) = OTHERS.iter().find(|(other, _)| *other == scheme) {
        return Some(format!("\"{directive}\" is for servers that speak this protocol"));
    }
    // `http:/host` and `//host` lack a part of it.
    let rest = ["http:", "https:"].iter().find_map(|begin| rest.strip_prefix(begin)).unwrap_or(rest);
    let rest = rest.trim_start_matches('/');
    let is_secured = is_usable(rest)? || matches!(scheme, "wss" | "https") || url.starts_with("https:");
    let meant = if is_secured { UrlScheme::Https } else { UrlScheme::Http }.text();
    let hint = format!("did you mean \"{meant}{rest}\"?");
    Some(match scheme {
        "ws" | "wss" => format!("{hint} A WebSocket begins as a request of HTTP"),
        _ => hint,
    })
}

// DIFF(nginx): nginx answers each request with 500 and says nothing before.
/// Warns of a URL with variables that can never have a scheme.
fn warn_without_scheme(url: &Word, cx: &mut Resolve<'_>) {
    let is_open = url.bytes.starts_with(b"$") || url.bytes.windows(3).any(|part| part == b"://");
    if is_open {
        return;
    }
    let message = format!("\"{url}\" has no scheme, every request for it fails with 500");
    cx.report(ConfError::warn(message).at(url.span).hint(format!("did you mean \"http://{url}\"?")));
}

/// Host and port as `$proxy_host` and `$proxy_port` have them.
fn shown(host: &[u8], scheme: UrlScheme) -> (Box<[u8]>, Box<[u8]>) {
    if host.starts_with(b"unix:") {
        return (b"localhost".as_slice().into(), b"".as_slice().into());
    }
    let usual = scheme.port().to_string();
    let (name, port) = match host.iter().rposition(|byte| *byte == b':') {
        // The default port is left out.
        Some(at) if &host[at + 1..] == usual.as_bytes() => (&host[..at], usual.as_bytes()),
        Some(at) if !host[at..].contains(&b']') => (host, &host[at + 1..]),
        _ => (host, usual.as_bytes()),
    };
    (name.into(), port.into())
}

fn parts(url: &[u8]) -> Result<Parts<'_>, String> {
    let begins = |scheme: &UrlScheme| {
        let text = scheme.text().as_bytes();
        url.get(..text.len()).is_some_and(|candidate| candidate.eq_ignore_ascii_case(text))
    };
    let Some(scheme) = UrlScheme::ALL.into_iter().find(begins) else {
        return Err("invalid URL prefix".to_owned());
    };
    let rest = &url[scheme.text().len()..];
    let end = if rest.get(..5).is_some_and(|unix| unix.eq_ignore_ascii_case(b"unix:")) {
        match rest[5..].iter().position(|byte| *byte == b':') {
            Some(at) => {
                return Ok(Parts {
                    scheme,
                    host: &rest[..5 + at],
                    path: Some(&rest[6 + at..]).filter(|path| !path.is_empty()),
                });
            }
            None => rest.len(),
        }
    } else {
        rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len())
    };
    let (host, path) = rest.split_at(end);
    if host.is_empty() {
        return Err("no host in upstream".to_owned());
    }
    Ok(Parts { scheme, host, path: Some(path).filter(|path| !path.is_empty()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_without_their_scheme_have_hints() {
        for (url, expected) in [
            ("127.0.0.1:3000", "did you mean \"http://127.0.0.1:3000\"?"),
            ("localhost:3000/api/", "did you mean \"http://localhost:3000/api/\"?"),
            ("app", "did you mean \"http://app\"?"),
            ("app:443", "did you mean \"https://app:443\"?"),
            ("//app/x", "did you mean \"http://app/x\"?"),
            ("http:/app", "did you mean \"http://app\"?"),
            ("https:app", "did you mean \"https://app\"?"),
            ("unix:/run/app.sock", "did you mean \"http://unix:/run/app.sock\"?"),
            ("ws://app", "did you mean \"http://app\"? A WebSocket begins as a request of HTTP"),
            ("wss://app", "did you mean \"https://app\"? A WebSocket begins as a request of HTTP"),
            ("tcp://app:1", "did you mean \"http://app:1\"?"),
            ("grpc://app:1", "\"grpc_pass\" is for servers that speak this protocol"),
            ("", ""),
            ("a:b", ""),
        ] {
            assert_eq!(scheme_hint(url).unwrap_or_default(), expected, "{url}");
        }
    }
}
