//! Trust in a certificate: the rules of RFC 5280, with OpenSSL's order of paths and its error texts.
//!
//! ```text
//! sent chain ──► path: its issuers, from the trusted ones first, up to one that issued itself
//!                 └─► every certificate of it: extensions, depth, revocation, signatures, times ─► Verdict
//! ```
//!
//! nginx finishes a handshake even with a certificate that it does not trust, and then answers 400 with the reason.
//! So a [`ClientVerifier`] only checks that the client has the key; [`verify_chain`] runs after the handshake, and again
//! after a resumption, with the times and revocation lists of that moment. All faults are searched for, and the last
//! one is returned.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};

use crate::handshake::{self, ALGORITHMS, Signature};
use crate::x509::{self, Certificate, NameConstraints, UnknownCritical};

mod authorities;
mod client;
mod path;
mod revocation;
#[cfg(test)]
mod tests;
mod verdict;

pub use authorities::{Authorities, TrustError};
pub use client::{ClientVerification, ClientVerifier, client_scheme};
use path::Path;
pub use revocation::Crls;
pub use verdict::Verdict;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Signatures that are checked to find the path of a certificate.
    constant count path::CHECKS_MAX, "the certificate is not trusted";
    /// Bytes of a file with revocation lists.
    constant bytes revocation::CRL_SIZE_MAX, "the configuration is refused";
}

/// Trust settings of a verification.
#[derive(Debug, Clone)]
pub struct Trust {
    /// Trusted certificates.
    pub authorities: Arc<Authorities>,
    /// If there are any, every certificate of a path needs one.
    pub crls: Option<Arc<Crls>>,
    /// Maximum number of certificates between the verified one and the root.
    pub depth: u32,
    /// Purpose of the certificate.
    pub purpose: Purpose,
}

/// Purpose of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// By a client of ours.
    Client,
    /// By a server that we connect to.
    Server,
}

/// Judges the first certificate of a chain; the others help to find its path. `now` is in seconds since 1970.
///
/// Checks at most some dozen signatures: 0.05 to 0.3 ms each.
pub fn verify_chain(chain: &[CertificateDer<'_>], trust: &Trust, now: u64) -> Verdict {
    let mut certs = chain.iter().map(|der| Certificate::parse(der));
    let Some(Ok(leaf)) = certs.next() else { return Verdict::Unspecified };
    // Certificates that cannot be parsed do not help to find a path.
    let others: Vec<Certificate<'_>> = certs.flatten().collect();
    let now = i64::try_from(now).unwrap_or(i64::MAX);

    let path = Path::find(leaf, &others, trust, now);
    // As in nginx, faults that are found later replace earlier ones.
    let mut verdict = path.end;
    let mut report = |fault: Verdict| verdict = fault;
    extensions(&path, trust, now, &mut report);
    if path.links.first().is_some_and(|link| handshake::is_short(&link.cert.key)) {
        report(Verdict::KeyTooShort);
    }
    if let Some(crls) = &trust.crls {
        path.links.iter().enumerate().for_each(|(at, link)| {
            let issuer = path.links.get(at + 1).unwrap_or(link);
            if let Some(fault) = crls.check(&link.cert, &issuer.cert, now) {
                report(fault);
            }
        });
    }
    signatures_and_times(&path, now, &mut report);
    verdict
}

/// Path of the first certificate of a chain, from it upwards as far as it goes, as DER.
///
/// Costs as much as [`verify_chain`].
pub fn path(chain: &[CertificateDer<'_>], trust: &Trust, now: u64) -> Vec<Vec<u8>> {
    let mut certs = chain.iter().map(|der| Certificate::parse(der));
    let Some(Ok(leaf)) = certs.next() else { return Vec::new() };
    let others: Vec<Certificate<'_>> = certs.flatten().collect();
    let path = Path::find(leaf, &others, trust, i64::try_from(now).unwrap_or(i64::MAX));
    path.links.iter().map(|link| link.cert.der.to_vec()).collect()
}

fn extensions(path: &Path<'_>, trust: &Trust, now: i64, report: &mut impl FnMut(Verdict)) {
    let (usage, usage_bits) = match trust.purpose {
        // digitalSignature, keyAgreement; a server may also be sent a key (keyEncipherment).
        Purpose::Client => (x509::CLIENT_AUTH, 0x80 | 0x08),
        Purpose::Server => (x509::SERVER_AUTH, 0x80 | 0x20 | 0x08),
    };
    // Intermediate certificates that are not self-issued count for pathLenConstraint.
    let mut between = 0;
    for (at, link) in path.links.iter().enumerate() {
        let extensions = &link.cert.extensions;
        if extensions.unknown_critical == UnknownCritical::Present {
            report(Verdict::UnhandledCriticalExtension);
        }
        // For an issuer that is no authority, too, OpenSSL reports a wrong purpose in the end.
        let is_of_use = match at {
            0 => extensions.key_usage.is_none_or(|bits| bits & usage_bits != 0),
            _ => link.is_authority(),
        };
        if !is_of_use || !extensions.allows(usage) {
            report(Verdict::InvalidPurpose);
        }
        let limit = extensions.basic_constraints.and_then(|constraints| constraints.path_len);
        if at > 0 && limit.is_some_and(|limit| between > limit) {
            report(Verdict::PathLengthExceeded);
        }
        if at > 0 && !link.cert.is_self_issued() {
            between += 1;
        }
    }
    let is_constrained =
        |cert: &Certificate<'_>| cert.extensions.name_constraints == NameConstraints::Present;
    if path.end.is_good()
        && path.links.iter().any(|link| is_constrained(&link.cert))
        && !names_are_permitted(path, trust.purpose, now)
    {
        report(Verdict::PermittedViolation);
    }
}

/// Name constraints are judged by webpki, which then has to agree with the whole path.
fn names_are_permitted(path: &Path<'_>, purpose: Purpose, now: i64) -> bool {
    let [leaf, between @ .., root] = path.links.as_slice() else { return false };
    let leaf = CertificateDer::from(leaf.cert.der);
    let between: Vec<_> = between.iter().map(|link| CertificateDer::from(link.cert.der)).collect();
    let root = CertificateDer::from(root.cert.der);
    let (Ok(leaf), Ok(root)) =
        (webpki::EndEntityCert::try_from(&leaf), webpki::anchor_from_trusted_cert(&root))
    else {
        return false;
    };
    let usage = match purpose {
        Purpose::Client => webpki::KeyUsage::client_auth(),
        Purpose::Server => webpki::KeyUsage::server_auth(),
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(now).unwrap_or_default()));
    leaf.verify_for_usage(ALGORITHMS.all, &[root], &between, now, usage, None, None).is_ok()
}

fn signatures_and_times(path: &Path<'_>, now: i64, report: &mut impl FnMut(Verdict)) {
    if let ([link], Verdict::UnableToGetLocalIssuer) = (path.links.as_slice(), path.end)
        && !link.cert.is_self_issued()
    {
        report(Verdict::UnableToVerifyLeaf);
    }
    // The chain is checked from the root down.
    for (at, link) in path.links.iter().enumerate().rev() {
        if at > 0 && !link.may_sign_certificates() {
            report(Verdict::NoCertSign);
        }
        if link.signature == Some(Signature::Bad) {
            report(Verdict::SignatureFailure);
        }
        if link.cert.not_before > now {
            report(Verdict::NotYetValid);
        }
        if link.cert.not_after < now {
            report(Verdict::Expired);
        }
    }
}
