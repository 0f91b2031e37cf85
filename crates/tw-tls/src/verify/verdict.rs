//! Result of verifying a certificate, with the numbers and texts of OpenSSL 3.

use std::fmt;

/// Result of verifying a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Trusted.
    Good,
    /// Malformed.
    Unspecified,
    /// A trusted certificate issued it whose own issuer is not trusted.
    UnableToGetIssuer,
    /// There is no revocation list of its issuer.
    UnableToGetCrl,
    /// Not signed by its issuer.
    SignatureFailure,
    /// The issuer did not sign the revocation list.
    CrlSignatureFailure,
    /// Not valid yet.
    NotYetValid,
    /// Expired.
    Expired,
    /// The time of the revocation list has not begun.
    CrlNotYetValid,
    /// The time of the revocation list is over.
    CrlExpired,
    /// Self-signed, and not trusted.
    SelfSigned,
    /// Path that ends with an untrusted self-signed certificate.
    SelfSignedInChain,
    /// Unknown issuer.
    UnableToGetLocalIssuer,
    /// Unknown issuer, and no other certificate was sent.
    UnableToVerifyLeaf,
    /// So many certificates of one name were shown that its path was not looked for to the end.
    ChainTooLong,
    /// Revoked.
    Revoked,
    /// More intermediate authorities than one of them allows.
    PathLengthExceeded,
    /// Wrong purpose of the certificate or of one on its path; or an issuer that is no authority.
    InvalidPurpose,
    /// One on its path may not sign certificates.
    NoCertSign,
    /// An extension that is critical and not known.
    UnhandledCriticalExtension,
    /// An issuer may not sign revocation lists.
    NoCrlSign,
    /// The revocation list has an extension that is critical and not known.
    UnhandledCriticalCrlExtension,
    /// Names that violate the constraints of an authority on the path.
    PermittedViolation,
    /// Key too short.
    KeyTooShort,
}

impl Verdict {
    /// Returns `true` for a trusted certificate.
    pub fn is_good(self) -> bool {
        self == Self::Good
    }

    /// Returns `true` if the only fault is an unknown authority: `optional_no_ca` accepts that.
    pub fn is_unknown_authority(self) -> bool {
        matches!(
            self,
            Self::SelfSigned
                | Self::SelfSignedInChain
                | Self::UnableToGetLocalIssuer
                | Self::UnableToVerifyLeaf
        )
    }

    /// OpenSSL's number (`X509_V_ERR_…`).
    pub fn code(self) -> u32 {
        self.record().0
    }

    /// Text of OpenSSL.
    pub fn text(self) -> &'static str {
        self.record().1
    }

    fn record(self) -> (u32, &'static str) {
        match self {
            Self::Good => (0, "ok"),
            Self::Unspecified => (1, "unspecified certificate verification error"),
            Self::UnableToGetIssuer => (2, "unable to get issuer certificate"),
            Self::UnableToGetCrl => (3, "unable to get certificate CRL"),
            Self::SignatureFailure => (7, "certificate signature failure"),
            Self::CrlSignatureFailure => (8, "CRL signature failure"),
            Self::NotYetValid => (9, "certificate is not yet valid"),
            Self::Expired => (10, "certificate has expired"),
            Self::CrlNotYetValid => (11, "CRL is not yet valid"),
            Self::CrlExpired => (12, "CRL has expired"),
            Self::SelfSigned => (18, "self-signed certificate"),
            Self::SelfSignedInChain => (19, "self-signed certificate in certificate chain"),
            Self::UnableToGetLocalIssuer => (20, "unable to get local issuer certificate"),
            Self::UnableToVerifyLeaf => (21, "unable to verify the first certificate"),
            Self::ChainTooLong => (22, "certificate chain too long"),
            Self::Revoked => (23, "certificate revoked"),
            Self::PathLengthExceeded => (25, "path length constraint exceeded"),
            Self::InvalidPurpose => (26, "unsuitable certificate purpose"),
            Self::NoCertSign => (32, "key usage does not include certificate signing"),
            Self::UnhandledCriticalExtension => (34, "unhandled critical extension"),
            Self::NoCrlSign => (35, "key usage does not include CRL signing"),
            Self::UnhandledCriticalCrlExtension => (36, "unhandled critical CRL extension"),
            Self::PermittedViolation => (47, "permitted subtree violation"),
            Self::KeyTooShort => (66, "EE certificate key too weak"),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
