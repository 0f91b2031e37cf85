//! Values of a store that only nodes of the fleet can read or write: sealed by AES-256-GCM with a key that the engine does not have.
//!
//! ```text
//! version (1) · name of the key (8) · nonce (12) · AES-256-GCM (value) · tag (16)
//! ```
//! The fleet, the store and the key of the entry are authenticated, so an engine cannot exchange entries. It can put back an older one: a
//! value that must not go back says how old it is.

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand;
use tw_http::base64::{self, Alphabet};
use zeroize::Zeroizing;

use crate::engine::EngineError;
use crate::store::{Entry, Store, StoreSettings};
use crate::store_client::{StoreClient, StoreClientWatch};

/// Bytes of a key.
const KEY: usize = 32;
/// Bytes of the name of a key: the first ones of its digest.
const NAME: usize = 8;
/// First byte of a sealed value.
const VERSION: u8 = 1;
/// Bytes in front of the sealed value.
const HEAD: usize = 1 + NAME + NONCE_LEN;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Keys of a fleet.
    ///
    /// Keys of a fleet. Two are needed for a rotation.
    const KEYS_MAX: usize = 8, count, "the configuration is refused";
}

/// Keys of a fleet: the first one seals, all open.
#[derive(Clone, Default)]
pub struct FleetKeys(Arc<[FleetKey]>);

struct FleetKey {
    raw: Zeroizing<[u8; KEY]>,
    name: [u8; NAME],
    cipher: LessSafeKey,
}

impl PartialEq for FleetKeys {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|key| &*key.raw).eq(other.0.iter().map(|key| &*key.raw))
    }
}

impl Eq for FleetKeys {}

impl fmt::Debug for FleetKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FleetKeys({})", self.0.len())
    }
}

/// Reason why keys cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FleetKeyError {
    /// The file of this number, from 1, has no key.
    NoKey(usize),
    /// Two files have the same key.
    Twice,
    /// Too many files.
    TooMany,
}

impl fmt::Display for FleetKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey(number) => write!(
                f,
                "file {number} does not begin with a line of 32 bytes in base64 or hexadecimal digits"
            ),
            Self::Twice => f.write_str("two files have the same key"),
            Self::TooMany => write!(f, "more than {KEYS_MAX} files"),
        }
    }
}

impl std::error::Error for FleetKeyError {}

/// Reason why a value cannot be opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenError {
    /// No key of this node has sealed it.
    UnknownKey,
    /// Damaged, or sealed for another entry.
    Damaged,
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownKey => "it is encrypted with none of the keys of \"encryption_key\"",
            Self::Damaged => "it is damaged, or was encrypted for another entry",
        })
    }
}

impl std::error::Error for OpenError {}

impl FleetKeys {
    /// Reads the contents of key files: 32 bytes, in base64 or hexadecimal digits, on the first line.
    ///
    /// # Errors
    /// See [`FleetKeyError`].
    pub fn read(files: &[&[u8]]) -> Result<Self, FleetKeyError> {
        if files.len() > KEYS_MAX {
            return Err(FleetKeyError::TooMany);
        }
        let mut keys: Vec<FleetKey> = Vec::new();
        for (at, file) in files.iter().enumerate() {
            let raw = key_of(file).ok_or(FleetKeyError::NoKey(at + 1))?;
            let cipher =
                UnboundKey::new(&AES_256_GCM, raw.as_slice()).map_err(|_| FleetKeyError::NoKey(at + 1))?;
            let digest = digest(&SHA256, raw.as_slice());
            let name = digest.as_ref().first_chunk().copied().ok_or(FleetKeyError::NoKey(at + 1))?;
            if keys.iter().any(|fleet_key| fleet_key.name == name) {
                return Err(FleetKeyError::Twice);
            }
            keys.push(FleetKey { raw, name, cipher: LessSafeKey::new(cipher) });
        }
        Ok(Self(keys.into()))
    }

