//! Handling of faults of the program itself.
//!
//! ```text
//! a task panics ─────────────────────► its connection ends; a line with its stack
//! a panic holds what others use ─────► a line, the logs are written, the process ends: status BROKEN
//! a loop stands in one turn ─────────► a line for every thread; with `restart` the process ends: status HANGING
//! ```
//!
//! One thread does all of it, which no loop and no order of the main thread can stop: it waits only for the disk, when
//! the program's own file is read. Loops hand over their data and continue.

mod loop_checks;
mod panic;
mod symbols;
mod threads;

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tw_base::fatal_mutex;
use tw_core::event_loop::{Counts, PANICS_WAITING_MAX, STACKS_KNOWN_MAX};
use tw_core::process::{HangAction, LoopWatchdog};
use tw_log::{ErrorLog, Sinks};
use tw_rt::LoopStats;
use tw_sys::stack;

use self::loop_checks::{HangingLoop, LoopChecks};
use self::panic::Panic;
use self::symbols::Symbols;

/// Status of a process that ended because a panic left something half changed that others use.
pub(crate) const BROKEN: u8 = 70;
/// Status of a process that ended because a loop hung.
pub(crate) const HANGING: u8 = 71;

/// Name of the thread.
const NAME: &str = "watchdog";
/// Longest wait for logs at the end. A slower disk loses their last lines.
const LOG_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens what is read when something has failed: before the process gives up the right to.
pub(crate) fn prepare() {
    Symbols::open();
}

/// Sees to what fails. One for each process that has loops.
#[derive(Clone)]
pub(crate) struct Faults(Arc<Shared>);

/// State that the thread shares with the main thread, and with a loop that panics.
struct Shared {
    /// Log of faults.
    log: Mutex<ErrorLog>,
    /// Locked by the main thread and by ours, never by a loop.
    looks: Mutex<LoopChecks>,
    counts: Arc<Counts>,
    /// State that a panic has left half changed.
    broken: OnceLock<&'static str>,
    events: SyncSender<Event>,
}

enum Event {
    Panic(Box<Panic>),
    /// Something else is to be looked at.
    Look,
}

impl Faults {
    /// Installs counting and reporting of panics; data broken by a panic ends the process. Once per process, on its
    /// main thread and before there are loops.
    pub(crate) fn watch(counts: Arc<Counts>, sinks: &Sinks) -> io::Result<Self> {
        stack::install_handler()?;
        let (events, waiting) = sync_channel(PANICS_WAITING_MAX);
        let common = Arc::new(Shared {
            log: Mutex::new(ErrorLog::none()),
            looks: Mutex::new(LoopChecks::new(Instant::now())),
            counts,
            broken: OnceLock::new(),
            events,
        });
        let keeper = WatchdogThread {
            common: common.clone(),
            waiting,
            sinks: sinks.clone(),
            symbols: Symbols::open(),
            reported_stacks: VecDeque::new(),
        };
        thread::Builder::new().name(NAME.to_owned()).spawn(move || keeper.run())?;
        panic::report_to(common.clone());
        let shared = common.clone();
        fatal_mutex::on_poison(move |what| {
            let _ = shared.broken.set(what);
            // A full queue is looked at as well.
            let _ = shared.events.try_send(Event::Look);
        });
        Ok(Self(common))
    }

    /// Sets the log of faults.
    pub(crate) fn log_to(&self, log: ErrorLog) {
        *lock(&self.0.log) = log;
    }

    /// Log of faults.
    pub(crate) fn log(&self) -> ErrorLog {
        self.0.log()
    }

    /// `loop_watchdog`
    pub(crate) fn set(&self, settings: Option<LoopWatchdog>) {
        lock(&self.0.looks).set(settings);
        let _ = self.0.events.try_send(Event::Look);
    }

    /// Looks after one more loop.
    pub(crate) fn add(&self, index: usize, stats: Arc<LoopStats>) {
        lock(&self.0.looks).add(index, stats);
    }

