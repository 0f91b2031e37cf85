//! What a handshake has agreed on: facts for variables and logs, no I/O.

use std::cell::Cell;
use std::rc::Rc;

use rustls::pki_types::CertificateDer;
use rustls::server::{Accepted, ServerConnection};
use rustls::{CipherSuite, HandshakeKind, NamedGroup, ProtocolVersion, SignatureScheme};
use tw_net::tls::Handshake;
use tw_tls::Verdict;

use crate::config::ssl::ocsp::Standing;

/// A connection that TLS secures.
#[derive(Debug)]
pub struct TlsInfo {
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
    pub offered: ClientHelloInfo,
    /// The id of the session.
    pub id: Option<Box<[u8]>>,
    /// In which scheme the server has signed; none where a session was taken up again.
    pub scheme: Option<SignatureScheme>,
    /// Whether the handshake still goes on, and what comes meanwhile may be a copy.
    pub(crate) is_early: Rc<Cell<bool>>,
}

/// A certificate of a client that has its key.
#[derive(Debug)]
pub struct ClientCertificate {
    /// As DER.
    pub der: CertificateDer<'static>,
    /// Whether it can be trusted.
    pub verdict: Verdict,
    /// What its authority says of it now.
    pub(crate) standing: Standing,
    /// In which scheme the client has signed; none where a session was taken up again.
    pub scheme: Option<SignatureScheme>,
}

/// What a client can do, as its hello says.
#[derive(Debug, Default)]
pub struct ClientHelloInfo {
    /// Cipher suites.
    pub suites: Box<[CipherSuite]>,
    /// Groups of key exchanges.
    pub groups: Box<[NamedGroup]>,
    /// Schemes of signatures.
    pub schemes: Box<[SignatureScheme]>,
}

impl ClientHelloInfo {
    pub(super) fn new(accepted: &Accepted) -> Self {
        let hello = accepted.client_hello();
        Self {
            suites: hello.cipher_suites().into(),
            groups: hello.named_groups().unwrap_or_default().into(),
            schemes: hello.signature_schemes().into(),
        }
    }
}

impl TlsInfo {
    /// As much as the hello of a client says.
    pub(super) fn announced(accepted: &Accepted) -> Self {
        let name = accepted.client_hello().server_name().map(|name| name.to_ascii_lowercase().into());
        Self {
            server_name: name,
            version: None,
            suite: None,
            group: None,
            protocol: None,
            is_resumed: false,
            client: None,
            offered: ClientHelloInfo::new(accepted),
            id: None,
            scheme: None,
            is_early: Rc::default(),
        }
    }

    pub(super) fn new(
        handshake: &Handshake<ServerConnection>,
        client: Option<ClientCertificate>,
        offered: ClientHelloInfo,
        scheme: Option<SignatureScheme>,
    ) -> Self {
        let session = handshake.session();
        let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
        Self {
            server_name: session.server_name().map(Into::into),
            version: session.protocol_version(),
            suite: session.negotiated_cipher_suite().map(|suite| suite.suite()),
            group: session.negotiated_key_exchange_group().map(|group| group.name()),
            protocol: session.alpn_protocol().map(Into::into),
            is_resumed,
            client,
            offered,
            id: handshake.session_id().map(Into::into),
            scheme: scheme.filter(|_| !is_resumed),
            is_early: Rc::new(Cell::new(session.is_handshaking())),
        }
    }
}
