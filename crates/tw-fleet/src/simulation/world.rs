//! Engine of a simulation: one server in virtual time, and the connections of the nodes to it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tw_testkit::Random;

use super::machine::BEGINNING_MS;
use super::virtual_time::VirtualTime;
use crate::engine::{AnnouncementReader, Engine, EngineError, Log, LogReader, LogRecord, LogState, Session};
use crate::store::{Entry, Store, StoreChanges, StoreSettings, StoreWatch};

/// Records that a reader gets at once.
const BATCH: usize = 128;
/// Announcements that are on their way: those of some seconds of a hundred nodes.
const ANNOUNCEMENTS: usize = 2000;
/// Time after which a client notices that its server is gone.
const SILENCE: Duration = Duration::from_secs(3);

/// Record as the engine has it.
#[derive(Clone)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) time_ns: u64,
    pub(super) id: String,
    pub(super) payload: Vec<u8>,
}

/// Content of the engine at one time.
#[derive(Clone, Default)]
pub(super) struct Content {
    pub(super) records: Vec<Stored>,
    pub(super) last: u64,
    /// Records that it has ever acknowledged, with those that it has dropped for their age.
    pub(super) history: Vec<Stored>,
}

/// Server of the engine, with one link to each node.
pub(super) struct Server {
    time: Rc<VirtualTime>,
    random: RefCell<Random>,
    pub(super) content: RefCell<Content>,
    identity: RefCell<String>,
    /// Difference of its clock from that of the world, in nanoseconds.
    pub(super) clock_ns: Cell<i64>,
    values: RefCell<BTreeMap<String, (Vec<u8>, u64)>>,
    version: Cell<u64>,
    changed: Notify,
    announced: Notify,
    /// Number of the link of each node; another one after it was cut, and `None` while it is.
    links: RefCell<HashMap<String, Link>>,
    /// Announcements that nobody stores, with their numbers: the last ones.
    announcements: RefCell<VecDeque<(u64, Rc<[u8]>)>>,
    /// Percentage of announcements that are lost.
    pub(super) lost_announcements: Cell<usize>,
    /// Percentage of appends whose acknowledgement is lost.
    pub(super) lost_replies: Cell<usize>,
    /// False while readers of the log get nothing.
    pub(super) delivers: Cell<bool>,
    /// Longest delay in one direction.
    pub(super) delay_max: Cell<Duration>,
}

#[derive(Clone, Copy)]
struct Link {
    number: u64,
    is_up: bool,
}

impl Server {
    pub(super) fn new(time: Rc<VirtualTime>, seed: u64) -> Rc<Self> {
        Rc::new(Self {
            time,
            random: RefCell::new(Random::new(seed)),
            content: RefCell::default(),
            identity: RefCell::new("log-1".to_owned()),
            clock_ns: Cell::new(0),
            values: RefCell::default(),
            version: Cell::new(0),
            changed: Notify::new(),
            announced: Notify::new(),
            links: RefCell::default(),
            announcements: RefCell::default(),
            lost_announcements: Cell::new(0),
            lost_replies: Cell::new(0),
            delivers: Cell::new(true),
            delay_max: Cell::new(Duration::from_millis(20)),
        })
    }

    fn link(&self, node: &str) -> Link {
        self.links.borrow().get(node).copied().unwrap_or(Link { number: 0, is_up: true })
    }

    /// Ends the connection of a node, and connects it again or not.
    pub(super) fn set_link(&self, node: &str, is_up: bool) {
        let number = self.link(node).number + 1;
        self.links.borrow_mut().insert(node.to_owned(), Link { number, is_up });
        self.changed.notify_waiters();
        self.announced.notify_waiters();
    }

    /// Drops all connections, as at a restart.
    pub(super) fn restart(&self) {
        let nodes: Vec<_> = self.links.borrow().keys().cloned().collect();
        for node in nodes {
            let is_up = self.link(&node).is_up;
            self.set_link(&node, is_up);
        }
    }

    /// Restores the log as it was. Returns the records that are lost by that.
    pub(super) fn restore(&self, before: Content) -> Vec<Stored> {
        let now = std::mem::replace(&mut *self.content.borrow_mut(), before.clone());
        self.restart();
        let is_left = |record: &Stored| before.history.iter().any(|other| other.time_ns == record.time_ns);
        now.history.into_iter().filter(|record| !is_left(record)).collect()
    }

    /// Makes the log anew.
    pub(super) fn recreate(&self) -> Vec<Stored> {
        let name = format!("log-{}", self.random.borrow_mut().next_number());
        *self.identity.borrow_mut() = name;
        let lost = std::mem::take(&mut *self.content.borrow_mut()).history;
        self.restart();
        lost
    }

    /// Drops records, but for the last ones.
    pub(super) fn drop_old_records(&self, rest: usize) {
        let mut content = self.content.borrow_mut();
        let count = content.records.len().saturating_sub(rest);
        content.records.drain(..count);
    }

