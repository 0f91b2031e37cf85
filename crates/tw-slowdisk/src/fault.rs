//! Faults of disk operations: which operations they hit, and when they are lifted.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use tw_base::Rng;
use tw_base::fault::FaultOp;

use crate::settings::Settings;

/// Operations of a file system, as the kernel requests them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// One name in one directory, on the way to a file.
    Lookup,
    /// Attributes.
    Getattr,
    /// Truncation, times, permissions.
    Setattr,
    /// Opening a file that exists.
    Open,
    /// Data.
    Read,
    /// Data.
    Write,
    /// Creating and opening a file.
    Create,
    /// Creating a directory.
    Mkdir,
    /// Removing a name of a file.
    Unlink,
    /// Removing a directory.
    Rmdir,
    /// Moving a name.
    Rename,
    /// A second name, or a symbolic link.
    Link,
    /// Target of a symbolic link.
    Readlink,
    /// Making data durable.
    Fsync,
    /// Each close of a descriptor.
    Flush,
    /// Listing a directory.
    Readdir,
    /// Free space.
    Statfs,
}

const OP_COUNT: usize = Op::Statfs as usize + 1;

impl Op {
    /// Every operation, in the order of the counts.
    const ALL: [Self; OP_COUNT] = [
        Self::Lookup,
        Self::Getattr,
        Self::Setattr,
        Self::Open,
        Self::Read,
        Self::Write,
        Self::Create,
        Self::Mkdir,
        Self::Unlink,
        Self::Rmdir,
        Self::Rename,
        Self::Link,
        Self::Readlink,
        Self::Fsync,
        Self::Flush,
        Self::Readdir,
        Self::Statfs,
    ];

    /// Kind that settings apply to; a close has none.
    const fn kind(self) -> Option<FaultOp> {
        Some(match self {
            Self::Lookup | Self::Getattr | Self::Readlink | Self::Statfs => FaultOp::Stat,
            Self::Open => FaultOp::Open,
            Self::Read => FaultOp::Read,
            Self::Write | Self::Setattr => FaultOp::Write,
            Self::Create | Self::Mkdir | Self::Link => FaultOp::Create,
            Self::Unlink | Self::Rmdir => FaultOp::Unlink,
            Self::Rename => FaultOp::Rename,
            Self::Fsync => FaultOp::Fsync,
            Self::Readdir => FaultOp::Readdir,
            Self::Flush => return None,
        })
    }
}

/// Effect on an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Waits until the fault is lifted, then continues normally.
    Stall,
    /// Waits for this long, or until the fault is lifted, then continues normally.
    Delay(Duration),
    /// Fails at once.
    Error(Errno),
}

/// Operations that a fault applies to; it starts with [`Scope::inject`].
#[derive(Debug)]
#[must_use]
pub struct Scope {
    faults: Arc<Faults>,
    op: Op,
    name: Option<OsString>,
    skip: u64,
}

/// A fault in force. Dropping it lifts it.
#[derive(Debug)]
#[must_use = "a fault that is dropped is lifted"]
pub struct Injected {
    faults: Arc<Faults>,
    rule: Arc<Rule>,
}

/// All faults in force, the latest last, the settings, and the counts of operations.
#[derive(Debug)]
pub(crate) struct Faults {
    rules: Mutex<Vec<Arc<Rule>>>,
    chances: Mutex<Chances>,
    counts: [AtomicU64; OP_COUNT],
    hits: [[AtomicU64; 2]; FaultOp::COUNT],
}

/// Settings with the state that belongs to them.
#[derive(Debug)]
struct Chances {
    settings: Settings,
    rng: Rng,
    gate: Arc<Gate>,
}

/// One fault, shared by the list, the test and the operations it holds.
#[derive(Debug)]
struct Rule {
    op: Op,
    name: Option<OsString>,
    fault: Fault,
    state: Mutex<RuleState>,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct RuleState {
    skip: u64,
    hits: u64,
}

/// Point at which operations wait until it is lifted.
#[derive(Debug, Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    lifted: bool,
    waiting: usize,
}

/// Decision about an operation.
pub(crate) enum Verdict {
    Go,
    /// Waits, and then goes on, or fails.
    Wait(HeldOperation, Option<Errno>),
    Fail(Errno),
}

/// One operation that waits; it counts as waiting from the moment the disk has seen it.
pub(crate) struct HeldOperation {
    gate: Arc<Gate>,
    span: Option<Duration>,
}

/// Operations of one kind so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HitCount {
    pub(crate) op: FaultOp,
    pub(crate) all: u64,
    pub(crate) delayed: u64,
    pub(crate) failed: u64,
}

