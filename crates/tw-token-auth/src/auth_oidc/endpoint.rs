//! Requests to a provider: over TLS to verified servers only, few at a time.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Semaphore;
use tw_connect::Resolving;
use tw_connect::tls_settings::TlsSettings;
use tw_connect::upstream_block;
use tw_log::Text;
use tw_proxy::own_request::{OwnProtocol, OwnRequest, OwnResponse, OwnServer};
use tw_request::event_loop::Loop;
use tw_request::request::Request;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Requests to one provider at the same time.
    ///
    /// Requests to one provider at the same time; others are refused, so that clients do not make this server flood it.
    pub(super) const REQUESTS_AT_ONCE: usize = 64, count, "502";
    /// Bytes of a response of a provider.
    ///
    /// Bytes of the body of a response: tokens with many groups, sets of keys.
    pub(super) const RESPONSE_SIZE_MAX: usize = 256 << 10, bytes, "502";
    /// Time for which a provider may do nothing during a request.
    ///
    /// Time of each wait of a request: for a connection, for room to send, for the response.
    pub(super) const WAIT_TIME_MAX: Duration = Duration::from_secs(10), time, "502";
    /// Time of a request to a provider on a connection.
    pub(super) const REQUEST_TIME_MAX: Duration = Duration::from_secs(20), time, "502";
}

/// Bytes of the head of a response.
const RESPONSE_HEAD_MAX: usize = 16 << 10;

/// URL of a provider: `https`, without a user and a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProviderUrl {
    authority: Box<str>,
    /// Path and arguments.
    target: Box<str>,
}

impl ProviderUrl {
    /// Reads a URL. What is in it goes into heads of requests and responses, so it has visible characters only.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("https://")?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let is_plain =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"<>\\^`{|}#".contains(&byte));
        if authority.is_empty() || authority.contains('@') || !is_plain(authority) || !is_plain(target) {
            return None;
        }
        let slash = if target.starts_with('/') { "" } else { "/" };
        Some(Self { authority: authority.into(), target: format!("{slash}{target}").into() })
    }
}

/// One URL of a provider, and its server.
pub(super) struct Endpoint {
    url: ProviderUrl,
    server: OwnServer,
}

/// Failure of a request.
#[derive(Debug)]
pub(super) struct RequestError {
    /// `error` of a response with a status from 400 to 499 (RFC 6749 section 5.2).
    pub(super) error: Option<String>,
    /// Reason for the log.
    pub(super) why: String,
}

/// Content of a request.
pub(super) enum Content<'a> {
    /// GET, with a bearer token.
    Nothing { bearer: Option<&'a str> },
    /// POST of a form, with the value of `Authorization`.
    Form { body: String, authorization: Option<&'a str> },
}

impl Endpoint {
    /// The endpoint at `text`, whose server is verified as `tls` has it.
    ///
    /// # Errors
    /// A reason for the log.
    pub(super) fn new(text: &str, tls: &TlsSettings<Request>) -> Result<Self, String> {
        let url =
            ProviderUrl::parse(text).ok_or_else(|| format!("invalid URL \"{}\"", Text(text.as_bytes())))?;
        let group = upstream_block::alone(&url.authority, Some(443), || true)
            .map_err(|error| format!("{error} in \"{}\"", Text(text.as_bytes())))?;
        let secured = tls.for_server(url.authority.as_bytes());
        let server = OwnServer { group, secured, protocol: OwnProtocol::Http1, head_max: RESPONSE_HEAD_MAX };
        Ok(Self { url, server })
    }

    /// Sends a request and returns the body of the response, which must have status 200.
    ///
    /// # Errors
    /// Another status, or no response.
    pub(super) async fn request(
        &self,
        event_loop: &Rc<Loop>,
        resolving: &Resolving,
        permits: &Semaphore,
        content: Content<'_>,
    ) -> Result<Vec<u8>, RequestError> {
        let failed = |why: String| {
            RequestError::new(format!("\"https://{}{}\": {why}", self.url.authority, self.url.target))
        };
        let Ok(_permit) = permits.try_acquire() else {
            return Err(failed("too many requests to it are under way".to_owned()));
        };
        let request = OwnRequest {
            head: self.head(&content).into(),
            body: content.body(),
            timeout: WAIT_TIME_MAX,
            total: REQUEST_TIME_MAX,
            size_max: RESPONSE_SIZE_MAX,
        };
        let sent = self.server.send(event_loop, resolving, request).await;
        let OwnResponse { head, body } = sent.map_err(|failure| failed(failure.to_string()))?;
        match head.status {
            200 => Ok(body),
            status => {
                // Errors of a proxy in front of a provider that is down are not errors of the provider.
                let error = error_of(&body).filter(|_| matches!(status, 400..=499));
                let shown = error.as_ref().map(|error| format!(", error \"{}\"", Text(error.as_bytes())));
                let why = format!("the response has status {status}{}", shown.unwrap_or_default());
                Err(RequestError { error, ..failed(why) })
            }
        }
    }

    fn head(&self, content: &Content<'_>) -> String {
        let ProviderUrl { authority, target } = &self.url;
        let (method, more) = match content {
            Content::Nothing { bearer } => {
                ("GET", bearer.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default())
            }
            Content::Form { body, authorization } => {
                let authorization =
                    authorization.map(|value| format!("Authorization: {value}\r\n")).unwrap_or_default();
                let fields = format!(
                    "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n{authorization}",
                    body.len()
                );
                ("POST", fields)
            }
        };
        format!(
            "{method} {target} HTTP/1.1\r\nHost: {authority}\r\nAccept: application/json\r\n\
             User-Agent: tailwater/{}\r\n{more}\r\n",
            env!("CARGO_PKG_VERSION")
        )
    }
}

impl RequestError {
    /// Failure that the response does not name.
    pub(super) fn new(why: String) -> Self {
        Self { error: None, why }
    }
}

impl Content<'_> {
    fn body(&self) -> Bytes {
        match self {
            Self::Nothing { .. } => Bytes::new(),
            Self::Form { body, .. } => body.clone().into(),
        }
    }
}

/// `error` of a response (RFC 6749 section 5.2).
fn error_of(body: &[u8]) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(document.get("error")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_providers() {
        for (text, expected) in [
            ("https://a.b", Some(("a.b", "/"))),
            ("https://a.b:8443/c/d?e=f", Some(("a.b:8443", "/c/d?e=f"))),
            ("https://[::1]:8443?e=f", Some(("[::1]:8443", "/?e=f"))),
            ("http://a.b", None),
            ("HTTPS://a.b", None),
            ("https://", None),
            ("https:///a", None),
            ("https://u@a.b/", None),
            ("https://a.b/c d", None),
            ("https://a.b/\r\nX: y", None),
            ("https://a.b/#c", None),
            ("https://a.b/\u{e9}", None),
            ("", None),
        ] {
            let url = ProviderUrl::parse(text);
            let parts = url.as_ref().map(|url| (&*url.authority, &*url.target));
            assert_eq!(parts, expected, "{text}");
        }
    }
}
