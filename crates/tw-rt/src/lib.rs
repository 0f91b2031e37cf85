//! The loop under every worker: one OS thread with one tokio current-thread runtime, its clock, timers, sockets and
//! stall watch; beside it what a process needs to run loops: signals, limits, CPU affinity, the loop guard and the filter
//! of the process.
//!
//! ```text
//! wake-up ─► clock::turn ─► tasks, each a Watched future ─► park        one turn; its length goes to a histogram,
//!    ▲                                                        │         and a turn over `stall_threshold` is reported
//!    └──────────────── epoll_wait, timers ────────────────────┘         with the task and operation that took longest
//! ```

pub mod affinity;
mod busy;
pub mod clock;
pub mod confine;
mod deadline;
pub mod gate;
mod guard;
pub mod limits;
mod pulse;
pub mod signal;
mod stream;
pub mod task;
pub mod watch;
mod worker;

pub use busy::Busy;
pub use deadline::{Deadline, Elapsed};
pub use guard::LoopGuard;
pub use pulse::{Look, Pulse};
pub use stream::{Addr, FirstBytes, Stream};
pub use task::{TaskGroup, requeue, spawn_local, yield_now};
pub use watch::{Stall, Subject};
pub use worker::{Inbox, Longest, LoopStats, OnStall, Worker, WorkerOptions};

#[cfg(test)]
mod testing {
    use std::future::Future;
    use std::sync::mpsc;

    use super::{Worker, WorkerOptions};

    /// Runs `main` as the main future of a fresh loop and returns its output.
    pub(crate) fn on_loop<T, Fut>(main: impl FnOnce() -> Fut + Send + 'static) -> T
    where
        T: Send + 'static,
        Fut: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        let worker = Worker::<()>::start(WorkerOptions::new(0), |_| async move {
            let _ = sender.send(main().await);
        })
        .unwrap();
        worker.join().unwrap();
        receiver.recv().unwrap()
    }
}
