//! Keys of those who may change configurations: Ed25519, in PEM-like lines of text.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use tw_http::base64::{self, Alphabet};
use zeroize::Zeroizing;

use super::ConfigurationError;

/// Beginnings of the lines of the two files.
const PRIVATE: &str = "tailwater-fleet-private-key ";
const PUBLIC: &str = "tailwater-fleet-public-key ";

/// Private key.
pub struct SigningKey(Ed25519KeyPair);

/// Public key, by which a node knows who may change its configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicKey(Vec<u8>);

/// Document with a signature, as it is in the store.
#[derive(Serialize, Deserialize)]
struct SignedDocument {
    /// Text of the document, in base64.
    document: String,
    signature: String,
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&base64::encode(bytes)).into_owned()
}

fn bytes_of(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    base64::decode(text.as_bytes(), Alphabet::Standard, &mut bytes).ok()?;
    Some(bytes)
}

/// Bytes that are signed: a version is no order, whatever it contains.
fn signed_bytes(kind: &str, document: &[u8]) -> Vec<u8> {
    [b"tailwater fleet ", kind.as_bytes(), b"\0", document].concat()
}

impl SigningKey {
    /// A new key: the texts of its private and its public file.
    ///
    /// # Errors
    /// Fails without random numbers.
    pub fn generate() -> Result<(Zeroizing<String>, String), ConfigurationError> {
        let failed = |_| ConfigurationError::new("no key can be made");
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(failed)?;
        let private = Zeroizing::new(format!("{PRIVATE}{}\n", text_of(document.as_ref())));
        let public = Self::read(&private)?.public();
        Ok((private, format!("{PUBLIC}{}\n", text_of(&public.0))))
    }

    /// Reads the private file.
    ///
    /// # Errors
    /// The text is no such key.
    pub fn read(text: &str) -> Result<Self, ConfigurationError> {
        let bytes = text.trim().strip_prefix(PRIVATE.trim_end()).and_then(|rest| bytes_of(rest.trim()));
        let bytes =
            Zeroizing::new(bytes.ok_or_else(|| ConfigurationError::new("it is no private key of a fleet"))?);
        let pair = Ed25519KeyPair::from_pkcs8(&bytes);
        pair.map(Self).map_err(|_| ConfigurationError::new("the private key is damaged"))
    }

    /// The public key of it.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.public_key().as_ref().to_vec())
    }

    /// Signs a document of this kind.
    pub(super) fn sign(&self, kind: &str, document: &[u8]) -> Vec<u8> {
        let signature = self.0.sign(&signed_bytes(kind, document));
        let signed = SignedDocument { document: text_of(document), signature: text_of(signature.as_ref()) };
        // Texts only, which cannot fail.
        serde_json::to_vec(&signed).unwrap_or_default()
    }
}

impl PublicKey {
    /// Reads the public file.
    ///
    /// # Errors
    /// The text is no such key.
    pub fn read(text: &str) -> Result<Self, ConfigurationError> {
        let bytes = text.trim().strip_prefix(PUBLIC.trim_end()).and_then(|rest| bytes_of(rest.trim()));
        let bytes = bytes.filter(|bytes| bytes.len() == 32);
        bytes.map(Self).ok_or_else(|| ConfigurationError::new("it is no public key of a fleet"))
    }

    /// Document of this kind, if its signature is right.
    pub(super) fn verify(&self, kind: &str, signed: &[u8]) -> Result<Vec<u8>, ConfigurationError> {
        let signed = serde_json::from_slice::<SignedDocument>(signed).ok();
        let parts =
            signed.and_then(|signed| Some((bytes_of(&signed.document)?, bytes_of(&signed.signature)?)));
        let (document, signature) =
            parts.ok_or_else(|| ConfigurationError::new("it is no signed document"))?;
        let is_right =
            UnparsedPublicKey::new(&ED25519, &self.0).verify(&signed_bytes(kind, &document), &signature);
        is_right.map_err(|_| ConfigurationError::new("its signature is not that of the trusted key"))?;
        Ok(document)
    }
}

/// Document without a look at the signature, for those who only show it.
pub(super) fn unverified(signed: &[u8]) -> Option<Vec<u8>> {
    bytes_of(&serde_json::from_slice::<SignedDocument>(signed).ok()?.document)
}
