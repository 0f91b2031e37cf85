//! What is found of a certificate, with the numbers and words of OpenSSL 3.

use std::fmt;

/// What is found of a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It can be trusted.
    Good,
    /// It cannot be read.
    Unspecified,
    /// A trusted certificate issued it whose own issuer is not trusted.
    UnableToGetIssuer,
    /// There is no revocation list of its issuer.
    UnableToGetCrl,
    /// Its issuer did not sign it.
    SignatureFailure,
    /// The issuer did not sign the revocation list.
    CrlSignatureFailure,
    /// Its time has not begun.
    NotYetValid,
    /// Its time is over.
    Expired,
    /// The time of the revocation list has not begun.
    CrlNotYetValid,
    /// The time of the revocation list is over.
    CrlExpired,
    /// It issued itself, and is not trusted.
    SelfSigned,
    /// Its path ends with one that issued itself and is not trusted.
    SelfSignedInChain,
    /// Its issuer is not known.
    UnableToGetLocalIssuer,
    /// Its issuer is not known, and no other certificate was shown.
    UnableToVerifyLeaf,
    /// So many certificates of one name were shown that its path was not looked for to the end.
    ChainTooLong,
    /// It was revoked.
    Revoked,
    /// More authorities stand under one than that one allows.
    PathLengthExceeded,
    /// It, or one on its path, is for another purpose; or one on its path is no authority.
    InvalidPurpose,
    /// One on its path may not sign certificates.
    NoCertSign,
    /// An extension that is critical and not known.
    UnhandledCriticalExtension,
    /// An issuer may not sign revocation lists.
    NoCrlSign,
    /// The revocation list has an extension that is critical and not known.
    UnhandledCriticalCrlExtension,
    /// It is for names that an authority on its path may not issue for.
    PermittedViolation,
    /// Its key is too short.
    KeyTooShort,
}

impl Verdict {
    /// Whether it can be trusted.
    pub fn is_good(self) -> bool {
        self == Self::Good
    }

    /// Whether nothing is wrong but that nobody trusted is at its root: what `optional_no_ca` lets pass.
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

    /// OpenSSL's words.
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
