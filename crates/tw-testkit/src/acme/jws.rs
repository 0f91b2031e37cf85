//! Signed requests (RFC 7515), as an authority checks them.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, EcdsaVerificationAlgorithm,
    RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde_json::{Value, json};

/// Request as received.
pub(super) struct Request {
    pub(super) head: Value,
    pub(super) payload: Value,
    /// Number of the account that sent the request.
    pub(super) account: Option<usize>,
    /// The public key it has to be signed with.
    pub(super) key: Value,
    message: String,
    signature: Vec<u8>,
}

/// Decodes base64url; empty if the text is malformed.
pub(crate) fn bytes(text: &str) -> Vec<u8> {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = Vec::new();
    let mut bits = 0_u32;
    let mut count = 0;
    for byte in text.bytes() {
        let Some(digit) = DIGITS.iter().position(|digit| *digit == byte) else { return Vec::new() };
        bits = bits << 6 | digit as u32;
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

/// Bytes in base64 for URLs.
pub(crate) fn text(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut out = String::new();
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        out.extend((0..=group.len()).map(|at| char::from(DIGITS[(bits >> (18 - 6 * at) & 63) as usize])));
    }
    out
}

/// RFC 7638.
pub(super) fn thumbprint(key: &Value) -> String {
    let names: &[&str] = if key["kty"] == "RSA" { &["e", "kty", "n"] } else { &["crv", "kty", "x", "y"] };
    let members: Vec<_> = names.iter().map(|name| format!("\"{name}\":{}", key[*name])).collect();
    text(digest(&SHA256, format!("{{{}}}", members.join(",")).as_bytes()).as_ref())
}

/// Returns `true` if an account is bound to an external one (RFC 8555, section 7.3.4).
pub(super) fn is_bound(binding: &Value, kid: &str, key: &[u8], account: &Value) -> bool {
    let part = |name: &str| binding[name].as_str().unwrap_or_default();
    let head: Value = serde_json::from_slice(&bytes(part("protected"))).unwrap_or_default();
    let payload: Value = serde_json::from_slice(&bytes(part("payload"))).unwrap_or_default();
    let message = format!("{}.{}", part("protected"), part("payload"));
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    head["alg"] == "HS256"
        && head["kid"] == kid
        && payload == *account
        && hmac::verify(&key, message.as_bytes(), &bytes(part("signature"))).is_ok()
}

impl Request {
    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let whole: Value = serde_json::from_slice(body).ok()?;
        let part = |name: &str| whole[name].as_str();
        let head: Value = serde_json::from_slice(&bytes(part("protected")?)).ok()?;
        // A POST-as-GET request has an empty payload.
        let payload = match part("payload")? {
            "" => json!(null),
            payload => serde_json::from_slice(&bytes(payload)).ok()?,
        };
        let message = format!("{}.{}", part("protected")?, part("payload")?);
        let key = head["jwk"].clone();
        Some(Self { head, payload, account: None, key, message, signature: bytes(part("signature")?) })
    }

    pub(super) fn verify(&self) -> bool {
        let part = |name: &str| bytes(self.key[name].as_str().unwrap_or_default());
        let message = self.message.as_bytes();
        let curve: (&str, &'static EcdsaVerificationAlgorithm) = match self.key["crv"].as_str() {
            Some("P-256") => ("ES256", &ECDSA_P256_SHA256_FIXED),
            Some("P-384") => ("ES384", &ECDSA_P384_SHA384_FIXED),
            Some("P-521") => ("ES512", &ECDSA_P521_SHA512_FIXED),
            _ => {
                let key = RsaPublicKeyComponents { n: part("n"), e: part("e") };
                return self.head["alg"] == "RS256"
                    && key.verify(&RSA_PKCS1_2048_8192_SHA256, message, &self.signature).is_ok();
            }
        };
        let point = [vec![4], part("x"), part("y")].concat();
        self.head["alg"] == curve.0
            && UnparsedPublicKey::new(curve.1, point).verify(message, &self.signature).is_ok()
    }
}
