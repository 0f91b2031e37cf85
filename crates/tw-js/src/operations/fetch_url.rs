//! URLs of requests of scripts.

tw_base::limits! {
    /// Limits of this file.
    pub(crate) const LIMITS;

    /// Bytes of a URL of `ngx.fetch()`.
    const URL_MAX: usize = 16 << 10, bytes, "the promise is rejected";
}

/// A URL of http or https.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FetchUrl {
    pub(super) is_secured: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as they are written.
    pub(super) authority: String,
    /// Path and query.
    pub(super) target: String,
}

impl FetchUrl {
    /// Parses a URL without credentials.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
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
}
