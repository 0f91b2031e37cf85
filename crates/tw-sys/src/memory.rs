//! Memory that stays: pages that the kernel may not take away (mlock(2)).

use std::io;
use std::ops::Range;

/// Of what lies above the frame of who locks a stack, as much as the frames of its callers take at most.
const ABOVE_SIZE: usize = 64 * 1024;

/// Reads in what is mapped at these addresses of this process, and keeps it in memory. May wait for disks.
///
/// Errors: `ENOMEM`, `EAGAIN` or `EPERM` over the limit (`RLIMIT_MEMLOCK`); `ENOMEM` if something of it is not mapped, and then what
/// lies before that is kept all the same.
pub fn lock(addresses: &Range<usize>) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(addresses.start);
    // SAFETY: nothing is read, written, mapped or unmapped; addresses where nothing is are an error.
    Ok(unsafe { rustix::mm::mlock(start, addresses.len()) }?)
}

/// Keeps the stack of the calling thread in memory, `below_size` bytes further down than it has come: more than it has.
///
/// Errors: those of [`lock`].
pub fn lock_stack(below_size: usize) -> io::Result<()> {
    let here = (&raw const below_size).addr();
    // What is above may end anywhere, and is known to the kernel as used.
    let _ = lock(&(here..here.saturating_add(ABOVE_SIZE)));
    lock(&(here.saturating_sub(below_size)..here))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;
    use tw_testkit::{Lacks, leave_out};

    /// Kilobytes of this process that are locked.
    fn locked() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn what_is_locked_counts_and_what_is_not_there_is_an_error() {
        let before = locked();
        let kept = vec![1_u8; 64 * 1024];
        let start = kept.as_ptr().addr();
        if let Err(error) = lock(&(start..start + kept.len())) {
            return leave_out(Lacks::Machine, format_args!("no memory may be locked: {error}"));
        }
        assert!(locked() >= before + 60, "{before} {}", locked());
        assert_eq!(lock(&(0..4096)).unwrap_err().raw_os_error(), Some(Errno::NOMEM.raw_os_error()));
        lock_stack(100 * 1024).unwrap();
        assert!(locked() >= before + 160, "{before} {}", locked());
    }
}
