//! Parts of a turn's time: running, waiting for a processor, or waiting in the kernel.
//!
//! At the end of a turn the thread's own clock tells how long the thread was on the processor (0.3 µs, a system call). A turn
//! shorter than [`SLIGHT`] needs no look as long as such turns together are shorter than [`DOUBT`]. Only if the thread was off
//! for longer than [`SLIGHT`], the kernel is asked for how long it was ready to run meanwhile and had no processor
//! (`/proc/thread-self/schedstat`, 0.4 µs). The rest it slept inside the kernel: for a disk, for memory, for a lock.
//!
//! The kernel's number is compared with its value at the start of the turn. An earlier value serves as long as it
//! cannot have grown by more than [`DOUBT`] since: a busy loop hardly reads it at all. A loop that rests between its turns does not
//! know by itself how much of a rest was the wait for a processor. Where the last wake-ups waited for next to nothing, the next ones
//! are taken to do so as well, up to [`SKIPS_MAX`] of them.
//!
//! Major page faults are read with a turn that was off its processor for long, which a fault may explain, and otherwise once in
//! [`FAULTS_REFRESH`]: that costs a loop with little to do one system call less for each turn.

use std::cell::{Cell, OnceCell};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{ReadWriteFlags, preadv2};
use rustix::time::{ClockId, clock_gettime};
use tw_sys::usage;

use crate::clock::{nanoseconds, span_ns};

/// A thread that is off its processor for less is not asked why. Nanoseconds, as all numbers here.
const SLIGHT: u64 = 100_000;
/// Largest error of the time without a processor.
const DOUBT: u64 = 200_000;
/// Most wake-ups in a row that are not asked about. All of them together are expected to have waited for less than [`DOUBT`].
const SKIPS_MAX: u32 = 15;
/// After a longer rest the kernel is asked in any case: the machine may be busier than before, and the call costs nobody anything.
const LONG_REST: u64 = 10_000_000;
/// Largest age of the number of major page faults when a turn begins. Faults that were too short to be seen as time off the processor
/// are counted after at most this long.
const FAULTS_REFRESH: u64 = 1_000_000_000;

/// Part of a turn's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Cause {
    /// On the processor: our own code.
    Running = 0,
    /// Ready to run without a processor: the machine is busy.
    Processor = 1,
    /// Asleep in the kernel, for a disk, memory or a lock: what no loop should ever be.
    Kernel = 2,
}

impl Cause {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Running, Self::Processor, Self::Kernel];

    /// Name of the cause in metrics.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Processor => "processor",
            Self::Kernel => "kernel",
        }
    }
}

/// The parts of one turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TurnParts([u64; Cause::ALL.len()]);

impl TurnParts {
    /// Of a turn that was so long each of the three.
    pub const fn new(running: Duration, processor: Duration, kernel: Duration) -> Self {
        Self([nanoseconds(running), nanoseconds(processor), nanoseconds(kernel)])
    }

    /// Of a turn in which the loop had its processor for so many nanoseconds, and nothing else happened.
    const fn running(ns: u64) -> Self {
        Self([ns, 0, 0])
    }

    /// Length of one part.
    pub fn of(&self, cause: Cause) -> Duration {
        Duration::from_nanos(self.ns_of(cause))
    }

    /// Length of one part in nanoseconds.
    pub(crate) fn ns_of(&self, cause: Cause) -> u64 {
        self.0[cause as usize]
    }

    /// Why a turn took longer than `threshold`: the kernel, if that alone was too long, and otherwise what took most.
    pub fn cause(&self, threshold: Duration) -> Cause {
        if self.of(Cause::Kernel) > threshold {
            return Cause::Kernel;
        }
        let mut most = Cause::Running;
        for cause in Cause::ALL {
            if self.of(cause) > self.of(most) {
                most = cause;
            }
        }
        most
    }
}

/// State for measuring the turns of this thread.
struct Meter {
    /// `None` where the kernel does not tell: what is not known to be waiting for a processor is waiting in the kernel.
    schedstat: OnceCell<OwnedFd>,
    /// Time on the processor when it was last read, at the end of a turn.
    ran: Cell<u64>,
    /// Length of the turns since then.
    unread: Cell<u64>,
    /// Time without a processor when it was last read.
    unserved: Cell<u64>,
    /// Largest amount by which that may have grown since, apart from the skipped wake-ups.
    doubt: Cell<u64>,
    /// Wake-ups since then whose wait was not asked for.
    skipped: Cell<u32>,
    /// Number of wake-ups that may be skipped.
    skips: Cell<u32>,
    /// Major page faults so far, and those of them that no turn has been charged with.
    faults: Cell<u64>,
    new_faults: Cell<u64>,
    /// Time at which the faults were last read.
    faults_read: Cell<Option<u64>>,
    /// The end of the last turn.
    ended: Cell<Option<u64>>,
}

