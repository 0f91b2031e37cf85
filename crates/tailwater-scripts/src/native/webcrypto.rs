//! Native functions of WebCrypto (`crypto.subtle`): ciphers, key derivation, signatures and random bytes.

use std::num::NonZeroU32;
use std::rc::Rc;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{
    OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512,
    OaepAlgorithm, OaepPrivateDecryptingKey, OaepPublicEncryptingKey, PrivateDecryptingKey,
    PublicEncryptingKey,
};
use aws_lc_rs::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, RsaKeyPair, RsaPssSaltLength,
    RsaSignatureEncoding, UnparsedPublicKey, VerificationAlgorithm,
};
use aws_lc_rs::{constant_time, hkdf, pbkdf2, rand};
use rquickjs::{Ctx, Exception, Object, Value};

use super::aes;
use super::bytes;
use super::function::natives;
use crate::state::State;

/// Size of a random buffer, and of derived bits, in bytes.
const DERIVED_SIZE_MAX: usize = 65_536;
/// `SubjectPublicKeyInfo` in front of the bytes of a key of Ed25519.
const ED25519_PREFIX_SIZE: usize = 12;

/// An operation that the library refuses; WebCrypto says nothing else about it.
pub(super) struct Refused;

impl<T: std::error::Error> From<T> for Refused {
    fn from(_: T) -> Self {
        Self
    }
}

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        random_bytes(size: usize);
        is_equal(a: Value<'js>, b: Value<'js>);
        cipher(mode: String, is_encrypted: bool, key: Value<'js>, data: Value<'js>, parameters: Object<'js>);
        pbkdf2(hash: String, secret: Value<'js>, salt: Value<'js>, count: u32, size: usize);
        hkdf(hash: String, secret: Value<'js>, salt: Value<'js>, info: Value<'js>, size: usize);
        sign(algorithm: String, key: Value<'js>, data: Value<'js>);
        verify(algorithm: String, key: Value<'js>, signature: Value<'js>, data: Value<'js>);
        oaep(hash: String, is_encrypted: bool, key: Value<'js>, data: Value<'js>, label: Value<'js>);
    }
    Ok(())
}

/// The bytes of an operation as a value, or an exception.
pub(super) fn output<'js>(ctx: &Ctx<'js>, result: Result<Vec<u8>, Refused>) -> rquickjs::Result<Value<'js>> {
    match result {
        Ok(output) => bytes::array(ctx, &output),
        Err(Refused) => Err(refused(ctx)),
    }
}

/// The exception of an operation that the library refuses.
pub(super) fn refused(ctx: &Ctx<'_>) -> rquickjs::Error {
    Exception::throw_message(ctx, "cryptographic operation failed")
}

/// Length of derived bits, for [`hkdf`].
struct Size(usize);

impl hkdf::KeyType for Size {
    fn len(&self) -> usize {
        self.0
    }
}

fn derive_hkdf(hash: &str, secret: &[u8], salt: &[u8], info: &[u8], size: usize) -> Result<Vec<u8>, Refused> {
    let algorithm = match hash {
        "SHA-1" => hkdf::HKDF_SHA1_FOR_LEGACY_USE_ONLY,
        "SHA-256" => hkdf::HKDF_SHA256,
        "SHA-384" => hkdf::HKDF_SHA384,
        "SHA-512" => hkdf::HKDF_SHA512,
        _ => return Err(Refused),
    };
    let mut derived = vec![0; size.min(DERIVED_SIZE_MAX)];
    let key = hkdf::Salt::new(algorithm, salt).extract(secret);
    key.expand(&[info], Size(derived.len()))?.fill(&mut derived)?;
    Ok(derived)
}

fn derive_pbkdf2(
    hash: &str,
    secret: &[u8],
    salt: &[u8],
    count: u32,
    size: usize,
) -> Result<Vec<u8>, Refused> {
    let algorithm = match hash {
        "SHA-1" => pbkdf2::PBKDF2_HMAC_SHA1,
        "SHA-256" => pbkdf2::PBKDF2_HMAC_SHA256,
        "SHA-384" => pbkdf2::PBKDF2_HMAC_SHA384,
        "SHA-512" => pbkdf2::PBKDF2_HMAC_SHA512,
        _ => return Err(Refused),
    };
    let mut derived = vec![0; size.min(DERIVED_SIZE_MAX)];
    pbkdf2::derive(algorithm, NonZeroU32::new(count).ok_or(Refused)?, salt, secret, &mut derived);
    Ok(derived)
}

