//! Bounded buffer between the threads that log and the thread that writes.
//!
//! Memory is a fixed number of chunks. Each thread appends to a shard of its own, so threads do not contend. A shard
//! has two sides, and the writer swaps them before it takes one, so a producer and the writer do not contend either:
//!
//! ```text
//! thread A ──► shard 0: side 0 [chunk chunk] ◄── swap ──► side 1 []  ─┐
//! thread B ──► shard 1: side 0 []            ◄── swap ──► side 1 []  ─┼─► writer: one writev per batch ─► chunks go back
//! thread C ──► shard 2: …                                             ┘
//! ```
//!
//! Nothing here blocks: locks are only tried, and each is held for one copy. A panic while one is held ends the
//! process; its last lines go through the other shards. Lines of one thread keep their order as long as no more than
//! [`SHARDS`] threads log. Beyond that, two threads share a shard, and a line that finds it locked goes to a
//! neighbouring shard instead of waiting.

use std::mem;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tw_base::{FatalMutex, FatalMutexGuard};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of one log that are not written yet; twice the buffer= of access_log if that is more.
    ///
    /// Default limit of bytes that a sink holds unwritten.  1 MiB is about 5,000 access log lines: a tenth of a second at
    /// 50,000 requests a second.
    pub const RING_SIZE_DEFAULT: usize = 1 << 20, bytes, "further lines are dropped, counted and reported";
}

/// The smallest ring: one chunk for each of sixteen threads.
pub const RING_SIZE_MIN: usize = 16 * CHUNK_SIZE_MIN;

/// Threads that get a shard of their own.
const SHARDS: usize = 64;

/// A page; also several lines, so that taking a chunk is rare.
const CHUNK_SIZE_MIN: usize = 4096;

/// Chunks of a ring at most: larger rings have larger chunks, so that one `writev` (1,024 parts) takes any batch.
const CHUNKS_MAX: usize = 256;

/// Tries on a shard that another thread is using, before a line moves to the next one. A copy takes some 20 ns.
const SPINS: usize = 64;

/// Result of logging a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum PushResult {
    /// Queued: the line will be written.
    Queued,
    /// Dropped and counted, because the ring is full or the log closed.
    Dropped,
}

/// Result of a push, with the reason to wake the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PushEffect {
    /// The line is in a chunk that was already in use.
    Appended,
    /// The line needed a new chunk: look whether enough are in use to wake the writer early.
    Grew,
    /// No room.
    Full,
}

/// A piece of the ring's memory and its place in the pool.
#[derive(Debug)]
pub(crate) struct Chunk {
    slot: usize,
    bytes: Vec<u8>,
}

impl Chunk {
    /// Bytes appended so far.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Unused chunks. A set bit in `free` is a chunk in its slot.
#[derive(Debug)]
struct Pool {
    free: [AtomicU64; CHUNKS_MAX / 64],
    slots: Box<[Mutex<Vec<u8>>]>,
    chunk_size: usize,
}

impl Pool {
    fn new(ring_size: usize) -> Self {
        let ring_size = ring_size.max(RING_SIZE_MIN);
        let chunk_size = ring_size.div_ceil(CHUNKS_MAX).next_multiple_of(CHUNK_SIZE_MIN);
        let count = ring_size / chunk_size;
        let free = std::array::from_fn(|word| {
            let bits = count.saturating_sub(word * 64).min(64);
            AtomicU64::new(if bits == 64 { u64::MAX } else { (1 << bits) - 1 })
        });
        // Memory is allocated when a chunk is first taken, and then kept: a quiet log costs no memory.
        Self { free, slots: (0..count).map(|_| Mutex::default()).collect(), chunk_size }
    }

