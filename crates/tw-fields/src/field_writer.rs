//! Writer of field sections, for any of the two encodings.

use std::cell::RefCell;

/// Size from which the buffer of an encoded section is not kept for the next one.
const BLOCK_KEPT_MAX: usize = 16 << 10;

thread_local! {
    static BLOCK: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Encoding of sections without a dynamic table.
#[derive(Debug)]
pub struct FieldCoding {
    /// Beginning of each section.
    pub prefix: &'static [u8],
    /// Appends a field: its name, in whatever case it is, and its value.
    pub field: fn(&mut Vec<u8>, &[u8], &[u8]),
    /// Appends `:status`, which has three digits: 100 to 999.
    pub status: fn(&mut Vec<u8>, u16),
}

/// Writer of a field section.
pub struct FieldWriter<'a> {
    block: &'a mut Vec<u8>,
    coding: &'static FieldCoding,
    size: usize,
}

impl<'a> FieldWriter<'a> {
    /// Creates a writer that appends to `block`.
    pub fn new(block: &'a mut Vec<u8>, coding: &'static FieldCoding) -> Self {
        block.extend_from_slice(coding.prefix);
        Self { block, coding, size: 0 }
    }

    /// Appends a field. Pseudo-fields go first; the name is written in lower case.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        self.size += name.len() + value.len();
        (self.coding.field)(self.block, name, value);
    }

    /// Appends the status of a response.
    pub fn status(&mut self, status: u16) {
        (self.coding.status)(self.block, status);
    }

    /// Number of bytes of names and values so far, without the status.
    pub fn size(&self) -> usize {
        self.size
    }
}

/// Encodes the fields that `write` appends, and calls `send` with the section.
pub fn encode_section<T>(
    coding: &'static FieldCoding,
    write: impl FnOnce(&mut FieldWriter<'_>),
    send: impl FnOnce(&[u8]) -> T,
) -> T {
    let mut block = BLOCK.take();
    write(&mut FieldWriter::new(&mut block, coding));
    let sent = send(&block);
    if block.capacity() <= BLOCK_KEPT_MAX {
        block.clear();
        BLOCK.set(block);
    }
    sent
}

/// Digits of a status, 100 to 999.
#[inline]
#[must_use]
pub const fn status_digits(status: u16) -> [u8; 3] {
    const fn digit(of: u16) -> u8 {
        b'0' + (of % 10).to_le_bytes()[0]
    }
    [digit(status / 100), digit(status / 10), digit(status)]
}
