//! Buffers that all connections of one loop share, one after another. None is held across an await.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

/// Bytes of the buffer through which files go to sockets.
pub const SCRATCH_SIZE: usize = 256 << 10;
/// Bytes read of a body or a response at once, where they go on without being copied.
pub const INPUT_SIZE: usize = 64 << 10;
/// Bytes up to which a copy has room for no more than them.
const EXACT_MAX: usize = 8 << 10;

/// The buffers of one loop.
pub struct Buffers {
    /// Response head, and the first bytes of a body.
    pub head_out: RefCell<Vec<u8>>,
    /// Between files and sockets, [`SCRATCH_SIZE`] bytes.
    pub scratch: RefCell<Box<[u8]>>,
    /// File names, keys and other short texts: taken, and put back.
    pub path: Cell<Vec<u8>>,
    /// Room for what is read next of a body or a response, if the last reader has given it back.
    input: Cell<Vec<u8>>,
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            head_out: RefCell::new(Vec::with_capacity(1024)),
            scratch: RefCell::new(vec![0; SCRATCH_SIZE].into()),
            path: Cell::new(Vec::new()),
            input: Cell::default(),
        }
    }

    /// An empty buffer to read at most [`INPUT_SIZE`] bytes into. As long as it comes back, it is the same one, which the
    /// processor still has in its caches.
    pub fn take_input(&self) -> Vec<u8> {
        let mut buffer = self.input.take();
        buffer.reserve(INPUT_SIZE);
        buffer
    }

    /// Takes back what [`take_input`](Self::take_input) gave.
    pub fn give_back_input(&self, mut buffer: Vec<u8>) {
        if (INPUT_SIZE..=2 * INPUT_SIZE).contains(&buffer.capacity()) {
            buffer.clear();
            self.input.set(buffer);
        }
    }

    /// Takes back the buffer of bytes that were passed on, unless another reference to them is left.
    pub fn give_back_bytes(&self, bytes: Bytes) {
        if bytes.is_unique() {
            self.give_back_input(bytes.into());
        }
    }
}

/// A copy of bytes that a peer has sent, as many as it liked.
///
/// Long ones have room of 16 KiB, 32 KiB and so on: the allocator takes half a megabyte at a time for blocks of one size, and there
/// are eight sizes between one power of two and the next.
pub fn copy_received(bytes: &[u8]) -> Bytes {
    if bytes.len() <= EXACT_MAX {
        return Bytes::copy_from_slice(bytes);
    }
    let mut copy = Vec::with_capacity(bytes.len().next_power_of_two());
    copy.extend_from_slice(bytes);
    copy.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_copies_come_in_few_sizes() {
        for len in [0, 1, EXACT_MAX, EXACT_MAX + 1, (16 << 10) + 1, INPUT_SIZE] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let copy = copy_received(&bytes);
            assert_eq!(copy, bytes, "{len}");
            let room = Vec::from(copy).capacity();
            assert!(room == len || len > EXACT_MAX && room == len.next_power_of_two(), "{len}: {room}");
        }
    }
}
