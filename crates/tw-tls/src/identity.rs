//! Certificate chain with the matching private key: the identity of a server or a client.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;

use crate::key::{Cost, Key, Kind};
use crate::x509::Certificate;

/// Identity of a server or a client. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Chain and key for rustls.
    pub certified: Arc<CertifiedKey>,
    /// Of which kind the key is.
    pub kind: Kind,
    /// Cost of a signature.
    pub cost: Cost,
    /// End of the validity of the certificate, in seconds since 1970.
    pub not_after: i64,
}

/// Mismatch of chain and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdentityError {
    /// The key does not fit the certificate.
    KeyMismatch,
    /// There is no certificate, or its first one is none.
    NoCertificate,
}

/// Text about the key, for the end of a message.
impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::KeyMismatch => "it does not belong to the certificate",
            Self::NoCertificate => "there is no certificate for it",
        })
    }
}

impl std::error::Error for IdentityError {}

impl Identity {
    /// Makes an identity of a chain, its own certificate first, and a key.
    ///
    /// # Errors
    /// The key does not belong to the first certificate.
    pub fn new(chain: Vec<CertificateDer<'static>>, key: Key) -> Result<Self, IdentityError> {
        let first =
            chain.first().and_then(|der| Certificate::parse(der).ok()).ok_or(IdentityError::NoCertificate)?;
        // A key without a public half would fail at its first signature.
        if key.signing.public_key().is_none_or(|public| public.as_ref() != first.key.whole) {
            return Err(IdentityError::KeyMismatch);
        }
        let cost = key.cost();
        let not_after = first.not_after;
        let Key { signing, kind } = key;
        Ok(Self { certified: Arc::new(CertifiedKey::new(chain, signing)), kind, cost, not_after })
    }

    /// Clone of this identity with an OCSP response, as DER.
    #[must_use]
    pub fn with_staple(&self, response: Option<Vec<u8>>) -> Self {
        let CertifiedKey { cert, key, .. } = &*self.certified;
        let certified = CertifiedKey { cert: cert.clone(), key: Arc::clone(key), ocsp: response };
        Self { certified: Arc::new(certified), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::password::Passwords;
    use crate::testing::{Authority, leaf, leaf_with, rsa_key};

    fn key(pem: &str) -> Key {
        Key::read(pem.as_bytes(), &Passwords::default()).unwrap()
    }

    fn chain(pem: &str) -> Vec<CertificateDer<'static>> {
        crate::chain::chain(pem.as_bytes()).unwrap()
    }

    #[test]
    fn chain_and_key() {
        let root = Authority::new("root");
        let cert = leaf("example.com", &root);
        let identity = Identity::new(chain(&(cert.pem() + &root.pem())), key(&cert.key_pem())).unwrap();
        assert_eq!(
            (identity.kind, identity.cost, identity.certified.cert.len()),
            (Kind::Ecdsa, Cost::Fast, 2)
        );
        assert_eq!(identity.with_staple(Some(vec![1])).certified.ocsp, Some(vec![1]));
        let cert = leaf_with("example.com", &root, rsa_key());
        let identity = Identity::new(chain(&cert.pem()), key(&cert.key_pem())).unwrap();
        assert_eq!((identity.kind, identity.cost), (Kind::Rsa, Cost::Slow));
    }

    #[test]
    fn a_key_of_another_certificate() {
        let root = Authority::new("root");
        let one = leaf("example.com", &root);
        let other = leaf("example.com", &root);
        let error = Identity::new(chain(&one.pem()), key(&other.key_pem())).unwrap_err();
        assert_eq!(error.to_string(), "it does not belong to the certificate");
        // The chain is in the wrong order.
        let error = Identity::new(chain(&(root.pem() + &one.pem())), key(&one.key_pem())).unwrap_err();
        assert_eq!(error, IdentityError::KeyMismatch);
        assert_eq!(Identity::new(Vec::new(), key(&one.key_pem())).unwrap_err(), IdentityError::NoCertificate);
    }
}
