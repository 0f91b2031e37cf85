//! An event loop: one OS thread that runs one loop until its main future ends.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc as start;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc;
use tw_base::{Counter, Histogram};

use crate::activity::LoopActivity;
use crate::busy::BusyTime;
use crate::clock::{Reading, nanoseconds};
use crate::guard::{LoopGuard, SendFile};
use crate::timers::{self, TimerService};
use crate::turn_parts::{self, Cause};
use crate::watch::{self, Stall, Subject, Watched};

/// Tasks between two looks for events on a busy loop. From 8 to 100000 it costs the same; the fewer, the shorter a turn
/// in which many connections each send a buffer of a large file.
const EVENT_INTERVAL: u32 = 32;

/// Called on the loop thread after a turn over the threshold. Must not wait.
pub type OnStall = Arc<dyn Fn(&Stall) + Send + Sync>;

/// Options of a loop.
#[derive(Clone)]
pub struct LoopOptions {
    /// Number of the loop, from 0.
    pub index: usize,
    /// Name of the thread as `top -H` shows it; the kernel keeps 15 bytes.
    pub name: String,
    /// Reaction to a system call that may wait.
    pub guard: LoopGuard,
    /// Use of `sendfile` that the guard allows.
    pub send_file: SendFile,
    /// A longer turn is counted as a stall and reported. Default 10 ms.
    pub stall_threshold: Duration,
    /// Receiver of stall reports.
    pub on_stall: Option<OnStall>,
}

impl LoopOptions {
    /// LoopThread `index` with every default.
    pub fn new(index: usize) -> Self {
        Self {
            index,
            name: format!("loop-{index}"),
            guard: LoopGuard::Off,
            send_file: SendFile::Never,
            stall_threshold: Duration::from_millis(10),
            on_stall: None,
        }
    }
}

/// Statistics of a loop; written by its thread, read by any.
#[derive(Debug, Default)]
pub struct LoopStats {
    /// Length of every turn: `event_loop_blocked_seconds`.
    pub blocked: Histogram,
    /// The longest turn so far.
    pub longest: MaxDuration,
    /// Statistics of the parts of turns, by the number of [`Cause`].
    parts: [PartStats; Cause::ALL.len()],
    /// Pages that the loop had to wait for a disk for: code that was not in memory, or data that was swapped out.
    pub major_faults: Counter,
    /// Current activity.
    pub activity: LoopActivity,
    /// Time in turns.
    pub busy: BusyTime,
}

/// Statistics of one part of all turns.
#[derive(Debug, Default)]
pub struct PartStats {
    /// Length of the part in every turn.
    pub spans: Histogram,
    /// Turns longer than the threshold because of it.
    pub stalls: Counter,
}

impl LoopStats {
    /// Statistics of one part of its turns.
    pub fn part(&self, cause: Cause) -> &PartStats {
        &self.parts[cause as usize]
    }
}

/// The longest of many spans; written by one thread, read by any.
#[derive(Debug, Default)]
pub struct MaxDuration(AtomicU64);

impl MaxDuration {
    /// Takes a span into account. Only the thread it belongs to may: it costs two plain memory accesses.
    fn take(&self, ns: u64) {
        if ns > self.ns() {
            self.0.store(ns, Relaxed);
        }
    }

    /// Longest time in nanoseconds; 0 before the first.
    pub fn ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Receiver of messages for the main future of a loop.
#[derive(Debug)]
pub struct Inbox<M> {
    messages: mpsc::UnboundedReceiver<M>,
    stats: Arc<LoopStats>,
}

impl<M> Inbox<M> {
    /// The next message, oldest first; `None` once the [`LoopThread`] is gone and no more can come.
    pub async fn recv(&mut self) -> Option<M> {
        self.messages.recv().await
    }

    /// Statistics of the loop.
    pub fn stats(&self) -> &Arc<LoopStats> {
        &self.stats
    }
}

/// A running loop. Dropping it closes the inbox, which asks the main future to end; [`join`](Self::join) waits.
pub struct LoopThread<M> {
    index: usize,
    inbox: mpsc::UnboundedSender<M>,
    stats: Arc<LoopStats>,
    thread: JoinHandle<()>,
}

impl<M: Send + 'static> LoopThread<M> {
    /// Starts a thread with a loop and returns when the loop is built.
    ///
    /// `main` is called on that thread, inside the loop but before the guard is on; it must not wait for this
    /// thread's starter. Its future is the loop's life: when it ends, every other task is dropped and the thread
    /// ends.
    ///
    /// Errors: the thread, the loop's descriptors or the guard could not be made, or `main` panicked.
    pub fn start<F, Fut>(options: LoopOptions, main: F) -> io::Result<Self>
    where
        F: FnOnce(Inbox<M>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        Self::start_until(options, (), main)
    }

