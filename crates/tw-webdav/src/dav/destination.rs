//! The `Destination` field of COPY and MOVE (RFC 4918 section 10.3): a URI of this server, or a path.

use tw_http::escape::{Unescape, unescape};
use tw_http::target;

/// Why a destination is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DestinationError {
    /// No URI that this server could answer.
    Invalid,
    /// Path with `..` or a NUL in it, decoded if that had to be done to find it.
    Unsafe(Vec<u8>),
    /// Path of another server.
    Elsewhere,
    /// Absolute URI, and the request names no host.
    NoHost,
}

/// The normalised path of a destination: decoded, without `.`, `..` and empty names. `host` is the request's, in lower
/// case and without port.
// DIFF(nginx): nginx takes the path as it is written but for its escapes, a host that only begins like the request's, and
// no host in capitals.
pub(crate) fn path(value: &[u8], scheme: &[u8], host: &[u8]) -> Result<Vec<u8>, DestinationError> {
    let target = if value.first() == Some(&b'/') { value } else { local_part(value, scheme, host)? };
    let end = target.iter().position(|b| *b == b'?').unwrap_or(target.len());
    let text = &target[..end];
    let mut decoded = Vec::with_capacity(text.len());
    unescape(text, Unescape::All, &mut decoded);
    if is_unsafe(text) {
        return Err(DestinationError::Unsafe(target.to_vec()));
    }
    if is_unsafe(&decoded) {
        return Err(DestinationError::Unsafe(decoded));
    }
    let mut path = Vec::new();
    target::normalize(text, true, &mut path).map_err(|_| DestinationError::Invalid)?;
    match path.first() {
        Some(b'/') => Ok(path),
        _ => Err(DestinationError::Invalid),
    }
}

fn is_unsafe(path: &[u8]) -> bool {
    path.contains(&0) || path.split(|b| *b == b'/').any(|name| name == b"..")
}

/// Rest behind scheme and authority.
fn local_part<'v>(value: &'v [u8], scheme: &[u8], host: &[u8]) -> Result<&'v [u8], DestinationError> {
    if host.is_empty() {
        return Err(DestinationError::NoHost);
    }
    let rest = value
        .split_at_checked(scheme.len())
        .filter(|(start, _)| start.eq_ignore_ascii_case(scheme))
        .and_then(|(_, rest)| rest.strip_prefix(b"://"))
        .ok_or(DestinationError::Invalid)?;
    let (authority, target) = match rest.iter().position(|b| *b == b'/') {
        Some(at) => rest.split_at(at),
        None => (rest, &rest[rest.len()..]),
    };
    let named = match authority.split_at_checked(host.len()) {
        Some((start, end)) if start.eq_ignore_ascii_case(host) => end,
        _ => return Err(DestinationError::Elsewhere),
    };
    match named {
        [] => {}
        [b':', port @ ..] if port.iter().all(u8::is_ascii_digit) => {}
        _ => return Err(DestinationError::Elsewhere),
    }
    if target.is_empty() { Err(DestinationError::Invalid) } else { Ok(target) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn destinations() {
        let cases: [(&str, Result<&str, DestinationError>); 27] = [
            ("/a/b", Ok("/a/b")),
            ("/a%20b?c=d", Ok("/a b")),
            ("/a//b/./c", Ok("/a/b/c")),
            ("/a/b/", Ok("/a/b/")),
            ("//host/a", Ok("/host/a")),
            ("/a#b", Ok("/a")),
            ("http://host/a", Ok("/a")),
            ("HTTP://Host:8080/a", Ok("/a")),
            ("http://host", Err(DestinationError::Invalid)),
            ("http://hostile/a", Err(DestinationError::Elsewhere)),
            ("http://host.other/a", Err(DestinationError::Elsewhere)),
            ("http://host@other/a", Err(DestinationError::Elsewhere)),
            ("http://host:80@other/a", Err(DestinationError::Elsewhere)),
            ("http://other/a", Err(DestinationError::Elsewhere)),
            ("https://host/a", Err(DestinationError::Invalid)),
            ("ftp://host/a", Err(DestinationError::Invalid)),
            ("", Err(DestinationError::Invalid)),
            ("a", Err(DestinationError::Invalid)),
            ("?a", Err(DestinationError::Invalid)),
            ("/../a", Err(DestinationError::Unsafe(b"/../a".to_vec()))),
            ("/a/..", Err(DestinationError::Unsafe(b"/a/..".to_vec()))),
            ("/a/../b", Err(DestinationError::Unsafe(b"/a/../b".to_vec()))),
            ("/a/%2e%2e/b", Err(DestinationError::Unsafe(b"/a/../b".to_vec()))),
            ("/a%2f..%2fb", Err(DestinationError::Unsafe(b"/a/../b".to_vec()))),
            ("/a%00b", Err(DestinationError::Unsafe(b"/a\0b".to_vec()))),
            ("/../a?b", Err(DestinationError::Unsafe(b"/../a?b".to_vec()))),
            ("/a%zz", Err(DestinationError::Invalid)),
        ];
        for (value, expected) in cases {
            let expected = expected.map(|path| path.as_bytes().to_vec());
            assert_eq!(path(value.as_bytes(), b"http", b"host"), expected, "{value}");
        }
        assert_eq!(path(b"http://a/b", b"http", b""), Err(DestinationError::NoHost));
        assert_eq!(path(b"/b", b"http", b""), Ok(b"/b".to_vec()));
    }
}
