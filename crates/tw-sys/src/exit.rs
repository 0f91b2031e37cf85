//! The end of a process that cannot be trusted any more.

/// Ends the process at once with this status: nothing is dropped, nothing that other threads hold is waited for.
pub fn now(status: u8) -> ! {
    // SAFETY: ends the process and touches none of its memory.
    unsafe { libc::_exit(status.into()) }
}