    /// Starts a loop, see [`start`](Self::start). `end` is dropped on its thread when nothing of the loop is left.
    pub fn start_until<E, F, Fut>(options: LoopOptions, end: E, main: F) -> io::Result<Self>
    where
        E: Send + 'static,
        F: FnOnce(Inbox<M>) -> Fut + Send + 'static,
        Fut: Future<Output = ()> + 'static,
    {
        let (inbox, messages) = mpsc::unbounded_channel();
        let stats = Arc::new(LoopStats::default());
        let index = options.index;
        let name = options.name.clone();
        let (started, outcome) = start::sync_channel(1);
        let filter = options.guard.prepare(options.send_file)?;
        let turns = Turns { options, stats: Arc::clone(&stats) };
        let inbox_stats = Arc::clone(&stats);
        // The receiver waits for the outcome, so sending it cannot fail.
        let run = move || {
            // Dropped after the tasks, however they end.
            let _end = end;
            match turns.build() {
                Err(e) => drop(started.send(Err(e))),
                Ok(runtime) => runtime.block_on(async move {
                    let _timers = match TimerService::start() {
                        Ok(timers) => timers,
                        Err(e) => return drop(started.send(Err(e))),
                    };
                    let main = Watched::new(
                        Subject { kind: "main", id: 0 },
                        main(Inbox { messages, stats: inbox_stats }),
                    );
                    let guarded = filter.install();
                    let failed = guarded.is_err();
                    let _ = started.send(guarded);
                    if !failed {
                        Root { turns, main }.await;
                    }
                }),
            }
        };
        let thread = thread::Builder::new().name(name).spawn(run)?;
        match outcome.recv() {
            Ok(Ok(())) => Ok(Self { index, inbox, stats, thread }),
            Ok(Err(e)) => Err(e),
            Err(_) => Err(io::Error::other("the thread ended before its loop began")),
        }
    }

    /// Number of the loop.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Statistics of the loop.
    pub fn stats(&self) -> &Arc<LoopStats> {
        &self.stats
    }

    /// Sends a message to the loop; gives it back when the loop has ended. Never waits.
    pub fn send(&self, message: M) -> Result<(), M> {
        self.inbox.send(message).map_err(|e| e.0)
    }

    /// Returns true if the loop has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }

    /// Closes the inbox and waits for the thread; the error is the panic that ended it.
    pub fn join(self) -> thread::Result<()> {
        drop(self.inbox);
        self.thread.join()
    }
}

/// Measures the turns of one loop.
#[derive(Clone)]
struct Turns {
    options: LoopOptions,
    stats: Arc<LoopStats>,
}

impl Turns {
    fn build(&self) -> io::Result<LocalRuntime> {
        watch::attach_stats(&self.stats);
        turn_parts::attach();
        let turns = self.clone();
        let next_turns = self.clone();
        Builder::new_current_thread()
            .enable_io()
            .event_interval(EVENT_INTERVAL)
            .on_thread_park(move || {
                let now = Reading::now();
                turns.end(now);
                watch::rest();
                timers::rest(now.ns);
            })
            .on_thread_unpark(move || next_turns.begin(Reading::now()))
            .build_local(LocalOptions::default())
    }

    fn begin(&self, now: Reading) {
        watch::begin_turn(now);
        timers::begin_turn(now.ns);
        turn_parts::begin_turn(now.ns);
        self.stats.busy.begin(now.ns);
    }

    /// Counts the turn that ends at `now`, if one is going on.
    fn end(&self, now: Reading) {
        let Some((ns, slowest_task)) = watch::end_turn(now.ns) else { return };
        let (parts, major_faults) = turn_parts::end_turn(now.ns, ns);
        self.stats.blocked.record_own_ns(ns);
        for cause in Cause::ALL {
            self.stats.part(cause).spans.record_own_ns(parts.ns_of(cause));
        }
        if major_faults > 0 {
            self.stats.major_faults.add(major_faults);
        }
        self.stats.longest.take(ns);
        self.stats.busy.end(ns);
        if ns > nanoseconds(self.options.stall_threshold) {
            let turn = Duration::from_nanos(ns);
            let cause = parts.cause(self.options.stall_threshold);
            self.stats.part(cause).stalls.add(1);
            if let Some(report) = &self.options.on_stall {
                report(&Stall { index: self.options.index, turn, cause, parts, major_faults, slowest_task });
            }
        }
    }
}

