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
use tw_http::{HeaderName, Method, hop, status};
use tw_log::Text;
use tw_proxy::host_request::{ForwardProxy, HostKeepalive, HostTarget, send_to_host};
use tw_proxy::own_request::OwnRequest;
use tw_request::event_loop::Loop;
use tw_request::plan::LocalFuture;
use tw_script::{ByteBuf, FetchRequest, FetchResponse, Field, OperationError, Reply};

use super::answer::Answer;
use super::fetch_proxy::FetchProxy;
use super::fetch_url::FetchUrl;

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

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
    pub(crate) proxy: FetchProxy,
    /// Connections that are kept; `None` if each request opens one.
    pub(crate) keepalive: Option<HostKeepalive>,
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

/// `User-Agent` of requests whose script sets none: that of njs, which servers may know.
const USER_AGENT: &str = "nginx-js";

/// Longest time of one request, in waits.
const WAITS_MAX: u32 = 10;

/// Begins a request of a script of `s` on a loop. `resolving` is for the name of the server.
pub(crate) fn begin<S: Session>(
    s: &S,
    event_loop: Rc<Loop>,
    resolving: Resolving,
    settings: &FetchSettings,
    request: FetchRequest,
) -> Result<LocalFuture<'static, Answer>, OperationError> {
    let url = FetchUrl::parse(&request.url).ok_or_else(|| error("invalid url".to_owned()))?;
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
    let proxy = settings.proxy.of(s).map_err(error)?;
    // Connections to proxies that variables name are not kept, as in njs.
    let keepalive = settings.keepalive.clone().filter(|_| !settings.proxy.is_computed());
    let way = Way { proxy: proxy.as_ref(), is_kept: keepalive.is_some() };
    let head = head(&url, method, &request.fields, body.len(), way)?;
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
        proxy,
        keepalive,
        method: Method::of(method),
        head_max: limit(request.buffer_size, settings.buffer_size),
    };
    Ok(Box::pin(async move {
        let sent = send_to_host(&event_loop, &resolving, &target, order).await;
        let response = sent.map_err(error)?;
        let fields = response.head.fields.iter().map(|(name, value)| Field::new(name, value)).collect();
        let usual = status::line(response.head.status).unwrap_or_default().as_bytes();
        let line = Some(&*response.head.status_line).filter(|line| !line.is_empty()).unwrap_or(usual);
        Ok(Reply::Fetched(Box::new(FetchResponse {
            status: response.head.status,
            reason: ByteBuf::from(line.get(4..).unwrap_or_default()),
            fields,
            body: ByteBuf::from(response.body),
        })))
    }))
}

fn error(message: String) -> OperationError {
    OperationError::Error(message)
}

/// Way of a request to its host.
#[derive(Clone, Copy)]
struct Way<'a> {
    proxy: Option<&'a ForwardProxy>,
    /// Set if the connection may be kept.
    is_kept: bool,
}

/// Head of a request. The server writes its framing itself.
fn head(
    url: &FetchUrl,
    method: &[u8],
    fields: &[Field],
    body_size: usize,
    way: Way<'_>,
) -> Result<Vec<u8>, OperationError> {
    if !is_name(method) || method == b"CONNECT" {
        return Err(error(format!("invalid method \"{}\"", Text(method))));
    }
    let has = |name: &[u8]| fields.iter().any(|field| field.name.eq_ignore_ascii_case(name));
    // A proxy gets the whole URL, unless it sees nothing of the request.
    let proxy = way.proxy.filter(|_| !url.is_secured);
    let mut own = match proxy {
        Some(_) => format!(" http://{}{} HTTP/1.1\r\n", url.authority, url.target),
        None => format!(" {} HTTP/1.1\r\n", url.target),
    };
    // Writing to a string cannot fail.
    if !has(b"host") {
        let _ = write!(own, "Host: {}\r\n", url.authority);
    }
    if !has(b"user-agent") {
        let _ = write!(own, "User-Agent: {USER_AGENT}\r\n");
    }
    if body_size > 0 || !matches!(method, b"GET" | b"HEAD") {
        let _ = write!(own, "Content-Length: {body_size}\r\n");
    }
    if !way.is_kept {
        own.push_str("Connection: close\r\n");
    }
    own.push_str(proxy.map_or("", |proxy| &proxy.fields));
    let mut head = [method, own.as_bytes()].concat();
    for Field { name, value } in fields {
        if !is_name(name) || value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0)) {
            return Err(error(format!("invalid header \"{}\"", Text(name))));
        }
        if HeaderName::find(name).is_some_and(|known| is_own(known, proxy)) {
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

/// Returns true if the server alone writes this field.
fn is_own(known: HeaderName, proxy: Option<&ForwardProxy>) -> bool {
    hop::is_framing(known)
        || hop::is_hop_by_hop(known)
        || known == HeaderName::Expect
        || known == HeaderName::ProxyAuthorization && proxy.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn head_has_the_framing_of_the_server() {
        let url = FetchUrl::parse(b"http://a:1/b").unwrap();
        let closed = Way { proxy: None, is_kept: false };
        let kept = Way { proxy: None, is_kept: true };
        let fields = [
            Field::new("X-A", "b"),
            Field::new("Content-Length", "9"),
            Field::new("Transfer-Encoding", "chunked"),
        ];
        let text = |made: Result<Vec<u8>, OperationError>| String::from_utf8(made.unwrap()).unwrap();
        assert_eq!(
            text(head(&url, b"POST", &fields, 3, closed)),
            "POST /b HTTP/1.1\r\nHost: a:1\r\nUser-Agent: nginx-js\r\nContent-Length: 3\r\nConnection: close\r\nX-A: b\r\n\r\n"
        );
        assert_eq!(
            text(head(&url, b"GET", &[Field::new("host", "b"), Field::new("User-Agent", "c")], 0, kept)),
            "GET /b HTTP/1.1\r\nhost: b\r\nUser-Agent: c\r\n\r\n"
        );
        assert!(head(&url, b"GET x", &[], 0, closed).is_err());
        assert!(head(&url, b"GET", &[Field::new("a", "b\r\nc: d")], 0, closed).is_err());
        assert!(head(&url, b"GET", &[Field::new("a:", "b")], 0, closed).is_err());
    }

    #[test]
    fn proxy_gets_the_url_and_its_own_credentials() {
        let credentials = "Proxy-Authorization: Basic b3du\r\n".to_owned();
        let proxy = ForwardProxy { host: "p".to_owned(), port: 1, fields: credentials };
        let way = Way { proxy: Some(&proxy), is_kept: true };
        let fields = [Field::new("User-Agent", "c"), Field::new("Proxy-Authorization", "Basic x")];
        let text = |url: &str| {
            let url = FetchUrl::parse(url.as_bytes()).unwrap();
            String::from_utf8(head(&url, b"GET", &fields, 0, way).unwrap()).unwrap()
        };
        assert_eq!(
            text("http://a:2/b?c"),
            "GET http://a:2/b?c HTTP/1.1\r\nHost: a:2\r\nProxy-Authorization: Basic b3du\r\nUser-Agent: c\r\n\r\n"
        );
        assert!(!text("https://a/b").contains("b3du"));
    }
}
