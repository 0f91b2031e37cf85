//! Faults of disk operations: which operations they hit, and when they are lifted.

use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

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
    /// A second name.
    Link,
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

/// All faults in force, the latest last, and the counts of operations.
#[derive(Debug, Default)]
pub(super) struct Faults {
    rules: Mutex<Vec<Arc<Rule>>>,
    counts: [AtomicU64; OP_COUNT],
}

/// One fault, shared by the list, the test and the operations it holds.
#[derive(Debug)]
pub(super) struct Rule {
    op: Op,
    name: Option<OsString>,
    fault: Fault,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    lifted: bool,
    skip: u64,
    hits: u64,
    waiting: usize,
}

/// Decision about an operation.
pub(super) enum Verdict {
    Go,
    Wait(Held),
    Fail(Errno),
}

/// One operation that waits; it counts as waiting from the moment the disk has seen it.
pub(super) struct Held(Arc<Rule>);

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
        let state = State { skip: self.skip, ..State::default() };
        let rule = Arc::new(Rule {
            op: self.op,
            name: self.name,
            fault,
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        lock(&self.faults.rules).push(Arc::clone(&rule));
        Injected { faults: self.faults, rule }
    }
}

impl Injected {
    /// Number of operations that wait for the fault to be lifted.
    #[must_use]
    pub fn waiting(&self) -> usize {
        lock(&self.rule.state).waiting
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
        self.rule.lift();
    }
}

impl Faults {
    pub(super) fn on(self: &Arc<Self>, op: Op) -> Scope {
        Scope { faults: Arc::clone(self), op, name: None, skip: 0 }
    }

    pub(super) fn count(&self, op: Op) -> u64 {
        self.counter(op).load(Ordering::Relaxed)
    }

    pub(super) fn lift_all(&self) {
        for rule in lock(&self.rules).drain(..) {
            rule.lift();
        }
    }

    /// Counts an operation that has reached the disk and decides how it proceeds.
    pub(super) fn apply(&self, op: Op, name: &OsStr) -> Verdict {
        self.counter(op).fetch_add(1, Ordering::Relaxed);
        let rules = lock(&self.rules);
        let Some(rule) = rules.iter().rev().find(|rule| rule.takes(op, name)) else { return Verdict::Go };
        match rule.fault {
            Fault::Error(errno) => Verdict::Fail(errno),
            Fault::Stall | Fault::Delay(_) => {
                lock(&rule.state).waiting += 1;
                Verdict::Wait(Held(Arc::clone(rule)))
            }
        }
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

    fn lift(&self) {
        lock(&self.state).lifted = true;
        self.changed.notify_all();
    }
}

impl Held {
    /// Blocks until the operation may go on.
    pub(super) fn wait(self) {
        let Self(rule) = self;
        let state = lock(&rule.state);
        let mut state = match rule.fault {
            Fault::Delay(span) => {
                let result = rule.changed.wait_timeout_while(state, span, |state| !state.lifted);
                result.unwrap_or_else(PoisonError::into_inner).0
            }
            Fault::Stall | Fault::Error(_) => {
                rule.changed.wait_while(state, |state| !state.lifted).unwrap_or_else(PoisonError::into_inner)
            }
        };
        state.waiting -= 1;
    }
}

/// A panic elsewhere leaves these small states consistent.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(verdict: Verdict) -> &'static str {
        match verdict {
            Verdict::Go => "go",
            Verdict::Wait(_) => "wait",
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
            assert_eq!(word(faults.apply(op, OsStr::new(name))), expected, "{op:?} {name}");
        }
        assert_eq!((stall.waiting(), stall.hits()), (1, 1));
        assert_eq!(faults.count(Op::Read), 3);
    }

    #[test]
    fn latest_fault_wins_and_lifted_ones_are_ignored() {
        let faults = Arc::new(Faults::default());
        let first = faults.on(Op::Open).inject(Fault::Error(Errno::IO));
        let second = faults.on(Op::Open).inject(Fault::Delay(Duration::from_secs(60)));
        let Verdict::Wait(held) = faults.apply(Op::Open, OsStr::new("f")) else { panic!("the second holds") };
        second.lift();
        held.wait();
        assert_eq!(word(faults.apply(Op::Open, OsStr::new("f"))), "fail");
        drop(first);
        assert_eq!(word(faults.apply(Op::Open, OsStr::new("f"))), "go");
    }
}
