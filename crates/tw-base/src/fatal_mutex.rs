//! Mutex whose poisoning is fatal: a panic that holds it ends the process, so no thread uses half-changed data.
//!
//! ```text
//! lock ─► change ─► unlock
//!            └─ panic ─► the process is poisoned ─► threads that lock any such mutex stop ─► the process is ended
//! ```
//!
//! A panic in a request loses only that request, because its memory is never used again. Data behind a mutex is used
//! again, by every loop. So a panic that holds one ends the process, and its successor starts with consistent tables.
//!
//! Data that only the tasks of one loop share needs no mutex and the same care: see [`FatalCell`](crate::FatalCell).
//!
//! The program ends the process in [`on_poison`]. Without that, as in tests, the next thread to lock panics as well.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, WaitTimeoutResult};
use std::thread;
use std::time::Duration;

/// True once a panic has left shared data half changed.
static IS_POISONED: AtomicBool = AtomicBool::new(false);
/// Function that is called then.
static ON_POISON: OnceLock<Box<dyn Fn(&'static str) + Send + Sync>> = OnceLock::new();

/// Sets the function that is called when a panic holds a [`FatalMutex`], with the type of the value, on the panicking
/// thread. It may neither wait nor panic, and has to make the process end. Called once per process.
pub fn on_poison(report: impl Fn(&'static str) + Send + Sync + 'static) {
    // The first one stays: there is one process to end.
    let _ = ON_POISON.set(Box::new(report));
}

/// Mutex whose poisoning ends the process.
#[derive(Default)]
pub struct FatalMutex<T>(Mutex<T>);

/// Guard of a locked [`FatalMutex`].
pub struct FatalMutexGuard<'a, T> {
    // Dropped first, so that the process counts as broken before another thread has the lock.
    _watch: Watch,
    value: MutexGuard<'a, T>,
}

impl<T> FatalMutex<T> {
    /// Creates a mutex.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Locks the mutex. Never returns if a panic has poisoned any of them.
    pub fn lock(&self) -> FatalMutexGuard<'_, T> {
        guard(self.0.lock().unwrap_or_else(refuse))
    }

    /// Locks the mutex if it is free and not poisoned. Does not wait in a poisoned process either: for what its last
    /// messages need.
    pub fn try_lock_if_unpoisoned(&self) -> Option<FatalMutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(value) => Some(FatalMutexGuard::new(value)),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the mutex; `None` if this one is poisoned. Ignores the state of the process.
    pub fn lock_if_unpoisoned(&self) -> Option<FatalMutexGuard<'_, T>> {
        self.0.lock().ok().map(FatalMutexGuard::new)
    }
}

impl<'a, T> FatalMutexGuard<'a, T> {
    fn new(value: MutexGuard<'a, T>) -> Self {
        let watch = Watch { what: std::any::type_name::<T>(), was_panicking: thread::panicking() };
        Self { _watch: watch, value }
    }

    /// Releases the lock until `condvar` is notified, as [`Condvar::wait`] does. Not a method, because the value may
    /// have one.
    #[must_use]
    pub fn wait(this: Self, condvar: &Condvar) -> Self {
        let Self { _watch: watch, value } = this;
        let Self { value, .. } = guard(condvar.wait(value).unwrap_or_else(refuse));
        Self { _watch: watch, value }
    }
}

impl<T> FatalMutexGuard<'_, T> {
    /// Waits like [`wait`](Self::wait), for at most `span`, and also returns if that is over.
    #[must_use]
    pub fn wait_for(this: Self, condvar: &Condvar, span: Duration) -> (Self, WaitTimeoutResult) {
        let Self { _watch: watch, value } = this;
        let waited = condvar.wait_timeout(value, span);
        let (value, outcome) = waited.unwrap_or_else(refuse);
        let Self { value, .. } = guard(value);
        (Self { _watch: watch, value }, outcome)
    }
}

impl<T> Deref for FatalMutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for FatalMutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: fmt::Debug> fmt::Debug for FatalMutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Guard after a wait, unless the process has been poisoned meanwhile.
fn guard<T>(value: MutexGuard<'_, T>) -> FatalMutexGuard<'_, T> {
    if IS_POISONED.load(SeqCst) { refuse(PoisonError::new(value)) } else { FatalMutexGuard::new(value) }
}

/// Stops a thread that locks in a poisoned process, and releases what it has locked.
#[cold]
fn refuse<G, R>(error: PoisonError<G>) -> R {
    drop(error);
    stand_still()
}

/// Stops the calling thread in a poisoned process, which is being ended.
#[cold]
pub(crate) fn stand_still() -> ! {
    assert!(ON_POISON.get().is_some(), "a panic has left shared data half changed");
    loop {
        thread::park();
    }
}

/// Reports, once, that a panic left a value of this type half changed.
#[cold]
pub(crate) fn break_process(what: &'static str) {
    if let Some(report) = ON_POISON.get()
        && !IS_POISONED.swap(true, SeqCst)
    {
        report(what);
    }
}

/// Detects a panic that holds the lock.
struct Watch {
    what: &'static str,
    /// True if the thread was panicking before: a destructor may lock then, and leave the value consistent.
    was_panicking: bool,
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.was_panicking && thread::panicking() {
            break_process(self.what);
        }
    }
}
