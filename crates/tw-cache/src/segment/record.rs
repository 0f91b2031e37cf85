//! Prefix of a record, and the scan of a segment that has no table.

use super::{BLOCK_SIZE, RECORD_MAX, Rest, SegmentError, SegmentHeader, blocks};
use crate::{Key, SegmentAddress};

/// Bytes in front of the entry.
pub const PREFIX_SIZE: u64 = 64;
/// The first four bytes of a record that was removed.
pub const REMOVED_MARK: [u8; 4] = *b"GONE";
/// Offset of the checksum, behind the mark: what is behind it may be written anew.
const CHECKSUM_AT: usize = 4;
const CHECKED_AT: usize = 8;

/// Prefix of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPrefix {
    /// Key under which the entry is stored.
    pub key: Key,
    /// Length of the entry, head and body.
    pub len: u64,
    /// Sequence number of the fetch, or of the last validation.
    pub sequence: u64,
    /// Time at which the response becomes stale.
    pub valid_until: u32,
}

/// State of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// Part of the cache.
    Stored,
    /// Removed.
    Removed,
}

/// Row of a table: one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRow {
    /// Key under which the entry is stored.
    pub key: Key,
    /// First block.
    pub block: u32,
    /// Number of blocks.
    pub blocks: u32,
    /// Sequence number of the fetch.
    pub sequence: u64,
    /// Time at which the response becomes stale.
    pub valid_until: u32,
}

impl SegmentRow {
    /// Address of the record in the segment with this number.
    #[must_use]
    pub fn address(&self, segment: u32) -> SegmentAddress {
        SegmentAddress { segment, block: self.block, blocks: self.blocks }
    }
}

impl RecordPrefix {
    /// Number of blocks of the record.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        // A record has at most RECORD_MAX blocks when it is written.
        u32::try_from(blocks(PREFIX_SIZE + self.len)).unwrap_or(u32::MAX)
    }

    /// Encodes the prefix for a record at this block. From the fifth byte on it may be written over another prefix of the same
    /// record, whatever its state.
    #[must_use]
    pub fn encode(&self, header: &SegmentHeader, block: u32) -> [u8; PREFIX_SIZE as usize] {
        let mut bytes = Vec::with_capacity(PREFIX_SIZE as usize);
        bytes.extend_from_slice(&[0; CHECKED_AT]);
        bytes.extend_from_slice(&header.stamp.to_le_bytes());
        bytes.extend_from_slice(&header.number.to_le_bytes());
        bytes.extend_from_slice(&block.to_le_bytes());
        bytes.extend_from_slice(&self.key.0);
        bytes.extend_from_slice(&self.len.to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&self.valid_until.to_le_bytes());
        let mut prefix = [0; PREFIX_SIZE as usize];
        prefix.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        let sum = checksum(&prefix).to_le_bytes();
        prefix.iter_mut().skip(CHECKSUM_AT).zip(sum).for_each(|(to, from)| *to = from);
        prefix
    }

    /// Decodes the prefix of a record at this block.
    ///
    /// # Errors
    /// The bytes are no prefix, or one of another place.
    pub fn decode(
        bytes: &[u8],
        header: &SegmentHeader,
        block: u32,
    ) -> Result<(Self, RecordState), SegmentError> {
        let prefix = bytes.get(..PREFIX_SIZE as usize).ok_or(SegmentError::Short)?;
        let mut rest = Rest(prefix);
        let mark: [u8; 4] = rest.array().ok_or(SegmentError::Short)?;
        if rest.u32() != Some(checksum(prefix)) {
            return Err(SegmentError::Checksum);
        }
        if (rest.u64(), rest.u32(), rest.u32()) != (Some(header.stamp), Some(header.number), Some(block)) {
            return Err(SegmentError::Place);
        }
        let state = match mark {
            [0, 0, 0, 0] => RecordState::Stored,
            _ => RecordState::Removed,
        };
        let prefix = (|| {
            let key = Key(rest.array()?);
            let len = rest.u64()?;
            Some(Self { key, len, sequence: rest.u64()?, valid_until: rest.u32()? })
        })()
        .ok_or(SegmentError::Short)?;
        if prefix.len == 0 || prefix.len > RECORD_MAX - PREFIX_SIZE {
            return Err(SegmentError::Invalid);
        }
        Ok((prefix, state))
    }
}

fn checksum(prefix: &[u8]) -> u32 {
    crc32fast::hash(prefix.get(CHECKED_AT..).unwrap_or_default())
}

/// Part of a segment that was read for a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanWindow<'a> {
    /// First block.
    pub block: u32,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Size of the whole segment.
    pub file_size: u64,
}

