//! Thread of a fleet: it connects to the engine, applies the log in order, publishes, and remembers its position. It may wait; no loop
//! waits for it but for the acknowledgement of a purge.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep};
use tw_base::Limit;
use tw_log::Level;

use crate::directory::{DirectoryLock, SavedPosition, StateDirectory};
use crate::engine::{Engine, EngineError, Log, LogReader, LogRecord, Store};
use crate::fleet::Fleet;
use crate::nats::Nats;
use crate::position::{Continuity, Position, judge};
use crate::publisher::{QueuedPurge, unix_ms};
use crate::queue::Queue;
use crate::record::{FleetPurge, FleetPurgeMode, FleetPurgeScope, FleetRecord, RecordError, RecordKind};
use crate::status::NodeSummary;

/// Receiver of messages for the log.
pub type LogFn = Arc<dyn Fn(Level, fmt::Arguments<'_>) + Send + Sync>;

/// Shortest and longest pause between two connections.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Age of a connection after whose end the pauses begin with the shortest.
const STABLE: Duration = Duration::from_secs(10);
/// Time between two attempts to take the lock, to save the position and to apply again what failed.
const TICK: Duration = Duration::from_millis(100);
/// Ticks between two attempts to apply what failed.
const AGAIN_TICKS: u32 = 10;
/// Time between two summaries.
const SUMMARY_INTERVAL: Duration = Duration::from_secs(5);
/// Time between two messages of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Identifiers of purges that are remembered, so that none is applied twice.
const RECENT_MAX: usize = 65_536;
/// Purges of a cache that could not be applied yet. With more, the whole cache is purged.
const UNAPPLIED_MAX: usize = 10_000;

pub(crate) const LIMITS: &[Limit] = &[
    Limit::count(
        "RECENT_MAX",
        RECENT_MAX as u64,
        "Purges of a fleet that are recognised when they come again",
        "an older one is applied again",
    ),
    Limit::count(
        "UNAPPLIED_MAX",
        UNAPPLIED_MAX as u64,
        "Purges of a fleet that wait for the disk of a cache",
        "all of that cache is purged",
    ),
];

/// Caches of this node that are in the fleet.
pub trait NodeCaches: Send + Sync {
    /// Their names.
    fn names(&self) -> Vec<Vec<u8>>;

    /// Applies purges to a cache, in order, and saves them. Applied again they purge again. An error is one of the disk.
    fn purge(
        &self,
        cache: &[u8],
        purges: Vec<FleetPurge>,
    ) -> Pin<Box<dyn Future<Output = Result<(), String>>>>;
}

/// Handle of the thread, which ends with it.
#[derive(Debug)]
pub struct Agent(UnboundedSender<AgentCommand>);

enum AgentCommand {
    SetCaches(Arc<dyn NodeCaches>, LogFn),
    Retire,
}

impl Agent {
    /// Starts the thread. It applies the log to `caches` from now on.
    ///
    /// # Errors
    /// Fails if the thread cannot be started.
    pub fn start(fleet: Arc<Fleet>, caches: Arc<dyn NodeCaches>, log: LogFn) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (send, commands) = unbounded_channel();
        thread::Builder::new().name("fleet".to_owned()).spawn(move || {
            let settings = fleet.settings();
            match Nats::new(&settings.engine, &settings.name, &settings.node) {
                Ok(engine) => {
                    LocalSet::new().block_on(&runtime, serve(engine, fleet.clone(), caches, log, commands))
                }
                Err(error) => log(Level::Alert, format_args!("fleet \"{}\": {error}", settings.name)),
            }
        })?;
        Ok(Self(send))
    }

    /// Sets the caches of another configuration.
    pub fn set_caches(&self, caches: Arc<dyn NodeCaches>, log: LogFn) {
        // A thread that is gone has said why.
        let _ = self.0.send(AgentCommand::SetCaches(caches, log));
    }

    /// Leaves position and queue to another process, and applies nothing more. Purges are still published.
    pub fn retire(&self) {
        let _ = self.0.send(AgentCommand::Retire);
    }
}

