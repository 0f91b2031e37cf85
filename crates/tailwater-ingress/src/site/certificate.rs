//! Certificates of secrets: checked before the server gets them, so that a broken one concerns only its host.

use tw_tls::{Identity, Key, Passwords};

use crate::cluster::object::Secret;

/// Checks a chain and its key.
///
/// # Errors
/// One of them cannot be read, or they do not belong together.
pub fn check(chain: &[u8], key: &[u8]) -> Result<(), String> {
    let chain = tw_tls::chain(chain).map_err(|error| format!("certificate: {error}"))?;
    let key = Key::read(key, &Passwords::default()).map_err(|error| format!("key: {error}"))?;
    Identity::new(chain, key).map(drop).map_err(|error| error.to_string())
}

/// Chain and key of a secret.
///
/// # Errors
/// The secret has none, or they are broken.
pub fn of_secret(secret: &Secret) -> Result<(&Vec<u8>, &Vec<u8>), String> {
    let part = |name: &str| secret.data.get(name).ok_or_else(|| format!("the secret has no \"{name}\""));
    let chain = part("tls.crt")?;
    let key = part("tls.key")?;
    check(chain, key)?;
    Ok((chain, key))
}

/// Makes a certificate that nobody trusts, for hosts that have none: chain and key in PEM.
///
/// # Errors
/// There is no randomness.
pub fn self_signed() -> Result<(Vec<u8>, Vec<u8>), String> {
    let made = rcgen::generate_simple_self_signed(["ingress.invalid".to_owned()])
        .map_err(|error| error.to_string())?;
    Ok((made.cert.pem().into_bytes(), made.signing_key.serialize_pem().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_certificates_are_refused() {
        let (chain, key) = self_signed().unwrap();
        let (_, other) = self_signed().unwrap();
        assert!(check(&chain, &key).is_ok());
        assert!(check(&chain, &other).is_err());
        assert!(check(b"", &key).is_err());
        assert!(check(&chain, b"-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----\n").is_err());
    }
}
