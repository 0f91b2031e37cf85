//! The head of a request, which was written in lines, as HTTP/2 says it: one list of fields, without those that are about a connection.

use std::borrow::Cow;

use tw_http::{HeaderName, hop};
use tw_http2::FieldWriter;

use crate::failure::UpstreamFailure;

/// A request that HTTP/2 can say.
pub(super) struct RequestText<'a> {
    method: &'a [u8],
    scheme: &'static [u8],
    authority: &'a [u8],
    path: Cow<'a, [u8]>,
    /// Field lines behind the request line.
    lines: &'a [u8],
}

impl<'a> RequestText<'a> {
    /// Looks at all of `head`, a request line and fields.
    ///
    /// # Errors
    /// A field that HTTP/2 cannot carry.
    pub(super) fn read(head: &'a [u8], is_secured: bool) -> Result<Self, UpstreamFailure> {
        let end = head.iter().position(|&byte| byte == b'\n').unwrap_or(head.len());
        let (line, lines) = head.split_at(end);
        let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if !is_token(method) {
            return Err(unsayable("method"));
        }
        let path = path(target).ok_or_else(|| unsayable("URI"))?;
        let mut authority = &b""[..];
        for (name, value, known_name) in fields(lines) {
            if !is_token(name) {
                return Err(unsayable("name of a header"));
            }
            if value.iter().any(|&byte| (byte < b' ' && byte != b'\t') || byte == 0x7f) {
                return Err(unsayable("value of a header"));
            }
            // DIFF(nginx): a host that was set is one like any other.
            if known_name == Some(HeaderName::Host) {
                authority = value;
            }
        }
        if !is_authority(authority) {
            return Err(unsayable("host"));
        }
        let scheme: &[u8] = if is_secured { b"https" } else { b"http" };
        Ok(Self { method, scheme, authority, path, lines })
    }

    /// Says it.
    pub(super) fn write(&self, list: &mut FieldWriter<'_>) {
        list.push(b":method", self.method);
        list.push(b":scheme", self.scheme);
        list.push(b":path", &self.path);
        list.push(b":authority", self.authority);
        for (name, value, known_name) in fields(self.lines) {
            if goes_on(known_name, value) {
                list.push(name, value);
            }
        }
    }
}

fn unsayable(what: &str) -> UpstreamFailure {
    UpstreamFailure::Unsayable(format!("the {what} of the request to the upstream is invalid").into())
}

/// Names, values and what is known of the names in lines. Blanks around a value would make the request malformed (RFC 9113 section
/// 8.2.1).
fn fields(lines: &[u8]) -> impl Iterator<Item = (&[u8], &[u8], Option<HeaderName>)> {
    let lines = lines.split(|&byte| byte == b'\n').skip(1);
    let lines =
        lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).take_while(|line| !line.is_empty());
    lines.filter_map(|line| {
        let (name, value) = line.split_at(line.iter().position(|&byte| byte == b':')?);
        Some((name, value.get(1..).unwrap_or_default().trim_ascii(), HeaderName::find(name)))
    })
}

/// Returns true if a field is sent in HTTP/2: not one about the connection, nor `Host`, which becomes `:authority`.
fn goes_on(name: Option<HeaderName>, value: &[u8]) -> bool {
    match name {
        Some(HeaderName::Host) => false,
        // `TE: trailers` is the only connection-specific field that HTTP/2 allows (RFC 9113 section 8.2.2).
        Some(HeaderName::Te) => value.eq_ignore_ascii_case(b"trailers"),
        Some(name) => !hop::is_hop_by_hop(name),
        None => true,
    }
}

/// RFC 9110 section 5.6.2.
fn is_token(word: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    !word.is_empty() && word.iter().all(is_char)
}

/// RFC 3986 section 3.2, without a user (RFC 9113 section 8.3.1).
fn is_authority(text: &[u8]) -> bool {
    let is_char = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:%[]".contains(byte);
    !text.is_empty() && text.iter().all(is_char)
}

