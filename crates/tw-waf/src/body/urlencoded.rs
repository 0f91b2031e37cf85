//! Names and values of a query or of `application/x-www-form-urlencoded`.

/// Calls `take` for each pair, as it was sent. It returns false to end there.
pub(crate) fn parse(text: &[u8], separator: u8, mut take: impl FnMut(&[u8], &[u8]) -> bool) {
    for pair in text.split(|byte| *byte == separator).filter(|pair| !pair.is_empty()) {
        let (name, value) = match memchr::memchr(b'=', pair) {
            Some(at) => (pair.get(..at).unwrap_or_default(), pair.get(at + 1..).unwrap_or_default()),
            None => (pair, &b""[..]),
        };
        if !take(name, value) {
            return;
        }
    }
}
