//! Bytes that a client has sent before its login, in one buffer of a fixed size that is wiped at the end.

use zeroize::Zeroizing;

/// Received bytes that no command has consumed yet.
#[derive(Default)]
pub struct Input {
    /// Empty until the first byte arrives; all of the limit afterwards, so that no copy is left behind by growing.
    buffer: Zeroizing<Vec<u8>>,
    start: usize,
    end: usize,
    limit: usize,
}

impl Input {
    /// An empty buffer for `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.buffer.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns true if nothing more can be received before something is consumed.
    pub fn is_full(&self) -> bool {
        self.start == 0 && self.end == self.limit
    }

    /// Room for more bytes; the first call reserves the memory.
    pub fn room(&mut self) -> &mut [u8] {
        if self.buffer.is_empty() {
            *self.buffer = vec![0; self.limit];
        }
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.buffer.get_mut(self.end..).unwrap_or_default()
    }

    /// Takes in `count` bytes that were written to [`room`](Self::room).
    pub fn received(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.limit);
    }

    /// Takes in bytes that were received before. Those that have no room are dropped.
    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.room();
        let count = bytes.len().min(room.len());
        if let (Some(to), Some(from)) = (room.get_mut(..count), bytes.get(..count)) {
            to.copy_from_slice(from);
        }
        self.received(count);
    }

    /// Removes the first `count` bytes.
    pub fn consume(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Removes all bytes.
    pub fn clear(&mut self) {
        (self.start, self.end) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumed_bytes_make_room() {
        let mut input = Input::new(8);
        assert!(input.bytes().is_empty() && !input.is_full());
        input.push(b"abcdefgh");
        assert!(input.is_full());
        input.consume(3);
        assert_eq!(input.bytes(), b"defgh");
        assert!(!input.is_full());
        input.push(b"ijkl");
        assert_eq!(input.bytes(), b"defghijk", "the limit holds");
        input.consume(100);
        assert!(input.bytes().is_empty());
        assert_eq!(input.room().len(), 8);
    }
}