/// State of the thread.
pub(crate) struct Node<E: Engine> {
    engine: E,
    pub(crate) fleet: Arc<Fleet>,
    directory: StateDirectory,
    caches: RefCell<Arc<dyn NodeCaches>>,
    log_line: RefCell<LogFn>,
    logged: RefCell<HashMap<&'static str, Instant>>,
    role: Cell<Role>,
    lock: RefCell<Option<DirectoryLock>>,
    pub(crate) queue: RefCell<Option<Queue>>,
    pub(crate) to_queue: RefCell<Vec<QueuedPurge>>,
    /// Notified when something is to be written to the queue.
    pub(crate) has_queued: Notify,
    /// Notified when the queue may be published.
    pub(crate) has_work: Notify,
    /// Connection whose log continues the position.
    pub(crate) session: RefCell<Option<Rc<E::Session>>>,
    pub(crate) session_changed: Notify,
    pub(crate) away_since: Cell<Instant>,
    /// Position and caches; `None` until they are read.
    state: RefCell<Option<SavedPosition>>,
    /// Purges that were read and are not saved yet, by cache.
    unapplied: RefCell<BTreeMap<Vec<u8>, Vec<FleetPurge>>>,
    /// Number of tasks that apply purges: until they end, the position is not saved.
    applying: Cell<u32>,
    /// True if the state differs from that on disk.
    is_changed: Cell<bool>,
    pub(crate) recent: RefCell<RecentIds>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Active,
    /// Another process of this node has taken over.
    Retired,
}

/// Identifiers of the last purges.
#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    known: HashSet<String>,
    order: VecDeque<String>,
}

