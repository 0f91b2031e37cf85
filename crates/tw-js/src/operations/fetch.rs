//! `ngx.fetch()`: a request to another server, over a connection of its own.

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tw_connect::Resolving;
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_tls::UpstreamTls;
use tw_core::reach::Reach;
use tw_core::session::Session;
use tw_http::fields::is_name;
use tw_http::{Known, Method, hop};
use tw_log::Text;
use tw_proxy::own_request::{HostTarget, OwnRequest, send_to_host};
use tw_request::event_loop::Loop;
use tw_request::plan::LocalFuture;
use tw_script::{ByteBuf, FetchRequest, FetchResponse, Field, OperationError, Reply};

use super::answer::Answer;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes of a URL of `ngx.fetch()`.
    const URL_MAX: usize = 16 << 10, bytes, "the promise is rejected";
    /// Bytes of the head of a request of `ngx.fetch()`.
    const HEAD_MAX: usize = 128 << 10, bytes, "the promise is rejected";
}

/// Settings of requests of scripts (`js_fetch_*`).
#[derive(Clone)]
pub(crate) struct FetchSettings {
    /// Time of each wait.
    pub(crate) timeout: Duration,
    /// Bytes of the head of a response.
    pub(crate) buffer_size: usize,
    /// Bytes of the body of a response.
    pub(crate) response_max: usize,
    /// TLS with verification of the server, and without.
    pub(crate) verified: Arc<dyn FetchTls>,
    pub(crate) unverified: Arc<dyn FetchTls>,
    pub(crate) verifies: bool,
}

/// TLS of requests of scripts, whatever the protocol of the block.
pub(crate) trait FetchTls: Send + Sync {
    /// TLS of connections to a server; `None` if there can be none.
    fn for_server(&self, host: &[u8]) -> Option<UpstreamTls>;

    /// Adds what the sandbox must allow.
    fn reach(&self, reach: &mut Reach);
}

impl<S: Session> FetchTls for TlsSettings<S> {
    fn for_server(&self, host: &[u8]) -> Option<UpstreamTls> {
        Self::for_server(self, host)
    }

    fn reach(&self, reach: &mut Reach) {
        Self::reach(self, reach);
    }
}

/// Longest time of one request, in waits.
const WAITS_MAX: u32 = 10;

/// A URL of http or https.
#[derive(Debug, PartialEq, Eq)]
struct FetchUrl {
    is_secured: bool,
    host: String,
    port: u16,
    authority: String,
    target: String,
}

impl FetchUrl {
    fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.len() <= URL_MAX)?;
        if text.bytes().any(|byte| byte <= b' ' || byte == 0x7f) {
            return None;
        }
        let (is_secured, rest) = match text.strip_prefix("http://") {
            Some(rest) => (false, rest),
            None => (true, text.strip_prefix("https://")?),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let target = target.split('#').next().unwrap_or_default();
        let slash = if target.starts_with('/') { "" } else { "/" };
        let (host, port) = match authority.strip_prefix('[') {
            Some(v6) => {
                let (host, rest) = v6.split_once(']')?;
                (host, rest.strip_prefix(':').or(rest.is_empty().then_some(""))?)
            }
            None => authority.split_once(':').unwrap_or((authority, "")),
        };
        let usual = if is_secured { 443 } else { 80 };
        let port = if port.is_empty() { usual } else { port.parse().ok()? };
        if host.is_empty() || authority.contains('@') {
            return None;
        }
        Some(Self {
            is_secured,
            host: host.to_owned(),
            port,
            authority: authority.to_owned(),
            target: format!("{slash}{target}"),
        })
    }
}

/// Begins a request of a script on a loop. `resolving` is for the name of the server.
pub(crate) fn begin(
    event_loop: Rc<Loop>,
    resolving: Resolving,
    settings: &FetchSettings,
    request: FetchRequest,
) -> Result<LocalFuture<'static, Answer>, OperationError> {
    let url = FetchUrl::parse(&request.url)
        .ok_or_else(|| error(format!("invalid url \"{}\"", Text(&request.url))))?;
    let secured =
        match url.is_secured {
            false => None,
            true => {
                let verifies = request.is_verified.unwrap_or(settings.verifies);
                let tls = if verifies { &settings.verified } else { &settings.unverified };
                let host = url.host.as_bytes();
                Some(tls.for_server(host).ok_or_else(|| {
                    error("https is not available: no certificates of authorities".to_owned())
                })?)
            }
        };
    let method = if request.method.is_empty() { b"GET" } else { &request.method[..] };
    let body = Bytes::from(request.body.map(ByteBuf::into_vec).unwrap_or_default());
    let head = head(&url, method, &request.fields, body.len())?;
    let limit = |own: Option<u64>, configured: usize| {
        own.map_or(configured, |own| usize::try_from(own).unwrap_or(usize::MAX).min(configured))
    };
    let order = OwnRequest {
        head: head.into(),
        body,
        timeout: settings.timeout,
        total: settings.timeout.saturating_mul(WAITS_MAX),
        size_max: limit(request.response_size_max, settings.response_max),
    };
    let target = HostTarget {
        host: url.host,
        port: url.port,
        secured,
        method: Method::of(method),
        head_max: limit(request.buffer_size, settings.buffer_size),
    };
    Ok(Box::pin(async move {
        let sent = send_to_host(&event_loop, &resolving, &target, order).await;
        let response = sent.map_err(error)?;
        let fields = response.head.fields.iter().map(|(name, value)| Field::new(name, value)).collect();
        let line = &response.head.status_line;
        let reason = line.get(4..).filter(|_| line.len() > 4).unwrap_or_default();
        Ok(Reply::Fetched(Box::new(FetchResponse {
            status: response.head.status,
            reason: ByteBuf::from(reason),
            fields,
            body: ByteBuf::from(response.body),
        })))
    }))
}

