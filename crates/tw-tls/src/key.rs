//! Private keys of a PEM text: PKCS#8, PKCS#1 and SEC1, also with a pass phrase.
//!
//! ```text
//! PRIVATE KEY · RSA PRIVATE KEY · EC PRIVATE KEY ─────────────────────────────┐
//! ENCRYPTED PRIVATE KEY (PKCS#8, PBES2) ──── sealed ── pass phrases in turn ──┼─► SigningKey
//! … PRIVATE KEY with Proc-Type: 4,ENCRYPTED ─ sealed ── pass phrases in turn ─┘
//! ```
//!
//! Every buffer that had a key in it is wiped.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};
use rustls::sign::SigningKey;
use rustls::{SignatureAlgorithm, SignatureScheme};
use zeroize::Zeroizing;

use crate::password::Passwords;
use crate::pem::{self, Section};

mod sealed;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a file with a private key.
    ///
    /// Limit of a key file. An RSA key of 16,384 bits has 13 KB; the file may contain certificates, too.
    const KEY_SIZE_MAX: usize = 1 << 20, bytes, "the configuration is refused";
    /// Iterations of the key derivation of a private key.
    constant count sealed::ITERATIONS_MAX, "the configuration is refused";
}

/// A private key that can sign.
#[derive(Debug, Clone)]
pub struct Key {
    /// Key for rustls.
    pub signing: Arc<dyn SigningKey>,
    /// Of which kind it is.
    pub kind: Kind,
}

/// Key type, by which a server selects one of several certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// RSA.
    Rsa,
    /// Of the curves P-256, P-384 and P-521.
    Ecdsa,
    /// Ed25519.
    Ed25519,
    /// ML-DSA, or a later algorithm of rustls.
    Other,
}

/// Cost of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    /// Tens of microseconds: on a loop.
    Fast,
    /// From 0.3 ms (RSA with 2048 bits) to several milliseconds: on a pool.
    Slow,
}

// DIFF(nginx): the cause is told in words, not by the function of OpenSSL that would have failed.
/// Why a text has no key to use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyError {
    /// There is no private key.
    NoStartLine,
    /// The text is DER, not PEM.
    Der,
    /// There is a certificate, and no key.
    OnlyCertificate,
    /// The text is no PEM; the reason.
    BadPem(&'static str),
    /// The key is encrypted and there is no pass phrase.
    NoPassword,
    /// None of the pass phrases opens it.
    BadDecrypt,
    /// Encrypted by an unsupported method.
    UnknownSeal(String),
    /// Malformed, or of an unsupported type.
    BadKey(String),
    /// More bytes than this.
    TooLong(usize),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStartLine => {
                f.write_str("there is no private key in it: no line \"-----BEGIN PRIVATE KEY-----\"")
            }
            Self::Der => f.write_str("it is in DER: \"openssl pkey -inform der\" makes PEM of it"),
            Self::OnlyCertificate => f.write_str("there is a certificate in it, and no private key"),
            Self::BadPem(reason) => write!(f, "it is broken: {reason}"),
            Self::NoPassword => f.write_str("it is encrypted, and there is no pass phrase"),
            Self::BadDecrypt => f.write_str("it is encrypted, and no pass phrase fits"),
            Self::UnknownSeal(what) => write!(f, "unsupported encryption: {what}"),
            Self::BadKey(why) => write!(f, "unsupported: {why}"),
            Self::TooLong(max) => write!(f, "it has more than {max} bytes"),
        }
    }
}

impl std::error::Error for KeyError {}

impl Key {
    /// The first private key of a text; `passwords` are tried in turn if it is sealed, which may take seconds.
    ///
    /// # Errors
    /// There is none, it is broken, or no pass phrase opens it.
    pub fn read(text: &[u8], passwords: &Passwords) -> Result<Self, KeyError> {
        let (form, section) = Self::find(text)?;
        let Some(form) = form else { return Self::open_pkcs8(&section, passwords) };
        match section.header("DEK-Info") {
            Some(info) => {
                let seal = sealed::LegacyEncryption::parse(info)?;
                Self::open(&section, passwords, form, |bytes, word| seal.open(bytes, word))
            }
            None => {
                let bytes = section.decode().map_err(|error| KeyError::BadPem(error.text()))?;
                Self::load(form, &bytes)
            }
        }
    }

