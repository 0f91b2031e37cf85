//! Keys and JSON Web Tokens: signed and encrypted by the rules of RFC 7515, 7516 and 7518, or as a test breaks them.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{self, EncryptionContext, PaddedBlockEncryptingKey, UnboundCipherKey};
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der, PublicKeyX509Der};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::key_wrap::{self, AesKek, KeyWrap};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{
    KeyPair as RsaKeyPair, KeySize, OAEP_SHA1_MGF1SHA1, OAEP_SHA256_MGF1SHA256, OAEP_SHA384_MGF1SHA384,
    OAEP_SHA512_MGF1SHA512, OaepPublicEncryptingKey, PublicEncryptingKey,
};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaPublicKeyComponents,
};
use aws_lc_rs::{hmac, rand};
use serde_json::{Map, Value, json};

use crate::acme::jws;

/// Bytes in base64 for URLs, without padding.
#[must_use]
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    jws::text(bytes.as_ref())
}

/// Decodes base64 for URLs; empty if the text is malformed.
#[must_use]
pub fn from_base64url(text: &str) -> Vec<u8> {
    jws::bytes(text)
}

/// Key that signs and encrypts.
pub struct TokenKey {
    id: Option<String>,
    secret: Secret,
}

enum Secret {
    Symmetric(Vec<u8>),
    /// The pair; and `n`, `e`, `d`, `p`, `q`, `dp`, `dq`, `qi`.
    Rsa(Box<RsaKeyPair>, Vec<Vec<u8>>),
    Ecdsa(EcdsaKeyPair, &'static str),
    Ed25519(Ed25519KeyPair),
}

/// Members of an RSA key after one another, as PKCS #1 has them.
const RSA_MEMBERS: [&str; 8] = ["n", "e", "d", "p", "q", "dp", "dq", "qi"];

impl TokenKey {
    /// A shared secret.
    #[must_use]
    pub fn symmetric(id: &str, secret: impl Into<Vec<u8>>) -> Self {
        Self::new(id, Secret::Symmetric(secret.into()))
    }

    /// A new RSA key of 2048 bits.
    ///
    /// # Panics
    /// There is no randomness.
    #[must_use]
    pub fn rsa(id: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        let sealed = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).expect("a key");
        let parts = pkcs8_integers(sealed.as_ref());
        Self::new(id, Secret::Rsa(Box::new(pair), parts))
    }

    /// A new key on `P-256`, `P-384` or `P-521`.
    ///
    /// # Panics
    /// There is no such curve here.
    #[must_use]
    pub fn ecdsa(id: &str, curve: &'static str) -> Self {
        let algorithm = match curve {
            "P-256" => &ECDSA_P256_SHA256_FIXED_SIGNING,
            "P-384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
            "P-521" => &ECDSA_P521_SHA512_FIXED_SIGNING,
            other => panic!("no curve {other}"),
        };
        Self::new(id, Secret::Ecdsa(EcdsaKeyPair::generate(algorithm).expect("a key"), curve))
    }

    /// A new Ed25519 key.
    ///
    /// # Panics
    /// There is no randomness.
    #[must_use]
    pub fn ed25519(id: &str) -> Self {
        Self::new(id, Secret::Ed25519(Ed25519KeyPair::generate().expect("a key")))
    }

    fn new(id: &str, secret: Secret) -> Self {
        Self { id: Some(id.to_owned()).filter(|id| !id.is_empty()), secret }
    }

