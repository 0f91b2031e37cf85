//! Entries of plain records in 13 bytes: what a lookup needs to find the record, and nothing that the record itself has.
//!
//! ```text
//! bit  103 … 68   67 … 47   46 … 29   28 … 21      20 … 4     3     2 1      0
//!      tag        segment   block     blocks - 1   revision   own   lately   unseen
//! ```
//! The tag is a part of the hash of the key. Two keys may have the same one, so whoever reads the record compares the key. The
//! revision is the end of the sequence number: with the address it tells the versions of an entry apart.
//!
//! **Pages.** Entries are in pages, sorted by tag. There is one page for about 110 entries; one more page takes its part of one
//! other page at a time (linear hashing, Litwin 1980), so no insertion moves more than a page. A page has as much memory as it
//! needs, and fits into 4 KiB of a snapshot.

use super::chunks::Chunks;
use super::location::SegmentAddress;

/// Bytes of an entry.
pub(crate) const COMPACT_SIZE: usize = 13;
/// Entry, as it is in memory and in a snapshot.
pub(crate) type CompactBytes = [u8; COMPACT_SIZE];

const TAG_BITS: u32 = 36;
const SEGMENT_BITS: u32 = 21;
const BLOCK_BITS: u32 = 18;
const BLOCKS_BITS: u32 = 8;
const REVISION_BITS: u32 = 17;
const LATELY_BITS: u32 = 2;
const _: () = assert!(
    TAG_BITS + SEGMENT_BITS + BLOCK_BITS + BLOCKS_BITS + REVISION_BITS + LATELY_BITS + 2
        == 8 * COMPACT_SIZE as u32
);

/// Average number of entries of a page, from which on there is one more page. Pages that are not divided yet have twice as many
/// at most, and by chance a few more: 4 KiB have room for 313.
const PAGE_ENTRIES: u64 = 110;
/// Pages in one piece of memory.
const PAGES_PER_PIECE: usize = 64;

const fn mask(bits: u32) -> u64 {
    (1 << bits) - 1
}

/// Entry of a plain record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompactEntry {
    /// Part of the hash of the key.
    pub(super) tag: u64,
    /// Address of the record.
    pub(super) address: SegmentAddress,
    /// End of the sequence number.
    pub(super) revision: u32,
    /// True if this process has taken the sequence number.
    pub(super) is_own: bool,
    /// Uses since the record was written or moved, at most 3.
    pub(super) lately: u8,
    /// True if it is from a snapshot, and its record was not found since.
    pub(super) is_unseen: bool,
}

impl CompactEntry {
    /// Tag of a hash. Other bits of it select the shard.
    pub(super) const fn tag_of(hash: u64) -> u64 {
        hash >> 22 & mask(TAG_BITS)
    }

    /// End of a sequence number.
    pub(super) const fn revision_of(sequence: u64) -> u32 {
        (sequence & mask(REVISION_BITS)) as u32
    }

    /// Largest sequence number up to `last` that ends with this revision: the true one, if it is younger than the number of all
    /// revisions, or a larger one.
    pub(super) const fn sequence(self, last: u64) -> u64 {
        let since = (last as u32).wrapping_sub(self.revision) & mask(REVISION_BITS) as u32;
        last.saturating_sub(since as u64)
    }

    /// Returns true if an address has room in an entry.
    pub(super) const fn fits(address: SegmentAddress) -> bool {
        address.segment as u64 <= mask(SEGMENT_BITS)
            && address.block as u64 <= mask(BLOCK_BITS)
            && address.blocks > 0
            && address.blocks as u64 <= mask(BLOCKS_BITS) + 1
    }

    pub(super) fn encode(self) -> CompactBytes {
        let SegmentAddress { segment, block, blocks } = self.address;
        let mut bits = 0_u128;
        for (value, width) in [
            (self.tag, TAG_BITS),
            (segment.into(), SEGMENT_BITS),
            (block.into(), BLOCK_BITS),
            (u64::from(blocks.saturating_sub(1)), BLOCKS_BITS),
            (self.revision.into(), REVISION_BITS),
            (self.is_own.into(), 1),
            (self.lately.into(), LATELY_BITS),
            (self.is_unseen.into(), 1),
        ] {
            bits = bits << width | u128::from(value & mask(width));
        }
        let mut bytes = [0; COMPACT_SIZE];
        let all = bits.to_be_bytes();
        bytes.iter_mut().zip(all.iter().skip(all.len() - COMPACT_SIZE)).for_each(|(to, from)| *to = *from);
        bytes
    }