    fn take(&self) -> Option<Chunk> {
        for (index, word) in self.free.iter().enumerate() {
            let mut current = word.load(Acquire);
            while current != 0 {
                let bit = current.trailing_zeros();
                match word.compare_exchange_weak(current, current & !(1 << bit), AcqRel, Acquire) {
                    Ok(_) => {
                        let slot = index * 64 + bit as usize;
                        // The lock is never contended, because this thread has cleared the bit.
                        let mut bytes = mem::take(&mut *lock(&self.slots[slot]));
                        bytes.reserve_exact(self.chunk_size);
                        return Some(Chunk { slot, bytes });
                    }
                    Err(now) => current = now,
                }
            }
        }
        None
    }

    fn put(&self, mut chunk: Chunk) {
        chunk.bytes.clear();
        *lock(&self.slots[chunk.slot]) = chunk.bytes;
        self.free[chunk.slot / 64].fetch_or(1 << (chunk.slot % 64), Release);
    }

    fn used(&self) -> usize {
        let free: u32 = self.free.iter().map(|word| word.load(Relaxed).count_ones()).sum();
        self.slots.len() - free as usize
    }
}

/// One half of a shard: lines appended since the writer last took it.
#[derive(Debug, Default)]
struct Side {
    chunks: Vec<Chunk>,
    lines: u64,
}

/// The lines of one thread. Two cache lines, so that neighbours do not share one.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    /// The side producers append to. Only the writer turns it.
    active: AtomicUsize,
    /// Something was appended since the writer last looked.
    pending: AtomicBool,
    sides: [FatalMutex<Side>; 2],
}

/// The ring of one sink.
#[derive(Debug)]
pub(crate) struct Ring {
    pool: Pool,
    shards: Box<[Shard]>,
}

/// Chunks that the writer took out of a ring.
#[derive(Debug, Default)]
pub(crate) struct TakenLines {
    /// In the order in which each thread appended.
    pub(crate) chunks: Vec<Chunk>,
    /// Number of lines in them.
    pub(crate) lines: u64,
}

impl Ring {
    /// A ring for about `size` bytes, not less than [`RING_SIZE_MIN`].
    pub(crate) fn new(size: usize) -> Self {
        Self { pool: Pool::new(size), shards: (0..SHARDS).map(|_| Shard::default()).collect() }
    }

    /// Appends one line, or several at once that stay together: `head`, then `parts`. Copies, never waits.
    pub(crate) fn push(&self, head: &[u8], parts: &[&[u8]]) -> PushEffect {
        let home = shard_of_thread();
        for index in (home..SHARDS).chain(0..home) {
            let shard = &self.shards[index];
            for _ in 0..SPINS {
                let Some(mut side) = shard.try_active() else {
                    std::hint::spin_loop();
                    continue;
                };
                let push = self.append(&mut side, head, parts);
                drop(side);
                if push != PushEffect::Full {
                    // SeqCst, as in `WriterCommands::rest`: either the writer sees this before it sleeps, or we see it asleep.
                    shard.pending.store(true, SeqCst);
                }
                return push;
            }
        }
        PushEffect::Full
    }

    fn append(&self, side: &mut Side, head: &[u8], parts: &[&[u8]]) -> PushEffect {
        let size = self.pool.chunk_size;
        let last = side.chunks.len();
        let room = side.chunks.last().map_or(0, |chunk| size - chunk.bytes.len());
        let len = parts.iter().map(|part| part.len()).sum::<usize>() + head.len();
        let chunk_count = len.saturating_sub(room).div_ceil(size);
        for _ in 0..chunk_count {
            let Some(chunk) = self.pool.take() else {
                side.chunks.drain(last..).for_each(|chunk| self.pool.put(chunk));
                return PushEffect::Full;
            };
            side.chunks.push(chunk);
        }
        let mut chunks = side.chunks[last.saturating_sub(1)..].iter_mut().peekable();
        for mut part in std::iter::once(head).chain(parts.iter().copied()) {
            while !part.is_empty() {
                let Some(chunk) = chunks.peek_mut() else { break };
                let (now, later) = part.split_at(part.len().min(size - chunk.bytes.len()));
                chunk.bytes.extend_from_slice(now);
                part = later;
                if chunk.bytes.len() == size {
                    chunks.next();
                }
            }
        }
        side.lines += 1;
        if chunk_count == 0 { PushEffect::Appended } else { PushEffect::Grew }
    }