/// Signature by a private key in PKCS#8. The names of algorithms are those of `webcrypto.js`.
fn sign(algorithm: &str, key: &[u8], data: &[u8]) -> Result<Vec<u8>, Refused> {
    if algorithm == "Ed25519" {
        return Ok(Ed25519KeyPair::from_pkcs8_maybe_unchecked(key)?.sign(data).as_ref().to_vec());
    }
    if let Some(algorithm) = ecdsa_signing(algorithm) {
        let key = EcdsaKeyPair::from_private_key_der(algorithm, key)?;
        return Ok(key.sign(&SystemRandom::new(), data)?.as_ref().to_vec());
    }
    let encoding = rsa_signing(algorithm).ok_or(Refused)?;
    let key = RsaKeyPair::from_pkcs8(key)?;
    let mut output = vec![0; key.public_modulus_len()];
    key.sign(encoding, &SystemRandom::new(), data, &mut output)?;
    Ok(output)
}

/// Returns true if [`sign`] knows an algorithm.
fn is_signing(algorithm: &str) -> bool {
    algorithm == "Ed25519" || ecdsa_signing(algorithm).is_some() || rsa_signing(algorithm).is_some()
}

fn rsa_signing(algorithm: &str) -> Option<&'static RsaSignatureEncoding> {
    Some(match algorithm {
        "RSASSA-PKCS1-v1_5 SHA-256" => &signature::RSA_PKCS1_SHA256,
        "RSASSA-PKCS1-v1_5 SHA-384" => &signature::RSA_PKCS1_SHA384,
        "RSASSA-PKCS1-v1_5 SHA-512" => &signature::RSA_PKCS1_SHA512,
        _ => return pss_signing(algorithm),
    })
}

fn ecdsa_signing(algorithm: &str) -> Option<&'static EcdsaSigningAlgorithm> {
    Some(match algorithm {
        "P-256 SHA-256" => &signature::ECDSA_P256_SHA256_FIXED_SIGNING,
        "P-384 SHA-384" => &signature::ECDSA_P384_SHA384_FIXED_SIGNING,
        "P-521 SHA-256" => &signature::ECDSA_P521_SHA256_FIXED_SIGNING,
        "P-521 SHA-384" => &signature::ECDSA_P521_SHA384_FIXED_SIGNING,
        "P-521 SHA-512" => &signature::ECDSA_P521_SHA512_FIXED_SIGNING,
        _ => return None,
    })
}

fn verification(algorithm: &str) -> Option<&'static dyn VerificationAlgorithm> {
    Some(match algorithm {
        "Ed25519" => &signature::ED25519,
        "P-256 SHA-256" => &signature::ECDSA_P256_SHA256_FIXED,
        "P-384 SHA-384" => &signature::ECDSA_P384_SHA384_FIXED,
        "P-521 SHA-256" => &signature::ECDSA_P521_SHA256_FIXED,
        "P-521 SHA-384" => &signature::ECDSA_P521_SHA384_FIXED,
        "P-521 SHA-512" => &signature::ECDSA_P521_SHA512_FIXED,
        "RSASSA-PKCS1-v1_5 SHA-1" => &signature::RSA_PKCS1_1024_8192_SHA1_FOR_LEGACY_USE_ONLY,
        "RSASSA-PKCS1-v1_5 SHA-256" => &signature::RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY,
        "RSASSA-PKCS1-v1_5 SHA-384" => &signature::RSA_PKCS1_2048_8192_SHA384,
        "RSASSA-PKCS1-v1_5 SHA-512" => &signature::RSA_PKCS1_1024_8192_SHA512_FOR_LEGACY_USE_ONLY,
        _ => return pss_verification(algorithm),
    })
}

/// Algorithms of RSA-PSS by their names, which end in the length of the salt.
macro_rules! pss {
    ($name:expr, $sha256:ident, $sha384:ident, $sha512:ident, $($length:literal)*) => {
        match $name.rsplit_once(' ')? {
            $(
                ("RSA-PSS SHA-256", stringify!($length)) => pss!($sha256, $length),
                ("RSA-PSS SHA-384", stringify!($length)) => pss!($sha384, $length),
                ("RSA-PSS SHA-512", stringify!($length)) => pss!($sha512, $length),
            )*
            _ => return None,
        }
    };
    ($algorithm:ident, $length:literal) => {
        &const { signature::$algorithm.with_pss_salt_length(RsaPssSaltLength::Custom($length)) }
    };
}

fn pss_signing(name: &str) -> Option<&'static RsaSignatureEncoding> {
    Some(pss!(name, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, 0 16 20 32 48 64))
}

fn pss_verification(name: &str) -> Option<&'static dyn VerificationAlgorithm> {
    Some(pss!(
        name,
        RSA_PSS_2048_8192_SHA256,
        RSA_PSS_2048_8192_SHA384,
        RSA_PSS_2048_8192_SHA512,
        0 16 20 32 48 64
    ))
}