thread_local! {
    static METER: Meter = const {
        Meter {
            schedstat: OnceCell::new(),
            ran: Cell::new(0),
            unread: Cell::new(0),
            unserved: Cell::new(0),
            doubt: Cell::new(u64::MAX),
            skipped: Cell::new(0),
            skips: Cell::new(0),
            faults: Cell::new(0),
            new_faults: Cell::new(0),
            faults_read: Cell::new(None),
            ended: Cell::new(None),
        }
    };
}

/// Opens what tells of this thread. Before the loop guard is on.
pub(crate) fn attach() {
    METER.with(|meter| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        if let Ok(fd) = openat(CWD, c"/proc/thread-self/schedstat", flags, Mode::empty()) {
            // A thread runs one loop.
            let _ = meter.schedstat.set(fd);
        }
        meter.ran.set(on_processor());
        meter.faults.set(usage::major_faults());
    });
}

/// A turn begins.
pub(crate) fn begin_turn(now: u64) {
    METER.with(|meter| {
        // The wake-up may have waited for a processor.
        let rest = meter.ended.get().map_or(u64::MAX, |ended| now.saturating_sub(ended));
        if meter.doubt.get().saturating_add(rest) <= DOUBT {
            meter.doubt(rest);
        } else if rest < LONG_REST && meter.skipped.get() < meter.skips.get() {
            meter.skipped.set(meter.skipped.get() + 1);
        } else {
            meter.read_unserved();
            let read = meter.faults_read.get();
            if read.is_none_or(|read| now.saturating_sub(read) >= FAULTS_REFRESH) {
                meter.read_faults(now);
            }
        }
    });
}

/// A turn of this length ends: its parts, and the major page faults since the last turn that tells of some.
pub(crate) fn end_turn(now: u64, turn: u64) -> (TurnParts, u64) {
    METER.with(|meter| {
        meter.ended.set(Some(now));
        let unread = meter.unread.get();
        if turn < SLIGHT && unread + turn < DOUBT {
            meter.unread.set(unread + turn);
            return (TurnParts::running(turn), meter.new_faults.take());
        }
        let ran = on_processor();
        // The value covers all turns since the last look. The share of this turn is unknown, but the others were short.
        let measured = turn + meter.unread.take();
        let off = measured.saturating_sub(ran.saturating_sub(meter.ran.replace(ran)));
        if off < SLIGHT {
            meter.doubt(off);
            return (TurnParts::running(turn), meter.new_faults.take());
        }
        let off = off.min(turn);
        let before = meter.unserved.get();
        meter.read_unserved();
        meter.read_faults(now);
        let processor = meter.unserved.get().saturating_sub(before).min(off);
        let parts = TurnParts([turn.saturating_sub(off), processor, off.saturating_sub(processor)]);
        (parts, meter.new_faults.take())
    })
}

impl Meter {
    fn doubt(&self, more: u64) {
        self.doubt.set(self.doubt.get().saturating_add(more));
    }

    /// Asks for the major page faults of the thread.
    fn read_faults(&self, now: u64) {
        let faults = usage::major_faults();
        self.new_faults.set(self.new_faults.get() + faults.saturating_sub(self.faults.replace(faults)));
        self.faults_read.set(Some(now));
    }

    /// Asks for how long the thread was ready to run and had no processor.
    fn read_unserved(&self) {
        let mut text = [0; 64];
        let read = self.schedstat.get().and_then(|fd| {
            // procfs is memory; the loop guard lets such a read pass by this flag.
            let mut buffers = [std::io::IoSliceMut::new(&mut text)];
            preadv2(fd, &mut buffers, 0, ReadWriteFlags::HIPRI).ok()
        });
        if let Some(ns) = read.and_then(|n| unserved_ns(text.get(..n)?)) {
            let growth = ns.saturating_sub(self.unserved.replace(ns));
            self.skips.set(next_skips(self.skips.get(), self.skipped.take(), growth));
            self.doubt.set(0);
        }
    }
}

/// Number of wake-ups that may be skipped after a read. `growth` is the time without a processor since the read before, in which
/// `skipped` wake-ups were not asked about; one was.
fn next_skips(skips: u32, skipped: u32, growth: u64) -> u32 {
    if growth / u64::from(skipped + 1) < DOUBT / u64::from(SKIPS_MAX + 1) {
        (skips * 2 + 1).min(SKIPS_MAX)
    } else {
        0
    }
}

