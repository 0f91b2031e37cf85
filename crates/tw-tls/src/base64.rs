//! Base64 as PEM has it (RFC 7468): strict in its letters and its padding, lax in white space.

use tw_http::base64::{self, Alphabet};
use zeroize::Zeroizing;

pub(crate) use tw_http::base64::Malformed;

/// RFC 7468, section 2: "each line … exactly 64 characters".
const LINE: usize = 64;

/// Decodes a text. The result is wiped on drop, since it may be a key.
pub(crate) fn decode(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, Malformed> {
    // The buffer has its final size, so that it is never moved and no copy of the secret stays behind.
    let mut letters = Zeroizing::new(Vec::with_capacity(text.len()));
    // Tools leave control characters at the ends of lines, too.
    letters.extend(text.iter().filter(|byte| **byte > b' '));
    let padding = letters.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = letters.len() - padding;
    if padding > 2 || letters.len() % 4 != 0 || letters.iter().take(digits).any(|byte| *byte == b'=') {
        return Err(Malformed);
    }
    let mut out = Zeroizing::new(Vec::with_capacity(letters.len() / 4 * 3));
    base64::decode(&letters, Alphabet::Standard, &mut out)?;
    Ok(out)
}

/// The text of some bytes, in lines of 64 letters, each with its end.
pub(crate) fn encode_lines(bytes: &[u8]) -> String {
    let text = base64::encode(bytes);
    let lines = text.chunks(LINE).flat_map(|line| line.iter().chain(b"\n"));
    lines.copied().map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_section_10() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(decode(text.as_bytes()).unwrap().as_slice(), bytes.as_bytes());
            assert_eq!(encode_lines(bytes.as_bytes()).trim_end(), text);
        }
    }

    #[test]
    fn invalid_base64_is_refused() {
        for text in ["Z", "Zg", "Zg=", "Zm9v=", "Zg==Zg==", "Z===", "====", "Zm9*", "=Zg=", "Zm9vY"] {
            assert_eq!(decode(text.as_bytes()), Err(Malformed), "{text}");
        }
    }

    #[test]
    fn lines() {
        let bytes: Vec<u8> = (0..=255).collect();
        let text = encode_lines(&bytes);
        assert!(text.lines().all(|line| line.len() <= LINE) && text.ends_with("\n"));
        assert_eq!(decode(text.replace('\n', "\r\n ").as_bytes()).unwrap().as_slice(), bytes);
    }
}
