//! Protocols of the configuration whose servers can use TLS.

use std::sync::Arc;

use tw_acme::CurrentCertificate;
use tw_core::module::Protocol;

use crate::tls_info::TlsSession;

/// Protocol of the configuration whose servers can use TLS.
pub trait SecureProtocol: Protocol<Session: TlsSession> {
    /// Lists of protocols that a server may offer (ALPN, RFC 7301), each in the order of preference. For each handshake the host of
    /// the connection chooses one by its index.
    const ALPN: &'static [&'static [&'static [u8]]];

    /// Lists of protocols over QUIC; none for a protocol that does not run over it.
    const QUIC_ALPN: &'static [&'static [&'static [u8]]] = &[];

    /// ACME certificate of the server that is being resolved.
    fn acme_certificate(_block: &Self::Block) -> Option<&Arc<CurrentCertificate>> {
        None
    }
}
