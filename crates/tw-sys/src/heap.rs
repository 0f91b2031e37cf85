//! The allocator (mimalloc), where it must not decide by itself.
//!
//! Every thread has pages of its own. A block that another thread frees is back in its page, and the page is not free before
//! its own thread looks at it: a thread that has nothing to do never does. What is free on no thread any more goes back to
//! the system when somebody asks the allocator for memory a second later; in a process that rests, nobody does.
//!
//! ```text
//! block ─ freed by anybody ─► page of its thread ─ let_go, there ─► free for all threads ─ give_back, anywhere ─► system
//! ```

use std::ffi::c_long;

/// `mi_option_purge_delay`, for which the bindings have no name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// An hour: by then somebody has ordered it.
const NEVER_MS: c_long = 3_600_000;

/// From now on memory goes back to the system when [`give_back`] says so. A thread that asks the allocator for memory, such as
/// a loop, does not do that by the way any more: it takes 50 ms for a gigabyte.
pub fn give_back_by_order() {
    // SAFETY: it takes no pointer, and stores a number of which the allocator reads the newest whenever it frees pages.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, NEVER_MS) }
}

/// Lets go of the pages of this thread in which nothing is left, also of what others have freed; of the last one of each size
/// only when this was said 16 times. Looks at each page: some 10 µs for 1000 of them. Does not touch what goes back to the
/// system.
pub fn let_go() {
    // SAFETY: it takes no pointer, and may be called on any thread at any time, whichever allocator the program uses.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// Gives memory that is not in use back to the system: what this thread has freed of its own, and whatever nobody has any
/// more. May take milliseconds.
pub fn give_back() {
    // SAFETY: it takes no pointer, and may be called on any thread at any time, whichever allocator the program uses.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn giving_back_leaves_what_is_in_use() {
        let kept = vec![7_u8; 1 << 20];
        drop(vec![8_u8; 1 << 20]);
        give_back();
        assert!(kept.iter().all(|byte| *byte == 7));
    }
}
