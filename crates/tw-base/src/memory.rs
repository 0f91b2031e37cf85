//! Account of the memory of the process: its bound, what is left of it, and what clients hold.
//!
//! ```text
//! bound ── what the kernel counts ── what was allocated since ─► left ─┬─► level: plenty, tight, scarce, exhausted
//!                      requests, and bytes that wait for clients ─► held ─┘
//! ```
//! The kernel is asked by a thread that may wait ([`look`]). In between, the allocator counts every block ([`count_allocated`]), so no
//! buffer is forgotten, and writes to files count ([`count_written`]). Memory that clients do not hold never makes it tight: holding them back would gain nothing.
//!
//! Threads tell the account of changes in steps of `STEP`, so that requests share no cache line.

use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

/// Bytes of change that a thread keeps to itself.
const STEP: i64 = 64 << 10;
/// Bound of a process without one.
const UNBOUNDED: u64 = u64::MAX;

/// Divisors of the bound: what is left below which memory is tight, scarce or exhausted.
const TIGHT_PART: u64 = 2;
const SCARCE_PART: u64 = 3;
const EXHAUSTED_PART: u64 = 10;
/// Divisor of the bound: what clients have to hold before it is any of these.
const HELD_PART: u64 = 32;

crate::limits! {
    /// Limits of the account.
    pub(crate) const LIMITS;

    /// Bytes of the process, with what clients make it hold: requests, and bodies that wait for clients or servers.
    directive "memory_budget",
        "with less than a half left, nothing is read ahead of slow clients; with less than a third, new requests of clients that \
        hold much wait, and get 503 after two seconds; with less than a tenth, they get 503 at once, and in the end all do";
}

/// Protocol of the clients that hold memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryHolder {
    /// HTTP/1.1 or before.
    Http1,
    /// HTTP/2.
    Http2,
    /// HTTP/3.
    Http3,
    /// None: responses on their way into a cache, for any clients.
    Cache,
}

impl MemoryHolder {
    /// All of them, in the order of the sums.
    pub const ALL: [Self; 4] = [Self::Http1, Self::Http2, Self::Http3, Self::Cache];

    /// Name in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Http1 => "HTTP/1",
            Self::Http2 => "HTTP/2",
            Self::Http3 => "HTTP/3",
            Self::Cache => "cache",
        }
    }
}

/// Level of the memory that is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryLevel {
    /// Enough, or there is no bound.
    Plenty,
    /// Nothing is read ahead.
    Tight,
    /// New requests of clients that hold much wait.
    Scarce,
    /// New requests of clients that hold much are refused, and of all in the end.
    Exhausted,
}

/// Pages of files that are not on the disk yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilePages {
    /// Memory within the bound, as in a cgroup.
    Count,
    /// Memory of the machine.
    DoNotCount,
}

/// A value on a cache line of its own.
#[repr(align(128))]
struct Line<T>(T);

/// Written at every look of the kernel, and read by every request.
struct Looked {
    bound: AtomicU64,
    remaining: AtomicI64,
    /// Bytes that were allocated then.
    allocated: AtomicI64,
    /// Bytes that were written to files until then.
    written_bytes: AtomicI64,
}

static LOOKED: Line<Looked> = Line(Looked {
    bound: AtomicU64::new(UNBOUNDED),
    remaining: AtomicI64::new(i64::MAX),
    allocated: AtomicI64::new(0),
    written_bytes: AtomicI64::new(0),
});
/// Bytes that were written to files since the start.
static WRITTEN: Line<AtomicI64> = Line(AtomicI64::new(0));
static ALLOCATED: Line<AtomicI64> = Line(AtomicI64::new(0));
static HELD: Line<[AtomicI64; MemoryHolder::ALL.len()]> =
    Line([const { AtomicI64::new(0) }; MemoryHolder::ALL.len()]);

thread_local! {
    static ALLOCATED_HERE: Cell<i64> = const { Cell::new(0) };
    static HELD_HERE: [Cell<i64>; MemoryHolder::ALL.len()] = const { [const { Cell::new(0) }; MemoryHolder::ALL.len()] };
}

/// Counts bytes that the allocator has given to this thread, or taken back: then they are negative. Allocates nothing.
#[inline]
pub fn count_allocated(bytes: isize) {
    // A thread at its end does not count.
    let _ = ALLOCATED_HERE.try_with(|here| tell(here, &ALLOCATED.0, bytes as i64));
}

/// Counts bytes that clients hold from now on, or no longer: then they are negative.
pub fn count_held(holder: MemoryHolder, bytes: isize) {
    let _ = HELD_HERE.try_with(|here| tell(&here[holder as usize], &HELD.0[holder as usize], bytes as i64));
}

