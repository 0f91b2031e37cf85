//! Segments on a block device: a superblock, then slots of one size, each with room for one segment.
//!
//! ```text
//! byte 0           superblock, one block
//! byte 1 MiB       slot 0, slot 1, …
//! ```
//! A segment is in the slot that its number names, modulo the number of slots. Numbers grow, so slots are used in turn, and the
//! oldest segment is the next one whose slot is needed. A slot without a segment begins with zeros, or with the header of one
//! that another slot belongs to.

use super::{BLOCK_SIZE, Rest, SEGMENT_SIZE_MAX, SEGMENT_SIZE_MIN, SegmentError, default_size};

const MAGIC: &[u8; 8] = b"\xf7twcdev\n";
const VERSION: u16 = 1;
/// Bytes that are used: all in one sector, which a disk writes as a whole.
const USED: usize = 64;
/// Offset of the first slot in bytes.
const SLOTS_AT: u64 = 1 << 20;
/// Fewest slots of a device.
const SLOTS_MIN: u32 = 8;
/// Bytes at the beginning of a device in which signatures of file systems and partition tables are looked for.
pub const SIGNATURES_SIZE: usize = 68 << 10;

/// Signatures: offset, bytes and name.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0x438, b"\x53\xef", "ext2, ext3 or ext4"),
    (0, b"XFSB", "XFS"),
    (0x1_0040, b"_BHRfS_M", "btrfs"),
    (1024, b"\x10\x20\xf5\xf2", "F2FS"),
    (3, b"NTFS    ", "NTFS"),
    (3, b"EXFAT   ", "exFAT"),
    (54, b"FAT", "FAT"),
    (82, b"FAT32", "FAT32"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0x8001, b"CD001", "ISO 9660"),
    (0, b"LUKS", "LUKS"),
    (512, b"LABELONE", "LVM"),
    (0, b"\xfc\x4e\x2b\xa9", "a RAID"),
    (4096, b"\xfc\x4e\x2b\xa9", "a RAID"),
    (0, b"hsqs", "squashfs"),
    (512, b"EFI PART", "a partition table (GPT)"),
    (510, b"\x55\xaa", "a partition table or a boot sector"),
];

/// First block of a device with segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Random number of the device.
    pub uuid: [u8; 16],
    /// Bytes of a slot.
    pub slot_size: u64,
    /// Number of slots.
    pub slots: u32,
}

/// Content of the beginning of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceContent {
    /// Zeros.
    Empty,
    /// Segments of a cache.
    Segments(Superblock),
    /// Superblock of a cache that cannot be read.
    Damaged(SegmentError),
    /// Something else, with its name.
    Foreign(&'static str),
}

impl Superblock {
    /// Layout of a device of so many bytes; `slot_size` is chosen by its size if it is `None`. Returns `None` if the device is too
    /// small.
    #[must_use]
    pub fn layout(uuid: [u8; 16], size: u64, slot_size: Option<u64>) -> Option<Self> {
        let room = size.checked_sub(SLOTS_AT)?;
        let slot_size = slot_size
            .unwrap_or_else(|| default_size(room).min(room / u64::from(SLOTS_MIN) / BLOCK_SIZE * BLOCK_SIZE));
        let is_valid = slot_size.is_multiple_of(BLOCK_SIZE)
            && (SEGMENT_SIZE_MIN..=SEGMENT_SIZE_MAX).contains(&slot_size);
        let slots = u32::try_from(room.checked_div(slot_size)?).ok()?.min(crate::SEGMENTS_MAX / 2);
        (is_valid && slots >= SLOTS_MIN).then_some(Self { uuid, slot_size, slots })
    }

    /// Encodes the first block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Vec::with_capacity(BLOCK_SIZE as usize);
        block.extend_from_slice(MAGIC);
        block.extend_from_slice(&[0; 4]);
        block.extend_from_slice(&VERSION.to_le_bytes());
        block.extend_from_slice(&[0; 2]);
        block.extend_from_slice(&self.uuid);
        block.extend_from_slice(&self.slot_size.to_le_bytes());
        block.extend_from_slice(&self.slots.to_le_bytes());
        block.resize(USED, 0);
        let sum = checksum(&block).to_le_bytes();
        block.iter_mut().skip(MAGIC.len()).zip(sum).for_each(|(byte, sum)| *byte = sum);
        block.resize(BLOCK_SIZE as usize, 0);
        block
    }

    /// Decodes the first block of a device of so many bytes.
    ///
    /// # Errors
    /// The block is none, is damaged, or is that of a larger device.
    pub fn decode(block: &[u8], size: u64) -> Result<Self, SegmentError> {
        let content = block.get(..USED).ok_or(SegmentError::Short)?;
        let mut rest = Rest(content.strip_prefix(MAGIC).ok_or(SegmentError::Magic)?);
        let sum = rest.u32().ok_or(SegmentError::Short)?;
        let [low, high, ..]: [u8; 4] = rest.array().ok_or(SegmentError::Short)?;
        if u16::from_le_bytes([low, high]) != VERSION {
            return Err(SegmentError::Version);
        }
        if checksum(content) != sum {
            return Err(SegmentError::Checksum);
        }
        let superblock =
            (|| Some(Self { uuid: rest.array()?, slot_size: rest.u64()?, slots: rest.u32()? }))()
                .ok_or(SegmentError::Short)?;
        let is_valid = superblock.slot_size > 0
            && superblock.slot_size.is_multiple_of(BLOCK_SIZE)
            && superblock.slot_size <= SEGMENT_SIZE_MAX
            && (SLOTS_MIN..=crate::SEGMENTS_MAX / 2).contains(&superblock.slots);
        let fits = is_valid && superblock.offset(superblock.slots) <= size;
        if fits { Ok(superblock) } else { Err(SegmentError::Invalid) }
    }

    /// Number of the slot of a segment.
    #[must_use]
    pub fn slot(&self, segment: u32) -> u32 {
        segment % self.slots
    }

    /// Offset of a slot on the device in bytes.
    #[must_use]
    pub fn offset(&self, slot: u32) -> u64 {
        SLOTS_AT + u64::from(slot) * self.slot_size
    }

    /// Slots that are kept free, so that a segment can begin before another one is freed.
    #[must_use]
    pub fn reserve(&self) -> u32 {
        (self.slots / 32).clamp(2, 16)
    }
}

