//! Names of fleets and nodes.

/// Returns true for a name of a fleet or a node: it is a part of subjects and files.
pub fn is_name(text: &str) -> bool {
    const SIZE_MAX: usize = 64;
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    !text.is_empty() && text.len() <= SIZE_MAX && text.bytes().all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_letters_digits_and_dashes() {
        for text in ["a", "edge-1_B", &"a".repeat(64)] {
            assert!(is_name(text), "{text}");
        }
        for text in ["", "a.b", "a b", "k\u{f6}ln", "a/b", &"a".repeat(65)] {
            assert!(!is_name(text), "{text}");
        }
    }
}
