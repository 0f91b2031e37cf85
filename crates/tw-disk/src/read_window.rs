//! Reading ahead in windows of one size while many jobs read from a device.
//!
//! The kernel reads further and further ahead of a file that is read in order: up to the read-ahead of its device, which is
//! often several megabytes on virtual machines and RAIDs. With hundreds of files under way that is more than the memory, so
//! pages are evicted before they are sent, and are read twice. While a device is busy, jobs therefore read ahead themselves,
//! one window at a time, and the kernel does not. Where it reads no further ahead than a window, all is left to it.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;

use rustix::fs::{Advice, fadvise};

use crate::file::Inner;
use crate::os;
use crate::read_ahead::READ_WINDOW;

/// Prepares a read of `len` bytes at `offset` by a job: starts to read the window that begins there, if the device is busy.
pub(crate) fn prepare(file: &Inner, fd: &OwnedFd, offset: u64, len: usize) {
    let size = file.meta().size;
    if size <= READ_WINDOW || file.read_ahead > 0 {
        return;
    }
    let by_window = file.device.is_busy() && file.device.reads_far_ahead();
    if file.reads_by_window.swap(by_window, Relaxed) != by_window {
        // This is advice: file systems that ignore it read ahead as before.
        let _ = fadvise(fd, 0, None, if by_window { Advice::Random } else { Advice::Normal });
    }
    if by_window && let Some(window) = window_to_read(offset, len as u64, size) {
        os::advise_will_need(fd, offset, window);
    }
}

/// Bytes from `offset` to the end of the last window that begins within a read of `len` bytes there; `None` if none does.
fn window_to_read(offset: u64, len: u64, size: u64) -> Option<u64> {
    let end = offset.saturating_add(len.max(1));
    let first = offset.checked_next_multiple_of(READ_WINDOW)?;
    (first < end).then(|| end.next_multiple_of(READ_WINDOW).min(size).saturating_sub(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_by_the_job_at_their_beginning() {
        const KIB: u64 = 1 << 10;
        let size = 1300 * KIB;
        for (offset, len, expected) in [
            (0, 64 * KIB, Some(512 * KIB)),
            (64 * KIB, 64 * KIB, None),
            (448 * KIB, 64 * KIB, None),
            (448 * KIB, 65 * KIB, Some(576 * KIB)),
            (512 * KIB, 64 * KIB, Some(512 * KIB)),
            (100 * KIB, 512 * KIB, Some(924 * KIB)),
            (1024 * KIB, 64 * KIB, Some(276 * KIB)),
            (1280 * KIB, 20 * KIB, None),
            (u64::MAX - 10, 64, None),
        ] {
            assert_eq!(window_to_read(offset, len, size), expected, "{offset} {len}");
        }
    }
}
