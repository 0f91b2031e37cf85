//! Length of every turn of a loop, and the task that took longest in a long one.
//!
//! A turn lasts from the loop's wake-up to its next look at the kernel for events. Its length is measured with two
//! precise clock reads; the task that used it is only sampled: every task poll ends with one read of the kernel's coarse clock
//! (it moves once per timer tick, 1 to 10 ms, and costs 5 ns against 22 ns of a precise read), and the task that runs
//! when it moves is charged. That is exact enough to name the culprit of a turn of 10 ms and nearly free otherwise.

use std::cell::{Cell, OnceCell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use pin_project_lite::pin_project;
use rustix::time::{ClockId, clock_gettime};

use crate::activity::{ActivityWord, LoopActivity};
use crate::clock::{self, Reading, span_ns};
use crate::loop_thread::LoopStats;
use crate::turn_parts::{Cause, TurnParts};

/// Subject of a task, as a log line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Kind of task: `connection`, `accept`, `main`.
    pub kind: &'static str,
    /// Number of the subject: of a connection, the one that log lines show as `*id`. 0 if the kind has only one.
    pub id: u64,
}

/// The task that took the largest part of a long turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlowestTask {
    /// Subject of the task.
    pub subject: Subject,
    /// The operation named with [`operation`] that took most of it, if any.
    pub operation: Option<&'static str>,
    /// Time it ran without yielding, to the precision of the kernel's timer tick.
    pub took: Duration,
}

/// A turn of a loop that was longer than `stall_threshold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// Index of the loop, in nginx's words of the worker.
    pub index: usize,
    /// Length of the turn: how long an event that came just after its start had to wait.
    pub turn: Duration,
    /// Why it took so long.
    pub cause: Cause,
    /// Parts of the turn.
    pub parts: TurnParts,
    /// Pages that were waited for, as far as the kernel had counted them by the end.
    pub major_faults: u64,
    /// Task that took longest; `None` when no single task ran across a timer tick.
    pub slowest_task: Option<SlowestTask>,
}

#[derive(Clone, Copy)]
struct Running {
    operation: &'static str,
    took_ns: u64,
}

struct Local {
    /// Start of the turn that goes on, as [`Reading::ns`].
    turn_start: Cell<Option<u64>>,
    /// Coarse clock when it was last looked at, in nanoseconds.
    tick: Cell<u64>,
    /// Time charged to the poll that is going on.
    poll_ns: Cell<u64>,
    /// The longest operation of the poll that is going on.
    poll_operation: Cell<Option<Running>>,
    slowest_task: Cell<Option<SlowestTask>>,
    /// Polls left until the root future is woken to begin a new turn.
    polls_left: Cell<u32>,
    polls_per_turn: Cell<u32>,
    /// The batch is used up and the root future was woken for it.
    due: Cell<bool>,
    root: RefCell<Option<Waker>>,
    /// Of the loop that this thread runs.
    loop_stats: OnceCell<Arc<LoopStats>>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            turn_start: Cell::new(None),
            tick: Cell::new(0),
            poll_ns: Cell::new(0),
            poll_operation: Cell::new(None),
            slowest_task: Cell::new(None),
            polls_left: Cell::new(u32::MAX),
            polls_per_turn: Cell::new(u32::MAX),
            due: Cell::new(false),
            root: const { RefCell::new(None) },
            loop_stats: const { OnceCell::new() },
        }
    };
}

/// Runs `f` under a name that the stall report shows if `f` is what took long: a regular expression, a compression
/// step, an inline `open`. Costs one coarse clock read, 5 ns; for pieces of work of a microsecond and more.
pub fn operation<T>(name: &'static str, f: impl FnOnce() -> T) -> T {
    let before = LOCAL.with(|local| local.activity().map(|activity| activity.enter(name)));
    let value = f();
    LOCAL.with(|local| {
        if let (Some(activity), Some(before)) = (local.activity(), before) {
            activity.show(before);
        }
        let took_ns = local.charge();
        if took_ns > 0 && local.poll_operation.get().is_none_or(|longest| longest.took_ns < took_ns) {
            local.poll_operation.set(Some(Running { operation: name, took_ns }));
        }
    });
    value
}

