//! Watchdog of the loops: finds those that stand in one turn for too long.
//!
//! Time is counted in checks. A check that comes late, because the whole process was stopped or the machine slept,
//! counts as little more than one in time: the loops could not turn either.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tw_core::process::LoopWatchdog;
use tw_rt::{LoopStats, Subject};

/// Looks in the time after which a loop hangs.
const LOOKS: u32 = 8;
/// The longest time between two looks.
const LOOK_MAX: Duration = Duration::from_secs(1);
/// Default of the longest time that a loop may stand still.
const LATE: Duration = Duration::from_secs(10);

/// The loops, as they were at the last look.
pub(super) struct LoopChecks {
    loops: Vec<LoopState>,
    settings: Option<LoopWatchdog>,
    looked: Instant,
}

struct LoopState {
    index: usize,
    stats: Arc<LoopStats>,
    turn: Option<u64>,
    /// Time that it has stood still in this turn.
    stood: Duration,
    is_reported: bool,
}

/// A loop that hangs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HangingLoop {
    /// Number of the worker.
    pub(super) index: usize,
    /// The kernel's number of its thread.
    pub(super) thread: i32,
    /// Time that it has stood still, to the precision of checks.
    pub(super) stood: Duration,
    /// Subject of its task, such as a connection.
    pub(super) subject: Option<Subject>,
    pub(super) operation: Option<&'static str>,
}

impl LoopChecks {
    /// No loops yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { loops: Vec::new(), settings: None, looked: now }
    }

    /// Hanging is what these settings say from now on.
    pub(super) fn set(&mut self, settings: Option<LoopWatchdog>) {
        self.settings = settings;
    }

    /// Action on a loop that hangs.
    pub(super) fn settings(&self) -> Option<LoopWatchdog> {
        self.settings
    }

    pub(super) fn add(&mut self, index: usize, stats: Arc<LoopStats>) {
        self.loops.push(LoopState { index, stats, turn: None, stood: Duration::ZERO, is_reported: false });
    }

    pub(super) fn remove(&mut self, stats: &Arc<LoopStats>) {
        self.loops.retain(|loop_state| !Arc::ptr_eq(&loop_state.stats, stats));
    }

    /// Time of the next check.
    pub(super) fn next(&self) -> Instant {
        self.looked + self.every()
    }

    fn every(&self) -> Duration {
        (self.timeout() / LOOKS).min(LOOK_MAX)
    }

    fn timeout(&self) -> Duration {
        self.settings.map_or(LATE, |settings| settings.after)
    }

    /// Looks, and returns the loops that hang and have not been returned for this turn.
    pub(super) fn check(&mut self, now: Instant) -> Vec<HangingLoop> {
        let span = now.saturating_duration_since(self.looked).min(2 * self.every());
        self.looked = now;
        let after = self.settings.map(|settings| settings.after);
        let mut hanging = Vec::new();
        for loop_state in &mut self.loops {
            let look = loop_state.stats.activity.snapshot();
            if look.turn.is_none() || look.turn != loop_state.turn {
                (loop_state.turn, loop_state.stood, loop_state.is_reported) =
                    (look.turn, Duration::ZERO, false);
                continue;
            }
            loop_state.stood += span;
            if after.is_some_and(|after| loop_state.stood >= after) && !loop_state.is_reported {
                loop_state.is_reported = true;
                hanging.push(HangingLoop {
                    index: loop_state.index,
                    thread: look.thread,
                    stood: loop_state.stood,
                    subject: look.subject,
                    operation: look.operation,
                });
            }
        }
        hanging
    }

    /// Returns `true` if every loop has turned lately, or was idle, and the last check is recent.
    pub(super) fn are_turning(&self, now: Instant) -> bool {
        let timeout = self.timeout();
        now.saturating_duration_since(self.looked) < timeout.max(LATE)
            && self.loops.iter().all(|loop_state| loop_state.stood < timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use tw_core::process::HangAction;
    use tw_rt::{LoopOptions, LoopThread};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A loop that hangs until something is sent.
    fn hanging_loop() -> (LoopThread<()>, Sender<()>) {
        let (enter, entered) = channel();
        let (leave, left) = channel();
        let worker = LoopThread::start(LoopOptions::new(0), move |mut inbox| async move {
            tw_rt::watch::operation("a trap", || {
                enter.send(()).unwrap();
                left.recv().unwrap();
            });
            while inbox.recv().await.is_some() {}
        })
        .unwrap();
        entered.recv().unwrap();
        (worker, leave)
    }

    #[test]
    fn hanging_loop_is_reported_once_and_idle_loop_never() {
        let (worker, leave) = hanging_loop();
        let mut now = Instant::now();
        let mut looks = LoopChecks::new(now);
        looks.set(Some(LoopWatchdog { after: 4 * SECOND, then: HangAction::Report }));
        looks.add(3, worker.stats().clone());
        let mut hanging_loops = Vec::new();
        for _ in 0..20 {
            assert!(looks.next() > now);
            now = looks.next();
            hanging_loops.extend(looks.check(now));
        }
        assert_eq!(hanging_loops.len(), 1, "{hanging_loops:?}");
        assert_eq!((hanging_loops[0].index, hanging_loops[0].operation), (3, Some("a trap")));
        assert_eq!(hanging_loops[0].stood, 4 * SECOND);
        assert!(!looks.are_turning(now));

        leave.send(()).unwrap();
        while worker.stats().activity.snapshot().turn.is_some() {
            std::thread::yield_now();
        }
        for _ in 0..20 {
            now = looks.next();
            assert_eq!(looks.check(now), []);
            assert!(looks.are_turning(now));
        }
        assert!(!looks.are_turning(now + 60 * SECOND), "nobody has looked");
        looks.remove(worker.stats());
        assert!(looks.loops.is_empty());
    }

    #[test]
    fn time_without_a_running_process_does_not_count() {
        let (worker, leave) = hanging_loop();
        let mut now = Instant::now();
        let mut looks = LoopChecks::new(now);
        looks.set(Some(LoopWatchdog::DEFAULT));
        looks.add(0, worker.stats().clone());
        for _ in 0..3 {
            now += 3600 * SECOND;
            assert_eq!(looks.check(now), [], "the machine slept");
        }
        looks.set(None);
        for _ in 0..100 {
            now = looks.next();
            assert_eq!(looks.check(now), [], "loop_watchdog off");
        }
        assert!(!looks.are_turning(now));
        leave.send(()).unwrap();
    }
}
