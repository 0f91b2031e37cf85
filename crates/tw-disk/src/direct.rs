//! Reads and writes past the page cache (`directio`, and segments of a cache): aligned reads into a buffer of the thread, from
//! which the wanted part is copied, and aligned writes of a copy.
//!
//! A write that does not begin or end at an aligned bound reads the block there before, changes it and writes it back. Such writes
//! of one block exclude each other, whatever descriptors they use, so that neither undoes the other.
//!
//! nginx turns `O_DIRECT` off for the unaligned end of a file. Here a descriptor may be read by several jobs at once, so the
//! flag stays and the read is widened to aligned bounds instead; past the end of a file such a read is merely short.

use crate::driver::Driver;
use crate::error::DiskError;
use crate::file::{Direct, Handle, Inner};
use crate::op::Op;
use crate::os;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The most read at once: four times what nginx reads, and few enough to keep one such buffer per thread.
const STEP_SIZE: usize = 128 * 1024;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Number of locks for blocks of which a part is written.
const BLOCK_LOCKS: usize = 64;

static LOCKS: [Mutex<()>; BLOCK_LOCKS] = [const { Mutex::new(()) }; BLOCK_LOCKS];

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

/// Memory that begins at an aligned address.
struct AlignedBuffer {
    bytes: Vec<u8>,
    first: usize,
}

impl AlignedBuffer {
    fn new(len: usize, align: usize) -> Self {
        let bytes = vec![0; len + align];
        let first = bytes.as_ptr().align_offset(align).min(align);
        Self { bytes, first }
    }

    fn get(&self, from: usize, to: usize) -> &[u8] {
        self.bytes.get(self.first + from..self.first + to).unwrap_or_default()
    }

    fn get_mut(&mut self, from: usize, to: usize) -> &mut [u8] {
        self.bytes.get_mut(self.first + from..self.first + to).unwrap_or_default()
    }
}

/// Returns true if writes of a file have to be aligned; turns that on before its first one.
pub(crate) fn is_on(file: &Inner) -> bool {
    if let (Direct::Wanted, Handle::Os(fd)) = (file.direct(), &file.handle) {
        turn(file, fd, OFlags::DIRECT);
    }
    match file.handle {
        Handle::Os(_) => file.direct() == Direct::On,
        // The twin takes everything: the same blocks are read and written.
        Handle::Sim(_) => file.direct() == Direct::Wanted,
        Handle::Closed => false,
    }
}

/// Writes all of `parts` at `offset` in whole blocks. Returns false if the file turns out to take no such writes: nothing is
/// written then, and the page cache is used from now on.
pub(crate) fn write(
    driver: &Driver,
    file: &Inner,
    offset: u64,
    parts: &[IoSlice<'_>],
) -> Result<bool, DiskError> {
    let align = u64::from(file.direct_align);
    let len: u64 = parts.iter().map(|part| part.len() as u64).sum();
    let begin = offset - offset % align;
    let end = (offset + len).next_multiple_of(align);
    // The size is at most what one job writes.
    let size = usize::try_from(end - begin).map_err(|_| Op::Write.failed(Errno::FBIG))?;
    let block = file.direct_align as usize;
    let mut buffer = AlignedBuffer::new(size, block);
    let has_part = [offset != begin, offset + len != end && (end - begin > align || offset == begin)];
    let _locks = lock_parts(file, [(has_part[0], begin), (has_part[1], end - align)]);
    for (_, at) in [(has_part[0], 0), (has_part[1], size - block)].into_iter().filter(|(has, _)| *has) {
        // Short at the end of the file.
        let mut old = vec![0; block];
        driver.read(file, begin + at as u64, &mut old)?;
        buffer.get_mut(at, at + block).copy_from_slice(&old);
    }
    let mut at = (offset - begin) as usize;
    for part in parts {
        buffer.get_mut(at, at + part.len()).copy_from_slice(part);
        at += part.len();
    }
    let mut written_len = 0;
    while written_len < size {
        match driver.write_once(file, begin + written_len as u64, buffer.get(written_len, size)) {
            Ok(0) => return Err(Op::Write.failed(Errno::IO)),
            // A short write may end within a block, which is written again.
            Ok(n) if n < size - written_len => written_len += n - n % block,
            Ok(n) => written_len += n,
            Err(error) if error.errno() == Some(Errno::INVAL) && written_len == 0 => {
                if let Handle::Os(fd) = &file.handle {
                    turn(file, fd, OFlags::empty());
                    return Ok(false);
                }
                return Err(error);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Locks the blocks of which a part is written, always in the same order.
fn lock_parts(file: &Inner, parts: [(bool, u64); 2]) -> Vec<MutexGuard<'static, ()>> {
    let meta = file.meta();
    let nth = |offset: u64| {
        let mixed = (meta.ino ^ meta.dev.rotate_left(32) ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mixed >> 32).unwrap_or(0) % BLOCK_LOCKS
    };
    let mut needed: Vec<usize> =
        parts.into_iter().filter(|(has, _)| *has).map(|(_, offset)| nth(offset)).collect();
    needed.sort_unstable();
    needed.dedup();
    let lock = |nth: usize| LOCKS.get(nth).map(|lock| lock.lock().unwrap_or_else(PoisonError::into_inner));
    needed.into_iter().filter_map(lock).collect()
}