pin_project! {
    /// Future that the thread blocks on: the main future, and the end of a turn on a loop that never runs out of
    /// tasks.
    ///
    /// tokio calls the park hooks only when nothing is left to run. A busy loop looks for events between two batches
    /// of `EVENT_INTERVAL` tasks without calling them, but polls this future right after if it was woken. The watch
    /// does that once per so many task polls, and whenever a task yields or a poll runs across a timer tick.
    struct Root<F> {
        turns: Turns,
        #[pin]
        main: F,
    }
}

impl<F: Future<Output = ()>> Future for Root<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.project();
        if watch::is_turn_due() {
            let now = Reading::now();
            this.turns.end(now);
            watch::attach_root(cx.waker(), EVENT_INTERVAL);
            this.turns.begin(now);
        }
        this.main.poll(cx)
    }
}

impl<M> fmt::Debug for LoopThread<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoopThread").field("index", &self.index).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::time::Instant;
    use tokio::sync::oneshot;

    use crate::{TaskGroup, clock, spawn_local, time, yield_now};

    fn spin(span: Duration) {
        let start = Instant::now();
        while start.elapsed() < span {}
    }

    #[test]
    fn messages_arrive_in_order_and_the_loop_ends_when_its_sender_is_gone() {
        let (results, got) = start::channel();
        let thread = LoopThread::<u32>::start(LoopOptions::new(3), move |mut inbox| async move {
            assert_eq!(thread::current().name(), Some("loop-3"));
            while let Some(message) = inbox.recv().await {
                results.send(message).unwrap();
            }
        })
        .unwrap();
        assert_eq!(thread.index(), 3);
        for message in 0..3 {
            thread.send(message).unwrap();
        }
        thread.join().unwrap();
        assert_eq!(got.iter().collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn message_to_an_ended_loop_is_returned() {
        let thread = LoopThread::<&str>::start(LoopOptions::new(0), |_| async {}).unwrap();
        while !thread.is_finished() {
            thread::yield_now();
        }
        assert_eq!(thread.send("late"), Err("late"));
    }

    #[test]
    fn tasks_left_over_are_dropped_when_the_main_future_ends() {
        /// Tells of its end, which takes its time.
        struct Kept(start::Sender<&'static str>);
        impl Drop for Kept {
            fn drop(&mut self) {
                spin(Duration::from_millis(20));
                self.0.send("a task").unwrap();
            }
        }
        let (sender, receiver) = start::channel();
        let kept = Kept(sender);
        let (end, is_over) = start::channel::<()>();
        let thread = LoopThread::<()>::start_until(LoopOptions::new(0), end, |_| async move {
            spawn_local(Subject { kind: "endless", id: 1 }, async move {
                let _kept = kept;
                std::future::pending::<()>().await;
            });
            yield_now().await;
        })
        .unwrap();
        assert_eq!(is_over.recv(), Err(start::RecvError));
        assert_eq!(receiver.try_recv(), Ok("a task"), "the end comes last");
        thread.join().unwrap();
    }

    #[test]
    fn join_returns_the_panic_of_the_main_future() {
        let thread = LoopThread::<()>::start(LoopOptions::new(0), |_| async { panic!("expected") }).unwrap();
        assert!(thread.join().is_err());
    }

    /// Runs `main` on a loop that collects its stalls.
    fn stalls_of<Fut>(main: impl FnOnce() -> Fut + Send + 'static) -> (Vec<Stall>, Arc<LoopStats>)
    where
        Fut: Future<Output = ()> + 'static,
    {
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&stalls);
        let mut options = LoopOptions::new(7);
        options.on_stall = Some(Arc::new(move |stall| sink.lock().unwrap().push(*stall)));
        let thread = LoopThread::<()>::start(options, |_| main()).unwrap();
        let stats = Arc::clone(thread.stats());
        thread.join().unwrap();
        let stalls = stalls.lock().unwrap().clone();
        (stalls, stats)
    }

    #[test]
    fn a_long_turn_is_reported_with_its_task_and_operation() {
        let (stalls, stats) = stalls_of(|| async {
            let task = spawn_local(Subject { kind: "connection", id: 42 }, async {
                watch::operation("regex", || spin(Duration::from_millis(30)));
                watch::operation("gzip", || ());
            });
            task.await.unwrap();
            // The loop parks, which ends the turn.
            time::sleep(Duration::from_millis(1)).await;
        });
        let subject = Subject { kind: "connection", id: 42 };
        let named =
            |stall: &&Stall| stall.slowest_task.is_some_and(|slowest_task| slowest_task.subject == subject);
        let stall = stalls.iter().find(named).unwrap();
        assert_eq!((stall.index, stall.slowest_task.unwrap().operation), (7, Some("regex")));
        assert!(stall.turn >= Duration::from_millis(30), "{stall:?}");
        let counted = |cause| stats.part(cause).stalls.value();
        assert_eq!(Cause::ALL.map(counted).iter().sum::<u64>(), stalls.len() as u64);
        assert_eq!(Cause::ALL.map(|cause| stall.parts.of(cause)).iter().sum::<Duration>(), stall.turn);
        assert!(stats.blocked.snapshot().quantile_ns(1.0) >= Some(30_000_000));
        let longest = stalls.iter().map(|stall| stall.turn.as_nanos()).max();
        assert_eq!(Some(u128::from(stats.longest.ns())), longest);
        let busy = stats.busy.until(Instant::now());
        assert!(busy >= stats.longest.ns(), "{busy}");
    }

    #[test]
    fn other_threads_see_a_loops_activity() {
        let (enter, entered) = start::channel();
        let (leave, left) = start::channel();
        let subject = Subject { kind: "connection", id: 7 };
        let thread = LoopThread::<()>::start(LoopOptions::new(0), move |mut inbox| async move {
            let hangs = move || {
                enter.send(watch::subject()).unwrap();
                left.recv().unwrap();
            };
            spawn_local(subject, async { watch::operation("regex", hangs) }).await.unwrap();
            inbox.recv().await;
        })
        .unwrap();
        assert_eq!(entered.recv().unwrap(), Some(subject));
        let look = || thread.stats().activity.snapshot();
        let first = look();
        assert_eq!((first.subject, first.operation), (Some(subject), Some("regex")));
        assert!(first.turn.is_some() && first.thread != 0);
        assert_eq!(look(), first, "it hangs");
        leave.send(()).unwrap();
        while look().turn.is_some() {
            thread::yield_now();
        }
        assert_eq!(look().subject, None);
        assert_eq!(watch::subject(), None, "this thread runs no loop");
        thread.join().unwrap();
    }

    #[test]
    fn a_busy_loop_ends_its_turns_too() {
        // 200 tasks of 1 ms that always want to run: 200 ms without a park, in batches of at most 32 ms.
        let (_, stats) = stalls_of(|| async {
            let group = TaskGroup::new();
            for id in 0..200 {
                group.spawn(Subject { kind: "busy", id }, async { spin(Duration::from_millis(1)) });
            }
            group.drained().await;
        });
        let turns = stats.blocked.snapshot();
        assert!(turns.count() >= 3, "{turns:?}");
        assert!(turns.count_at_most(10_000_000) < turns.count(), "{turns:?}");
    }

    #[test]
    fn a_task_that_yields_does_not_count_as_one_long_turn() {
        let (_, stats) = stalls_of(|| async {
            for _ in 0..20 {
                spin(Duration::from_millis(2));
                yield_now().await;
            }
        });
        assert!(stats.blocked.snapshot().count() >= 20);
    }

    #[test]
    fn time_stands_still_within_a_turn_and_moves_between_turns() {
        let (sender, receiver) = oneshot::channel();
        let thread = LoopThread::<()>::start(LoopOptions::new(0), |_| async move {
            let first = clock::now();
            spin(Duration::from_millis(2));
            let second = clock::now();
            time::sleep(Duration::from_millis(1)).await;
            let _ = sender.send((first, second, clock::now()));
        })
        .unwrap();
        thread.join().unwrap();
        let (first, second, third) = receiver.blocking_recv().unwrap();
        assert_eq!(first, second);
        assert!(third >= first + Duration::from_millis(2));
    }
}
