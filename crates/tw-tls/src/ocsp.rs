//! Revocation status by OCSP (RFC 6960): requests, responses, and the responder's URL.
//!
//! ```text
//! certificate, issuer ─► Question ─► (the caller sends it) ─► bytes ─► Question::read ─► Reply
//! ```
//!
//! A response is valid if it is signed by the issuer, an authority above it, or a responder with a certificate that
//! the issuer made for OCSP. Errors are worded as in nginx.

mod responder_url;

use std::fmt;

use aws_lc_rs::digest;

use crate::der::{
    self, BIT_STRING, GENERALIZED_TIME, INTEGER, Malformed, OCTET_STRING, OID, Reader, SEQUENCE, context,
    primitive,
};
use crate::handshake::{self, Signature};
use crate::time;
use crate::x509::{Certificate, Signed};

pub use responder_url::ResponderUrl;

/// As OpenSSL allows clocks to differ, in seconds.
const CLOCK_SKEW: i64 = 300;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a reply about a certificate (OCSP).
    pub const REPLY_SIZE_MAX: usize = 64 << 10, bytes, "the reply is not used";
    /// Certificates in a reply about a certificate (OCSP) that may be its signer's.
    const SIGNERS_MAX: usize = 8, count, "further ones are not looked at";
}

/// id-sha1 with its NULL, which every responder supports.
const SHA1: &[u8] = &[0x30, 0x09, 0x06, 0x05, 0x2b, 0x0e, 0x03, 0x02, 0x1a, 0x05, 0x00];
const SHA1_ID: &[u8] = &[0x2b, 0x0e, 0x03, 0x02, 0x1a];
/// id-pkix-ocsp-basic.
const BASIC: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01, 0x01];
/// id-kp-OCSPSigning.
const OCSP_SIGNING: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x09];
/// id-ad-ocsp.
const ACCESS_BY_OCSP: &[u8] = &[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x30, 0x01];
/// GeneralName: uniformResourceIdentifier.
const URI: u8 = primitive(6);

/// Revocation status of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Not revoked.
    Good,
    /// Revoked.
    Revoked,
    /// The authority does not know it.
    Unknown,
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Good => "good",
            Self::Revoked => "revoked",
            Self::Unknown => "unknown",
        })
    }
}

/// A reply that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reply {
    /// Revocation status.
    pub status: Status,
    /// End of validity, in seconds since 1970, if given.
    pub until: Option<u64>,
}

/// Why a reply does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OcspError {
    /// Malformed, or longer than [`REPLY_SIZE_MAX`].
    Malformed,
    /// The authority does not answer, for a reason with this number.
    NotSuccessful(u8),
    /// Not signed by an authorized responder.
    NotSigned,
    /// About other certificates.
    NotFound,
    /// Not valid at this time.
    NotNow,
}

impl fmt::Display for OcspError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed => f.write_str("d2i_OCSP_RESPONSE() failed"),
            Self::NotSuccessful(number) => {
                let name = match number {
                    1 => "malformed request",
                    2 => "internal error",
                    3 => "try later",
                    5 => "signature required",
                    6 => "unauthorized",
                    _ => "unknown",
                };
                write!(f, "OCSP response not successful ({number}: {name})")
            }
            Self::NotSigned => f.write_str("OCSP_basic_verify() failed"),
            Self::NotFound => f.write_str("certificate status not found in the OCSP response"),
            Self::NotNow => f.write_str("OCSP_check_validity() failed"),
        }
    }
}

impl std::error::Error for OcspError {}

impl From<Malformed> for OcspError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// OCSP request for one certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// The issuer first, then those above it.
    issuers: Vec<Vec<u8>>,
    name_hash: Vec<u8>,
    key_hash: Vec<u8>,
    serial: Vec<u8>,
}

impl Question {
    /// Makes a request about a certificate issued by the first of `issuers`, which are followed by the authorities
    /// above. All as DER. `None` if the names do not match.
    pub fn new(certificate: &[u8], issuers: &[impl AsRef<[u8]>]) -> Option<Self> {
        let issuer = issuers.first()?.as_ref();
        let cert = Certificate::parse(certificate).ok()?;
        let parsed = Certificate::parse(issuer).ok()?;
        cert.names_as_issuer(&parsed).then(|| Self {
            issuers: issuers.iter().map(|issuer| issuer.as_ref().to_vec()).collect(),
            name_hash: sha1(cert.issuer),
            key_hash: sha1(parsed.key.bits),
            serial: cert.serial.to_vec(),
        })
    }

