//! Decoding and encoding: percent-encoding, base64, hexadecimal digits, UTF-8.

use super::transformed::{Transformed, compared, hex_digit, hex_pair};

/// `urlDecode`
pub(super) fn url(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    percent(value, out, |_| None)
}

/// `urlDecodeUni`
pub(super) fn url_unicode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    percent(value, out, wide)
}

/// Byte of `uXXXX` at the beginning of `text`. Of a code point beyond a byte its low byte, and of full-width ASCII its usual form.
fn wide(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"u").or_else(|| text.strip_prefix(b"U"))?;
    let high = hex_pair(digits)?;
    let low = hex_pair(digits.get(2..)?)?;
    Some(narrow(high, low))
}

/// Byte of a code point of 16 bits.
pub(super) fn narrow(high: u8, low: u8) -> u8 {
    if high == 0xff && (0x01..0x5f).contains(&low) { low.wrapping_add(0x20) } else { low }
}

fn percent(value: &[u8], out: &mut Vec<u8>, wide: fn(&[u8]) -> Option<u8>) -> Transformed {
    let Some(first) = memchr::memchr2(b'%', b'+', value) else { return Transformed::Same };
    let (before, mut rest) = value.split_at(first);
    out.extend_from_slice(before);
    let mut is_changed = false;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match byte {
            b'+' => {
                out.push(b' ');
                is_changed = true;
            }
            b'%' => {
                let decoded = match wide(after) {
                    Some(byte) => Some((byte, 5)),
                    None => hex_pair(after).map(|byte| (byte, 2)),
                };
                match decoded {
                    Some((byte, length)) => {
                        out.push(byte);
                        rest = after.get(length..).unwrap_or_default();
                        is_changed = true;
                    }
                    None => out.push(b'%'),
                }
            }
            _ => out.push(byte),
        }
    }
    if is_changed { Transformed::Changed } else { Transformed::Same }
}

/// `urlEncode`
pub(super) fn url_encode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    for &byte in value {
        match byte {
            b' ' => out.push(b'+'),
            b'*' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => out.push(byte),
            _ => {
                out.push(b'%');
                push_hex(byte, out);
            }
        }
    }
    compared(value, out)
}

fn push_hex(byte: u8, out: &mut Vec<u8>) {
    for digit in [byte >> 4, byte & 0x0f] {
        out.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
    }
}

/// `hexEncode`
pub(super) fn hex_encode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    value.iter().for_each(|byte| push_hex(*byte, out));
    compared(value, out)
}

/// `hexDecode`
pub(super) fn hex(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    // Bytes that are no digits have a value, too, as in ModSecurity: a decoder that ends there would hide what follows.
    let digit = |byte: u8| match byte {
        b'A'..=u8::MAX => (byte & 0xdf).wrapping_sub(b'A').wrapping_add(10),
        _ => byte.wrapping_sub(b'0'),
    };
    out.extend(value.chunks_exact(2).map(|pair| match pair {
        [high, low] => digit(*high).wrapping_mul(16).wrapping_add(digit(*low)),
        _ => 0,
    }));
    compared(value, out)
}

/// `sqlHexDecode`: `0x414243`
pub(super) fn sql_hex(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.strip_prefix(b"x").or_else(|| after.strip_prefix(b"X")).unwrap_or_default();
        let count = digits.iter().take_while(|byte| byte.is_ascii_hexdigit()).count() & !1;
        if byte == b'0' && count > 0 {
            out.extend(digits.get(..count).unwrap_or_default().chunks_exact(2).filter_map(hex_pair));
            rest = digits.get(count..).unwrap_or_default();
        } else {
            out.push(byte);
            rest = after;
        }
    }
    compared(value, out)
}

/// Value of a digit of base64, of either alphabet.
fn base64_digit(byte: u8) -> Option<u8> {
    match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    }
}

/// `base64Decode`: ends at the first byte that is no digit.
pub(crate) fn base64(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    base64_digits(value.iter().map_while(|byte| base64_digit(*byte)), out);
    compared(value, out)
}

/// `base64DecodeExt`: skips bytes that are no digits.
pub(super) fn base64_forgiving(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    base64_digits(value.iter().filter_map(|byte| base64_digit(*byte)), out);
    compared(value, out)
}

fn base64_digits(digits: impl Iterator<Item = u8>, out: &mut Vec<u8>) {
    let mut bits = 0u32;
    let mut count = 0;
    for digit in digits {
        bits = bits << 6 | u32::from(digit);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
}

/// `base64Encode`
pub(super) fn base64_encode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for three in value.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4u32 {
            let digit = DIGITS.get((bits >> (18 - 6 * at) & 63) as usize).copied().unwrap_or(b'=');
            out.push(if at as usize <= three.len() { digit } else { b'=' });
        }
    }
    compared(value, out)
}

/// `utf8toUnicode`: characters beyond ASCII as `%uXXXX`.
pub(super) fn utf8_to_unicode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if value.is_ascii() {
        return Transformed::Same;
    }
    for chunk in value.utf8_chunks() {
        for character in chunk.valid().chars() {
            let code = u32::from(character);
            if code < 0x80 {
                out.push(code as u8);
            } else {
                out.extend_from_slice(b"%u");
                let digits = if code > 0xffff { 6 } else { 4 };
                for at in (0..digits).rev() {
                    let digit = (code >> (4 * at) & 0x0f) as u8;
                    out.push(if digit < 10 { b'0' + digit } else { b'a' + digit - 10 });
                }
            }
        }
        out.extend_from_slice(chunk.invalid());
    }
    compared(value, out)
}

/// Returns true if every `%` begins a valid escape.
pub(crate) fn has_valid_escapes(value: &[u8]) -> bool {
    let mut rest = value;
    while let Some(at) = memchr::memchr(b'%', rest) {
        rest = rest.get(at + 1..).unwrap_or_default();
        let is_valid = match rest {
            [high, low, ..] => hex_digit(*high).is_some() && hex_digit(*low).is_some(),
            _ => false,
        };
        if !is_valid {
            return false;
        }
    }
    true
}

/// Decodes percent-encoding in a form or a query, `+` included.
pub(crate) fn form_value(value: &[u8], out: &mut Vec<u8>) {
    if percent(value, out, |_| None) == Transformed::Same {
        out.clear();
        out.extend_from_slice(value);
    }
}

/// Decodes percent-encoding without `+`, as in a path.
pub(crate) fn path_value(value: &[u8], out: &mut Vec<u8>) {
    let mut rest = value;
    while let Some(at) = memchr::memchr(b'%', rest) {
        let (before, after) = rest.split_at(at);
        out.extend_from_slice(before);
        let after = after.get(1..).unwrap_or_default();
        match hex_pair(after) {
            Some(byte) => {
                out.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            None => {
                out.push(b'%');
                rest = after;
            }
        }
    }
    out.extend_from_slice(rest);
}