/// The line for the error log: `event loop of worker 3 computed for 30 ms of a turn of 31 ms, 28 ms by connection 42 (regex)`.
impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.cause {
            Cause::Running => "computed",
            Cause::Processor => "had no processor",
            Cause::Kernel => "was blocked in the kernel",
        };
        let part = self.parts.of(self.cause).as_millis();
        let turn = self.turn.as_millis();
        write!(f, "event loop of worker {} {what} for {part} ms of a turn of {turn} ms", self.index)?;
        if let Some(SlowestTask { subject, operation, took }) = self.slowest_task {
            write!(f, ", {} ms by {}", took.as_millis(), subject)?;
            operation.map_or(Ok(()), |operation| write!(f, " ({operation})"))?;
        }
        match self.major_faults {
            0 => Ok(()),
            1 => f.write_str(", one major page fault"),
            count => write!(f, ", {count} major page faults"),
        }
    }
}

/// `connection 42`, or the kind alone where there is only one.
impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.id {
            0 => f.write_str(self.kind),
            id => write!(f, "{} {id}", self.kind),
        }
    }
}

/// Subject of the task that this thread runs; `None` where there is no loop, and between tasks.
pub fn subject() -> Option<Subject> {
    // When a thread ends, no task runs on it any more.
    LOCAL.try_with(|local| local.activity().and_then(|activity| activity.doing().subject())).ok().flatten()
}

impl Local {
    fn activity(&self) -> Option<&LoopActivity> {
        self.loop_stats.get().map(|stats| &stats.activity)
    }

    fn show(&self, doing: ActivityWord) {
        if let Some(activity) = self.activity() {
            activity.show(doing);
        }
    }

    /// Adds the ticks since the last look to the poll that is going on; returns them.
    fn charge(&self) -> u64 {
        let tick = coarse_ns();
        let took = tick.saturating_sub(self.tick.get());
        if took > 0 {
            self.tick.set(tick);
            self.poll_ns.set(self.poll_ns.get() + took);
        }
        took
    }

    fn poll_ended(&self, doing: ActivityWord) {
        self.show(ActivityWord::default());
        self.charge();
        if self.poll_ns.get() > 0 {
            self.blame(doing);
            // The loop may look for events unseen, for instance because a task used up tokio's budget. Once per
            // tick is often enough to keep such turns apart, and to keep the loop's clock right.
            self.end_soon();
        }
        let remaining = self.polls_left.get() - 1;
        self.polls_left.set(remaining);
        if remaining == 0 {
            self.polls_left.set(self.polls_per_turn.get());
            self.end_soon();
        }
    }

    /// Wakes the root future, so that it begins a new turn right after the loop next looks for events.
    fn end_soon(&self) {
        if !self.due.replace(true)
            && let Some(root) = &*self.root.borrow()
        {
            root.wake_by_ref();
        }
    }

    #[cold]
    fn blame(&self, doing: ActivityWord) {
        let took = Duration::from_nanos(self.poll_ns.take());
        let Some(subject) = doing.subject() else { return };
        let operation = self.poll_operation.take().map(|longest| longest.operation);
        if self.slowest_task.get().is_none_or(|longest| longest.took < took) {
            self.slowest_task.set(Some(SlowestTask { subject, operation, took }));
        }
    }
}

/// Time of the last timer tick, in nanoseconds.
fn coarse_ns() -> u64 {
    span_ns(clock_gettime(ClockId::MonotonicCoarse))
}

/// This thread runs the loop that counts in `stats`, for good.
pub(crate) fn attach_stats(stats: &Arc<LoopStats>) {
    stats.activity.settle();
    // A thread runs one loop.
    LOCAL.with(|local| _ = local.loop_stats.set(stats.clone()));
}