    /// JWK of the public key, or of the shared secret.
    #[must_use]
    pub fn jwk(&self) -> Value {
        self.with_id(match &self.secret {
            Secret::Symmetric(key) => json!({ "kty": "oct", "k": base64url(key) }),
            Secret::Rsa(_, parts) => {
                json!({ "kty": "RSA", "n": base64url(&parts[0]), "e": base64url(&parts[1]) })
            }
            Secret::Ecdsa(pair, curve) => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                json!({ "kty": "EC", "crv": curve, "x": base64url(x), "y": base64url(y) })
            }
            Secret::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "x": base64url(pair.public_key().as_ref()) })
            }
        })
    }

    /// Public key in PEM.
    ///
    /// # Panics
    /// The key is a shared secret.
    #[must_use]
    pub fn public_pem(&self) -> String {
        let der = match &self.secret {
            Secret::Symmetric(_) => panic!("a shared secret has no public key"),
            Secret::Rsa(pair, _) => AsDer::<PublicKeyX509Der<'_>>::as_der(pair.public_key()),
            Secret::Ecdsa(pair, _) => AsDer::<PublicKeyX509Der<'_>>::as_der(pair.public_key()),
            Secret::Ed25519(pair) => AsDer::<PublicKeyX509Der<'_>>::as_der(pair.public_key()),
        };
        let mut text = base64url(der.expect("a key").as_ref()).replace('-', "+").replace('_', "/");
        while !text.len().is_multiple_of(4) {
            text.push('=');
        }
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    /// JWK of the whole key.
    #[must_use]
    pub fn private_jwk(&self) -> Value {
        let mut jwk = self.jwk();
        if let Secret::Rsa(_, parts) = &self.secret {
            for (name, part) in RSA_MEMBERS.iter().zip(parts) {
                jwk[*name] = base64url(part).into();
            }
        }
        jwk
    }

    fn with_id(&self, mut object: Value) -> Value {
        if let Some(id) = &self.id {
            object["kid"] = id.as_str().into();
        }
        object
    }

    /// A token with these claims.
    #[must_use]
    pub fn sign(&self, algorithm: &str, claims: &Value) -> String {
        self.sign_with(algorithm, &json!({}), claims.to_string())
    }

    /// A token with more in its header, whose payload may be anything.
    #[must_use]
    pub fn sign_with(&self, algorithm: &str, header: &Value, payload: impl AsRef<[u8]>) -> String {
        let header = self.header(&json!({ "alg": algorithm }), header);
        let message = format!("{}.{}", base64url(header.to_string()), base64url(payload));
        let signature = self.signature(algorithm, message.as_bytes());
        format!("{message}.{}", base64url(signature))
    }

    fn header(&self, first: &Value, more: &Value) -> Value {
        let mut header = Map::new();
        for object in [&self.with_id(first.clone()), more] {
            header.extend(object.as_object().cloned().unwrap_or_default());
        }
        header.into()
    }

    /// The signature of a message. An algorithm that does not fit the key signs as if it did: with an empty signature.
    fn signature(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match (&self.secret, algorithm) {
            (Secret::Symmetric(key), "HS256" | "HS384" | "HS512") => hmac(algorithm, key, message),
            (Secret::Rsa(pair, _), _) => {
                let encoding: &'static dyn aws_lc_rs::signature::RsaEncoding = match algorithm {
                    "RS256" => &RSA_PKCS1_SHA256,
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => return Vec::new(),
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signature).expect("a signature");
                signature
            }
            (Secret::Ecdsa(pair, _), _) => {
                pair.sign(&random, message).expect("a signature").as_ref().to_vec()
            }
            (Secret::Ed25519(pair), _) => pair.sign(message).as_ref().to_vec(),
            (Secret::Symmetric(_), _) => Vec::new(),
        }
    }

    /// An encrypted token with this content.
    ///
    /// # Panics
    /// The algorithm does not fit the key.
    #[must_use]
    pub fn encrypt(&self, algorithm: &str, content: &str, more: &Value, payload: impl AsRef<[u8]>) -> String {
        let mut header = self.header(&json!({ "alg": algorithm, "enc": content }), more);
        let key = match &self.secret {
            Secret::Symmetric(key) if algorithm == "dir" => key.clone(),
            _ => random_bytes(content_key_size(content)),
        };
        let encrypted_key = match (&self.secret, algorithm) {
            (_, "dir") => Vec::new(),
            (Secret::Symmetric(kek), "A128KW" | "A256KW") => {
                let cipher = if algorithm == "A128KW" { &key_wrap::AES_128 } else { &key_wrap::AES_256 };
                let mut out = vec![0; key.len() + 8];
                AesKek::new(cipher, kek).expect("a key").wrap(&key, &mut out).expect("room").to_vec()
            }
            (Secret::Symmetric(kek), _) => {
                let nonce = random_bytes(12);
                let (sealed, tag) = seal_gcm(kek, &nonce, b"", &key);
                header["iv"] = base64url(nonce).into();
                header["tag"] = base64url(tag).into();
                sealed
            }
            (Secret::Rsa(_, parts), _) => encrypt_by_rsa(algorithm, parts, &key),
            _ => panic!("this key does not encrypt"),
        };
        let header = base64url(header.to_string());
        let (nonce, ciphertext, tag) = seal(content, &key, header.as_bytes(), payload.as_ref());
        [header, base64url(encrypted_key), base64url(nonce), base64url(ciphertext), base64url(tag)].join(".")
    }
}

/// A set of keys.
#[must_use]
pub fn key_set<'k>(keys: impl IntoIterator<Item = &'k TokenKey>) -> String {
    let keys: Vec<_> = keys.into_iter().map(TokenKey::jwk).collect();
    json!({ "keys": keys }).to_string()
}

fn hmac(algorithm: &str, key: &[u8], message: &[u8]) -> Vec<u8> {
    let algorithm = match algorithm {
        "HS256" => hmac::HMAC_SHA256,
        "HS384" => hmac::HMAC_SHA384,
        _ => hmac::HMAC_SHA512,
    };
    hmac::sign(&hmac::Key::new(algorithm, key), message).as_ref().to_vec()
}

