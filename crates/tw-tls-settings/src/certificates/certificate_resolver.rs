//! Choice of a server's certificate for a client hello, and of the scheme the server signs with.

use std::sync::Arc;

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::{CertifiedKey, Signer, SigningKey};
use rustls::{SignatureAlgorithm, SignatureScheme};
use tw_acme::CurrentCertificate;
use tw_tls::{Cost, Identity};

use super::watched_certificate::WatchedCertificate;
use crate::ocsp::stapling::Stapling;

/// Signature of a handshake.
#[derive(Debug, Clone, Copy)]
pub struct ServerSignature {
    /// Time it takes to make.
    pub cost: Cost,
    /// Scheme; `None` if the client offers none that fits.
    pub scheme: Option<SignatureScheme>,
}

/// Certificates of a server, one for each kind of key.
#[derive(Debug)]
pub(crate) struct CertificateResolver {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) preference: Arc<SignaturePreference>,
}

/// Schemes that a server signs with, and the side whose order counts.
#[derive(Debug, Default)]
pub(crate) struct SignaturePreference {
    /// `None` for all.
    pub(crate) schemes: Option<Vec<SignatureScheme>>,
    pub(crate) order: PreferredSide,
}

/// Side whose order of schemes counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum PreferredSide {
    #[default]
    Client,
    /// `ssl_prefer_server_ciphers on`, as in OpenSSL.
    Server,
}

/// OpenSSL's order of schemes.
const SERVER_ORDER: &[SignatureScheme] = &[
    SignatureScheme::ML_DSA_65,
    SignatureScheme::ML_DSA_87,
    SignatureScheme::ML_DSA_44,
    SignatureScheme::ECDSA_NISTP256_SHA256,
    SignatureScheme::ECDSA_NISTP384_SHA384,
    SignatureScheme::ECDSA_NISTP521_SHA512,
    SignatureScheme::ED25519,
    SignatureScheme::RSA_PSS_SHA256,
    SignatureScheme::RSA_PSS_SHA384,
    SignatureScheme::RSA_PSS_SHA512,
    SignatureScheme::RSA_PKCS1_SHA256,
    SignatureScheme::RSA_PKCS1_SHA384,
    SignatureScheme::RSA_PKCS1_SHA512,
];

impl SignaturePreference {
    /// Schemes that both sides have, the best first.
    fn common(&self, offered: &[SignatureScheme]) -> Vec<SignatureScheme> {
        let has = |of: &[SignatureScheme], scheme: &SignatureScheme| of.contains(scheme);
        let own = self.schemes.as_deref();
        match self.order {
            PreferredSide::Client => {
                let is_own = |scheme: &&SignatureScheme| own.is_none_or(|own| has(own, scheme));
                offered.iter().filter(is_own).copied().collect()
            }
            PreferredSide::Server => {
                let own = own.unwrap_or(SERVER_ORDER);
                own.iter().filter(|scheme| has(offered, scheme)).copied().collect()
            }
        }
    }
}

/// Key that signs with some schemes only.
#[derive(Debug)]
struct RestrictedKey {
    key: Arc<dyn SigningKey>,
    preference: Arc<SignaturePreference>,
}

impl SigningKey for RestrictedKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let common = self.preference.common(offered);
        common.into_iter().find_map(|scheme| self.key.choose_scheme(&[scheme]))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.key.algorithm()
    }

    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.key.public_key()
    }
}

/// Certificate that a client may get.
#[derive(Debug)]
pub(crate) struct Candidate {
    pub(crate) source: CertificateSource,
    /// OCSP stapling, if it is on for the certificate.
    pub(crate) stapling: Option<Arc<Stapling>>,
}

/// Source of a certificate.
#[derive(Debug, Clone)]
pub(crate) enum CertificateSource {
    /// Files or data of the configuration; replaced by a reload only.
    Fixed(Identity),
    /// Watched files.
    Watched(Arc<WatchedCertificate>),
    /// ACME.
    Acme(Arc<CurrentCertificate>),
}

impl CertificateSource {
    /// Current certificate and key.
    pub(crate) fn identity(&self) -> Identity {
        match self {
            Self::Fixed(identity) => identity.clone(),
            Self::Watched(watched) => watched.identity(),
            Self::Acme(current) => current.identity(),
        }
    }

    /// Current certificate and key, unless the certificate is a temporary one.
    pub(crate) fn issued(&self) -> Option<Identity> {
        match self {
            Self::Acme(current) => current.chain().map(|_| current.identity()),
            Self::Fixed(_) | Self::Watched(_) => Some(self.identity()),
        }
    }
}

impl CertificateResolver {
    /// Signature that a client will get.
    pub(crate) fn signature_for(&self, hello: &ClientHello<'_>) -> ServerSignature {
        let offered = hello.signature_schemes();
        let Some((identity, _)) = self.choose(offered) else {
            return ServerSignature { cost: Cost::Fast, scheme: None };
        };
        let signer = match self.preference.schemes {
            None => identity.certified.key.choose_scheme(offered),
            Some(_) => self.restricted(&identity.certified.key).choose_scheme(offered),
        };
        ServerSignature { cost: identity.cost, scheme: signer.map(|signer| signer.scheme()) }
    }

    fn restricted(&self, key: &Arc<dyn SigningKey>) -> RestrictedKey {
        RestrictedKey { key: key.clone(), preference: self.preference.clone() }
    }

    /// Chooses the first certificate that can sign with the best scheme.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<(Identity, &Candidate)> {
        let all: Vec<_> =
            self.candidates.iter().map(|candidate| (candidate.source.identity(), candidate)).collect();
        let signs = |identity: &Identity, scheme| identity.certified.key.choose_scheme(&[scheme]).is_some();
        let common = self.preference.common(schemes);
        common
            .into_iter()
            .find_map(|scheme| all.iter().find(|(identity, _)| signs(identity, scheme)).cloned())
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (identity, candidate) = self.choose(hello.signature_schemes())?;
        let now = || tw_rt::clock::unix().secs.unsigned_abs();
        let stapled = candidate.stapling.as_ref().and_then(|stapling| stapling.stapled(&identity, now()));
        let certified = stapled.unwrap_or(identity.certified);
        if self.preference.schemes.is_none() {
            return Some(certified);
        }
        let CertifiedKey { cert, key, ocsp } = &*certified;
        let key = Arc::new(self.restricted(key));
        Some(Arc::new(CertifiedKey { cert: cert.clone(), key, ocsp: ocsp.clone() }))
    }
}
