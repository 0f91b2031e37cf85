//! The loops of the process: starting, reconfiguring, stopping and joining them.
//!
//! ```text
//! start ─ LoopCommand::Start ─► current ─ LoopCommand::Generation ─► current        a reload
//!                            └───── LoopCommand::Quit ───────► leaving ─► ended   fewer loops, loops with other settings, shutdown
//!                                                           └─ timeout ─► dropped: connections are closed
//! ```
//! Loops that are started together begin together, after the last of them is ready: a start that fails has served no
//! client.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use tailwater_commands::output::console::{Console, Fault};
use tw_app::{App, Generation};
use tw_core::event_loop::{self, Counts, HandedSession, HandoverPhase, LoopCommand, ProcessLinks, Reloads};
use tw_core::generation::Config;
use tw_core::process::{LoopGuard, MemoryLock};
use tw_log::{Level, Sinks};
use tw_net::ListenSocket;
use tw_rt::affinity::Affinity;
use tw_rt::{Cause, LoopOptions, LoopThread, OnStall, SendFile};

use crate::faults::Faults;
use crate::sockets::{Sockets, cannot_share};

use super::memory;

/// Longest wait for loops to take over a configuration. A loop whose turn is longer takes it over afterwards.
const ADOPTION_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two looks at the loops meanwhile.
const ADOPTION_PAUSE: Duration = Duration::from_millis(1);

/// All loops.
pub(crate) struct Loops {
    current: Vec<Running>,
    leaving: Vec<Leaving>,
    settings: Option<LoopSettings>,
    counts: Arc<Counts>,
    /// Sees to those that hang and to what panics.
    faults: Faults,
    farewells: ExitNotices,
    last_id: u64,
    /// Set if the running loops serve, see [`Loops::begin`].
    has_begun: bool,
}

/// Configuration that the loops should serve.
pub(crate) struct WantedLoops<'a> {
    pub(crate) generation: &'a Generation,
    pub(crate) sockets: &'a Sockets,
    pub(crate) affinity: &'a Affinity,
}

/// Settings that a loop takes over when it starts. Others need other loops.
#[derive(Debug, Clone, PartialEq)]
struct LoopSettings {
    guard: LoopGuard,
    /// Permission to send files under the guard.
    send_file: SendFile,
    stall_threshold: Duration,
    hot_files_size: usize,
    priority: i32,
    memory_lock: MemoryLock,
    affinity: Affinity,
}

struct Running {
    id: u64,
    index: usize,
    thread: LoopThread<LoopCommand<Generation>>,
}

/// A loop that accepts nothing any more.
struct Leaving {
    id: u64,
    /// `None` once its time was over.
    thread: Option<LoopThread<LoopCommand<Generation>>>,
    until: Option<Instant>,
}

