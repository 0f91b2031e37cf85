//! Comparison of the blocks of a file with their checksums, before any of their bytes goes out (`verify` of a cache).
//!
//! A block is read whole and compared by a job. Then it is noted, and its bytes are read from the page cache like those of any
//! file. A read that has to wait for the disk compares again: memory was short, and the bytes come from the disk once more.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use bytes::Bytes;
use tw_cache::format::{BODY_BLOCK, BlockSums};
use tw_disk::{Account, Disk, DiskError, File};

use crate::protocol::Session;

/// Bytes for which one call finds out how many of them are verified.
const LOOK_AHEAD: u64 = 256 * BODY_BLOCK;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of a cached response that one job reads to compare them with their checksums.
    const CHECK_READ_SIZE: u64 = 4 * BODY_BLOCK, bytes, "the next job reads on";
}

/// Receiver of the news that a file is damaged.
pub trait DamageReport: Send + Sync {
    /// Takes the file out of use, and logs it. `offset` is that of the damaged block in the file.
    fn report(&self, r: &Session, offset: u64);
}

/// Checksums of the blocks of a file, and which blocks were compared with them.
pub struct BlockCheck {
    /// Bytes of the file that have checksums: the body of a response.
    body: Range<u64>,
    sums: BlockSums,
    /// One bit for each block with a checksum.
    verified: Box<[AtomicU64]>,
    unverified: AtomicUsize,
    /// True if blocks are compared whenever they are read: something else may be written to their place.
    is_always: bool,
    damage: Arc<dyn DamageReport>,
}

/// Offset in the file of a block that differs from its checksum, or is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DamagedBlock(pub u64);

impl BlockCheck {
    /// Nothing of the file is verified yet.
    pub fn new(body: Range<u64>, sums: BlockSums, damage: Arc<dyn DamageReport>) -> Self {
        let blocks = sums.len();
        let verified = (0..blocks.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { body, sums, verified, unverified: AtomicUsize::new(blocks), is_always: false, damage }
    }

    /// Compares blocks whenever they are read.
    pub fn always(self) -> Self {
        // A file without blocks is complete.
        Self { is_always: true, ..self }
    }

    /// Bytes of memory that the checksums take.
    pub fn memory(&self) -> usize {
        4 * self.sums.len() + 8 * self.verified.len()
    }

    /// Returns true if all of the file is verified.
    pub fn is_complete(&self) -> bool {
        self.unverified.load(Relaxed) == 0
    }

    /// Number of verified bytes from `offset` on, at most `len`.
    pub fn verified_len(&self, offset: u64, len: u64) -> u64 {
        if self.is_complete() {
            return len;
        }
        let end = offset.saturating_add(len.min(LOOK_AHEAD));
        let mut at = offset;
        while at < end && self.is_verified(self.block_at(at)) {
            at = self.block(self.block_at(at)).end.max(at + 1);
        }
        at.min(end) - offset
    }

    /// Number of the block with the byte at `offset` of the file.
    fn block_at(&self, offset: u64) -> u64 {
        offset.saturating_sub(self.body.start) / BODY_BLOCK
    }

    /// Place of a block in the file.
    fn block(&self, nth: u64) -> Range<u64> {
        let start = self.body.start + nth * BODY_BLOCK;
        start..(start + BODY_BLOCK).min(self.body.end)
    }

    /// Blocks behind the last one with a checksum are verified.
    fn is_verified(&self, nth: u64) -> bool {
        let word = usize::try_from(nth / 64).ok().and_then(|word| self.verified.get(word));
        nth >= self.sums.len() as u64 || word.is_some_and(|word| word.load(Relaxed) & 1 << (nth % 64) != 0)
    }

    fn set_verified(&self, nth: u64) {
        if self.is_always {
            return;
        }
        let word = usize::try_from(nth / 64).ok().and_then(|word| self.verified.get(word));
        if let Some(word) = word.filter(|_| nth < self.sums.len() as u64)
            && word.fetch_or(1 << (nth % 64), Relaxed) & 1 << (nth % 64) == 0
        {
            self.unverified.fetch_sub(1, Relaxed);
        }
    }

    /// Compares the blocks in `bytes`, which are at `offset` of the file, the begin of a block, and notes them. Returns the
    /// number of leading bytes that are as they were written.
    fn compare(&self, offset: u64, bytes: &[u8]) -> u64 {
        let mut good = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let nth = self.block_at(offset + good);
            let place = self.block(nth);
            let len = usize::try_from(place.end.saturating_sub(place.start)).unwrap_or(usize::MAX);
            let Some((block, behind)) = rest.split_at_checked(len).filter(|_| len > 0) else { break };
            if !self.sums.matches(nth, block) {
                break;
            }
            self.set_verified(nth);
            good += len as u64;
            rest = behind;
        }
        good
    }

