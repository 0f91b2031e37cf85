//! Connection-specific fields: hop-by-hop fields that a proxy must not forward, `Upgrade`, and fields permitted in
//! trailers (RFC 9110 sections 6.5.1, 7.6.1 and 7.8).

use crate::head::RequestHead;
use crate::header_name::HeaderName;
use crate::method::Version;

/// The elements of a comma-separated list, without the blanks around them; empty ones are left out (RFC 9110 section
/// 5.6.1). For lists without quoted strings: `Connection`, `Upgrade`, `TE`.
pub fn elements(value: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    value
        .split(|&byte| byte == b',')
        .map(move |element| {
            let from = element.iter().position(|byte| !blank(byte)).unwrap_or(element.len());
            let to = element.iter().rposition(|byte| !blank(byte)).map_or(from, |last| last + 1);
            element.get(from..to).unwrap_or(b"")
        })
        .filter(|element| !element.is_empty())
}

/// Returns `true` if a list has this element, in any case.
pub fn has_element(value: &[u8], word: &[u8]) -> bool {
    elements(value).any(|element| element.eq_ignore_ascii_case(word))
}

/// Returns `true` for a field that is hop-by-hop whatever `Connection` lists. A proxy writes its own or none.
pub fn is_hop_by_hop(name: HeaderName) -> bool {
    matches!(
        name,
        HeaderName::Connection
            | HeaderName::KeepAlive
            | HeaderName::ProxyConnection
            | HeaderName::Http2Settings
            | HeaderName::Te
            | HeaderName::TransferEncoding
            | HeaderName::Upgrade
    )
}

/// Returns `true` for a field that frames the message or manages its connection. No configuration, script or upstream
/// server may add one to a response, or the following bytes would be read as another message.
pub fn is_framing(name: HeaderName) -> bool {
    matches!(
        name,
        HeaderName::ContentLength
            | HeaderName::TransferEncoding
            | HeaderName::Connection
            | HeaderName::KeepAlive
            | HeaderName::ProxyConnection
    )
}

/// Returns `true` if the lines of `Connection` make the field of this name hop-by-hop.
///
/// Only fields that the server does not know can be listed there: a client cannot remove `Cookie`, `Authorization` or
/// `X-Forwarded-For` from a proxied request by naming them.
pub fn is_named<'a>(connection: impl IntoIterator<Item = &'a [u8]>, name: &[u8]) -> bool {
    HeaderName::find(name).is_none() && connection.into_iter().any(|value| has_element(value, name))
}

/// Returns `true` if a field may be in the trailer section: not if it affects framing, routing, the request or the
/// interpretation of the content (RFC 9110 section 6.5.1).
// DIFF(nginx): nginx passes all of them.
pub fn may_be_trailer(name: &[u8], known_name: Option<HeaderName>) -> bool {
    match known_name {
        Some(
            HeaderName::ETag
            | HeaderName::LastModified
            | HeaderName::Date
            | HeaderName::Link
            | HeaderName::Server
            | HeaderName::Via,
        ) => true,
        Some(_) => false,
        None => ![&b"Proxy-Authenticate"[..], b"Max-Forwards", b"Content-Disposition"]
            .iter()
            .any(|one| one.eq_ignore_ascii_case(name)),
    }
}

/// Protocols that a client offers to switch to; `None` without any, or if they are malformed.
///
/// RFC 9110 section 7.8: `Upgrade` counts if `Connection` names it, and not in HTTP/1.0.
pub fn offered_protocols(head: &RequestHead) -> Option<&[u8]> {
    let names_it = |value: &[u8]| has_element(value, b"upgrade");
    if !head.has(HeaderName::Upgrade)
        || head.version() < Version::HTTP_11
        || !head.field_all(b"Connection").any(names_it)
    {
        return None;
    }
    let mut wishes = head.field_all(b"Upgrade");
    let wish = wishes.next().filter(|&wish| elements(wish).next().is_some())?;
    wishes.next().is_none().then_some(wish)
}

/// Returns `true` if a 101 switches only to offered protocols, and to at least one.
///
/// RFC 9110 section 7.8: a server must not switch to a protocol that was not indicated by the client.
pub fn is_offered(offered: &[u8], chosen: &[u8]) -> bool {
    let mut chosen = elements(chosen).peekable();
    chosen.peek().is_some() && chosen.all(|protocol| has_element(offered, protocol))
}

