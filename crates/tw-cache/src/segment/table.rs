//! Table of the records of a complete segment.

use super::{BLOCK_SIZE, Rest, SegmentError, SegmentRow, TablePlace, blocks};
use crate::Key;

/// Bytes of a row.
pub const ROW_SIZE: u64 = 36;

/// Bytes that a table of so many rows takes in its segment: whole blocks.
#[must_use]
pub const fn table_size(rows: u64) -> u64 {
    blocks(rows * ROW_SIZE) * BLOCK_SIZE
}

/// Appends a row.
pub fn encode_row(row: &SegmentRow, out: &mut Vec<u8>) {
    out.extend_from_slice(&row.key.0);
    out.extend_from_slice(&row.block.to_le_bytes());
    out.extend_from_slice(&row.blocks.to_le_bytes());
    out.extend_from_slice(&row.sequence.to_le_bytes());
    out.extend_from_slice(&row.valid_until.to_le_bytes());
}

impl TablePlace {
    /// Place of a table of so many rows, which are `bytes`, at `block`.
    #[must_use]
    pub fn of(block: u32, rows: u32, bytes: &[u8]) -> Self {
        Self { block, rows, checksum: crc32fast::hash(bytes) }
    }

    /// Bytes of the table.
    #[must_use]
    pub fn len(&self) -> u64 {
        u64::from(self.rows) * ROW_SIZE
    }

    /// Returns `true` if the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }
}

/// Decodes a table. All its rows are of records behind the header and before the table.
///
/// # Errors
/// The table is damaged.
pub fn decode_table(bytes: &[u8], place: &TablePlace) -> Result<Vec<SegmentRow>, SegmentError> {
    let len = usize::try_from(place.len()).map_err(|_| SegmentError::Invalid)?;
    let bytes = bytes.get(..len).ok_or(SegmentError::Short)?;
    if crc32fast::hash(bytes) != place.checksum {
        return Err(SegmentError::Checksum);
    }
    bytes
        .chunks_exact(ROW_SIZE as usize)
        .map(|row| decode_row(row).filter(|row| is_within(row, place)).ok_or(SegmentError::Invalid))
        .collect()
}

fn is_within(row: &SegmentRow, place: &TablePlace) -> bool {
    row.block > 0 && row.blocks > 0 && row.block.checked_add(row.blocks).is_some_and(|end| end <= place.block)
}

fn decode_row(row: &[u8]) -> Option<SegmentRow> {
    let mut rest = Rest(row);
    Some(SegmentRow {
        key: Key(rest.array()?),
        block: rest.u32()?,
        blocks: rest.u32()?,
        sequence: rest.u64()?,
        valid_until: rest.u32()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode_table(rows: &[SegmentRow], block: u32) -> (Vec<u8>, TablePlace) {
        let mut bytes = Vec::new();
        rows.iter().for_each(|row| encode_row(row, &mut bytes));
        let place = TablePlace::of(block, rows.len() as u32, &bytes);
        (bytes, place)
    }

    #[test]
    fn table_round_trips_and_damage_is_found() {
        let row = |nth: u32| SegmentRow {
            key: Key::of(&nth.to_le_bytes()),
            block: 1 + nth,
            blocks: 1,
            sequence: u64::from(nth) << 33,
            valid_until: nth,
        };
        let rows: Vec<_> = (0..200).map(row).collect();
        let (bytes, place) = encode_table(&rows, 201);
        assert_eq!((bytes.len() as u64, table_size(200)), (200 * ROW_SIZE, 8192));
        assert_eq!(decode_table(&bytes, &place), Ok(rows.clone()));
        assert_eq!(decode_table(&bytes[1..], &place), Err(SegmentError::Short));
        for at in (0..bytes.len()).step_by(13) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(decode_table(&damaged, &place), Err(SegmentError::Checksum));
        }
        // A record that would be in the table, or in the header.
        let (bytes, place) = encode_table(&rows, 200);
        assert_eq!(decode_table(&bytes, &place), Err(SegmentError::Invalid));
        let (bytes, place) = encode_table(&[SegmentRow { block: 0, ..row(1) }], 9);
        assert_eq!(decode_table(&bytes, &place), Err(SegmentError::Invalid));
    }
}
