//! Verification of signatures in handshakes and on certificates, for certificates of any version.
//!
//! rustls's own functions want version 3 of X.509; what `openssl ca` signs without extensions is version 1.

use std::sync::LazyLock;

use aws_lc_rs::signature::RsaParameters;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{CertificateDer, SubjectPublicKeyInfoDer, alg_id};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};
use tw_sys::rsa::{self, Digest, Padding};

use crate::x509::{Certificate, Signed, SubjectPublicKeyInfo};

/// Bits of a key of RSA that OpenSSL trusts (its security level 2).
const TRUSTED_RSA_BITS: u32 = 2048;

/// Signature algorithms that can be verified.
pub(crate) static ALGORITHMS: LazyLock<WebPkiSupportedAlgorithms> =
    LazyLock::new(|| default_provider().signature_verification_algorithms);

/// Result of verifying the signature of a certificate or a revocation list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Signature {
    Good,
    Bad,
}

/// Verifies that this key made the signature.
pub(crate) fn check(signed: &Signed<'_>, key: &SubjectPublicKeyInfo<'_>) -> Signature {
    let is_good = ALGORITHMS.all.iter().any(|algorithm| {
        algorithm.signature_alg_id().as_ref() == signed.algorithm
            && algorithm.public_key_alg_id().as_ref() == key.algorithm
            && algorithm.verify_signature(key.bits, signed.message, signed.signature).is_ok()
    });
    if is_good { Signature::Good } else { Signature::Bad }
}

/// The signature of a handshake of TLS 1.2.
pub(crate) fn verify_tls12(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let cert = parse(cert)?;
    // In TLS 1.2 a signature scheme does not name the curve of the key, so there is one algorithm for each.
    let row = ALGORITHMS.mapping.iter().find(|(scheme, _)| *scheme == dss.scheme && is_for_tls12(*scheme));
    let is_good = row.is_some_and(|(_, algorithms)| {
        algorithms.iter().any(|algorithm| {
            algorithm.public_key_alg_id().as_ref() == cert.key.algorithm
                && algorithm.verify_signature(cert.key.bits, message, dss.signature()).is_ok()
        })
    });
    if is_good || is_of_short_key(&cert.key, message, dss) {
        Ok(HandshakeSignatureValid::assertion())
    } else {
        Err(CertificateError::BadSignature.into())
    }
}

/// The signature of a handshake of TLS 1.3.
pub(crate) fn verify_tls13(
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let cert = parse(cert)?;
    let is_pss = scheme_of_rsa(dss.scheme).is_some_and(|(padding, _)| padding == Padding::Pss);
    if is_pss && is_of_short_key(&cert.key, message, dss) {
        return Ok(HandshakeSignatureValid::assertion());
    }
    let key = SubjectPublicKeyInfoDer::from(cert.key.whole);
    verify_tls13_signature_with_raw_key(message, &key, dss, &ALGORITHMS)
}

/// Returns `true` for an RSA key that is too short to be trusted.
pub(crate) fn is_short(key: &SubjectPublicKeyInfo<'_>) -> bool {
    key.algorithm == alg_id::RSA_ENCRYPTION.as_ref()
        && RsaParameters::public_modulus_len(key.bits).is_ok_and(|bits| bits < TRUSTED_RSA_BITS)
}

/// Verifies the signature of a handshake by a key too short to be trusted: its owner holds it, and
/// [`verify_chain`](crate::verify_chain) refuses it.
fn is_of_short_key(key: &SubjectPublicKeyInfo<'_>, message: &[u8], dss: &DigitallySignedStruct) -> bool {
    let Some((padding, digest)) = scheme_of_rsa(dss.scheme) else { return false };
    is_short(key) && rsa::has_signed(key.whole, padding, digest, message, dss.signature())
}

fn scheme_of_rsa(scheme: SignatureScheme) -> Option<(Padding, Digest)> {
    Some(match scheme {
        SignatureScheme::RSA_PKCS1_SHA256 => (Padding::Pkcs1, Digest::Sha256),
        SignatureScheme::RSA_PKCS1_SHA384 => (Padding::Pkcs1, Digest::Sha384),
        SignatureScheme::RSA_PKCS1_SHA512 => (Padding::Pkcs1, Digest::Sha512),
        SignatureScheme::RSA_PSS_SHA256 => (Padding::Pss, Digest::Sha256),
        SignatureScheme::RSA_PSS_SHA384 => (Padding::Pss, Digest::Sha384),
        SignatureScheme::RSA_PSS_SHA512 => (Padding::Pss, Digest::Sha512),
        _ => return None,
    })
}

/// The schemes of both versions, in order of preference.
pub(crate) fn schemes() -> Vec<SignatureScheme> {
    ALGORITHMS.supported_schemes()
}

/// Parses a certificate that the peer sent.
pub(crate) fn parse<'a>(cert: &'a CertificateDer<'_>) -> Result<Certificate<'a>, Error> {
    Certificate::parse(cert).map_err(|_| CertificateError::BadEncoding.into())
}

/// Schemes that TLS 1.3 alone has.
fn is_for_tls12(scheme: SignatureScheme) -> bool {
    !matches!(scheme, SignatureScheme::ML_DSA_44 | SignatureScheme::ML_DSA_65 | SignatureScheme::ML_DSA_87)
}

#[cfg(test)]
mod tests;
