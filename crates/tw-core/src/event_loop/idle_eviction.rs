//! Eviction of idle connections when `worker_connections` are used up or the process runs out of file descriptors.
//!
//! Connections to upstream servers count among `worker_connections`, idle ones too. Those are closed first, the
//! oldest first, and to free a descriptor also cached files without readers. Then clients are closed that are idle
//! between requests or only linger (`lingering_close`), the longest idle first. A loop that has no descriptor and
//! none of these asks the other loops.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_disk::{DiskError, Errno};
use tw_log::Level;
use tw_net::AcceptError;
use tw_rt::TaskGroup;
use tw_rt::watch::Subject;

use super::balance::SiblingRequest;
use super::connection_list::{ConnectionList, ConnectionSlot};
use super::tally::Tally;
use super::{ClientInfo, LoopCore};

/// Time for other loops to close connections: a few turns. No second request is sent before it is over.
const SIBLING_TIME: Duration = Duration::from_millis(10);

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
    warned_at: Cell<i64>,
    /// Time at which the other loops were last asked for a descriptor that a file needs.
    requested_at: Cell<Option<Instant>>,
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
}

impl Connections {
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
pub struct ConnectionPermit(Arc<Tally>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.upstream_open.sub(1);
    }
}

/// Error if all `worker_connections` of a loop are in use and none is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionsExhausted {
    limit: u64,
}

impl fmt::Display for ConnectionsExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker_connections are not enough", self.limit)
    }
}

impl LoopCore {
    /// Reserves one of `worker_connections` for a connection to an upstream server.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub fn reserve_upstream_connection(&self) -> Result<ConnectionPermit, ConnectionsExhausted> {
        self.ensure_connection_available()?;
        self.tally.upstream_open.add(1);
        Ok(ConnectionPermit(self.tally.share()))
    }

    /// Makes sure that one more connection can be opened, and closes idle ones if all are in use.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub(super) fn ensure_connection_available(&self) -> Result<(), ConnectionsExhausted> {
        let limit = self.connections_max();
        if self.connections_in_use() >= limit && self.evict_idle_connection(limit) == Eviction::NothingIdle {
            return Err(ConnectionsExhausted { limit });
        }
        Ok(())
    }

    /// Number of connections to clients and to upstream servers.
    pub(super) fn connections_in_use(&self) -> u64 {
        self.connections.len() as u64 + self.tally.upstream_open.value()
    }

    /// Closes idle connections where `limit` connections are open.
    // DIFF(nginx): nginx begins when less than a sixteenth is free, because a connection it closes may linger.
    fn evict_idle_connection(&self, limit: u64) -> Eviction {
        // DIFF(nginx): idle connections to upstream servers are closed, too, and first.
        let eviction = match self.evict_resource(|resources| resources.close_idle_upstream()) {
            Eviction::Done => Eviction::Done,
            Eviction::NothingIdle => self.connections.close_idle_clients(),
        };
        if eviction == Eviction::Done {
            self.log_once_a_second(
                Level::Warn,
                format_args!("{limit} worker_connections are not enough, reusing connections"),
            );
        }
        eviction
    }

    /// Frees descriptors after a connection could not be accepted for want of one.
    // DIFF(nginx): nginx only waits until there is one.
    pub(super) fn free_descriptors(&self, error: AcceptError) -> Eviction {
        if !error.is_exhaustion() {
            return Eviction::NothingIdle;
        }
        let eviction = self.free_own_descriptors();
        match eviction {
            Eviction::Done => {
                self.log_once_a_second(Level::Warn, format_args!("{error}, reusing connections"));
            }
            Eviction::NothingIdle => {
                self.request_descriptors_from_siblings();
            }
        }
        eviction
    }

    /// Frees a descriptor after a file could not be opened or created for want of one. Returns when another try makes
    /// sense, or at once if nothing can be closed.
    pub async fn free_descriptor(&self) -> Eviction {
        if self.free_own_descriptors() == Eviction::Done {
            // Connections close when their tasks run.
            tw_rt::requeue().await;
            return Eviction::Done;
        }
        let now = tw_rt::clock::now();
        let is_due = |requested_at: Instant| now.saturating_duration_since(requested_at) >= SIBLING_TIME;
        if self.connections.requested_at.get().is_none_or(is_due) {
            self.connections.requested_at.set(Some(now));
            if self.request_descriptors_from_siblings() == SiblingRequest::NoSiblings {
                return Eviction::NothingIdle;
            }
        }
        tokio::time::sleep(SIBLING_TIME).await;
        Eviction::Done
    }

    /// Runs `attempt`, which needs a descriptor, and once more if there was none and one could be freed.
    ///
    /// # Errors
    /// Error of the last attempt.
    pub async fn retry_with_descriptor<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        let first = attempt().await;
        let Err(DiskError::Os { errno: Errno::MFILE | Errno::NFILE, .. }) = &first else { return first };
        match self.free_descriptor().await {
            Eviction::Done => attempt().await,
            Eviction::NothingIdle => first,
        }
    }

    /// Frees descriptors for a loop that has nothing to close.
    pub(super) fn free_descriptors_for_sibling(&self) {
        if self.free_own_descriptors() == Eviction::Done {
            // The other loop pauses before it asks again, which limits these log lines.
            tw_log::warn!(
                self.process().error_log,
                "another loop has no descriptor left, reusing connections"
            );
        }
    }

    fn free_own_descriptors(&self) -> Eviction {
        match self.evict_resource(|resources| resources.free_descriptor()) {
            Eviction::Done => Eviction::Done,
            Eviction::NothingIdle => self.connections.close_idle_clients(),
        }
    }

    /// Writes a line about connections into the error log, at most one a second.
    pub fn log_once_a_second(&self, level: Level, message: fmt::Arguments<'_>) {
        let now = tw_rt::clock::unix().secs;
        if self.connections.warned_at.replace(now) != now {
            tw_log::write_at!(self.process().error_log, level, "{message}");
        }
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
