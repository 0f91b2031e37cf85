//! Public keys in PEM: SubjectPublicKeyInfo (RFC 5280 section 4.1.2.7), and RSAPublicKey (RFC 8017 appendix A.1.1).

use crate::der::{self, BIT_STRING, INTEGER, Malformed, OID, Reader, SEQUENCE};
use crate::pem;

/// 1.2.840.113549.1.1.1
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01];
/// 1.2.840.10045.2.1
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01];
/// 1.3.101.112
const ED25519: &[u8] = &[0x2b, 0x65, 0x70];
/// 1.2.840.10045.3.1.7
const P256: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07];
/// 1.3.132.0.34
const P384: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x22];
/// 1.3.132.0.35
const P521: &[u8] = &[0x2b, 0x81, 0x04, 0x00, 0x23];

/// Public key, whose numbers and points are not checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PublicKey {
    /// Modulus and exponent, without zeros in front.
    Rsa {
        /// Modulus.
        n: Vec<u8>,
        /// Exponent.
        e: Vec<u8>,
    },
    /// Curve and point (SEC 1 section 2.3.3).
    Ec(NamedCurve, Vec<u8>),
    /// Point.
    Ed25519(Vec<u8>),
}

/// Curve of an EC key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamedCurve {
    /// secp256r1
    P256,
    /// secp384r1
    P384,
    /// secp521r1
    P521,
}

impl PublicKey {
    /// Reads the first section of a text.
    ///
    /// # Errors
    /// A reason for the log.
    pub fn from_pem(text: &[u8]) -> Result<Self, String> {
        let section = pem::sections(text).next().ok_or("it is no PEM")?;
        let section = section.map_err(pem::PemError::text)?;
        let bytes = section.decode().map_err(pem::PemError::text)?;
        match section.label {
            "PUBLIC KEY" => Self::of_info(&bytes).map_err(|Malformed| "the public key is malformed")?,
            "RSA PUBLIC KEY" => Some(rsa(&bytes).map_err(|Malformed| "the public key is malformed")?),
            other => return Err(format!("\"{other}\" is no public key")),
        }
        .ok_or_else(|| "keys of this type are not supported".to_owned())
    }

    /// Reads a SubjectPublicKeyInfo; `None` for a type that is not supported.
    fn of_info(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut info = der::only(bytes, SEQUENCE)?;
        let mut algorithm = info.enter(SEQUENCE)?;
        let key = der::bytes_of_bits(info.expect(BIT_STRING)?.content)?;
        info.end()?;
        Ok(match algorithm.expect(OID)?.content {
            RSA => Some(rsa(key)?),
            EC => {
                let curve = match algorithm.expect(OID)?.content {
                    P256 => NamedCurve::P256,
                    P384 => NamedCurve::P384,
                    P521 => NamedCurve::P521,
                    _ => return Ok(None),
                };
                Some(Self::Ec(curve, key.to_vec()))
            }
            ED25519 => Some(Self::Ed25519(key.to_vec())),
            _ => None,
        })
    }
}

/// Reads an RSAPublicKey.
fn rsa(bytes: &[u8]) -> Result<PublicKey, Malformed> {
    let mut key = der::only(bytes, SEQUENCE)?;
    let n = positive(&mut key)?;
    let e = positive(&mut key)?;
    key.end()?;
    Ok(PublicKey::Rsa { n, e })
}

/// Bytes of a positive INTEGER, without the zero in front that keeps it positive.
fn positive(reader: &mut Reader<'_>) -> Result<Vec<u8>, Malformed> {
    match reader.expect(INTEGER)?.content {
        [0, bytes @ ..] | bytes if bytes.first().is_some_and(|first| *first != 0) => Ok(bytes.to_vec()),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element of DER.
    fn element(tag: u8, content: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn info(algorithm: &[&[u8]], key: &[u8]) -> Vec<u8> {
        let algorithm = algorithm.iter().flat_map(|oid| element(OID, oid)).collect::<Vec<_>>();
        let key = element(BIT_STRING, &[&[0], key].concat());
        element(SEQUENCE, &[element(SEQUENCE, &algorithm), key].concat())
    }

    #[test]
    fn types_of_keys_are_known() {
        let rsa_key = element(SEQUENCE, &[element(INTEGER, &[0, 0x81, 2]), element(INTEGER, &[3])].concat());
        let rsa = PublicKey::Rsa { n: vec![0x81, 2], e: vec![3] };
        for (label, der, expected) in [
            ("PUBLIC KEY", info(&[RSA], &rsa_key), Ok(rsa.clone())),
            ("RSA PUBLIC KEY", rsa_key.clone(), Ok(rsa)),
            ("PUBLIC KEY", info(&[EC, P256], &[4, 1]), Ok(PublicKey::Ec(NamedCurve::P256, vec![4, 1]))),
            ("PUBLIC KEY", info(&[EC, P384], &[4, 1]), Ok(PublicKey::Ec(NamedCurve::P384, vec![4, 1]))),
            ("PUBLIC KEY", info(&[EC, P521], &[4, 1]), Ok(PublicKey::Ec(NamedCurve::P521, vec![4, 1]))),
            ("PUBLIC KEY", info(&[ED25519], &[7]), Ok(PublicKey::Ed25519(vec![7]))),
            ("PUBLIC KEY", info(&[EC, RSA], &[4]), Err("keys of this type are not supported")),
            ("PUBLIC KEY", info(&[P256], &[4]), Err("keys of this type are not supported")),
            ("PUBLIC KEY", info(&[RSA], &[4]), Err("the public key is malformed")),
            ("PUBLIC KEY", info(&[EC], &[4]), Err("the public key is malformed")),
            ("PUBLIC KEY", rsa_key.clone(), Err("the public key is malformed")),
            (
                "RSA PUBLIC KEY",
                element(SEQUENCE, &[element(INTEGER, &[0]), element(INTEGER, &[3])].concat()),
                Err("the public key is malformed"),
            ),
            ("PRIVATE KEY", rsa_key, Err("\"PRIVATE KEY\" is no public key")),
        ] {
            let text = pem::encode(label, &der);
            assert_eq!(PublicKey::from_pem(text.as_bytes()), expected.map_err(str::to_owned), "{text}");
        }
        assert_eq!(PublicKey::from_pem(b"secret"), Err("it is no PEM".to_owned()));
    }
}
