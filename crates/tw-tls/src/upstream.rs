//! Verification of upstream servers (`proxy_ssl_verify`, and the same for the other upstream protocols).

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, OtherError, SignatureScheme};

use crate::der::{OID, Reader, SEQUENCE, SET, primitive};
use crate::handshake;
use crate::verify::{Trust, Verdict, verify_chain};
use crate::x509::Certificate;

/// Verifies a server, or lets every one pass that has the key of its certificate.
#[derive(Debug)]
pub struct Upstream {
    trust: Option<Trust>,
}

/// Reason for not trusting a server, inside rustls's [`CertificateError::Other`]; in nginx's words, without the
/// prefix `upstream SSL `.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamError {
    /// The certificate cannot be trusted.
    Verify(Verdict),
    /// The certificate is for other names than this.
    Name(String),
}

impl fmt::Display for UpstreamError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verify(verdict) => write!(f, "certificate verify error: ({}:{verdict})", verdict.code()),
            Self::Name(name) => write!(f, "certificate does not match \"{name}\""),
        }
    }
}

impl std::error::Error for UpstreamError {}

impl UpstreamError {
    /// The reason inside of an error of rustls, if it is one of these.
    pub fn of(error: &Error) -> Option<&Self> {
        match error {
            Error::InvalidCertificate(CertificateError::Other(OtherError(inner))) => inner.downcast_ref(),
            _ => None,
        }
    }
}

impl From<UpstreamError> for Error {
    fn from(error: UpstreamError) -> Self {
        CertificateError::Other(OtherError(Arc::new(error))).into()
    }
}

impl Upstream {
    /// `proxy_ssl_verify on`: the certificate can be trusted, and is for the name that rustls was given.
    pub fn verified(trust: Trust) -> Self {
        Self { trust: Some(trust) }
    }

    /// `proxy_ssl_verify off`.
    pub fn unverified() -> Self {
        Self { trust: None }
    }
}

impl ServerCertVerifier for Upstream {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let cert = handshake::parse(end_entity)?;
        if let Some(trust) = &self.trust {
            let chain: Vec<_> = std::iter::once(end_entity).chain(intermediates).cloned().collect();
            match verify_chain(&chain, trust, now.as_secs()) {
                Verdict::Good => {}
                verdict => return Err(UpstreamError::Verify(verdict).into()),
            }
            if !is_for(&cert, server_name) {
                return Err(UpstreamError::Name(server_name.to_str().into_owned()).into());
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        handshake::verify_tls12(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        handshake::verify_tls13(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        handshake::schemes()
    }
}

/// Returns `true` if a certificate is for a server. As in `X509_check_host`, the common name counts if the
/// alternative names contain no host name; an address may also be given there as a name.
fn is_for(cert: &Certificate<'_>, server: &ServerName<'_>) -> bool {
    let address = match server {
        ServerName::IpAddress(address) => Some(IpAddr::from(*address)),
        _ => None,
    };
    let name = server.to_str();
    let mut has_host = false;
    let mut names = Reader::new(cert.extensions.names.unwrap_or_default());
    while let Ok(element) = names.element() {
        if element.tag == HOST {
            has_host = true;
            if matches(element.content, name.as_bytes(), address) {
                return true;
            }
        } else if element.tag == ADDRESS
            && address.is_some_and(|address| is_address(element.content, address))
        {
            return true;
        }
    }
    !has_host && common_names(cert).any(|candidate| matches(candidate, name.as_bytes(), address))
}

/// GeneralName: dNSName and iPAddress.
const HOST: u8 = primitive(2);
const ADDRESS: u8 = primitive(7);

fn is_address(bytes: &[u8], address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => bytes == v4.octets(),
        IpAddr::V6(v6) => bytes == v6.octets(),
    }
}

/// Matches a name by RFC 6125, section 6.4.3: a wildcard must be the whole first label, with at least two labels
/// after it.
fn matches(pattern: &[u8], name: &[u8], address: Option<IpAddr>) -> bool {
    let name = name.strip_suffix(b".").unwrap_or(name);
    if pattern.eq_ignore_ascii_case(name) {
        return !name.is_empty();
    }
    let Some(parent) = pattern.strip_prefix(b"*") else { return false };
    let Some(dot) = name.iter().position(|byte| *byte == b'.') else { return false };
    let labels = parent.split(|byte| *byte == b'.').skip(1);
    address.is_none()
        && dot > 0
        && parent.starts_with(b".")
        && labels.clone().count() >= 2
        && labels.clone().all(|label| !label.is_empty() && !label.contains(&b'*'))
        && name.get(dot..).is_some_and(|rest| rest.eq_ignore_ascii_case(parent))
}

/// The values of the attributes CN of a subject.
fn common_names<'a>(cert: &Certificate<'a>) -> impl Iterator<Item = &'a [u8]> {
    let mut sets = Reader::new(cert.subject).enter(SEQUENCE).unwrap_or(Reader::new(&[]));
    std::iter::from_fn(move || sets.enter(SET).ok()).filter_map(|mut set| {
        let mut attribute = set.enter(SEQUENCE).ok()?;
        let id = attribute.expect(OID).ok()?;
        let value = attribute.element().ok()?;
        (id.content == [0x55, 0x04, 0x03]).then_some(value.content)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (pattern, name, expected) in [
            ("example.com", "example.com", true),
            ("EXAMPLE.com", "example.COM", true),
            ("example.com", "example.com.", true),
            ("example.com", "www.example.com", false),
            ("*.example.com", "www.example.com", true),
            ("*.example.com", "a.www.example.com", false),
            ("*.example.com", "example.com", false),
            ("*.example.com", ".example.com", false),
            ("*.com", "example.com", false),
            ("*", "example", false),
            ("w*.example.com", "www.example.com", false),
            ("*.*.com", "www.example.com", false),
            ("*..com", "www..com", false),
            ("", "", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes(), None), expected, "{pattern} {name}");
        }
        let address: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(matches(b"127.0.0.1", b"127.0.0.1", Some(address)));
        assert!(!matches(b"*.0.0.1", b"127.0.0.1", Some(address)));
        assert!(is_address(&[127, 0, 0, 1], address) && !is_address(&[127, 0, 0, 1, 0], address));
    }
}
