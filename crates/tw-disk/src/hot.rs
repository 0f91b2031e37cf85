//! Parts of files found in memory lately, which a loop may still read itself while the device is busy.
//!
//! `preadv2(RWF_NOWAIT)` does not wait for data, but on a miss it starts to read ahead, and starting a request waits when the
//! device has as many as it takes: on a loop device with 64 requests and 400 reads per second, a miss took up to 100 ms
//! (a cold 32 KiB read of 200 files in turn, ext4, Linux 6.18). The kernel has no flag to look without starting
//! (`cachestat` and `mincore` answer only for files one may write). So while many jobs read from a device, a loop tries only
//! what this table remembers, and everything else goes to the pool, where waiting blocks no loop; what the pool finds in
//! memory is remembered.
//!
//! The table is one array without locks. A lost or mixed-up entry costs one needless job or one needless try, never a
//! wrong answer.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Bytes remembered together, as a power of two: 64 KiB, small enough that a stream read for the first time is not taken
/// for hot because of its beginning.
const REGION_BITS: u32 = 16;
const REGION_SIZE: u64 = 1 << REGION_BITS;
/// Entries, a power of two: 256 KiB of memory remember 4 GiB of hot data.
const ENTRIES: usize = 1 << 16;
/// Epochs an entry is believed in, besides the one it was made in.
const EPOCHS_KEPT: u16 = 1;

/// The upper half of an entry tells regions apart that share it, the lower half is the epoch.
static TABLE: [AtomicU32; ENTRIES] = [const { AtomicU32::new(0) }; ENTRIES];

/// A file, as far as the table is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key(u64);

impl Key {
    /// Inode numbers are used again as soon as they are free: the time of the last change tells their files apart.
    pub(crate) fn new(dev: u64, ino: u64, mtime_sec: i64, mtime_nsec: u32) -> Self {
        let mtime = mtime_sec.cast_unsigned().rotate_left(32) ^ u64::from(mtime_nsec);
        Self(mix(ino ^ dev.rotate_left(32) ^ mix(mtime)))
    }

    fn entry(self, region: u64) -> (&'static AtomicU32, u32) {
        let hash = mix(self.0.wrapping_add(region));
        // The tag is never 0, so that an empty entry matches no file.
        let tag = ((hash >> 32) as u32 | 1 << 16) & 0xffff_0000;
        (&TABLE[hash as usize % ENTRIES], tag)
    }

    /// Number of the `len` bytes at `offset`, counted from the first, that were in memory lately.
    pub(crate) fn hot_len(self, offset: u64, len: usize, epoch: u16) -> usize {
        let end = offset.saturating_add(len as u64);
        let mut known_len = offset;
        while known_len < end {
            let (entry, tag) = self.entry(known_len >> REGION_BITS);
            let value = entry.load(Relaxed);
            let age = epoch.wrapping_sub(value as u16);
            if value & 0xffff_0000 != tag || age > EPOCHS_KEPT {
                break;
            }
            known_len = ((known_len >> REGION_BITS) + 1) << REGION_BITS;
        }
        (known_len.min(end) - offset) as usize
    }

    /// Remembers that `len` bytes at `offset` were in memory.
    pub(crate) fn note(self, offset: u64, len: usize, epoch: u16) {
        let mut at = offset & !(REGION_SIZE - 1);
        while at < offset.saturating_add(len as u64) {
            let (entry, tag) = self.entry(at >> REGION_BITS);
            let value = tag | u32::from(epoch);
            // The value is mostly there already, and a cache line that is only read stays in the cache of every
            // processor.
            if entry.load(Relaxed) != value {
                entry.store(value, Relaxed);
            }
            at += REGION_SIZE;
        }
    }

    /// Forgets the region at `offset`: it was not in memory.
    pub(crate) fn forget(self, offset: u64) {
        let (entry, tag) = self.entry(offset >> REGION_BITS);
        if entry.load(Relaxed) & 0xffff_0000 == tag {
            entry.store(0, Relaxed);
        }
    }
}

/// The end of MurmurHash3: every bit of the input moves half of the output.
fn mix(mut hash: u64) -> u64 {
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_regions_for_a_while() {
        let key = Key::new(1, 4711, 10, 5);
        assert_eq!(key.hot_len(0, 1000, 5), 0);
        key.note(70_000, 100_000, 5);
        // offset, length, epoch, known
        let cases = [
            (70_000, 100_000, 5, 100_000),
            (70_000, 200_000, 5, 126_608),
            (65_536, 10, 5, 10),
            (65_535, 10, 5, 0),
            (196_608, 10, 5, 0),
            (70_000, 10, 6, 10),
            (70_000, 10, 7, 0),
            (70_000, 10, 4, 0),
            (70_000, 0, 5, 0),
        ];
        for (offset, len, epoch, end) in cases {
            assert_eq!(key.hot_len(offset, len, epoch), end, "{offset} {len} {epoch}");
        }
        key.forget(140_000);
        assert_eq!(key.hot_len(70_000, 100_000, 5), 61_072);
        for other in [Key::new(2, 4711, 10, 5), Key::new(1, 4711, 10, 6), Key::new(1, 4711, 11, 5)] {
            assert_eq!(other.hot_len(70_000, 10, 5), 0);
        }
    }

    #[test]
    fn epochs_wrap() {
        let key = Key::new(1, 4712, 0, 0);
        key.note(0, 1, u16::MAX);
        assert_eq!(key.hot_len(0, 1, 0), 1);
        assert_eq!(key.hot_len(0, 1, 1), 0);
    }
}