fn oaep(hash: &str, is_encrypted: bool, key: &[u8], data: &[u8], label: &[u8]) -> Result<Vec<u8>, Refused> {
    let algorithm: &'static OaepAlgorithm = match hash {
        "SHA-1" => &OAEP_SHA1_MGF1SHA1,
        "SHA-256" => &OAEP_SHA256_MGF1SHA256,
        "SHA-384" => &OAEP_SHA384_MGF1SHA384,
        "SHA-512" => &OAEP_SHA512_MGF1SHA512,
        _ => return Err(Refused),
    };
    let label = (!label.is_empty()).then_some(label);
    if is_encrypted {
        let key = OaepPublicEncryptingKey::new(PublicEncryptingKey::from_der(key)?)?;
        let mut output = vec![0; key.ciphertext_size()];
        let size = key.encrypt(algorithm, data, &mut output, label)?.len();
        output.truncate(size);
        return Ok(output);
    }
    let key = OaepPrivateDecryptingKey::new(PrivateDecryptingKey::from_pkcs8(key)?)?;
    let mut output = vec![0; key.min_output_size()];
    let size = key.decrypt(algorithm, data, &mut output, label)?.len();
    output.truncate(size);
    Ok(output)
}

impl State {
    fn random_bytes<'js>(&self, ctx: &Ctx<'js>, size: usize) -> rquickjs::Result<Value<'js>> {
        let mut random = vec![0; size.min(DERIVED_SIZE_MAX)];
        let filled = rand::fill(&mut random).map_err(Refused::from);
        output(ctx, filled.map(|()| random))
    }

    /// Compares bytes in a time that depends on their length only.
    fn is_equal<'js>(&self, ctx: &Ctx<'js>, a: Value<'js>, b: Value<'js>) -> rquickjs::Result<bool> {
        let (a, b) = (self.bytes(ctx, &a)?, self.bytes(ctx, &b)?);
        Ok(constant_time::verify_slices_are_equal(&a, &b).is_ok())
    }

    fn cipher<'js>(
        &self,
        ctx: &Ctx<'js>,
        mode: String,
        is_encrypted: bool,
        key: Value<'js>,
        data: Value<'js>,
        parameters: Object<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let work = if is_encrypted { aes::encrypt } else { aes::decrypt };
        let iv = self.bytes(ctx, &parameters.get("iv")?)?;
        let aad = self.bytes(ctx, &parameters.get("aad")?)?;
        let size: Option<usize> = parameters.get("size")?;
        let parameters = aes::Parameters { iv: &iv, aad: &aad, size: size.unwrap_or_default() };
        output(ctx, work(&mode, &self.bytes(ctx, &key)?, &parameters, self.bytes(ctx, &data)?))
    }

    fn pbkdf2<'js>(
        &self,
        ctx: &Ctx<'js>,
        hash: String,
        secret: Value<'js>,
        salt: Value<'js>,
        count: u32,
        size: usize,
    ) -> rquickjs::Result<Value<'js>> {
        output(ctx, derive_pbkdf2(&hash, &self.bytes(ctx, &secret)?, &self.bytes(ctx, &salt)?, count, size))
    }

    fn hkdf<'js>(
        &self,
        ctx: &Ctx<'js>,
        hash: String,
        secret: Value<'js>,
        salt: Value<'js>,
        info: Value<'js>,
        size: usize,
    ) -> rquickjs::Result<Value<'js>> {
        let (secret, salt) = (self.bytes(ctx, &secret)?, self.bytes(ctx, &salt)?);
        output(ctx, derive_hkdf(&hash, &secret, &salt, &self.bytes(ctx, &info)?, size))
    }

    fn sign<'js>(
        &self,
        ctx: &Ctx<'js>,
        algorithm: String,
        key: Value<'js>,
        data: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        if !is_signing(&algorithm) {
            return Err(Exception::throw_type(ctx, &format!("signatures by {algorithm} are not supported")));
        }
        output(ctx, sign(&algorithm, &self.bytes(ctx, &key)?, &self.bytes(ctx, &data)?))
    }

    fn verify<'js>(
        &self,
        ctx: &Ctx<'js>,
        algorithm: String,
        key: Value<'js>,
        signature: Value<'js>,
        data: Value<'js>,
    ) -> rquickjs::Result<bool> {
        let is_ed25519 = algorithm == "Ed25519";
        let Some(algorithm) = verification(&algorithm) else {
            return Err(Exception::throw_type(ctx, &format!("signatures by {algorithm} are not supported")));
        };
        let mut key = self.bytes(ctx, &key)?;
        if is_ed25519 {
            key.drain(..ED25519_PREFIX_SIZE.min(key.len()));
        }
        let key = UnparsedPublicKey::new(algorithm, key);
        Ok(key.verify(&self.bytes(ctx, &data)?, &self.bytes(ctx, &signature)?).is_ok())
    }

    fn oaep<'js>(
        &self,
        ctx: &Ctx<'js>,
        hash: String,
        is_encrypted: bool,
        key: Value<'js>,
        data: Value<'js>,
        label: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        let (key, data) = (self.bytes(ctx, &key)?, self.bytes(ctx, &data)?);
        output(ctx, oaep(&hash, is_encrypted, &key, &data, &self.bytes(ctx, &label)?))
    }
}
