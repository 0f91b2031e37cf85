//! The allocator of a test program that counts the bytes of its blocks, to tell what something costs in memory.
//!
//! Counts are those of the whole process: what measures has to be alone in it.

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::heap::Heap;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// The same blocks as those of [`Heap`], counted; as `#[global_allocator]`.
#[derive(Debug, Clone, Copy)]
pub struct CountedHeap;

impl CountedHeap {
    /// Bytes of all blocks that are in use, as they were asked for.
    pub fn live() -> usize {
        LIVE.load(Relaxed)
    }

    /// The most bytes in use at a time while `work` ran, beyond those before it.
    pub fn peak_of(work: impl FnOnce()) -> usize {
        let before = Self::live();
        PEAK.store(before, Relaxed);
        work();
        PEAK.load(Relaxed).saturating_sub(before)
    }
}

fn more(bytes: usize) {
    let live = LIVE.fetch_add(bytes, Relaxed) + bytes;
    PEAK.fetch_max(live, Relaxed);
}

fn less(bytes: usize) {
    LIVE.fetch_sub(bytes, Relaxed);
}

// SAFETY: blocks are those of `Heap`, and counting neither allocates nor unwinds.
unsafe impl GlobalAlloc for CountedHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: as the caller has promised.
        unsafe { Heap.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        more(layout.size());
        // SAFETY: as the caller has promised.
        unsafe { Heap.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        less(layout.size());
        // SAFETY: as the caller has promised.
        unsafe { Heap.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both may be there for a moment, when the block has to move.
        more(size);
        less(layout.size());
        // SAFETY: as the caller has promised.
        unsafe { Heap.realloc(block, layout, size) }
    }
}
