//! Base64 (RFC 4648 section 4) of digests.

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes, with padding.
pub(crate) fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        out.extend((0..4).map(|at| match at <= group.len() {
            true => DIGITS[(bits >> (18 - 6 * at) & 63) as usize],
            false => b'=',
        }));
    }
    out
}

/// The bytes of a text, with or without padding; `None` if it is malformed.
pub(crate) fn decode(text: &[u8]) -> Option<Vec<u8>> {
    let text = text.split(|byte| *byte == b'=').next().unwrap_or_default();
    let mut out = Vec::with_capacity(text.len() * 3 / 4);
    for group in text.chunks(4) {
        let mut bits = 0_u32;
        for byte in group {
            let digit = DIGITS.iter().position(|digit| digit == byte)?;
            bits = bits << 6 | digit as u32;
        }
        let bytes = (bits << (6 * (4 - group.len()))).to_be_bytes();
        match group.len() {
            1 => return None,
            digits => out.extend_from_slice(&bytes[1..digits]),
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text.as_bytes());
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes.as_bytes()));
            assert_eq!(decode(text.trim_end_matches('=').as_bytes()).as_deref(), Some(bytes.as_bytes()));
        }
        for text in ["A", "AAAAA", "A*", "é", " AAA"] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
