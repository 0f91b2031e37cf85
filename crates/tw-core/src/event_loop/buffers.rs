//! Buffers that all connections of one loop share, one after another. None is held across an await.

use std::cell::{Cell, RefCell};

use bytes::Bytes;

/// Bytes of the buffer through which files go to sockets.
pub const SCRATCH_SIZE: usize = 256 << 10;
/// Bytes read of a body or a response at once, where they go on without being copied.
pub const INPUT_SIZE: usize = 64 << 10;

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
