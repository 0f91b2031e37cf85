//! URLs of an authority. Only `https`: its responses decide about certificates for our names.

use std::fmt;

/// A URL, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Url {
    text: Box<str>,
    host: Box<str>,
    port: u16,
    /// Offset of path and query; the end if there are none.
    path: usize,
}

/// Why a text is no URL that an authority can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UrlError {
    /// Another scheme.
    NotHttps,
    /// No host, or one with a user in front.
    NoHost,
    /// A port that is none.
    BadPort,
    /// A byte that no URL has.
    BadByte,
}

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotHttps => "it is not https",
            Self::NoHost => "it has no host",
            Self::BadPort => "its port is invalid",
            Self::BadByte => "it has an invalid character",
        })
    }
}

impl std::error::Error for UrlError {}

/// The port of `https`.
const PORT: u16 = 443;

impl Url {
    /// Takes a text apart.
    ///
    /// # Errors
    /// See [`UrlError`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let scheme = text.get(..8).filter(|scheme| scheme.eq_ignore_ascii_case("https://"));
        let rest = scheme.and_then(|scheme| text.get(scheme.len()..)).ok_or(UrlError::NotHttps)?;
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::BadByte);
        }
        // The fragment is not sent.
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, _) = rest.split_at(end);
        if authority.contains('@') {
            return Err(UrlError::NoHost);
        }
        let (host, port) = match authority
            .rfind(':')
            .filter(|colon| !authority.ends_with(']') && Some(*colon) > authority.rfind(']'))
        {
            Some(colon) => {
                let (host, port) = authority.split_at(colon);
                let port = port.trim_start_matches(':').parse().ok().filter(|port| *port != 0);
                (host, port.ok_or(UrlError::BadPort)?)
            }
            None => (authority, PORT),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() || host.contains(['[', ']']) {
            return Err(UrlError::NoHost);
        }
        let whole = text.split('#').next().unwrap_or_default();
        Ok(Self { text: whole.into(), host: host.into(), port, path: whole.len() - (rest.len() - end) })
    }

    /// All of it, without what stands behind `#`.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Name or address, without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, 443 if none is written.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Host and port as the field `Host` has them.
    pub(crate) fn authority(&self) -> &str {
        self.text.get(8..self.path).unwrap_or_default()
    }

    /// Returns the request target: path and query.
    pub(crate) fn target(&self) -> String {
        match self.text.get(self.path..).unwrap_or_default() {
            path if path.starts_with('/') => path.to_owned(),
            query => format!("/{query}"),
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts() {
        for (text, parts) in [
            ("https://ca.example/directory", Ok("ca.example 443 ca.example /directory")),
            ("HTTPS://ca.example", Ok("ca.example 443 ca.example /")),
            ("https://ca.example:14000/dir?a=b#c", Ok("ca.example 14000 ca.example:14000 /dir?a=b")),
            ("https://[::1]:14000/dir", Ok("::1 14000 [::1]:14000 /dir")),
            ("https://[::1]/", Ok("::1 443 [::1] /")),
            ("https://ca.example?a", Ok("ca.example 443 ca.example /?a")),
            ("http://ca.example/", Err(UrlError::NotHttps)),
            ("ca.example", Err(UrlError::NotHttps)),
            ("https://", Err(UrlError::NoHost)),
            ("https:///a", Err(UrlError::NoHost)),
            ("https://me@ca.example/", Err(UrlError::NoHost)),
            ("https://ca.example:0/", Err(UrlError::BadPort)),
            ("https://ca.example:x/", Err(UrlError::BadPort)),
            ("https://ca.example/a\r\nb", Err(UrlError::BadByte)),
            ("https://ca.example/\u{e4}", Err(UrlError::BadByte)),
        ] {
            let result = Url::parse(text)
                .map(|url| format!("{} {} {} {}", url.host(), url.port(), url.authority(), url.target()));
            assert_eq!(result, parts.map(str::to_owned), "{text}");
        }
    }
}
