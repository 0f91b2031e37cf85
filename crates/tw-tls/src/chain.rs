//! Certificates of a PEM text: a chain, or a bundle of authorities.

use std::fmt;

use rustls::pki_types::CertificateDer;

use crate::der::{Reader, SEQUENCE};
use crate::pem::{self, PemError};
use crate::x509::Certificate;

tw_base::limits! {
    /// Limits of configured texts.
    pub(crate) const LIMITS;

    /// Bytes of a certificate file.
    ///
    /// Limit of a chain's size: a chain of hundreds of kilobytes cannot be used in handshakes.
    const CHAIN_SIZE_MAX: usize = 1 << 20, bytes, "the configuration is refused";
    /// Certificates of a certificate file.
    const CHAIN_COUNT_MAX: usize = 100, count, "the configuration is refused";
    /// Bytes of a file of trusted certificates.
    const AUTHORITIES_SIZE_MAX: usize = 16 << 20, bytes, "the configuration is refused";
    /// Certificates of a file of trusted certificates.
    const AUTHORITIES_COUNT_MAX: usize = 10_000, count, "the configuration is refused";
}

// DIFF(nginx): the cause is told in words, not by the function of OpenSSL that would have failed.
/// Why a text has no certificates to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainError {
    /// There is no certificate.
    NoStartLine,
    /// The text is DER, not PEM.
    Der,
    /// There is a private key, and no certificate.
    OnlyKey,
    /// Certificate at this position, from 1, that is not PEM; the reason in OpenSSL's words.
    BadPem(usize, &'static str),
    /// The certificate of this number, from 1, is not X.509.
    BadCertificate(usize),
    /// More bytes than this.
    TooLong(usize),
    /// More certificates than this.
    TooMany(usize),
}

impl fmt::Display for ChainError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStartLine => {
                f.write_str("there is no certificate in it: no line \"-----BEGIN CERTIFICATE-----\"")
            }
            Self::Der => f.write_str("it is in DER: \"openssl x509 -inform der\" makes PEM of it"),
            Self::OnlyKey => f.write_str("there is a private key in it, and no certificate"),
            Self::BadPem(number, reason) => write!(f, "certificate {number} of the file is broken: {reason}"),
            Self::BadCertificate(number) => write!(f, "certificate {number} of the file is not X.509"),
            Self::TooLong(max) => write!(f, "it has more than {max} bytes"),
            Self::TooMany(max) => write!(f, "it has more than {max} certificates"),
        }
    }
}

impl std::error::Error for ChainError {}

/// Certificates of a certificate file: that of the server or client first, then those that lead to its authority.
/// Other sections, such as a key, are skipped.
///
/// # Errors
/// No certificate, or one that is broken, or too much.
pub fn chain(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    certificates(text, CHAIN_SIZE_MAX, CHAIN_COUNT_MAX)
}

/// The certificates of a file of trusted ones, in its order.
///
/// # Errors
/// As [`chain`]; larger bundles are allowed.
pub fn authorities(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    certificates(text, AUTHORITIES_SIZE_MAX, AUTHORITIES_COUNT_MAX)
}

fn certificates(
    text: &[u8],
    size_max: usize,
    count_max: usize,
) -> Result<Vec<CertificateDer<'static>>, ChainError> {
    if text.len() > size_max {
        return Err(ChainError::TooLong(size_max));
    }
    let mut certificate_ders = Vec::new();
    let mut has_key = false;
    for section in pem::sections(text) {
        let number = certificate_ders.len() + 1;
        let bad_pem = |error: PemError| ChainError::BadPem(number, error.text());
        let section = section.map_err(bad_pem)?;
        if !matches!(section.label, "CERTIFICATE" | "X509 CERTIFICATE" | "TRUSTED CERTIFICATE") {
            has_key |= section.label.ends_with("PRIVATE KEY");
            continue;
        }
        if certificate_ders.len() == count_max {
            return Err(ChainError::TooMany(count_max));
        }
        let bytes = section.decode().map_err(bad_pem)?;
        // OpenSSL's trusted certificates have extra data behind them, which is not needed here.
        let bad = |_| ChainError::BadCertificate(number);
        let mut reader = Reader::new(&bytes);
        let der = reader.expect(SEQUENCE).map_err(bad)?.whole;
        if section.label != "TRUSTED CERTIFICATE" {
            reader.end().map_err(bad)?;
        }
        Certificate::parse(der).map_err(bad)?;
        certificate_ders.push(CertificateDer::from(der.to_vec()));
    }
    match certificate_ders.is_empty() {
        false => Ok(certificate_ders),
        true if has_key => Err(ChainError::OnlyKey),
        true if pem::is_der(text) => Err(ChainError::Der),
        true => Err(ChainError::NoStartLine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Authority, leaf};

    #[test]
    fn chains() {
        let root = Authority::new("root");
        let leaf = leaf("example.com", &root);
        let text = format!("{}# a key follows\n{}{}", leaf.pem(), leaf.key_pem(), root.pem());
        assert_eq!(chain(text.as_bytes()).unwrap(), [leaf.der().to_vec().into(), root.der().to_vec().into()]);
        let trusted = leaf.pem().replace("CERTIFICATE", "TRUSTED CERTIFICATE");
        assert_eq!(chain(trusted.as_bytes()).unwrap().len(), 1);
    }

    #[test]
    fn byte_order_marks_lose_no_certificate() {
        let root = Authority::new("root");
        let leaf = leaf("example.com", &root);
        let expected = [leaf.der().to_vec().into(), root.der().to_vec().into()];
        for text in [
            format!("\u{feff}{}\u{feff}{}", leaf.pem(), root.pem()),
            format!("{}\u{feff}{}", leaf.pem().trim_end(), root.pem()),
            format!("{}{}", leaf.pem().trim_end(), root.pem().trim_end()),
        ] {
            assert_eq!(chain(text.as_bytes()).unwrap(), expected, "{text}");
            assert_eq!(authorities(text.as_bytes()).unwrap(), expected, "{text}");
        }
    }

    #[test]
    fn refused_input_is_named() {
        let root = Authority::new("root");
        let good = root.pem();
        let broken = good.replacen('M', "A", 1);
        let letters = good.replacen('M', "*", 1);
        for (text, error) in [
            (String::new(), ChainError::NoStartLine),
            ("nothing of this kind\n".to_owned(), ChainError::NoStartLine),
            (leaf("a", &root).key_pem(), ChainError::OnlyKey),
            ("\x30\x03\x02\x01\x01".to_owned(), ChainError::Der),
            (format!("{good}{broken}"), ChainError::BadCertificate(2)),
            (letters, ChainError::BadPem(1, "what it holds is not base64")),
            (
                format!("{good}-----BEGIN CERTIFICATE-----\nZm9v\n"),
                ChainError::BadPem(2, "its line \"-----END\" is missing or another one"),
            ),
            (
                format!("{good}{}", good.replacen("-----BEGIN", "\u{2014}--BEGIN", 1)),
                ChainError::BadPem(2, "its line \"-----BEGIN\" is missing"),
            ),
            (good.repeat(101), ChainError::TooMany(100)),
            ("x".repeat(CHAIN_SIZE_MAX + 1), ChainError::TooLong(CHAIN_SIZE_MAX)),
        ] {
            assert_eq!(chain(text.as_bytes()), Err(error));
            assert!(!error.to_string().contains("SSL"));
        }
        assert_eq!(authorities(good.repeat(101).as_bytes()).map(|all| all.len()), Ok(101));
    }
}
