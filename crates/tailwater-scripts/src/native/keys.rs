//! Native functions of WebCrypto for keys with two parts: formats, generation and agreement.
//!
//! A private key is kept in PKCS#8, a public one as `SubjectPublicKeyInfo`. `parts` are the members of a JSON Web Key: `n`, `e`, `d`, `p`, `q`, `dp`,
//! `dq`, `qi` of RSA, `x`, `y`, `d` of a curve, `x`, `d` of Ed25519 and X25519.

use std::rc::Rc;

use aws_lc_rs::agreement::{self, ECDH_P256, ECDH_P384, ECDH_P521, X25519};
use aws_lc_rs::encoding::{
    AsBigEndian, AsDer, Curve25519SeedBin, EcPrivateKeyBin, Pkcs8V1Der, PublicKeyX509Der,
};
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize, PublicKey as RsaPublicKey};
use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use rquickjs::{Ctx, Object, Value};

use super::bytes;
use super::der;
use super::function::natives;
use super::webcrypto::{Refused, output, refused};
use crate::state::State;

pub(super) fn install<'js>(ctx: &Ctx<'js>, object: &Object<'js>, state: &Rc<State>) -> rquickjs::Result<()> {
    natives! { 'js, ctx, object, state;
        import_key(kind: String, is_private: bool, key: Value<'js>);
        key_of_parts(kind: String, is_private: bool, parts: Vec<Value<'js>>);
        key_parts(kind: String, is_private: bool, key: Value<'js>);
        generate_key(kind: String, bits: u32);
        agree(kind: String, private: Value<'js>, public: Value<'js>);
    }
    Ok(())
}

/// Parts of a key.
type Parts = Vec<Vec<u8>>;

/// A curve with points of two coordinates.
struct Curve {
    algorithm: &'static agreement::Algorithm,
    /// Bytes of a number.
    size: usize,
    /// `SubjectPublicKeyInfo` in front of the point.
    prefix: &'static [u8],
}

/// Bytes of a key of Ed25519 or X25519.
const KEY_SIZE: usize = 32;
/// Octet string of a private key of that size, inside of another one.
const SEED_HEAD: &[u8] = &[4, 34, 4, 32];
/// `rsaEncryption`, as an algorithm.
const RSA: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

fn curve(kind: &str) -> Option<Curve> {
    Some(match kind {
        "P-256" => Curve {
            algorithm: &ECDH_P256,
            size: 32,
            prefix: b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00",
        },
        "P-384" => Curve {
            algorithm: &ECDH_P384,
            size: 48,
            prefix: b"\x30\x76\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x22\x03\x62\x00",
        },
        "P-521" => Curve {
            algorithm: &ECDH_P521,
            size: 66,
            prefix: b"\x30\x81\x9b\x30\x10\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x05\x2b\x81\x04\x00\x23\x03\x81\x86\x00",
        },
        _ => return None,
    })
}

/// Last byte of the object identifier of Ed25519 or X25519.
fn edwards(kind: &str) -> Result<u8, Refused> {
    match kind {
        "Ed25519" => Ok(0x70),
        "X25519" => Ok(0x6e),
        _ => Err(Refused),
    }
}

/// `SubjectPublicKeyInfo` in front of a key of Ed25519 or X25519.
fn edwards_prefix(kind: &str) -> Result<[u8; 12], Refused> {
    Ok([0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, edwards(kind)?, 0x03, 0x21, 0x00])
}

/// PKCS#8 in front of the octet strings of a private key of Ed25519 or X25519.
fn edwards_private_prefix(kind: &str) -> Result<[u8; 12], Refused> {
    Ok([0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, edwards(kind)?])
}

/// Private key of Ed25519 or X25519 in PKCS#8, without or with its public key.
fn seed(kind: &str, key: &[u8]) -> Result<[u8; KEY_SIZE], Refused> {
    let (content, _) = der::read(key, der::SEQUENCE).ok_or(Refused)?;
    let (_, content) = der::read(content, der::INTEGER).ok_or(Refused)?;
    let (algorithm, content) = der::read(content, der::SEQUENCE).ok_or(Refused)?;
    let seed = content.strip_prefix(SEED_HEAD).and_then(|rest| rest.get(..KEY_SIZE)).ok_or(Refused)?;
    if algorithm != [0x06, 0x03, 0x2b, 0x65, edwards(kind)?] {
        return Err(Refused);
    }
    Ok(seed.try_into()?)
}

/// Numbers of a private key of RSA: `n`, `e`, `d`, `p`, `q`, `dp`, `dq`, `qi`.
fn rsa_numbers(key: &[u8]) -> Option<Parts> {
    let (content, _) = der::read(key, der::SEQUENCE)?;
    let (_, content) = der::read(content, der::INTEGER)?;
    let (_, content) = der::read(content, der::SEQUENCE)?;
    let (key, _) = der::read(content, der::OCTET_STRING)?;
    let (numbers, _) = der::read(key, der::SEQUENCE)?;
    let numbers = der::integers(numbers);
    Some(numbers.get(1..9)?.to_vec())
}

/// Checks a key and returns its bytes in the form in which keys are kept.
fn import(kind: &str, is_private: bool, key: &[u8]) -> Result<Vec<u8>, Refused> {
    match (kind, is_private) {
        ("RSA", true) => {
            let pair = RsaKeyPair::from_pkcs8(key)?;
            Ok(AsDer::<Pkcs8V1Der<'_>>::as_der(&pair)?.as_ref().to_vec())
        }
        ("RSA", false) => {
            let key = RsaPublicKey::from_der(key)?;
            Ok(AsDer::<PublicKeyX509Der<'_>>::as_der(&key)?.as_ref().to_vec())
        }
        _ => of_parts(kind, is_private, &parts(kind, is_private, key)?),
    }
}

fn parts(kind: &str, is_private: bool, key: &[u8]) -> Result<Parts, Refused> {
    if kind == "RSA" {
        return match is_private {
            true => rsa_numbers(key).ok_or(Refused),
            false => {
                let (content, _) = der::read(key, der::SEQUENCE).ok_or(Refused)?;
                let (_, content) = der::read(content, der::SEQUENCE).ok_or(Refused)?;
                let key = der::read_bit_string(content).ok_or(Refused)?;
                Ok(der::integers(der::read(key, der::SEQUENCE).ok_or(Refused)?.0))
            }
        };
    }
    let Some(curve) = curve(kind) else {
        let (public, private) = match is_private {
            true => {
                let seed = seed(kind, key)?;
                (edwards_public(kind, &seed)?, Some(seed.to_vec()))
            }
            false => (key.strip_prefix(&edwards_prefix(kind)?).ok_or(Refused)?.to_vec(), None),
        };
        return Ok([public].into_iter().chain(private).collect());
    };
    if !is_private {
        return point_parts(&curve, key.strip_prefix(curve.prefix).ok_or(Refused)?);
    }
    let private = agreement::PrivateKey::from_private_key_der(curve.algorithm, key)?;
    let mut parts = point_parts(&curve, private.compute_public_key()?.as_ref())?;
    parts.push(AsBigEndian::<EcPrivateKeyBin<'_>>::as_be_bytes(&private)?.as_ref().to_vec());
    Ok(parts)
}

/// Coordinates of a point that is not compressed.
fn point_parts(curve: &Curve, point: &[u8]) -> Result<Parts, Refused> {
    let coordinates = point.strip_prefix(&[4]).filter(|rest| rest.len() == 2 * curve.size).ok_or(Refused)?;
    Ok(coordinates.chunks(curve.size).map(<[u8]>::to_vec).collect())
}

fn edwards_public(kind: &str, seed: &[u8; KEY_SIZE]) -> Result<Vec<u8>, Refused> {
    if kind == "Ed25519" {
        return Ok(Ed25519KeyPair::from_seed_unchecked(seed)?.public_key().as_ref().to_vec());
    }
    let private = agreement::PrivateKey::from_private_key(&X25519, seed)?;
    Ok(private.compute_public_key()?.as_ref().to_vec())
}

/// A key of its parts, if they belong together.
fn of_parts(kind: &str, is_private: bool, parts: &[Vec<u8>]) -> Result<Vec<u8>, Refused> {
    if kind == "RSA" {
        return rsa_of_parts(is_private, parts);
    }
    let Some(curve) = curve(kind) else {
        let (public, private) = match parts {
            [public] => (public, None),
            [public, private] => (public, Some(private)),
            _ => return Err(Refused),
        };
        let Some(private) = private.filter(|_| is_private) else {
            if public.len() != KEY_SIZE {
                return Err(Refused);
            }
            return Ok([&edwards_prefix(kind)?[..], public].concat());
        };
        let seed: [u8; KEY_SIZE] = private.as_slice().try_into()?;
        if edwards_public(kind, &seed)? != *public {
            return Err(Refused);
        }
        return Ok([&edwards_private_prefix(kind)?[..], SEED_HEAD, private].concat());
    };
    let [x, y, rest @ ..] = parts else { return Err(Refused) };
    let point = [&[4], &*padded(x, curve.size)?, &*padded(y, curve.size)?].concat();
    if !is_private {
        check_point(&curve, &point)?;
        return Ok([curve.prefix, &point].concat());
    }
    let number = padded(rest.first().ok_or(Refused)?, curve.size)?;
    let private = agreement::PrivateKey::from_private_key(curve.algorithm, &number)?;
    if private.compute_public_key()?.as_ref() != point {
        return Err(Refused);
    }
    Ok(AsDer::<Pkcs8V1Der<'_>>::as_der(&private)?.as_ref().to_vec())
}

/// A number with leading zeros.
fn padded(number: &[u8], size: usize) -> Result<Vec<u8>, Refused> {
    let zeros = size.checked_sub(number.len()).ok_or(Refused)?;
    Ok([vec![0; zeros], number.to_vec()].concat())
}

fn check_point(curve: &Curve, point: &[u8]) -> Result<(), Refused> {
    let key: Result<agreement::ParsedPublicKey, _> =
        agreement::UnparsedPublicKey::new(curve.algorithm, point).try_into();
    key?;
    Ok(())
}

fn rsa_of_parts(is_private: bool, parts: &[Vec<u8>]) -> Result<Vec<u8>, Refused> {
    let numbers: Vec<u8> = parts.iter().flat_map(|part| der::integer(part)).collect();
    if !is_private {
        let key = der::value(der::SEQUENCE, &numbers);
        return import("RSA", false, &der::value(der::SEQUENCE, &[RSA, &*der::bit_string(&key)].concat()));
    }
    let zero = der::integer(&[]);
    let key = der::value(der::SEQUENCE, &[zero.clone(), numbers].concat());
    let content = [&*zero, RSA, &*der::value(der::OCTET_STRING, &key)].concat();
    import("RSA", true, &der::value(der::SEQUENCE, &content))
}

/// A new private key and its public key.
fn generate(kind: &str, bits: u32) -> Result<(Vec<u8>, Vec<u8>), Refused> {
    let private = match kind {
        "RSA" => {
            let size = match bits {
                2048 => KeySize::Rsa2048,
                3072 => KeySize::Rsa3072,
                4096 => KeySize::Rsa4096,
                8192 => KeySize::Rsa8192,
                _ => return Err(Refused),
            };
            AsDer::<Pkcs8V1Der<'_>>::as_der(&RsaKeyPair::generate(size)?)?.as_ref().to_vec()
        }
        "Ed25519" => {
            let seed = Ed25519KeyPair::generate()?.seed()?;
            let seed = AsBigEndian::<Curve25519SeedBin<'_>>::as_be_bytes(&seed)?;
            [&edwards_private_prefix(kind)?[..], SEED_HEAD, seed.as_ref()].concat()
        }
        "X25519" => {
            let key = agreement::PrivateKey::generate(&X25519)?;
            let seed = AsBigEndian::<Curve25519SeedBin<'_>>::as_be_bytes(&key)?;
            [&edwards_private_prefix(kind)?[..], SEED_HEAD, seed.as_ref()].concat()
        }
        _ => {
            let key = agreement::PrivateKey::generate(curve(kind).ok_or(Refused)?.algorithm)?;
            AsDer::<Pkcs8V1Der<'_>>::as_der(&key)?.as_ref().to_vec()
        }
    };
    let mut parts = parts(kind, true, &private)?;
    // The public parts are the first ones.
    parts.truncate(if edwards(kind).is_ok() { 1 } else { 2 });
    let public = of_parts(kind, false, &parts)?;
    Ok((private, public))
}

/// Secret that two keys have in common.
fn agree_on(kind: &str, private: &[u8], public: &[u8]) -> Result<Vec<u8>, Refused> {
    let (algorithm, private, point) = match curve(kind) {
        Some(curve) => {
            let private = agreement::PrivateKey::from_private_key_der(curve.algorithm, private)?;
            (curve.algorithm, private, public.strip_prefix(curve.prefix).ok_or(Refused)?)
        }
        None => {
            let private = agreement::PrivateKey::from_private_key(&X25519, &seed(kind, private)?)?;
            (&X25519, private, public.strip_prefix(&edwards_prefix(kind)?).ok_or(Refused)?)
        }
    };
    let public = agreement::UnparsedPublicKey::new(algorithm, point);
    agreement::agree(&private, public, Refused, |secret| Ok(secret.to_vec()))
}

/// A key, or `undefined` if it is refused.
fn or_nothing<'js>(ctx: &Ctx<'js>, key: Result<Vec<u8>, Refused>) -> rquickjs::Result<Option<Value<'js>>> {
    key.ok().map(|key| bytes::array(ctx, &key)).transpose()
}

impl State {
    fn import_key<'js>(
        &self,
        ctx: &Ctx<'js>,
        kind: String,
        is_private: bool,
        key: Value<'js>,
    ) -> rquickjs::Result<Option<Value<'js>>> {
        or_nothing(ctx, import(&kind, is_private, &self.bytes(ctx, &key)?))
    }

    fn key_of_parts<'js>(
        &self,
        ctx: &Ctx<'js>,
        kind: String,
        is_private: bool,
        parts: Vec<Value<'js>>,
    ) -> rquickjs::Result<Option<Value<'js>>> {
        let parts = parts.iter().map(|part| self.bytes(ctx, part)).collect::<Result<Vec<_>, _>>()?;
        or_nothing(ctx, of_parts(&kind, is_private, &parts))
    }

    fn key_parts<'js>(
        &self,
        ctx: &Ctx<'js>,
        kind: String,
        is_private: bool,
        key: Value<'js>,
    ) -> rquickjs::Result<Vec<Value<'js>>> {
        match parts(&kind, is_private, &self.bytes(ctx, &key)?) {
            Ok(parts) => parts.iter().map(|part| bytes::array(ctx, part)).collect(),
            Err(Refused) => Err(refused(ctx)),
        }
    }

    /// Private and public key of a new pair.
    fn generate_key<'js>(
        &self,
        ctx: &Ctx<'js>,
        kind: String,
        bits: u32,
    ) -> rquickjs::Result<Vec<Value<'js>>> {
        match generate(&kind, bits) {
            Ok((private, public)) => Ok(vec![bytes::array(ctx, &private)?, bytes::array(ctx, &public)?]),
            Err(Refused) => Err(refused(ctx)),
        }
    }

    fn agree<'js>(
        &self,
        ctx: &Ctx<'js>,
        kind: String,
        private: Value<'js>,
        public: Value<'js>,
    ) -> rquickjs::Result<Value<'js>> {
        output(ctx, agree_on(&kind, &self.bytes(ctx, &private)?, &self.bytes(ctx, &public)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_keys_are_made_of_their_parts_again() {
        for (kind, bits) in
            [("RSA", 2048), ("P-256", 0), ("P-384", 0), ("P-521", 0), ("Ed25519", 0), ("X25519", 0)]
        {
            let (private, public) = generate(kind, bits).ok().unwrap();
            for (key, is_private) in [(&private, true), (&public, false)] {
                let parts = parts(kind, is_private, key).ok().unwrap();
                assert_eq!(
                    of_parts(kind, is_private, &parts).ok().as_ref(),
                    Some(key),
                    "{kind} {is_private}"
                );
                assert_eq!(import(kind, is_private, key).ok().as_ref(), Some(key), "{kind} {is_private}");
                let mut other = parts;
                other[0][5] ^= 1;
                let is_refused = of_parts(kind, is_private, &other).is_err();
                // A modulus and a key of a curve in Edwards form are any bytes.
                assert!(is_refused || !is_private && matches!(kind, "RSA" | "Ed25519" | "X25519"), "{kind}");
            }
            assert!(import(kind, true, &public).is_err(), "{kind}");
            assert!(import(kind, false, &private[..20]).is_err(), "{kind}");
        }
    }

    #[test]
    fn both_sides_agree() {
        for kind in ["P-256", "P-384", "P-521", "X25519"] {
            let (private, public) = generate(kind, 0).ok().unwrap();
            let (other_private, other_public) = generate(kind, 0).ok().unwrap();
            let secret = agree_on(kind, &private, &other_public).ok().unwrap();
            assert_eq!(Some(secret), agree_on(kind, &other_private, &public).ok(), "{kind}");
            assert!(agree_on(kind, &private, &[]).is_err());
        }
    }
}
