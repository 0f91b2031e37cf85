//! Place of a stored response on the disk, in the eight bytes that an entry of the index has for it.
//!
//! ```text
//! bit  63   62 … 42          41 … 24          23 … 0
//!      0    bytes of a file of its own
//!      1    segment          first block      number of blocks
//! ```
//! An address does not depend on the configured size of segments, so segments of several sizes can be in one cache.

use std::fmt;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};

use super::compact::CompactEntry;
use crate::segment::BLOCK_SIZE;

const PACKED: u64 = 1 << 63;
const BLOCKS_BITS: u32 = 24;
const FIRST_BITS: u32 = 18;
const SEGMENT_BITS: u32 = 21;
const _: () = assert!(BLOCKS_BITS + FIRST_BITS + SEGMENT_BITS == 63);

/// Segments that have a number.
pub const SEGMENTS_MAX: u32 = 1 << SEGMENT_BITS;

/// Segments whose facts are allocated together.
const COUNTERS: usize = 1024;

/// Address of a record in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentAddress {
    /// Number of the segment, less than [`SEGMENTS_MAX`].
    pub segment: u32,
    /// First block of the record in its segment.
    pub block: u32,
    /// Number of blocks.
    pub blocks: u32,
}

impl SegmentAddress {
    /// Offset of the record in its segment, in bytes.
    #[must_use]
    pub const fn offset(self) -> u64 {
        self.block as u64 * BLOCK_SIZE
    }

    /// Bytes that the record takes on the disk.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.blocks as u64 * BLOCK_SIZE
    }
}

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

const fn part(of: u64, shift: u32, bits: u32) -> u32 {
    (of >> shift & mask(bits)) as u32
}

/// Place of a stored response: a file of its own, or a record in a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Location(u64);

impl Location {
    /// No place; takes no bytes.
    pub(crate) const NOWHERE: Self = Self(0);

    /// A file of its own that takes `bytes` on the disk.
    #[must_use]
    pub const fn file(bytes: u64) -> Self {
        Self(bytes & !PACKED)
    }

    /// A record in a segment. Bits beyond the limits of an address are lost.
    #[must_use]
    pub const fn record(address: SegmentAddress) -> Self {
        let segment = address.segment as u64 & mask(SEGMENT_BITS);
        let first = address.block as u64 & mask(FIRST_BITS);
        let blocks = address.blocks as u64 & mask(BLOCKS_BITS);
        Self(PACKED | segment << (FIRST_BITS + BLOCKS_BITS) | first << BLOCKS_BITS | blocks)
    }

    /// Address of the record; `None` for a file of its own.
    #[must_use]
    pub const fn address(self) -> Option<SegmentAddress> {
        if self.0 & PACKED == 0 {
            return None;
        }
        Some(SegmentAddress {
            segment: part(self.0, FIRST_BITS + BLOCKS_BITS, SEGMENT_BITS),
            block: part(self.0, BLOCKS_BITS, FIRST_BITS),
            blocks: part(self.0, 0, BLOCKS_BITS),
        })
    }

    /// Bytes on the disk.
    #[must_use]
    pub const fn size(self) -> u64 {
        match self.address() {
            Some(address) => address.size(),
            None => self.0,
        }
    }

    /// Bytes on the disk, if it is a record.
    pub(crate) const fn packed_size(self) -> u64 {
        match self.address() {
            Some(address) => address.size(),
            None => 0,
        }
    }

    /// Number that tells the versions of an entry apart: of a file its sequence number. Of a record it is made of its address
    /// and the end of its sequence number, and larger than any sequence number.
    pub(super) const fn identity(self, sequence: u64) -> u64 {
        match self.address() {
            None => sequence,
            Some(SegmentAddress { segment, block, .. }) => {
                PACKED
                    | (segment as u64) << 36
                    | (block as u64) << 18
                    | CompactEntry::revision_of(sequence) as u64
            }
        }
    }

    /// The eight bytes, for a snapshot.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The place with these eight bytes.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl From<u64> for Location {
    fn from(bytes: u64) -> Self {
        Self::file(bytes)
    }
}

impl From<SegmentAddress> for Location {
    fn from(address: SegmentAddress) -> Self {
        Self::record(address)
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => address.fmt(f),
            None => f.debug_tuple("File").field(&self.0).finish(),
        }
    }
}

/// Facts about the entries of each segment. Memory is allocated for segments that exist.
pub(super) struct SegmentUse {
    segments: Box<[OnceLock<Box<[SegmentFacts]>>]>,
    /// No purge up to this number concerns any entry ([`Index::confirm_all`](super::Index::confirm_all)).
    confirmed: AtomicU64,
}

/// Facts about the entries of one segment.
struct SegmentFacts {
    /// Number of entries, changed under the locks of shards.
    entries: AtomicU32,
    /// Time of the last use of an entry, or of the last record.
    used: AtomicU32,
    /// Time of the last record.
    written_at: AtomicU32,
    /// No entry has a smaller sequence number; the largest number if there was none yet.
    floor: AtomicU64,
}

impl SegmentFacts {
    fn new() -> Self {
        let zero = || AtomicU32::new(0);
        Self { entries: zero(), used: zero(), written_at: zero(), floor: AtomicU64::new(u64::MAX) }
    }
}

