//! First block of a segment.

use super::{BLOCK_SIZE, Rest, SegmentError};

const MAGIC: &[u8; 8] = b"\xf7twsegmt";
const VERSION: u16 = 1;
/// Bytes that are used: all in one sector, which a disk writes as a whole.
const USED: usize = 64;

/// Header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Number of the segment, which its name has.
    pub number: u32,
    /// Random number of this segment.
    pub stamp: u64,
    /// Sequence number of the cache when the segment was made: segments are freed in this order.
    pub created: u64,
    /// Place of the table; `None` as long as records are added.
    pub table: Option<TablePlace>,
}

/// Place of a segment's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePlace {
    /// First block.
    pub block: u32,
    /// Number of rows.
    pub rows: u32,
    /// CRC-32 of the table.
    pub checksum: u32,
}

impl SegmentHeader {
    /// Encodes the first block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_SIZE as usize);
        let table = self.table.unwrap_or(TablePlace { block: 0, rows: 0, checksum: 0 });
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[u8::from(self.table.is_some()), 0]);
        block.extend_from_slice(&self.number.to_le_bytes());
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&self.stamp.to_le_bytes());
        block.extend_from_slice(&self.created.to_le_bytes());
        for number in [table.block, table.rows, table.checksum] {
            block.extend_from_slice(&number.to_le_bytes());
        }
        block.resize(USED, 0);
        let sum = checksum(&block).to_le_bytes();
        for (byte, sum) in block.iter_mut().skip(MAGIC.len()).zip(sum) {
            *byte = sum;
        }
        block.resize(BLOCK_SIZE as usize, 0);
        block
    }

    /// Decodes the first block of the segment with this number.
    ///
    /// # Errors
    /// The block is damaged, or is that of another segment.
    pub fn decode(block: &[u8], number: u32) -> Result<Self, SegmentError> {
        match Self::decode_any(block)? {
            header if header.number == number => Ok(header),
            _ => Err(SegmentError::Place),
        }
    }

    /// Decodes the first block of a segment, whatever its number.
    ///
    /// # Errors
    /// The block is damaged.
    pub fn decode_any(block: &[u8]) -> Result<Self, SegmentError> {
        let content = block.get(..USED).ok_or(SegmentError::Short)?;
        let mut rest = Rest(content.strip_prefix(MAGIC).ok_or(SegmentError::Magic)?);
        let sum = rest.u32().ok_or(SegmentError::Short)?;
        let version = rest.array().map(u16::from_le_bytes).ok_or(SegmentError::Short)?;
        if version != VERSION {
            return Err(SegmentError::Version);
        }
        if checksum(content) != sum {
            return Err(SegmentError::Checksum);
        }
        (|| {
            let [has_table, _] = rest.array()?;
            let (number, _) = (rest.u32()?, rest.u32()?);
            let stamp = rest.u64()?;
            let created = rest.u64()?;
            let table = TablePlace { block: rest.u32()?, rows: rest.u32()?, checksum: rest.u32()? };
            Some(Self { number, stamp, created, table: (has_table == 1).then_some(table) })
        })()
        .ok_or(SegmentError::Short)
    }
}

/// Of all that is used but the checksum itself.
fn checksum(block: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(block.get(MAGIC.len() + 4..USED).unwrap_or_default());
    sum.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trips_and_damage_is_found() {
        let table = Some(TablePlace { block: 5, rows: 7, checksum: 9 });
        for table in [None, table] {
            let header = SegmentHeader { number: 77, stamp: u64::MAX - 5, created: 1 << 40, table };
            let block = header.encode();
            assert_eq!(block.len(), 4096);
            assert_eq!(SegmentHeader::decode(&block, 77), Ok(header));
            assert_eq!(SegmentHeader::decode(&block[..64], 77), Ok(header));
            assert_eq!(SegmentHeader::decode(&block, 78), Err(SegmentError::Place));
            assert_eq!(SegmentHeader::decode(&block[..63], 77), Err(SegmentError::Short));
            for at in 0..USED {
                let mut damaged = block.clone();
                damaged[at] ^= 1;
                let expected = match at {
                    0..8 => SegmentError::Magic,
                    12..14 => SegmentError::Version,
                    _ => SegmentError::Checksum,
                };
                assert_eq!(SegmentHeader::decode(&damaged, 77), Err(expected), "{at}");
            }
        }
    }
}
