//! Reads past the page cache (`directio`): aligned reads into a buffer of the thread, from which the wanted part is copied.
//!
//! nginx turns `O_DIRECT` off for the unaligned end of a file. Here a descriptor may be read by several jobs at once, so the
//! flag stays and the read is widened to aligned bounds instead; past the end of a file such a read is merely short.

use crate::file::{Direct, Inner};
use crate::os;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::cell::RefCell;
use std::os::fd::OwnedFd;

/// The most read at once: four times what nginx reads, and few enough to keep one such buffer per thread.
const STEP_SIZE: usize = 128 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Reads some bytes, at least one unless the file ends. Falls back to the page cache, for good, where `O_DIRECT` is refused.
pub(crate) fn read(file: &Inner, fd: &OwnedFd, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
    if file.direct() == Direct::Wanted {
        turn(file, fd, OFlags::DIRECT);
    }
    if file.direct() == Direct::On {
        match read_aligned(fd, offset, buf, file.direct_align as usize) {
            // The alignment does not suit the device, or the file has parts that cannot be read this way.
            Err(Errno::INVAL) => turn(file, fd, OFlags::empty()),
            other => return other,
        }
    }
    os::read(fd, offset, buf)
}

fn turn(file: &Inner, fd: &OwnedFd, direct: OFlags) {
    let changed = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, (flags - OFlags::DIRECT) | direct));
    let is_on = changed.is_ok() && !direct.is_empty();
    file.set_direct(if is_on { Direct::On } else { Direct::Refused });
}

fn read_aligned(fd: &OwnedFd, offset: u64, buf: &mut [u8], align: usize) -> Result<usize, Errno> {
    let start = offset - offset % align as u64;
    let skip = (offset - start) as usize;
    let want = (skip + buf.len()).min(STEP_SIZE.max(align)).next_multiple_of(align);
    SCRATCH.with_borrow_mut(|scratch| {
        if scratch.len() < want + align {
            scratch.resize(want + align, 0);
        }
        let first = scratch.as_ptr().align_offset(align);
        let aligned = scratch.get_mut(first..first + want).ok_or(Errno::INVAL)?;
        let n = os::read(fd, start, aligned)?;
        let copied = n.saturating_sub(skip).min(buf.len());
        buf[..copied].copy_from_slice(&aligned[skip.min(n)..][..copied]);
        Ok(copied)
    })
}