impl Default for SegmentUse {
    fn default() -> Self {
        let segments = (0..SEGMENTS_MAX as usize / COUNTERS).map(|_| OnceLock::new()).collect();
        Self { segments, confirmed: AtomicU64::new(0) }
    }
}

impl SegmentUse {
    /// Notes that an entry has moved from one place to another.
    pub(super) fn change(&self, before: Option<Location>, after: Option<Location>) {
        let segment = |location: Option<Location>| location?.address().map(|address| address.segment);
        let before = segment(before);
        let after = segment(after);
        if before == after {
            return;
        }
        if let Some(facts) = after.and_then(|segment| self.facts(segment)) {
            facts.entries.fetch_add(1, Relaxed);
        }
        if let Some(facts) = before.and_then(|segment| self.facts(segment)) {
            facts.entries.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that an entry of a segment is used.
    pub(super) fn touch(&self, segment: u32, now: u32) {
        if let Some(facts) = self.facts(segment)
            && facts.used.load(Relaxed) != now
        {
            facts.used.store(now, Relaxed);
        }
    }

    /// Notes that a record with this sequence number is in a segment; `None` if the number is not known.
    pub(super) fn note_record(&self, segment: u32, sequence: Option<u64>, now: u32) {
        let Some(facts) = self.facts(segment) else { return };
        facts.used.fetch_max(now, Relaxed);
        facts.floor.fetch_min(sequence.unwrap_or(0), SeqCst);
    }

    /// Notes that records were written into a segment.
    pub(super) fn note_written(&self, segment: u32, now: u32) {
        if let Some(facts) = self.facts(segment) {
            facts.written_at.fetch_max(now, Relaxed);
        }
    }

    /// Sets the smallest sequence number of a segment, when all its records are known.
    pub(super) fn set_floor(&self, segment: u32, floor: u64) {
        if let Some(facts) = self.facts(segment) {
            facts.floor.store(floor, SeqCst);
        }
    }

    /// Times of the last use and of the last record of a segment.
    pub(super) fn times(&self, segment: u32) -> (u32, u32) {
        self.facts_of(segment)
            .map_or((0, 0), |facts| (facts.used.load(Relaxed), facts.written_at.load(Relaxed)))
    }

    /// Number up to which no purge concerns the entries of a segment.
    pub(super) fn checked(&self, segment: u32) -> u64 {
        let floor = self.facts_of(segment).map_or(u64::MAX, |facts| facts.floor.load(SeqCst));
        self.confirmed().max(if floor == u64::MAX { 0 } else { floor })
    }

    /// Number up to which no purge concerns any entry.
    pub(super) fn confirmed(&self) -> u64 {
        self.confirmed.load(SeqCst)
    }

    /// Notes that no purge up to this number concerns any entry.
    pub(super) fn confirm(&self, upto: u64) {
        self.confirmed.fetch_max(upto, SeqCst);
    }

    /// Number of entries with a record in this segment.
    pub(super) fn entries(&self, segment: u32) -> u32 {
        self.facts_of(segment).map_or(0, |facts| facts.entries.load(Relaxed))
    }

    fn facts_of(&self, segment: u32) -> Option<&SegmentFacts> {
        self.segments.get(segment as usize / COUNTERS)?.get()?.get(segment as usize % COUNTERS)
    }

    fn facts(&self, segment: u32) -> Option<&SegmentFacts> {
        let facts = self.segments.get(segment as usize / COUNTERS)?;
        let facts = facts.get_or_init(|| (0..COUNTERS).map(|_| SegmentFacts::new()).collect());
        facts.get(segment as usize % COUNTERS)
    }
}

impl fmt::Debug for SegmentUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentUse").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locations_are_files_or_addresses() {
        for bytes in [0, 1, 4096, 1 << 40, (1 << 63) - 1] {
            let location = Location::file(bytes);
            assert_eq!((location.size(), location.packed_size(), location.address()), (bytes, 0, None));
            assert_eq!(Location::from_bits(location.to_bits()), location);
        }
        for (segment, block, blocks) in
            [(0, 0, 0), (0, 1, 1), (SEGMENTS_MAX - 1, (1 << 18) - 1, (1 << 24) - 1), (77, 5, 256)]
        {
            let address = SegmentAddress { segment, block, blocks };
            let location = Location::record(address);
            assert_eq!(location.address(), Some(address));
            assert_eq!(Location::from_bits(location.to_bits()), location);
            assert_eq!(
                (location.size(), location.packed_size()),
                (u64::from(blocks) * 4096, location.size())
            );
        }
    }

    #[test]
    fn entries_are_counted_by_segment() {
        let counts = SegmentUse::default();
        let at = |segment| Some(Location::record(SegmentAddress { segment, block: 1, blocks: 1 }));
        counts.change(None, at(5));
        counts.change(None, at(5));
        counts.change(at(5), at(SEGMENTS_MAX - 1));
        counts.change(Some(Location::file(1)), at(6));
        counts.change(at(6), None);
        assert_eq!([5, 6, SEGMENTS_MAX - 1, 0].map(|segment| counts.entries(segment)), [1, 0, 1, 0]);
    }
}