impl Scope {
    /// Only operations on a file, or a name, of this last path component.
    pub fn name(mut self, name: impl AsRef<OsStr>) -> Self {
        self.name = Some(name.as_ref().to_owned());
        self
    }

    /// Lets the first `count` matching operations pass.
    pub fn skip(mut self, count: u64) -> Self {
        self.skip = count;
        self
    }

    /// Puts the fault in force. Of several that match an operation, the latest counts.
    pub fn inject(self, fault: Fault) -> Injected {
        let state = RuleState { skip: self.skip, hits: 0 };
        let rule = Arc::new(Rule {
            op: self.op,
            name: self.name,
            fault,
            state: Mutex::new(state),
            gate: Arc::default(),
        });
        lock(&self.faults.rules).push(Arc::clone(&rule));
        Injected { faults: self.faults, rule }
    }
}

impl Injected {
    /// Number of operations that wait for the fault to be lifted.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.rule.gate.state).waiting
    }

    /// Number of operations that it has hit.
    #[must_use]
    pub fn hits(&self) -> u64 {
        lock(&self.rule.state).hits
    }

    /// Lifts the fault: waiting operations continue.
    pub fn lift(self) {
        drop(self);
    }
}

impl Drop for Injected {
    fn drop(&mut self) {
        lock(&self.faults.rules).retain(|rule| !Arc::ptr_eq(rule, &self.rule));
        self.rule.gate.lift();
    }
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            rules: Mutex::default(),
            chances: Mutex::new(Chances::new(Settings::default())),
            counts: [const { AtomicU64::new(0) }; OP_COUNT],
            hits: [const { [const { AtomicU64::new(0) }; 2] }; FaultOp::COUNT],
        }
    }
}

impl Chances {
    fn new(settings: Settings) -> Self {
        Self { rng: Rng::seeded(settings.seed), settings, gate: Arc::default() }
    }
}

impl Faults {
    pub(crate) fn on(self: &Arc<Self>, op: Op) -> Scope {
        Scope { faults: Arc::clone(self), op, name: None, skip: 0 }
    }

    pub(crate) fn count(&self, op: Op) -> u64 {
        self.counter(op).load(Ordering::Relaxed)
    }

    pub(crate) fn settings(&self) -> Settings {
        lock(&self.chances).settings.clone()
    }

    /// Puts settings in force; operations that wait because of those before go on.
    pub(crate) fn set(&self, settings: Settings) {
        let last = std::mem::replace(&mut *lock(&self.chances), Chances::new(settings));
        last.gate.lift();
    }

    pub(crate) fn lift_all(&self) {
        self.set(Settings::default());
        for rule in lock(&self.rules).drain(..) {
            rule.gate.lift();
        }
    }

    /// Number of operations of each kind, and of those that settings have hit.
    pub(crate) fn hits(&self) -> Vec<HitCount> {
        let all = |op| {
            let of_kind = self.counts.iter().zip(Op::ALL).filter(|(_, known_op)| known_op.kind() == Some(op));
            of_kind.map(|(count, _)| count.load(Ordering::Relaxed)).sum()
        };
        FaultOp::ALL
            .into_iter()
            .zip(&self.hits)
            .map(|(op, [delayed, failed])| HitCount {
                op,
                all: all(op),
                delayed: delayed.load(Ordering::Relaxed),
                failed: failed.load(Ordering::Relaxed),
            })
            .collect()
    }

    /// Counts an operation that has reached the disk, which has `used` bytes in files, and decides how it proceeds.
    pub(crate) fn apply(&self, op: Op, name: &OsStr, used: impl FnOnce() -> u64) -> Verdict {
        self.counter(op).fetch_add(1, Ordering::Relaxed);
        let rules = lock(&self.rules);
        if let Some(rule) = rules.iter().rev().find(|rule| rule.takes(op, name)) {
            return match rule.fault {
                Fault::Error(errno) => Verdict::Fail(errno),
                Fault::Stall => Verdict::Wait(Gate::enter(&rule.gate, None), None),
                Fault::Delay(span) => Verdict::Wait(Gate::enter(&rule.gate, Some(span)), None),
            };
        }
        drop(rules);
        op.kind().map_or(Verdict::Go, |kind| self.draw(kind, used))
    }