    /// Returns `true` if anything was appended since the last [`Ring::take`].
    pub(crate) fn is_pending(&self) -> bool {
        self.shards.iter().any(|shard| shard.pending.load(SeqCst))
    }

    /// Moves all that was appended to the end of `taken`. One thread only: the writer.
    pub(crate) fn take(&self, taken: &mut TakenLines) {
        for shard in self.shards.iter().filter(|shard| shard.pending.swap(false, SeqCst)) {
            let old = shard.active.load(Relaxed);
            // From here on, producers use the other side; a producer that still copies into this one is waited for.
            shard.active.store(1 - old, SeqCst);
            // A side in which a thread panicked stays as it is; the process ends, and lines go to the other shards
            // until then.
            let Some(mut side) = shard.sides[old].lock_if_unpoisoned() else { continue };
            taken.lines += mem::take(&mut side.lines);
            taken.chunks.append(&mut side.chunks);
        }
    }

    /// Returns the chunks to the pool.
    pub(crate) fn give_back(&self, taken: &mut TakenLines) {
        taken.lines = 0;
        taken.chunks.drain(..).for_each(|chunk| self.pool.put(chunk));
    }

    /// Bytes in use, counted in whole chunks.
    pub(crate) fn used_size(&self) -> usize {
        self.pool.used() * self.pool.chunk_size
    }

    /// Bytes the ring has, counted in whole chunks.
    pub(crate) fn size(&self) -> usize {
        self.pool.slots.len() * self.pool.chunk_size
    }
}

impl Shard {
    /// Side to append to, unless it is locked or a panic left it broken.
    fn try_active(&self) -> Option<FatalMutexGuard<'_, Side>> {
        let active = self.active.load(SeqCst);
        let side = self.sides[active].try_lock_if_unpoisoned()?;
        // The writer may have switched sides and taken this one meanwhile; a line added to it now would be overtaken.
        (self.active.load(SeqCst) == active).then_some(side)
    }
}

/// Locks data that is only assigned as a whole, so that a panic cannot leave it half changed.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The shard of this thread in every ring.
fn shard_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Relaxed) % SHARDS;
    }
    SHARD.with(|shard| *shard)
}

#[cfg(test)]
mod tests {
    use std::{iter, thread};

    use super::*;

    fn push(ring: &Ring, line: &[u8]) -> PushEffect {
        ring.push(b"", &[line])
    }

    fn taken(ring: &Ring) -> (Vec<u8>, u64) {
        let mut taken = TakenLines::default();
        ring.take(&mut taken);
        let bytes = taken.chunks.iter().flat_map(Chunk::bytes).copied().collect();
        let lines = taken.lines;
        ring.give_back(&mut taken);
        (bytes, lines)
    }

    #[test]
    fn sizes_are_whole_chunks_and_never_too_many() {
        for (chunk_count, size, chunk_size) in [
            (0, RING_SIZE_MIN, 4096),
            (RING_SIZE_DEFAULT, 1 << 20, 4096),
            (1_000_000, 999_424, 4096),
            (16 << 20, 16 << 20, 65_536),
            ((1 << 20) + 1, 128 * 8192, 8192),
        ] {
            let ring = Ring::new(chunk_count);
            assert_eq!((ring.size(), ring.pool.chunk_size), (size, chunk_size), "{chunk_count}");
            assert!(ring.pool.slots.len() <= CHUNKS_MAX);
        }
    }

