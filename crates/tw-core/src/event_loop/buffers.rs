//! Buffers that all connections of one loop share, one after another. None is held across an await.

use std::cell::{Cell, RefCell};

/// Bytes of the buffer through which files go to sockets.
pub const SCRATCH_SIZE: usize = 256 << 10;

/// The buffers of one loop.
pub struct Buffers {
    /// Response head, and the first bytes of a body.
    pub head_out: RefCell<Vec<u8>>,
    /// Between files and sockets, [`SCRATCH_SIZE`] bytes.
    pub scratch: RefCell<Box<[u8]>>,
    /// File names, keys and other short texts: taken, and put back.
    pub path: Cell<Vec<u8>>,
}

impl Buffers {
    pub(super) fn new() -> Self {
        Self {
            head_out: RefCell::new(Vec::with_capacity(1024)),
            scratch: RefCell::new(vec![0; SCRATCH_SIZE].into()),
            path: Cell::new(Vec::new()),
        }
    }
}
