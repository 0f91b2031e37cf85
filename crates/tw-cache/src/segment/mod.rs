//! Segments: large files into which many small responses are packed, so that reading one costs one access of the disk.
//!
//! ```text
//! block 0          header: number, stamp, place of the table
//! block 1 …        records, each from a block of its own on: a prefix of 64 bytes, then an entry as `format` has it
//! behind the last  table: key, block, blocks, sequence and end of validity of each record
//! ```
//! A segment is written from its beginning to its end, once. Then the table is written and the header names it
//! ([`SegmentHeader::table`]), so that a start reads two pieces of each segment. One without a table, which a crash has left,
//! is scanned from record to record ([`scan`]) up to the first that is not whole.
//!
//! The prefix has what the name of a file tells otherwise: under which key the entry is stored, and how long it is. The stamp
//! of a segment is random and is in each of its prefixes. So an address that was remembered for another segment, or that
//! points into a body, finds no record, whatever an origin has put into that body.
//!
//! A record that is removed before its segment is gets a mark, four bytes of its own at the beginning of the prefix
//! ([`REMOVED_MARK`]); everything else of a prefix and a head may be written anew (304) without touching it.
//!
//! No I/O.

mod device;
mod header;
mod record;
mod table;

use std::fmt;

use crate::SEGMENTS_MAX;

pub use device::{DeviceContent, SIGNATURES_SIZE, Superblock};
pub use header::{SegmentHeader, TablePlace};
pub use record::{PREFIX_SIZE, REMOVED_MARK, RecordPrefix, RecordState, ScanWindow, SegmentRow, scan};
pub use table::{ROW_SIZE, decode_table, encode_row, table_size};

/// Unit of addresses, in bytes.
pub const BLOCK_SIZE: u64 = 4096;
/// Smallest and largest size of a segment, in bytes.
pub const SEGMENT_SIZE_MIN: u64 = 4 << 20;
/// See [`SEGMENT_SIZE_MIN`].
pub const SEGMENT_SIZE_MAX: u64 = 1 << 30;
/// Smallest size that is chosen without `segment=`.
const DEFAULT_SIZE_MIN: u64 = 16 << 20;
/// Segments of a full cache, if their size is not configured.
const SEGMENTS_OF_CACHE: u64 = 512;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a response with its head that are packed into a segment (`store=log`); a quarter of a segment if that is less.
    ///
    /// Largest record, in bytes: larger responses have a file of their own.
    pub const RECORD_MAX: u64 = 1 << 20, bytes, "a larger one has a file of its own";
}

/// Size of segments for a cache of this size: a five-hundredth, between 16 MiB and 1 GiB, and a quarter at most.
#[must_use]
pub fn default_size(max_size: u64) -> u64 {
    (max_size / SEGMENTS_OF_CACHE)
        .clamp(DEFAULT_SIZE_MIN, SEGMENT_SIZE_MAX)
        .min(max_size / 4)
        .max(SEGMENT_SIZE_MIN)
        .next_multiple_of(BLOCK_SIZE)
}

/// Number of blocks that so many bytes take.
#[must_use]
pub const fn blocks(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_SIZE)
}

/// Reason why bytes are no part of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// The input ends too early.
    Short,
    /// The first bytes are not those of a segment.
    Magic,
    /// Another version of the format.
    Version,
    /// The checksum is another.
    Checksum,
    /// The bytes belong to another segment, or to another place in it.
    Place,
    /// Numbers do not fit together.
    Invalid,
}

impl SegmentError {
    /// Word for logs, e.g. `checksum`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            SegmentError::Short => "short",
            SegmentError::Magic => "magic",
            SegmentError::Version => "version",
            SegmentError::Checksum => "checksum",
            SegmentError::Place => "place",
            SegmentError::Invalid => "invalid",
        }
    }
}

impl fmt::Display for SegmentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Number of the segment whose file has this name: eight digits.
#[must_use]
pub fn number_of(name: &[u8]) -> Option<u32> {
    if name.len() != 8 || !name.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(name).ok()?.parse().ok().filter(|number| *number < SEGMENTS_MAX)
}

/// Unread rest of some bytes.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_size_is_a_share_of_the_cache() {
        for (max_size, expected) in [
            (0, 4 << 20),
            (20 << 20, 5 << 20),
            (8 << 30, 16 << 20),
            (100 << 30, (100 << 30) / 512),
            (u64::MAX, 1 << 30),
        ] {
            assert_eq!(default_size(max_size), expected, "{max_size}");
        }
        assert_eq!(default_size((100 << 30) + 4711) % BLOCK_SIZE, 0);
    }

    #[test]
    fn segments_have_names_of_eight_digits() {
        for (name, expected) in [
            (&b"00000000"[..], Some(0)),
            (b"00000077", Some(77)),
            (b"02097151", Some(SEGMENTS_MAX - 1)),
            (b"02097152", None),
            (b"0000001", None),
            (b"+0000001", None),
            (b"0000000x", None),
        ] {
            assert_eq!(number_of(name), expected, "{}", String::from_utf8_lossy(name));
        }
    }
}
