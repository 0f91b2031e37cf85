//! Base64 (RFC 4648).

/// The 64 letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alphabet {
    /// Section 4, with `+` and `/`.
    Standard,
    /// Section 5, with `-` and `_`, for URLs and names of files.
    Url,
}

/// Not base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes in the standard alphabet, with padding.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        out.extend((0..4).map(|at| {
            let digit = DIGITS.get((bits >> (18 - 6 * at) & 63) as usize);
            digit.copied().filter(|_| at <= group.len()).unwrap_or(b'=')
        }));
    }
    out
}

/// The text of some bytes in the alphabet for URLs, without padding (RFC 7515 section 2).
pub fn encode_url(bytes: &[u8]) -> String {
    let digits = encode(bytes).into_iter().filter(|byte| *byte != b'=');
    digits
        .map(|byte| match byte {
            b'+' => '-',
            b'/' => '_',
            other => char::from(other),
        })
        .collect()
}

/// Decodes the only text that [`encode_url`] makes of some bytes: one without padding, and without trailing bits that are set.
///
/// # Errors
/// Any other text.
pub fn decode_url(text: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    decode(text, Alphabet::Url, &mut bytes)?;
    let (_, rest) = bytes.as_chunks::<3>();
    let end = encode_url(rest);
    if text.contains(&b'=') || !text.ends_with(end.as_bytes()) {
        return Err(Malformed);
    }
    Ok(bytes)
}

/// Appends the decoded bytes of a text, with or without padding; text after the padding is ignored, and so are
/// trailing bits that make no whole byte. If the text is malformed, the bytes before the error have been appended.
///
/// # Errors
/// A letter that is not in the alphabet, or a single one at the end.
pub fn decode(text: &[u8], alphabet: Alphabet, out: &mut Vec<u8>) -> Result<(), Malformed> {
    let text = text.split(|byte| *byte == b'=').next().unwrap_or_default();
    for group in text.chunks(4) {
        let mut bits: u32 = 0;
        for byte in group {
            let digit = match (byte, alphabet) {
                (b'A'..=b'Z', _) => byte - b'A',
                (b'a'..=b'z', _) => byte - b'a' + 26,
                (b'0'..=b'9', _) => byte - b'0' + 52,
                (b'+', Alphabet::Standard) | (b'-', Alphabet::Url) => 62,
                (b'/', Alphabet::Standard) | (b'_', Alphabet::Url) => 63,
                _ => return Err(Malformed),
            };
            bits = bits << 6 | u32::from(digit);
        }
        // The digits stand at the right; three bytes of them count, less those that are not there.
        let [_, first, second, third] = (bits << (6 * (4 - group.len()))).to_be_bytes();
        match group.len() {
            4 => out.extend_from_slice(&[first, second, third]),
            3 => out.extend_from_slice(&[first, second]),
            2 => out.push(first),
            _ => return Err(Malformed),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded(text: &str, alphabet: Alphabet) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(text.as_bytes(), alphabet, &mut out).is_ok().then_some(out)
    }

    #[test]
    fn encoding_round_trips() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(encode(bytes.as_bytes()), text.as_bytes());
            for text in [text, text.trim_end_matches('=')] {
                assert_eq!(decoded(text, Alphabet::Standard).as_deref(), Some(bytes.as_bytes()), "{text}");
            }
        }
        let all: Vec<u8> = (0..=255).collect();
        let text = String::from_utf8(encode(&all)).unwrap();
        assert_eq!(decoded(&text, Alphabet::Standard), Some(all.clone()));
        assert_eq!(decoded(&text, Alphabet::Url), None);
        assert_eq!(decoded(&text.replace('+', "-").replace('/', "_"), Alphabet::Url), Some(all));
    }

    #[test]
    fn base64url_has_one_text_for_some_bytes() {
        for size in 0..10 {
            let bytes: Vec<u8> = (0..size).map(|byte| 255 - byte * 3).collect();
            let text = encode_url(&bytes);
            assert_eq!(decode_url(text.as_bytes()), Ok(bytes), "{text}");
        }
        for text in ["A", "AB", "AAB", "AA==", "=", "AAAA=", "AA=A", "A+AA", "A/AA", "AAAA\n", " AAA"] {
            assert_eq!(decode_url(text.as_bytes()), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn invalid_base64_is_refused() {
        for text in ["A", "AAAAA", "A*", "\u{e9}", " AAA", "AAA\0", "AA-A", "AA_A"] {
            assert_eq!(decoded(text, Alphabet::Standard), None, "{text}");
        }
        assert_eq!(decoded("AA==garbage", Alphabet::Standard), Some(vec![0]));
    }
}
