//! The allocator (mimalloc), and where it must not decide by itself.
//!
//! Every thread has pages of its own. A block that another thread frees is back in its page, and the page is not free before
//! its own thread looks at it: a thread that has nothing to do never does. What is free on no thread any more goes back to
//! the system when somebody asks the allocator for memory a second later; in a process that rests, nobody does.
//!
//! ```text
//! block ─ freed by anybody ─► page of its thread ─ let_go, there ─► free for all threads ─ give_back, anywhere ─► system
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_long;

/// `mi_option_purge_delay`, for which the bindings have no name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// An hour: by then somebody has ordered it.
const NEVER_MS: c_long = 3_600_000;

/// The alignment of every block, however small.
const ALIGN_MIN: usize = size_of::<usize>();

/// The allocator of a program, as `#[global_allocator]`.
///
/// An alignment is asked for only where blocks do not have it anyway. For one that is asked for the allocator looks whether
/// it has a free block of that very size, which it never has when only aligned blocks have that size: they come out of
/// larger ones. So every request cost 300 instructions more, and every free of such a block a search for where it begins.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

// SAFETY: blocks are those of mimalloc, as large and as aligned as was asked for, and go back to it. It neither panics nor
// unwinds.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN_MIN {
            // SAFETY: any size may be asked for.
            unsafe { libmimalloc_sys::mi_malloc(layout.size()) }.cast()
        } else {
            // SAFETY: any size may be asked for; a layout's alignment is a power of two.
            unsafe { libmimalloc_sys::mi_malloc_aligned(layout.size(), layout.align()) }.cast()
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= ALIGN_MIN {
            // SAFETY: any size may be asked for.
            unsafe { libmimalloc_sys::mi_zalloc(layout.size()) }.cast()
        } else {
            // SAFETY: any size may be asked for; a layout's alignment is a power of two.
            unsafe { libmimalloc_sys::mi_zalloc_aligned(layout.size(), layout.align()) }.cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller gives back a block that it got here.
        unsafe { libmimalloc_sys::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= ALIGN_MIN {
            // SAFETY: the caller gives a block that it got here.
            unsafe { libmimalloc_sys::mi_realloc(block.cast(), size) }.cast()
        } else {
            // SAFETY: the caller gives a block that it got here; a layout's alignment is a power of two.
            unsafe { libmimalloc_sys::mi_realloc_aligned(block.cast(), size, layout.align()) }.cast()
        }
    }
}

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
    fn blocks_are_as_large_and_as_aligned_as_was_asked_for() {
        for align in [1, 2, 4, 8, 16, 64, 4096] {
            for size in [1, 7, 8, 9, 24, 767, 768, 1025, 70_000, 3 << 20] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not zero.
                let block = unsafe { Heap.alloc(layout) };
                // SAFETY: as above.
                let zeroed = unsafe { Heap.alloc_zeroed(layout) };
                for block in [block, zeroed] {
                    assert!(!block.is_null() && block.addr().is_multiple_of(align), "{layout:?}");
                }
                // SAFETY: the block has this size, and nobody else has it.
                assert!(unsafe { std::slice::from_raw_parts(zeroed, size) }.iter().all(|byte| *byte == 0));
                // SAFETY: as above, and whatever it holds is overwritten.
                unsafe { block.write_bytes(5, size) }
                // SAFETY: a block of this layout; the new size is not zero.
                let larger = unsafe { Heap.realloc(block, layout, size * 3) };
                assert!(larger.addr().is_multiple_of(align), "{layout:?}");
                // SAFETY: the first bytes are those that were written.
                assert!(unsafe { std::slice::from_raw_parts(larger, size) }.iter().all(|byte| *byte == 5));
                // SAFETY: the block has three times the size.
                unsafe { Heap.dealloc(larger, Layout::from_size_align(size * 3, align).unwrap()) }
                // SAFETY: a block of this layout.
                unsafe { Heap.dealloc(zeroed, layout) }
            }
        }
    }

    #[test]
    fn giving_back_leaves_what_is_in_use() {
        let kept = vec![7_u8; 1 << 20];
        drop(vec![8_u8; 1 << 20]);
        give_back();
        assert!(kept.iter().all(|byte| *byte == 7));
    }
}
