//! Secrets that several servers have in common, each from a time on, for keys that clients bring from one server to another.
//!
//! ```text
//! previous ones ─ open only │ current ─ seals │ next ─ known everywhere before its time
//! ```
//! Whoever distributes them sets the list; whoever needs keys derives them, each purpose with a label of its own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use tw_base::FatalMutex;
use zeroize::Zeroizing;

/// Length of a secret in bytes.
pub const SHARED_SECRET_LEN: usize = 32;
/// Salt of the derivation of keys.
const SALT: &[u8] = b"tailwater shared secret";

/// A secret, and the time from which it is used, in seconds since 1970.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedSecret {
    from: u64,
    bytes: Zeroizing<[u8; SHARED_SECRET_LEN]>,
}

impl fmt::Debug for SharedSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedSecret(from {})", self.from)
    }
}

/// Length of a derived key.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl SharedSecret {
    /// Secret that is used from a time on, in seconds since 1970.
    pub fn new(from: u64, bytes: [u8; SHARED_SECRET_LEN]) -> Self {
        Self { from, bytes: Zeroizing::new(bytes) }
    }

    /// Time from which it is used, in seconds since 1970.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// The secret.
    pub fn bytes(&self) -> &[u8; SHARED_SECRET_LEN] {
        &self.bytes
    }

    /// Derives a key for a purpose.
    ///
    /// # Errors
    /// The key is too long, or the library failed.
    pub fn derive(&self, purpose: &[u8], key: &mut [u8]) -> Result<(), Unspecified> {
        let secret = Salt::new(HKDF_SHA256, SALT).extract(self.bytes.as_slice());
        secret.expand(&[purpose], Len(key.len()))?.fill(key)
    }
}

/// Secrets in the order of their time.
pub struct SharedSecrets {
    secrets: FatalMutex<Arc<[SharedSecret]>>,
    version: AtomicU64,
    age_max: u64,
}

impl fmt::Debug for SharedSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedSecrets").field("age_max", &self.age_max).finish_non_exhaustive()
    }
}

impl SharedSecrets {
    /// No secrets yet. After `age_max`, in seconds, a secret that no other one follows seals nothing more.
    pub fn new(age_max: u64) -> Self {
        Self { secrets: FatalMutex::default(), version: AtomicU64::new(1), age_max }
    }

    /// Replaces the secrets.
    pub fn set(&self, mut secrets: Vec<SharedSecret>) {
        secrets.sort_by_key(SharedSecret::from);
        let mut current = self.secrets.lock();
        *current = secrets.into();
        self.version.fetch_add(1, SeqCst);
    }

    /// Secrets in the order of their time.
    pub fn get(&self) -> Arc<[SharedSecret]> {
        self.secrets.lock().clone()
    }

    /// Number that grows when the secrets are replaced, from 1.
    pub fn version(&self) -> u64 {
        self.version.load(SeqCst)
    }

    /// Age in seconds at which a secret seals nothing more.
    pub fn age_max(&self) -> u64 {
        self.age_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_secret_and_purpose() {
        let derive = |byte: u8, purpose: &[u8]| {
            let mut key = [0; 80];
            SharedSecret::new(1, [byte; SHARED_SECRET_LEN]).derive(purpose, &mut key).unwrap();
            key
        };
        assert_eq!(derive(1, b"a"), derive(1, b"a"));
        assert_ne!(derive(1, b"a"), derive(2, b"a"));
        assert_ne!(derive(1, b"a"), derive(1, b"b"));
        assert_eq!(format!("{:?}", SharedSecret::new(7, [1; 32])), "SharedSecret(from 7)");
    }

    #[test]
    fn replaced_secrets_have_another_version() {
        let secrets = SharedSecrets::new(1);
        let before = secrets.version();
        secrets.set(vec![SharedSecret::new(2, [2; 32]), SharedSecret::new(1, [1; 32])]);
        assert_ne!(secrets.version(), before);
        assert_eq!(secrets.get().iter().map(SharedSecret::from).collect::<Vec<_>>(), [1, 2]);
    }
}
