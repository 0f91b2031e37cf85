//! Work of the agent: the issuers of a configuration, and the certificates wanted of each.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::ClientConfig;
use tw_dns::NameService;
use zeroize::Zeroizing;

use crate::answers::Answers;
use crate::identifier::Identifier;
use crate::key_type::KeyType;
use crate::slot::Slot;
use crate::url::Url;

/// Everything a configuration wants.
#[derive(Debug, Default)]
pub struct Job {
    /// Each issuer with its certificates; none without.
    pub works: Vec<Work>,
    /// Responses to challenges, for loops to read.
    pub answers: Arc<Answers>,
}

/// An issuer, and what is wanted of it.
#[derive(Debug, Clone)]
pub struct Work {
    /// Issuer of the certificates.
    pub issuer: Arc<Issuer>,
    /// TLS settings of connections to it.
    pub tls: Arc<ClientConfig>,
    /// Resolver of its address.
    pub resolver: NameService,
    /// Deadline of a resolution.
    pub resolver_timeout: Duration,
    /// The certificates.
    pub wanted: Vec<Wanted>,
}

/// A certificate that is wanted.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Names of the certificate, at least one.
    pub identifiers: Arc<[Identifier]>,
    /// Kind of its key.
    pub key: KeyType,
    /// Slot that handshakes read.
    pub slot: Arc<Slot>,
}

/// An authority, and how it is talked to.
#[derive(Clone, PartialEq, Eq)]
pub struct Issuer {
    /// Its name in the configuration.
    pub name: Box<str>,
    /// Its directory.
    pub uri: Url,
    /// Account at the authority.
    pub account: Account,
    /// Kind of challenge that proves control of names.
    pub challenge: Challenge,
    /// True if the first name is also the common name.
    pub common_name: bool,
    /// The topmost certificate of the chain that is preferred, by the common name of who issued it.
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
    /// Its key: one in PEM, or of which kind it is made.
    pub key: KeySource,
    /// URLs of whoever is responsible.
    pub contacts: Vec<Box<str>>,
    /// External account that it is bound to.
    pub external: Option<ExternalAccount>,
    /// Acceptance of the terms of service.
    pub terms: Terms,
}

/// Source of a key.
#[derive(Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A generated key that is kept in the state directory.
    Made(KeyType),
    /// A given key, in PEM.
    Given(Zeroizing<Vec<u8>>),
}

/// An account that the authority has by other means (RFC 8555, section 7.3.4).
#[derive(Clone, PartialEq, Eq)]
pub struct ExternalAccount {
    /// Its name.
    pub id: Box<str>,
    /// Secret that both ends know.
    pub key: Zeroizing<Vec<u8>>,
}

/// Acceptance of the terms of service.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Terms {
    /// Nobody has: an authority that has some is not asked.
    #[default]
    Open,
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
    /// A record in DNS (RFC 8555, section 8.4), which this program makes.
    Dns01(PathBuf),
}

/// A kind of certificate that an authority has a name for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Profile {
    /// If there is one of this name.
    Preferred(Box<str>),
    /// No other will do.
    Required(Box<str>),
}

impl Challenge {
    /// Its name in the protocol.
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

impl Wanted {
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
