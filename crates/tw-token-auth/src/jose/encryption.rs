//! Encrypted tokens (RFC 7516), in their compact form.
//!
//! All failures of a key are one error, so that nobody learns at which step it failed.

use aws_lc_rs::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey};
use aws_lc_rs::hmac;
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::key_wrap::{self, AesKek, KeyWrap};
use aws_lc_rs::rsa::{OaepAlgorithm, OaepPrivateDecryptingKey};
use tw_http::base64;
use tw_module_support::secret::is_same;
use tw_tls::Zeroizing;

use super::algorithm::{Aes, ContentEncryption, Hash, KeyManagement};
use super::header::{Header, TokenError, decoded};
use super::keys::{KEYS_TRIED_MAX, KeyMaterial, KeySet};

/// Bytes of a nonce and of a tag of GCM (RFC 7518 sections 4.7 and 5.3).
const GCM_NONCE_SIZE: usize = 12;
const GCM_TAG_SIZE: usize = 16;

/// Key of a content.
type ContentKey = Zeroizing<Vec<u8>>;

/// Encrypted token.
pub(crate) struct EncryptedToken {
    pub(super) header: Header,
    /// Header as sent, which the tag authenticates.
    authenticated: Vec<u8>,
    encrypted_key: Vec<u8>,
    nonce: Vec<u8>,
    ciphertext: Vec<u8>,
    tag: Vec<u8>,
    management: KeyManagement,
    content: ContentEncryption,
}

impl EncryptedToken {
    /// Reads the five parts.
    pub(super) fn parse(parts: [&[u8]; 5]) -> Result<Self, TokenError> {
        let [header_text, encrypted_key, nonce, ciphertext, tag] = parts;
        let header = Header::parse(header_text)?;
        // Decompressed content may be far larger than the token that was sent, so `zip` is refused.
        if header.has("zip") {
            return Err(TokenError::Unsupported("zip"));
        }
        let management =
            header.text("alg").and_then(KeyManagement::of).ok_or(TokenError::Unsupported("alg"))?;
        let content =
            header.text("enc").and_then(ContentEncryption::of).ok_or(TokenError::Unsupported("enc"))?;
        Ok(Self {
            authenticated: header_text.to_vec(),
            encrypted_key: decoded(encrypted_key)?,
            nonce: decoded(nonce)?,
            ciphertext: decoded(ciphertext)?,
            tag: decoded(tag)?,
            header,
            management,
            content,
        })
    }

    /// Returns `true` if its decryption takes milliseconds.
    pub(super) fn is_costly(&self) -> bool {
        matches!(self.management, KeyManagement::RsaOaep(_))
    }

