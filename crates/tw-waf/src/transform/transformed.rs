//! Result of a transformation, and what several of them need.

/// Transformed of a transformation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transformed {
    /// The value stays as it is; the buffer has no meaning.
    Same,
    /// The buffer has the new value.
    Changed,
}

/// Value of a hexadecimal digit.
pub(super) fn hex_digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

/// Value of two hexadecimal digits at the beginning of `text`.
pub(super) fn hex_pair(text: &[u8]) -> Option<u8> {
    match text {
        [high, low, ..] => Some(hex_digit(*high)? << 4 | hex_digit(*low)?),
        _ => None,
    }
}

/// Transformed of a result that is compared with the value.
pub(super) fn compared(value: &[u8], out: &[u8]) -> Transformed {
    if value == out { Transformed::Same } else { Transformed::Changed }
}
