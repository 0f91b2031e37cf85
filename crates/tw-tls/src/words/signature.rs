//! Schemes of signatures (`ssl_conf_command SignatureAlgorithms`).

use rustls::SignatureScheme;

use super::{Selection, WordError};

/// Names of one scheme; OpenSSL does not look at their case.
struct NamedScheme {
    names: &'static [&'static str],
    scheme: Option<SignatureScheme>,
}

const KNOWN: &[NamedScheme] = &[
    NamedScheme {
        names: &["ecdsa_secp256r1_sha256", "ECDSA+SHA256"],
        scheme: Some(SignatureScheme::ECDSA_NISTP256_SHA256),
    },
    NamedScheme {
        names: &["ecdsa_secp384r1_sha384", "ECDSA+SHA384"],
        scheme: Some(SignatureScheme::ECDSA_NISTP384_SHA384),
    },
    NamedScheme {
        names: &["ecdsa_secp521r1_sha512", "ECDSA+SHA512"],
        scheme: Some(SignatureScheme::ECDSA_NISTP521_SHA512),
    },
    NamedScheme { names: &["ed25519"], scheme: Some(SignatureScheme::ED25519) },
    NamedScheme {
        names: &["rsa_pss_rsae_sha256", "RSA-PSS+SHA256", "PSS+SHA256"],
        scheme: Some(SignatureScheme::RSA_PSS_SHA256),
    },
    NamedScheme {
        names: &["rsa_pss_rsae_sha384", "RSA-PSS+SHA384", "PSS+SHA384"],
        scheme: Some(SignatureScheme::RSA_PSS_SHA384),
    },
    NamedScheme {
        names: &["rsa_pss_rsae_sha512", "RSA-PSS+SHA512", "PSS+SHA512"],
        scheme: Some(SignatureScheme::RSA_PSS_SHA512),
    },
    NamedScheme {
        names: &["rsa_pkcs1_sha256", "RSA+SHA256"],
        scheme: Some(SignatureScheme::RSA_PKCS1_SHA256),
    },
    NamedScheme {
        names: &["rsa_pkcs1_sha384", "RSA+SHA384"],
        scheme: Some(SignatureScheme::RSA_PKCS1_SHA384),
    },
    NamedScheme {
        names: &["rsa_pkcs1_sha512", "RSA+SHA512"],
        scheme: Some(SignatureScheme::RSA_PKCS1_SHA512),
    },
    NamedScheme { names: &["mldsa44"], scheme: Some(SignatureScheme::ML_DSA_44) },
    NamedScheme { names: &["mldsa65"], scheme: Some(SignatureScheme::ML_DSA_65) },
    NamedScheme { names: &["mldsa87"], scheme: Some(SignatureScheme::ML_DSA_87) },
    NamedScheme {
        names: &[
            "ed448",
            "rsa_pss_pss_sha256",
            "rsa_pss_pss_sha384",
            "rsa_pss_pss_sha512",
            "rsa_pkcs1_sha224",
            "RSA+SHA224",
            "rsa_pkcs1_sha1",
            "RSA+SHA1",
            "ecdsa_sha224",
            "ECDSA+SHA224",
            "ecdsa_sha1",
            "ECDSA+SHA1",
            "DSA+SHA1",
            "DSA+SHA224",
            "DSA+SHA256",
            "DSA+SHA384",
            "DSA+SHA512",
            "ecdsa_brainpoolP256r1tls13_sha256",
            "ecdsa_brainpoolP384r1tls13_sha384",
            "ecdsa_brainpoolP512r1tls13_sha512",
        ],
        scheme: None,
    },
];

/// Signature schemes selected by a string: names with colons between them, in order of preference. `?` before a name
/// ignores it if unknown.
///
/// # Errors
/// An unknown name, or only schemes that are never used.
pub fn signature_algorithms(words: &str) -> Result<Selection<SignatureScheme>, WordError> {
    let mut selected = Selection { chosen: Vec::new(), never: Vec::new() };
    for word in words.split(':').map(str::trim) {
        let name = word.trim_start_matches('?');
        let named_scheme = KNOWN.iter().find(|named_scheme| {
            named_scheme.names.iter().any(|candidate| candidate.eq_ignore_ascii_case(name))
        });
        match named_scheme.map(|named_scheme| named_scheme.scheme) {
            Some(Some(scheme)) if selected.chosen.contains(&scheme) => {}
            Some(Some(scheme)) => selected.chosen.push(scheme),
            Some(None) => selected.never.push(name.to_owned()),
            None if word.starts_with('?') => {}
            None => return Err(WordError::Unknown(word.to_owned())),
        }
    }
    if selected.chosen.is_empty() { Err(WordError::NeverOffered(selected.never)) } else { Ok(selected) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_keep_their_order() {
        let selected = signature_algorithms("PSS+SHA256:ecdsa_secp256r1_SHA256:?new:RSA-PSS+SHA256:ed448");
        let selected = selected.unwrap();
        let expected = [SignatureScheme::RSA_PSS_SHA256, SignatureScheme::ECDSA_NISTP256_SHA256];
        assert_eq!(selected.chosen, expected);
        assert_eq!(selected.never, ["ed448"]);
    }

    #[test]
    fn unknown_schemes_are_refused() {
        assert_eq!(signature_algorithms("ed25519:x").unwrap_err(), WordError::Unknown("x".to_owned()));
        assert!(matches!(signature_algorithms("ed448"), Err(WordError::NeverOffered(_))));
        assert!(matches!(signature_algorithms("?new"), Err(WordError::NeverOffered(_))));
    }
}
