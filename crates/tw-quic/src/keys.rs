//! Keys of an endpoint, derived from one secret that all loops and processes of an instance share, and connection IDs.
//!
//! A connection ID is one AES block over {identity of the process, number of the loop, random bytes}. Only who has the key can
//! tell them, so IDs of one connection cannot be linked; a datagram that reaches the wrong loop or process is passed on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::cipher::{
    AES_128, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext, UnboundCipherKey,
};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::{hmac, rand};
use quinn_proto as engine;
use tw_base::FatalMutex;

/// Length of connection IDs: one AES block.
pub const CONNECTION_ID_LEN: usize = 16;
/// Length of the token of a stateless reset.
const RESET_TOKEN_LEN: usize = 16;
/// Salt of the derivation of keys.
const SALT: &[u8] = b"tailwater quic host key";

/// Origin of a connection ID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// Identity of the process among those that share the key.
    pub process: u32,
    /// Number of the loop.
    pub event_loop: u8,
}

/// Keys of an endpoint: for connection IDs, stateless resets and address validation tokens.
pub struct HostKeys {
    encrypt: EncryptingKey,
    decrypt: DecryptingKey,
    pub(crate) reset: Arc<hmac::Key>,
    pub(crate) token: Arc<Prk>,
}

impl std::fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKeys")
    }
}

/// Length of a derived key.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl HostKeys {
    /// Derives the keys from a secret, such as the content of `quic_host_key`.
    pub fn derive(secret: &[u8]) -> Arc<Self> {
        let secret = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let mut block = [0; 16];
        fill(&secret, b"connection id", &mut block);
        let cipher = || UnboundCipherKey::new(&AES_128, &block).expect("16 bytes are a key of AES-128");
        let mut reset = [0; 32];
        fill(&secret, b"stateless reset", &mut reset);
        let mut token = [0; 32];
        fill(&secret, b"token", &mut token);
        Arc::new(Self {
            encrypt: EncryptingKey::ecb(cipher()).expect("AES has this mode"),
            decrypt: DecryptingKey::ecb(cipher()).expect("AES has this mode"),
            reset: Arc::new(hmac::Key::new(hmac::HMAC_SHA256, &reset)),
            token: Arc::new(Salt::new(HKDF_SHA256, SALT).extract(&token)),
        })
    }

    /// A new connection ID.
    pub(crate) fn new_id(&self, origin: Origin) -> [u8; CONNECTION_ID_LEN] {
        self.seal(origin)
    }

    /// Token of a stateless reset of a connection ID.
    pub(crate) fn reset_token(&self, id: &[u8]) -> [u8; RESET_TOKEN_LEN] {
        let tag = hmac::sign(&self.reset, id);
        let mut token = [0; RESET_TOKEN_LEN];
        token.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        token
    }

    fn seal(&self, origin: Origin) -> [u8; CONNECTION_ID_LEN] {
        let mut block = [0; CONNECTION_ID_LEN];
        // Without random numbers no handshake succeeds either.
        let _ = rand::fill(&mut block);
        let [a, b, c, d] = origin.process.to_be_bytes();
        block[..5].copy_from_slice(&[a, b, c, d, origin.event_loop]);
        self.encrypt
            .less_safe_encrypt(&mut block, EncryptionContext::None)
            .expect("one block has the right length");
        block
    }

    /// Origin of a connection ID. For one that is not of this key the result is random.
    pub fn origin(&self, id: &[u8]) -> Option<Origin> {
        let mut block: [u8; CONNECTION_ID_LEN] = id.try_into().ok()?;
        let [a, b, c, d, event_loop, ..] = *self.decrypt.decrypt(&mut block, DecryptionContext::None).ok()?
        else {
            return None;
        };
        Some(Origin { process: u32::from_be_bytes([a, b, c, d]), event_loop })
    }
}

fn fill(secret: &Prk, label: &[u8], out: &mut [u8]) {
    let info = [label];
    let okm = secret.expand(&info, Len(out.len())).expect("a key is short");
    okm.fill(out).expect("it has this length");
}

/// Maker of connection IDs, which also notes the origin of one that belongs to another loop or process.
pub(crate) struct ConnectionIds {
    pub(crate) keys: Arc<HostKeys>,
    pub(crate) own: Origin,
    pub(crate) foreign: Arc<ForeignOrigin>,
    /// ID of the next connection, which the client has been told already.
    pub(crate) reserved: Arc<FatalMutex<Option<[u8; CONNECTION_ID_LEN]>>>,
}

/// Origin of the last datagram that was not for this endpoint.
#[derive(Default)]
pub(crate) struct ForeignOrigin {
    last: AtomicU64,
    is_ignored: AtomicBool,
}

/// Bit that marks an origin as present.
const PRESENT: u64 = 1 << 40;

impl ForeignOrigin {
    fn note(&self, origin: Origin) {
        let value = PRESENT | u64::from(origin.process) << 8 | u64::from(origin.event_loop);
        self.last.store(value, Ordering::Relaxed);
    }

    /// Lets IDs of other loops count as own ones.
    pub(crate) fn ignore(&self, is_ignored: bool) {
        self.is_ignored.store(is_ignored, Ordering::Relaxed);
    }

    /// Takes the origin, if there is one.
    pub(crate) fn take(&self) -> Option<Origin> {
        let value = self.last.swap(0, Ordering::Relaxed);
        let [.., a, b, c, d, event_loop] = value.to_be_bytes();
        let process = u32::from_be_bytes([a, b, c, d]);
        (value & PRESENT != 0).then_some(Origin { process, event_loop })
    }
}

impl engine::ConnectionIdGenerator for ConnectionIds {
    fn generate_cid(&mut self) -> engine::ConnectionId {
        let reserved = self.reserved.lock().take();
        engine::ConnectionId::new(&reserved.unwrap_or_else(|| self.keys.seal(self.own)))
    }

    fn validate(&self, id: &engine::ConnectionId) -> Result<(), engine::InvalidCid> {
        match self.keys.origin(id) {
            Some(_) if self.foreign.is_ignored.load(Ordering::Relaxed) => Ok(()),
            // Of this endpoint: the client learns that its connection is lost.
            Some(origin) if origin == self.own => Ok(()),
            Some(origin) => {
                self.foreign.note(origin);
                Err(engine::InvalidCid)
            }
            None => Err(engine::InvalidCid),
        }
    }

    fn cid_len(&self) -> usize {
        CONNECTION_ID_LEN
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_id_tells_its_origin_to_owners_of_the_key() {
        let keys = HostKeys::derive(b"secret");
        let origin = Origin { process: 0xabcd_ef01, event_loop: 7 };
        let (one, two) = (keys.seal(origin), keys.seal(origin));
        assert_ne!(one, two);
        assert_eq!(keys.origin(&one), Some(origin));
        assert_eq!(HostKeys::derive(b"secret").origin(&two), Some(origin));
        assert_ne!(HostKeys::derive(b"other").origin(&one), Some(origin));
        assert_eq!(keys.origin(&one[1..]), None);
    }

    #[test]
    fn foreign_origin_is_taken_once() {
        let foreign = ForeignOrigin::default();
        assert_eq!(foreign.take(), None);
        let origin = Origin { process: u32::MAX, event_loop: 255 };
        foreign.note(origin);
        assert_eq!(foreign.take(), Some(origin));
        assert_eq!(foreign.take(), None);
    }
}
