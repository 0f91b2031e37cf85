//! The loop under every worker: one OS thread with one tokio current-thread runtime, its clock, timers, sockets and
//! stall watch; beside it what a process needs to run loops: signals, limits, CPU affinity and the loop guard.
//!
//! ```text
//! wake-up ─► clock::turn ─► tasks, each a Watched future ─► park        one turn; its length goes to a histogram,
//!    ▲                                                        │         and a turn over `stall_threshold` is reported
//!    └──────────────── epoll_wait, timers ────────────────────┘         with the task and operation that took longest
//! ```

pub mod clock;
mod deadline;
mod stream;
pub mod task;
pub mod watch;
mod worker;

pub use deadline::{Deadline, Elapsed};
pub use stream::{Addr, Stream};
pub use task::{TaskGroup, spawn_local, yield_now};
pub use watch::{Stall, Subject};
pub use worker::{Inbox, LoopStats, Worker, WorkerOptions};
