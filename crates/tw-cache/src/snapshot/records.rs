//! Snapshot of compact entries: a file in which a lookup reads one block, that of its key.
//!
//! ```text
//! block 0    "tw pages", version, time, random numbers of the tags, number of entries, pages of each shard
//! block 1 …  the pages of the first shard, then those of the second …
//! ```
//! A page of the index is a block of 4 KiB with a checksum. So the block of a key is known from the first block of the file alone,
//! however many entries there are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::block::{BlockWriter, Kind, Rest, decode_items, stamp};
use super::{BLOCK_SIZE, SnapshotError, SnapshotPart};
use crate::Key;
use crate::index::{COMPACT_SIZE, CompactBytes, Index, Progress, SHARDS, ScanCursor, page_of, page_of_row};

const MAGIC: &[u8; 8] = b"tw pages";
const VERSION: u32 = 1;
/// Entries of a page: as many as have room in a block.
pub(crate) const PAGE_ROWS_MAX: usize = (BLOCK_SIZE - super::block::CONTENT) / COMPACT_SIZE;
/// Pages that are written at once.
pub(super) const PAGES_PER_WRITE: u32 = 32;

/// Snapshot of compact entries in the making.
#[derive(Debug)]
pub struct RecordSnapshotWriter {
    taken: u32,
    stamp: u32,
    entries: u64,
    /// Pages of each shard that is written.
    pages: Vec<u32>,
    /// Blocks so far.
    blocks: u32,
    stage: Stage,
    /// Rows of slots of the shard.
    slots: Vec<CompactBytes>,
    /// Number of pages by which they are sorted.
    sorted_by: u32,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Collects slots of a shard.
    Slots(ScanCursor),
    /// The next page of the shard.
    Pages(u32),
    Header,
    Done,
}

impl RecordSnapshotWriter {
    /// Starts a snapshot at `now`, in seconds of the wall clock. `stamp` differs from that of the snapshot before.
    #[must_use]
    pub fn new(now: u32, stamp: u32) -> Self {
        let stage = Stage::Slots(ScanCursor::default());
        Self {
            taken: now,
            stamp,
            entries: 0,
            pages: Vec::new(),
            blocks: 1,
            stage,
            slots: Vec::new(),
            sorted_by: 0,
        }
    }

    /// Number of entries so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Makes the next part of the file: at most a third of a millisecond of work. The first bytes of the file come last.
    pub fn step(&mut self, index: &Index) -> SnapshotPart {
        let shard = self.pages.len();
        match self.stage {
            Stage::Slots(_) if shard == SHARDS => self.stage = Stage::Header,
            Stage::Slots(mut cursor) => {
                cursor.shard = shard;
                self.stage = match index.record_slots(&mut cursor, &mut self.slots) {
                    Progress::More => Stage::Slots(cursor),
                    Progress::Done => Stage::Pages(0),
                };
            }
            Stage::Pages(from) => {
                // Pages that come while they are written have entries of others, and are behind them.
                let pages = index.record_pages(shard).max(u32::from(!self.slots.is_empty()));
                if self.sorted_by != pages {
                    self.slots.sort_by_cached_key(|row| page_of_row(row, pages));
                    self.sorted_by = pages;
                }
                let end = pages.min(from + PAGES_PER_WRITE);
                let mut bytes = Vec::new();
                let first = self.blocks;
                for page in from..end {
                    bytes.extend(self.page(index, shard, page, pages));
                    self.blocks += 1;
                }
                self.stage = Stage::Pages(end);
                if end == pages {
                    self.pages.push(pages);
                    self.slots.clear();
                    self.sorted_by = 0;
                    self.stage = Stage::Slots(ScanCursor::default());
                }
                if !bytes.is_empty() {
                    return SnapshotPart::Write { offset: u64::from(first) * BLOCK_SIZE as u64, bytes };
                }
            }
            Stage::Header => {
                self.stage = Stage::Done;
                return SnapshotPart::Write { offset: 0, bytes: self.header(index.seed()) };
            }
            Stage::Done => return SnapshotPart::Done,
        }
        SnapshotPart::More
    }

    fn page(&mut self, index: &Index, shard: usize, page: u32, pages: u32) -> Vec<u8> {
        let mut block = BlockWriter::new(Kind::Page, self.blocks, self.stamp);
        let rows = index.record_page(shard, page);
        // Slots come first, because rows that do not fit are found in the tables of segments.
        let before = self.slots.partition_point(|row| page_of_row(row, pages) < page);
        let slots = self.slots.iter().skip(before).take_while(|row| page_of_row(row, pages) == page);
        for row in slots.chain(&rows).take(PAGE_ROWS_MAX) {
            block.put(row);
            self.entries += 1;
        }
        block.finish()
    }

