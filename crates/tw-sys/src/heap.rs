//! The allocator (mimalloc), and where it must not decide by itself.
//!
//! Every thread has pages of its own. A block that another thread frees is back in its page, and the page is not free before
//! its own thread looks at it: a thread that has nothing to do never does. What is free on no thread any more goes back to
//! the system at an allocation a second later; in an idle process there is none.
//!
//! ```text
//! block ─ freed anywhere ─► page of its thread ─ release_unused, there ─► free for all threads ─ purge, anywhere ─► system
//! ```

use std::alloc::{GlobalAlloc, Layout};
use std::cell::Cell;
use std::ffi::c_long;

use tw_base::memory::count_allocated;

/// `mi_option_purge_delay`, for which the bindings have no name.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
/// An hour: [`purge`] is called long before.
const NEVER_MS: c_long = 3_600_000;

/// The alignment of every block, however small.
const ALIGN_MIN: usize = size_of::<usize>();

/// The allocator of a program, as `#[global_allocator]`.
///
/// An alignment is asked for only where blocks do not have it anyway. For one that is asked for the allocator looks whether
/// it has a free block of that very size, which it never has when only aligned blocks have that size: they come out of
/// larger ones. So every request cost 300 instructions more, and every free of such a block a search for where it begins.
///
/// Every block is counted in the account of memory ([`tw_base::memory`]), at the size that is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Heap;

// SAFETY: blocks are those of mimalloc, as large and as aligned as was asked for, and go back to it. It neither panics nor
// unwinds.
unsafe impl GlobalAlloc for Heap {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_allocated(layout.size().cast_signed());
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
        count_allocated(layout.size().cast_signed());
        if layout.align() <= ALIGN_MIN {
            // SAFETY: any size may be asked for.
            unsafe { libmimalloc_sys::mi_zalloc(layout.size()) }.cast()
        } else {
            // SAFETY: any size may be asked for; a layout's alignment is a power of two.
            unsafe { libmimalloc_sys::mi_zalloc_aligned(layout.size(), layout.align()) }.cast()
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count_allocated(-layout.size().cast_signed());
        // SAFETY: the caller gives back a block that it got here.
        unsafe { libmimalloc_sys::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count_allocated(size.cast_signed() - layout.size().cast_signed());
        if layout.align() <= ALIGN_MIN {
            // SAFETY: the caller gives a block that it got here.
            unsafe { libmimalloc_sys::mi_realloc(block.cast(), size) }.cast()
        } else {
            // SAFETY: the caller gives a block that it got here; a layout's alignment is a power of two.
            unsafe { libmimalloc_sys::mi_realloc_aligned(block.cast(), size, layout.align()) }.cast()
        }
    }
}

/// [`Heap`] with a count of what each thread has, as `#[global_allocator]` of tests that measure how much memory something
/// takes.
#[derive(Debug, Clone, Copy)]
pub struct CountingHeap;

thread_local! {
    /// Bytes that were allocated and not freed on this thread, and the most of them since [`CountingHeap::measure`].
    static COUNT: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

/// Bytes that a piece of work has allocated on its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Not freed at its end.
    pub kept: isize,
    /// The most at any time.
    pub peak: isize,
}

impl CountingHeap {
    /// Runs `work`, and counts what it allocates on this thread: the sizes that are asked for, without what the allocator adds.
    pub fn measure<T>(work: impl FnOnce() -> T) -> (T, Measured) {
        let before = COUNT.get().0;
        COUNT.set((before, before));
        let result = work();
        let (after, peak) = COUNT.get();
        (result, Measured { kept: after - before, peak: peak - before })
    }

    fn add(bytes: isize) {
        // When a thread ends, its counter may be gone already.
        let _ = COUNT.try_with(|count| {
            let (in_use, peak) = count.get();
            count.set((in_use + bytes, peak.max(in_use + bytes)));
        });
    }
}

// SAFETY: every call is one of `Heap`, with the same arguments. Counting allocates nothing and does not unwind.
unsafe impl GlobalAlloc for CountingHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size().cast_signed());
        // SAFETY: the caller's promise is the same.
        unsafe { Heap.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::add(layout.size().cast_signed());
        // SAFETY: the caller's promise is the same.
        unsafe { Heap.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        Self::add(-layout.size().cast_signed());
        // SAFETY: the caller's promise is the same.
        unsafe { Heap.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::add(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller's promise is the same.
        unsafe { Heap.realloc(block, layout, size) }
    }
}

/// Leaves returning memory to the system to [`purge`]. Threads that allocate, such as loops, no longer do it on the way: it
/// takes 50 ms for a gigabyte.
pub fn defer_purge() {
    // SAFETY: it takes no pointer, and stores a number of which the allocator reads the newest whenever it frees pages.
    unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, NEVER_MS) }
}

/// Releases empty pages of this thread, also those that other threads have emptied; the last one of each size only at every
/// 16th call. Visits each page: some 10 µs for 1000 of them. Returns no memory to the system.
pub fn release_unused() {
    // SAFETY: it takes no pointer, and may be called on any thread at any time, whichever allocator the program uses.
    unsafe { libmimalloc_sys::mi_collect(false) }
}

/// Returns unused memory to the system: pages freed by this thread, and pages of ended threads. May take milliseconds.
pub fn purge() {
    // SAFETY: it takes no pointer, and may be called on any thread at any time, whichever allocator the program uses.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_requested_size_and_alignment() {
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
    fn the_counting_heap_counts_what_a_thread_keeps_and_its_peak() {
        let layout = Layout::from_size_align(1000, 8).unwrap();
        let (block, measured) = CountingHeap::measure(|| {
            // SAFETY: the size is not zero.
            let kept = unsafe { CountingHeap.alloc(layout) };
            // SAFETY: as above.
            let freed = unsafe { CountingHeap.alloc_zeroed(layout) };
            // SAFETY: a block of this layout.
            let larger = unsafe { CountingHeap.realloc(freed, layout, 3000) };
            // SAFETY: the layout it has now.
            unsafe { CountingHeap.dealloc(larger, Layout::from_size_align(3000, 8).unwrap()) };
            kept
        });
        assert_eq!(measured, Measured { kept: 1000, peak: 4000 });
        // SAFETY: a block of this layout.
        unsafe { CountingHeap.dealloc(block, layout) }
    }

    #[test]
    fn purge_keeps_memory_in_use() {
        let kept = vec![7_u8; 1 << 20];
        drop(vec![8_u8; 1 << 20]);
        purge();
        assert!(kept.iter().all(|byte| *byte == 7));
    }
}
