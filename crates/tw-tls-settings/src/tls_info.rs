//! Result of a handshake, for variables and logs.

use std::cell::Cell;
use std::rc::Rc;

use rustls::pki_types::CertificateDer;
use rustls::server::Accepted;
use rustls::{CipherSuite, NamedGroup, ProtocolVersion, SignatureScheme};
use tw_core::session::Session;
use tw_tls::{Fingerprint, Verdict};

use crate::ocsp::client_ocsp::RevocationStatus;

/// Parameters of a TLS connection.
#[derive(Debug, Clone)]
pub struct TlsInfo {
    /// Server name that the client sent (SNI), in lower case.
    pub server_name: Option<Box<str>>,
    /// Version of the protocol.
    pub version: Option<ProtocolVersion>,
    /// Cipher suite.
    pub suite: Option<CipherSuite>,
    /// Group of the key exchange; none where a session was resumed without one.
    pub group: Option<NamedGroup>,
    /// Protocol chosen by ALPN.
    pub protocol: Option<Box<[u8]>>,
    /// True if a session was resumed.
    pub is_resumed: bool,
    /// Certificate that the client sent.
    pub client: Option<ClientCertificate>,
    /// Abilities of the client.
    pub offered: ClientHelloInfo,
    /// Session id.
    pub id: Option<Box<[u8]>>,
    /// Signature scheme of the server; none where a session was resumed.
    pub scheme: Option<SignatureScheme>,
    /// True until the handshake is complete: early data may be replayed.
    pub is_early: Rc<Cell<bool>>,
}

/// Session of a client that may use TLS.
pub trait TlsSession: Session {
    /// Result of the handshake, or the client hello as long as the handshake goes on; `None` without TLS.
    fn tls(&self) -> Option<&TlsInfo>;
}

/// Certificate of a client that has proved to have its key.
#[derive(Debug, Clone)]
pub struct ClientCertificate {
    /// Certificate as DER.
    pub der: CertificateDer<'static>,
    /// Result of the verification.
    pub verdict: Verdict,
    /// Result of the OCSP check.
    pub revocation: RevocationStatus,
    /// Signature scheme of the client; none where a session was resumed.
    pub scheme: Option<SignatureScheme>,
}

impl ClientCertificate {
    /// Returns true if the certificate is revoked, or that is not known.
    pub fn is_revoked(&self) -> bool {
        self.revocation != RevocationStatus::Good
    }
}

/// Abilities of a client, from its hello.
#[derive(Debug, Default, Clone)]
pub struct ClientHelloInfo {
    /// Cipher suites.
    pub suites: Box<[CipherSuite]>,
    /// Groups of key exchanges.
    pub groups: Box<[NamedGroup]>,
    /// Schemes of signatures.
    pub schemes: Box<[SignatureScheme]>,
    /// Fingerprint, if the configuration uses it.
    pub fingerprint: Option<Box<Fingerprint>>,
}

impl ClientHelloInfo {
    /// Abilities in a client hello, of which `fingerprint` was made.
    pub fn new(accepted: &Accepted, fingerprint: Option<Fingerprint>) -> Self {
        let hello = accepted.client_hello();
        Self {
            suites: hello.cipher_suites().into(),
            groups: hello.named_groups().unwrap_or_default().into(),
            schemes: hello.signature_schemes().into(),
            fingerprint: fingerprint.map(Box::new),
        }
    }
}

impl TlsInfo {
    /// Information of a client hello, before the handshake.
    pub fn of_hello(accepted: &Accepted) -> Self {
        let name = accepted.client_hello().server_name().map(|name| name.to_ascii_lowercase().into());
        Self { offered: ClientHelloInfo::new(accepted, None), ..Self::of_name(name) }
    }

    /// Information about a client of which nothing is known but the name that it sends.
    pub fn of_name(server_name: Option<Box<str>>) -> Self {
        Self {
            server_name,
            version: None,
            suite: None,
            group: None,
            protocol: None,
            is_resumed: false,
            client: None,
            offered: ClientHelloInfo::default(),
            id: None,
            scheme: None,
            is_early: Rc::default(),
        }
    }
}
