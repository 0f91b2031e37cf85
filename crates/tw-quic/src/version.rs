//! Version of QUIC, and the cipher suite of its Initial packets.

use rustls::quic::Suite;

/// Version 1 of QUIC (RFC 9000).
pub(crate) const VERSION_1: u32 = 1;

/// Cipher suite of Initial packets.
pub(crate) fn initial_suite() -> Suite {
    let suite = rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    suite.tls13().and_then(|suite| suite.quic_suite()).expect("this suite exists for QUIC")
}
