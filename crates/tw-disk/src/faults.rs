//! Faults of disk operations on purpose (`debug_disk_fault`), to rehearse a failing disk without one.
//!
//! A path with faults counts as a disk of its own, as if something was mounted there: it has a share and a queue of each pool, and
//! nothing on it is taken to be in memory, so that every operation on it is a job of a pool. The job delays the
//! operation, or makes it fail, before the kernel gets it. So a loop never meets a fault, and no code of a loop knows of
//! them: [`mounts`] has the paths among its mounts.
//!
//! Not covered: operations inline with `aio off`, and files that other threads write, such as logs.

use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tw_base::fault::{FaultOp, Probability};
use tw_base::{Counter, FatalMutex, FatalMutexGuard, Rng};

use crate::device::Device;
use crate::mounts;
use crate::op::Op;
use crate::pool::is_pool_thread;

/// Operations below a path that are delayed, or fail, on purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Absolute path of a directory or a file, without a slash at its end.
    pub path: Box<[u8]>,
    /// Kinds of operations that the rule applies to.
    pub ops: Box<[FaultOp]>,
    /// Time for which an operation waits, before it begins or fails.
    pub delay: Duration,
    /// Error that the operation returns.
    pub error: Option<Errno>,
    /// Share of the operations that are hit.
    pub rate: Probability,
}

/// Effect of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultEffect {
    /// The operation waited.
    Delay,
    /// The operation failed.
    Error,
}

/// Operations hit by faults since the start of the process, of one kind and effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultCount {
    /// Kind of the operations.
    pub op: FaultOp,
    /// Effect on them.
    pub effect: FaultEffect,
    /// Number of operations.
    pub count: u64,
}

/// Rules that are in force together.
struct Rules {
    rules: Vec<FaultRule>,
    rng: FatalMutex<Rng>,
    /// True once other rules are in force: operations that wait go on.
    is_over: FatalMutex<bool>,
    ended: Condvar,
}

/// True if there are rules: the one thing that jobs look at where there are none.
static IS_ON: AtomicBool = AtomicBool::new(false);
static RULES: RwLock<Option<Arc<Rules>>> = RwLock::new(None);
static DELAYS: [Counter; FaultOp::COUNT] = [const { Counter::new() }; FaultOp::COUNT];
static ERRORS: [Counter; FaultOp::COUNT] = [const { Counter::new() }; FaultOp::COUNT];

/// Puts these rules in force, in the place of those before. Operations that wait because of those go on. Files that are open stay
/// what they were: close them. Reads the mount table: not for a loop.
///
/// Returns true if they are others than before.
pub fn set_fault_rules(rules: &[FaultRule]) -> bool {
    let mut current = RULES.write().unwrap_or_else(PoisonError::into_inner);
    if current.as_ref().map_or(&[][..], |current| &current.rules) == rules {
        return false;
    }
    let next = Rules {
        rules: rules.to_vec(),
        rng: FatalMutex::new(Rng::seeded(0)),
        is_over: FatalMutex::new(false),
        ended: Condvar::new(),
    };
    let last = current.replace(Arc::new(next));
    IS_ON.store(!rules.is_empty(), Relaxed);
    drop(current);
    mounts::set_faulty(rules.iter().map(|rule| &*rule.path));
    if let Some(last) = last {
        *last.is_over.lock() = true;
        last.ended.notify_all();
    }
    true
}

/// Counts of the operations hit so far; empty as long as there was no rule.
pub fn fault_counts() -> Vec<FaultCount> {
    let counts = |effect, counters: &'static [Counter; FaultOp::COUNT]| {
        FaultOp::ALL.into_iter().zip(counters).map(move |(op, count)| FaultCount {
            op,
            effect,
            count: count.value(),
        })
    };
    let all: Vec<_> =
        counts(FaultEffect::Delay, &DELAYS).chain(counts(FaultEffect::Error, &ERRORS)).collect();
    let is_known = IS_ON.load(Relaxed) || all.iter().any(|count| count.count > 0);
    if is_known { all } else { Vec::new() }
}

/// The device in the place of the one that `path` is on, if the path has faults. Never waits.
pub(crate) fn device_of(path: &CStr) -> Option<&'static Device> {
    if !IS_ON.load(Relaxed) {
        return None;
    }
    mounts::device_of(path).filter(|device| device.is_faulty())
}

/// Applies faults to an operation at a path. May wait: jobs only.
pub(crate) fn at(op: Op, path: &CStr) -> Result<(), Errno> {
    match device_of(path) {
        Some(device) => apply(op, device),
        None => Ok(()),
    }
}

/// Applies faults to an operation on an open file of this device. May wait: jobs only.
pub(crate) fn on(op: Op, device: &'static Device) -> Result<(), Errno> {
    if device.is_faulty() { apply(op, device) } else { Ok(()) }
}

#[cold]
fn apply(op: Op, device: &'static Device) -> Result<(), Errno> {
    let rules = RULES.read().unwrap_or_else(PoisonError::into_inner).clone();
    let (Some(rules), Some(op), true) = (rules, kind_of(op), is_pool_thread()) else { return Ok(()) };
    let (delay, error) = rules.draw(op, device.faulty_path().unwrap_or_default());
    if !delay.is_zero() {
        DELAYS[op.index()].add(1);
        rules.wait(delay);
    }
    match error {
        Some(errno) => {
            ERRORS[op.index()].add(1);
            Err(errno)
        }
        None => Ok(()),
    }
}

impl Rules {
    /// Delay and error of one operation: the delays of all rules that hit it, and the first error.
    fn draw(&self, op: FaultOp, place: &[u8]) -> (Duration, Option<Errno>) {
        let mut rng = self.rng.lock();
        let mut drawn = (Duration::ZERO, None);
        for rule in &self.rules {
            if rule.ops.contains(&op) && mounts::is_below(place, &rule.path) && rule.rate.draw(&mut rng) {
                drawn.0 += rule.delay;
                drawn.1 = drawn.1.or(rule.error);
            }
        }
        drawn
    }

    fn wait(&self, delay: Duration) {
        let end = Instant::now() + delay;
        let mut is_over = self.is_over.lock();
        while !*is_over {
            let remaining = end.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                return;
            }
            is_over = FatalMutexGuard::wait_for(is_over, &self.ended, remaining).0;
        }
    }
}

/// Kind of an operation; `None` for those that no fault applies to, because they consist of others or need no disk.
const fn kind_of(op: Op) -> Option<FaultOp> {
    Some(match op {
        Op::Open => FaultOp::Open,
        Op::Stat | Op::StatLink | Op::Fstat | Op::Space | Op::Readlink | Op::Realpath => FaultOp::Stat,
        Op::Read | Op::Sendfile => FaultOp::Read,
        Op::Write | Op::SetTimes | Op::SetMode | Op::Truncate => FaultOp::Write,
        Op::Create | Op::Mkdir | Op::Link => FaultOp::Create,
        Op::Rename => FaultOp::Rename,
        Op::Unlink | Op::Rmdir => FaultOp::Unlink,
        Op::Fsync | Op::WriteBack => FaultOp::Fsync,
        Op::List => FaultOp::Readdir,
        Op::Lock | Op::Copy | Op::Close | Op::Run => return None,
    })
}
