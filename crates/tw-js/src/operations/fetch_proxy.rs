//! `js_fetch_proxy`: the forward proxy of requests of scripts, `http://user:password@host:port`.

use std::any::Any;
use std::sync::Arc;

use tw_core::session::Session;
use tw_core::vars::Template;
use tw_http::base64;
use tw_http::escape::{Unescape, unescape};
use tw_proxy::host_request::ForwardProxy;

use super::fetch_url::FetchUrl;

/// Proxy of one block.
#[derive(Clone)]
pub(crate) enum FetchProxy {
    /// One proxy for all requests, or none.
    Fixed(Option<ForwardProxy>),
    /// URL with variables, which may be empty: a template of the protocol of the block.
    Computed(Arc<dyn Any + Send + Sync>),
}

impl FetchProxy {
    /// The proxy for a request of a script of `s`.
    ///
    /// # Errors
    /// The value of the variables is no URL of a proxy.
    pub(crate) fn of<S: Session>(&self, s: &S) -> Result<Option<ForwardProxy>, String> {
        match self {
            Self::Fixed(proxy) => Ok(proxy.clone()),
            Self::Computed(url) => {
                let url = url.downcast_ref::<Template<S>>().map(|url| url.value(s)).unwrap_or_default();
                parse(&url).map_err(|why| format!("failed to evaluate proxy URL: {why}"))
            }
        }
    }

    /// Returns true if requests of one location may have several proxies.
    pub(crate) fn is_computed(&self) -> bool {
        matches!(self, Self::Computed(_))
    }
}

/// Parses the URL of a proxy; an empty one is none.
///
/// # Errors
/// A text that says what is wrong.
pub(crate) fn parse(url: &[u8]) -> Result<Option<ForwardProxy>, String> {
    if url.is_empty() {
        return Ok(None);
    }
    let rest = url.strip_prefix(b"http://").ok_or("a proxy URL must use the scheme http://")?;
    let (credentials, host) = match rest.iter().rposition(|byte| *byte == b'@') {
        Some(at) => {
            let (credentials, host) = rest.split_at(at);
            (Some(credentials), host.get(1..).unwrap_or_default())
        }
        None => (None, rest),
    };
    let url = FetchUrl::parse(&[b"http://", host].concat()).filter(|url| url.target == "/");
    let url = url.ok_or("a proxy URL has a host and a port, and nothing behind them")?;
    let fields = credentials.map(authorization).transpose()?.unwrap_or_default();
    Ok(Some(ForwardProxy { host: url.host, port: url.port, fields }))
}

/// Header field with the credentials of a URL (RFC 7617).
fn authorization(credentials: &[u8]) -> Result<String, String> {
    let colon = credentials.iter().position(|byte| *byte == b':');
    let colon = colon.ok_or("credentials of a proxy URL have the form user:password")?;
    let (user, password) = credentials.split_at(colon);
    let mut plain = Vec::new();
    unescape(user, Unescape::All, &mut plain);
    if plain.is_empty() {
        return Err("the user name of a proxy URL is empty".to_owned());
    }
    if plain.contains(&b':') {
        return Err("the user name of a proxy URL has a colon".to_owned());
    }
    plain.push(b':');
    let user_size = plain.len();
    unescape(password.get(1..).unwrap_or_default(), Unescape::All, &mut plain);
    if plain.len() == user_size {
        return Err("the password of a proxy URL is empty".to_owned());
    }
    Ok(format!("Proxy-Authorization: Basic {}\r\n", String::from_utf8_lossy(&base64::encode(&plain))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_have_a_host_a_port_and_perhaps_credentials() {
        let parsed = |text: &str| parse(text.as_bytes());
        let proxy = |host: &str, port, fields: &str| {
            Ok(Some(ForwardProxy { host: host.to_owned(), port, fields: fields.to_owned() }))
        };
        assert_eq!(parsed(""), Ok(None));
        assert_eq!(parsed("http://a:8080"), proxy("a", 8080, ""));
        assert_eq!(parsed("http://[::1]:3128/"), proxy("::1", 3128, ""));
        // `Aladdin:open sesame`, the example of RFC 7617.
        let field = "Proxy-Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==\r\n";
        assert_eq!(parsed("http://Aladdin:open%20sesame@a"), proxy("a", 80, field));
        for text in [
            "https://a",
            "http:/",
            "http://",
            "http://a/b",
            "http://a?b",
            "http://user@a",
            "http://:b@a",
            "http://a:@b",
        ] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
