//! Threads of a pool that wait for jobs, in a stack: the thread that became idle last is woken first.
//!
//! Its stack and memory are still in the processor's caches. Under a small load the other threads sleep on, so that they can give
//! back their memory.

use std::sync::{Arc, Condvar};

/// Idle threads, each with the condition variable on which it waits.
#[derive(Default)]
pub(crate) struct IdleThreads(Vec<Arc<Condvar>>);

/// A thread to wake, if one was idle.
#[must_use]
pub(crate) struct Idle(Option<Arc<Condvar>>);

impl IdleThreads {
    /// Returns true if no thread is idle.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a thread that begins to wait on this condition variable.
    pub(crate) fn add(&mut self, bell: &Arc<Condvar>) {
        self.0.push(bell.clone());
    }

    /// Removes a thread that has stopped waiting; `false` if it was taken.
    pub(crate) fn remove(&mut self, bell: &Arc<Condvar>) -> bool {
        let position = self.0.iter().rposition(|idle| Arc::ptr_eq(idle, bell));
        position.map(|at| self.0.remove(at)).is_some()
    }

    /// Takes the thread that became idle last. The caller wakes it, best without the lock.
    pub(crate) fn take(&mut self) -> Idle {
        Idle(self.0.pop())
    }

    /// Wakes all of them.
    pub(crate) fn wake_all(&mut self) {
        self.0.drain(..).for_each(|bell| bell.notify_one());
    }
}

impl Idle {
    /// No thread.
    pub(crate) const NONE: Self = Self(None);

    /// Wakes the thread.
    pub(crate) fn wake(self) {
        if let Some(bell) = self.0 {
            bell.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_idle_thread_is_taken_first() {
        let bells: [Arc<Condvar>; 3] = Default::default();
        let mut idle = IdleThreads::default();
        bells.iter().for_each(|bell| idle.add(bell));
        let is = |taken: Idle, bell: &Arc<Condvar>| taken.0.is_some_and(|taken| Arc::ptr_eq(&taken, bell));
        assert!(is(idle.take(), &bells[2]));
        assert!(!idle.remove(&bells[2]), "it was taken");
        assert!(idle.remove(&bells[0]));
        assert!(is(idle.take(), &bells[1]));
        assert!(idle.take().0.is_none());
    }
}