    async fn delay(&self) {
        let longest = usize::try_from(self.delay_max.get().as_micros()).unwrap();
        let micros = self.random.borrow_mut().below(longest.max(1));
        self.time.sleep(Duration::from_micros(micros as u64)).await;
    }
}

/// Engine as one node sees it.
pub(super) struct SimulatedEngine {
    pub(super) server: Rc<Server>,
    pub(super) node: String,
}

/// Connection of one node.
pub(super) struct Connection {
    server: Rc<Server>,
    node: String,
    link: u64,
}

/// Reader of the log or the store.
pub(super) struct Reader {
    session: Connection,
    next: u64,
}

/// Reader of announcements.
pub(super) struct AnnouncedTo {
    session: Connection,
    next: u64,
    read: VecDeque<Rc<[u8]>>,
}

impl Server {
    /// Sends an announcement to all who are connected.
    pub(super) fn say(&self, payload: &[u8]) {
        let mut announcements = self.announcements.borrow_mut();
        let number = announcements.back().map_or(0, |(number, _)| number + 1);
        announcements.push_back((number, payload.into()));
        if announcements.len() > ANNOUNCEMENTS {
            announcements.pop_front();
        }
        drop(announcements);
        self.announced.notify_waiters();
    }
}

impl AnnouncementReader for AnnouncedTo {
    async fn next(&mut self) -> Result<Vec<u8>, EngineError> {
        loop {
            if let Some(text) = self.read.pop_front() {
                if self
                    .session
                    .server
                    .random
                    .borrow_mut()
                    .happens(self.session.server.lost_announcements.get())
                {
                    continue;
                }
                return Ok(text.to_vec());
            }
            let next = self.next;
            let server = self.session.server.clone();
            let find = || {
                let announcements = server.announcements.borrow();
                let begin = announcements.partition_point(|(number, _)| *number < next);
                announcements.range(begin..).cloned().collect::<Vec<_>>()
            };
            let results = self.session.wait_for(&server.announced, find).await?;
            self.next = results.last().map_or(next, |(number, _)| number + 1);
            self.read.extend(results.into_iter().map(|(_, text)| text));
        }
    }
}

fn lost() -> EngineError {
    EngineError::Lost("it gives no sign of life".to_owned())
}

impl Engine for SimulatedEngine {
    type Session = Connection;

    async fn connect(&self) -> Result<Connection, EngineError> {
        self.server.delay().await;
        let link = self.server.link(&self.node);
        if !link.is_up {
            self.server.time.sleep(SILENCE).await;
            return Err(lost());
        }
        Ok(Connection { server: self.server.clone(), node: self.node.clone(), link: link.number })
    }

    fn server(&self, _: &Connection) -> String {
        "simulated 1".to_owned()
    }
}

impl Connection {
    fn is_up(&self) -> bool {
        let link = self.server.link(&self.node);
        link.is_up && link.number == self.link
    }

    /// Way to the server or back.
    async fn travel(&self) -> Result<(), EngineError> {
        self.server.delay().await;
        if self.is_up() {
            return Ok(());
        }
        self.server.time.sleep(SILENCE).await;
        Err(lost())
    }

    fn again(&self) -> Self {
        Self { server: self.server.clone(), node: self.node.clone(), link: self.link }
    }

    /// Waits until `find` has something, or the connection ends.
    async fn wait<T>(&self, find: impl FnMut() -> Vec<T>) -> Result<Vec<T>, EngineError> {
        self.wait_for(&self.server.changed, find).await
    }

    /// As [`wait`](Self::wait), whenever `news` is notified.
    async fn wait_for<T>(
        &self,
        news: &Notify,
        mut find: impl FnMut() -> Vec<T>,
    ) -> Result<Vec<T>, EngineError> {
        loop {
            let mut changed = std::pin::pin!(news.notified());
            changed.as_mut().enable();
            if !self.is_up() {
                return Err(lost());
            }
            let results = find();
            if !results.is_empty() {
                self.travel().await?;
                return Ok(results);
            }
            changed.await;
        }
    }
}

impl Session for Connection {
    type Store = Self;
    type Announcements = AnnouncedTo;

    async fn open_store(&self, _: &StoreSettings) -> Result<Self, EngineError> {
        Ok(self.again())
    }

    fn announce(&self, payload: &[u8]) -> Result<(), EngineError> {
        // The sender does not learn whether the announcement arrives.
        if self.is_up() {
            self.server.say(payload);
        }
        Ok(())
    }

    async fn announcements(&self) -> Result<AnnouncedTo, EngineError> {
        self.travel().await?;
        let next = self.server.announcements.borrow().back().map_or(0, |(number, _)| number + 1);
        Ok(AnnouncedTo { session: self.again(), next, read: VecDeque::new() })
    }
}