    fn header(&self, seed: [u64; 2]) -> Vec<u8> {
        let mut block = BlockWriter::new(Kind::PageHeader, 0, self.stamp);
        block.put(MAGIC);
        block.put(&VERSION.to_le_bytes());
        block.put(&self.taken.to_le_bytes());
        for number in seed.into_iter().chain([self.entries]) {
            block.put(&number.to_le_bytes());
        }
        for pages in &self.pages {
            block.put(&pages.to_le_bytes());
        }
        block.finish()
    }
}

/// Snapshot of compact entries that is read, block by block, in any order.
#[derive(Debug)]
pub struct RecordSnapshot {
    stamp: u32,
    seed: [u64; 2],
    entries: u64,
    /// First block of each shard, and the number of all blocks.
    firsts: Vec<u32>,
    /// A bit for each block that was added to the index.
    done: Box<[AtomicU64]>,
}

impl RecordSnapshot {
    /// Starts with the first [`BLOCK_SIZE`] bytes of the file.
    ///
    /// # Errors
    /// The block is damaged, or was written by a newer version.
    pub fn open(first: &[u8]) -> Result<Self, SnapshotError> {
        let content = first.get(super::block::CONTENT..BLOCK_SIZE).ok_or(SnapshotError::NotOne)?;
        let mut rest = Rest(content.strip_prefix(MAGIC).ok_or(SnapshotError::NotOne)?);
        // The version is checked before the checksum, which a newer version may compute differently.
        let version = rest.array().map(u32::from_le_bytes).ok_or(SnapshotError::NotOne)?;
        if version != VERSION {
            return Err(SnapshotError::Version(version));
        }
        let stamp = stamp(first).ok_or(SnapshotError::NotOne)?;
        decode_items(first, Kind::PageHeader, 0, stamp).ok_or(SnapshotError::Checksum)?;
        let header = (|| {
            let _taken: [u8; 4] = rest.array()?;
            let mut number = || rest.array().map(u64::from_le_bytes);
            let seed = [number()?, number()?];
            let entries = number()?;
            let mut firsts = vec![1_u32];
            for _ in 0..SHARDS {
                let pages = rest.array().map(u32::from_le_bytes)?;
                firsts.push(firsts.last()?.checked_add(pages)?);
            }
            Some((seed, entries, firsts))
        })();
        let (seed, entries, firsts) = header.ok_or(SnapshotError::Invalid)?;
        let blocks = firsts.last().copied().unwrap_or(1);
        if entries > u64::from(blocks) * PAGE_ROWS_MAX as u64 {
            return Err(SnapshotError::Invalid);
        }
        let done = (0..blocks.div_ceil(u64::BITS)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { stamp, seed, entries, firsts, done })
    }

    /// Random numbers that an index must have to use it.
    #[must_use]
    pub fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// Number of entries in the file.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    /// Number of blocks, with the first one.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.firsts.last().copied().unwrap_or(1)
    }

    /// Block that has the entry of this key, if there is one; `None` if there is none, or the block was added to the index.
    #[must_use]
    pub fn block_of(&self, index: &Index, key: Key) -> Option<u32> {
        let (shard, tag) = index.record_place(key);
        let first = *self.firsts.get(shard)?;
        let end = *self.firsts.get(shard + 1)?;
        let pages = end.checked_sub(first).filter(|pages| *pages > 0)?;
        Some(first + page_of(tag, pages)).filter(|block| !self.is_done(*block))
    }

    /// Returns true if a block was added to the index.
    #[must_use]
    pub fn is_done(&self, block: u32) -> bool {
        let word = self.done.get((block / u64::BITS) as usize);
        word.is_none_or(|word| word.load(Relaxed) & 1 << (block % u64::BITS) != 0)
    }

    /// Notes that a block is added. Returns false if it was before. The caller holds the lock of its shard.
    pub(crate) fn begin(&self, block: u32) -> bool {
        let Some(word) = self.done.get((block / u64::BITS) as usize) else { return false };
        let bit = 1 << (block % u64::BITS);
        word.fetch_or(bit, Relaxed) & bit == 0
    }

    pub(crate) fn shard_of(&self, block: u32) -> Option<usize> {
        self.firsts.partition_point(|first| *first <= block).checked_sub(1).filter(|shard| *shard < SHARDS)
    }

    /// Rows of a block; `None` if it is damaged.
    #[must_use]
    pub fn rows(&self, block: u32, bytes: &[u8]) -> Option<Vec<CompactBytes>> {
        let (count, content) = decode_items(bytes, Kind::Page, block, self.stamp)?;
        let mut rows = Rest(content);
        (0..count.min(PAGE_ROWS_MAX)).map(|_| rows.array::<COMPACT_SIZE>()).collect()
    }
}