    /// As it is sent: an OCSPRequest, as DER.
    pub fn der(&self) -> Vec<u8> {
        let id = encode(
            SEQUENCE,
            &[
                SHA1,
                &encode(OCTET_STRING, &[&self.name_hash]),
                &encode(OCTET_STRING, &[&self.key_hash]),
                &encode(INTEGER, &[&self.serial]),
            ],
        );
        (0..4).fold(id, |inner, _| encode(SEQUENCE, &[&inner]))
    }

    /// Verifies a response, as DER, at `now`, in seconds since 1970. Checks some signatures: 0.05 to 0.3 ms each.
    ///
    /// # Errors
    /// The response is not valid.
    pub fn read(&self, response: &[u8], now: u64) -> Result<Reply, OcspError> {
        if response.len() > REPLY_SIZE_MAX {
            return Err(OcspError::Malformed);
        }
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let basic = basic(response)?;
        let issuers: Vec<_> = self.issuers.iter().filter_map(|der| Certificate::parse(der).ok()).collect();
        if !basic.is_signed_for(&issuers, now) {
            return Err(OcspError::NotSigned);
        }
        let mut list = Reader::new(basic.replies);
        while !list.is_empty() {
            let mut single = list.enter(SEQUENCE)?;
            if !self.is_about(single.enter(SEQUENCE)?)? {
                continue;
            }
            let status = match single.element()?.tag {
                GOOD => Status::Good,
                REVOKED => Status::Revoked,
                UNKNOWN => Status::Unknown,
                _ => return Err(OcspError::Malformed),
            };
            let this_update = time::parse(single.expect(GENERALIZED_TIME)?)?;
            let next_update = match single.optional(context(0))? {
                Some(time) => Some(time::parse(Reader::new(time.content).expect(GENERALIZED_TIME)?)?),
                None => None,
            };
            if this_update > now + CLOCK_SKEW || next_update.is_some_and(|next| next < now - CLOCK_SKEW) {
                return Err(OcspError::NotNow);
            }
            return Ok(Reply { status, until: next_update.and_then(|next| u64::try_from(next).ok()) });
        }
        Err(OcspError::NotFound)
    }

    /// Returns `true` if a CertID is that of the certificate.
    fn is_about(&self, mut id: Reader<'_>) -> Result<bool, Malformed> {
        let algorithm = id.enter(SEQUENCE)?.expect(OID)?.content;
        let name_hash = id.expect(OCTET_STRING)?.content;
        let key_hash = id.expect(OCTET_STRING)?.content;
        let serial = id.expect(INTEGER)?.content;
        id.end()?;
        Ok(algorithm == SHA1_ID
            && name_hash == self.name_hash
            && key_hash == self.key_hash
            && serial == self.serial)
    }
}

const GOOD: u8 = primitive(0);
const REVOKED: u8 = context(1);
const UNKNOWN: u8 = primitive(2);

/// A BasicOCSPResponse.
struct Basic<'a> {
    signed: Signed<'a>,
    /// The content of the SEQUENCE of SingleResponse.
    replies: &'a [u8],
    /// The content of the SEQUENCE of Certificate.
    certs: &'a [u8],
}

fn basic(response: &[u8]) -> Result<Basic<'_>, OcspError> {
    // ENUMERATED.
    const STATUS: u8 = 0x0a;
    let mut parts = der::only(response, SEQUENCE)?;
    match parts.expect(STATUS)?.content {
        [0] => {}
        [number] => return Err(OcspError::NotSuccessful(*number)),
        _ => return Err(OcspError::Malformed),
    }
    let mut bytes = der::only(parts.expect(context(0))?.content, SEQUENCE)?;
    if bytes.expect(OID)?.content != BASIC {
        return Err(OcspError::Malformed);
    }
    let mut basic = der::only(bytes.expect(OCTET_STRING)?.content, SEQUENCE)?;
    let tbs = basic.expect(SEQUENCE)?;
    let algorithm = basic.expect(SEQUENCE)?.content;
    let signature = der::bytes_of_bits(basic.expect(BIT_STRING)?.content)?;
    let certs = match basic.optional(context(0))? {
        Some(list) => Reader::new(list.content).expect(SEQUENCE)?.content,
        None => &[],
    };
    let mut data = Reader::new(tbs.content);
    data.optional(context(0))?;
    // The signer is found by trying certificates, so the form of the responder ID (name or key hash) is all that is
    // checked.
    if !matches!(data.element()?.tag, BY_NAME | BY_KEY) {
        return Err(OcspError::Malformed);
    }
    data.expect(GENERALIZED_TIME)?;
    let replies = data.expect(SEQUENCE)?.content;
    Ok(Basic { signed: Signed { message: tbs.whole, algorithm, signature }, replies, certs })
}

