//! Blocks of a snapshot.
//!
//! ```text
//! 0   CRC-32 of all behind it
//! 4   number of the block in the file
//! 8   stamp: the same in all blocks of a file
//! 12  kind · number of items (u16)
//! 16  items
//! ```

use super::{SnapshotEntry, SnapshotError};
use crate::Key;

/// Bytes of a block.
pub const BLOCK_SIZE: usize = 4096;
pub(super) const CONTENT: usize = 16;
/// Bytes of a row, and rows of a block.
const ROW_SIZE: usize = 35;
pub(super) const ROWS_PER_BLOCK: usize = (BLOCK_SIZE - CONTENT) / ROW_SIZE;
/// Bytes of an item of the table, and items of a block.
const START_SIZE: usize = 4;
pub(super) const STARTS_PER_BLOCK: usize = (BLOCK_SIZE - CONTENT) / START_SIZE;

const MAGIC: &[u8; 8] = b"tw index";
const VERSION: u32 = 1;

/// Contents of the first block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) stamp: u32,
    /// Wall-clock time at which the snapshot was begun, seconds.
    pub(super) taken: u32,
    pub(super) entries: u64,
    /// First block of the table: the number of blocks before it.
    pub(super) table: u32,
    pub(super) runs: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Header = 0,
    Rows = 1,
    Table = 2,
    PageHeader = 3,
    Page = 4,
}

/// A block being filled.
pub(super) struct BlockWriter {
    bytes: Vec<u8>,
    items: u16,
}

impl BlockWriter {
    pub(super) fn new(kind: Kind, number: u32, stamp: u32) -> Self {
        let mut bytes = Vec::with_capacity(BLOCK_SIZE);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&stamp.to_le_bytes());
        bytes.extend_from_slice(&(kind as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        Self { bytes, items: 0 }
    }

    pub(super) fn put(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item);
        self.items += 1;
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(BLOCK_SIZE, 0);
        if let Some(items) = self.bytes.get_mut(14..16) {
            items.copy_from_slice(&self.items.to_le_bytes());
        }
        let checksum = self.bytes.get(4..).map_or(0, crc32fast::hash);
        if let Some(place) = self.bytes.get_mut(..4) {
            place.copy_from_slice(&checksum.to_le_bytes());
        }
        self.bytes
    }
}

pub(super) fn encode_header(header: &Header) -> Vec<u8> {
    let mut block = BlockWriter::new(Kind::Header, 0, header.stamp);
    block.put(MAGIC);
    for number in [VERSION, header.taken, header.table, header.runs] {
        block.put(&number.to_le_bytes());
    }
    block.put(&header.entries.to_le_bytes());
    block.finish()
}

pub(super) fn encode_rows(number: u32, header: &Header, entries: &[SnapshotEntry]) -> Vec<u8> {
    let mut block = BlockWriter::new(Kind::Rows, number, header.stamp);
    for entry in entries.iter().take(ROWS_PER_BLOCK) {
        let mut row = [0; ROW_SIZE];
        let mut rest = &mut row[..];
        let mut put = |bytes: &[u8]| {
            if let Some((place, behind)) = std::mem::take(&mut rest).split_at_mut_checked(bytes.len()) {
                place.copy_from_slice(bytes);
                rest = behind;
            }
        };
        put(&entry.key.0);
        put(&entry.location.to_le_bytes());
        put(&entry.valid_until.to_le_bytes());
        put(&entry.idle_s.to_le_bytes());
        put(&entry.uses.to_le_bytes());
        put(&[entry.lately | u8::from(entry.is_main) << 7]);
        block.put(&row);
    }
    block.finish()
}

pub(super) fn encode_table(number: u32, header: &Header, starts: &[u32]) -> Vec<u8> {
    let mut block = BlockWriter::new(Kind::Table, number, header.stamp);
    for start in starts.iter().take(STARTS_PER_BLOCK) {
        block.put(&start.to_le_bytes());
    }
    block.finish()
}

