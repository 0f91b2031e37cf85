//! Connections of a loop, which of them are idle, and permits for `worker_connections`.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use tw_rt::TaskGroup;
use tw_rt::watch::Subject;

use super::connection_list::{ConnectionList, ConnectionSlot};
use super::tally::Tally;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Waiting connections closed at once to make room.
    const CLOSE_AT_ONCE: usize = 32, count, "the next connection closes more";
}

/// Connections of a loop, and which of them are idle.
#[derive(Default)]
pub struct Connections {
    /// A task for each connection.
    pub(super) tasks: TaskGroup,
    list: RefCell<ConnectionList<Weak<dyn ClientInfo>>>,
    /// Second in which the error log last said that connections are closed.
    pub(super) warned_at: Cell<i64>,
    /// Time at which the other loops were last asked for a descriptor that a file needs.
    pub(super) requested_at: Cell<Option<Instant>>,
}

/// Connections and files of one protocol that a loop can close to make room ([`LoopCore::add_idle_resources`](super::LoopCore::add_idle_resources)).
pub trait IdleResources {
    /// Closes the oldest idle connection to an upstream server, if there is one.
    fn close_idle_upstream(&self) -> Eviction;

    /// Closes an idle connection to an upstream server or a cached file without readers, if there is one, to free a
    /// descriptor.
    fn free_descriptor(&self) -> Eviction;
}

/// Facts that a loop needs about a client.
pub trait ClientInfo {
    /// Number of its connection: `*id` in log lines.
    fn id(&self) -> u64;

    /// Address of the client as text.
    fn address(&self) -> &str;
}

impl Connections {
    /// Number of connections.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether there are none")]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Spawns a task that belongs to no connection and is counted as one: a loop that ends waits for it.
    pub fn spawn_counted(&self, subject: Subject, future: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(subject, future);
    }

    /// Returns true if the loop is about to end: idle connections are then closed.
    pub fn is_stopping(&self) -> bool {
        self.tasks.is_stopping()
    }

    /// Adds a client and returns its slot.
    pub fn add_client(&self, client: Weak<dyn ClientInfo>) -> ConnectionSlot {
        self.list.borrow_mut().insert(client)
    }

    /// Removes a client.
    pub fn remove_client(&self, slot: &ConnectionSlot) {
        self.list.borrow_mut().remove(slot);
    }

    /// Evicts the eighth of the idle clients that has been idle longest, at most `CLOSE_AT_ONCE` (nginx's numbers).
    pub fn close_idle_clients(&self) -> Eviction {
        let mut list = self.list.borrow_mut();
        let count = (list.idle_count() / 8).clamp(1, CLOSE_AT_ONCE);
        let mut eviction = Eviction::NothingIdle;
        for _ in 0..count {
            let Some(waker) = list.evict_oldest() else { break };
            waker.wake();
            eviction = Eviction::Done;
        }
        eviction
    }

    /// Finds the client of a connection by its number. Searches all of them.
    pub(super) fn client(&self, id: u64) -> Option<Rc<dyn ClientInfo>> {
        self.list.borrow().iter().filter_map(Weak::upgrade).find(|client| client.id() == id)
    }
}

/// Result of making room by closing idle connections or files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Eviction {
    /// Something is closed, or will be when the tasks that were woken have run.
    Done,
    /// Nothing could be closed.
    NothingIdle,
}

/// Permit for one of the `worker_connections` of a loop, held by a connection to an upstream server.
#[derive(Debug)]
pub struct ConnectionPermit(pub(super) Arc<Tally>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.upstream_open.sub(1);
    }
}

/// Error if all `worker_connections` of a loop are in use and none is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionsExhausted {
    pub(super) limit: u64,
}

impl fmt::Display for ConnectionsExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker_connections are not enough", self.limit)
    }
}

/// Marks a connection as idle, and thus evictable, while it lives.
pub struct EvictableConnection<'c> {
    connections: &'c Connections,
    slot: &'c ConnectionSlot,
    has_begun: bool,
}

impl<'c> EvictableConnection<'c> {
    /// The connection is idle from the first [`poll_evicted`](Self::poll_evicted) on, which puts it at the end of the
    /// queue.
    pub fn new(connections: &'c Connections, slot: &'c ConnectionSlot) -> Self {
        Self { connections, slot, has_begun: false }
    }

    /// Ready when the connection is to be closed. Wakes the task of the first call.
    pub fn poll_evicted(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut list = self.connections.list.borrow_mut();
        if !self.has_begun {
            self.has_begun = true;
            list.mark_idle(self.slot, cx.waker().clone());
        }
        if list.is_idle(self.slot) { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for EvictableConnection<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            self.connections.list.borrow_mut().mark_busy(self.slot);
        }
    }
}
