//! Numbers as text, without allocation.

/// Room for the decimal digits of any `u64`.
pub const DECIMAL_MAX: usize = 20;

/// Appends a number in decimal. Cost: one reservation of `out` at most.
#[inline]
pub fn push_decimal(out: &mut Vec<u8>, number: u64) {
    let mut digits = [0; DECIMAL_MAX];
    out.extend_from_slice(decimal(number, &mut digits));
}

/// Writes a number in decimal to the end of `digits` and gives the part that was written.
#[inline]
pub fn decimal(mut number: u64, digits: &mut [u8; DECIMAL_MAX]) -> &[u8] {
    let mut at = DECIMAL_MAX;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        at = place;
        if number == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or(b"")
}

/// Room for the hexadecimal digits of any `u64`.
pub const HEX_MAX: usize = 16;

/// Writes a number in lower-case hexadecimal to the end of `digits` and gives the part that was written.
#[inline]
pub fn hex(mut number: u64, digits: &mut [u8; HEX_MAX]) -> &[u8] {
    let mut at = HEX_MAX;
    for (place, digit) in digits.iter_mut().enumerate().rev() {
        let nibble = (number & 0xf) as u8;
        *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
        number >>= 4;
        at = place;
        if number == 0 {
            break;
        }
    }
    digits.get(at..).unwrap_or(b"")
}

/// Appends bytes in lower-case hexadecimal, two digits each.
pub fn push_hex(bytes: &[u8], out: &mut Vec<u8>) {
    let digit = |nibble: u8| if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
    out.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]));
}

/// Parses a number of decimal digits only; `None` if it is empty, has other characters or overflows.
#[inline]
pub fn parse(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0u64, |number, &byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        number.checked_mul(10)?.checked_add(digit)
    })
}

/// The longest body: the largest value of an `off_t`, as in nginx.
pub const LENGTH_MAX: u64 = i64::MAX as u64;

/// Reads a `Content-Length`: digits only, at most [`LENGTH_MAX`].
#[inline]
pub fn parse_length(value: &[u8]) -> Option<u64> {
    parse(value).filter(|&length| length <= LENGTH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_numbers_equal_those_of_the_standard_library() {
        for number in [0, 1, 9, 10, 99, 100, 4096, 1 << 32, u64::MAX / 10, u64::MAX] {
            let mut out = b"x".to_vec();
            push_decimal(&mut out, number);
            assert_eq!(out, format!("x{number}").as_bytes());
            assert_eq!(hex(number, &mut [0; HEX_MAX]), format!("{number:x}").as_bytes());
            assert_eq!(parse(number.to_string().as_bytes()), Some(number));
        }
    }

    #[test]
    fn only_digits_are_a_number() {
        for text in ["", "+1", "-1", " 1", "1 ", "0x1", "18446744073709551616", "1,2", "\u{661}"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse(b"00042"), Some(42));
        assert_eq!(parse_length(b"9223372036854775807"), Some(LENGTH_MAX));
        assert_eq!(parse_length(b"9223372036854775808"), None);
    }
}
