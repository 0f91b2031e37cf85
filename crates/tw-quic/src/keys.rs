//! Keys of an endpoint, derived from one secret that all loops and processes of an instance share, and connection IDs.
//!
//! ```text
//! connection ID: name of the secret (2) · random bytes (9) · {identity of the process, number of the loop} XOR AES (name, random bytes) (5)
//! ```
//! Only who has the key of the instance can tell the process and the loop, so IDs of one connection cannot be linked; a datagram that reaches
//! the wrong loop or process is passed on.
//!
//! Resets and tokens can have secrets that several servers share and replace ([`SharedHostSecrets`]). The name in an ID finds the one that
//! was current when its client was told the token of its reset, so another server resets a connection that it never knew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use aws_lc_rs::cipher::{AES_128, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use aws_lc_rs::{hmac, rand};
use engine::crypto::{AeadKey, CryptoError, HandshakeTokenKey, HmacKey};
use quinn_proto as engine;
use tw_base::FatalMutex;

/// Length of connection IDs: one AES block.
pub const CONNECTION_ID_LEN: usize = 16;
/// Length of the name of a secret at the beginning of an ID.
const NAME_LEN: usize = 2;
/// Length of the origin at the end of an ID.
const ORIGIN_LEN: usize = 5;
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

/// Keys of one secret for stateless resets and address validation tokens.
pub struct SecretKeys {
    name: [u8; NAME_LEN],
    reset: hmac::Key,
    token: Prk,
}

/// Keys of secrets that several servers share.
#[derive(Debug, Clone, Default)]
pub struct SharedHostKeys {
    /// Keys for new IDs and tokens; `None` while no secret is recent.
    pub current: Option<Arc<SecretKeys>>,
    /// Keys of all secrets that servers still know.
    pub keys: Arc<[Arc<SecretKeys>]>,
}

/// Source of secrets that several servers share and replace. It is called for each connection, so it must not wait.
pub trait SharedHostSecrets: Send + Sync {
    /// Keys of the secrets at this time.
    fn keys(&self) -> SharedHostKeys;
}

/// Keys of an endpoint: for connection IDs, stateless resets and address validation tokens.
pub struct HostKeys {
    encrypt: EncryptingKey,
    own: Arc<SecretKeys>,
    shared: Option<Arc<dyn SharedHostSecrets>>,
}

impl std::fmt::Debug for HostKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HostKeys")
    }
}

impl std::fmt::Debug for SecretKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretKeys")
    }
}

/// Length of a derived key.
struct Len(usize);

impl KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl SecretKeys {
    /// Derives the keys from a secret.
    pub fn derive(secret: &[u8]) -> Self {
        Self::of(&Salt::new(HKDF_SHA256, SALT).extract(secret))
    }

    fn of(secret: &Prk) -> Self {
        let (mut name, mut reset, mut token) = ([0; NAME_LEN], [0; 32], [0; 32]);
        fill(secret, b"name", &mut name);
        fill(secret, b"stateless reset", &mut reset);
        fill(secret, b"token", &mut token);
        Self {
            name,
            reset: hmac::Key::new(hmac::HMAC_SHA256, &reset),
            token: Salt::new(HKDF_SHA256, SALT).extract(&token),
        }
    }
}

impl HostKeys {
    /// Derives the keys from a secret, such as the content of `quic_host_key`.
    pub fn derive(secret: &[u8]) -> Arc<Self> {
        Arc::new(Self::of(secret, None))
    }

    /// Keys with secrets that other servers share, too, for resets and tokens. Those of `secret` are used while there is no recent one of them.
    pub fn shared(secret: &[u8], shared: Arc<dyn SharedHostSecrets>) -> Arc<Self> {
        Arc::new(Self::of(secret, Some(shared)))
    }

