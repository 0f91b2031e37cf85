//! Names of the algorithms in a certificate (RFC 3279, 5480, 8410).

use crate::der::{INTEGER, OID, Reader, SEQUENCE};
use crate::x509::SubjectPublicKeyInfo;

/// rsaEncryption and RSASSA-PSS, as keys.
const RSA: [&[u8]; 2] =
    [&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1], &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10]];
/// id-ecPublicKey.
const EC: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// Curves with the bits of their keys.
const CURVES: &[(&[u8], u32)] = &[
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7], 256),
    (&[0x2b, 0x81, 0x04, 0, 0x22], 384),
    (&[0x2b, 0x81, 0x04, 0, 0x23], 521),
];
/// Signature algorithms with OpenSSL's short names.
const SIGNATURES: &[(&[u8], &str)] = &[
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 5], "RSA-SHA1"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10], "RSASSA-PSS"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 11], "RSA-SHA256"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 12], "RSA-SHA384"),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 13], "RSA-SHA512"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 1], "ecdsa-with-SHA1"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2], "ecdsa-with-SHA256"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3], "ecdsa-with-SHA384"),
    (&[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4], "ecdsa-with-SHA512"),
    (&[0x2b, 0x65, 0x70], "ED25519"),
    (&[0x2b, 0x65, 0x71], "ED448"),
];

/// Name of a signature algorithm, of which the content of the AlgorithmIdentifier is given.
pub(super) fn signature_name(algorithm: &[u8]) -> Option<&'static str> {
    let id = Reader::new(algorithm).expect(OID).ok()?.content;
    SIGNATURES.iter().find(|(candidate, _)| *candidate == id).map(|(_, name)| *name)
}

/// Kind of a key and its bits.
pub(super) fn key_name(key: &SubjectPublicKeyInfo<'_>) -> Option<String> {
    let mut algorithm = Reader::new(key.algorithm);
    let id = algorithm.expect(OID).ok()?.content;
    if RSA.contains(&id) {
        let modulus = Reader::new(key.bits).enter(SEQUENCE).ok()?.expect(INTEGER).ok()?.content;
        let digits = modulus.strip_prefix(&[0]).unwrap_or(modulus);
        let bits = digits.len() * 8 - digits.first()?.leading_zeros() as usize;
        return Some(format!("RSA{bits}"));
    }
    if id != EC {
        return None;
    }
    let curve = algorithm.expect(OID).ok()?.content;
    CURVES.iter().find(|(candidate, _)| *candidate == curve).map(|(_, bits)| format!("EC{bits}"))
}