impl Log for Connection {
    type Reader = Reader;

    async fn state(&self) -> Result<LogState, EngineError> {
        self.travel().await?;
        let state = {
            let content = self.server.content.borrow();
            LogState {
                identity: self.server.identity.borrow().clone(),
                first: content.records.first().map_or(content.last + 1, |record| record.sequence),
                last: content.last,
            }
        };
        self.travel().await?;
        Ok(state)
    }

    async fn record_time(&self, sequence: u64) -> Result<Option<u64>, EngineError> {
        self.travel().await?;
        let time = {
            let content = self.server.content.borrow();
            content.records.iter().find(|record| record.sequence == sequence).map(|record| record.time_ns)
        };
        self.travel().await?;
        Ok(time)
    }

    async fn append(&self, id: &str, payload: &[u8]) -> Result<u64, EngineError> {
        self.travel().await?;
        let sequence = {
            let mut content = self.server.content.borrow_mut();
            match content.records.iter().rev().take(10_000).find(|record| record.id == id) {
                Some(known_stored) => known_stored.sequence,
                None => {
                    content.last += 1;
                    let now = u64::try_from(self.server.time.now().as_nanos()).unwrap();
                    let time_ns = (BEGINNING_MS * 1_000_000 + now)
                        .saturating_add_signed(self.server.clock_ns.get())
                        .saturating_add(content.last);
                    let sequence = content.last;
                    let id = id.to_owned();
                    let payload = payload.to_vec();
                    let stored = Stored { sequence, time_ns, id, payload };
                    content.history.push(stored.clone());
                    content.records.push(stored);
                    sequence
                }
            }
        };
        self.server.changed.notify_waiters();
        if self.server.random.borrow_mut().happens(self.server.lost_replies.get()) {
            self.server.set_link(&self.node, true);
        }
        self.travel().await?;
        Ok(sequence)
    }

    async fn read_from(&self, sequence: u64) -> Result<Reader, EngineError> {
        self.travel().await?;
        Ok(Reader { session: self.again(), next: sequence })
    }
}

impl LogReader for Reader {
    async fn next(&mut self) -> Result<Vec<LogRecord>, EngineError> {
        let next = self.next;
        let server = self.session.server.clone();
        let log_records = self
            .session
            .wait(|| {
                let content = server.content.borrow();
                if !server.delivers.get() {
                    return Vec::new();
                }
                let begin = content.records.partition_point(|record| record.sequence < next);
                let records = content.records[begin..].iter().take(BATCH);
                records
                    .map(|record| LogRecord {
                        sequence: record.sequence,
                        time_ns: record.time_ns,
                        pending: content.last - record.sequence,
                        payload: Some(record.payload.clone()),
                    })
                    .collect()
            })
            .await?;
        self.next = log_records.last().map_or(next, |record| record.sequence + 1);
        Ok(log_records)
    }
}

impl Store for Connection {
    type Watch = Reader;

    async fn get(&self, key: &str) -> Result<Option<Entry>, EngineError> {
        self.travel().await?;
        let entry = self.server.values.borrow().get(key).cloned();
        self.travel().await?;
        Ok(entry.map(|(value, version)| Entry { key: key.to_owned(), value: Some(value), version }))
    }

    async fn set(&self, key: &str, value: &[u8], expected: Option<u64>) -> Result<u64, EngineError> {
        self.travel().await?;
        let known_value = self.server.values.borrow().get(key).map_or(0, |(_, version)| *version);
        if expected.is_some_and(|expected| expected != known_value) {
            return Err(EngineError::Conflict);
        }
        let version = self.server.version.get() + 1;
        self.server.version.set(version);
        self.server.values.borrow_mut().insert(key.to_owned(), (value.to_vec(), version));
        self.server.changed.notify_waiters();
        self.travel().await?;
        Ok(version)
    }

    async fn remove(&self, key: &str, expected: Option<u64>) -> Result<(), EngineError> {
        self.set(key, b"", expected).await.map(drop)
    }

    async fn watch(&self) -> Result<Reader, EngineError> {
        self.travel().await?;
        Ok(Reader { session: self.again(), next: 0 })
    }
}

impl StoreWatch for Reader {
    async fn next(&mut self) -> Result<StoreChanges, EngineError> {
        let next = self.next;
        let server = self.session.server.clone();
        let find = || {
            let values = server.values.borrow();
            let newer = values.iter().filter(|(_, (_, version))| *version > next);
            let entry = |(key, (value, version)): (&String, &(Vec<u8>, u64))| Entry {
                key: key.clone(),
                value: Some(value.clone()),
                version: *version,
            };
            newer.map(entry).collect()
        };
        let entries = self.session.wait(find).await?;
        self.next = entries.iter().map(|entry| entry.version).max().unwrap_or(next);
        Ok(StoreChanges { entries, is_complete: true })
    }
}
