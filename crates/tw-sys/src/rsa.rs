//! Signatures by RSA keys of fewer than 2048 bits, verified by AWS-LC: aws-lc-rs offers PSS, which TLS 1.3 wants, from 2048 bits on.
//! Certificates of clients still have such keys; none of them is trusted.

use std::ffi::c_long;
use std::ptr;

use aws_lc_sys::{
    ERR_clear_error, EVP_DigestVerify, EVP_DigestVerifyInit, EVP_MD, EVP_MD_CTX, EVP_MD_CTX_free,
    EVP_MD_CTX_new, EVP_PKEY, EVP_PKEY_CTX_set_rsa_padding, EVP_PKEY_CTX_set_rsa_pss_saltlen, EVP_PKEY_RSA,
    EVP_PKEY_free, EVP_PKEY_id, EVP_sha256, EVP_sha384, EVP_sha512, RSA_PKCS1_PADDING, RSA_PKCS1_PSS_PADDING,
    RSA_PSS_SALTLEN_DIGEST, d2i_PUBKEY,
};

/// Padding of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// PKCS #1, version 1.5.
    Pkcs1,
    /// PSS, with a salt as long as the digest.
    Pss,
}

/// Hash of the signed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Digest {
    /// SHA-256
    Sha256,
    /// SHA-384
    Sha384,
    /// SHA-512
    Sha512,
}

struct Key(*mut EVP_PKEY);

impl Drop for Key {
    fn drop(&mut self) {
        // SAFETY: it is ours, and null is allowed.
        unsafe { EVP_PKEY_free(self.0) }
    }
}

struct Context(*mut EVP_MD_CTX);

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is ours, and null is allowed.
        unsafe { EVP_MD_CTX_free(self.0) }
    }
}

/// Verifies `signature` of `message` by `key`, a SubjectPublicKeyInfo of RSA. Some 20 microseconds with 1024 bits.
#[must_use]
pub fn has_signed(key: &[u8], padding: Padding, digest: Digest, message: &[u8], signature: &[u8]) -> bool {
    let is_good = verify(key, padding, digest, message, signature).is_some();
    // SAFETY: it is about this thread alone. What is left there would be taken for the error of another call.
    unsafe { ERR_clear_error() }
    is_good
}

fn verify(key: &[u8], padding: Padding, digest: Digest, message: &[u8], signature: &[u8]) -> Option<()> {
    let mut at = key.as_ptr();
    let len = c_long::try_from(key.len()).ok()?;
    // SAFETY: so many bytes are there; `at` is moved behind what was read of them.
    let key = Key(unsafe { d2i_PUBKEY(ptr::null_mut(), &raw mut at, len) });
    if key.0.is_null() {
        return None;
    }
    // SAFETY: it is a key.
    let kind = unsafe { EVP_PKEY_id(key.0) };
    if kind != EVP_PKEY_RSA {
        return None;
    }
    // SAFETY: null is no context, which is looked at.
    let context = Context(unsafe { EVP_MD_CTX_new() });
    if context.0.is_null() {
        return None;
    }
    let mut options = ptr::null_mut();
    let engine = ptr::null_mut();
    let digest = method(digest);
    // SAFETY: context and key live until the end; `options` belongs to the context.
    good(unsafe { EVP_DigestVerifyInit(context.0, &raw mut options, digest, engine, key.0) })?;
    let padded = match padding {
        Padding::Pkcs1 => RSA_PKCS1_PADDING,
        Padding::Pss => RSA_PKCS1_PSS_PADDING,
    };
    // SAFETY: they are those of a context for a key of RSA.
    good(unsafe { EVP_PKEY_CTX_set_rsa_padding(options, padded) })?;
    if padding == Padding::Pss {
        // SAFETY: the same.
        good(unsafe { EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST) })?;
    }
    let (signature, signature_len) = (signature.as_ptr(), signature.len());
    // SAFETY: so many bytes are there of both, and the context was made ready.
    good(unsafe { EVP_DigestVerify(context.0, signature, signature_len, message.as_ptr(), message.len()) })
}