    pub(super) fn decode(bytes: &CompactBytes) -> Self {
        let mut bits = bytes.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
        let mut take = |width: u32| {
            let value = bits as u64 & mask(width);
            bits >>= width;
            value
        };
        let is_unseen = take(1) == 1;
        let lately = take(LATELY_BITS) as u8;
        let is_own = take(1) == 1;
        let revision = take(REVISION_BITS) as u32;
        let blocks = take(BLOCKS_BITS) as u32 + 1;
        let block = take(BLOCK_BITS) as u32;
        let segment = take(SEGMENT_BITS) as u32;
        let address = SegmentAddress { segment, block, blocks };
        Self { tag: take(TAG_BITS), address, revision, is_own, lately, is_unseen }
    }
}

/// Tag of an encoded entry.
fn tag_of(bytes: &CompactBytes) -> u64 {
    let [a, b, c, d, e, ..] = *bytes;
    u64::from_be_bytes([0, 0, 0, a, b, c, d, e]) >> (40 - TAG_BITS)
}

/// Page with this tag, of so many.
pub(crate) fn page_of(tag: u64, pages: u32) -> u32 {
    let mask = pages.next_power_of_two().wrapping_sub(1);
    let page = tag as u32 & mask;
    if page < pages { page } else { page & (mask >> 1) }
}

/// Entries sorted by tag.
type Page = Vec<CompactBytes>;

/// Entries of one shard.
#[derive(Debug)]
pub(super) struct CompactTable {
    pages: Chunks<Page, PAGES_PER_PIECE>,
    len: u64,
    /// Entries that there is memory for.
    room: u64,
}

impl CompactTable {
    pub(super) const fn new() -> Self {
        Self { pages: Chunks::new(), len: 0, room: 0 }
    }

    pub(super) const fn len(&self) -> u64 {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) const fn pages(&self) -> u32 {
        self.pages.len()
    }

    /// Bytes that are allocated.
    pub(super) fn memory(&self) -> u64 {
        self.pages.memory() as u64 + self.room * COMPACT_SIZE as u64
    }

    /// Entries of a page; `None` if there are not so many pages.
    pub(super) fn page(&self, page: u32) -> Option<&[CompactBytes]> {
        self.pages.get(page).map(Vec::as_slice)
    }

    pub(super) fn get(&self, tag: u64) -> Option<CompactEntry> {
        let page = self.pages.get(page_of(tag, self.pages.len()))?;
        let at = page.binary_search_by_key(&tag, tag_of).ok()?;
        page.get(at).map(CompactEntry::decode)
    }

    /// Changes an entry; its tag stays.
    pub(super) fn update(&mut self, entry: CompactEntry) {
        let page = page_of(entry.tag, self.pages.len());
        let Some(page) = self.pages.get_mut(page) else { return };
        if let Ok(at) = page.binary_search_by_key(&entry.tag, tag_of)
            && let Some(place) = page.get_mut(at)
        {
            *place = entry.encode();
        }
    }

    /// Adds an entry. Returns false if there is one with its tag.
    pub(super) fn insert(&mut self, entry: CompactEntry) -> bool {
        if self.len >= u64::from(self.pages.len()) * PAGE_ENTRIES {
            self.split();
        }
        let at = page_of(entry.tag, self.pages.len());
        let Some(page) = self.pages.get_mut(at) else { return false };
        let Err(at) = page.binary_search_by_key(&entry.tag, tag_of) else { return false };
        if page.len() == page.capacity() {
            let before = page.capacity();
            page.reserve_exact((page.len() / 32).max(4));
            self.room += (page.capacity() - before) as u64;
        }
        page.insert(at, entry.encode());
        self.len += 1;
        true
    }

    pub(super) fn remove(&mut self, tag: u64) -> Option<CompactEntry> {
        let at = page_of(tag, self.pages.len());
        let page = self.pages.get_mut(at)?;
        let at = page.binary_search_by_key(&tag, tag_of).ok()?;
        let removed = CompactEntry::decode(&page.remove(at));
        self.len -= 1;
        if page.len() + 32 < page.capacity() {
            let before = page.capacity();
            page.shrink_to(page.len() + 4);
            self.room -= (before - page.capacity()) as u64;
        }
        Some(removed)
    }

