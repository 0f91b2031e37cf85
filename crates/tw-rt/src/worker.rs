//! A worker: one OS thread that runs one loop until its main future ends.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::mpsc as start;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc;
use tw_base::{Counter, Histogram};

use crate::watch::{self, Stall, Subject, Watched};

/// Called on the loop thread after a turn over the threshold. Must not wait.
pub type OnStall = Arc<dyn Fn(&Stall) + Send + Sync>;

/// How a worker is to run.
#[derive(Clone)]
pub struct WorkerOptions {
    /// Number of the worker, from 0.
    pub index: usize,
    /// Name of the thread as `top -H` shows it; the kernel keeps 15 bytes.
    pub name: String,
    /// A longer turn is counted as a stall and reported. Default 10 ms.
    pub stall_threshold: Duration,
    /// Who is told about stalls.
    pub on_stall: Option<OnStall>,
}

impl WorkerOptions {
    /// Worker `index` with every default.
    pub fn new(index: usize) -> Self {
        Self {
            index,
            name: format!("worker-{index}"),
            stall_threshold: Duration::from_millis(10),
            on_stall: None,
        }
    }
}

/// What a loop counts; written by its thread, read by any.
#[derive(Debug, Default)]
pub struct LoopStats {
    /// Length of every turn: `event_loop_blocked_seconds`.
    pub blocked: Histogram,
    /// Turns longer than the threshold.
    pub stalls: Counter,
}

/// Where the main future of a loop gets its messages.
#[derive(Debug)]
pub struct Inbox<M>(mpsc::UnboundedReceiver<M>);

impl<M> Inbox<M> {
    /// The next message, oldest first; `None` once the [`Worker`] is gone and no more can come.
    pub async fn recv(&mut self) -> Option<M> {
        self.0.recv().await
    }
}

/// A running worker. Dropping it closes the inbox, which asks the main future to end; [`join`](Self::join) waits.
pub struct Worker<M> {
    index: usize,
    inbox: mpsc::UnboundedSender<M>,
    stats: Arc<LoopStats>,
    thread: JoinHandle<()>,
}

impl<M: Send + 'static> Worker<M> {
    /// Starts a thread with a loop and returns when the loop is built.
    ///
    /// `main` is called on that thread, inside the loop; its future is the loop's life: when it ends, every other
    /// task is dropped and the thread ends.
    ///
    /// Errors: the thread or the loop's descriptors could not be made.
    pub fn start<F, Fut>(options: WorkerOptions, main: F) -> io::Result<Self>
    where
        F: FnOnce(Inbox<M>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let (inbox, messages) = mpsc::unbounded_channel();
        let stats = Arc::new(LoopStats::default());
        let (index, name) = (options.index, options.name.clone());
        let (started, outcome) = start::sync_channel(1);
        let run = {
            let stats = Arc::clone(&stats);
            move || {
                let built = build(&options, stats);
                let runtime = match built {
                    Ok(runtime) => runtime,
                    Err(e) => {
                        let _ = started.send(Err(e));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                let _inside = runtime.enter();
                let main = pin!(Watched::new(Subject { kind: "main", id: 0 }, main(Inbox(messages))));
                let _ = main;
                let _ = runtime;
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run)?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Self { index, inbox, stats, thread }),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(io::Error::other("worker thread ended before its loop began")),
        }
    }

    /// Number of the worker.
    pub fn index(&self) -> usize {
        self.index
    }

    /// What the loop counts.
    pub fn stats(&self) -> &Arc<LoopStats> {
        &self.stats
    }

    /// Sends a message to the loop; gives it back when the loop has ended. Never waits.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.inbox.send(message).map_err(|e| e.0)
    }

    /// Whether the loop has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes the inbox and waits for the thread; the error is the panic that ended it.
    pub fn join(self) -> thread::Result<()> {
        drop(self.inbox);
        self.thread.join()
    }
}

fn build(options: &WorkerOptions, stats: Arc<LoopStats>) -> io::Result<LocalRuntime> {
    let _ = (options, stats);
    Builder::new_current_thread().enable_io().enable_time().build_local(LocalOptions::default())
}

impl<M> fmt::Debug for Worker<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}

#[allow(dead_code)]
fn _later(_: Pin<&mut ()>, _: Context<'_>, _: Poll<()>, _: Instant) {
    let _ = watch::end_turn;
}
