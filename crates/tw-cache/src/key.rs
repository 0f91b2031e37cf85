//! Cache key of a response: the MD5 of the text that `proxy_cache_key` makes. nginx uses the same key, so its files
//! are found in its directories.

use std::fmt;

use md5::{Digest, Md5};

/// The name of an entry: the MD5 of its key's text.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 16]);

impl Key {
    /// The key with this text.
    #[must_use]
    pub fn of(text: &[u8]) -> Self {
        Self(Md5::digest(text).into())
    }

    /// Key of one variant of a response that differs with request fields (`Vary`). `variant` is the text that
    /// distinguishes it from the others.
    #[must_use]
    pub fn variant(self, variant: &[u8]) -> Self {
        let mut digest = Md5::new();
        digest.update(self.0);
        digest.update(variant);
        Self(digest.finalize().into())
    }

    /// The 32 hexadecimal digits that name the file.
    #[must_use]
    pub fn hex(self) -> [u8; 32] {
        let mut hex = [0; 32];
        for (pair, byte) in hex.chunks_exact_mut(2).zip(self.0) {
            if let [high, low] = pair {
                *high = digit(byte >> 4);
                *low = digit(byte & 15);
            }
        }
        hex
    }

    /// Parses a key from a file name; `None` if the name is no key.
    #[must_use]
    pub fn from_hex(name: &[u8]) -> Option<Self> {
        let name: &[u8; 32] = name.try_into().ok()?;
        let mut key = [0; 16];
        for (byte, pair) in key.iter_mut().zip(name.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = value(*high)? << 4 | value(*low)?;
        }
        Some(Self(key))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.hex()))
    }
}

fn digit(value: u8) -> u8 {
    if value < 10 { b'0' + value } else { b'a' + value - 10 }
}

/// Accepts only what [`Key::hex`] writes: a name with capitals is not one of our files.
fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_are_md5_in_hex_and_parse_back() {
        let key = Key::of(b"http://example.com/");
        assert_eq!(&key.hex(), b"a6bf1757fff057f266b697df9cf176fd");
        assert_eq!(Key::from_hex(&key.hex()), Some(key));
        assert_eq!(Key::from_hex(b"A6BF1757FFF057F266B697DF9CF176FD"), None);
        assert_eq!(Key::from_hex(b"a6bf1757fff057f266b697df9cf176f"), None);
        assert_eq!(Key::from_hex(b"a6bf1757fff057f266b697df9cf176fd0"), None);
    }

    #[test]
    fn variants_have_keys_of_their_own() {
        let key = Key::of(b"/");
        assert_ne!(key.variant(b"gzip"), key);
        assert_ne!(key.variant(b"gzip"), key.variant(b""));
    }
}