/// Tells this thread's loop which future to wake after `polls` task polls, so that a loop which never runs out of
/// work still ends its turns.
pub(crate) fn attach_root(root: &Waker, polls: u32) {
    LOCAL.with(|local| {
        let mut slot = local.root.borrow_mut();
        if !slot.as_ref().is_some_and(|old| old.will_wake(root)) {
            *slot = Some(root.clone());
        }
        local.polls_per_turn.set(polls);
        local.polls_left.set(polls);
    });
}

/// Returns true if the root future starts a turn: the first one, or one after a full batch of task polls.
pub(crate) fn is_turn_due() -> bool {
    LOCAL.with(|local| local.turn_start.get().is_none() || local.due.take())
}

/// The running task is about to let the loop look for events: that will be the end of the turn.
pub(crate) fn end_turn_soon() {
    LOCAL.with(Local::end_soon);
}

/// Begins a turn: the loop woke up, or looked for events between two batches of tasks.
pub(crate) fn begin_turn(now: Reading) {
    clock::turn(now);
    LOCAL.with(|local| {
        local.turn_start.set(Some(now.ns));
        // A tick before the turn's start is none of its tasks'.
        local.tick.set(now.ns);
        local.polls_left.set(local.polls_per_turn.get());
        local.due.set(false);
        if let Some(activity) = local.activity() {
            activity.begin_turn();
        }
    });
}

/// The loop is about to wait for events. What is to be done at the end of a turn is done: it belongs to the turn.
pub(crate) fn rest() {
    LOCAL.with(|local| {
        if let Some(activity) = local.activity() {
            activity.rest();
        }
    });
}

/// Ends the current turn, if any, and returns its length in nanoseconds and the task that took longest.
pub(crate) fn end_turn(now_ns: u64) -> Option<(u64, Option<SlowestTask>)> {
    LOCAL.with(|local| {
        let start = local.turn_start.take()?;
        Some((now_ns.saturating_sub(start), local.slowest_task.take()))
    })
}

pin_project! {
    /// A task's future that charges its polls to whom it works for. Costs about 7 ns a poll, two stores
    /// for who looks from outside, and 8 bytes.
    #[derive(Debug)]
    pub(crate) struct Watched<F> {
        doing: ActivityWord,
        #[pin]
        future: F,
    }
}

impl<F> Watched<F> {
    pub(crate) fn new(subject: Subject, future: F) -> Self {
        Self { doing: ActivityWord::of(subject), future }
    }
}

impl<F: Future> Future for Watched<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        LOCAL.with(|local| local.show(*this.doing));
        let poll = this.future.poll(cx);
        LOCAL.with(|local| local.poll_ended(*this.doing));
        poll
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_read_as_log_lines() {
        let ms = Duration::from_millis;
        let slowest_task = |id, operation| SlowestTask {
            subject: Subject { kind: "connection", id },
            operation,
            took: ms(28),
        };
        let cases = [
            (Cause::Running, 0, None, "computed for 16 ms of a turn of 31 ms"),
            (
                Cause::Running,
                0,
                Some(slowest_task(42, Some("regex"))),
                "computed for 16 ms of a turn of 31 ms, 28 ms by connection 42 (regex)",
            ),
            (
                Cause::Processor,
                0,
                Some(slowest_task(0, None)),
                "had no processor for 3 ms of a turn of 31 ms, 28 ms by connection",
            ),
            (
                Cause::Kernel,
                1,
                None,
                "was blocked in the kernel for 12 ms of a turn of 31 ms, one major page fault",
            ),
            (
                Cause::Kernel,
                2,
                Some(slowest_task(42, None)),
                "was blocked in the kernel for 12 ms of a turn of 31 ms, 28 ms by connection 42, 2 major page faults",
            ),
        ];
        for (cause, major_faults, slowest_task, expected) in cases {
            let parts = TurnParts::new(ms(16), ms(3), ms(12));
            let stall = Stall { index: 3, turn: ms(31), cause, parts, major_faults, slowest_task };
            assert_eq!(stall.to_string(), format!("event loop of worker 3 {expected}"));
        }
    }
}
