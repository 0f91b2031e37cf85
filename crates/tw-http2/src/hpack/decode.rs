//! Blocks of the peer → fields (RFC 7541, section 3).
//!
//! First octet of each representation (section 6):
//!
//! ```text
//! 1 index(7)                                a field of a table
//! 0 1 index(6)    [name] value              a field, which is added to the dynamic table
//! 0 0 1 size(5)                             a new size of the dynamic table
//! 0 0 0 x index(4) [name] value             a field, which is not added; x = 1: by no one on the way
//! ```
//!
//! A name of its own stands where the index is 0. A text is a length with a prefix of seven bits, and octets; the bit
//! above the length says whether they are in the Huffman code.

use std::ops::ControlFlow;

use tw_fields::{DynamicTable, Text, integer, text};

use super::{Error, INTEGER_BITS, statics};

/// Size updates that a block may begin with (section 4.2): the smallest size since the last block, and the present one.
const SIZE_UPDATES_MAX: usize = 2;

/// Decodes the blocks of one peer, in their order.
pub(crate) struct Decoder {
    table: DynamicTable,
    /// The most that the peer may make the table hold.
    max_size: usize,
    /// Bytes of the longest text of the last block, as it came.
    longest: usize,
}

impl Decoder {
    /// A decoder for a peer that was told to keep a table of at most `max_size` bytes (SETTINGS_HEADER_TABLE_SIZE).
    /// Allocates nothing; nor does it keep anything but what the peer has indexed.
    pub(crate) const fn new(max_size: usize) -> Self {
        Self { table: DynamicTable::new(max_size), max_size, longest: 0 }
    }

    /// Decodes a whole block: calls `field` with the name and the value of each of its fields, in order, until it breaks off.
    ///
    /// The table keeps in step to the end of the block in any case. An octet may stand for a whole entry of the table:
    /// whoever keeps the fields counts them. After an error no other block can be decoded.
    pub(crate) fn decode(
        &mut self,
        block: &[u8],
        field: &mut impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), Error> {
        let mut rest = block;
        let mut scratch = Vec::new();
        let mut size_updates_left = SIZE_UPDATES_MAX;
        let mut control_flow = ControlFlow::Continue(());
        self.longest = 0;

        while let Some((&first, after)) = rest.split_first() {
            rest = after;
            if first & 0xe0 == 0x20 {
                let size = integer(first, 5, &mut rest)?;
                size_updates_left = size_updates_left.checked_sub(1).ok_or(Error::LateTableSize)?;
                if size > self.max_size {
                    return Err(Error::TableSize);
                }
                self.table.set_limit(size);
                continue;
            }
            size_updates_left = 0;

            if first & 0x80 != 0 {
                let index = integer(first, 7, &mut rest)?;
                let (name, value) = self.entry(index)?;
                if control_flow.is_continue() {
                    control_flow = field(name, value);
                }
                continue;
            }

            let is_added = first & 0x40 != 0;
            let index = integer(first, if is_added { 6 } else { 4 }, &mut rest)?;
            scratch.clear();
            let name = if index == 0 {
                text(&mut rest, &mut scratch, &mut self.longest)?
            } else if let Some((name, _)) = statics::entry(index) {
                Text::Whole(name)
            } else {
                // Copied: adding the field may evict the entry.
                scratch.extend_from_slice(self.entry(index)?.0);
                Text::Scratch(0, scratch.len())
            };
            let value = text(&mut rest, &mut scratch, &mut self.longest)?;
            let name = name.bytes(&scratch);
            let value = value.bytes(&scratch);
            if control_flow.is_continue() {
                control_flow = field(name, value);
            }
            if is_added {
                self.table.insert(name, value);
            }
        }
        Ok(())
    }

    /// Bytes of the longest name or value that stood in the last block, as it came: in the Huffman code or not.
    pub(crate) const fn longest(&self) -> usize {
        self.longest
    }

    /// Name and value at an index of both tables.
    #[inline]
    fn entry(&self, index: usize) -> Result<(&[u8], &[u8]), Error> {
        match index.checked_sub(statics::ENTRIES + 1) {
            Some(dynamic) => self.table.entry(dynamic).ok_or(Error::Index),
            None => statics::entry(index).ok_or(Error::IndexZero),
        }
    }

    /// The size of what is indexed, as the RFC counts, and the bytes that are allocated for it.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> (usize, usize) {
        (self.table.size(), self.table.allocated())
    }
}

/// Takes an integer whose first octet is `first`.
#[inline]
fn integer(first: u8, prefix: u32, rest: &mut &[u8]) -> Result<usize, Error> {
    // INTEGER_BITS is less than the width of an address, so the cast is exact.
    Ok(integer::decode::<INTEGER_BITS>(first, prefix, rest)? as usize)
}

/// Takes a text from the front of `rest`.
#[inline]
fn text<'a>(rest: &mut &'a [u8], scratch: &mut Vec<u8>, longest: &mut usize) -> Result<Text<'a>, Error> {
    let (&first, after) = rest.split_first().ok_or(Error::Short)?;
    *rest = after;
    Ok(text::decode(first, 7, rest, scratch, longest)?)
}
