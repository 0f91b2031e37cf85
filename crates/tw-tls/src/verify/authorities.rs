//! Trusted certificates, indexed by their subject.

use std::collections::HashMap;
use std::fmt;

use rustls::DistinguishedName;
use rustls::pki_types::CertificateDer;

use crate::x509::Certificate;

/// Certificates that are trusted (`ssl_client_certificate`, `ssl_trusted_certificate`).
pub struct Authorities {
    certs: Vec<CertificateDer<'static>>,
    /// Places in `certs`.
    by_subject: HashMap<Vec<u8>, Vec<usize>>,
}

/// Why certificates or revocation lists cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustError {
    /// The certificate of this number, from 1, is not X.509.
    BadCertificate(usize),
    /// There is no revocation list.
    NoCrl,
    /// The revocation list of this number, from 1, is broken.
    BadCrl(usize),
    /// More bytes than this.
    TooLong(usize),
}

impl fmt::Display for TrustError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadCertificate(number) => write!(f, "certificate {number} is not X.509"),
            Self::NoCrl => {
                f.write_str("there is no revocation list in it: no line \"-----BEGIN X509 CRL-----\"")
            }
            Self::BadCrl(number) => write!(f, "revocation list {number} of the file is broken"),
            Self::TooLong(max) => write!(f, "more than {max} bytes"),
        }
    }
}

impl std::error::Error for TrustError {}

impl Authorities {
    /// Trusts these certificates, and no others.
    ///
    /// # Errors
    /// One of them is not X.509.
    pub fn new(certs: Vec<CertificateDer<'static>>) -> Result<Self, TrustError> {
        let mut by_subject: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (at, der) in certs.iter().enumerate() {
            let cert = Certificate::parse(der).map_err(|_| TrustError::BadCertificate(at + 1))?;
            by_subject.entry(cert.subject.to_vec()).or_default().push(at);
        }
        Ok(Self { certs, by_subject })
    }

    /// Names of acceptable authorities that are sent to clients, in the order of the file.
    pub fn hints(&self) -> Vec<DistinguishedName> {
        let mut hints: Vec<DistinguishedName> = Vec::new();
        for cert in self.certs.iter().filter_map(|der| Certificate::parse(der).ok()) {
            if hints.iter().all(|hint| hint.as_ref() != cert.subject) {
                hints.push(DistinguishedName::from(cert.subject.to_vec()));
            }
        }
        hints
    }

    /// The trusted certificates of this subject.
    pub(super) fn of_subject(&self, subject: &[u8]) -> impl Iterator<Item = Certificate<'_>> {
        let places = self.by_subject.get(subject).map(Vec::as_slice).unwrap_or_default();
        places.iter().filter_map(|at| Certificate::parse(self.certs.get(*at)?).ok())
    }

    /// Returns `true` if the certificate is one of them, byte by byte.
    pub(super) fn has(&self, cert: &Certificate<'_>) -> bool {
        self.of_subject(cert.subject).any(|trusted| trusted.der == cert.der)
    }
}

impl fmt::Debug for Authorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} trusted certificates", self.certs.len())
    }
}