/// The second number of `schedstat` (sched-stats.rst of Linux): nanoseconds spent waiting on a run queue.
fn unserved_ns(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Time that this thread has been on a processor since it started.
fn on_processor() -> u64 {
    span_ns(clock_gettime(ClockId::ThreadCPUTime))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::CpuMask;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::sync::mpsc;
    use std::thread;

    use crate::clock::Reading;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn cause_is_the_kernel_above_the_threshold_and_the_largest_part_otherwise() {
        for (running, processor, kernel, expected) in [
            (30, 0, 0, Cause::Running),
            (5, 20, 6, Cause::Processor),
            (5, 20, 11, Cause::Kernel),
            (4, 3, 5, Cause::Kernel),
            (9, 9, 0, Cause::Running),
        ] {
            let parts = TurnParts::new(running * MS, processor * MS, kernel * MS);
            assert_eq!(parts.cause(10 * MS), expected, "{parts:?}");
        }
    }

    #[test]
    fn schedstat_is_read() {
        assert_eq!(unserved_ns(b"550837 2764199 2\n"), Some(2_764_199));
        assert_eq!(unserved_ns(b"0 0 0\n"), Some(0));
        assert_eq!(unserved_ns(b""), None);
        assert_eq!(unserved_ns(b"1 x"), None);
    }

    #[test]
    fn wake_ups_are_skipped_while_they_wait_for_next_to_nothing() {
        let us = |us: u64| us * 1000;
        let mut skips = 0;
        let mut reads = Vec::new();
        for _ in 0..5 {
            skips = next_skips(skips, skips, us(12) * u64::from(skips));
            reads.push(skips);
        }
        assert_eq!(reads, [1, 3, 7, 15, 15]);
        assert_eq!(next_skips(15, 15, us(199)), 15);
        assert_eq!(next_skips(15, 15, us(200)), 0);
        assert_eq!(
            next_skips(7, 0, us(13)),
            0,
            "a turn that had to wait for a processor shows a busy machine"
        );
    }

    /// Short turns with short rests between them, as those of a server with little to do.
    #[test]
    fn loop_that_rests_between_turns_asks_for_few_of_its_wake_ups() {
        let asked = || {
            let turns = || {
                let (_silent, never) = mpsc::channel::<()>();
                attach();
                (0..200)
                    .filter(|_| {
                        begin_turn(Reading::now().ns);
                        let is_asked = METER.with(|meter| meter.skipped.get() == 0);
                        end_turn(Reading::now().ns, 20_000);
                        assert!(never.recv_timeout(MS).is_err());
                        is_asked
                    })
                    .count()
            };
            thread::spawn(turns).join().unwrap()
        };
        // On a busy machine the kernel has to be asked more often.
        assert!((0..50).any(|_| asked() < 100));
    }

    /// The parts of a turn in which a fresh thread does this.
    fn parts_of(turn: impl FnOnce() + Send + 'static) -> TurnParts {
        let measured = thread::spawn(|| {
            attach();
            let start = Reading::now().ns;
            begin_turn(start);
            turn();
            let end = Reading::now().ns;
            end_turn(end, end - start).0
        });
        measured.join().unwrap()
    }

    /// Computes for so long, however often it is interrupted.
    fn compute(span: Duration) {
        let start = on_processor();
        while on_processor() - start < nanoseconds(span) {}
    }

    #[test]
    fn computing_differs_from_sleeping() {
        let parts = parts_of(|| compute(20 * MS));
        assert!(parts.of(Cause::Running) >= 19 * MS, "{parts:?}");
        let sleep = || {
            let (_silent, never) = mpsc::channel::<()>();
            parts_of(move || assert!(never.recv_timeout(30 * MS).is_err()))
        };
        // On a busy machine the thread may get its processor too late to sleep for the whole time.
        let slept = (0..50).map(|_| sleep()).find(|parts| parts.of(Cause::Kernel) >= 25 * MS);
        let parts = slept.expect("one of fifty sleeps");
        assert!(parts.of(Cause::Running) < 20 * MS, "{parts:?}");
    }

    #[test]
    fn waiting_for_a_processor_differs_from_sleeping() {
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let one = thread::spawn(|| {
            let all = CpuMask::of_current_thread().unwrap();
            crate::affinity::Affinity::Auto(all).of_worker(0).unwrap()
        });
        let one = one.join().unwrap();
        let other = thread::spawn(move || {
            one.pin_current_thread().unwrap();
            while !IS_OVER.load(Relaxed) {
                std::hint::spin_loop();
            }
        });
        // While this thread computes, it shares its processor with another one that is always busy.
        let shares = || {
            parts_of(move || {
                one.pin_current_thread().unwrap();
                compute(200 * MS);
            })
        };
        // On a virtual machine that stalls meanwhile neither thread has the processor.
        let waited = (0..10).map(|_| shares()).find(|parts| {
            parts.of(Cause::Running) >= 190 * MS && parts.of(Cause::Processor) > parts.of(Cause::Kernel) * 3
        });
        IS_OVER.store(true, Relaxed);
        other.join().unwrap();
        assert!(waited.is_some());
    }
}