// DIFF(nginx): what no URI has is escaped.
/// The target of a request, if it is one.
fn path(target: &[u8]) -> Option<Cow<'_, [u8]>> {
    if target.is_empty() || target.iter().any(|&byte| byte <= b' ' || byte == 0x7f) {
        return None;
    }
    let is_unusual =
        |byte: &u8| matches!(byte, b'<' | b'>' | b'`' | b'\\' | b'^' | b'#' | b'|' | 0x80..=0xff);
    if !target.iter().any(is_unusual) {
        return Some(target.into());
    }
    let mut escaped = Vec::with_capacity(target.len() + 16);
    for byte in target {
        if is_unusual(byte) {
            const HEX: &[u8; 16] = b"0123456789ABCDEF";
            escaped.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
        } else {
            escaped.push(*byte);
        }
    }
    Some(escaped.into())
}

#[cfg(test)]
mod tests {
    use tw_http2::{Config, Connection, Event, FieldSection, Pseudo};

    use super::*;

    /// Decodes the request as a server would.
    fn said(head: &str, is_secured: bool) -> Option<FieldSection> {
        let request = RequestText::read(head.as_bytes(), is_secured).ok()?;
        let terms = || Config {
            streams_max: 1,
            window: 65_535,
            connection_window: 65_535,
            list_max: 65_535,
            out_max: 65_535,
        };
        let (client, server) = (Connection::client(terms()), Connection::server(terms()));
        let _stream = client.send_request(|list| request.write(list), true).unwrap();
        client
            .write(|parts| {
                parts.iter().for_each(|part| server.receive(part).unwrap());
                Ok(parts.iter().map(|part| part.len()).sum())
            })
            .unwrap();
        match server.next() {
            Some(Event::Request(_, list)) => Some(list),
            _ => None,
        }
    }

    fn url(list: &FieldSection) -> String {
        let of = |which| String::from_utf8(list.pseudo(which).unwrap().to_vec()).unwrap();
        format!("{}://{}{}", of(Pseudo::Scheme), of(Pseudo::Authority), of(Pseudo::Path))
    }

    #[test]
    fn lines_become_a_list() {
        let list = said(
            "POST /a?b=%20 HTTP/1.1\r\nHost: a.example:80\r\nX-One: 1\r\nConnection: close\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nx-one:  2 \r\nX-Empty: \r\n\r\nX-None: 4\r\n",
            true,
        )
        .unwrap();
        assert_eq!(list.pseudo(Pseudo::Method), Some(&b"POST"[..]));
        assert_eq!(url(&list), "https://a.example:80/a?b=%20");
        let fields: Vec<_> = list.iter().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        let expected = [("x-one", "1"), ("te", "trailers"), ("x-one", "2"), ("x-empty", "")];
        assert_eq!(
            fields,
            expected.map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        );
    }

    #[test]
    fn only_valid_targets_and_hosts_are_sent() {
        for (target, host, expected) in [
            ("/", "a", Some("http://a/")),
            ("*", "a", Some("http://a*")),
            ("/a<b>#c\\", "a", Some("http://a/a%3Cb%3E%23c%5C")),
            ("/\u{e9}", "a", Some("http://a/%C3%A9")),
            ("/\"{}", "a", Some("http://a/\"{}")),
            ("/", "[::1]:80", Some("http://[::1]:80/")),
            ("/\x01", "a", None),
            ("/\x7f", "a", None),
            ("", "a", None),
            ("/", "a b", None),
            ("/", "b@a", None),
            ("/", "", None),
        ] {
            let list = said(&format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n"), false);
            assert_eq!(list.as_ref().map(url).as_deref(), expected, "{target} {host}");
        }
        for (method, field) in
            [("G@T", "a: b"), ("", "a: b"), ("GET", "a b: c"), ("GET", ": c"), ("GET", "a: \x01")]
        {
            let list = said(&format!("{method} / HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"), false);
            assert!(list.is_none(), "{method} {field}");
        }
    }
}