/// Returns `true` if one of the protocols carries further requests (`h2c`, `TLS`), which would pass the proxy unseen.
pub fn carries_requests(protocols: &[u8]) -> bool {
    elements(protocols).any(|protocol| {
        let name = protocol.split(|&byte| byte == b'/').next().unwrap_or(protocol);
        [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|one| one.eq_ignore_ascii_case(name))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::head::{HeadLimits, Progress};

    #[test]
    fn lists() {
        let table: &[(&str, &[&str])] =
            &[("", &[]), (" , ,\t", &[]), ("close", &["close"]), (" a ,b\t,, c d", &["a", "b", "c d"])];
        for (value, expected) in table {
            let got: Vec<_> = elements(value.as_bytes()).map(|one| str::from_utf8(one).unwrap()).collect();
            assert_eq!(got, *expected, "{value:?}");
        }
        assert!(has_element(b"Keep-Alive, Upgrade", b"upgrade") && !has_element(b"no-upgrade", b"upgrade"));
    }

    #[test]
    fn fields_named_by_connection() {
        let connection = || [&b"close, X-Hop"[..], b"cookie,Host, te"];
        for (name, expected) in
            [("x-hop", true), ("X-Ho", false), ("Cookie", false), ("Host", false), ("TE", false)]
        {
            assert_eq!(is_named(connection(), name.as_bytes()), expected, "{name}");
        }
        assert!(is_hop_by_hop(HeaderName::Te) && !is_hop_by_hop(HeaderName::Cookie));
    }

    #[test]
    fn trailers() {
        for (name, expected) in [
            ("X-Checksum", true),
            ("grpc-status", true),
            ("ETag", true),
            ("Server-Timing", true),
            ("content-length", false),
            ("Transfer-Encoding", false),
            ("Host", false),
            ("Set-Cookie", false),
            ("Content-Encoding", false),
            ("X-Accel-Redirect", false),
            ("proxy-authenticate", false),
            ("Connection", false),
        ] {
            assert_eq!(
                may_be_trailer(name.as_bytes(), HeaderName::find(name.as_bytes())),
                expected,
                "{name}"
            );
        }
    }

    #[test]
    fn upgrade_names_the_offered_protocols() {
        let table = [
            ("HTTP/1.1", "Connection: Upgrade\r\nUpgrade: websocket\r\n", Some("websocket")),
            ("HTTP/1.1", "Connection: keep-alive, upgrade\r\nUpgrade: a, b/1\r\n", Some("a, b/1")),
            ("HTTP/1.1", "Connection: keep-alive\r\nConnection: upgrade\r\nUpgrade: a\r\n", Some("a")),
            ("HTTP/1.1", "Upgrade: websocket\r\n", None),
            ("HTTP/1.1", "Connection: keep-alive\r\nUpgrade: websocket\r\n", None),
            ("HTTP/1.1", "Connection: upgrade\r\n", None),
            ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: ,\r\n", None),
            ("HTTP/1.1", "Connection: upgrade\r\nUpgrade: a\r\nUpgrade: b\r\n", None),
            ("HTTP/1.0", "Connection: upgrade\r\nUpgrade: websocket\r\n", None),
        ];
        for (version, fields, expected) in table {
            let mut head = RequestHead::new();
            head.push(format!("GET / {version}\r\nHost: a\r\n{fields}\r\n").as_bytes());
            assert_eq!(head.parse(&HeadLimits::default()), Ok(Progress::Complete));
            assert_eq!(offered_protocols(&head), expected.map(str::as_bytes), "{version} {fields}");
        }
    }

    #[test]
    fn protocols_of_a_101() {
        for (offered, chosen, expected) in [
            ("websocket", "WebSocket", true),
            ("a, b/1", "b/1", true),
            ("a, b", "b, a", true),
            ("a", "b", false),
            ("a", "a, b", false),
            ("a", "", false),
            ("", "", false),
        ] {
            assert_eq!(is_offered(offered.as_bytes(), chosen.as_bytes()), expected, "{offered} {chosen}");
        }
        for (protocols, expected) in
            [("websocket", false), ("h2c", true), ("a, TLS/1.0", true), ("HTTP/2.0", true), ("h2c-x", false)]
        {
            assert_eq!(carries_requests(protocols.as_bytes()), expected, "{protocols}");
        }
    }
}
