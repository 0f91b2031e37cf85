//! Checksums of a body: the CRC-32 of each block of 64 KiB. That of a body of one block is in the state of the header. A longer
//! body has a table behind it, whose own CRC-32 is there.
//!
//! Key and sequence are bound to the table by the checksum of the state alone: a 304 gives a file another sequence, and must not
//! need another table.

use crc32fast::Hasher;

use super::{FormatError, Meta};

/// Bytes of a body that have one checksum. The last block may be shorter.
pub const BODY_BLOCK: u64 = 64 << 10;

/// Blocks of a body that have checksums; those behind them have none. The table of 64 GiB takes 4 MiB of memory.
pub const BLOCKS_MAX: u64 = 1 << 20;

/// Bytes of a checksum in the table.
const SUM_LEN: u64 = 4;

/// Length in bytes of the table behind a body of `body_len` bytes; 0 for a body of one block.
#[must_use]
pub fn table_len(body_len: u64) -> u64 {
    if body_len <= BODY_BLOCK { 0 } else { body_len.div_ceil(BODY_BLOCK).min(BLOCKS_MAX) * SUM_LEN }
}

/// Checksums of a body that is being written.
#[derive(Clone, Debug, Default)]
pub struct BodySums {
    /// Checksums of whole blocks.
    sums: Vec<u32>,
    /// Checksum of the last block so far, and its length.
    last: Hasher,
    last_len: u64,
    len: u64,
}

/// Checksums of a complete body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishedSums {
    /// Number for [`Meta::body_sum`] and [`patch`](super::patch).
    pub sum: u32,
    /// Bytes to be written behind the body; none behind a body of one block.
    pub table: Vec<u8>,
}

impl BodySums {
    /// Adds the bytes that follow. Cost: reads them once, at some GB/s.
    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.last_len == BODY_BLOCK {
                self.end_block();
            }
            let room = usize::try_from(BODY_BLOCK - self.last_len).unwrap_or(usize::MAX);
            let (piece, rest) = bytes.split_at(room.min(bytes.len()));
            if (self.sums.len() as u64) < BLOCKS_MAX {
                self.last.update(piece);
            }
            self.last_len += piece.len() as u64;
            self.len += piece.len() as u64;
            bytes = rest;
        }
    }

    /// Number of bytes so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns `true` if there were no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Ends the body.
    #[must_use]
    pub fn finish(mut self) -> FinishedSums {
        if self.len <= BODY_BLOCK {
            return FinishedSums { sum: self.last.finalize(), table: Vec::new() };
        }
        self.end_block();
        let table: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        FinishedSums { sum: crc32fast::hash(&table), table }
    }

    fn end_block(&mut self) {
        let sum = std::mem::take(&mut self.last).finalize();
        if (self.sums.len() as u64) < BLOCKS_MAX {
            self.sums.push(sum);
        }
        self.last_len = 0;
    }
}

/// Checksums of the blocks of a body, as its file has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSums(Box<[u32]>);

impl BlockSums {
    /// Reads the checksums that belong to `meta`. `table` are the bytes at [`Meta::table_at`], none if there is no table.
    /// `None` if the file has no checksums.
    ///
    /// # Errors
    /// [`FormatError::Table`] if these bytes are not the table of that file.
    pub fn read(meta: &Meta, table: &[u8]) -> Result<Option<Self>, FormatError> {
        let (Some(sum), Some(body_len)) = (meta.body_sum, meta.body_len) else { return Ok(None) };
        Self::decode(body_len, sum, table).map(Some)
    }

    /// Reads the checksums of a body of `body_len` bytes from `table`, which has the checksum `sum`; without a table, `sum` is
    /// that of the body.
    ///
    /// # Errors
    /// As [`BlockSums::read`].
    pub fn decode(body_len: u64, sum: u32, table: &[u8]) -> Result<Self, FormatError> {
        if table_len(body_len) != table.len() as u64 {
            return Err(FormatError::Table);
        }
        if table.is_empty() {
            return Ok(Self([sum].into()));
        }
        if crc32fast::hash(table) != sum {
            return Err(FormatError::Table);
        }
        let (sums, _) = table.as_chunks();
        Ok(Self(sums.iter().map(|sum| u32::from_le_bytes(*sum)).collect()))
    }

    /// Number of blocks with a checksum.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if no block has a checksum, which no file has.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares the whole block number `nth` with its checksum. A block behind the last one with a checksum always matches.
    #[must_use]
    pub fn matches(&self, nth: u64, block: &[u8]) -> bool {
        let sum = usize::try_from(nth).ok().and_then(|nth| self.0.get(nth));
        sum.is_none_or(|sum| *sum == crc32fast::hash(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
    }

    #[test]
    fn sums_do_not_depend_on_pieces() {
        let block = BODY_BLOCK as usize;
        for len in [0, 1, block - 1, block, block + 1, 2 * block, 2 * block + 7, 5 * block] {
            let body = bytes(len);
            let mut whole = BodySums::default();
            whole.push(&body);
            assert_eq!((whole.len(), whole.is_empty()), (len as u64, len == 0));
            let whole = whole.finish();
            assert_eq!(whole.table.len() as u64, table_len(len as u64), "{len}");
            for piece in [1000, block / 2, block, block + 1, 3 * block] {
                let mut sums = BodySums::default();
                body.chunks(piece).for_each(|piece| sums.push(piece));
                assert_eq!(sums.finish(), whole, "{len} {piece}");
            }
            if len <= block {
                assert_eq!(whole.sum, crc32fast::hash(&body));
            }
            for (nth, chunk) in body.chunks(block).enumerate().filter(|_| len > block) {
                let sum = crc32fast::hash(chunk).to_le_bytes();
                assert_eq!(whole.table[4 * nth..4 * nth + 4], sum, "{len} {nth}");
            }
        }
    }

    #[test]
    fn table_has_a_limit() {
        for (len, expected) in [
            (0, 0),
            (BODY_BLOCK, 0),
            (BODY_BLOCK + 1, 8),
            (2 * BODY_BLOCK, 8),
            (2 * BODY_BLOCK + 1, 12),
            (BLOCKS_MAX * BODY_BLOCK, 4 << 20),
            (BLOCKS_MAX * BODY_BLOCK + 1, 4 << 20),
            (i64::MAX as u64, 4 << 20),
        ] {
            assert_eq!(table_len(len), expected, "{len}");
        }
        // Blocks behind the last one with a checksum.
        let sums = BlockSums([1].into());
        assert!(!sums.matches(0, b"x") && sums.matches(1, b"x") && sums.matches(u64::MAX, b"x"));
    }
}