    /// Compares the first block, if all of it is in `first`, the bytes of the file from `from` on. `None` if it is not.
    pub fn compare_first(&self, from: u64, first: &[u8]) -> Option<Result<(), DamagedBlock>> {
        let place = self.block(0);
        let at = |offset: u64| usize::try_from(offset.checked_sub(from)?).ok();
        let at = at(place.start)?..at(place.end)?;
        let block = first.get(at)?;
        let is_good = self.sums.matches(0, block);
        if is_good {
            self.set_verified(0);
        }
        Some(if is_good { Ok(()) } else { Err(DamagedBlock(place.start)) })
    }

    /// Reads up to `want` bytes of `file` at `offset` by a job that compares their blocks. Returns fewer bytes if the job reads no
    /// more, or in front of a damaged block.
    pub async fn read(
        self: &Arc<Self>,
        disk: &Disk,
        account: &mut Account,
        file: &File,
        offset: u64,
        want: usize,
    ) -> Result<Result<Bytes, DamagedBlock>, DiskError> {
        let start = self.block(self.block_at(offset)).start;
        let last = offset.saturating_add((want as u64).max(1)).min(start + CHECK_READ_SIZE).saturating_sub(1);
        let end = self.block(self.block_at(last)).end.min(start + CHECK_READ_SIZE);
        let len = usize::try_from(end.saturating_sub(start)).unwrap_or(0);
        let check = self.clone();
        disk.read_and(account, file, start, len, move |bytes| {
            let good = check.compare(start, &bytes);
            let skip = offset.saturating_sub(start);
            if good <= skip {
                return Err(DamagedBlock(start + good));
            }
            let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            Ok(Bytes::from(bytes).slice(at(skip)..at(good.min(skip.saturating_add(want as u64)))))
        })
        .await
    }