    /// Decrypts the content by a key of these sets.
    pub(super) fn decrypt<'k>(&self, sets: impl Iterator<Item = &'k KeySet>) -> Result<Vec<u8>, TokenError> {
        let mut tried = 0;
        for key in sets.flat_map(|set| set.of_encryption(&self.header)) {
            let Some(unwrapped) = self.content_key(key) else { continue };
            tried += 1;
            let content = unwrapped.and_then(|key| self.content(&key));
            match content {
                Some(content) => return Ok(content),
                None if tried == KEYS_TRIED_MAX => break,
                None => {}
            }
        }
        Err(if tried == 0 { TokenError::NoKey(None) } else { TokenError::Undecryptable })
    }

    /// Key of the content by this key, `Some(None)` if it is not the right one, and `None` if it is of another type.
    fn content_key(&self, key: &KeyMaterial) -> Option<Option<ContentKey>> {
        let unwrapped = match (self.management, key) {
            (KeyManagement::Direct, KeyMaterial::Symmetric(key)) => {
                self.encrypted_key.is_empty().then(|| key.clone())
            }
            (KeyManagement::AesKw(aes), KeyMaterial::Symmetric(key)) if key.len() == aes.key_size() => {
                unwrap(aes, key, &self.encrypted_key)
            }
            (KeyManagement::AesGcmKw(aes), KeyMaterial::Symmetric(key)) if key.len() == aes.key_size() => {
                self.unwrap_by_gcm(aes, key)
            }
            (KeyManagement::RsaOaep(algorithm), KeyMaterial::Rsa { private: Some(key), .. }) => {
                unwrap_by_rsa(algorithm, key, &self.encrypted_key)
            }
            _ => return None,
        };
        Some(unwrapped.filter(|key| key.len() == self.content.key_size()))
    }

    /// RFC 7518 section 4.7: nonce and tag are in the header.
    fn unwrap_by_gcm(&self, aes: Aes, key: &[u8]) -> Option<ContentKey> {
        let part = |name| base64::decode_url(self.header.text(name)?.as_bytes()).ok();
        let nonce = part("iv")?;
        let tag = part("tag")?;
        open_gcm(aes, key, &nonce, b"", &self.encrypted_key, &tag).map(Zeroizing::new)
    }

    fn content(&self, key: &[u8]) -> Option<Vec<u8>> {
        match self.content {
            ContentEncryption::Gcm(aes) => {
                open_gcm(aes, key, &self.nonce, &self.authenticated, &self.ciphertext, &self.tag)
            }
            ContentEncryption::CbcHmac(aes, hash) => self.open_cbc(aes, hash, key),
        }
    }

    /// RFC 7518 section 5.2.2.2: the tag is checked before anything is decrypted.
    fn open_cbc(&self, aes: Aes, hash: Hash, key: &[u8]) -> Option<Vec<u8>> {
        let (mac_key, key) = key.split_at_checked(aes.key_size())?;
        let mut mac = hmac::Context::with_key(&hmac::Key::new(hash.hmac(), mac_key));
        for part in [&self.authenticated, &self.nonce, &self.ciphertext] {
            mac.update(part);
        }
        mac.update(&(self.authenticated.len() as u64 * 8).to_be_bytes());
        let tag = mac.sign();
        if !is_same(tag.as_ref().get(..aes.key_size())?, &self.tag) {
            return None;
        }
        let nonce = FixedLength::<16>::try_from(self.nonce.as_slice()).ok()?;
        let key = UnboundCipherKey::new(aes.cipher(), key).ok()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut content = self.ciphertext.clone();
        let size = key.decrypt(&mut content, DecryptionContext::Iv128(nonce)).ok()?.len();
        content.truncate(size);
        Some(content)
    }
}

fn open_gcm(
    aes: Aes,
    key: &[u8],
    nonce: &[u8],
    authenticated: &[u8],
    ciphertext: &[u8],
    tag: &[u8],
) -> Option<Vec<u8>> {
    let nonce = <[u8; GCM_NONCE_SIZE]>::try_from(nonce).ok()?;
    if tag.len() != GCM_TAG_SIZE {
        return None;
    }
    let key = LessSafeKey::new(UnboundKey::new(aes.gcm(), key).ok()?);
    let mut content = [ciphertext, tag].concat();
    let nonce = Nonce::assume_unique_for_key(nonce);
    let size = key.open_in_place(nonce, Aad::from(authenticated), &mut content).ok()?.len();
    content.truncate(size);
    Some(content)
}

/// RFC 3394.
fn unwrap(aes: Aes, key: &[u8], wrapped: &[u8]) -> Option<ContentKey> {
    let cipher = match aes {
        Aes::Bits128 => &key_wrap::AES_128,
        Aes::Bits256 => &key_wrap::AES_256,
        Aes::Bits192 => return None,
    };
    let mut unwrapped = Zeroizing::new(vec![0; wrapped.len()]);
    let size = AesKek::new(cipher, key).ok()?.unwrap(wrapped, &mut unwrapped).ok()?.len();
    unwrapped.truncate(size);
    Some(unwrapped)
}

fn unwrap_by_rsa(
    algorithm: &'static OaepAlgorithm,
    key: &OaepPrivateDecryptingKey,
    encrypted: &[u8],
) -> Option<ContentKey> {
    let mut unwrapped = Zeroizing::new(vec![0; key.min_output_size()]);
    let size = key.decrypt(algorithm, encrypted, &mut unwrapped, None).ok()?.len();
    unwrapped.truncate(size);
    Some(unwrapped)
}