impl RecentIds {
    /// Remembers an identifier. Returns false if it was known.
    pub(crate) fn insert(&mut self, id: &str) -> bool {
        if !self.known.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

async fn serve<E: Engine + 'static>(
    engine: E,
    fleet: Arc<Fleet>,
    caches: Arc<dyn NodeCaches>,
    log: LogFn,
    mut commands: UnboundedReceiver<AgentCommand>,
) {
    let directory = StateDirectory::new(&fleet.settings().state);
    let purges = fleet.connect();
    let node = Rc::new(Node {
        engine,
        fleet,
        directory,
        caches: RefCell::new(caches),
        log_line: RefCell::new(log),
        logged: RefCell::default(),
        role: Cell::new(Role::Active),
        lock: RefCell::default(),
        queue: RefCell::default(),
        to_queue: RefCell::default(),
        has_queued: Notify::new(),
        has_work: Notify::new(),
        session: RefCell::default(),
        session_changed: Notify::new(),
        away_since: Cell::new(Instant::now()),
        state: RefCell::default(),
        unapplied: RefCell::default(),
        applying: Cell::new(0),
        is_changed: Cell::new(false),
        recent: RefCell::default(),
    });
    node.take_lock();
    let tasks = [
        spawn_local(node.clone().publish_all(purges)),
        spawn_local(node.clone().write_queue()),
        spawn_local(node.clone().drain_queue()),
        spawn_local(node.clone().run()),
        spawn_local(node.clone().tick()),
        spawn_local(node.clone().summarize()),
    ];
    while let Some(command) = commands.recv().await {
        match command {
            AgentCommand::SetCaches(caches, log) => {
                *node.caches.borrow_mut() = caches;
                *node.log_line.borrow_mut() = log;
                node.admit_new_caches().await;
            }
            AgentCommand::Retire => node.retire(),
        }
    }
    node.save();
    tasks.iter().for_each(JoinHandle::abort);
}

impl<E: Engine + 'static> Node<E> {
    pub(crate) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let log = self.log_line.borrow().clone();
        log(level, format_args!("fleet \"{}\": {message}", self.fleet.settings().name));
    }

    /// Logs one message of a kind a minute.
    pub(crate) fn log_some(&self, level: Level, kind: &'static str, message: fmt::Arguments<'_>) {
        let now = Instant::now();
        let mut logged = self.logged.borrow_mut();
        if logged.get(kind).is_none_or(|last| now.duration_since(*last) >= LOG_INTERVAL) {
            logged.insert(kind, now);
            drop(logged);
            self.log(level, message);
        }
    }

    /// Takes the lock of the state directory, if no other process has it, and opens the queue.
    fn take_lock(&self) {
        if self.lock.borrow().is_some() || self.role.get() == Role::Retired {
            return;
        }
        let lock = match self.directory.lock() {
            Ok(Some(lock)) => lock,
            Ok(None) => {
                return self.log_some(
                    Level::Info,
                    "lock",
                    format_args!("another process has the state directory"),
                );
            }
            Err(error) => return self.log_some(Level::Error, "lock", format_args!("{error}")),
        };
        match Queue::open(&self.directory, &lock) {
            Ok((queue, dropped)) => {
                if dropped > 0 {
                    self.log(Level::Warn, format_args!("{dropped} bytes at the end of the queue are torn"));
                }
                self.fleet.status.lock().queued = queue.len() as u64;
                *self.queue.borrow_mut() = Some(queue);
                *self.lock.borrow_mut() = Some(lock);
                // What was applied before may not be in the file of the process before.
                self.is_changed.set(true);
                self.has_work.notify_one();
            }
            Err(error) => self.log_some(Level::Error, "lock", format_args!("{error}")),
        }
    }

    fn retire(&self) {
        self.save();
        self.role.set(Role::Retired);
        *self.queue.borrow_mut() = None;
        *self.lock.borrow_mut() = None;
    }

    /// Saves the position, if everything up to it is saved in the caches.
    fn save(&self) {
        if !self.is_changed.get() || self.applying.get() > 0 || !self.unapplied.borrow().is_empty() {
            return;
        }
        if let (Some(lock), Some(state)) = (&*self.lock.borrow(), &*self.state.borrow()) {
            let saved = self.directory.save_position(state, lock);
            self.fleet.status.lock().is_unsaved = saved.is_err();
            match saved {
                Ok(()) => self.is_changed.set(false),
                Err(error) => self.log_some(Level::Crit, "save", format_args!("{error}")),
            }
        }
    }

    async fn tick(self: Rc<Self>) {
        let mut ticks = 0_u32;
        loop {
            sleep(TICK).await;
            ticks = ticks.wrapping_add(1);
            self.take_lock();
            if ticks.is_multiple_of(AGAIN_TICKS) && !self.unapplied.borrow().is_empty() {
                self.apply_unapplied().await;
            }
            self.save();
        }
    }

    /// Connects again and again, and applies the log.
    async fn run(self: Rc<Self>) {
        let mut pause = RETRY_MIN;
        while self.role.get() == Role::Active {
            let began = Instant::now();
            let error = match self.engine.connect().await {
                Ok(session) => self.follow(Rc::new(session)).await,
                Err(error) => error,
            };
            let had_session = self.session.borrow_mut().take().is_some();
            if had_session {
                self.away_since.set(Instant::now());
                self.session_changed.notify_waiters();
            }
            {
                let mut status = self.fleet.status.lock();
                (status.engine, status.last_error) = (None, Some(error.to_string()));
            }
            if had_session {
                // Each loss is reported.
                self.logged.borrow_mut().remove("connect");
            }
            let rest = "serving goes on, and purges of this node are queued";
            self.log_some(
                Level::Error,
                "connect",
                format_args!("no connection to the engine: {error}; {rest}"),
            );
            pause =
                if had_session && began.elapsed() >= STABLE { RETRY_MIN } else { (pause * 2).min(RETRY_MAX) };
            // Nodes that lost the engine at the same time do not come back at the same time.
            sleep(pause.mul_f64(0.5 + jitter() / 2.0)).await;
        }
    }

    /// Applies the log of a connection until that ends.
    async fn follow(self: &Rc<Self>, session: Rc<E::Session>) -> EngineError {
        match self.try_follow(&session).await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn try_follow(
        self: &Rc<Self>,
        session: &Rc<E::Session>,
    ) -> Result<std::convert::Infallible, EngineError> {
        self.load();
        let log = session.state().await?;
        let known = self.state.borrow().as_ref().and_then(|state| state.position.clone());
        let time = match &known {
            Some(known) if (log.first..=log.last).contains(&known.sequence) => {
                session.record_time(known.sequence).await?
            }
            _ => None,
        };
        let continuity = judge(known.as_ref(), &log, time);
        let sequence = match (continuity, &known) {
            (Continuity::Continues, Some(known)) => known.sequence,
            (Continuity::FirstTime, _) => log.last,
            _ => log.first.saturating_sub(1),
        };
        let time_ns = match (continuity, &known) {
            (Continuity::Continues, Some(known)) => known.time_ns,
            (Continuity::FirstTime, _) if log.first <= log.last => {
                session.record_time(log.last).await?.unwrap_or(0)
            }
            _ => 0,
        };
        if let Some(reason) = continuity.reason() {
            self.make_stale(continuity, reason).await;
        }
        if continuity.restarts() {
            // Nodes that were away when the log lost records cannot notice that.
            let id = format!("lost-{}-{}", log.identity, log.last);
            match session.append(&id, &self.record(id.clone(), RecordKind::Lost).encode()).await {
                Err(EngineError::Lost(why)) => return Err(EngineError::Lost(why)),
                Err(error) => self.log(Level::Error, format_args!("other nodes cannot be told: {error}")),
                Ok(_) => drop(self.recent.borrow_mut().insert(&id)),
            }
        }
        self.set_position(Position { identity: log.identity, sequence, time_ns });
        self.admit_new_caches().await;
        let mut reader = session.read_from(sequence.saturating_add(1)).await?;
        {
            let mut status = self.fleet.status.lock();
            status.engine = Some(self.engine.server(session));
            status.connections += 1;
            status.lag = log.last.saturating_sub(sequence);
        }
        *self.session.borrow_mut() = Some(session.clone());
        self.session_changed.notify_waiters();
        self.has_work.notify_one();
        self.log(Level::Notice, format_args!("connected to the engine, at sequence {sequence}"));
        let watching = AbortOnDrop(spawn_local(self.clone().watch(session.clone())));
        let ended = loop {
            if self.role.get() == Role::Retired {
                // The connection is for purges that are published.
                break self.wait_for_end(session).await;
            }
            match reader.next().await {
                Ok(records) if self.role.get() == Role::Active => self.apply(records).await,
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        drop(watching);
        Err(ended)
    }

    /// Waits until the connection ends.
    async fn wait_for_end(&self, session: &Rc<E::Session>) -> EngineError {
        loop {
            sleep(SUMMARY_INTERVAL).await;
            if let Err(error) = session.state().await {
                return error;
            }
        }
    }

    /// Reads the position, once.
    fn load(&self) {
        if self.state.borrow().is_some() {
            return;
        }
        let state = self.directory.position().unwrap_or_else(|error| {
            self.log(Level::Error, format_args!("{error}"));
            SavedPosition::default()
        });
        *self.state.borrow_mut() = Some(state);
    }

    fn set_position(&self, position: Position) {
        {
            let mut status = self.fleet.status.lock();
            status.sequence = position.sequence;
        }
        if let Some(state) = &mut *self.state.borrow_mut() {
            state.position = Some(position);
        }
        self.is_changed.set(true);
    }

    /// Makes everything stale that caches have which were not in the fleet before.
    async fn admit_new_caches(&self) {
        let names = self.caches.borrow().names();
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        let new: Vec<_> = {
            let mut state = self.state.borrow_mut();
            let Some(state) = &mut *state else { return };
            let new: Vec<_> =
                names.iter().filter(|name| !state.caches.contains(&text(name))).cloned().collect();
            if new.is_empty() && state.caches.len() == names.len() {
                return;
            }
            state.caches = names.iter().map(|name| text(name)).collect();
            new
        };
        self.is_changed.set(true);
        for name in new {
            self.log(
                Level::Notice,
                format_args!("cache \"{}\" joins, everything stored in it is stale", tw_log::Text(&name)),
            );
            self.add_unapplied(stale(&name));
        }
        self.apply_unapplied().await;
    }

    /// Makes everything stale in all caches.
    async fn make_stale(&self, continuity: Continuity, reason: &str) {
        let is_first = continuity == Continuity::FirstTime;
        let level = if is_first { Level::Notice } else { Level::Warn };
        self.log(level, format_args!("{reason}: everything stored in its caches is stale"));
        self.fleet.status.lock().resets += u64::from(!is_first);
        self.add_stale();
        self.apply_unapplied().await;
    }

    fn add_stale(&self) {
        let names = self.caches.borrow().names();
        names.iter().for_each(|name| self.add_unapplied(stale(name)));
        // Caches that join have what was stored before the reason.
        if let Some(state) = &mut *self.state.borrow_mut() {
            state.caches = names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
        }
    }

    fn add_unapplied(&self, purge: FleetPurge) {
        let mut unapplied = self.unapplied.borrow_mut();
        let of_cache = unapplied.entry(purge.cache.clone()).or_default();
        if of_cache.len() >= UNAPPLIED_MAX {
            of_cache.clear();
            let scope = FleetPurgeScope::Prefix(Vec::new());
            of_cache.push(FleetPurge { cache: purge.cache, scope, mode: FleetPurgeMode::Hard });
        } else {
            of_cache.push(purge);
        }
    }

    /// Applies what is not applied. What fails stays.
    async fn apply_unapplied(&self) {
        self.applying.set(self.applying.get() + 1);
        let work = std::mem::take(&mut *self.unapplied.borrow_mut());
        let caches = self.caches.borrow().clone();
        for (name, purges) in work {
            if let Err(error) = caches.purge(&name, purges.clone()).await {
                let shown = tw_log::Text(&name);
                self.log_some(Level::Crit, "apply", format_args!("{error} while purging, cache \"{shown}\""));
                self.fleet.status.lock().is_unsaved = true;
                purges.into_iter().for_each(|purge| self.add_unapplied(purge));
            }
        }
        self.applying.set(self.applying.get() - 1);
    }

    /// Applies records in order.
    async fn apply(&self, records: Vec<LogRecord>) {
        let Some(mut position) = self.state.borrow().as_ref().and_then(|state| state.position.clone()) else {
            return;
        };
        let names: HashSet<Vec<u8>> = self.caches.borrow().names().into_iter().collect();
        let (mut applied, mut pending) = (0_u64, 0);
        for record in records {
            pending = record.pending;
            if record.sequence <= position.sequence {
                continue;
            }
            if record.sequence != position.sequence.saturating_add(1) {
                self.log(Level::Warn, format_args!("{GAP}: everything stored in its caches is stale"));
                self.fleet.status.lock().resets += 1;
                self.add_stale();
            }
            (position.sequence, position.time_ns) = (record.sequence, record.time_ns);
            let decoded = record.payload.as_deref().map_or(Err(RecordError::Foreign), FleetRecord::decode);
            match decoded {
                Ok(record) if !self.recent.borrow_mut().insert(&record.id) => {}
                Ok(FleetRecord { kind: RecordKind::Lost, node, .. }) => {
                    let node = tw_log::Text(node.as_bytes());
                    self.log(
                        Level::Warn,
                        format_args!("the log has lost records, says node \"{node}\": everything stored in its caches is stale"),
                    );
                    self.fleet.status.lock().resets += 1;
                    self.add_stale();
                }
                Ok(FleetRecord { kind: RecordKind::Purge(purge), .. }) => {
                    if names.contains(&purge.cache) {
                        applied += 1;
                        self.add_unapplied(purge);
                    }
                }
                Err(error) => {
                    let sequence = record.sequence;
                    let then = if error == RecordError::Newer {
                        ": everything stored in its caches is stale"
                    } else {
                        ""
                    };
                    self.log_some(
                        Level::Warn,
                        "record",
                        format_args!("record {sequence} of the log is not understood, {error}{then}"),
                    );
                    self.fleet.status.lock().unreadable += 1;
                    if error == RecordError::Newer {
                        self.fleet.status.lock().resets += 1;
                        self.add_stale();
                    }
                }
            }
        }
        self.apply_unapplied().await;
        self.set_position(position);
        let mut status = self.fleet.status.lock();
        status.lag = pending;
        status.applied += applied;
        if applied > 0 {
            status.last_purge = unix_ms();
        }
    }

    /// Publishes the summary of this node again and again.
    async fn summarize(self: Rc<Self>) {
        loop {
            let session = self.session.borrow().clone();
            if let (Some(session), Role::Active) = (session, self.role.get()) {
                let summary = {
                    let status = self.fleet.status.lock();
                    NodeSummary {
                        node: self.fleet.settings().node.to_string(),
                        version: env!("CARGO_PKG_VERSION").to_owned(),
                        sequence: status.sequence,
                        lag: status.lag,
                        queued: status.queued,
                        time: unix_ms(),
                        last_purge: status.last_purge,
                    }
                };
                let text = serde_json::to_vec(&summary).unwrap_or_default();
                if let Err(error @ EngineError::Refused(_)) = session.set(&summary.node, &text, None).await {
                    self.log_some(
                        Level::Warn,
                        "summary",
                        format_args!("the summary cannot be published: {error}"),
                    );
                }
            }
            sleep(SUMMARY_INTERVAL).await;
        }
    }

    /// Follows the summaries of all nodes.
    async fn watch(self: Rc<Self>, session: Rc<E::Session>) {
        let mut watch = match session.watch().await {
            Ok(watch) => watch,
            Err(error) => {
                return self.log_some(
                    Level::Warn,
                    "watch",
                    format_args!("summaries cannot be read: {error}"),
                );
            }
        };
        while let Ok(changes) = session.next_changes(&mut watch).await {
            let mut status = self.fleet.status.lock();
            changes.iter().for_each(|entry| status.set_node(&entry.key, entry.value.as_deref()));
        }
    }
}

/// Reason for stale caches.
const GAP: &str = "the log has dropped records that this node has not read";

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A purge that makes all of a cache stale.
fn stale(cache: &[u8]) -> FleetPurge {
    FleetPurge {
        cache: cache.to_vec(),
        scope: FleetPurgeScope::Prefix(Vec::new()),
        mode: FleetPurgeMode::Soft,
    }
}

/// Random number from 0 to 1.
fn jitter() -> f64 {
    let mut bytes = [0; 4];
    // Without random numbers all pauses are equal.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
}
