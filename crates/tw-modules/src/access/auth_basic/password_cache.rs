//! Passwords that were right a moment ago, so that a page with fifty pictures costs one slow hash and not fifty.
//!
//! An entry is a digest: SHA-256 of a secret that is new for every configuration, the hash in the file and the
//! password. A changed hash in the file gives another digest, so a changed password is forgotten at once. The digest is
//! useless without the secret, which is in the same memory: an attacker who reads it could try guesses faster than the
//! hash in the file allows for [`REMEMBER_MS`], but could read the passwords of requests there as well. Only right
//! passwords are remembered; a wrong guess costs the slow hash every time.

use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tw_base::FatalMutex;
use tw_module_support::zone::ZoneTable;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Right passwords remembered by a configuration.
    ///
    /// Most passwords that are remembered; the least recently used is forgotten first.
    pub(super) const REMEMBERED_MAX: u64 = 4096, count, "the one used longest ago is hashed again";
    /// Time a right password is remembered.
    ///
    /// Lifetime of a remembered password, in milliseconds.
    pub(super) const REMEMBER_MS: u64 = 60_000, millis, "it is hashed again";
}

/// Right passwords, shared by all loops. Its lock is held for a look-up.
pub(super) struct PasswordCache {
    secret: [u8; 32],
    until: FatalMutex<ZoneTable<Instant>>,
}

/// Digest of a remembered password.
#[derive(Clone, Copy)]
pub(super) struct PasswordDigest([u8; 32]);

impl PasswordCache {
    /// Remembers nothing yet. Asks the system for a secret.
    pub(super) fn new() -> Result<Self, rustix::io::Errno> {
        let mut secret = [0; 32];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self { secret, until: FatalMutex::new(ZoneTable::new(REMEMBERED_MAX)) })
    }

    /// Token of a password and the hash it was checked against.
    pub(super) fn token(&self, hash: &[u8], password: &[u8]) -> PasswordDigest {
        let mut sha = Sha256::new();
        sha.update(self.secret);
        sha.update((hash.len() as u64).to_le_bytes());
        sha.update(hash);
        sha.update(password);
        PasswordDigest(sha.finalize().into())
    }

    /// Returns `true` if the password was right a moment ago. Forgets expired ones.
    pub(super) fn has(&self, token: PasswordDigest, now: Instant) -> bool {
        let mut until = self.until.lock();
        while let Some(oldest) = until.oldest()
            && *until.get(oldest) <= now
        {
            until.remove(oldest);
        }
        until.find(&token.0).is_some_and(|id| *until.get(id) > now)
    }

    /// Remembers a right password.
    pub(super) fn keep(&self, token: PasswordDigest, now: Instant) {
        let mut until = self.until.lock();
        if let Some(id) = until.find(&token.0) {
            until.remove(id);
        }
        while until.insert(&token.0, 1, now + Duration::from_millis(REMEMBER_MS)).is_none() {
            match until.oldest() {
                Some(oldest) => until.remove(oldest),
                None => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_passwords_are_remembered_for_a_while() {
        let remembered = PasswordCache::new().unwrap();
        let now = Instant::now();
        let token = |hash: &str, password: &str| remembered.token(hash.as_bytes(), password.as_bytes());
        remembered.keep(token("hash", "word"), now);
        remembered.keep(token("hash", "word"), now);
        assert!(remembered.has(token("hash", "word"), now + Duration::from_millis(REMEMBER_MS - 1)));
        for (hash, password) in [("hash", "worD"), ("hasH", "word"), ("hashw", "ord"), ("", "hashword")] {
            assert!(!remembered.has(token(hash, password), now), "{hash} {password}");
        }
        assert!(!remembered.has(token("hash", "word"), now + Duration::from_millis(REMEMBER_MS)));
        assert!(remembered.until.lock().oldest().is_none());
        let other = PasswordCache::new().unwrap();
        other.keep(remembered.token(b"hash", b"word"), now);
        assert!(!other.has(other.token(b"hash", b"word"), now), "each has a secret of its own");
    }

    #[test]
    fn number_of_passwords_is_bounded() {
        let remembered = PasswordCache::new().unwrap();
        let now = Instant::now();
        for n in 0..REMEMBERED_MAX + 10 {
            remembered.keep(remembered.token(b"hash", &n.to_le_bytes()), now);
        }
        assert!(!remembered.has(remembered.token(b"hash", &0_u64.to_le_bytes()), now));
        assert!(remembered.has(remembered.token(b"hash", &REMEMBERED_MAX.to_le_bytes()), now));
    }
}
