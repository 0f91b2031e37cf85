//! Escapes of HTML, JavaScript, CSS and ANSI C.

use super::decode::narrow;
use super::transformed::{Transformed, compared, hex_digit, hex_pair};

/// `htmlEntityDecode`
pub(super) fn html_entities(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if !value.contains(&b'&') {
        return Transformed::Same;
    }
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte == b'&').then(|| entity(after)).flatten() {
            Some((byte, length)) => {
                out.push(byte);
                rest = after.get(length..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    compared(value, out)
}

/// Byte and length of the entity behind `&`.
fn entity(text: &[u8]) -> Option<(u8, usize)> {
    const NAMES: [(&[u8], u8); 5] =
        [(b"quot", b'"'), (b"amp", b'&'), (b"lt", b'<'), (b"gt", b'>'), (b"nbsp", 0xa0)];
    let (byte, length) = if let Some(number) = text.strip_prefix(b"#") {
        let is_hex = matches!(number.first(), Some(b'x' | b'X'));
        let digits = if is_hex { number.get(1..)? } else { number };
        let radix = if is_hex { 16 } else { 10 };
        let mut code = 0u32;
        let mut count = 0;
        for digit in digits.iter().map_while(|byte| char::from(*byte).to_digit(radix)) {
            code = code.saturating_mul(radix).saturating_add(digit);
            count += 1;
        }
        if count == 0 {
            return None;
        }
        (code as u8, 1 + usize::from(is_hex) + count)
    } else {
        let count = text.iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        let name = text.get(..count)?;
        let (_, byte) = NAMES.iter().find(|(candidate, _)| candidate.eq_ignore_ascii_case(name))?;
        (*byte, count)
    };
    let has_end = text.get(length) == Some(&b';');
    Some((byte, length + usize::from(has_end)))
}

/// Byte of a one-letter escape of C.
fn letter(byte: u8) -> Option<u8> {
    Some(match byte {
        b'a' => 0x07,
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        _ => return None,
    })
}

/// Value and length of an octal number of at most three digits, below 256.
fn octal(text: &[u8]) -> Option<(u8, usize)> {
    let mut value = 0u32;
    let mut count = 0;
    for digit in text.iter().take(3).map_while(|byte| char::from(*byte).to_digit(8)) {
        let next = value * 8 + digit;
        if next > 255 {
            break;
        }
        value = next;
        count += 1;
    }
    (count > 0).then_some((value as u8, count))
}

/// `jsDecode`
pub(super) fn js_decode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    backslashes(value, out, |text| {
        match text {
            [b'u', digits @ ..] if digits.len() >= 4 => {
                if let (Some(high), Some(low)) = (hex_pair(digits), hex_pair(digits.get(2..)?)) {
                    return Some((narrow(high, low), 5));
                }
            }
            [b'x', digits @ ..] => {
                if let Some(byte) = hex_pair(digits) {
                    return Some((byte, 3));
                }
            }
            _ => {}
        }
        let first = *text.first()?;
        octal(text).or_else(|| letter(first).map(|byte| (byte, 1))).or(Some((first, 1)))
    })
}

/// `escapeSeqDecode`
pub(super) fn escape_sequences(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    backslashes(value, out, |text| {
        let first = *text.first()?;
        if let [b'x' | b'X', digits @ ..] = text
            && let Some(byte) = hex_pair(digits)
        {
            return Some((byte, 3));
        }
        // Three digits may be more than a byte, whose low bits stay.
        let digits = text.iter().take(3).map_while(|byte| char::from(*byte).to_digit(8));
        let (count, code) = digits.fold((0, 0u32), |(count, code), digit| (count + 1, code * 8 + digit));
        if count > 0 {
            return Some((code as u8, count));
        }
        // Of an unknown escape the backslash is removed.
        Some((letter(first).unwrap_or(first), 1))
    })
}

/// Replaces each backslash and what `decode` reads behind it.
fn backslashes(value: &[u8], out: &mut Vec<u8>, decode: fn(&[u8]) -> Option<(u8, usize)>) -> Transformed {
    if !value.contains(&b'\\') {
        return Transformed::Same;
    }
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        match (byte == b'\\').then(|| decode(after)).flatten() {
            Some((byte, length)) => {
                out.push(byte);
                rest = after.get(length..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                rest = after;
            }
        }
    }
    compared(value, out)
}

/// `cssDecode`: a backslash with up to six hexadecimal digits and one white space, or with any other byte.
pub(super) fn css_decode(value: &[u8], out: &mut Vec<u8>) -> Transformed {
    if !value.contains(&b'\\') {
        return Transformed::Same;
    }
    let mut rest = value;
    while let Some((&byte, after)) = rest.split_first() {
        if byte != b'\\' {
            out.push(byte);
            rest = after;
            continue;
        }
        let digits = after.iter().take(6).take_while(|byte| byte.is_ascii_hexdigit()).count();
        if digits > 0 {
            let number = after.get(..digits).unwrap_or_default();
            let code = number
                .iter()
                .filter_map(|byte| hex_digit(*byte))
                .fold(0u32, |sum, digit| sum << 4 | u32::from(digit));
            out.push(narrow((code >> 8) as u8, code as u8));
            rest = after.get(digits..).unwrap_or_default();
            if rest.first().is_some_and(u8::is_ascii_whitespace) {
                rest = rest.get(1..).unwrap_or_default();
            }
        } else {
            rest = after.get(1..).unwrap_or_default();
            match after.first() {
                // An escaped line end is nothing.
                Some(b'\n') => {}
                Some(&byte) => out.push(byte),
                None => {}
            }
        }
    }
    compared(value, out)
}
