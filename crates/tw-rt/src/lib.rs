//! The loop: one OS thread with one tokio current-thread runtime, its clock, timers, sockets and
//! stall watch; beside it what a process needs to run loops: signals, limits, CPU affinity, the loop guard and the filter
//! of the process.
//!
//! ```text
//! wake-up ─► clock::turn ─► tasks, each a Watched future ─► park        one turn; its length goes to a histogram,
//!    ▲                                                        │         and a turn over `stall_threshold` is reported
//!    └──────────────── epoll_wait, timers ────────────────────┘         with its cause, and who took longest
//! ```

mod activity;
pub mod affinity;
pub mod available_memory;
mod busy;
pub mod clock;
pub mod confine;
mod datagram;
mod deadline;
pub mod gate;
mod guard;
pub mod limits;
mod loop_thread;
mod memory_release;
pub mod signal;
mod socket;
pub mod task;
mod task_set;
pub mod time;
mod timer_wheel;
mod timers;
mod turn_parts;
pub mod watch;

pub use activity::{ActivitySnapshot, LoopActivity};
pub use busy::BusyTime;
pub use datagram::{DatagramPeers, DatagramSender, DatagramSocket, SendOutcome};
pub use deadline::{Deadline, Elapsed};
pub use guard::{LoopGuard, SendFile};
pub use loop_thread::{Inbox, LoopOptions, LoopStats, LoopThread, MaxDuration, OnStall, PartStats};
pub use memory_release::{MemoryRelease, on_memory_release};
pub use socket::{FirstBytes, Socket};
pub use task::{TaskGroup, requeue, spawn_local, yield_now};
pub use task_set::{Panicked, TaskSet};
pub use turn_parts::{Cause, TurnParts};
/// Messages of datagram sockets.
pub use tw_sys::datagram::{BATCH, OutgoingMessage, ReceiveBatch, ReceivedMessage};
/// The allocator that guarded loops need: glibc's opens a file when it shrinks a heap, on whichever thread that is.
pub use tw_sys::heap::{CountingHeap, Heap, Measured, purge, release_unused};
pub use tw_sys::secret;
pub use watch::{Stall, Subject};

#[cfg(test)]
mod testing {
    use std::future::Future;
    use std::sync::mpsc;

    use super::{LoopOptions, LoopThread};

    /// Runs `main` as the main future of a fresh loop and returns its output.
    pub(crate) fn on_loop<T, Fut>(main: impl FnOnce() -> Fut + Send + 'static) -> T
    where
        T: Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        let thread = LoopThread::<()>::start(LoopOptions::new(0), |_| async move {
            let _ = sender.send(main().await);
        })
        .unwrap();
        thread.join().unwrap();
        receiver.recv().unwrap()
    }
}
