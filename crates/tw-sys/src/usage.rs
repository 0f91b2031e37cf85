//! The kernel's counters of the calling thread.

use std::mem::MaybeUninit;

/// Pages that the calling thread had to wait for a disk for, since it began (`ru_majflt`). 0.2 µs.
pub fn major_faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes one `rusage` at the address, which has room for it.
    let result = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: zeros are a valid `rusage`, whether the kernel has written one or not.
    let usage = unsafe { usage.assume_init() };
    if result == 0 { u64::try_from(usage.ru_majflt).unwrap_or(0) } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_counts_only_grow() {
        let first = major_faults();
        assert!(major_faults() >= first);
    }
}