impl Loops {
    /// No loops yet. Once per process: what fails is seen to from here on.
    pub(crate) fn new(sinks: &Sinks) -> io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let faults = Faults::watch(counts.clone(), sinks)?;
        Ok(Self {
            current: Vec::new(),
            leaving: Vec::new(),
            settings: None,
            counts,
            faults,
            farewells: ExitNotices::new()?,
            last_id: 0,
            has_begun: false,
        })
    }

    /// Counters of all loops.
    pub(crate) fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// Lets the loops accept connections, from now on and whenever one is started.
    pub(crate) fn begin(&mut self) {
        self.has_begun = true;
        self.let_begin(&self.current);
    }

    fn let_begin(&self, loops: &[Running]) {
        if self.has_begun {
            // A loop that has just ended is started again by `reap`.
            loops.iter().for_each(|running| drop(running.thread.send(LoopCommand::Start)));
        }
    }

    /// Makes the loops close every file that is open for the next request, also those that only finish what they do.
    pub(crate) fn close_files(&self) {
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.thread.as_ref());
        for thread in self.current.iter().map(|running| &running.thread).chain(leaving) {
            // A loop that has just ended has no files.
            let _ = thread.send(LoopCommand::CloseFiles);
        }
    }

    /// Makes the loops serve `loops`, once they have [begun](Self::begin): those that run take it over, missing ones are started, surplus ones leave, and
    /// so do all if a loop's own settings have changed. On an error those that run go on as before.
    pub(crate) fn serve(&mut self, loops: &WantedLoops<'_>, console: &Console) -> Result<(), Fault> {
        let main = &loops.generation.main;
        let settings = LoopSettings::of(&loops.generation.config, loops.affinity);
        let count = main.worker_count();
        let kept = if self.settings.as_ref() == Some(&settings) { self.current.len().min(count) } else { 0 };

        let share = |index| loops.sockets.of_loop(index).map_err(|error| cannot_share(&error));
        let sockets = (0..count).map(share).collect::<Result<Vec<_>, _>>()?;
        self.faults.log_to((*loops.generation.error_log).clone());
        self.faults.set(main.loop_watchdog);
        let mut started = Vec::new();
        let mut handed_over = Vec::new();
        for (index, sockets) in sockets.into_iter().enumerate() {
            if index < kept {
                handed_over.push(sockets);
            } else {
                started.push(self.start(index, &settings, loops.generation, sockets)?);
                console.report(Level::Notice, format_args!("start worker {index}"));
            }
        }

        let surplus = self.current.split_off(kept);
        for (running, sockets) in self.current.iter().zip(handed_over) {
            // A loop that has just ended is started again by `reap`.
            let _ = running.thread.send(LoopCommand::Generation(loops.generation.clone(), sockets));
        }
        started.iter().for_each(|running| self.know(running));
        self.let_begin(&started);
        self.current.extend(started);
        self.settings = Some(settings);
        self.leave(surplus, main.shutdown_timeout, &HandoverPhase::Closed);
        Ok(())
    }

    /// Waits until every loop serves the generation with this number, so that the configuration before serves no new connection any
    /// more when a reload is reported. Waits for half a second at most.
    pub(crate) fn wait_until_served(&self, generation: u64) {
        let until = Instant::now() + ADOPTION_TIMEOUT;
        let count = || {
            let siblings = self.counts.siblings();
            siblings.iter().filter(|sibling| sibling.tally.generation.value() == generation).count()
        };
        while self.has_begun && count() < self.current.len() && Instant::now() < until {
            std::thread::park_timeout(ADOPTION_PAUSE);
        }
    }

    /// Lets every loop finish what it does, accepting nothing more; those that are not done after `timeout` are ended.
    /// `phase` tells if they offer their sessions over datagrams to a next process.
    pub(crate) fn quit(&mut self, timeout: Option<Duration>, phase: &HandoverPhase) {
        let all = std::mem::take(&mut self.current);
        self.settings = None;
        self.leave(all, timeout, phase);
    }

    /// Tells the loops that leave if they offer their sessions over datagrams to a next process.
    pub(crate) fn hand_over(&self, phase: &HandoverPhase) {
        for thread in self.leaving.iter().filter_map(|leaving| leaving.thread.as_ref()) {
            // A loop that has just ended has no sessions.
            let _ = thread.send(LoopCommand::HandOver(phase.clone()));
        }
    }

    /// Gives a session over datagrams of another process to the loop with this number, or to another one if there are fewer.
    pub(crate) fn take_over(&self, index: usize, session: HandedSession) {
        let running = index.checked_rem(self.current.len()).and_then(|index| self.current.get(index));
        if let Some(running) = running {
            // A loop that has just ended drops the session, which refuses it.
            let _ = running.thread.send(LoopCommand::TakeOver(session));
        }
    }

    /// Other worker processes with connections over the same sockets.
    pub(crate) fn links(&self) -> &ProcessLinks {
        &self.counts.links
    }

    /// Records which process receives the datagrams of connections.
    pub(crate) fn set_received_elsewhere(&self, is_received_elsewhere: bool) {
        self.counts.links.set_received_elsewhere(is_received_elsewhere);
        let leaving = self.leaving.iter().filter_map(|leaving| leaving.thread.as_ref());
        for thread in self.current.iter().map(|running| &running.thread).chain(leaving) {
            // A loop that has just ended receives nothing.
            let _ = thread.send(LoopCommand::ReceiverChanged);
        }
    }

    /// Gives a datagram of another process to the loop of its connection.
    pub(crate) fn take_from_process(&self, packet: &[u8]) {
        self.counts.take_from_process(packet);
    }

    /// Notes that another process receives from the same sockets now and passes nothing on.
    pub(crate) fn set_replaced(&self) {
        self.counts.set_replaced();
    }

    /// Sets the numbers of reloads, for metrics.
    pub(crate) fn set_reloads(&self, reloads: Reloads) {
        *self.counts.reloads.lock() = reloads;
    }

    /// Ends every loop and closes its connections; waits at most `timeout`.
    pub(crate) fn stop(&mut self, timeout: Duration) {
        let until = Instant::now() + timeout;
        let mut remaining = self.current.len() + self.leaving.len();
        // Dropping the thread closes the inbox of its loop.
        self.current.clear();
        self.leaving.clear();
        while remaining > 0 && self.farewells.wait(until).is_some() {
            remaining -= 1;
        }
    }

    /// Looks after loops that have ended. One that should not have is started again.
    pub(crate) fn reap(&mut self, loops: &WantedLoops<'_>, console: &Console) {
        self.farewells.clear();
        while let Some(id) = self.farewells.next() {
            if let Some(at) = self.leaving.iter().position(|leaving| leaving.id == id) {
                let leaving = self.leaving.swap_remove(at);
                self.bury(leaving.thread);
            } else if let Some(at) = self.current.iter().position(|running| running.id == id) {
                let Running { index, thread, .. } = self.current.remove(at);
                self.bury(Some(thread));
                console.report(
                    Level::Alert,
                    format_args!("event loop of worker {index} ended, starting it again"),
                );
                if let Err(fault) = self.restart(index, at, loops) {
                    console.fault(&fault);
                }
            }
        }
    }

    /// Ends the loops whose time is over.
    pub(crate) fn expire(&mut self, now: Instant) {
        let mut over = Vec::new();
        for leaving in
            self.leaving.iter_mut().filter(|leaving| leaving.until.is_some_and(|until| until <= now))
        {
            leaving.until = None;
            over.extend(leaving.thread.take());
        }
        over.iter().for_each(|thread| self.ended(thread));
    }

    /// Time of the next [`expire`](Self::expire).
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.leaving.iter().filter_map(|leaving| leaving.until).min()
    }

    /// Returns `true` if all loops have ended.
    pub(crate) fn is_empty(&self) -> bool {
        self.current.is_empty() && self.leaving.is_empty()
    }

    /// Returns `true` if every loop has turned lately, or was idle.
    pub(crate) fn are_turning(&self, now: Instant) -> bool {
        self.faults.are_turning(now)
    }

    /// Connections that are open now.
    pub(crate) fn connections(&self) -> u64 {
        self.counts.total(|tally| &tally.open)
    }

    fn restart(&mut self, index: usize, at: usize, loops: &WantedLoops<'_>) -> Result<(), Fault> {
        let sockets = loops.sockets.of_loop(index).map_err(|error| cannot_share(&error))?;
        let settings = LoopSettings::of(&loops.generation.config, loops.affinity);
        let running = self.start(index, &settings, loops.generation, sockets)?;
        self.know(&running);
        self.let_begin(std::slice::from_ref(&running));
        self.current.insert(at, running);
        Ok(())
    }

    /// A loop runs: it is counted and looked after.
    fn know(&self, running: &Running) {
        self.counts.add_loop(running.thread.stats().clone());
        self.faults.add(running.index, running.thread.stats().clone());
    }

    /// A loop has ended, or its time is over.
    fn ended(&self, thread: &LoopThread<LoopCommand<Generation>>) {
        self.counts.remove_loop(thread.stats());
        self.faults.remove(thread.stats());
    }

    fn start(
        &mut self,
        index: usize,
        settings: &LoopSettings,
        generation: &Generation,
        sockets: Vec<ListenSocket>,
    ) -> Result<Running, Fault> {
        self.last_id += 1;
        let id = self.last_id;
        let options = LoopOptions {
            guard: match settings.guard {
                LoopGuard::Off => tw_rt::LoopGuard::Off,
                LoopGuard::Log => tw_rt::LoopGuard::Log,
                LoopGuard::Enforce => tw_rt::LoopGuard::Enforce,
            },
            send_file: settings.send_file,
            stall_threshold: settings.stall_threshold,
            on_stall: Some(self.on_stall()),
            ..LoopOptions::new(index)
        };
        let farewell = self.farewells.of(id);
        let counts = self.counts.clone();
        let generation = generation.clone();
        let cpus = settings.affinity.of_worker(index);
        let locks = settings.memory_lock != MemoryLock::Off;
        let life = move |commands| {
            if let Some(cpus) = cpus
                && let Err(error) = cpus.pin_current_thread()
            {
                let errno = tw_base::Errno::from(&error);
                tw_log::alert!(generation.error_log, "sched_setaffinity() failed ({errno})");
            }
            if locks && let Err(errno) = memory::lock_stack() {
                tw_log::info!(
                    generation.error_log,
                    "mlock() of the stack of worker {index} failed ({errno})"
                );
            }
            event_loop::run::<App>(index, counts, generation, sockets, commands)
        };
        // The end of the last connection belongs to the life of a loop: it may leave something to the pools.
        let thread = LoopThread::start_until(options, farewell, life).map_err(|error| {
            let fault =
                Fault::emerg(format!("cannot start worker {index} ({})", tw_base::Errno::from(&error)));
            match settings.guard {
                LoopGuard::Off => fault,
                LoopGuard::Log | LoopGuard::Enforce => {
                    fault.hint("\"loop_guard\" needs a kernel with seccomp filters")
                }
            }
        })?;
        Ok(Running { id, index, thread })
    }

    fn on_stall(&self) -> OnStall {
        let faults = self.faults.clone();
        let counts = self.counts.clone();
        Arc::new(move |stall| {
            counts.stalls.push(*stall);
            match stall.cause {
                // The machine is busy; nothing here is wrong.
                Cause::Processor => tw_log::notice!(faults.log(), "{stall}"),
                Cause::Running | Cause::Kernel => tw_log::warn!(faults.log(), "{stall}"),
            }
        })
    }

    fn leave(&mut self, workers: Vec<Running>, timeout: Option<Duration>, phase: &HandoverPhase) {
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        for Running { id, thread, .. } in workers {
            // A loop that has ended by itself has been reported.
            let _ = thread.send(LoopCommand::Quit(phase.clone()));
            self.leaving.push(Leaving { id, thread: Some(thread), until });
        }
    }

    /// The thread is at its end: waiting for it takes no time.
    fn bury(&self, thread: Option<LoopThread<LoopCommand<Generation>>>) {
        if let Some(thread) = thread {
            self.ended(&thread);
            // The panic of the thread was logged when it happened.
            let _ = thread.join();
        }
    }
}

