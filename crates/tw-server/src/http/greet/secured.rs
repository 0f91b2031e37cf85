//! What a handshake has agreed on: facts for variables and logs, no I/O.

use rustls::pki_types::CertificateDer;
use rustls::server::{Accepted, ServerConnection};
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion};
use tw_tls::Verdict;

/// A connection that TLS secures.
#[derive(Debug)]
pub struct Secured {
    /// The name that the client asked for (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// Version of the protocol.
    pub version: Option<ProtocolVersion>,
    /// Cipher suite.
    pub suite: Option<CipherSuite>,
    /// Group of the key exchange; none where a session was taken up again without one.
    pub group: Option<NamedGroup>,
    /// The protocol inside (ALPN).
    pub protocol: Option<Box<[u8]>>,
    /// Whether a session was taken up again.
    pub is_resumed: bool,
    /// The certificate that the client has shown.
    pub client: Option<ClientCertificate>,
    /// What the client could have done.
    pub offered: Offered,
}

/// A certificate of a client that has its key.
#[derive(Debug)]
pub struct ClientCertificate {
    /// As DER.
    pub der: CertificateDer<'static>,
    /// Whether it can be trusted.
    pub verdict: Verdict,
}

/// What a client can do, as its hello says.
#[derive(Debug, Default)]
pub struct Offered {
    /// Cipher suites.
    pub suites: Box<[CipherSuite]>,
    /// Groups of key exchanges.
    pub groups: Box<[NamedGroup]>,
}

impl Offered {
    pub(super) fn new(accepted: &Accepted) -> Self {
        let hello = accepted.client_hello();
        Self { suites: hello.cipher_suites().into(), groups: hello.named_groups().unwrap_or_default().into() }
    }
}

impl Secured {
    pub(super) fn new(
        session: &ServerConnection,
        client: Option<ClientCertificate>,
        offered: Offered,
    ) -> Self {
        Self {
            server_name: session.server_name().map(Into::into),
            version: session.protocol_version(),
            suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            protocol: session.alpn_protocol().map(Into::into),
            is_resumed: session.handshake_kind() == Some(HandshakeKind::Resumed),
            client,
            offered,
        }
    }
}