impl DeviceContent {
    /// Content of a device of so many bytes, whose first bytes are `first`, as many as [`SIGNATURES_SIZE`] if it has them.
    #[must_use]
    pub fn of(first: &[u8], size: u64) -> Self {
        match Superblock::decode(first, size) {
            Ok(superblock) => return Self::Segments(superblock),
            Err(SegmentError::Magic | SegmentError::Short) => {}
            Err(why) => return Self::Damaged(why),
        }
        let has = |(at, bytes, _): &&(usize, &[u8], &str)| {
            first.get(*at..).is_some_and(|rest| rest.starts_with(bytes))
        };
        match SIGNATURES.iter().find(has) {
            Some((_, _, name)) => Self::Foreign(name),
            None if first.iter().all(|byte| *byte == 0) => Self::Empty,
            None => Self::Foreign("something else"),
        }
    }
}

/// Of all that is used but the checksum itself.
fn checksum(block: &[u8]) -> u32 {
    crc32fast::hash(block.get(MAGIC.len() + 4..USED).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = *b"0123456789abcdef";

    #[test]
    fn superblock_round_trips_and_damage_is_found() {
        let size = 100 << 20;
        let one = Superblock::layout(UUID, size, Some(4 << 20)).unwrap();
        assert_eq!((one.slots, one.offset(0), one.offset(2), one.slot(50)), (24, 1 << 20, 9 << 20, 2));
        let block = one.encode();
        assert_eq!(Superblock::decode(&block, size), Ok(one));
        assert_eq!(Superblock::decode(&block, size + 1), Ok(one));
        assert_eq!(Superblock::decode(&block, size - (4 << 20)), Err(SegmentError::Invalid));
        for at in 0..48 {
            let mut damaged = block.clone();
            damaged[at] ^= 0x10;
            assert!(Superblock::decode(&damaged, size).is_err(), "{at}");
        }
    }

    #[test]
    fn slots_fit_the_device() {
        let slots =
            |size: u64, slot_size| Superblock::layout(UUID, size, slot_size).map(|s| (s.slot_size, s.slots));
        assert_eq!(slots(0, None), None);
        assert_eq!(slots(32 << 20, None), None);
        assert_eq!(slots(33 << 20, None), Some((4 << 20, 8)));
        assert_eq!(slots(33 << 20, Some(5 << 20)), None);
        assert_eq!(slots(33 << 20, Some((4 << 20) + 1)), None);
        let (slot_size, count) = slots(1 << 40, None).unwrap();
        assert!(slot_size == 1 << 30 && count == 1023, "{slot_size} {count}");
    }

    #[test]
    fn foreign_content_is_recognized() {
        let with = |at: usize, bytes: &[u8]| {
            let mut first = vec![0; SIGNATURES_SIZE];
            first[at..at + bytes.len()].copy_from_slice(bytes);
            DeviceContent::of(&first, 1 << 30)
        };
        assert_eq!(with(0, b""), DeviceContent::Empty);
        assert_eq!(with(0x438, b"\x53\xef"), DeviceContent::Foreign("ext2, ext3 or ext4"));
        assert_eq!(with(0x1_0040, b"_BHRfS_M"), DeviceContent::Foreign("btrfs"));
        assert_eq!(with(700, b"x"), DeviceContent::Foreign("something else"));
        let one = Superblock::layout(UUID, 1 << 30, None).unwrap();
        assert_eq!(with(0, &one.encode()), DeviceContent::Segments(one));
        let mut damaged = one.encode();
        damaged[20] ^= 1;
        assert_eq!(with(0, &damaged), DeviceContent::Damaged(SegmentError::Checksum));
    }
}
