//! Keys with a pass phrase: PBES2 (RFC 8018) in PKCS#8, and what OpenSSL wrote before it (`Proc-Type: 4,ENCRYPTED`).

use std::num::NonZeroU32;

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptionContext, PaddedBlockDecryptingKey, UnboundCipherKey,
};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2;
use md5::{Digest, Md5};
use zeroize::{Zeroize, Zeroizing};

use super::KeyError;
use crate::der::{self, INTEGER, Malformed, NULL, OCTET_STRING, OID, Reader, SEQUENCE};

/// OpenSSL writes 2,048, others up to a million; ten million take some seconds.
pub(super) const ITERATIONS_MAX: u32 = 10_000_000;

/// A cipher in CBC mode with PKCS#7 padding, and its initialisation vector.
#[derive(Debug)]
struct Cbc {
    cipher: Cipher,
    iv: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cipher {
    Aes128,
    Aes192,
    Aes256,
    DesEde3,
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Self::Aes128 => &AES_128,
            Self::Aes192 => &AES_192,
            Self::Aes256 => &AES_256,
            // Only for reading the output of `openssl genrsa -des3`; nothing is sealed with it.
            #[allow(deprecated)]
            Self::DesEde3 => &aws_lc_rs::cipher::DES_EDE3_FOR_LEGACY_USE_ONLY,
        }
    }

    fn key_len(self) -> usize {
        match self {
            Self::Aes128 => 16,
            Self::Aes192 | Self::DesEde3 => 24,
            Self::Aes256 => 32,
        }
    }
}

impl Cbc {
    /// The plain bytes, if key and padding fit.
    fn open(&self, sealed: &[u8], key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let context = match self.cipher {
            Cipher::DesEde3 => DecryptionContext::Iv64(FixedLength::try_from(self.iv.as_slice()).ok()?),
            _ => DecryptionContext::Iv128(FixedLength::try_from(self.iv.as_slice()).ok()?),
        };
        let key = UnboundCipherKey::new(self.cipher.algorithm(), key).ok()?;
        let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
        let mut bytes = Zeroizing::new(sealed.to_vec());
        let size = key.decrypt(&mut bytes, context).ok()?.len();
        // The padding that is cut off stays in the buffer, which is wiped as a whole.
        bytes.truncate(size);
        Some(bytes)
    }
}

/// An EncryptedPrivateKeyInfo with PBES2.
pub(super) struct Pbes2<'a> {
    salt: &'a [u8],
    iterations: NonZeroU32,
    hash: pbkdf2::Algorithm,
    cbc: Cbc,
    sealed: &'a [u8],
}

impl<'a> Pbes2<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, KeyError> {
        let malformed = |Malformed| KeyError::BadKey("not PKCS#8".to_owned());
        let mut info = der::only(bytes, SEQUENCE).map_err(malformed)?;
        let (scheme, mut parameters) = algorithm(&mut info).map_err(malformed)?;
        let sealed = info.expect(OCTET_STRING).map_err(malformed)?.content;
        if scheme != PBES2 {
            return Err(KeyError::UnknownSeal(
                "only PBES2 is known (openssl pkcs8 -topk8 -v2 aes-256-cbc)".to_owned(),
            ));
        }
        let mut parameters = parameters.enter(SEQUENCE).map_err(malformed)?;
        let (derivation, mut of_derivation) = algorithm(&mut parameters).map_err(malformed)?;
        let (cipher, mut of_cipher) = algorithm(&mut parameters).map_err(malformed)?;
        if derivation != PBKDF2 {
            return Err(KeyError::UnknownSeal("only the key derivation PBKDF2 is known".to_owned()));
        }
        let cipher = CIPHERS.iter().find(|(id, _)| *id == cipher).map(|(_, cipher)| *cipher);
        let cipher = cipher
            .ok_or_else(|| KeyError::UnknownSeal("only AES-CBC and DES-EDE3-CBC are known".to_owned()))?;
        let iv = of_cipher.expect(OCTET_STRING).map_err(malformed)?.content.to_vec();

        let mut of_derivation = of_derivation.enter(SEQUENCE).map_err(malformed)?;
        let salt = of_derivation.expect(OCTET_STRING).map_err(malformed)?.content;
        let iterations =
            der::number(of_derivation.expect(INTEGER).map_err(malformed)?.content).map_err(malformed)?;
        let iterations = NonZeroU32::new(iterations).filter(|count| count.get() <= ITERATIONS_MAX);
        let iterations = iterations.ok_or_else(|| {
            KeyError::UnknownSeal(format!("between 1 and {ITERATIONS_MAX} iterations are known"))
        })?;
        let key_len = of_derivation.optional(INTEGER).map_err(malformed)?;
        if let Some(len) = key_len
            && der::number(len.content).map_err(malformed)? as usize != cipher.key_len()
        {
            return Err(KeyError::UnknownSeal("a key of another length than its cipher's".to_owned()));
        }
        let hash = match of_derivation.is_empty() {
            // RFC 8018, A.2: "prf AlgorithmIdentifier … DEFAULT algid-hmacWithSHA1".
            true => pbkdf2::PBKDF2_HMAC_SHA1,
            false => {
                let (hash, _) = algorithm(&mut of_derivation).map_err(malformed)?;
                let hash = HASHES.iter().find(|(id, _)| *id == hash).map(|(_, hash)| *hash);
                hash.ok_or_else(|| {
                    KeyError::UnknownSeal("only HMAC with SHA-1 and SHA-2 is known".to_owned())
                })?
            }
        };
        Ok(Self { salt, iterations, hash, cbc: Cbc { cipher, iv }, sealed })
    }

    pub(super) fn open(&self, password: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let mut key = Zeroizing::new(vec![0; self.cbc.cipher.key_len()]);
        pbkdf2::derive(self.hash, self.iterations, self.salt, password, &mut key);
        self.cbc.open(self.sealed, &key)
    }
}