    fn draw(&self, op: FaultOp, used: impl FnOnce() -> u64) -> Verdict {
        let mut chances = lock(&self.chances);
        let Chances { settings, rng, gate } = &mut *chances;
        let (span, error) = settings.draw(op, used, rng);
        let [delayed, failed] = &self.hits[op.index()];
        failed.fetch_add(u64::from(error.is_some()), Ordering::Relaxed);
        if span.is_zero() {
            return error.map_or(Verdict::Go, Verdict::Fail);
        }
        delayed.fetch_add(1, Ordering::Relaxed);
        Verdict::Wait(Gate::enter(gate, Some(span)), error)
    }

    fn counter(&self, op: Op) -> &AtomicU64 {
        &self.counts[op as usize]
    }
}

impl Rule {
    /// Returns `true` if the fault hits the operation, and counts it.
    fn takes(&self, op: Op, name: &OsStr) -> bool {
        if self.op != op || self.name.as_ref().is_some_and(|n| n != name) {
            return false;
        }
        let mut state = lock(&self.state);
        if state.skip > 0 {
            state.skip -= 1;
            return false;
        }
        state.hits += 1;
        true
    }
}

impl Gate {
    fn enter(gate: &Arc<Self>, span: Option<Duration>) -> HeldOperation {
        lock(&gate.state).waiting += 1;
        HeldOperation { gate: Arc::clone(gate), span }
    }

    fn lift(&self) {
        lock(&self.state).lifted = true;
        self.changed.notify_all();
    }
}

impl HeldOperation {
    /// Blocks until the operation may go on.
    pub(crate) fn wait(self) {
        let Self { gate, span } = self;
        let state = lock(&gate.state);
        let mut state = match span {
            Some(span) => {
                let result = gate.changed.wait_timeout_while(state, span, |state| !state.lifted);
                result.unwrap_or_else(PoisonError::into_inner).0
            }
            None => {
                gate.changed.wait_while(state, |state| !state.lifted).unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.waiting -= 1;
    }
}

/// A panic elsewhere leaves these small states consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Go => "go",
            Verdict::Wait(..) => "wait",
            Verdict::Fail(_) => "fail",
        }
    }

    #[test]
    fn operation_name_and_count_select_the_faulty_operations() {
        let faults = Arc::new(Faults::default());
        let _eio = faults.on(Op::Read).name("a").skip(1).inject(Fault::Error(Errno::IO));
        let stall = faults.on(Op::Open).inject(Fault::Stall);
        for (op, name, expected) in [
            (Op::Read, "a", "go"),
            (Op::Read, "a", "fail"),
            (Op::Read, "b", "go"),
            (Op::Write, "a", "go"),
            (Op::Open, "b", "wait"),
        ] {
            assert_eq!(word(faults.apply(op, OsStr::new(name), || 0)), expected, "{op:?} {name}");
        }
        assert_eq!((stall.waiting(), stall.hits()), (1, 1));
        assert_eq!(faults.count(Op::Read), 3);
    }

    #[test]
    fn latest_fault_wins_and_lifted_ones_are_ignored() {
        let faults = Arc::new(Faults::default());
        let first = faults.on(Op::Open).inject(Fault::Error(Errno::IO));
        let second = faults.on(Op::Open).inject(Fault::Delay(Duration::from_secs(60)));
        let Verdict::Wait(held_operation, None) = faults.apply(Op::Open, OsStr::new("f"), || 0) else {
            panic!("the second holds")
        };
        second.lift();
        held_operation.wait();
        assert_eq!(word(faults.apply(Op::Open, OsStr::new("f"), || 0)), "fail");
        drop(first);
        assert_eq!(word(faults.apply(Op::Open, OsStr::new("f"), || 0)), "go");
    }

    #[test]
    fn injected_faults_come_before_settings() {
        let faults = Arc::new(Faults::default());
        let mut settings = Settings::default();
        settings.set("read", "1m").unwrap();
        settings.set("eio", "100%").unwrap();
        faults.set(settings);
        let name = OsStr::new("f");
        let Verdict::Wait(held_operation, Some(Errno::IO)) = faults.apply(Op::Read, name, || 0) else {
            panic!("it waits")
        };
        let stall = faults.on(Op::Read).inject(Fault::Error(Errno::ROFS));
        assert!(matches!(faults.apply(Op::Read, name, || 0), Verdict::Fail(Errno::ROFS)));
        assert!(matches!(faults.apply(Op::Getattr, name, || 0), Verdict::Fail(Errno::IO)));
        assert!(matches!(faults.apply(Op::Flush, name, || 0), Verdict::Go));
        drop(stall);
        // New settings release operations that wait.
        faults.set(Settings::default());
        held_operation.wait();
        let read = faults.hits().into_iter().find(|hits| hits.op == FaultOp::Read).unwrap();
        assert_eq!((read.all, read.delayed, read.failed), (2, 1, 1));
    }
}
