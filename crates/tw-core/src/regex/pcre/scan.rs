//! Pieces of the text of a pattern: numbers, and texts up to a delimiter.

/// Splits `text` at the first `end`; everything and nothing if there is none.
pub(super) fn until(text: &[u8], end: u8) -> (&[u8], &[u8]) {
    match text.iter().position(|b| *b == end) {
        Some(at) => (&text[..at], &text[at + 1..]),
        None => (text, &[]),
    }
}

/// The digits at the front, at most `max`.
pub(super) fn digits(text: &[u8], base: u32, max: usize) -> &[u8] {
    let len = text.iter().take(max).take_while(|b| (**b as char).is_digit(base)).count();
    &text[..len]
}

pub(super) fn is_number(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(u8::is_ascii_digit)
}

/// A row of digits; what is too large to be a group is the largest number.
pub(super) fn number(digits: &[u8]) -> usize {
    digits.iter().fold(0_usize, |n, digit| n.saturating_mul(10).saturating_add(usize::from(digit - b'0')))
}