/// Counts bytes that are written to a file: until they are on the disk, which the next look finds out, they take memory.
pub fn count_written(bytes: usize) {
    WRITTEN.0.fetch_add(bytes as i64, Relaxed);
}

#[inline]
fn tell(here: &Cell<i64>, all: &AtomicI64, bytes: i64) {
    let sum = here.get() + bytes;
    if -STEP < sum && sum < STEP {
        here.set(sum);
    } else {
        here.set(0);
        all.fetch_add(sum, Relaxed);
    }
}

/// Takes over what the kernel counts: the bound, and what is left of it now. Without a bound there is always plenty.
pub fn look(bound: Option<u64>, remaining: u64, pages: FilePages) {
    let allocated = ALLOCATED.0.load(Relaxed);
    let written_bytes = match pages {
        FilePages::Count => WRITTEN.0.load(Relaxed),
        FilePages::DoNotCount => i64::MAX,
    };
    LOOKED.0.written_bytes.store(written_bytes, Relaxed);
    LOOKED.0.remaining.store(i64::try_from(remaining).unwrap_or(i64::MAX), Relaxed);
    LOOKED.0.allocated.store(allocated, Relaxed);
    LOOKED.0.bound.store(bound.unwrap_or(UNBOUNDED), Relaxed);
}

/// Bound of the process, if it has one.
pub fn bound() -> Option<u64> {
    Some(LOOKED.0.bound.load(Relaxed)).filter(|bound| *bound != UNBOUNDED)
}

/// Bytes left of the bound, as far as it is known: threads keep a little to themselves.
pub fn remaining() -> u64 {
    let allocated = ALLOCATED.0.load(Relaxed).saturating_sub(LOOKED.0.allocated.load(Relaxed));
    let written_bytes = WRITTEN.0.load(Relaxed).saturating_sub(LOOKED.0.written_bytes.load(Relaxed)).max(0);
    let since = allocated.saturating_add(written_bytes);
    LOOKED.0.remaining.load(Relaxed).saturating_sub(since).max(0).unsigned_abs()
}

/// Bytes left for new requests: those that are served are expected to take as much again as they hold, when their responses come.
pub fn left_for_requests() -> u64 {
    remaining().saturating_sub(held_by_all())
}

fn held_by_all() -> u64 {
    MemoryHolder::ALL.map(held_bytes).iter().sum()
}

/// Bytes that clients of a protocol hold.
pub fn held_bytes(holder: MemoryHolder) -> u64 {
    HELD.0[holder as usize].load(Relaxed).max(0).unsigned_abs()
}

/// Level of the memory that is left. Costs one read of a value that rarely changes if there is no bound.
pub fn level() -> MemoryLevel {
    match bound() {
        None => MemoryLevel::Plenty,
        Some(bound) => level_of(bound, left_for_requests(), held_by_all()),
    }
}

/// Returns true if so little is left that unused memory is given back soon, whoever has used it.
pub fn is_low() -> bool {
    bound().is_some_and(|bound| remaining() < bound / TIGHT_PART)
}

fn level_of(bound: u64, remaining: u64, held_bytes: u64) -> MemoryLevel {
    if held_bytes < bound / HELD_PART {
        return MemoryLevel::Plenty;
    }
    [
        (EXHAUSTED_PART, MemoryLevel::Exhausted),
        (SCARCE_PART, MemoryLevel::Scarce),
        (TIGHT_PART, MemoryLevel::Tight),
    ]
    .into_iter()
    .find(|(part, _)| remaining < bound / part)
    .map_or(MemoryLevel::Plenty, |(_, level)| level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn level_depends_on_what_is_left_and_held() {
        for (remaining, held_bytes, expected) in [
            (1200, 1200, MemoryLevel::Plenty),
            (600, 1200, MemoryLevel::Plenty),
            (599, 1200, MemoryLevel::Tight),
            (399, 1200, MemoryLevel::Scarce),
            (119, 1200, MemoryLevel::Exhausted),
            (0, 1200, MemoryLevel::Exhausted),
            // Clients hold little: something else has the memory.
            (0, 36, MemoryLevel::Plenty),
            (0, 37, MemoryLevel::Exhausted),
        ] {
            assert_eq!(level_of(1200, remaining, held_bytes), expected, "{remaining} {held_bytes}");
        }
    }

    #[test]
    fn threads_tell_in_steps() {
        let here = Cell::new(0);
        let all = AtomicI64::new(0);
        tell(&here, &all, STEP - 1);
        assert_eq!((here.get(), all.load(Relaxed)), (STEP - 1, 0));
        tell(&here, &all, 1);
        assert_eq!((here.get(), all.load(Relaxed)), (0, STEP));
        tell(&here, &all, -STEP - 5);
        assert_eq!((here.get(), all.load(Relaxed)), (0, -5));
    }
}
