//! Text that is wiped when it is dropped, and that no log line can contain: names and passwords of users.

use std::fmt;

use zeroize::Zeroizing;

/// Bytes of a user name or a password. `Debug` does not show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes over a text. Its buffer must have held nothing else, because what a larger buffer held before is wiped only here.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// Copies a text.
    pub fn copy(bytes: &[u8]) -> Self {
        Self::new(bytes.to_vec())
    }

    /// An empty text with room for `capacity` bytes. Appending more than that would leave a copy behind.
    pub fn with_capacity(capacity: usize) -> Self {
        Self::new(Vec::with_capacity(capacity))
    }

    /// The text.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends bytes, for which there is room.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_text_does_not_contain_the_secret() {
        assert_eq!(format!("{:?}", Secret::copy(b"open sesame")), "Secret(11 bytes)");
    }
}
