//! The timers of a loop: a wheel with ticks of a millisecond, and one descriptor that wakes the loop for the first of them.
//!
//! The runtime's own timer driver asks the clock and its wheel in each turn, which costs more than the rest of a turn. Here a turn without
//! a due timer costs two comparisons. The descriptor is set only to an earlier time than before: the timeouts of connections, which mostly
//! move later or go unused, cost no system call.

use std::cell::RefCell;
use std::io;
use std::marker::PhantomData;
use std::task::Waker;
use std::time::{Duration, Instant};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

use crate::clock::Reading;
use crate::timer_wheel::TimerWheel;

/// Nanoseconds of a tick.
const TICK_NS: u64 = 1_000_000;
/// The time that no clock reaches.
const NEVER: u64 = u64::MAX;

struct Timers {
    wheel: TimerWheel,
    /// The runtime watches any descriptor as a pipe. Nobody reads it: setting it again takes its event back.
    descriptor: Receiver,
    /// Time for which the descriptor is set, as [`Reading::ns`].
    alarm_ns: u64,
    /// Time of the next tick at which the wheel has to be advanced.
    next_ns: u64,
    /// Wakers of due timers; empty between two turns.
    fired: Vec<Waker>,
}

thread_local! {
    static TIMERS: RefCell<Option<Timers>> = const { RefCell::new(None) };
}

/// The timers of the loop that this thread runs, from the start of its runtime until its end.
pub(crate) struct TimerService(PhantomData<*const ()>);

impl TimerService {
    /// Starts the timers of this thread's loop. Within its runtime, and before the loop guard is on.
    pub(crate) fn start() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let descriptor =
            Receiver::from_owned_fd_unchecked(timerfd_create(TimerfdClockId::Monotonic, flags)?)?;
        TIMERS.set(Some(Timers {
            wheel: TimerWheel::new(),
            descriptor,
            alarm_ns: NEVER,
            next_ns: NEVER,
            fired: Vec::new(),
        }));
        Ok(Self(PhantomData))
    }
}

impl Drop for TimerService {
    fn drop(&mut self) {
        // Wakers may own tasks with timers of their own.
        let timers = TIMERS.take();
        drop(timers);
    }
}

/// Returns true if this thread runs a loop, whose timers are those of this module.
pub(crate) fn is_running() -> bool {
    TIMERS.try_with(|timers| timers.borrow().is_some()).unwrap_or(false)
}

/// A turn begins at `now_ns`: wakes the tasks of all timers that are due.
pub(crate) fn begin_turn(now_ns: u64) {
    let mut fired = TIMERS.with_borrow_mut(|timers| match timers {
        Some(timers) if timers.next_ns <= now_ns => timers.advance(now_ns),
        _ => Vec::new(),
    });
    if fired.is_empty() {
        return;
    }
    fired.drain(..).for_each(Waker::wake);
    TIMERS.with_borrow_mut(|timers| {
        if let Some(timers) = timers {
            timers.fired = fired;
        }
    });
}

/// The loop is about to wait for events, at `now_ns`: sets the descriptor if it would wake the loop too late.
pub(crate) fn rest(now_ns: u64) {
    TIMERS.with_borrow_mut(|timers| {
        if let Some(timers) = timers
            && timers.next_ns < timers.alarm_ns
        {
            timers.set_alarm(now_ns);
        }
    });
}

impl Timers {
    fn advance(&mut self, now_ns: u64) -> Vec<Waker> {
        let mut fired = std::mem::take(&mut self.fired);
        self.wheel.advance(now_ns / TICK_NS, &mut fired);
        self.next_ns = self.wheel.next_tick().map_or(NEVER, |tick| tick.saturating_mul(TICK_NS));
        if self.alarm_ns <= now_ns {
            self.alarm_ns = NEVER;
        }
        fired
    }

    /// Brings forward the time at which the wheel is looked at.
    fn expect(&mut self, tick: u64) {
        self.next_ns = self.next_ns.min(tick.saturating_mul(TICK_NS));
    }

    fn set_alarm(&mut self, now_ns: u64) {
        // A span of zero would turn the descriptor off.
        let span = Duration::from_nanos(self.next_ns.saturating_sub(now_ns).max(1));
        let at = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec {
                tv_sec: span.as_secs().cast_signed(),
                tv_nsec: i64::from(span.subsec_nanos()),
            },
        };
        // Only an invalid argument can fail.
        if timerfd_settime(&self.descriptor, TimerfdTimerFlags::empty(), &at).is_ok() {
            self.alarm_ns = self.next_ns;
        }
    }
}

/// First tick that is not before `at`.
fn tick_of(at: Instant) -> u64 {
    Reading::at(at).ns.div_ceil(TICK_NS)
}

/// A timer of the loop that this thread runs. Fires once; forgotten when it is dropped.
#[derive(Debug)]
pub(crate) struct LoopTimer {
    number: u32,
    of_this_thread: PhantomData<*const ()>,
}

impl LoopTimer {
    /// A timer that wakes `waker` at `at`, at most a tick later. `None` where no loop runs.
    pub(crate) fn new(at: Instant, waker: Waker) -> Option<Self> {
        let tick = tick_of(at);
        let number = TIMERS
            .try_with(|timers| {
                let mut timers = timers.borrow_mut();
                let timers = timers.as_mut()?;
                timers.expect(tick);
                Some(timers.wheel.insert(tick, waker))
            })
            .ok()
            .flatten()?;
        Some(Self { number, of_this_thread: PhantomData })
    }

    /// Moves the timer to another time and task.
    pub(crate) fn reset(&self, at: Instant, waker: Waker) {
        let tick = tick_of(at);
        let old = TIMERS.try_with(|timers| {
            let mut timers = timers.borrow_mut();
            let timers = timers.as_mut()?;
            timers.expect(tick);
            timers.wheel.reset(self.number, tick, waker)
        });
        drop(old);
    }
}

impl Drop for LoopTimer {
    fn drop(&mut self) {
        let old = TIMERS.try_with(|timers| timers.borrow_mut().as_mut()?.wheel.remove(self.number));
        drop(old);
    }
}
