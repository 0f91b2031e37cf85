//! Base32 with any alphabet (RFC 4648 section 6 and 7).

use std::sync::Arc;

use tw_conf::{ConfError, Node, Setting};

/// Letters of base32.
const LETTERS: usize = 32;
/// The alphabet of section 7, in lower case.
const DEFAULT: &[u8; LETTERS] = b"0123456789abcdefghijklmnopqrstuv";
/// Bytes that eight letters encode.
const GROUP: usize = 5;

/// Settings of one block.
#[derive(Debug, Clone)]
pub(crate) struct Base32 {
    pub(super) padding: bool,
    pub(super) alphabet: Arc<Alphabet>,
}

/// Settings of `set_encode_base32` and `set_decode_base32` as written.
#[derive(Default)]
pub(crate) struct RawBase32 {
    pub(super) padding: Setting<bool>,
    pub(super) old_padding: Setting<bool>,
    pub(super) alphabet: Setting<Alphabet>,
}

/// The letters in their order.
#[derive(Debug, Clone)]
pub(super) struct Alphabet([u8; LETTERS]);

impl Default for Base32 {
    fn default() -> Self {
        Self { padding: true, alphabet: Arc::new(Alphabet(*DEFAULT)) }
    }
}

impl RawBase32 {
    pub(crate) fn resolve(self, outer: &Base32) -> Base32 {
        let padding = self.padding.take().or(self.old_padding.take());
        Base32 {
            padding: padding.unwrap_or(outer.padding),
            alphabet: self.alphabet.take().map_or_else(|| outer.alphabet.clone(), Arc::new),
        }
    }
}

impl Alphabet {
    /// Reads `set_base32_alphabet`.
    pub(super) fn read(node: &Node) -> Result<Self, ConfError> {
        let word = node.arg(0)?;
        let letters: [u8; LETTERS] =
            (*word.bytes).try_into().map_err(|_| node.error("must have 32 letters").at(word.span))?;
        let is_twice = (1..LETTERS).any(|at| letters[..at].contains(&letters[at]));
        if is_twice || letters.contains(&b'=') {
            Err(node.error("must have 32 different letters other than \"=\"").at(word.span))
        } else {
            Ok(Self(letters))
        }
    }
}

impl Base32 {
    /// Appends the text of some bytes.
    pub(super) fn encode(&self, bytes: &[u8], out: &mut Vec<u8>) {
        for group in bytes.chunks(GROUP) {
            let bits = (0..GROUP).fold(0u64, |bits, at| bits << 8 | u64::from(*group.get(at).unwrap_or(&0)));
            let digits = (group.len() * 8).div_ceil(5);
            out.extend((0..8).filter(|at| *at < digits || self.padding).map(|at| {
                if at < digits { self.alphabet.0[(bits >> (35 - 5 * at) & 31) as usize] } else { b'=' }
            }));
        }
    }

    /// Appends the bytes of a text, with padding or without it; nothing if it is malformed.
    pub(super) fn decode(&self, text: &[u8], out: &mut Vec<u8>) {
        let (digits, padding) =
            text.split_at(text.iter().position(|byte| *byte == b'=').unwrap_or(text.len()));
        let start = out.len();
        if padding.iter().any(|byte| *byte != b'=') {
            return;
        }
        for group in digits.chunks(8) {
            let mut bits = 0u64;
            for letter in group {
                let Some(digit) = self.alphabet.0.iter().position(|candidate| candidate == letter) else {
                    return out.truncate(start);
                };
                bits = bits << 5 | digit as u64;
            }
            // Five bits a letter: one, three or six of them end within a byte that is not there.
            if matches!(group.len(), 1 | 3 | 6) {
                return out.truncate(start);
            }
            let bytes = (bits << (64 - 5 * group.len())).to_be_bytes();
            out.extend_from_slice(&bytes[..group.len() * 5 / 8]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_rfc_4648() {
        let standard =
            |padding| Base32 { padding, alphabet: Arc::new(Alphabet(*b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")) };
        for (bytes, text, hex) in [
            ("", "", ""),
            ("f", "MY======", "co======"),
            ("fo", "MZXQ====", "cpng===="),
            ("foo", "MZXW6===", "cpnmu==="),
            ("foob", "MZXW6YQ=", "cpnmuog="),
            ("fooba", "MZXW6YTB", "cpnmuoj1"),
            ("foobar", "MZXW6YTBOI======", "cpnmuoj1e8======"),
        ] {
            for (base32, expected) in [
                (standard(true), text),
                (standard(false), text.trim_end_matches('=')),
                (Base32::default(), hex),
            ] {
                let mut encoded = Vec::new();
                let mut decoded = Vec::new();
                base32.encode(bytes.as_bytes(), &mut encoded);
                assert_eq!(encoded, expected.as_bytes(), "{bytes}");
                base32.decode(&encoded, &mut decoded);
                assert_eq!(decoded, bytes.as_bytes(), "{expected}");
            }
        }
        for malformed in ["M", "MZX", "MZXW6Y", "mz", "M1", "\u{e9}", "MY=junk", "MY==MY=="] {
            let mut out = b"kept".to_vec();
            standard(true).decode(malformed.as_bytes(), &mut out);
            assert_eq!(out, b"kept", "{malformed}");
        }
    }
}