fn error(message: String) -> OperationError {
    OperationError::Error(message)
}

/// Head of a request. The server writes its framing itself.
fn head(
    url: &FetchUrl,
    method: &[u8],
    fields: &[Field],
    body_size: usize,
) -> Result<Vec<u8>, OperationError> {
    if !is_name(method) || method == b"CONNECT" {
        return Err(error(format!("invalid method \"{}\"", Text(method))));
    }
    let mut head = method.to_vec();
    let has_host = fields.iter().any(|field| field.name.eq_ignore_ascii_case(b"host"));
    head.extend_from_slice(format!(" {} HTTP/1.1\r\n", url.target).as_bytes());
    let mut own = String::new();
    if !has_host {
        // Writing to a string cannot fail.
        let _ = write!(own, "Host: {}\r\n", url.authority);
    }
    if body_size > 0 || !matches!(method, b"GET" | b"HEAD") {
        let _ = write!(own, "Content-Length: {body_size}\r\n");
    }
    own.push_str("Connection: close\r\n");
    head.extend_from_slice(own.as_bytes());
    for Field { name, value } in fields {
        if !is_name(name) || value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(error(format!("invalid header \"{}\"", Text(name))));
        }
        let is_framing =
            |known| hop::is_framing(known) || hop::is_hop_by_hop(known) || known == Known::Expect;
        if Known::find(name).is_some_and(is_framing) {
            continue;
        }
        head.extend_from_slice(name);
        head.extend_from_slice(b": ");
        head.extend_from_slice(value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    if head.len() > HEAD_MAX {
        return Err(error("the head of the request is too large".to_owned()));
    }
    Ok(head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_scripts() {
        let parsed = |text: &str| {
            let url = FetchUrl::parse(text.as_bytes())?;
            Some((url.is_secured, url.host, url.port, url.target))
        };
        for (text, expected) in [
            ("http://a", Some((false, "a", 80, "/"))),
            ("https://a.b/c?d#e", Some((true, "a.b", 443, "/c?d"))),
            ("http://a:8080?x", Some((false, "a", 8080, "/?x"))),
            ("http://[::1]:1/x", Some((false, "::1", 1, "/x"))),
            ("http://[::1]", Some((false, "::1", 80, "/"))),
        ] {
            let expected =
                expected.map(|(tls, host, port, target)| (tls, host.to_owned(), port, target.to_owned()));
            assert_eq!(parsed(text), expected, "{text}");
        }
        for text in [
            "",
            "a",
            "ftp://a",
            "http://",
            "http://user@a/",
            "http://a:x/",
            "http://a/ b",
            "http://[::1/",
            "http://[::1]x",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn head_has_the_framing_of_the_server() {
        let url = FetchUrl::parse(b"http://a:1/b").unwrap();
        let fields = [
            Field::new("X-A", "b"),
            Field::new("Content-Length", "9"),
            Field::new("Transfer-Encoding", "chunked"),
        ];
        let text = |made: Result<Vec<u8>, OperationError>| String::from_utf8(made.unwrap()).unwrap();
        assert_eq!(
            text(head(&url, b"POST", &fields, 3)),
            "POST /b HTTP/1.1\r\nHost: a:1\r\nContent-Length: 3\r\nConnection: close\r\nX-A: b\r\n\r\n"
        );
        assert_eq!(
            text(head(&url, b"GET", &[Field::new("host", "b")], 0)),
            "GET /b HTTP/1.1\r\nConnection: close\r\nhost: b\r\n\r\n"
        );
        assert!(head(&url, b"GET x", &[], 0).is_err());
        assert!(head(&url, b"GET", &[Field::new("a", "b\r\nc: d")], 0).is_err());
        assert!(head(&url, b"GET", &[Field::new("a:", "b")], 0).is_err());
    }
}