    /// A loop has ended.
    pub(crate) fn remove(&self, stats: &Arc<LoopStats>) {
        lock(&self.0.looks).remove(stats);
    }

    /// Returns `true` if every loop has turned lately, or was idle.
    pub(crate) fn are_turning(&self, now: Instant) -> bool {
        lock(&self.0.looks).are_turning(now)
    }
}

impl Shared {
    fn log(&self) -> ErrorLog {
        lock(&self.log).clone()
    }
}

/// Locks what only takes single assignments, or what no loop uses.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread.
struct WatchdogThread {
    common: Arc<Shared>,
    waiting: Receiver<Event>,
    sinks: Sinks,
    symbols: &'static Symbols,
    /// Stacks that were told, the newest first.
    reported_stacks: VecDeque<(Vec<usize>, String)>,
}

impl WatchdogThread {
    fn run(mut self) {
        loop {
            let next = lock(&self.common.looks).next();
            match self.waiting.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Event::Panic(panic)) => self.report_panic(&panic),
                Ok(Event::Look) | Err(RecvTimeoutError::Timeout) => {}
                // The hook of panics holds a sender for good.
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // The report follows that of the panic that broke the process, which was sent before.
            if let Some(what) = self.common.broken.get().copied() {
                while let Ok(Event::Panic(panic)) = self.waiting.try_recv() {
                    self.report_panic(&panic);
                }
                tw_log::alert!(
                    self.common.log(),
                    "a panic left data that others use half changed ({what}), exiting"
                );
                self.end(BROKEN);
            }
            self.check();
        }
    }

    fn report_panic(&mut self, panic: &Panic) {
        let addresses = panic.frames.addresses();
        let stack = match self.reported_stacks.iter().find(|(known_values, _)| known_values == addresses) {
            Some((_, stack)) => stack.clone(),
            None => {
                let stack = self.symbols.with(|names| names.line(addresses));
                self.reported_stacks.truncate(STACKS_KNOWN_MAX - 1);
                self.reported_stacks.push_front((addresses.to_vec(), stack.clone()));
                stack
            }
        };
        panic.write(&self.common.log(), Some(&stack));
    }

    fn check(&mut self) {
        let now = Instant::now();
        let (hanging, settings) = {
            let mut looks = lock(&self.common.looks);
            if now < looks.next() {
                return;
            }
            (looks.check(now), looks.settings())
        };
        if hanging.is_empty() {
            return;
        }
        // The hung threads are examined at once: names and other threads can wait.
        let ids: Vec<_> = hanging.iter().map(|hanging| hanging.thread).collect();
        let first = threads::inspect(&ids);
        let log = self.common.log();
        for HangingLoop { index, stood, subject, operation, .. } in &hanging {
            let subject = subject.map(|subject| format!(" in {subject}")).unwrap_or_default();
            let operation = operation.map(|operation| format!(" ({operation})")).unwrap_or_default();
            let stood = stood.as_secs_f64();
            tw_log::alert!(
                log,
                "event loop of worker {index} has not turned for {stood:.1} s{subject}{operation}"
            );
        }
        self.symbols.with(|names| {
            // On a machine so busy that a loop hangs, the other threads may take long to respond.
            for line in threads::lines(first, names) {
                tw_log::alert!(log, "{line}");
            }
            for line in threads::lines(threads::inspect(&threads::others(&ids)), names) {
                tw_log::alert!(log, "{line}");
            }
        });
        if settings.is_some_and(|settings| settings.then == HangAction::Restart) {
            tw_log::alert!(log, "an event loop hangs, exiting");
            self.end(HANGING);
        }
    }

    fn end(&self, status: u8) -> ! {
        // Lines that cannot be written in time are lost.
        let _ = self.sinks.flush_and_close(Instant::now() + LOG_TIMEOUT);
        tw_sys::exit::now(status)
    }
}
