//! Client certificates (`ssl_verify_client`).

use std::cell::Cell;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use super::verdict::Verdict;
use crate::handshake;

/// Requirement on a client's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientVerification {
    /// `on`: a certificate that can be trusted.
    Required,
    /// `optional`: if there is one, it can be trusted.
    Optional,
    /// `optional_no_ca`: a certificate may be missing or its authority unknown, but not otherwise invalid.
    OptionalNoCa,
}

impl ClientVerification {
    /// Returns `true` if a client may proceed; `None` is one without a certificate.
    pub fn admits(self, verdict: Option<Verdict>) -> bool {
        match (self, verdict) {
            (Self::Required, None) => false,
            (_, None | Some(Verdict::Good)) => true,
            (Self::OptionalNoCa, Some(verdict)) => verdict.is_unknown_authority(),
            _ => false,
        }
    }
}

thread_local! {
    /// The scheme of the last signature of a client that was verified on this thread.
    static SCHEME: Cell<Option<SignatureScheme>> = const { Cell::new(None) };
}

/// Signature scheme of the last client that was verified on this thread since the previous call. rustls does not
/// expose it elsewhere.
pub fn client_scheme() -> Option<SignatureScheme> {
    SCHEME.take()
}

/// Requests a certificate and accepts every handshake in which the client has its key. [`verify_chain`](super::verify_chain)
/// verifies the certificate afterwards.
#[derive(Debug)]
pub struct ClientVerifier {
    hints: Vec<DistinguishedName>,
}

impl ClientVerifier {
    /// Makes a verifier that sends these authorities to clients: [`Authorities::hints`](super::Authorities::hints),
    /// or none.
    pub fn new(hints: Vec<DistinguishedName>) -> Self {
        Self { hints }
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        handshake::parse(end_entity).map(|_| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        SCHEME.set(Some(dss.scheme));
        handshake::verify_tls12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        SCHEME.set(Some(dss.scheme));
        handshake::verify_tls13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        handshake::schemes()
    }
}
