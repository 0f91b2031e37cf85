//! The key of an account, which signs everything that an authority is asked (RFC 8555, section 6.2).

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use tw_http::base64::encode_url as base64url;
use tw_tls::Key;
use zeroize::Zeroizing;

use crate::error::Error;
use crate::key_type::KeyType;

/// A private key that signs for an account.
pub struct AccountKey {
    pair: Pair,
    algorithm: &'static str,
    /// The public key, its members in the order of their names (RFC 7638, section 3).
    jwk: Value,
}

enum Pair {
    Ecdsa(Box<EcdsaKeyPair>),
    Rsa(Box<RsaKeyPair>),
}

/// Curves: the name, the algorithm of RFC 7518, bytes of a coordinate, and how it signs.
static CURVES: [(&str, &str, usize, &EcdsaSigningAlgorithm); 3] = [
    ("P-256", "ES256", 32, &ECDSA_P256_SHA256_FIXED_SIGNING),
    ("P-384", "ES384", 48, &ECDSA_P384_SHA384_FIXED_SIGNING),
    ("P-521", "ES512", 66, &ECDSA_P521_SHA512_FIXED_SIGNING),
];

impl AccountKey {
    /// A new key, and its text in PEM.
    pub(crate) fn generate(kind: KeyType) -> Result<(Self, Zeroizing<String>), Error> {
        let text = Zeroizing::new(kind.generate()?.serialize_pem());
        Ok((Self::read(text.as_bytes())?, text))
    }

    /// The first key of a text in PEM: PKCS#8, PKCS#1 or SEC1, of a curve or RSA, without a pass phrase.
    ///
    /// # Errors
    /// There is none of these.
    pub fn read(text: &[u8]) -> Result<Self, Error> {
        let der = Key::read_der(text)
            .map_err(|error| Error::Crypto(format!("an account key cannot be read: {error}")))?;
        for (curve, algorithm, size, signing) in CURVES {
            let pair = match &*der {
                PrivateKeyDer::Pkcs8(key) => EcdsaKeyPair::from_pkcs8(signing, key.secret_pkcs8_der()).ok(),
                PrivateKeyDer::Sec1(key) => {
                    EcdsaKeyPair::from_private_key_der(signing, key.secret_sec1_der()).ok()
                }
                _ => None,
            };
            let Some(pair) = pair else { continue };
            // An uncompressed point: 4, x, y.
            let point = pair.public_key().as_ref();
            let (x, y) = point.get(1..).and_then(|point| point.split_at_checked(size)).unwrap_or_default();
            let jwk = json!({ "crv": curve, "kty": "EC", "x": base64url(x), "y": base64url(y) });
            return Ok(Self { pair: Pair::Ecdsa(Box::new(pair)), algorithm, jwk });
        }
        let pair = match &*der {
            PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()).ok(),
            PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()).ok(),
            _ => None,
        };
        let pair = pair.ok_or_else(|| {
            Error::Crypto("an account key is neither of RSA nor of P-256, P-384 or P-521".into())
        })?;
        let (n, e) = rsa_numbers(pair.public_key().as_ref())
            .ok_or_else(|| Error::Crypto("an account key of RSA cannot be taken apart".into()))?;
        let jwk = json!({ "e": base64url(e), "kty": "RSA", "n": base64url(n) });
        Ok(Self { pair: Pair::Rsa(Box::new(pair)), algorithm: "RS256", jwk })
    }

    /// The name of how it signs (RFC 7518, section 3.1).
    pub(crate) fn algorithm(&self) -> &'static str {
        self.algorithm
    }

    /// The public key.
    pub(crate) fn jwk(&self) -> &Value {
        &self.jwk
    }

    /// Returns the thumbprint of the public key for a response to a challenge (RFC 7638).
    pub(crate) fn thumbprint(&self) -> String {
        // An object of serde_json is sorted by names, and written without spaces.
        base64url(digest(&SHA256, self.jwk.to_string().as_bytes()).as_ref())
    }

    /// A signature as JWS has it: of curves both numbers with their full width.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        let failed = |_| Error::Crypto("the account key cannot sign".into());
        match &self.pair {
            Pair::Ecdsa(pair) => {
                pair.sign(&random, message).map(|signature| signature.as_ref().to_vec()).map_err(failed)
            }
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountKey({})", self.algorithm)
    }
}

/// Modulus and exponent of an RSAPublicKey (RFC 8017, appendix A.1.1), without zeros in front.
fn rsa_numbers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (0x30, content, []) = element(der)? else { return None };
    let (0x02, n, rest) = element(content)? else { return None };
    let (0x02, e, []) = element(rest)? else { return None };
    Some((without_zeros(n), without_zeros(e)))
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// Tag and content of the first element of DER, and what follows it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (len, rest) = match first {
        0..0x80 => (usize::from(*first), rest),
        _ => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            let len = digits
                .iter()
                .try_fold(0_usize, |len, digit| len.checked_mul(256)?.checked_add(usize::from(*digit)))?;
            (len, rest)
        }
    };
    let (content, rest) = rest.split_at_checked(len)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_every_kind_sign() {
        for (kind, algorithm, len) in [
            (KeyType::EcdsaP256, "ES256", 64),
            (KeyType::EcdsaP384, "ES384", 96),
            (KeyType::EcdsaP521, "ES512", 132),
            (KeyType::Rsa2048, "RS256", 256),
        ] {
            let (key, text) = AccountKey::generate(kind).unwrap();
            assert_eq!((key.algorithm(), key.sign(b"a").unwrap().len()), (algorithm, len));
            let again = AccountKey::read(text.as_bytes()).unwrap();
            assert_eq!(again.thumbprint(), key.thumbprint());
        }
        assert!(AccountKey::read(b"no key").is_err());
    }

    #[test]
    fn rfc_7638_section_3_1() {
        let n = "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw";
        let (key, _) = AccountKey::generate(KeyType::EcdsaP256).unwrap();
        let key = AccountKey { jwk: json!({ "kty": "RSA", "n": n, "e": "AQAB" }), ..key };
        assert_eq!(key.thumbprint(), "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs");
    }
}
