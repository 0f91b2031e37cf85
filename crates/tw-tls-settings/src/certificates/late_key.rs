//! Keys of RSA whose first signature is made when a handshake needs one.
//!
//! At the first signature the library computes more numbers of the key, which takes longer than reading it. A configuration with many
//! keys would be slow to load, and the master, which loads it as well, never signs. What the library allocates for them is
//! [within](secret::within) the vault, as the key is.

use std::sync::{Arc, OnceLock};

use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use tw_rt::secret;
use tw_tls::{Key, Kind};

/// Time of the first signature with a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstSignature {
    /// Load of the configuration, because event loops sign themselves, and locking memory is not for them.
    WhenLoaded,
    /// In a handshake, which a pool does.
    InHandshake,
}

/// A key, and whether its first signature has been made. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct LateKey(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    key: Key,
    first_signature: OnceLock<()>,
}

impl LateKey {
    pub(super) fn wrap(key: Key) -> Self {
        Self(Arc::new(Shared { key, first_signature: OnceLock::new() }))
    }

    /// The key for an identity.
    pub(super) fn key(&self) -> Key {
        let Key { signing, kind } = &self.0.key;
        match kind {
            Kind::Rsa => Key { signing: Arc::new(self.clone()), kind: *kind },
            // Another one has no more to compute.
            _ => Key { signing: signing.clone(), kind: *kind },
        }
    }

    /// Makes the first signature, unless it has been made. May wait, for the lock of memory.
    pub(super) fn make_first_signature(&self) {
        self.0.first_signature.get_or_init(|| secret::within(|| self.0.key.make_first_signature()));
    }
}

impl SigningKey for LateKey {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let signer = self.0.key.signing.choose_scheme(offered)?;
        match self.0.first_signature.get() {
            Some(()) => Some(signer),
            None => Some(Box::new(LateSigner { key: self.clone(), signer })),
        }
    }

    fn public_key(&self) -> Option<rustls::pki_types::SubjectPublicKeyInfoDer<'_>> {
        self.0.key.signing.public_key()
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.key.signing.algorithm()
    }
}

#[derive(Debug)]
struct LateSigner {
    key: LateKey,
    signer: Box<dyn Signer>,
}

impl Signer for LateSigner {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.key.make_first_signature();
        self.signer.sign(message)
    }

    fn scheme(&self) -> SignatureScheme {
        self.signer.scheme()
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::tls::Authority;
    use tw_tls::Passwords;

    use super::*;

    #[test]
    fn first_signature_is_made_once() {
        let schemes = [SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256];
        for (made, is_late) in [
            (Authority::new().certify_rsa(&["a.example"]), true),
            (Authority::new().certify(&["a.example"]), false),
        ] {
            let late = LateKey::wrap(Key::read(made.key.as_bytes(), &Passwords::default()).unwrap());
            let key = late.key();
            assert_eq!(key.signing.public_key(), late.public_key());
            assert!(late.0.first_signature.get().is_none());
            let signed = key.signing.choose_scheme(&schemes).unwrap().sign(b"message").unwrap();
            assert!(!signed.is_empty());
            assert_eq!(late.0.first_signature.get().is_some(), is_late);
        }
    }
}