fn random_bytes(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    rand::fill(&mut bytes).expect("random bytes");
    bytes
}

fn content_key_size(content: &str) -> usize {
    match content {
        "A128GCM" => 16,
        "A192GCM" => 24,
        "A256GCM" | "A128CBC-HS256" => 32,
        "A192CBC-HS384" => 48,
        _ => 64,
    }
}

fn encrypt_by_rsa(algorithm: &str, parts: &[Vec<u8>], key: &[u8]) -> Vec<u8> {
    let oaep = match algorithm {
        "RSA-OAEP" => &OAEP_SHA1_MGF1SHA1,
        "RSA-OAEP-256" => &OAEP_SHA256_MGF1SHA256,
        "RSA-OAEP-384" => &OAEP_SHA384_MGF1SHA384,
        _ => &OAEP_SHA512_MGF1SHA512,
    };
    let public = RsaPublicKeyComponents { n: &parts[0], e: &parts[1] };
    let public: PublicEncryptingKey = public.try_into().expect("a public key");
    let public = OaepPublicEncryptingKey::new(public).expect("a public key");
    let mut out = vec![0; public.ciphertext_size()];
    public.encrypt(oaep, key, &mut out, None).expect("room").to_vec()
}

/// Nonce, ciphertext and tag of a content.
fn seal(content: &str, key: &[u8], authenticated: &[u8], payload: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    if content.ends_with("GCM") {
        let nonce = random_bytes(12);
        let (sealed, tag) = seal_gcm(key, &nonce, authenticated, payload);
        return (nonce, sealed, tag);
    }
    let (mac_key, key) = key.split_at(key.len() / 2);
    let (algorithm, cipher) = match key.len() {
        16 => ("HS256", &cipher::AES_128),
        24 => ("HS384", &cipher::AES_192),
        _ => ("HS512", &cipher::AES_256),
    };
    let nonce: [u8; 16] = random_bytes(16).try_into().expect("16 bytes");
    let key = UnboundCipherKey::new(cipher, key).expect("a key");
    let mut sealed = payload.to_vec();
    PaddedBlockEncryptingKey::cbc_pkcs7(key)
        .and_then(|key| {
            key.less_safe_encrypt(&mut sealed, EncryptionContext::Iv128(FixedLength::from(nonce)))
        })
        .expect("a key");
    let bits = (authenticated.len() as u64 * 8).to_be_bytes();
    let mut tag = hmac(algorithm, mac_key, &[authenticated, &nonce, &sealed, &bits].concat());
    tag.truncate(mac_key.len());
    (nonce.to_vec(), sealed, tag)
}

fn seal_gcm(key: &[u8], nonce: &[u8], authenticated: &[u8], payload: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let algorithm = match key.len() {
        16 => &aead::AES_128_GCM,
        24 => &aead::AES_192_GCM,
        _ => &aead::AES_256_GCM,
    };
    let key = LessSafeKey::new(UnboundKey::new(algorithm, key).expect("a key"));
    let nonce = Nonce::try_assume_unique_for_key(nonce).expect("a nonce");
    let mut sealed = payload.to_vec();
    key.seal_in_place_append_tag(nonce, Aad::from(authenticated), &mut sealed).expect("a tag");
    let tag = sealed.split_off(payload.len());
    (sealed, tag)
}

/// Integers of an RSA key in PKCS #8, without the versions.
fn pkcs8_integers(sealed: &[u8]) -> Vec<Vec<u8>> {
    let mut outer = element(&mut &*sealed);
    // Version, algorithm, key.
    let (_, _, mut key) = (element(&mut outer), element(&mut outer), element(&mut outer));
    let mut inner = element(&mut key);
    element(&mut inner);
    let mut integers = Vec::new();
    while !inner.is_empty() {
        let integer = element(&mut inner);
        integers.push(integer.iter().copied().skip_while(|byte| *byte == 0).collect());
    }
    integers
}

/// Takes the content of the first element of DER.
fn element<'a>(input: &mut &'a [u8]) -> &'a [u8] {
    let (size, start) = match input[1] {
        size @ 0..=127 => (usize::from(size), 2),
        long => {
            let count = usize::from(long & 127);
            let size = input[2..2 + count].iter().fold(0, |size, byte| size << 8 | usize::from(*byte));
            (size, 2 + count)
        }
    };
    let content = &input[start..start + size];
    *input = &input[start + size..];
    content
}

/// SHA-256 of a text in base64 for URLs: the challenge of a code verifier (RFC 7636).
#[must_use]
pub fn code_challenge(verifier: &str) -> String {
    base64url(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, verifier.as_bytes()))
}
