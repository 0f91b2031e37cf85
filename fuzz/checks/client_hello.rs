//! Invariants for any first bytes of a client: no panic, more bytes never change what was found before, and a
//! fingerprint has its form.

use tw_tls::client_hello::{FirstBytes, peek};
use tw_tls::{Fingerprint, TlsTransport};

pub(crate) fn check(data: &[u8]) {
    let all = peek(data);
    let mut result = FirstBytes::Incomplete;
    for end in 0..=data.len().min(1024) {
        let now = peek(data.get(..end).unwrap_or_default());
        assert!(result == FirstBytes::Incomplete || result == now, "{end}");
        result = now;
    }
    if result != FirstBytes::Incomplete {
        assert_eq!(result, all);
    }
    if let FirstBytes::ClientHello(hello) = &all {
        let len = hello.server_name.len() + hello.alpn.iter().map(Vec::len).sum::<usize>();
        assert!(len <= data.len());
        let _ = hello.version_name();
    }
    if let Some(fingerprint) = Fingerprint::of_records(data) {
        assert!(matches!(all, FirstBytes::ClientHello(_) | FirstBytes::Other));
        assert_eq!((fingerprint.ja4.chars().count(), fingerprint.ja3_hash().len()), (36, 32));
    }
    let _ = Fingerprint::of_message(data, TlsTransport::Quic);
}