    fn of(secret: &[u8], shared: Option<Arc<dyn SharedHostSecrets>>) -> Self {
        let secret = Salt::new(HKDF_SHA256, SALT).extract(secret);
        let mut block = [0; 16];
        fill(&secret, b"connection id", &mut block);
        let cipher = UnboundCipherKey::new(&AES_128, &block).expect("16 bytes are a key of AES-128");
        Self {
            encrypt: EncryptingKey::ecb(cipher).expect("AES has this mode"),
            own: Arc::new(SecretKeys::of(&secret)),
            shared,
        }
    }

    /// Keys for new IDs and tokens.
    fn current(&self) -> Arc<SecretKeys> {
        let shared = self.shared.as_ref().and_then(|shared| shared.keys().current);
        shared.unwrap_or_else(|| self.own.clone())
    }

    /// Keys of a connection ID, by the name of their secret. For an ID that is of no known secret they are any.
    fn keys_of(&self, id: &[u8]) -> Arc<SecretKeys> {
        if id.starts_with(&self.own.name) {
            return self.own.clone();
        }
        let secret_keys = self.shared.as_ref().map(|shared| shared.keys().keys).unwrap_or_default();
        secret_keys.iter().rfind(|keys| id.starts_with(&keys.name)).unwrap_or(&self.own).clone()
    }

    /// A new connection ID.
    pub(crate) fn new_id(&self, origin: Origin) -> [u8; CONNECTION_ID_LEN] {
        let mut id = [0; CONNECTION_ID_LEN];
        // An error is ignored, because without random numbers no handshake succeeds either.
        let _ = rand::fill(&mut id);
        if let Some(name) = id.first_chunk_mut() {
            *name = self.current().name;
        }
        let [a, b, c, d] = origin.process.to_be_bytes();
        let pad = self.pad(&id);
        if let Some(end) = id.last_chunk_mut::<ORIGIN_LEN>() {
            *end = [a, b, c, d, origin.event_loop];
            end.iter_mut().zip(pad).for_each(|(byte, pad)| *byte ^= pad);
        }
        id
    }

    /// Bytes that hide the origin in an ID.
    fn pad(&self, id: &[u8; CONNECTION_ID_LEN]) -> [u8; CONNECTION_ID_LEN] {
        let mut block = *id;
        if let Some(end) = block.last_chunk_mut::<ORIGIN_LEN>() {
            *end = [0; ORIGIN_LEN];
        }
        self.encrypt
            .less_safe_encrypt(&mut block, EncryptionContext::None)
            .expect("one block has the right length");
        block
    }

    /// Token of a stateless reset of a connection ID.
    pub(crate) fn reset_token(&self, id: &[u8]) -> [u8; RESET_TOKEN_LEN] {
        let tag = hmac::sign(&self.keys_of(id).reset, id);
        let mut token = [0; RESET_TOKEN_LEN];
        token.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
        token
    }

    /// Origin of a connection ID. For one that is not of this key the result is random.
    pub fn origin(&self, id: &[u8]) -> Option<Origin> {
        let id: &[u8; CONNECTION_ID_LEN] = id.try_into().ok()?;
        let mut end = *id.last_chunk::<ORIGIN_LEN>()?;
        end.iter_mut().zip(self.pad(id)).for_each(|(byte, pad)| *byte ^= pad);
        let [a, b, c, d, event_loop] = end;
        Some(Origin { process: u32::from_be_bytes([a, b, c, d]), event_loop })
    }
}

/// Keys of resets, for the engine.
pub(crate) struct ResetKey(pub(crate) Arc<HostKeys>);

impl HmacKey for ResetKey {
    fn sign(&self, data: &[u8], out: &mut [u8]) {
        let tag = hmac::sign(&self.0.keys_of(data).reset, data);
        out.iter_mut().zip(tag.as_ref()).for_each(|(to, from)| *to = *from);
    }

    fn signature_len(&self) -> usize {
        32
    }

    fn verify(&self, data: &[u8], signature: &[u8]) -> Result<(), CryptoError> {
        hmac::verify(&self.0.keys_of(data).reset, data, signature).map_err(|_| CryptoError)
    }
}

