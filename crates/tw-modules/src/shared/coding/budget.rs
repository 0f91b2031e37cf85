//! Memory of encoders, for the whole process: `compression_memory`, and never more than half of the available memory
//! ([`available_memory`]).
//!
//! A body of more than one piece needs its encoder until its client has received it, which may take for ever: its
//! memory is reserved first, and it is not compressed without ([`Budget::admit`]). A body of one piece has an encoder
//! only while it is compressed, so slow clients do not hold encoders: there must be memory for one, and the piece
//! counts from when it is read to when its output is sent ([`Budget::admit_piece`], [`MemoryPermit::hold`]). Jobs take their
//! encoders while they work, and run one at a time where there is not enough memory for several
//! ([`Budget::begin_work`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tw_base::Counter;
use tw_core::metrics::{Metric, MetricKind};
use tw_request::protocol::Resolve;
use tw_rt::available_memory;

use super::codec::Coding;
use super::encoder_memory::Memory;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of encoders whose clients have not taken all of their response, in the whole process; less where less than twice
    /// as much is available in the cgroup or the machine.
    directive "compression_memory", "the response gets the next coding that is configured and takes less, or none";
}

/// Divisor of the available memory that encoders may take. They may not have touched all that was promised to them, and
/// other parts of the process grow as well before it is read again: so it is one half, not all.
const AVAILABLE_PART: u64 = 2;
/// Available bytes that encoders leave for connections and requests.
const RESERVED: u64 = 16 << 20;
/// Part of the available memory that encoders may keep that wait for their next use.
const AVAILABLE_SPARE_PART: u64 = 8;
/// Shortest output that is counted: a shorter one is the size of a head.
const COUNTED_MIN: usize = 16 << 10;

/// Bytes that are available for encoders.
pub(super) fn available() -> u64 {
    available_memory::bytes().saturating_sub(RESERVED)
}

pub(crate) const METRICS: &[Metric] = &[
    Metric {
        name: "encoder_memory_bytes",
        kind: MetricKind::Gauge,
        labels: &["state"],
        doc: "Memory of the encoders of gzip, brotli and zstd: in use (with what they make), spare for the next response, needed \
              only while one works, and bodies of one piece that wait for an encoder or for the client.",
        read: |scrape, out| {
            for budget in scrape.shared_objects::<Budget>() {
                out.value(&["used"], budget.level(State::Used).load(Relaxed));
                out.value(&["spare"], budget.level(State::Spare).load(Relaxed));
                out.value(&["working"], budget.level(State::Working).load(Relaxed));
                out.value(&["pieces"], budget.level(State::Piece).load(Relaxed));
            }
        },
    },
    Metric {
        name: "encoder_memory_refusals_total",
        kind: MetricKind::Counter,
        labels: &["coding"],
        doc: "Responses that got a cheaper coding than this one, or none, because compression_memory was in use or too little memory \
              available.",
        read: |scrape, out| {
            for budget in scrape.shared_objects::<Budget>() {
                for coding in Coding::ALL {
                    out.value(&[coding.word()], budget.refusals[coding as usize].value());
                }
            }
        },
    },
    Metric {
        name: "encoder_memory_available_bytes",
        kind: MetricKind::Gauge,
        labels: &[],
        doc: "Half of the memory that the cgroup or the machine has left beyond a reserve: encoders take no more than that, and no \
              more than compression_memory.",
        read: |scrape, out| {
            let is_known = available_memory::bytes() != u64::MAX;
            if scrape.shared_objects::<Budget>().next().is_some() && is_known {
                out.value(&[], available() / AVAILABLE_PART);
            }
        },
    },
];

/// Memory of the process that encoders take.
pub(crate) struct Budget {
    /// Bytes, by [`State`].
    levels: [AtomicU64; 4],
    /// By [`Coding`].
    refusals: [Counter; Coding::ALL.len()],
    /// Permit of the one job that may exceed the available memory.
    beyond: Arc<Semaphore>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { levels: Default::default(), refusals: Default::default(), beyond: Arc::new(Semaphore::new(1)) }
    }
}

