//! Kinds of keys that are made here, in nginx's words: `ecdsa:256`, `rsa:2048`.

use std::fmt;

use rcgen::{
    KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ECDSA_P521_SHA512, PKCS_RSA_SHA256,
    RsaKeySize,
};

use crate::error::Error;

/// A kind of private key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum KeyType {
    /// `ecdsa`, `ecdsa:256`
    #[default]
    EcdsaP256,
    /// `ecdsa:384`
    EcdsaP384,
    /// `ecdsa:521`
    EcdsaP521,
    /// `rsa`, `rsa:2048`
    Rsa2048,
    /// `rsa:3072`
    Rsa3072,
    /// `rsa:4096`
    Rsa4096,
}

/// Meaning of a word as a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyWord {
    /// A kind of key.
    Type(KeyType),
    /// A kind of key with an unsupported size; nginx's reason.
    Unsupported(&'static str),
    /// Another word: the name of a file.
    FileName,
}

impl KeyType {
    /// Reads a word.
    pub fn parse(word: &[u8]) -> KeyWord {
        let (name, size) = match word.iter().position(|byte| *byte == b':') {
            Some(at) => (word.get(..at).unwrap_or_default(), word.get(at + 1..)),
            None => (word, None),
        };
        KeyWord::Type(match (name, size) {
            (b"ecdsa", None | Some(b"256")) => Self::EcdsaP256,
            (b"ecdsa", Some(b"384")) => Self::EcdsaP384,
            (b"ecdsa", Some(b"521")) => Self::EcdsaP521,
            (b"ecdsa", _) => return KeyWord::Unsupported("unsupported curve"),
            (b"rsa", None | Some(b"2048")) => Self::Rsa2048,
            (b"rsa", Some(b"3072")) => Self::Rsa3072,
            (b"rsa", Some(b"4096")) => Self::Rsa4096,
            (b"rsa", _) => return KeyWord::Unsupported("unsupported key size"),
            _ => return KeyWord::FileName,
        })
    }

    /// Makes a key. Of RSA it takes from 0.1 s to some seconds.
    pub(crate) fn generate(self) -> Result<KeyPair, Error> {
        match self {
            Self::EcdsaP256 => KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256),
            Self::EcdsaP384 => KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384),
            Self::EcdsaP521 => KeyPair::generate_for(&PKCS_ECDSA_P521_SHA512),
            Self::Rsa2048 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048),
            Self::Rsa3072 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_3072),
            Self::Rsa4096 => KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_4096),
        }
        .map_err(|error| Error::Crypto(format!("a key of {self} cannot be made: {error}")))
    }
}

impl fmt::Display for KeyType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EcdsaP256 => "ecdsa:256",
            Self::EcdsaP384 => "ecdsa:384",
            Self::EcdsaP521 => "ecdsa:521",
            Self::Rsa2048 => "rsa:2048",
            Self::Rsa3072 => "rsa:3072",
            Self::Rsa4096 => "rsa:4096",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words() {
        for (word, expected) in [
            ("ecdsa", KeyWord::Type(KeyType::EcdsaP256)),
            ("ecdsa:256", KeyWord::Type(KeyType::EcdsaP256)),
            ("ecdsa:384", KeyWord::Type(KeyType::EcdsaP384)),
            ("ecdsa:521", KeyWord::Type(KeyType::EcdsaP521)),
            ("ecdsa:224", KeyWord::Unsupported("unsupported curve")),
            ("ecdsa:", KeyWord::Unsupported("unsupported curve")),
            ("rsa", KeyWord::Type(KeyType::Rsa2048)),
            ("rsa:4096", KeyWord::Type(KeyType::Rsa4096)),
            ("rsa:1024", KeyWord::Unsupported("unsupported key size")),
            ("account.key", KeyWord::FileName),
            ("/etc/a:b", KeyWord::FileName),
        ] {
            assert_eq!(KeyType::parse(word.as_bytes()), expected, "{word}");
        }
        assert_eq!(
            KeyType::parse(KeyType::EcdsaP521.to_string().as_bytes()),
            KeyWord::Type(KeyType::EcdsaP521)
        );
    }
}
