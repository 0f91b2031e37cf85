//! Constant-time comparison of secrets: passwords and their hashes.

/// Compares in a time that depends on the lengths only.
pub fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differences = one.iter().zip(other).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    one.len() == other.len() && differences == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparing() {
        assert!(is_same(b"", b""));
        assert!(is_same(b"abc", b"abc"));
        assert!(!is_same(b"abc", b"abd"));
        assert!(!is_same(b"abc", b"ab"));
        assert!(!is_same(b"", b"a"));
    }
}