/// Readable when [`Loops::reap`] has something to do.
impl AsFd for Loops {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.farewells.wake.as_fd()
    }
}

impl LoopSettings {
    fn of(config: &Config, affinity: &Affinity) -> Self {
        let guard = config.main.loop_guard;
        Self {
            guard,
            send_file: match guard {
                // Without a guard, no loop has to be restarted to send locked files.
                LoopGuard::Log | LoopGuard::Enforce if config.lock_max > 0 => SendFile::Locked,
                LoopGuard::Off | LoopGuard::Log | LoopGuard::Enforce => SendFile::Never,
            },
            stall_threshold: config.main.stall_threshold,
            hot_files_size: config.hot_files_size,
            priority: config.main.priority,
            memory_lock: config.main.memory_lock,
            affinity: affinity.clone(),
        }
    }
}

/// Last words of loops.
struct ExitNotices {
    wake: Arc<OwnedFd>,
    sender: Sender<u64>,
    receiver: Receiver<u64>,
}

/// Dropped when nothing of a loop is left, however that ends.
struct ExitNotice {
    id: u64,
    wake: Arc<OwnedFd>,
    sender: Sender<u64>,
}

impl ExitNotices {
    fn new() -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (sender, receiver) = mpsc::channel();
        Ok(Self { wake, sender, receiver })
    }

    fn of(&self, id: u64) -> ExitNotice {
        ExitNotice { id, wake: self.wake.clone(), sender: self.sender.clone() }
    }

    /// Makes the descriptor quiet until the next one.
    fn clear(&self) {
        // The read only resets the counter, which may be zero already.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn next(&self) -> Option<u64> {
        self.receiver.try_recv().ok()
    }

    fn wait(&self, until: Instant) -> Option<u64> {
        self.receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
    }
}

impl Drop for ExitNotice {
    fn drop(&mut self) {
        // The main thread may be gone at the end of the process; a full counter wakes it as well.
        let _ = self.sender.send(self.id);
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}