/// Keys of address validation tokens, for the engine: the current one seals, all open.
pub(crate) struct TokenKey(pub(crate) Arc<HostKeys>);

impl HandshakeTokenKey for TokenKey {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let SharedHostKeys { current, keys: secret_keys } =
            self.0.shared.as_ref().map(|shared| shared.keys()).unwrap_or_default();
        let current = current.unwrap_or_else(|| self.0.own.clone());
        Box::new(TokenCipher {
            cipher: current.token.aead_from_hkdf(random_bytes),
            current,
            own: self.0.own.clone(),
            keys: secret_keys,
            random_bytes: random_bytes.into(),
        })
    }
}

/// Cipher of one token, and what ciphers of other secrets are derived from, if it does not open the token.
struct TokenCipher {
    cipher: Box<dyn AeadKey>,
    current: Arc<SecretKeys>,
    own: Arc<SecretKeys>,
    keys: Arc<[Arc<SecretKeys>]>,
    random_bytes: Box<[u8]>,
}

impl TokenCipher {
    /// Keys other than the current ones.
    fn others(&self) -> impl Iterator<Item = &Arc<SecretKeys>> {
        let all = std::iter::once(&self.own).chain(self.keys.iter());
        all.filter(|keys| !Arc::ptr_eq(keys, &self.current))
    }
}

impl AeadKey for TokenCipher {
    fn seal(&self, data: &mut Vec<u8>, additional_data: &[u8]) -> Result<(), CryptoError> {
        self.cipher.seal(data, additional_data)
    }