/// Parses an AlgorithmIdentifier: its identifier, and its parameters.
fn algorithm<'a>(reader: &mut Reader<'a>) -> Result<(&'a [u8], Reader<'a>), Malformed> {
    let mut parts = reader.enter(SEQUENCE)?;
    let id = parts.expect(OID)?.content;
    parts.optional(NULL)?;
    Ok((id, parts))
}

// 1.2.840.113549.1.5.13 and .12.
const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0d];
const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x05, 0x0c];

// 2.16.840.1.101.3.4.1 and 1.2.840.113549.3.7.
const CIPHERS: &[(&[u8], Cipher)] = &[
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x02], Cipher::Aes128),
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x16], Cipher::Aes192),
    (&[0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x01, 0x2a], Cipher::Aes256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x03, 0x07], Cipher::DesEde3),
];

// 1.2.840.113549.2.
const HASHES: &[(&[u8], pbkdf2::Algorithm)] = &[
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02, 0x07], pbkdf2::PBKDF2_HMAC_SHA1),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02, 0x09], pbkdf2::PBKDF2_HMAC_SHA256),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02, 0x0a], pbkdf2::PBKDF2_HMAC_SHA384),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x02, 0x0b], pbkdf2::PBKDF2_HMAC_SHA512),
];

/// Value of `DEK-Info`: the cipher, and its initialisation vector in hexadecimal digits.
#[derive(Debug)]
pub(super) struct LegacyEncryption(Cbc);

impl LegacyEncryption {
    pub(super) fn parse(info: &str) -> Result<Self, KeyError> {
        let (name, iv) = info.split_once(',').unwrap_or((info, ""));
        let cipher = match name.trim() {
            "AES-128-CBC" => Cipher::Aes128,
            "AES-192-CBC" => Cipher::Aes192,
            "AES-256-CBC" => Cipher::Aes256,
            "DES-EDE3-CBC" => Cipher::DesEde3,
            other => return Err(KeyError::UnknownSeal(other.chars().take(40).collect())),
        };
        let size = if cipher == Cipher::DesEde3 { 8 } else { 16 };
        let iv = unhex(iv.trim().as_bytes())
            .filter(|iv| iv.len() == size)
            .ok_or(KeyError::BadPem("bad iv chars"))?;
        Ok(Self(Cbc { cipher, iv }))
    }

    pub(super) fn open(&self, sealed: &[u8], password: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        // EVP_BytesToKey with one round of MD5: each digest is of the one before, the pass phrase and the salt, which is the
        // beginning of the initialisation vector.
        let salt = self.0.iv.get(..8)?;
        let size = self.0.cipher.key_len();
        let mut key = Zeroizing::new(Vec::with_capacity(size + 16));
        let mut digest = Zeroizing::new([0u8; 16]);
        while key.len() < size {
            let mut hash = Md5::new();
            if !key.is_empty() {
                hash.update(digest.as_slice());
            }
            hash.update(password);
            hash.update(salt);
            let mut made = hash.finalize();
            digest.copy_from_slice(&made);
            made.as_mut_slice().zeroize();
            key.extend_from_slice(digest.as_slice());
        }
        key.truncate(size);
        self.0.open(sealed, &key)
    }
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8));
    if rest.is_empty() { bytes.collect() } else { None }
}