    /// The first private key of a text, and its form; `None` is PKCS#8 with a pass phrase.
    fn find(text: &[u8]) -> Result<(Option<Form>, Section<'_>), KeyError> {
        if text.len() > KEY_SIZE_MAX {
            return Err(KeyError::TooLong(KEY_SIZE_MAX));
        }
        let mut has_certificate = false;
        for section in pem::sections(text) {
            let section = section.map_err(|error| KeyError::BadPem(error.text()))?;
            let form = match section.label {
                "PRIVATE KEY" => Some(Form::Pkcs8),
                "RSA PRIVATE KEY" => Some(Form::Pkcs1),
                "EC PRIVATE KEY" => Some(Form::Sec1),
                "ENCRYPTED PRIVATE KEY" => None,
                label => {
                    has_certificate |= label.ends_with("CERTIFICATE");
                    continue;
                }
            };
            return Ok((form, section));
        }
        Err(match has_certificate {
            true => KeyError::OnlyCertificate,
            false if pem::is_der(text) => KeyError::Der,
            false => KeyError::NoStartLine,
        })
    }

    /// Makes a first signature in vain, if the key is of RSA: then the library computes more numbers of the key, with copies of its
    /// primes, which belong where the rest of the key is. Takes as long as several signatures.
    pub fn make_first_signature(&self) {
        if self.kind == Kind::Rsa
            && let Some(signer) = self.signing.choose_scheme(&[SignatureScheme::RSA_PSS_SHA256])
        {
            // A key that is too short for this scheme fails when a handshake uses it.
            let _ = signer.sign(b"");
        }
    }

    /// The first private key of a text, which has no pass phrase, as DER.
    ///
    /// # Errors
    /// As [`Key::read`].
    pub fn read_der(text: &[u8]) -> Result<Zeroizing<PrivateKeyDer<'static>>, KeyError> {
        let (form, section) = Self::find(text)?;
        let is_sealed = form.is_none() || section.header("DEK-Info").is_some();
        let form = form.filter(|_| !is_sealed).ok_or(KeyError::NoPassword)?;
        let bytes = section.decode().map_err(|error| KeyError::BadPem(error.text()))?;
        Ok(form.der(&bytes))
    }

    /// Cost of a signature with this key.
    pub fn cost(&self) -> Cost {
        match self.kind {
            Kind::Rsa => Cost::Slow,
            Kind::Ecdsa | Kind::Ed25519 | Kind::Other => Cost::Fast,
        }
    }

    fn open_pkcs8(section: &Section<'_>, passwords: &Passwords) -> Result<Self, KeyError> {
        let bytes = section.decode().map_err(|error| KeyError::BadPem(error.text()))?;
        let seal = sealed::Pbes2::parse(&bytes)?;
        Self::open(section, passwords, Form::Pkcs8, |_, word| seal.open(word))
    }

    /// Tries every pass phrase. Correct padding may be chance, so the result has to be a valid key as well.
    fn open(
        section: &Section<'_>,
        passwords: &Passwords,
        form: Form,
        open: impl Fn(&[u8], &[u8]) -> Option<Zeroizing<Vec<u8>>>,
    ) -> Result<Self, KeyError> {
        let sealed = section.decode().map_err(|error| KeyError::BadPem(error.text()))?;
        let mut error = KeyError::NoPassword;
        for word in passwords.iter() {
            match open(&sealed, word).map(|bytes| Self::load(form, &bytes)) {
                Some(Ok(key)) => return Ok(key),
                // The pass phrase opened the section, so its content is the reason, unless another pass phrase fits
                // better.
                Some(Err(why)) => error = why,
                None if error == KeyError::NoPassword => error = KeyError::BadDecrypt,
                None => {}
            }
        }
        Err(error)
    }

    fn load(form: Form, bytes: &[u8]) -> Result<Self, KeyError> {
        let der = form.der(bytes);
        let signing = any_supported_type(&der).map_err(|error| KeyError::BadKey(error.to_string()))?;
        let kind = match signing.algorithm() {
            SignatureAlgorithm::RSA => Kind::Rsa,
            SignatureAlgorithm::ECDSA => Kind::Ecdsa,
            SignatureAlgorithm::ED25519 => Kind::Ed25519,
            _ => Kind::Other,
        };
        Ok(Self { signing, kind })
    }
}

/// Contents of a PEM section.
#[derive(Debug, Clone, Copy)]
enum Form {
    Pkcs8,
    Pkcs1,
    Sec1,
}

impl Form {
    fn der(self, bytes: &[u8]) -> Zeroizing<PrivateKeyDer<'static>> {
        Zeroizing::new(match self {
            Self::Pkcs8 => PrivatePkcs8KeyDer::from(bytes.to_vec()).into(),
            Self::Pkcs1 => PrivatePkcs1KeyDer::from(bytes.to_vec()).into(),
            Self::Sec1 => PrivateSec1KeyDer::from(bytes.to_vec()).into(),
        })
    }
}

#[cfg(test)]
mod tests;
