//! Proofs of who we are: a token, a password, or an NKEY with or without a JWT. Their texts are wiped and never shown.

use std::fmt;

use aws_lc_rs::signature::{Ed25519KeyPair, KeyPair as _};
use tw_http::base64::encode_url;
use zeroize::{Zeroize as _, Zeroizing};

/// Proof of who we are.
#[derive(Clone, PartialEq, Eq)]
pub enum Authentication {
    /// None: the server lets anybody in.
    Anonymous,
    /// A token that all clients share.
    Token(Zeroizing<String>),
    /// Name and password of a user.
    Password(String, Zeroizing<String>),
    /// Seed of a key, and the JWT that the key belongs to.
    Key {
        /// Seed of 32 bytes.
        seed: Zeroizing<Vec<u8>>,
        /// JWT of the user, if the server does not know the key.
        jwt: Option<Zeroizing<String>>,
    },
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Anonymous => "Anonymous",
            Self::Token(_) => "Token",
            Self::Password(..) => "Password",
            Self::Key { .. } => "Key",
        })
    }
}

/// Reason why a credentials file cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialsError {
    /// No seed of a user is in it.
    NoSeed,
    /// The seed is damaged.
    BadSeed,
}

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoSeed => "it has no seed of a user, which begins with \"SU\"",
            Self::BadSeed => "its seed is damaged",
        })
    }
}

impl std::error::Error for CredentialsError {}

/// Reads a credentials file: a JWT and a seed as `nsc` writes them, or a seed alone.
///
/// # Errors
/// See [`CredentialsError`].
pub fn read(text: &str) -> Result<Authentication, CredentialsError> {
    let lines = || text.lines().map(str::trim);
    let seed = lines().find(|line| line.starts_with("SU")).ok_or(CredentialsError::NoSeed)?;
    // Header and payload of a JWT are JSON, so both parts begin like this in base64.
    let jwt = lines().find(|line| line.starts_with("eyJ")).map(|jwt| Zeroizing::new(jwt.to_owned()));
    Ok(Authentication::Key { seed: decode_seed(seed)?, jwt })
}

/// First byte of the public key of a user: it makes the text begin with `U`.
const USER: u8 = 20 << 3;
/// First five bits of a seed: they make the text begin with `S`.
const SEED: u8 = 18 << 3;

fn decode_seed(text: &str) -> Result<Zeroizing<Vec<u8>>, CredentialsError> {
    let bytes = Zeroizing::new(base32_decode(text).ok_or(CredentialsError::BadSeed)?);
    let (body, sum) = bytes.split_last_chunk::<2>().ok_or(CredentialsError::BadSeed)?;
    let [first, second, seed @ ..] = body else { return Err(CredentialsError::BadSeed) };
    let kind = (first & 0b111) << 5 | second >> 3;
    if first & 0b1111_1000 != SEED
        || kind != USER
        || seed.len() != 32
        || crc16(body) != u16::from_le_bytes(*sum)
    {
        return Err(CredentialsError::BadSeed);
    }
    Ok(Zeroizing::new(seed.to_vec()))
}

/// Public key and signature of `nonce`, as CONNECT has them.
pub(super) fn sign(seed: &[u8], nonce: &str) -> Option<(String, String)> {
    let pair = Ed25519KeyPair::from_seed_unchecked(seed).ok()?;
    let mut key = vec![USER];
    key.extend_from_slice(pair.public_key().as_ref());
    key.extend_from_slice(&crc16(&key).to_le_bytes());
    Some((base32_encode(&key), encode_url(pair.sign(nonce.as_bytes()).as_ref())))
}

const BASE32: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

fn base32_decode(text: &str) -> Option<Vec<u8>> {
    // The buffer has its final size, so that no copy of the secret stays behind.
    let mut bytes = Vec::with_capacity(text.len());
    let mut bits = 0_u32;
    let mut count = 0;
    for char in text.bytes() {
        let Some(value) = BASE32.iter().position(|candidate| *candidate == char) else {
            bytes.zeroize();
            return None;
        };
        bits = (bits << 5 | value as u32) & 0xFFFF;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    Some(bytes)
}

fn base32_encode(bytes: &[u8]) -> String {
    let mut text = String::new();
    let mut bits = 0_u32;
    let mut count = 0;
    let mut push = |value: u32| text.push(char::from(*BASE32.get((value & 31) as usize).unwrap_or(&b'A')));
    for byte in bytes {
        bits = (bits << 8 | u32::from(*byte)) & 0xFFFF;
        count += 8;
        while count >= 5 {
            count -= 5;
            push(bits >> count);
        }
    }
    if count > 0 {
        push(bits << (5 - count));
    }
    text
}

/// CRC-16 of XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(
            crc ^ u16::from(*byte) << 8,
            |crc, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seed text of these bytes.
    fn seed_text(seed: &[u8; 32]) -> String {
        let mut bytes = vec![SEED | USER >> 5, (USER & 31) << 3];
        bytes.extend_from_slice(seed);
        bytes.extend_from_slice(&crc16(&bytes).to_le_bytes());
        base32_encode(&bytes)
    }

    #[test]
    fn checksum_is_that_of_xmodem() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn seed_and_jwt_are_found_and_never_shown() {
        let text = seed_text(&[7; 32]);
        assert!(text.starts_with("SU") && text.len() == 58, "{text}");
        let alone = read(&format!("{text}\n")).unwrap();
        assert_eq!(alone, Authentication::Key { seed: Zeroizing::new(vec![7; 32]), jwt: None });
        let creds = format!(
            "-----BEGIN NATS USER JWT-----\neyJ0.eyJq.c2ln\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{text}\n------END USER NKEY SEED------\n"
        );
        let both = read(&creds).unwrap();
        assert!(matches!(&both, Authentication::Key { jwt: Some(jwt), .. } if **jwt == "eyJ0.eyJq.c2ln"));
        assert_eq!(format!("{both:?}"), "Key");
        let (key, signature) = sign(&[7; 32], "nonce").unwrap();
        assert!(key.starts_with('U') && key.len() == 56 && signature.len() == 86, "{key} {signature}");
    }

    #[test]
    fn damaged_seeds_are_refused() {
        let good = seed_text(&[7; 32]);
        assert_eq!(read(""), Err(CredentialsError::NoSeed));
        assert_eq!(read("UABC"), Err(CredentialsError::NoSeed));
        for at in 2..good.len() {
            let mut bad = good.clone().into_bytes();
            bad[at] = if bad[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(read(str::from_utf8(&bad).unwrap()), Err(CredentialsError::BadSeed), "{at}");
        }
        assert_eq!(read(&good[..50]), Err(CredentialsError::BadSeed));
        assert_eq!(read("SU1"), Err(CredentialsError::BadSeed));
    }
}
