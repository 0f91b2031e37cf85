//! Authentication of clients by certificates (`ssl_verify_client`): trusted authorities, revocation lists, OCSP.

use std::fmt;
use std::sync::Arc;

use rustls::DistinguishedName;
use tw_conf::{ConfError, Word};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_tls::{Authorities, ClientVerification, Purpose, Trust, TrustError, Verdict};

use crate::certificates::certificate_file::{crls, trusted};
use crate::directives::inheritance::Directives;
use crate::ocsp::client_ocsp::{self, ClientOcsp, RevocationStatus};
use crate::tls_info::TlsInfo;

/// Settings of client certificates: verification, trusted authorities, revocation.
#[derive(Debug, Clone)]
pub struct ClientAuthentication {
    /// Result that a client needs to be served.
    pub verification: ClientVerification,
    /// Trusted authorities and revocation lists.
    pub trust: Arc<Trust>,
    /// Revocation check by OCSP, if it is on.
    pub ocsp: Option<Arc<ClientOcsp>>,
}

/// Reason why a client is not served. Its text is a line of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRefusal {
    /// A certificate that is not trusted.
    Untrusted(Verdict),
    /// A certificate that is revoked, or of which that is not known.
    Revocation(RevocationStatus),
    /// No certificate.
    NoCertificate,
}

impl fmt::Display for ClientRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untrusted(verdict) => {
                write!(f, "client SSL certificate verify error: ({}:{verdict})", verdict.code())
            }
            Self::Revocation(status) => write!(f, "client SSL certificate verify error: {status}"),
            Self::NoCertificate => f.write_str("client sent no required SSL certificate"),
        }
    }
}

impl ClientAuthentication {
    /// Checks the certificate of a client whose handshake is complete.
    ///
    /// # Errors
    /// The client is not served.
    pub fn check(&self, tls: &TlsInfo) -> Result<(), ClientRefusal> {
        let verdict = tls.client.as_ref().map(|client| client.verdict);
        let revocation = tls.client.as_ref().map_or(RevocationStatus::Good, |client| client.revocation);
        match (self.verification.admits(verdict), verdict) {
            (true, _) if revocation == RevocationStatus::Good => Ok(()),
            (true, _) => Err(ClientRefusal::Revocation(revocation)),
            (false, Some(verdict)) => Err(ClientRefusal::Untrusted(verdict)),
            (false, None) => Err(ClientRefusal::NoCertificate),
        }
    }
}

/// Resolves the directives: settings, and names of authorities that clients are told; `None` if clients are not asked for a certificate.
pub(crate) fn resolve<P: Protocol>(
    directives: &Directives,
    cx: &mut Resolve<'_, P>,
) -> Result<Option<(ClientAuthentication, Vec<DistinguishedName>)>, ConfError> {
    let Some(verification) = directives.verify_client else { return Ok(None) };
    if verification == ClientVerification::OptionalNoCa && directives.ocsp.checked.is_some() {
        let message = "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"";
        return Err(ConfError::new(message));
    }
    let mut read = |word: &Option<Word>| match word {
        Some(word) => trusted(word, cx),
        None => Ok(Vec::new()),
    };
    let (shown_to_clients, others) =
        (read(&directives.client_certificate)?, read(&directives.trusted_certificate)?);
    // A server without a certificate of its own trusts no authority, as in nginx.
    let has_own = !directives.certificates.is_empty();
    if shown_to_clients.is_empty()
        && others.is_empty()
        && verification != ClientVerification::OptionalNoCa
        && has_own
    {
        return Err(ConfError::new(
            "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client",
        ));
    }
    let broken =
        |error: TrustError| ConfError::new(format!("authorities of clients cannot be used: {error}"));
    let hints = Authorities::new(shown_to_clients.clone()).map_err(broken)?.hints();
    let authorities = Arc::new(Authorities::new([shown_to_clients, others].concat()).map_err(broken)?);
    let crls = directives.crl.as_ref().map(|word| crls(word, cx)).transpose()?;
    let trust = Trust { authorities, crls, depth: directives.verify_depth, purpose: Purpose::Client };
    let ocsp = client_ocsp::resolve(&directives.ocsp, cx)?;
    Ok(Some((ClientAuthentication { verification, trust: Arc::new(trust), ocsp }, hints)))
}