/// Reads the first block.
pub(super) fn decode_header(block: &[u8]) -> Result<Header, SnapshotError> {
    let content = block.get(CONTENT..BLOCK_SIZE).ok_or(SnapshotError::NotOne)?;
    let content = content.strip_prefix(MAGIC).ok_or(SnapshotError::NotOne)?;
    let mut rest = Rest(content);
    let mut number = || rest.array().map(u32::from_le_bytes).ok_or(SnapshotError::NotOne);
    // The version is checked before the checksum, which a newer version may compute differently.
    let version = number()?;
    if version != VERSION {
        return Err(SnapshotError::Version(version));
    }
    let taken = number()?;
    let table = number()?;
    let runs = number()?;
    let entries = rest.array().map(u64::from_le_bytes).ok_or(SnapshotError::NotOne)?;
    let stamp = stamp(block).ok_or(SnapshotError::NotOne)?;
    decode_items(block, Kind::Header, 0, stamp).ok_or(SnapshotError::Checksum)?;
    // Each run has at least one block, and no more rows than fit into its blocks.
    if table == 0 || runs > table - 1 || entries > u64::from(table - 1) * ROWS_PER_BLOCK as u64 {
        return Err(SnapshotError::Invalid);
    }
    Ok(Header { stamp, taken, entries, table, runs })
}

/// Reads the rows of a block; `None` if it is damaged.
pub(super) fn decode_rows(block: &[u8], number: u32, header: &Header) -> Option<Vec<SnapshotEntry>> {
    let (count, content) = decode_items(block, Kind::Rows, number, header.stamp)?;
    let mut rows = Rest(content);
    (0..count.min(ROWS_PER_BLOCK)).map(|_| decode_row(&rows.array::<ROW_SIZE>()?)).collect()
}

/// Reads the items of a block of the table; `None` if it is damaged.
pub(super) fn decode_table(block: &[u8], number: u32, header: &Header) -> Option<Vec<u32>> {
    let (count, content) = decode_items(block, Kind::Table, number, header.stamp)?;
    let mut starts = Rest(content);
    (0..count.min(STARTS_PER_BLOCK)).map(|_| starts.array().map(u32::from_le_bytes)).collect()
}

fn decode_row(row: &[u8; ROW_SIZE]) -> Option<SnapshotEntry> {
    let mut rest = Rest(row);
    let entry = SnapshotEntry {
        key: Key(rest.array()?),
        location: rest.array().map(u64::from_le_bytes)?,
        valid_until: rest.array().map(u32::from_le_bytes)?,
        idle_s: rest.array().map(u32::from_le_bytes)?,
        uses: rest.array().map(u16::from_le_bytes)?,
        lately: 0,
        is_main: false,
    };
    let [queue] = rest.array()?;
    Some(SnapshotEntry { lately: queue & 0x7f, is_main: queue & 0x80 != 0, ..entry })
}

pub(super) fn stamp(block: &[u8]) -> Option<u32> {
    Rest(block.get(8..)?).array().map(u32::from_le_bytes)
}

/// Number of items of a block, and the bytes from the first one on; `None` if it is damaged, or another block.
pub(super) fn decode_items(block: &[u8], kind: Kind, number: u32, stamp: u32) -> Option<(usize, &[u8])> {
    let block = block.get(..BLOCK_SIZE)?;
    let mut rest = Rest(block);
    let checksum = rest.array().map(u32::from_le_bytes)?;
    if crc32fast::hash(rest.0) != checksum {
        return None;
    }
    let is_it = rest.array().map(u32::from_le_bytes)? == number
        && rest.array().map(u32::from_le_bytes)? == stamp
        && rest.array().map(u16::from_le_bytes)? == kind as u16;
    let count = rest.array().map(u16::from_le_bytes)?;
    is_it.then_some((usize::from(count), rest.0))
}

/// Unread rest of a block.
pub(super) struct Rest<'a>(pub(super) &'a [u8]);

impl Rest<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }
}
