//! Hosts in `Host` and in request lines (RFC 3986 section 3.2.2, with nginx's strictness).

use crate::scan;

/// Invalid host: a bad character, an empty label, a bad port, an open bracket, or an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHost;

/// Parsed host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// Bytes of the host itself: port and one trailing dot are left out, brackets are not. Never 0.
    pub len: usize,
    /// The port, if there is one; `host:` has none.
    pub port: Option<u16>,
    /// True if the host has capital letters and must be lowercased before it is compared.
    pub has_upper: bool,
}

impl Host {
    /// Checks `host [":" port]`.
    ///
    /// # Errors
    /// [`BadHost`]
    pub fn parse(text: &[u8]) -> Result<Host, BadHost> {
        let literal = text.first() == Some(&b'[');
        let mut len = text.len();
        let mut has_upper = false;
        let mut previous = 0;
        let mut closed = !literal;
        for (at, &byte) in text.iter().enumerate().skip(usize::from(literal)) {
            match byte {
                b']' if !closed => {
                    len = at + 1;
                    closed = true;
                    break;
                }
                b':' if closed => {
                    len = at;
                    break;
                }
                b'.' if previous == b'.' => return Err(BadHost),
                // An IPv6 address, or the future forms of RFC 3986; a percent escape (a zone) is not one.
                b':' => {}
                b'%' if literal => return Err(BadHost),
                _ if scan::is_host(byte) => has_upper |= byte.is_ascii_uppercase(),
                _ => return Err(BadHost),
            }
            previous = byte;
        }

        let (host, tail) = text.split_at_checked(len).ok_or(BadHost)?;
        let port = match tail.split_first() {
            None => None,
            Some((b':', digits)) => parse_port(digits)?,
            Some(_) => return Err(BadHost),
        };
        let len = host.strip_suffix(b".").unwrap_or(host).len();
        if len == 0 || !closed {
            return Err(BadHost);
        }
        Ok(Host { len, port, has_upper })
    }
}

fn parse_port(digits: &[u8]) -> Result<Option<u16>, BadHost> {
    if digits.is_empty() {
        return Ok(None);
    }
    let port = digits.iter().try_fold(0u16, |port, &byte| {
        let digit = byte.is_ascii_digit().then(|| u16::from(byte - b'0'))?;
        port.checked_mul(10)?.checked_add(digit)
    });
    port.map(Some).ok_or(BadHost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        let long_port = format!("a:{}80", "0".repeat(100));
        type Expected<'a> = Option<(&'a str, Option<u16>)>;
        let table: &[(&str, Expected<'_>)] = &[
            ("example.com", Some(("example.com", None))),
            ("example.com.", Some(("example.com", None))),
            ("example.com.:8080", Some(("example.com", Some(8080)))),
            ("Example.COM:80", Some(("Example.COM", Some(80)))),
            ("a:", Some(("a", None))),
            ("a:0", Some(("a", Some(0)))),
            ("a:65535", Some(("a", Some(65535)))),
            (&long_port, Some(("a", Some(80)))),
            (".example.com", Some((".example.com", None))),
            ("a_b~!$&'()*+,;=%41", Some(("a_b~!$&'()*+,;=%41", None))),
            ("[::1]", Some(("[::1]", None))),
            ("[::1]:80", Some(("[::1]", Some(80)))),
            ("[]", Some(("[]", None))),
            ("[v1.x]", Some(("[v1.x]", None))),
            ("127.0.0.1", Some(("127.0.0.1", None))),
            ("", None),
            (".", None),
            (":80", None),
            ("a..b", None),
            ("a..", None),
            ("a:65536", None),
            ("a:99999999999", None),
            ("a:8o", None),
            ("a:-1", None),
            ("a:80:80", None),
            ("a b", None),
            ("a/b", None),
            ("a@b", None),
            ("a\u{e9}", None),
            ("a[b", None),
            ("[::1", None),
            ("[::1]x", None),
            ("[::%31]", None),
            ("[a..b]", None),
            ("[a b]", None),
        ];
        for (text, expected) in table {
            let host = Host::parse(text.as_bytes());
            let got = host.as_ref().ok().map(|host| (&text[..host.len], host.port));
            assert_eq!(got, *expected, "{text:?}");
            if let Ok(host) = host {
                assert_eq!(host.has_upper, text[..host.len].contains(char::is_uppercase), "{text:?}");
            }
        }
    }
}
