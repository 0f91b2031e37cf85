//! Sets of keys (RFC 7517): JWKS, or one JWK.

use std::fmt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rsa::{KeyPair, KeyPairComponents, OaepPrivateDecryptingKey, PrivateDecryptingKey};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519,
    EcdsaVerificationAlgorithm, ParsedPublicKey, RsaPublicKeyComponents,
};
use serde_json::{Map, Value};
use tw_http::base64;
use tw_tls::{NamedCurve, PublicKey, Zeroizing};

use super::algorithm::{Curve, SignatureAlgorithm};
use super::header::Header;

tw_base::limits! {
    /// Limits of this file.
    pub(super) const LIMITS;

    /// Bytes of a set of keys (JWKS).
    ///
    /// Bytes of a set. Those of large identity providers, with certificates, have 20 KB.
    pub(crate) const KEY_SET_SIZE_MAX: usize = 1 << 20, bytes, "the set cannot be used: 500";
    /// Keys of a set of keys (JWKS).
    pub(super) const KEYS_MAX: usize = 128, count, "the set cannot be used: 500";
    /// Keys of a set that are tried for one token; a token that names its key (kid) needs one.
    ///
    /// Keys that are tried for one token: 1 ms of the slowest curve, on a loop.
    pub(super) const KEYS_TRIED_MAX: usize = 4, count, "the token is invalid: 401";
    /// Bits of an RSA key that decrypts tokens.
    ///
    /// Bits of an RSA key that decrypts: 5 ms of a thread.
    pub(super) const RSA_DECRYPTION_BITS_MAX: usize = 4096, count, "the key is not used";
}

/// Bytes of an RSA modulus: RFC 7518 sections 3.3 and 4.3 require 2048 bits, aws-lc takes at most 8192.
const RSA_SIZES: std::ops::RangeInclusive<usize> = 256..=1024;
/// Bytes of an RSA exponent, which aws-lc takes up to 33 bits.
const RSA_EXPONENT_SIZE_MAX: usize = 5;

/// Keys of tokens.
pub(crate) struct KeySet {
    keys: Vec<Key>,
    /// Why the first unusable key of the set is none, for the log.
    unusable: Option<String>,
}

/// One key.
struct Key {
    id: Option<Box<str>>,
    /// `alg`: the only algorithm that it is for.
    algorithm: Option<Box<str>>,
    is_for_signatures: bool,
    is_for_encryption: bool,
    material: KeyMaterial,
}

/// Key by its type (`kty`).
pub(super) enum KeyMaterial {
    Symmetric(Zeroizing<Vec<u8>>),
    Rsa { public: RsaPublicKeyComponents<Vec<u8>>, private: Option<OaepPrivateDecryptingKey> },
    Ec(Curve, ParsedPublicKey),
    Ed25519(ParsedPublicKey),
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeySet({} keys)", self.keys.len())
    }
}

impl KeySet {
    /// Reads a set, or one key. Keys that cannot be used are left out, as RFC 7517 section 5 has it, unless all are such.
    ///
    /// # Errors
    /// A reason for the log.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, String> {
        let document: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        let written_values = match document.get("keys") {
            Some(Value::Array(keys)) => keys.as_slice(),
            None if document.get("kty").is_some() => std::slice::from_ref(&document),
            _ => return Err("it has no list of \"keys\"".to_owned()),
        };
        Self::of_keys(written_values.iter().map(Key::parse))
    }

    /// Reads an object whose members are public keys in PEM by their identifiers. Keys that cannot be used are left out, as in
    /// [`parse`](Self::parse).
    ///
    /// # Errors
    /// A reason for the log.
    pub(crate) fn parse_keyval(text: &[u8]) -> Result<Self, String> {
        let document: Map<String, Value> = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        Self::of_keys(document.iter().map(|(id, pem)| Key::of_pem(id, pem)))
    }

    fn of_keys(written_keys: impl ExactSizeIterator<Item = Result<Key, String>>) -> Result<Self, String> {
        if written_keys.len() > KEYS_MAX {
            return Err(format!("it has {} keys, more than {KEYS_MAX}", written_keys.len()));
        }
        let mut keys = Vec::with_capacity(written_keys.len());
        let mut unusable = None;
        for (at, key) in written_keys.enumerate() {
            match key {
                Ok(key) => keys.push(key),
                Err(why) => {
                    unusable.get_or_insert_with(|| format!("key {} cannot be used: {why}", at + 1));
                }
            }
        }
        match (keys.is_empty(), unusable) {
            (false, unusable) => Ok(Self { keys, unusable }),
            (true, Some(why)) => Err(why),
            (true, None) => Err("it has no keys".to_owned()),
        }
    }

    /// Reason why a key of the set was left out.
    pub(super) fn unusable(&self) -> Option<&str> {
        self.unusable.as_deref()
    }

    /// Keys that may have signed a token by `algorithm`, whatever their type.
    pub(super) fn of_signatures(
        &self,
        header: &Header,
        algorithm: SignatureAlgorithm,
    ) -> impl Iterator<Item = &KeyMaterial> {
        let fits = move |name: &str| SignatureAlgorithm::of(name).is_some_and(|of_key| of_key == algorithm);
        let keys = self.with_id(header.text("kid")).filter(|key| key.is_for_signatures);
        keys.filter(move |key| key.algorithm.as_deref().is_none_or(fits)).map(|key| &key.material)
    }

    /// Keys that may decrypt a token, whatever their type.
    pub(super) fn of_encryption(&self, header: &Header) -> impl Iterator<Item = &KeyMaterial> {
        let algorithm = header.text("alg");
        let content = header.text("enc");
        // For a key that is used directly, `alg` may name the cipher of the content.
        let fits =
            move |name: &str| Some(name) == algorithm || (algorithm == Some("dir") && Some(name) == content);
        let keys = self.with_id(header.text("kid")).filter(|key| key.is_for_encryption);
        keys.filter(move |key| key.algorithm.as_deref().is_none_or(fits)).map(|key| &key.material)
    }

    /// Keys with this identifier, and those that have none; all if the token names none.
    fn with_id(&self, id: Option<&str>) -> impl Iterator<Item = &Key> {
        self.keys.iter().filter(move |key| match (id, &key.id) {
            (Some(id), Some(of_key)) => **of_key == *id,
            _ => true,
        })
    }
}

