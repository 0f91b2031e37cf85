//! Threads of a pool: how many there are, and which may be started.

use super::shared::State;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread::JoinHandle;

/// A thread, to be joined.
pub(super) struct Thread {
    pub(super) number: u32,
    pub(super) handle: JoinHandle<()>,
}

/// Thread that counts as live and is about to be started.
pub(super) struct PendingThread {
    pub(super) number: u32,
    pub(super) steps: Arc<AtomicU32>,
}

impl State {
    /// Returns true if the next job would find no idle thread although there may be more.
    pub(super) fn needs_thread(&self) -> bool {
        self.idle.is_empty() && self.live < self.queue.slots() + self.queue.replaced() && !self.is_stopping
    }

    /// Counts a thread that is about to be started.
    pub(super) fn announce(&mut self) -> PendingThread {
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.steps.push(Arc::default());
            self.steps.len() as u32 - 1
        });
        self.live += 1;
        PendingThread { number, steps: self.steps[number as usize].clone() }
    }

    /// Notes whether the thread was started.
    pub(super) fn settle(
        &mut self,
        pending_thread: PendingThread,
        started: std::io::Result<JoinHandle<()>>,
    ) -> Result<(), Errno> {
        match started {
            Ok(handle) => {
                self.threads.push(Thread { number: pending_thread.number, handle });
                Ok(())
            }
            Err(error) => {
                self.live -= 1;
                self.free_numbers.push(pending_thread.number);
                Err(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))
            }
        }
    }

    /// Takes the slots without a thread away, because there will be none: a job must never be started for a thread that does not
    /// exist.
    pub(super) fn limit_slots(&mut self) {
        let live = self.live.saturating_sub(self.queue.replaced()).max(1);
        let max_waiting = self.queue.max_waiting();
        let device = self.queue.device_share();
        self.queue.resize(live, max_waiting, Some(device));
    }
}