    #[test]
    fn pushed_lines_are_taken_once() {
        let ring = Ring::new(0);
        assert!(!ring.is_pending());
        assert_eq!(push(&ring, b"one\n"), PushEffect::Grew);
        assert_eq!(push(&ring, b"two\n"), PushEffect::Appended);
        assert!(ring.is_pending());
        assert_eq!(taken(&ring), (b"one\ntwo\n".to_vec(), 2));
        assert!(!ring.is_pending());
        assert_eq!(push(&ring, b"three\n"), PushEffect::Grew);
        assert_eq!(taken(&ring), (b"three\n".to_vec(), 1));
        assert_eq!(taken(&ring), (vec![], 0));
        assert_eq!(ring.used_size(), 0);
    }

    #[test]
    fn parts_are_one_line() {
        let ring = Ring::new(0);
        assert_eq!(ring.push(b"head ", &[&[b'a'; 5000], b"", b" tail\n"]), PushEffect::Grew);
        assert_eq!(taken(&ring), ([b"head ", &[b'a'; 5000][..], b" tail\n"].concat(), 1));
    }

    #[test]
    fn long_lines_span_chunks() {
        let ring = Ring::new(0);
        let lines: Vec<Vec<u8>> = [1, 4095, 1, 4096, 4097, 10_000]
            .into_iter()
            .map(|len| vec![b'a' + (len % 26) as u8; len])
            .collect();
        for line in &lines {
            assert_ne!(push(&ring, line), PushEffect::Full);
        }
        assert_eq!(taken(&ring), (lines.concat(), 6));
    }

    #[test]
    fn full_ring_refuses_lines_and_recovers() {
        let ring = Ring::new(0);
        let line = [b'x'; 1000];
        let fit =
            iter::repeat_with(|| push(&ring, &line)).take_while(|push| *push != PushEffect::Full).count();
        assert_eq!(fit, RING_SIZE_MIN / 1000);
        assert_eq!(push(&ring, &line), PushEffect::Full);
        // A line that needs more chunks than there are leaves those it got.
        assert_eq!(taken(&ring).1, fit as u64);
        assert_eq!(push(&ring, &vec![0; RING_SIZE_MIN + 1]), PushEffect::Full);
        assert_eq!(ring.used_size(), 0);
        assert_eq!(push(&ring, &vec![0; RING_SIZE_MIN]), PushEffect::Grew);
    }

    #[test]
    fn contended_line_goes_to_another_shard() {
        let ring = Ring::new(0);
        let home = &ring.shards[shard_of_thread()];
        let occupied = home.sides[home.active.load(SeqCst)].lock_if_unpoisoned();
        assert_eq!(push(&ring, b"line\n"), PushEffect::Grew);
        drop(occupied);
        assert!(!home.pending.load(SeqCst));
        assert_eq!(taken(&ring), (b"line\n".to_vec(), 1));
    }

    #[test]
    fn every_thread_keeps_its_order_while_the_writer_takes() {
        const LINES: u32 = 20_000;
        const THREADS: u32 = 4;
        let ring = Ring::new(RING_SIZE_DEFAULT);
        let mut bytes = Vec::new();
        thread::scope(|scope| {
            let ring = &ring;
            for id in 0..THREADS {
                scope.spawn(move || {
                    for n in 0..LINES {
                        while push(ring, format!("{id} {n}\n").as_bytes()) == PushEffect::Full {
                            thread::yield_now();
                        }
                    }
                });
            }
            let mut lines = 0;
            while lines < u64::from(LINES * THREADS) {
                let (more, count) = taken(ring);
                bytes.extend(more);
                lines += count;
            }
        });
        let mut next = [0; THREADS as usize];
        for line in str::from_utf8(&bytes).unwrap().lines() {
            let (id, n) = line.split_once(' ').unwrap();
            let next = &mut next[id.parse::<usize>().unwrap()];
            assert_eq!(n.parse(), Ok(*next));
            *next += 1;
        }
        assert_eq!(next, [LINES; THREADS as usize]);
        assert_eq!(ring.used_size(), 0);
    }
}