    /// Adds a page, and moves its part of another one.
    fn split(&mut self) {
        let new = self.pages.len();
        if new == u32::MAX {
            return;
        }
        self.pages.push(Page::new());
        let low = (new + 1).next_power_of_two() / 2;
        let Some(old) = new.checked_sub(low) else { return };
        let Some(page) = self.pages.get_mut(old) else { return };
        let before = page.capacity();
        let (stay, go): (Page, Page) =
            std::mem::take(page).into_iter().partition(|bytes| page_of(tag_of(bytes), new + 1) == old);
        let mut room = 0;
        for (at, mut entries) in [(old, stay), (new, go)] {
            entries.shrink_to_fit();
            room += entries.capacity();
            if let Some(page) = self.pages.get_mut(at) {
                *page = entries;
            }
        }
        self.room = self.room + room as u64 - before as u64;
    }

    #[cfg(test)]
    pub(super) fn assert_whole(&self) -> Vec<CompactEntry> {
        let mut all = Vec::new();
        let mut room = 0;
        for at in 0..self.pages.len() {
            let page = self.pages.get(at).unwrap();
            assert!(page.is_sorted_by_key(tag_of));
            assert!(page.iter().all(|bytes| page_of(tag_of(bytes), self.pages.len()) == at));
            all.extend(page.iter().map(CompactEntry::decode));
            room += page.capacity() as u64;
        }
        assert_eq!((all.len() as u64, room), (self.len, self.room));
        all
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn entry(tag: u64, number: u32) -> CompactEntry {
        let address = SegmentAddress { segment: number, block: number % 1000 + 1, blocks: number % 256 + 1 };
        CompactEntry {
            tag,
            address,
            revision: number % 1000,
            is_own: number % 3 == 1,
            lately: (number % 4) as u8,
            is_unseen: number % 2 == 1,
        }
    }

    #[test]
    fn entries_round_trip_in_thirteen_bytes() {
        let largest = CompactEntry {
            tag: mask(TAG_BITS),
            address: SegmentAddress { segment: (1 << 21) - 1, block: (1 << 18) - 1, blocks: 256 },
            revision: (1 << 17) - 1,
            is_own: true,
            lately: 3,
            is_unseen: true,
        };
        let smallest = CompactEntry {
            tag: 0,
            address: SegmentAddress { segment: 0, block: 0, blocks: 1 },
            revision: 0,
            is_own: false,
            lately: 0,
            is_unseen: false,
        };
        for entry in [largest, smallest, entry(0x9_8765_4321, 77), entry(1, 4711)] {
            assert!(CompactEntry::fits(entry.address));
            assert_eq!(CompactEntry::decode(&entry.encode()), entry);
            assert_eq!(tag_of(&entry.encode()), entry.tag);
        }
        assert!(!CompactEntry::fits(SegmentAddress { blocks: 257, ..smallest.address }));
    }

    #[test]
    fn sequence_is_the_last_one_with_the_revision() {
        let last = 5_u64 << 30 | 1000;
        for (before, expected) in [(0, 0), (1, 1), (1 << 16, 1 << 16), ((1 << 17) + 5, 5)] {
            let revision = CompactEntry::revision_of(last - before);
            let entry = CompactEntry { revision, ..entry(1, 1) };
            assert_eq!(entry.sequence(last), last - expected);
        }
    }

    #[test]
    fn table_equals_a_plain_map() {
        let mut random = 1_u64;
        let mut next = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            random >> 28
        };
        let mut table = CompactTable::new();
        let mut model = HashMap::new();
        for number in 0..40_000 {
            // Some tags occur several times.
            let tag = if number % 3 == 0 { next() % 5000 } else { next() };
            let entry = entry(tag, number);
            match next() % 5 {
                0 => assert_eq!(table.remove(tag), model.remove(&tag)),
                1 => {
                    table.update(entry);
                    if let Some(compact_entry) = model.get_mut(&tag) {
                        *compact_entry = entry;
                    }
                }
                _ => {
                    let is_new = !model.contains_key(&tag);
                    assert_eq!(table.insert(entry), is_new);
                    model.entry(tag).or_insert(entry);
                }
            }
            assert_eq!(table.get(tag), model.get(&tag).copied());
        }
        let all = table.assert_whole();
        assert_eq!(all.len(), model.len());
        assert!(all.iter().all(|entry| model.get(&entry.tag) == Some(entry)));
        assert!(table.pages() as usize >= model.len() / 110);
        assert!(table.memory() <= 15 * model.len() as u64, "{} bytes for {}", table.memory(), model.len());
        for tag in model.into_keys() {
            assert!(table.remove(tag).is_some());
        }
        assert!(table.is_empty());
    }
}