    fn open<'a>(&self, data: &'a mut [u8], additional_data: &[u8]) -> Result<&'a mut [u8], CryptoError> {
        if self.others().next().is_none() {
            return self.cipher.open(data, additional_data);
        }
        let sealed = data.to_vec();
        let mut opened = self.cipher.open(data, additional_data).map(|opened| opened.len());
        for keys in self.others() {
            if opened.is_ok() {
                break;
            }
            // A failed attempt may have changed the data.
            data.copy_from_slice(&sealed);
            let cipher = keys.token.aead_from_hkdf(&self.random_bytes);
            opened = cipher.open(data, additional_data).map(|opened| opened.len());
        }
        data.get_mut(..opened?).ok_or(CryptoError)
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
        engine::ConnectionId::new(&reserved.unwrap_or_else(|| self.keys.new_id(self.own)))
    }

    fn validate(&self, id: &engine::ConnectionId) -> Result<(), engine::InvalidCid> {
        match self.keys.origin(id) {
            Some(_) if self.foreign.is_ignored.load(Ordering::Relaxed) => Ok(()),
            // The connection belonged to this endpoint: the client learns that it is lost.
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

    /// Secrets of several servers, which a test replaces.
    #[derive(Default)]
    struct TestSecrets(FatalMutex<SharedHostKeys>);

    impl TestSecrets {
        /// Sets secrets of one byte each, of which the one at `current` is in use.
        fn set(&self, secrets: &[u8], current: Option<usize>) {
            let secret_keys: Vec<_> =
                secrets.iter().map(|byte| Arc::new(SecretKeys::derive(&[*byte]))).collect();
            let current = current.map(|at| secret_keys[at].clone());
            *self.0.lock() = SharedHostKeys { current, keys: secret_keys.into() };
        }
    }

    impl SharedHostSecrets for TestSecrets {
        fn keys(&self) -> SharedHostKeys {
            self.0.lock().clone()
        }
    }

    fn server(own: &[u8]) -> (Arc<TestSecrets>, Arc<HostKeys>) {
        let secrets = Arc::new(TestSecrets::default());
        (secrets.clone(), HostKeys::shared(own, secrets))
    }

    const ORIGIN: Origin = Origin { process: 0xabcd_ef01, event_loop: 7 };

    #[test]
    fn connection_id_tells_its_origin_to_owners_of_the_key() {
        let keys = HostKeys::derive(b"secret");
        let (one, two) = (keys.new_id(ORIGIN), keys.new_id(ORIGIN));
        assert_ne!(one[NAME_LEN..], two[NAME_LEN..]);
        assert_ne!(one[CONNECTION_ID_LEN - ORIGIN_LEN..], two[CONNECTION_ID_LEN - ORIGIN_LEN..]);
        assert_eq!(keys.origin(&one), Some(ORIGIN));
        assert_eq!(HostKeys::derive(b"secret").origin(&two), Some(ORIGIN));
        assert_ne!(HostKeys::derive(b"other").origin(&one), Some(ORIGIN));
        assert_eq!(keys.origin(&one[1..]), None);
    }

    #[test]
    fn reset_tokens_are_equal_on_servers_with_the_secret_of_their_time() {
        let ((one, first), (two, second)) = (server(b"one"), server(b"two"));
        let own = first.new_id(ORIGIN);
        assert_ne!(first.reset_token(&own), second.reset_token(&own));
        for secrets in [&one, &two] {
            secrets.set(&[1, 2], Some(0));
        }
        let id = first.new_id(ORIGIN);
        let token = first.reset_token(&id);
        assert_eq!(second.reset_token(&id), token);
        assert_eq!(first.origin(&id), Some(ORIGIN));
        assert_ne!(second.origin(&id), Some(ORIGIN), "its loops are nobody's business");
        // The reset token is the same after a rotation, on a server whose clock is behind, and in the engine.
        one.set(&[1, 2, 3], Some(1));
        let next = first.new_id(ORIGIN);
        assert_ne!(next[..NAME_LEN], id[..NAME_LEN]);
        assert_eq!(first.reset_token(&id), token);
        assert_eq!(second.reset_token(&next), first.reset_token(&next));
        let mut signed = [0; 32];
        ResetKey(second.clone()).sign(&id, &mut signed);
        assert_eq!(signed[..RESET_TOKEN_LEN], token);
        assert!(ResetKey(first.clone()).verify(&id, &signed).is_ok());
        // An unknown secret gives some token, which no client knows.
        two.set(&[3], Some(0));
        assert_ne!(second.reset_token(&id), token);
        // Without a recent shared secret, the server's own keys are used again.
        one.set(&[1], None);
        assert_eq!(first.new_id(ORIGIN)[..NAME_LEN], own[..NAME_LEN]);
        assert_eq!(first.reset_token(&id), token);
    }

    #[test]
    fn tokens_open_with_every_known_secret() {
        let ((one, first), (two, second)) = (server(b"one"), server(b"two"));
        let seal = |keys: &Arc<HostKeys>| {
            let mut data = b"address".to_vec();
            TokenKey(keys.clone()).aead_from_hkdf(b"nonce").seal(&mut data, &[]).unwrap();
            data
        };
        let open = |keys: &Arc<HostKeys>, data: &[u8]| {
            let mut data = data.to_vec();
            let cipher = TokenKey(keys.clone()).aead_from_hkdf(b"nonce");
            cipher.open(&mut data, &[]).ok().map(|data| data.to_vec())
        };
        let alone = HostKeys::derive(b"alone");
        assert_eq!(open(&alone, &seal(&alone)).as_deref(), Some(&b"address"[..]));
        assert_eq!(open(&alone, &seal(&first)), None);
        let own = seal(&first);
        assert_eq!((open(&first, &own).as_deref(), open(&second, &own)), (Some(&b"address"[..]), None));
        one.set(&[1, 2], Some(1));
        two.set(&[1, 2, 3], Some(2));
        let shared = seal(&first);
        assert_eq!(open(&second, &shared).as_deref(), Some(&b"address"[..]));
        assert_eq!(open(&first, &own).as_deref(), Some(&b"address"[..]));
        assert_eq!(open(&first, &seal(&second)), None, "its secret is not known here yet");
        for at in 0..shared.len() {
            let mut bad = shared.clone();
            bad[at] ^= 1;
            assert_eq!(open(&second, &bad), None, "{at}");
        }
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
