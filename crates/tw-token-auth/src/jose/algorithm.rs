//! Names of algorithms (RFC 7518, RFC 8037).

use aws_lc_rs::aead::{self, AES_128_GCM, AES_192_GCM, AES_256_GCM};
use aws_lc_rs::rsa::{
    OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384, OAEP_SHA512_MGF1SHA512, OaepAlgorithm,
};
use aws_lc_rs::{cipher, hmac};

/// Hash of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256,
    Sha384,
    Sha512,
}

/// Curve of an ECDSA key; it determines the hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Curve {
    P256,
    P384,
    P521,
}

/// `alg` of a signed token. There is none for `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignatureAlgorithm {
    Hmac(Hash),
    RsaPkcs1(Hash),
    RsaPss(Hash),
    Ecdsa(Curve),
    Ed25519,
}

impl SignatureAlgorithm {
    /// The algorithm of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "HS256" => Self::Hmac(Hash::Sha256),
            "HS384" => Self::Hmac(Hash::Sha384),
            "HS512" => Self::Hmac(Hash::Sha512),
            "RS256" => Self::RsaPkcs1(Hash::Sha256),
            "RS384" => Self::RsaPkcs1(Hash::Sha384),
            "RS512" => Self::RsaPkcs1(Hash::Sha512),
            "PS256" => Self::RsaPss(Hash::Sha256),
            "PS384" => Self::RsaPss(Hash::Sha384),
            "PS512" => Self::RsaPss(Hash::Sha512),
            "ES256" => Self::Ecdsa(Curve::P256),
            "ES384" => Self::Ecdsa(Curve::P384),
            "ES512" => Self::Ecdsa(Curve::P521),
            // Ed448 has the first name, too; its keys tell the difference.
            "EdDSA" | "Ed25519" => Self::Ed25519,
            _ => return None,
        })
    }
}

impl Hash {
    /// HMAC with this hash.
    pub(super) fn hmac(self) -> hmac::Algorithm {
        match self {
            Self::Sha256 => hmac::HMAC_SHA256,
            Self::Sha384 => hmac::HMAC_SHA384,
            Self::Sha512 => hmac::HMAC_SHA512,
        }
    }
}

/// Size of an AES key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aes {
    Bits128,
    Bits192,
    Bits256,
}

impl Aes {
    pub(super) fn key_size(self) -> usize {
        match self {
            Self::Bits128 => 16,
            Self::Bits192 => 24,
            Self::Bits256 => 32,
        }
    }

    pub(super) fn gcm(self) -> &'static aead::Algorithm {
        match self {
            Self::Bits128 => &AES_128_GCM,
            Self::Bits192 => &AES_192_GCM,
            Self::Bits256 => &AES_256_GCM,
        }
    }

    pub(super) fn cipher(self) -> &'static cipher::Algorithm {
        match self {
            Self::Bits128 => &cipher::AES_128,
            Self::Bits192 => &cipher::AES_192,
            Self::Bits256 => &cipher::AES_256,
        }
    }
}

/// `alg` of an encrypted token: the source of the key of its content.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyManagement {
    /// The shared key is that of the content.
    Direct,
    /// The key is wrapped (RFC 3394). There is no 192: aws-lc-rs has none, and a wrap of our own would be our own cryptography.
    AesKw(Aes),
    AesGcmKw(Aes),
    RsaOaep(&'static OaepAlgorithm),
}

impl KeyManagement {
    /// The algorithm of this name. `RSA1_5` is refused: its padding tells attackers too much.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "dir" => Self::Direct,
            "A128KW" => Self::AesKw(Aes::Bits128),
            "A256KW" => Self::AesKw(Aes::Bits256),
            "A128GCMKW" => Self::AesGcmKw(Aes::Bits128),
            "A192GCMKW" => Self::AesGcmKw(Aes::Bits192),
            "A256GCMKW" => Self::AesGcmKw(Aes::Bits256),
            "RSA-OAEP" => Self::RsaOaep(&OAEP_SHA1_MGF1SHA1),
            "RSA-OAEP-256" => Self::RsaOaep(&OAEP_SHA256_MGF1SHA256),
            "RSA-OAEP-384" => Self::RsaOaep(&OAEP_SHA384_MGF1SHA384),
            "RSA-OAEP-512" => Self::RsaOaep(&OAEP_SHA512_MGF1SHA512),
            _ => return None,
        })
    }
}

/// `enc` of an encrypted token: the cipher of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContentEncryption {
    Gcm(Aes),
    /// AES-CBC with an HMAC of this hash, of which half is the tag.
    CbcHmac(Aes, Hash),
}

impl ContentEncryption {
    /// The cipher of this name.
    pub(super) fn of(name: &str) -> Option<Self> {
        Some(match name {
            "A128GCM" => Self::Gcm(Aes::Bits128),
            "A192GCM" => Self::Gcm(Aes::Bits192),
            "A256GCM" => Self::Gcm(Aes::Bits256),
            "A128CBC-HS256" => Self::CbcHmac(Aes::Bits128, Hash::Sha256),
            "A192CBC-HS384" => Self::CbcHmac(Aes::Bits192, Hash::Sha384),
            "A256CBC-HS512" => Self::CbcHmac(Aes::Bits256, Hash::Sha512),
            _ => return None,
        })
    }

    /// Bytes of its key: of the HMAC, too, it has one of that size.
    pub(super) fn key_size(self) -> usize {
        match self {
            Self::Gcm(aes) => aes.key_size(),
            Self::CbcHmac(aes, _) => 2 * aes.key_size(),
        }
    }
}
