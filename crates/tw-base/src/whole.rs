//! A lock around what several loops use. Nobody goes on with what a panic left half changed.
//!
//! ```text
//! lock ─► change ─► unlock
//!            └─ panic ─► the process is broken ─► who wants any such lock stands still ─► the process is ended
//! ```
//!
//! A request that panics takes nothing with it but itself, because nobody sees its memory again. What lies behind a lock is
//! seen again, by every loop. So a panic that holds one ends the process, and its successor begins with whole tables.
//!
//! Data that only the tasks of one loop share needs no lock, and the same care: a [`WholeCell`](crate::WholeCell).
//!
//! The program sets the end of the process by [`when_broken`]. Without that, as in tests, the next thread to lock panics as well.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, WaitTimeoutResult};
use std::thread;
use std::time::Duration;

/// True once a panic has left shared data half changed.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// Function that is called then.
static WHEN_BROKEN: OnceLock<Box<dyn Fn(&'static str) + Send + Sync>> = OnceLock::new();

/// From now on a panic that holds a [`Whole`] breaks the process. `tell` is then called with the type of what it held, on
/// the thread that panics: it may neither wait nor panic, and has to see to it that the process ends. Once per process.
pub fn when_broken(tell: impl Fn(&'static str) + Send + Sync + 'static) {
    // The first one stays: there is one process to end.
    let _ = WHEN_BROKEN.set(Box::new(tell));
}

/// A value that several threads change, one at a time.
#[derive(Default)]
pub struct Whole<T>(Mutex<T>);

/// The value, for the holder of the lock.
pub struct WholeGuard<'a, T> {
    // Dropped first: the process is broken before anybody else has the lock.
    _watch: Watch,
    value: MutexGuard<'a, T>,
}

impl<T> Whole<T> {
    /// Puts a value behind a lock.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for the lock; for good, if a panic has left anything shared half changed.
    pub fn lock(&self) -> WholeGuard<'_, T> {
        guard(self.0.lock().unwrap_or_else(refuse))
    }

    /// The lock, if nobody holds it and no panic has left this value half changed. Not even a broken process waits here:
    /// for what its last words go through.
    pub fn try_lock_if_whole(&self) -> Option<WholeGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(value) => Some(WholeGuard::new(value)),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the lock; `None` if a panic has left this value half changed. Does not look at the rest of the process.
    pub fn lock_if_whole(&self) -> Option<WholeGuard<'_, T>> {
        self.0.lock().ok().map(WholeGuard::new)
    }
}

impl<'a, T> WholeGuard<'a, T> {
    fn new(value: MutexGuard<'a, T>) -> Self {
        let watch = Watch { what: std::any::type_name::<T>(), was_panicking: thread::panicking() };
        Self { _watch: watch, value }
    }

    /// Gives the lock up until `condvar` is notified, as [`Condvar::wait`] does. No method: the value may have one.
    #[must_use]
    pub fn wait(this: Self, condvar: &Condvar) -> Self {
        let Self { _watch: watch, value } = this;
        let Self { value, .. } = guard(condvar.wait(value).unwrap_or_else(refuse));
        Self { _watch: watch, value }
    }
}

impl<T> WholeGuard<'_, T> {
    /// As [`wait`](Self::wait), for at most `span`; whether it is over comes with the lock.
    #[must_use]
    pub fn wait_for(this: Self, condvar: &Condvar, span: Duration) -> (Self, WaitTimeoutResult) {
        let Self { _watch: watch, value } = this;
        let waited = condvar.wait_timeout(value, span);
        let (value, outcome) = waited.unwrap_or_else(refuse);
        let Self { value, .. } = guard(value);
        (Self { _watch: watch, value }, outcome)
    }
}

impl<T> Deref for WholeGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for WholeGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for Whole<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The value for who waited for it, unless the process has broken meanwhile.
fn guard<T>(value: MutexGuard<'_, T>) -> WholeGuard<'_, T> {
    if IS_BROKEN.load(SeqCst) { refuse(PoisonError::new(value)) } else { WholeGuard::new(value) }
}

/// The end of the way for a thread that wants a lock in a broken process. What it has locked is let go.
#[cold]
fn refuse<G, R>(error: PoisonError<G>) -> R {
    drop(error);
    stand_still()
}

/// Stops the calling thread in a broken process, which is being ended.
#[cold]
pub(crate) fn stand_still() -> ! {
    assert!(WHEN_BROKEN.get().is_some(), "a panic has left shared data half changed");
    loop {
        thread::park();
    }
}

/// A panic left a value of this type half changed: who ends the process is told, once.
#[cold]
pub(crate) fn break_process(what: &'static str) {
    if let Some(tell) = WHEN_BROKEN.get()
        && !IS_BROKEN.swap(true, SeqCst)
    {
        tell(what);
    }
}

/// Sees a panic that holds the lock.
struct Watch {
    what: &'static str,
    /// A destructor may lock while its thread panics for another reason, and leave the value whole.
    was_panicking: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.was_panicking && thread::panicking() {
            break_process(self.what);
        }
    }
}
