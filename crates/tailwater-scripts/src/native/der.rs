//! The few structures of DER that keys of WebCrypto need.

/// Tags of ASN.1.
pub(super) const INTEGER: u8 = 2;
pub(super) const OCTET_STRING: u8 = 4;
pub(super) const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 3;

/// Splits a value with this tag from the bytes behind it.
pub(super) fn read(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, rest) = bytes.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut size = usize::from(*first);
    if size >= 0x80 {
        let count = size & 0x7f;
        if !(1..=4).contains(&count) {
            return None;
        }
        let (digits, behind) = rest.split_at_checked(count)?;
        size = digits.iter().fold(0, |size, digit| size << 8 | usize::from(*digit));
        rest = behind;
    }
    if *found != tag {
        return None;
    }
    rest.split_at_checked(size)
}

/// Numbers of a sequence without their leading zeros, as many as there are in front of another value.
pub(super) fn integers(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut numbers = Vec::new();
    while let Some((number, rest)) = read(bytes, INTEGER) {
        let zeros = number.iter().take_while(|byte| **byte == 0).count();
        numbers.push(number.get(zeros..).unwrap_or_default().to_vec());
        bytes = rest;
    }
    numbers
}

/// A value with its tag and length.
pub(super) fn value(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    match u8::try_from(content.len()) {
        Ok(size @ 0..=0x7f) => bytes.push(size),
        _ => {
            let digits = content.len().to_be_bytes();
            let zeros = digits.iter().take_while(|byte| **byte == 0).count();
            let digits = digits.get(zeros..).unwrap_or_default();
            bytes.push(0x80 | u8::try_from(digits.len()).unwrap_or(0));
            bytes.extend_from_slice(digits);
        }
    }
    bytes.extend_from_slice(content);
    bytes
}

/// A number without a sign.
pub(super) fn integer(number: &[u8]) -> Vec<u8> {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    let digits = number.get(zeros..).unwrap_or_default();
    let needs_zero = digits.first().is_none_or(|first| first & 0x80 != 0);
    let zero: &[u8] = if needs_zero { &[0] } else { &[] };
    value(INTEGER, &[zero, digits].concat())
}

/// A bit string of whole bytes.
pub(super) fn bit_string(content: &[u8]) -> Vec<u8> {
    value(BIT_STRING, &[&[0], content].concat())
}

/// Whole bytes of a bit string at the front of `bytes`.
pub(super) fn read_bit_string(bytes: &[u8]) -> Option<&[u8]> {
    read(bytes, BIT_STRING)?.0.strip_prefix(&[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_every_length_are_read_again() {
        for size in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; size];
            let bytes = [value(SEQUENCE, &content), b"rest".to_vec()].concat();
            assert_eq!(read(&bytes, SEQUENCE), Some((&content[..], &b"rest"[..])), "{size}");
            assert_eq!(read(&bytes, INTEGER), None);
            assert_eq!(read(&bytes[..bytes.len() - 5], SEQUENCE), None, "the value is cut");
        }
    }

    #[test]
    fn integers_have_no_sign() {
        let bytes = [integer(&[0, 0, 1]), integer(&[0x80]), integer(&[])].concat();
        assert_eq!(bytes, [2, 1, 1, 2, 2, 0, 0x80, 2, 1, 0]);
        assert_eq!(integers(&bytes), [vec![1], vec![0x80], vec![]]);
    }
}