    /// Returns true without any key.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Seals a value for a place.
    ///
    /// # Errors
    /// Fails without a key or random numbers.
    pub fn seal(&self, place: &str, value: &[u8]) -> Result<Vec<u8>, EngineError> {
        let failed = |_| EngineError::Refused("a value cannot be encrypted".to_owned());
        let key = self.0.first();
        let key =
            key.ok_or_else(|| EngineError::Refused("the fleet has no \"encryption_key\"".to_owned()))?;
        let mut nonce = [0; NONCE_LEN];
        rand::fill(&mut nonce).map_err(failed)?;
        let mut sealed = Vec::with_capacity(HEAD + value.len() + AES_256_GCM.tag_len());
        sealed.push(VERSION);
        sealed.extend_from_slice(&key.name);
        sealed.extend_from_slice(&nonce);
        // The buffer becomes the ciphertext, so that no copy of the value stays behind.
        let mut body = Vec::with_capacity(value.len() + AES_256_GCM.tag_len());
        body.extend_from_slice(value);
        let aad = Aad::from(place.as_bytes());
        key.cipher
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut body)
            .map_err(failed)?;
        sealed.extend_from_slice(&body);
        Ok(sealed)
    }

    /// Opens a value that was sealed for a place.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, place: &str, sealed: &[u8]) -> Result<Zeroizing<Vec<u8>>, OpenError> {
        let (head, body) = sealed.split_at_checked(HEAD).ok_or(OpenError::Damaged)?;
        let Some((&VERSION, head)) = head.split_first() else { return Err(OpenError::Damaged) };
        let (name, nonce) = head.split_at_checked(NAME).ok_or(OpenError::Damaged)?;
        let key = self.0.iter().find(|key| key.name == name).ok_or(OpenError::UnknownKey)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| OpenError::Damaged)?;
        let mut body = Zeroizing::new(body.to_vec());
        let aad = Aad::from(place.as_bytes());
        let size = key.cipher.open_in_place(nonce, aad, &mut body).map_err(|_| OpenError::Damaged)?.len();
        body.truncate(size);
        Ok(body)
    }

    /// Returns true if the key that seals has sealed this.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        let name = sealed.get(1..=NAME);
        self.0.first().is_some_and(|key| name == Some(key.name.as_slice()))
    }
}

fn key_of(file: &[u8]) -> Option<Zeroizing<[u8; KEY]>> {
    let line = file.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let mut bytes = Zeroizing::new(Vec::with_capacity(KEY + 2));
    if line.len() == 2 * KEY {
        for pair in line.chunks(2) {
            bytes.push(u8::from_str_radix(str::from_utf8(pair).ok()?, 16).ok()?);
        }
    } else if line.len() <= 2 * KEY {
        base64::decode(line, Alphabet::Standard, &mut bytes).ok()?;
    }
    bytes.as_slice().try_into().map(Zeroizing::new).ok()
}

/// Value of a sealed store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenedEntry {
    /// Value; `None` if it was removed or never there.
    pub value: Option<Zeroizing<Vec<u8>>>,
    /// Version, for compare-and-set.
    pub version: u64,
    /// True if a key has sealed it that does not seal any more.
    pub is_outdated: bool,
}

/// Store whose values only nodes of the fleet can read or write.
#[derive(Clone)]
pub struct SealedStore {
    store: StoreClient,
    /// Beginning of places: fleet and store.
    place: Box<str>,
}

impl SealedStore {
    /// Sealed values of a store.
    pub fn new(store: StoreClient, settings: &StoreSettings) -> Self {
        let place = format!("{}\0{}\0", store.fleet().settings().name, settings.name).into();
        Self { store, place }
    }

    /// Store with the values as they are.
    pub fn store(&self) -> &StoreClient {
        &self.store
    }

    fn keys(&self) -> &FleetKeys {
        &self.store.fleet().settings().keys
    }