/// Memory of a job while it works, beside what its encoder keeps.
pub(super) struct Working {
    _share: MemoryPermit,
    _beyond: Option<OwnedSemaphorePermit>,
}

/// Output of an encoder, counted until the client has it.
struct Output {
    bytes: Vec<u8>,
    _share: MemoryPermit,
}

impl AsRef<[u8]> for Output {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Use of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A body.
    Used,
    /// The next body, whichever that is.
    Spare,
    /// Work on a body, for the moment.
    Working,
    /// Reserved only: a body of one piece waits for the encoder, or its output waits for the client.
    Piece,
}

/// The memory of one encoder; dropping it gives it back.
pub(super) struct MemoryPermit {
    budget: Arc<Budget>,
    state: State,
    bytes: u64,
}

impl Budget {
    /// The one of the process.
    pub(crate) fn keep(cx: &mut Resolve<'_>) -> Arc<Self> {
        cx.keep(b"encoders", |_| true, Self::default)
    }

    /// Memory for an encoder that is kept from piece to piece, if with this one at work all take no more than `max` bytes, and with
    /// pieces no more than a part of what is available. An encoder other than gzip's has to leave as many bytes as it takes, so a
    /// few expensive ones do not take the memory of many cheap ones.
    pub(super) fn admit(
        self: &Arc<Self>,
        coding: Coding,
        memory: Memory,
        max: u64,
        available: u64,
    ) -> Option<MemoryPermit> {
        let max = max.min(self.remaining(&[State::Piece], available));
        let remaining = if coding == Coding::Gzip { 0 } else { memory.peak };
        self.reserve(State::Used, memory, max.saturating_sub(remaining)).or_else(|| self.refuse(coding))
    }

    /// Memory for a body of one piece, of which so many bytes wait for an encoder or for the client, if an encoder for it fits
    /// into what is available, too.
    pub(super) fn admit_piece(
        self: &Arc<Self>,
        coding: Coding,
        memory: Memory,
        bytes: u64,
        available: u64,
    ) -> Option<MemoryPermit> {
        let with_encoder = Memory { kept: bytes, peak: bytes.saturating_add(memory.peak) };
        let max = self.remaining(&[State::Used], available);
        self.reserve(State::Piece, with_encoder, max).or_else(|| self.refuse(coding))
    }

    /// Takes `bytes` while a job works. If that is more than is left for jobs, waits until it is the only such job.
    pub(super) async fn begin_work(self: &Arc<Self>, bytes: u64, available: u64) -> Working {
        let remaining = self.remaining(&[State::Used, State::Piece, State::Working], available);
        let beyond = match bytes <= remaining {
            true => None,
            // Acquiring fails only if the semaphore is closed, and it never is.
            false => self.beyond.clone().acquire_owned().await.ok(),
        };
        Working { _share: self.add(State::Working, bytes), _beyond: beyond }
    }

    /// Bytes of the available memory that these states leave. Another loop may take some of them at the same moment.
    fn remaining(&self, states: &[State], available: u64) -> u64 {
        let taken = states.iter().map(|state| self.level(*state).load(Relaxed)).sum();
        (available / AVAILABLE_PART).saturating_sub(taken)
    }

    fn reserve(self: &Arc<Self>, state: State, memory: Memory, max: u64) -> Option<MemoryPermit> {
        let with = |taken: u64| {
            taken.checked_add(memory.peak).filter(|all| *all <= max)?;
            taken.checked_add(memory.kept)
        };
        self.level(state).fetch_update(Relaxed, Relaxed, with).ok()?;
        Some(MemoryPermit { budget: self.clone(), state, bytes: memory.kept })
    }

    fn refuse(&self, coding: Coding) -> Option<MemoryPermit> {
        self.refusals[coding as usize].add(1);
        None
    }

