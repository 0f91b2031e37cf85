//! Configuration of the agent: the issuers, and the certificates of each.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::ClientConfig;
use tw_dns::NameService;
use tw_fleet::Fleet;
use zeroize::Zeroizing;

use crate::challenge_responses::ChallengeResponses;
use crate::current_certificate::CurrentCertificate;
use crate::identifier::Identifier;
use crate::key_type::KeyType;
use crate::url::Url;

/// Issuers and certificates of a configuration.
#[derive(Debug, Default)]
pub struct AcmeConfig {
    /// Issuers with at least one certificate.
    pub works: Vec<IssuerConfig>,
    /// Responses to challenges, for loops to read.
    pub answers: Arc<ChallengeResponses>,
}

/// Issuer with its certificates.
#[derive(Debug, Clone)]
pub struct IssuerConfig {
    /// Issuer of the certificates.
    pub issuer: Arc<Issuer>,
    /// TLS settings of connections to it.
    pub tls: Arc<ClientConfig>,
    /// Resolver of its address.
    pub resolver: NameService,
    /// Deadline of a resolution.
    pub resolver_timeout: Duration,
    /// Certificates to order.
    pub certificates: Vec<CertificateConfig>,
    /// Fleet whose nodes share them.
    pub fleet: Option<Arc<Fleet>>,
}

/// Certificate to order.
#[derive(Debug, Clone)]
pub struct CertificateConfig {
    /// Names of the certificate, at least one.
    pub identifiers: Arc<[Identifier]>,
    /// Kind of its key.
    pub key: KeyType,
    /// Certificate that handshakes read.
    pub slot: Arc<CurrentCertificate>,
}

/// Certificate authority, and the options for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Issuer {
    /// Name of the issuer in the configuration.
    pub name: Box<str>,
    /// URL of the authority's directory.
    pub uri: Url,
    /// Account at the authority.
    pub account: Account,
    /// Kind of challenge that proves control of names.
    pub challenge: Challenge,
    /// True if the first name is also the common name.
    pub common_name: bool,
    /// Preferred chain, by the common name of the issuer of its topmost certificate.
    pub preferred_chain: Option<Box<str>>,
    /// The kind of certificate.
    pub profile: Option<Profile>,
    /// Certificates, in PEM, that authenticate the authority; `None` disables verification.
    pub trusted: Option<Arc<[u8]>>,
    /// Directory in which keys and certificates outlive restarts.
    pub state: Option<PathBuf>,
}

/// An account at an authority.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    /// Account key: one in PEM, or the kind of a generated one.
    pub key: KeySource,
    /// Contact URLs.
    pub contacts: Vec<Box<str>>,
    /// External account that it is bound to.
    pub external: Option<ExternalAccount>,
    /// Acceptance of the terms of service.
    pub terms: TermsOfService,
}

/// Source of a key.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A generated key that is kept in the state directory.
    Generated(KeyType),
    /// A given key, in PEM.
    Given(Zeroizing<Vec<u8>>),
}

/// An account that the authority has by other means (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Key identifier that the authority gave (`kid`).
    pub id: Box<str>,
    /// Secret that both ends know.
    pub key: Zeroizing<Vec<u8>>,
}

/// Acceptance of the terms of service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TermsOfService {
    /// Not accepted: no account is created at an authority with terms of service.
    #[default]
    NotAccepted,
    /// They are accepted.
    Accepted,
}

/// Kinds of challenges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    /// A file over HTTP, on port 80 (RFC 8555, section 8.3).
    Http01,
    /// The certificate of a handshake, on port 443 (RFC 8737).
    TlsAlpn01,
    /// A record in DNS (RFC 8555, section 8.4), which this program creates.
    Dns01(PathBuf),
}

/// Certificate profile of an authority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// Used if the authority has it.
    Preferred(Box<str>),
    /// Required: the order fails without it.
    Required(Box<str>),
}

impl Challenge {
    /// Name of the challenge in the protocol.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
            Self::Dns01(_) => "dns-01",
        }
    }
}

impl fmt::Debug for Issuer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Issuer({} at {})", self.name, self.uri)
    }
}

impl CertificateConfig {
    /// Returns its name in messages: its first identifier.
    pub(crate) fn name(&self) -> String {
        self.identifiers.first().map(ToString::to_string).unwrap_or_default()
    }

    /// Returns the name of its file: the first identifier, and a hash of all.
    pub(crate) fn id(&self) -> String {
        id(&self.identifiers, self.key)
    }
}

/// Returns the name of the file of a certificate with these identifiers.
pub fn id(identifiers: &[Identifier], key: KeyType) -> String {
    let all: Vec<_> = identifiers.iter().map(ToString::to_string).collect();
    let hash = digest(&SHA256, format!("{} {key}", all.join(" ")).as_bytes());
    let hash: String = hash.as_ref().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let first = all.first().map(String::as_str).unwrap_or_default().replace('*', "_");
    // The name of a file has at most 255 bytes, a name of DNS may have as many.
    let first: String = first.chars().take(200).collect();
    format!("{first}-{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files() {
        let of = |words: &[&str], key| {
            let mut all = Vec::new();
            words.iter().for_each(|word| Identifier::add(word, &mut all).unwrap());
            id(&all, key)
        };
        let one = of(&["example.com"], KeyType::EcdsaP256);
        assert!(one.starts_with("example.com-") && one.len() == "example.com-".len() + 16, "{one}");
        assert_ne!(one, of(&["example.com"], KeyType::Rsa2048));
        assert_ne!(one, of(&["example.com", "www.example.com"], KeyType::EcdsaP256));
        assert!(of(&["*.example.com"], KeyType::EcdsaP256).starts_with("_.example.com-"));
    }
}