impl Key {
    /// Public key for signatures.
    fn of_pem(id: &str, pem: &Value) -> Result<Self, String> {
        let pem = pem.as_str().ok_or("it is no text")?;
        Ok(Self {
            id: Some(id.into()),
            algorithm: None,
            is_for_signatures: true,
            is_for_encryption: false,
            material: KeyMaterial::public(PublicKey::from_pem(pem.as_bytes())?)?,
        })
    }

    fn parse(jwk: &Value) -> Result<Self, String> {
        let text = |name: &str| jwk.get(name).and_then(Value::as_str);
        let material = match text("kty") {
            Some("oct") => KeyMaterial::symmetric(jwk)?,
            Some("RSA") => KeyMaterial::rsa(jwk)?,
            Some("EC") => KeyMaterial::ec(jwk)?,
            Some("OKP") => KeyMaterial::okp(jwk)?,
            Some(other) => return Err(format!("unknown type \"{}\"", shown(other))),
            None => return Err("it has no \"kty\"".to_owned()),
        };
        let is_for = |uses: &str, operations: &[&str]| {
            let by_use = text("use").is_none_or(|of_key| of_key == uses);
            let by_operation = match jwk.get("key_ops") {
                Some(Value::Array(of_key)) => {
                    of_key.iter().any(|one| one.as_str().is_some_and(|one| operations.contains(&one)))
                }
                _ => true,
            };
            by_use && by_operation
        };
        Ok(Self {
            id: text("kid").map(Box::from),
            algorithm: text("alg").map(Box::from),
            is_for_signatures: is_for("sig", &["verify"]),
            is_for_encryption: is_for("enc", &["decrypt", "unwrapKey"]),
            material,
        })
    }
}

impl KeyMaterial {
    fn public(key: PublicKey) -> Result<Self, String> {
        match key {
            PublicKey::Rsa { n, e } => Ok(Self::Rsa { public: public_rsa(n, e)?, private: None }),
            PublicKey::Ec(curve, point) => Self::point(
                match curve {
                    NamedCurve::P256 => Curve::P256,
                    NamedCurve::P384 => Curve::P384,
                    NamedCurve::P521 => Curve::P521,
                },
                &point,
            ),
            PublicKey::Ed25519(point) => Self::ed25519(&point),
        }
    }

    fn symmetric(jwk: &Value) -> Result<Self, String> {
        let key = bytes(jwk, "k")?;
        if key.is_empty() {
            Err("\"k\" is empty".to_owned())
        } else {
            Ok(Self::Symmetric(Zeroizing::new(key)))
        }
    }

    fn rsa(jwk: &Value) -> Result<Self, String> {
        let public = public_rsa(number(jwk, "n")?, number(jwk, "e")?)?;
        let private = match jwk.get("d") {
            Some(_) => Some(private_rsa(jwk, &public)?),
            None => None,
        };
        Ok(Self::Rsa { public, private })
    }