    /// Memory for an encoder that finishes its body without waiting for a client.
    pub(super) fn take(self: &Arc<Self>, bytes: u64) -> MemoryPermit {
        self.add(State::Used, bytes)
    }

    fn add(self: &Arc<Self>, state: State, bytes: u64) -> MemoryPermit {
        self.level(state).fetch_add(bytes, Relaxed);
        MemoryPermit { budget: self.clone(), state, bytes }
    }

    fn level(&self, state: State) -> &AtomicU64 {
        &self.levels[state as usize]
    }
}

impl MemoryPermit {
    /// The share of the same encoder when it waits for its next body, with so many bytes.
    pub(super) fn into_spare(self, bytes: u64) -> Self {
        self.budget.add(State::Spare, bytes)
    }

    /// Not less than `bytes`: an encoder that was used before may have more than its next body needs.
    pub(super) fn at_least(&mut self, bytes: u64) {
        self.set(self.bytes.max(bytes));
    }

    /// Returns true if so much may be kept for the next use.
    pub(super) fn is_affordable(&self, available: u64) -> bool {
        self.budget.level(self.state).load(Relaxed) <= available / AVAILABLE_SPARE_PART
    }

    /// The output of an encoder, which counts until the last byte of it has left.
    pub(super) fn hold(mut self, bytes: Vec<u8>) -> Bytes {
        if bytes.capacity() < COUNTED_MIN {
            return bytes.into();
        }
        self.set(bytes.capacity() as u64);
        Bytes::from_owner(Output { bytes, _share: self })
    }

