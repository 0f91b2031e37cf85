//! Base64 as PEM has it (RFC 7468): strict in its letters and its padding, lax in white space.

use zeroize::Zeroizing;

/// Not base64.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// RFC 7468, section 2: "each line … exactly 64 characters".
const LINE: usize = 64;

/// What a text means; the result is wiped, since it may be a key.
pub(crate) fn decode(text: &[u8]) -> Result<Zeroizing<Vec<u8>>, Malformed> {
    // As large as it can become, so that it is never moved and no copy stays behind.
    let mut out = Zeroizing::new(Vec::with_capacity(text.len() / 4 * 3 + 3));
    let mut bits: u32 = 0;
    let mut digits = 0;
    let mut padding = 0;
    for byte in text.iter().filter(|byte| !byte.is_ascii_whitespace()) {
        let digit = match byte {
            b'=' if digits + padding >= 2 && digits + padding < 4 => {
                padding += 1;
                continue;
            }
            _ if padding > 0 => return Err(Malformed),
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(Malformed),
        };
        bits = bits << 6 | u32::from(digit);
        digits += 1;
        if digits == 4 {
            let [_, bytes @ ..] = bits.to_be_bytes();
            out.extend_from_slice(&bytes);
            (bits, digits) = (0, 0);
        }
    }
    match (digits, padding) {
        (0, 0) => {}
        (3, 1) => out.extend_from_slice(&((bits >> 2) as u16).to_be_bytes()),
        (2, 2) => out.push((bits >> 4) as u8),
        _ => return Err(Malformed),
    }
    Ok(out)
}

/// The text of some bytes, in lines of 64 letters, each with its end.
pub(crate) fn encode_lines(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len() / 3 * 4 + bytes.len() / 48 + 8);
    let mut column = 0;
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let digit = DIGITS.get((bits >> (18 - 6 * at) & 63) as usize).copied();
            out.push(digit.filter(|_| at <= group.len()).map_or('=', char::from));
        }
        column += 4;
        if column == LINE {
            out.push('\n');
            column = 0;
        }
    }
    if column > 0 {
        out.push('\n');
    }
    out
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
    fn what_is_not_base64() {
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