    fn ec(jwk: &Value) -> Result<Self, String> {
        let (curve, size) = match jwk.get("crv").and_then(Value::as_str) {
            Some("P-256") => (Curve::P256, 32),
            Some("P-384") => (Curve::P384, 48),
            Some("P-521") => (Curve::P521, 66),
            Some(other) => return Err(format!("unsupported curve \"{}\"", shown(other))),
            None => return Err("it has no \"crv\"".to_owned()),
        };
        let x = bytes(jwk, "x")?;
        let y = bytes(jwk, "y")?;
        if x.len() != size || y.len() != size {
            return Err(format!("the coordinates of this curve have {size} bytes"));
        }
        // SEC 1 section 2.3.3: an uncompressed point.
        Self::point(curve, &[&[4][..], &x, &y].concat())
    }

    /// Key of a point on a curve (SEC 1 section 2.3.3).
    fn point(curve: Curve, point: &[u8]) -> Result<Self, String> {
        let algorithm: &'static EcdsaVerificationAlgorithm = match curve {
            Curve::P256 => &ECDSA_P256_SHA256_FIXED,
            Curve::P384 => &ECDSA_P384_SHA384_FIXED,
            Curve::P521 => &ECDSA_P521_SHA512_FIXED,
        };
        let key = ParsedPublicKey::new(algorithm, point).map_err(|_| "its point is not on the curve")?;
        Ok(Self::Ec(curve, key))
    }

    fn ed25519(point: &[u8]) -> Result<Self, String> {
        let key = ParsedPublicKey::new(&ED25519, point).map_err(|_| "its point is not on the curve")?;
        Ok(Self::Ed25519(key))
    }

    fn okp(jwk: &Value) -> Result<Self, String> {
        match jwk.get("crv").and_then(Value::as_str) {
            Some("Ed25519") => {}
            Some(other) => {
                return Err(format!("unsupported curve \"{}\", only Ed25519 is supported", shown(other)));
            }
            None => return Err("it has no \"crv\"".to_owned()),
        }
        Self::ed25519(&bytes(jwk, "x")?)
    }
}

/// Public part of an RSA key.
fn public_rsa(n: Vec<u8>, e: Vec<u8>) -> Result<RsaPublicKeyComponents<Vec<u8>>, String> {
    if !RSA_SIZES.contains(&n.len()) {
        return Err(format!("RSA with {} bits: 2048 to 8192 are supported", n.len() * 8));
    }
    if e.len() > RSA_EXPONENT_SIZE_MAX || e.last().is_none_or(|last| last & 1 == 0) || e == [1] {
        return Err("RSA with an invalid \"e\"".to_owned());
    }
    Ok(RsaPublicKeyComponents { n, e })
}

/// Private part of an RSA key.
fn private_rsa(
    jwk: &Value,
    public: &RsaPublicKeyComponents<Vec<u8>>,
) -> Result<OaepPrivateDecryptingKey, String> {
    if public.n.len() * 8 > RSA_DECRYPTION_BITS_MAX {
        return Err(format!("RSA for decryption with more than {RSA_DECRYPTION_BITS_MAX} bits"));
    }
    let part = |name| number(jwk, name).map(Zeroizing::new);
    let components = KeyPairComponents {
        public_key: RsaPublicKeyComponents { n: public.n.as_slice(), e: public.e.as_slice() },
        d: &part("d")?[..],
        p: &part("p")?[..],
        q: &part("q")?[..],
        dP: &part("dp")?[..],
        dQ: &part("dq")?[..],
        qInv: &part("qi")?[..],
    };
    let pair = KeyPair::from_components(&components).map_err(|_| "its parts do not belong together")?;
    let sealed = AsDer::<Pkcs8V1Der<'_>>::as_der(&pair).map_err(|_| "its private part is unusable")?;
    let key =
        PrivateDecryptingKey::from_pkcs8(sealed.as_ref()).map_err(|_| "its private part is unusable")?;
    OaepPrivateDecryptingKey::new(key).map_err(|_| "its private part is unusable".to_owned())
}

/// Bytes of a member in base64url.
fn bytes(jwk: &Value, name: &str) -> Result<Vec<u8>, String> {
    let text = jwk.get(name).and_then(Value::as_str).ok_or_else(|| format!("it has no \"{name}\""))?;
    base64::decode_url(text.as_bytes()).map_err(|_| format!("\"{name}\" is not base64url"))
}

/// Bytes of a positive number, without zeros in front, which some write.
fn number(jwk: &Value, name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = bytes(jwk, name)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    if bytes.is_empty() { Err(format!("\"{name}\" is 0")) } else { Ok(bytes) }
}

/// A word of somebody else in a message.
fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}