fn method(digest: Digest) -> *const EVP_MD {
    match digest {
        // SAFETY: it is a constant.
        Digest::Sha256 => unsafe { EVP_sha256() },
        // SAFETY: it is a constant.
        Digest::Sha384 => unsafe { EVP_sha384() },
        // SAFETY: it is a constant.
        Digest::Sha512 => unsafe { EVP_sha512() },
    }
}

fn good(result: i32) -> Option<()> {
    (result == 1).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key of 1024 bits.
    const KEY: &[u8] = &hex::<162>(
        "30819f300d06092a864886f70d010101050003818d0030818902818100bf7d63fedb98323ee4bce276b060ba252e50370856\
         e264bb5ed537c3ae98ec3de02aae85f0303fdc932a92b309fa0616c1e91ba6d1f93345c61ce5e576b0c3346c7829f7cdbecb\
         5312d50e0d1296e4c0f10862413856a242c0ecf3484f9e74ae46e423f30a37b1884acb6313ea387f79fa35365429eb990cf0\
         71fa31343106c70203010001",
    );
    const MESSAGE: &[u8] = b"message";
    const PKCS1_SHA256: &[u8] = &hex::<128>(
        "2ab5650c43c67a3e3ea0e0432b8772f31d8422f1542256286af27fce3df86b014736878bec8f2741274d10b9f070841e939d\
         5e8e646d5e42a5c73638990283d590118e6cbc4c353a3bd9ddfd0018575d904e6d048977cbac27bae4d28f89d450f79972f9\
         08c08a261f6ec23dd4f7fa8b7d6f3f6e4d6437e69dda266fee17b6b6",
    );
    const PSS_SHA256: &[u8] = &hex::<128>(
        "23917c8e9307154e56cf2546e637f0be2273ebb8fba5af33635af7e5e91f909958e11de0b38e150994059f0e53beceed6f9f\
         07c2c53b56a70d87c63ed9134ada9de3180cf505bd8b5e01e1aad202de1e639ea822cb3d0effc8daa29d6ab335de14d8f95a\
         060d9c36df1931721c49fac174de98684516b08d6d37e1ef8633fb13",
    );

    const fn hex<const LEN: usize>(text: &str) -> [u8; LEN] {
        const fn digit(byte: u8) -> u8 {
            if byte >= b'a' { byte - b'a' + 10 } else { byte - b'0' }
        }
        let text = text.as_bytes();
        let mut bytes = [0; LEN];
        let mut at = 0;
        while at < LEN {
            bytes[at] = digit(text[2 * at]) * 16 + digit(text[2 * at + 1]);
            at += 1;
        }
        bytes
    }

    #[test]
    fn a_signature_is_good_for_its_key_message_padding_and_digest() {
        let of = |padding, signature| has_signed(KEY, padding, Digest::Sha256, MESSAGE, signature);
        assert!(of(Padding::Pkcs1, PKCS1_SHA256));
        assert!(of(Padding::Pss, PSS_SHA256));
        assert!(!of(Padding::Pss, PKCS1_SHA256));
        assert!(!of(Padding::Pkcs1, PSS_SHA256));
        assert!(!of(Padding::Pkcs1, b""));
        assert!(!has_signed(KEY, Padding::Pss, Digest::Sha384, MESSAGE, PSS_SHA256));
        assert!(!has_signed(KEY, Padding::Pkcs1, Digest::Sha512, MESSAGE, PKCS1_SHA256));
        assert!(!has_signed(KEY, Padding::Pss, Digest::Sha256, b"another", PSS_SHA256));
        assert!(!has_signed(b"no key", Padding::Pss, Digest::Sha256, MESSAGE, PSS_SHA256));
        let cut = &KEY[..KEY.len() - 1];
        assert!(!has_signed(cut, Padding::Pss, Digest::Sha256, MESSAGE, PSS_SHA256));
    }
}
