//! URLs of OCSP responders (RFC 6960, appendix A).

use std::fmt;

/// Address of an OCSP responder: `http://host[:port][/path]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ResponderUrl {
    /// Host and port as written, for the `Host` field.
    pub authority: Box<str>,
    /// Host without brackets.
    pub host: Box<str>,
    /// Port; 80 if none is written.
    pub port: u16,
    /// Path and query; at least `/`.
    pub target: Box<str>,
}

impl fmt::Display for ResponderUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.target)
    }
}

impl ResponderUrl {
    /// Parses a URL; `None` if it is no valid one of HTTP.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("http://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !port.contains(']') => (host, port.parse().ok()?),
            _ => (authority, 80),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_visible = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        (!host.is_empty() && is_visible(rest)).then(|| Self {
            authority: authority.into(),
            host: host.into(),
            port,
            target: if path.is_empty() { "/".into() } else { path.into() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_responders_are_parsed() {
        for (text, expected) in [
            ("http://ocsp.example", Some(("ocsp.example", 80, "/"))),
            ("http://ocsp.example/", Some(("ocsp.example", 80, "/"))),
            ("http://ocsp.example:8080/a/b?c", Some(("ocsp.example", 8080, "/a/b?c"))),
            ("http://127.0.0.1:1", Some(("127.0.0.1", 1, "/"))),
            ("http://[::1]/a", Some(("::1", 80, "/a"))),
            ("http://[::1]:81/a", Some(("::1", 81, "/a"))),
            ("https://ocsp.example/", None),
            ("ocsp.example", None),
            ("http://", None),
            ("http:///a", None),
            ("http://a:x/", None),
            ("http://a:70000/", None),
            ("http://a/b c", None),
            ("http://a/\r\nX: y", None),
        ] {
            let url = ResponderUrl::parse(text);
            let entry = url.as_ref().map(|url| (&*url.host, url.port, &*url.target));
            assert_eq!(entry, expected, "{text}");
        }
    }
}
