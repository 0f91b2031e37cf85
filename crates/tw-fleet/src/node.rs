//! State of the thread of a fleet: its engine, its connection, and what is to be applied and published.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tw_log::Level;

use crate::announcer::Announcer;
use crate::directory::SavedPosition;
use crate::engine::{Engine, Session};
use crate::fleet::Fleet;
use crate::host::{Host, NodeDisk};
use crate::name_conflict::NameWatch;
use crate::record::FleetPurge;
use crate::unconfirmed::Unconfirmed;

/// Time between two messages of one kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Purges of a fleet that are recognised when they come again.
    ///
    /// Identifiers of purges that are remembered, so that none is applied twice.
    const RECENT_MAX: usize = 65_536, count, "an older one is applied again";
}

/// Receiver of messages for the log.
pub type LogFn = Arc<dyn Fn(Level, fmt::Arguments<'_>) + Send + Sync>;

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

/// State of the thread.
pub(crate) struct Node<E: Engine> {
    pub(crate) engine: E,
    pub(crate) host: Box<dyn Host>,
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) caches: RefCell<Arc<dyn NodeCaches>>,
    pub(crate) log_line: RefCell<LogFn>,
    pub(crate) logged: RefCell<HashMap<&'static str, Duration>>,
    pub(crate) role: Cell<Role>,
    /// Position and queue on disk, while no other process has the right to write them.
    pub(crate) disk: RefCell<Option<Box<dyn NodeDisk>>>,
    pub(crate) to_queue: RefCell<Vec<QueuedPurge>>,
    /// Notified when something is to be written to the queue.
    pub(crate) has_queued: Notify,
    /// Notified when the queue may be published.
    pub(crate) has_work: Notify,
    /// Connection whose log continues the position.
    pub(crate) session: RefCell<Option<Rc<E::Session>>>,
    /// Stores of that connection that are open, by name.
    pub(crate) stores: RefCell<HashMap<&'static str, Rc<<E::Session as Session>::Store>>>,
    pub(crate) session_changed: Notify,
    pub(crate) away_since: Cell<Duration>,
    /// Position and caches; `None` until they are read.
    pub(crate) state: RefCell<Option<SavedPosition>>,
    /// Purges that were read and are not saved yet, by cache.
    pub(crate) unapplied: RefCell<BTreeMap<Vec<u8>, Vec<FleetPurge>>>,
    /// Number of tasks that apply purges: until they end, the position is not saved.
    pub(crate) applying: Cell<u32>,
    /// True if the state differs from that on disk.
    pub(crate) is_changed: Cell<bool>,
    pub(crate) recent: RefCell<RecentIds>,
    pub(crate) unconfirmed: RefCell<Unconfirmed>,
    /// Word of this process.
    pub(crate) process: String,
    pub(crate) announcer: Announcer,
    pub(crate) name_watch: RefCell<NameWatch>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Active,
    /// Another process of this node has taken over.
    Retired,
}

/// Identifiers of the last purges.
#[derive(Debug, Default)]
pub(crate) struct RecentIds {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl RecentIds {
    /// Remembers an identifier. Returns false if it was known.
    pub(crate) fn insert(&mut self, id: &str) -> bool {
        if !self.ids.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > RECENT_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        true
    }
}

/// Purge that is to be written to the queue, and who waits for that.
pub(crate) type QueuedPurge = (Vec<u8>, oneshot::Sender<Result<(), String>>);

impl<E: Engine + 'static> Node<E> {
    pub(crate) fn new(
        engine: E,
        host: Box<dyn Host>,
        fleet: Arc<Fleet>,
        caches: Arc<dyn NodeCaches>,
        log: LogFn,
    ) -> Rc<Self> {
        let now = host.now();
        // Without random numbers a conflict of node names is not noticed.
        let process = host.random_word().unwrap_or_default();
        Rc::new(Self {
            engine,
            host,
            fleet,
            caches: RefCell::new(caches),
            log_line: RefCell::new(log),
            logged: RefCell::default(),
            role: Cell::new(Role::Active),
            disk: RefCell::default(),
            to_queue: RefCell::default(),
            has_queued: Notify::new(),
            has_work: Notify::new(),
            session: RefCell::default(),
            stores: RefCell::default(),
            session_changed: Notify::new(),
            away_since: Cell::new(now),
            state: RefCell::default(),
            unapplied: RefCell::default(),
            applying: Cell::new(0),
            is_changed: Cell::new(false),
            recent: RefCell::default(),
            unconfirmed: RefCell::default(),
            process,
            announcer: Announcer::new(now),
            name_watch: RefCell::default(),
        })
    }

    pub(crate) fn log(&self, level: Level, message: fmt::Arguments<'_>) {
        let log = self.log_line.borrow().clone();
        log(level, format_args!("fleet \"{}\": {message}", self.fleet.settings().name));
    }

    /// Logs one message of a kind a minute.
    pub(crate) fn log_some(&self, level: Level, kind: &'static str, message: fmt::Arguments<'_>) {
        let now = self.host.now();
        let mut logged = self.logged.borrow_mut();
        if logged.get(kind).is_none_or(|last| now.saturating_sub(*last) >= LOG_INTERVAL) {
            logged.insert(kind, now);
            drop(logged);
            self.log(level, message);
        }
    }
}