/// Finds records in a part of a segment, which begins with one, and adds those that were not removed to `rows`. Returns the
/// block at which the next part begins; `None` at the end, or at a record that is not whole.
pub fn scan(header: &SegmentHeader, window: &ScanWindow<'_>, rows: &mut Vec<SegmentRow>) -> Option<u32> {
    let mut at = 0_u32;
    loop {
        let block = window.block.checked_add(at)?;
        let offset = usize::try_from(u64::from(at) * BLOCK_SIZE).ok()?;
        let Some(rest) = window.bytes.get(offset..).filter(|rest| rest.len() >= PREFIX_SIZE as usize) else {
            return (at > 0).then_some(block);
        };
        let (prefix, state) = RecordPrefix::decode(rest, header, block).ok()?;
        let end = u64::from(block) * BLOCK_SIZE + PREFIX_SIZE + prefix.len;
        if end > window.file_size {
            return None;
        }
        if state == RecordState::Stored {
            let RecordPrefix { key, sequence, valid_until, .. } = prefix;
            rows.push(SegmentRow { key, block, blocks: prefix.blocks(), sequence, valid_until });
        }
        at = at.checked_add(prefix.blocks())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader =
        SegmentHeader { number: 3, stamp: 0x1234_5678_9abc, created: 5, table: None };

    fn prefix(text: &str, len: u64) -> RecordPrefix {
        RecordPrefix { key: Key::of(text.as_bytes()), len, sequence: 1 << 40, valid_until: 77 }
    }

    #[test]
    fn prefix_round_trips_and_belongs_to_its_place() {
        let one = prefix("/a", 4032);
        let mut bytes = one.encode(&HEADER, 9);
        assert_eq!(one.blocks(), 1);
        assert_eq!(prefix("/a", 4033).blocks(), 2);
        assert_eq!(RecordPrefix::decode(&bytes, &HEADER, 9), Ok((one, RecordState::Stored)));
        assert_eq!(RecordPrefix::decode(&bytes, &HEADER, 8), Err(SegmentError::Place));
        for other in [SegmentHeader { number: 4, ..HEADER }, SegmentHeader { stamp: 1, ..HEADER }] {
            assert_eq!(RecordPrefix::decode(&bytes, &other, 9), Err(SegmentError::Place));
        }
        for at in 4..PREFIX_SIZE as usize {
            let mut damaged = bytes;
            damaged[at] ^= 0x20;
            assert_eq!(RecordPrefix::decode(&damaged, &HEADER, 9), Err(SegmentError::Checksum), "{at}");
        }
        bytes[..4].copy_from_slice(&REMOVED_MARK);
        assert_eq!(RecordPrefix::decode(&bytes, &HEADER, 9), Ok((one, RecordState::Removed)));
        // A new prefix over it leaves it removed.
        bytes[4..].copy_from_slice(&RecordPrefix { sequence: 2, ..one }.encode(&HEADER, 9)[4..]);
        assert_eq!(RecordPrefix::decode(&bytes, &HEADER, 9).unwrap().1, RecordState::Removed);
        for len in [0, RECORD_MAX] {
            let bytes = prefix("/a", len).encode(&HEADER, 9);
            assert_eq!(RecordPrefix::decode(&bytes, &HEADER, 9), Err(SegmentError::Invalid));
        }
    }

    /// Records of these lengths behind each other from block 1 on.
    fn segment(lens: &[u64]) -> Vec<u8> {
        let mut file = HEADER.encode();
        for (nth, len) in lens.iter().enumerate() {
            let block = (file.len() as u64 / BLOCK_SIZE) as u32;
            file.extend(prefix(&nth.to_string(), *len).encode(&HEADER, block));
            file.resize(file.len() + *len as usize, b'x');
            file.resize(file.len().next_multiple_of(BLOCK_SIZE as usize), 0);
        }
        file
    }

    fn scan_all(file: &[u8], window: usize) -> Vec<u32> {
        let mut rows = Vec::new();
        let mut next = Some(1);
        while let Some(block) = next {
            let from = (block as usize * BLOCK_SIZE as usize).min(file.len());
            let bytes = &file[from..file.len().min(from + window)];
            next = scan(&HEADER, &ScanWindow { block, bytes, file_size: file.len() as u64 }, &mut rows);
        }
        rows.iter().map(|row| row.block).collect()
    }

    #[test]
    fn scan_finds_the_records_up_to_the_first_that_is_not_whole() {
        let mut file = segment(&[100, 9000, 4032, 300, 50_000, 1]);
        for window in [64, 4096, 10_000, 1 << 20] {
            assert_eq!(scan_all(&file, window), [1, 2, 5, 6, 7, 20], "{window}");
        }
        for (end, count) in
            [(21 * 4096 - 1, 6), (20 * 4096 + 65, 6), (20 * 4096 + 64, 5), (20 * 4096, 5), (4096, 0)]
        {
            assert_eq!(scan_all(&file[..end], 1 << 20).len(), count, "{end}");
        }
        file[5 * 4096..5 * 4096 + 4].copy_from_slice(&REMOVED_MARK);
        assert_eq!(scan_all(&file, 1 << 20), [1, 2, 6, 7, 20]);
        file[6 * 4096 + 20] ^= 1;
        assert_eq!(scan_all(&file, 1 << 20), [1, 2]);
    }

    #[test]
    fn record_within_a_body_is_not_found() {
        let mut file = segment(&[20_000, 10]);
        let forged = prefix("/victim", 100).encode(&SegmentHeader { stamp: 0, ..HEADER }, 3);
        file[3 * 4096..3 * 4096 + 64].copy_from_slice(&forged);
        assert_eq!(scan_all(&file, 1 << 20), [1, 6]);
        assert_eq!(RecordPrefix::decode(&file[3 * 4096..], &HEADER, 3), Err(SegmentError::Place));
    }
}
