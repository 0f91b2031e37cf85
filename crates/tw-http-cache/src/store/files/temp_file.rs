//! File on its way into a cache. It is written back in windows as it grows, so that the disk never has much to take at once:
//! otherwise every task that needs memory would have to wait for that at some time, event loops too.
//!
//! ```text
//! 0 ── needless ──── settled ───────── begun ───────── written
//!   dropped │ on the disk │ being written back │ written back with the next window
//! ```
//! A window is waited for when the next one has begun. Bytes that no client needs any more leave memory: otherwise responses
//! that are written once and never requested again would displace those that are.

use tw_cache::format::BodySums;
use tw_disk::{Account, Disk, DiskError, TempFile, WriteBack};

/// Size of a page on most machines: the page in which a window ends belongs to the next window.
const PAGE: u64 = 4096;

/// Bytes of a body that are written by one job.
pub(crate) const WRITE_SIZE: u64 = 256 << 10;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a response on its way into a cache that the disk takes together, or more if more was written at once; it may
    /// have two such parts to take.
    pub(crate) const WRITE_BACK_SIZE: u64 = 1 << 20, bytes, "the next write waits for the disk";
}

/// File on its way into a cache.
pub(crate) struct FillFile {
    pub(crate) temp: TempFile,
    /// Checksums of the body so far.
    pub(crate) sums: BodySums,
    /// Size of a window in bytes.
    window: u64,
    /// Offset of the next window.
    begun: u64,
    settled: u64,
}

impl FillFile {
    /// Creates the state of an empty file; `window` is the number of bytes that the disk takes together.
    pub(crate) fn new(temp: TempFile, window: u64) -> Self {
        Self { temp, sums: BodySums::default(), window, begun: 0, settled: 0 }
    }

    /// Number of leading bytes that the disk has taken.
    pub(crate) fn settled(&self) -> u64 {
        self.settled
    }

    /// Notes that the file is written up to `written_len`, and that the bytes before `needless_to` can leave memory. Starts to
    /// write back the next window if there is one, and waits for the one before.
    ///
    /// # Errors
    /// The disk has not taken it; what is not settled may be something else now.
    pub(crate) async fn advance(
        &mut self,
        disk: &Disk,
        account: &mut Account,
        written_len: u64,
        needless_to: u64,
    ) -> Result<(), DiskError> {
        let end = written_len / PAGE * PAGE;
        if end.saturating_sub(self.begun) < self.window {
            return Ok(());
        }
        self.write_back(disk, account, self.begun, end, needless_to).await
    }

    /// Writes back the rest of a complete file, and waits until the disk has taken all of it.
    ///
    /// # Errors
    /// As [`FillFile::advance`].
    pub(crate) async fn finish(
        &mut self,
        disk: &Disk,
        account: &mut Account,
        written_len: u64,
        needless_to: u64,
    ) -> Result<(), DiskError> {
        if written_len < self.window {
            return Ok(());
        }
        self.write_back(disk, account, written_len, written_len, needless_to).await
    }

    /// Waits for the bytes before `until`, and starts to write back those from the last window up to `end`.
    async fn write_back(
        &mut self,
        disk: &Disk,
        account: &mut Account,
        until: u64,
        end: u64,
        needless_to: u64,
    ) -> Result<(), DiskError> {
        let write_back = WriteBack {
            begin: self.begun.max(until)..end,
            finish: self.settled..until,
            needless_to: needless_to.min(until),
        };
        disk.write_back(account, self.temp.file(), write_back).await?;
        (self.settled, self.begun) = (until, end);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tw_disk::sim::{Faults, Sim};
    use tw_disk::{Aio, Errno, JobClass, JobSource, Op, Pool};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    async fn temp_file(disk: &Disk, account: &mut Account) -> FillFile {
        FillFile::new(disk.create_beside(account, c"/cache/a", 1).await.unwrap(), 3 * PAGE)
    }

    fn disk() -> (Arc<Sim>, Disk, Account) {
        let sim = Sim::new(1);
        let disk = Disk::simulated(Pool::new("sim", 1, 100).unwrap(), Aio::Off, sim.clone());
        (sim, disk, Account::new(JobClass::Fill, JobSource::NONE))
    }

    #[test]
    fn write_back_waits_for_a_window_when_the_next_begins() {
        let (sim, disk, mut account) = disk();
        block_on(async {
            let mut temp_file = temp_file(&disk, &mut account).await;
            let before = sim.calls();
            // Written up to, operations in all, settled, begun; in pages.
            for (written_len, calls, settled, begun) in [
                (1.0, 0, 0, 0),
                (2.9, 0, 0, 0),
                (3.5, 1, 0, 3),
                (5.9, 1, 0, 3),
                (7.2, 2, 3, 7),
                (7.2, 2, 3, 7),
                (20.0, 3, 7, 20),
            ] {
                let written_len = (written_len * PAGE as f64) as u64;
                temp_file.advance(&disk, &mut account, written_len, 0).await.unwrap();
                let so_far = (sim.calls() - before, temp_file.settled() / PAGE, temp_file.begun / PAGE);
                assert_eq!(so_far, (calls, settled, begun), "{written_len}");
            }
            temp_file.finish(&disk, &mut account, 20 * PAGE + 1, 0).await.unwrap();
            assert_eq!((sim.calls() - before, temp_file.settled()), (4, 20 * PAGE + 1));
        });
    }

    #[test]
    fn short_files_are_not_written_back_early() {
        let (sim, disk, mut account) = disk();
        block_on(async {
            let mut temp_file = temp_file(&disk, &mut account).await;
            let before = sim.calls();
            temp_file.advance(&disk, &mut account, 3 * PAGE - 1, u64::MAX).await.unwrap();
            temp_file.finish(&disk, &mut account, 3 * PAGE - 1, u64::MAX).await.unwrap();
            assert_eq!(sim.calls(), before);
            // One window, which no other one follows.
            temp_file.finish(&disk, &mut account, 3 * PAGE, u64::MAX).await.unwrap();
            assert_eq!((sim.calls(), temp_file.settled()), (before + 1, 3 * PAGE));
        });
    }

    #[test]
    fn bytes_that_failed_write_back_are_not_settled() {
        let (sim, disk, mut account) = disk();
        block_on(async {
            let mut temp_file = temp_file(&disk, &mut account).await;
            let content = vec![7; 8 * PAGE as usize];
            disk.write(&mut account, temp_file.temp.file(), 0, content.clone()).await.unwrap();
            temp_file.advance(&disk, &mut account, 3 * PAGE, 0).await.unwrap();
            temp_file.advance(&disk, &mut account, 6 * PAGE, 0).await.unwrap();
            sim.set_faults(Faults { io: 1000, ..Faults::NONE });
            let error = temp_file.finish(&disk, &mut account, 8 * PAGE, 0).await.unwrap_err();
            assert_eq!((error.op(), error.errno()), (Some(Op::WriteBack), Some(Errno::IO)));
            assert_eq!(temp_file.settled(), 3 * PAGE);
            let rest = sim.content(temp_file.temp.path().unwrap()).unwrap();
            let settled = 3 * PAGE as usize;
            assert!(rest[..settled] == content[..settled] && rest[settled..] != content[settled..]);
        });
    }
}