const BY_NAME: u8 = context(1);
const BY_KEY: u8 = context(2);

impl Basic<'_> {
    /// Returns `true` if this certificate is the issuer, an authority above it, or a responder authorized by the
    /// issuer.
    fn is_signed_for(&self, issuers: &[Certificate<'_>], now: i64) -> bool {
        if issuers.iter().any(|issuer| handshake::check(&self.signed, &issuer.key) == Signature::Good) {
            return true;
        }
        let Some(issuer) = issuers.first() else { return false };
        let mut list = Reader::new(self.certs);
        let shown = std::iter::from_fn(|| list.expect(SEQUENCE).ok()).take(SIGNERS_MAX);
        shown.filter_map(|cert| Certificate::parse(cert.whole).ok()).any(|cert| {
            // RFC 6960, section 4.2.2.2: a delegated responder has the extension itself, and the issuer's signature.
            cert.names_as_issuer(issuer)
                && cert.not_before <= now + CLOCK_SKEW
                && cert.not_after >= now - CLOCK_SKEW
                && cert.extensions.extended_key_usage.is_some_and(is_for_ocsp)
                && handshake::check(&cert.signed, &issuer.key) == Signature::Good
                && handshake::check(&self.signed, &cert.key) == Signature::Good
        })
    }
}

fn is_for_ocsp(usages: &[u8]) -> bool {
    let mut list = Reader::new(usages);
    std::iter::from_fn(|| list.expect(OID).ok()).any(|id| id.content == OCSP_SIGNING)
}

/// URL of the OCSP responder, as given in the certificate.
pub fn responder(certificate: &[u8]) -> Option<String> {
    let cert = Certificate::parse(certificate).ok()?;
    let mut list = der::only(cert.extensions.authority_access?, SEQUENCE).ok()?;
    while let Ok(mut access) = list.enter(SEQUENCE) {
        let method = access.expect(OID).ok()?;
        let location = access.element().ok()?;
        if method.content == ACCESS_BY_OCSP && location.tag == URI {
            return String::from_utf8(location.content.to_vec()).ok();
        }
    }
    None
}

/// The issuers of a certificate among others, from its own upwards, as DER.
pub fn issuers_of<'a>(certificate: &[u8], others: &[&'a [u8]]) -> Vec<&'a [u8]> {
    let mut issuers: Vec<&[u8]> = Vec::new();
    while issuers.len() < others.len()
        && let Some(issuer) =
            issuer_of(issuers.last().copied().unwrap_or(certificate), others.iter().copied())
        && !issuers.contains(&issuer)
    {
        issuers.push(issuer);
    }
    issuers
}

/// The issuer of a certificate among others, as DER.
pub fn issuer_of<'a>(certificate: &[u8], others: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let cert = Certificate::parse(certificate).ok()?;
    let mut others = others.filter(|other| *other != certificate);
    others.find(|other| {
        Certificate::parse(other).is_ok_and(|other| {
            cert.names_as_issuer(&other) && handshake::check(&cert.signed, &other.key) == Signature::Good
        })
    })
}

fn sha1(bytes: &[u8]) -> Vec<u8> {
    digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, bytes).as_ref().to_vec()
}

/// An element of some hundred bytes at most.
fn encode(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let len = content.len();
    let mut bytes = vec![tag];
    match len {
        0..0x80 => bytes.push(len as u8),
        0x80..0x100 => bytes.extend([0x81, len as u8]),
        _ => bytes.extend([0x82, (len >> 8) as u8, len as u8]),
    }
    bytes.extend(content);
    bytes
}

#[cfg(test)]
mod tests;