    /// Reports a damaged block in a response to `r`.
    pub fn report(&self, r: &Session, block: DamagedBlock) {
        self.damage.report(r, block.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_cache::format::BodySums;
    use tw_disk::sim::Sim;
    use tw_disk::{Aio, JobClass, JobSource, OpenOptions, Pool};

    struct Nobody;

    impl DamageReport for Nobody {
        fn report(&self, _: &Session, _: u64) {}
    }

    const BLOCK: usize = BODY_BLOCK as usize;
    const HEAD: u64 = 512;

    /// A file with a body of so many bytes, and its check.
    fn file(len: usize) -> (Vec<u8>, Arc<BlockCheck>) {
        let body: Vec<u8> = (0..len).map(|at| (at * 7 + at / 251) as u8).collect();
        let mut sums = BodySums::default();
        sums.push(&body);
        let sums = sums.finish();
        let table = BlockSums::decode(len as u64, sums.sum, &sums.table).unwrap();
        let check = Arc::new(BlockCheck::new(HEAD..HEAD + len as u64, table, Arc::new(Nobody)));
        ([vec![b'h'; HEAD as usize], body, sums.table].concat(), check)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    #[test]
    fn verified_bytes_are_those_of_verified_blocks() {
        let (bytes, check) = file(3 * BLOCK + 10);
        let block = BODY_BLOCK;
        assert_eq!(check.verified_len(HEAD, 5), 0);
        assert_eq!(check.compare_first(0, &bytes[..BLOCK]), None);
        assert_eq!(check.compare_first(0, &bytes[..BLOCK + 512]), Some(Ok(())));
        assert_eq!(check.verified_len(HEAD, 5), 5);
        assert_eq!(check.verified_len(HEAD + 7, 4 * block), block - 7);
        assert_eq!(check.verified_len(HEAD + block, 1), 0);
        assert_eq!(check.compare(HEAD + 2 * block, &bytes[512 + 2 * BLOCK..][..BLOCK]), block);
        assert_eq!(check.verified_len(HEAD, u64::MAX / 4), block);
        assert_eq!(check.verified_len(HEAD + 2 * block + 1, u64::MAX / 4), block - 1);
        assert!(!check.is_complete());
        // The last one is short, and a part of it is none.
        assert_eq!(check.compare(HEAD + 3 * block, &bytes[512 + 3 * BLOCK..][..9]), 0);
        assert_eq!(check.compare(HEAD + 3 * block, &bytes[512 + 3 * BLOCK..][..10]), 10);
        assert_eq!(check.compare(HEAD + block, &bytes[512 + BLOCK..][..BLOCK]), block);
        assert!(check.is_complete());
        assert_eq!(check.verified_len(HEAD, 77), 77);
    }

    #[test]
    fn reads_end_in_front_of_damage() {
        let pool = Pool::new("sim", 1, 100).unwrap();
        let len = 6 * BLOCK + 100;
        let (good, _) = file(len);
        for damaged in [None, Some(0), Some(1), Some(4), Some(6)] {
            let sim = Sim::new(1);
            let disk = Disk::simulated(pool.clone(), Aio::Off, sim.clone());
            let mut content = good.clone();
            let place = damaged.map(|nth| 512 + nth * BLOCK);
            if let Some(place) = place {
                content[place + 50] ^= 0x10;
            }
            sim.put(c"/file", &content).unwrap();
            let (_, check) = file(len);
            block_on(async {
                let mut account = Account::new(JobClass::Hit, JobSource::NONE);
                let open = disk.open(&mut account, c"/file", &OpenOptions::READ).await.unwrap();
                for (start, want) in [(0, 1), (0, usize::MAX), (10, BLOCK), (BLOCK - 1, 2), (len - 1, 9)] {
                    let mut at = start;
                    let end = len.min(start.saturating_add(want));
                    while at < end {
                        let offset = HEAD + at as u64;
                        match check.read(&disk, &mut account, &open, offset, end - at).await.unwrap() {
                            Ok(piece) => {
                                assert!(!piece.is_empty() && piece.len() as u64 <= CHECK_READ_SIZE);
                                let expected = &good[512 + at..512 + at + piece.len()];
                                assert!(piece == expected, "{damaged:?} {start} {want}");
                                at += piece.len();
                            }
                            Err(DamagedBlock(block)) => {
                                assert_eq!(Some(block as usize), place);
                                assert!(512 + at <= block as usize + BLOCK, "{damaged:?} {start} {want}");
                                break;
                            }
                        }
                    }
                    let reaches = place.is_some_and(|at| at + BLOCK > 512 + start && at < 512 + end);
                    assert_eq!(at < end, reaches, "{damaged:?} {start} {want}");
                }
                assert_eq!(check.is_complete(), damaged.is_none());
            });
        }
    }

    #[test]
    fn truncated_file_is_damaged_where_it_ends() {
        let sim = Sim::new(1);
        let disk = Disk::simulated(Pool::new("sim", 1, 100).unwrap(), Aio::Off, sim.clone());
        let (good, check) = file(2 * BLOCK);
        sim.put(c"/file", &good[..512 + BLOCK + 9]).unwrap();
        block_on(async {
            let mut account = Account::new(JobClass::Hit, JobSource::NONE);
            let open = disk.open(&mut account, c"/file", &OpenOptions::READ).await.unwrap();
            let first = check.read(&disk, &mut account, &open, HEAD, usize::MAX).await.unwrap().unwrap();
            assert_eq!(first.len(), BLOCK);
            let next = check.read(&disk, &mut account, &open, HEAD + BODY_BLOCK, 1).await.unwrap();
            assert_eq!(next, Err(DamagedBlock(HEAD + BODY_BLOCK)));
        });
    }
}