    /// Opens an entry of the store.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(&self, entry: Entry) -> Result<OpenedEntry, OpenError> {
        let Entry { key, value, version } = entry;
        let is_outdated = value.as_ref().is_some_and(|sealed| !self.keys().is_current(sealed));
        let place = format!("{}{key}", self.place);
        let value = value.map(|sealed| self.keys().open(&place, &sealed)).transpose()?;
        Ok(OpenedEntry { value, version, is_outdated })
    }

    /// Value of a key.
    ///
    /// # Errors
    /// Fails as the engine does; a value that cannot be opened is [refused](EngineError::Refused).
    pub async fn get(&self, key: &str) -> Result<OpenedEntry, EngineError> {
        match self.store.get(key).await? {
            None => Ok(OpenedEntry { value: None, version: 0, is_outdated: false }),
            Some(entry) => self.open(entry).map_err(|error| {
                EngineError::Refused(format!("the value of \"{key}\" cannot be used: {error}"))
            }),
        }
    }

    /// Sets a value, as [`Store::set`].
    ///
    /// # Errors
    /// Fails as the engine does.
    pub async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        let sealed = self.keys().seal(&format!("{}{key}", self.place), value)?;
        self.store.set(key, &sealed, expected).await
    }

    /// Removes a value, as [`Store::remove`].
    ///
    /// # Errors
    /// Fails as the engine does.
    pub async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        self.store.remove(key, expected).await
    }

    /// Watches all keys; [`open`](Self::open) opens the entries.
    ///
    /// # Errors
    /// Fails as the engine does.
    pub async fn watch(&self) -> Result<StoreClientWatch, EngineError> {
        self.store.watch().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(files: &[&str]) -> FleetKeys {
        FleetKeys::read(&files.iter().map(|file| file.as_bytes()).collect::<Vec<_>>()).unwrap()
    }

    const ONE: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\n";
    const TWO: &str = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff";

    #[test]
    fn sealed_values_are_opened_at_their_place_only() {
        let one = keys(&[ONE]);
        let sealed = one.seal("edge\0certificates\0a", b"secret").unwrap();
        assert!(!sealed.windows(6).any(|bytes| bytes == b"secret"));
        assert_ne!(sealed, one.seal("edge\0certificates\0a", b"secret").unwrap());
        assert_eq!(one.open("edge\0certificates\0a", &sealed).unwrap().as_slice(), b"secret");
        assert_eq!(one.open("edge\0certificates\0b", &sealed), Err(OpenError::Damaged));
        assert_eq!(keys(&[TWO]).open("edge\0certificates\0a", &sealed), Err(OpenError::UnknownKey));
        for at in 0..sealed.len() {
            let mut bad = sealed.clone();
            bad[at] ^= 1;
            assert!(one.open("edge\0certificates\0a", &bad).is_err(), "{at}");
            assert!(one.open("edge\0certificates\0a", &sealed[..at]).is_err(), "{at}");
        }
    }

    #[test]
    fn keys_are_rotated_by_listing_two() {
        let old = keys(&[ONE]);
        let both = keys(&[TWO, ONE]);
        let new = keys(&[TWO]);
        let sealed = old.seal("a", b"x").unwrap();
        assert!(old.is_current(&sealed) && !both.is_current(&sealed));
        assert_eq!(both.open("a", &sealed).unwrap().as_slice(), b"x");
        let again = both.seal("a", b"x").unwrap();
        assert!(both.is_current(&again) && new.open("a", &again).is_ok());
        assert_eq!(old.open("a", &again), Err(OpenError::UnknownKey));
        assert_eq!(format!("{both:?}"), "FleetKeys(2)");
    }

    #[test]
    fn other_files_are_no_keys() {
        let read =
            |files: &[&str]| FleetKeys::read(&files.iter().map(|file| file.as_bytes()).collect::<Vec<_>>());
        for text in ["", "\n", "AAEC", &TWO[1..], "x", &format!("{TWO}{TWO}")] {
            assert_eq!(read(&[ONE, text]), Err(FleetKeyError::NoKey(2)), "{text}");
        }
        assert_eq!(read(&[ONE, ONE]), Err(FleetKeyError::Twice));
        assert_eq!(read(&[ONE; 9]), Err(FleetKeyError::TooMany));
        assert!(keys(&[]).is_empty() && keys(&[]).seal("a", b"").is_err());
    }
}
