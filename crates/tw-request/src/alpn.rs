//! Protocols of clients in ALPN.

/// HTTP/0.9 over QUIC in ALPN, which tests of interoperability use.
pub const HQ: &[u8] = b"hq-interop";
/// HTTP/2 in ALPN (RFC 9113, section 3.2).
pub const HTTP_2: &[u8] = b"h2";
/// Protocols that servers offer in ALPN: without HTTP/2, and with it.
pub const ALPN: &[&[&[u8]]] = &[&[b"http/1.1", b"http/1.0"], &[HTTP_2, b"http/1.1", b"http/1.0"]];

/// HTTP/3 in ALPN (RFC 9114, section 3.1).
pub const HTTP_3: &[u8] = b"h3";
/// Protocols that servers offer over QUIC: HTTP/3, with HTTP/0.9, that alone, and none, which is a name that no client offers.
pub const QUIC_ALPN: &[&[&[u8]]] = &[&[HTTP_3], &[HTTP_3, HQ], &[HQ], &[b"\0"]];