    fn set(&mut self, bytes: u64) {
        let level = self.budget.level(self.state);
        if bytes > self.bytes {
            level.fetch_add(bytes - self.bytes, Relaxed);
        } else {
            level.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }

    /// Bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for MemoryPermit {
    fn drop(&mut self) {
        self.budget.level(self.state).fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
impl Budget {
    /// Bytes in use and spare.
    pub(super) fn levels(&self) -> (u64, u64) {
        (self.level(State::Used).load(Relaxed), self.level(State::Spare).load(Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn memory(kept: u64, peak: u64) -> Memory {
        Memory { kept, peak }
    }

    #[test]
    fn the_limit_follows_available_memory() {
        const MB: u64 = 1 << 20;
        for (compression_memory, available, expected) in [
            (128 * MB, u64::MAX, 128 * MB),
            (128 * MB, 1024 * MB, 128 * MB),
            (128 * MB, 60 * MB, 30 * MB),
            (8 * MB, 60 * MB, 8 * MB),
        ] {
            let budget = Arc::new(Budget::default());
            let admit =
                |bytes| budget.admit(Coding::Gzip, memory(bytes, bytes), compression_memory, available);
            assert!(admit(expected + 1).is_none(), "{compression_memory} {available}");
            assert_eq!(admit(expected).unwrap().bytes(), expected);
        }
    }

    #[test]
    fn shares_stay_within_the_budget_and_are_returned() {
        let budget = Arc::new(Budget::default());
        let admit = |bytes, max| budget.admit(Coding::Gzip, memory(bytes, bytes), max, u64::MAX);
        let first = admit(60, 100).unwrap();
        assert!(admit(41, 100).is_none() && admit(u64::MAX, u64::MAX).is_none());
        let mut second = admit(40, 100).unwrap();
        let forced = budget.take(7);
        assert_eq!(budget.levels(), (107, 0));
        // A smaller budget than what is in use refuses, and nothing else.
        assert!(admit(0, 50).is_none());
        drop(first);
        let spare = forced.into_spare(5);
        assert_eq!((budget.levels(), spare.bytes()), ((40, 5), 5));
        assert!(spare.is_affordable(40) && !spare.is_affordable(39));
        for bytes in [45, 3, 45] {
            second.at_least(bytes);
            assert_eq!(budget.levels(), (45, 5));
        }
        drop((second, spare));
        assert_eq!(budget.levels(), (0, 0));
        assert_eq!(budget.refusals.each_ref().map(Counter::value), [3, 0, 0]);
    }

    #[test]
    fn budget_needs_room_for_the_peak_and_reserves_kept_bytes() {
        let budget = Arc::new(Budget::default());
        let admit = || budget.admit(Coding::Gzip, memory(20, 70), 100, u64::MAX);
        let both = [admit().unwrap(), admit().unwrap()];
        assert!(admit().is_none());
        assert_eq!((budget.levels().0, budget.refusals[Coding::Gzip as usize].value()), (40, 1));
        drop(both);
        assert_eq!(budget.levels().0, 0);
    }

    #[test]
    fn expensive_encoders_leave_memory_for_cheap_ones() {
        let budget = Arc::new(Budget::default());
        let admit = |coding, bytes| budget.admit(coding, memory(bytes, bytes), 100, u64::MAX);
        assert!(admit(Coding::Brotli, 51).is_none());
        let expensive = admit(Coding::Zstd, 40).unwrap();
        assert!(admit(Coding::Zstd, 40).is_none());
        let cheap = admit(Coding::Gzip, 60).unwrap();
        drop((expensive, cheap));
        assert_eq!(budget.levels(), (0, 0));
    }

    #[test]
    fn pieces_and_kept_encoders_share_what_is_available() {
        let budget = Arc::new(Budget::default());
        let pieces = || budget.level(State::Piece).load(Relaxed);
        let admit_piece = |bytes| budget.admit_piece(Coding::Zstd, memory(0, 60), bytes, 200);
        let first = admit_piece(20).unwrap();
        let second = admit_piece(20).unwrap();
        assert!(admit_piece(1).is_none(), "an encoder would not fit");
        assert_eq!((pieces(), budget.refusals[Coding::Zstd as usize].value()), (40, 1));
        let admit = |bytes| budget.admit(Coding::Gzip, memory(bytes, bytes), 1000, 200);
        assert!(admit(61).is_none());
        let kept = admit(60).unwrap();
        drop((first, second));
        assert!(admit_piece(0).is_none());
        drop(kept);
        assert!(admit_piece(40).is_some());
        assert_eq!((pieces(), budget.levels()), (0, (0, 0)));
    }

    #[test]
    fn output_counts_until_its_last_byte_is_sent() {
        let budget = Arc::new(Budget::default());
        let held_count = || budget.level(State::Piece).load(Relaxed);
        let admit = |bytes| budget.admit_piece(Coding::Gzip, memory(0, 0), bytes, u64::MAX).unwrap();
        for reserved in [60_000, 100] {
            let mut output = admit(reserved).hold(vec![7; 20_000]);
            assert_eq!(held_count(), 20_000);
            let rest = output.split_off(15_000);
            drop(output);
            assert_eq!((held_count(), &rest[..]), (20_000, &[7; 5000][..]));
            drop(rest);
            assert_eq!(held_count(), 0);
        }
        assert_eq!((&admit(10).hold(vec![1; 10])[..], held_count()), (&[1; 10][..], 0));
    }

    #[test]
    fn jobs_beyond_available_memory_work_one_at_a_time() {
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};

        let budget = Arc::new(Budget::default());
        let working = || budget.level(State::Working).load(Relaxed);
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(reserved) = pin!(budget.begin_work(100, 200)).poll(&mut cx) else {
            panic!("room is left")
        };
        let Poll::Ready(beyond) = pin!(budget.begin_work(50, 200)).poll(&mut cx) else {
            panic!("the first one")
        };
        let mut third = pin!(budget.begin_work(50, 200));
        assert!(third.as_mut().poll(&mut cx).is_pending());
        assert_eq!(working(), 150);
        drop(reserved);
        assert!(third.as_mut().poll(&mut cx).is_pending());
        drop(beyond);
        let Poll::Ready(last) = third.as_mut().poll(&mut cx) else { panic!("it is the only one") };
        assert_eq!(working(), 50);
        drop(last);
        assert_eq!(working(), 0);
    }
}
