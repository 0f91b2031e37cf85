//! Room for new connections, when `worker_connections` are used up or the process has no descriptor left.
//!
//! Connections to upstream servers count among `worker_connections`, idle ones, too. Those are closed first, the oldest
//! before the others, and for a descriptor also files that nobody reads. Then connections that wait for a request, or only
//! for their client to be done (`lingering_close`), are closed, the longest waiting first. A loop that has no descriptor and
//! none of these asks the others.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tw_base::Limit;
use tw_net::AcceptError;
use tw_rt::TaskGroup;
use tw_rt::watch::Subject;

use super::balance::Asked;
use super::roll::{Place, Roll};
use super::tally::Tally;
use super::{Application, Connected, Loop};

/// Waiting connections closed at once to make room.
const CLOSE_AT_ONCE: usize = 32;
/// What other loops have to close something in: a few turns. For as long they are not asked again.
const SIBLING_TIME: Duration = Duration::from_millis(10);

pub(super) const LIMIT: Limit = Limit::count(
    "CLOSE_AT_ONCE",
    CLOSE_AT_ONCE as u64,
    "Waiting connections closed at once to make room",
    "the next connection closes more",
);

/// Who is connected to a loop, and who could go.
pub struct Connections<C> {
    /// A task for each connection.
    pub(super) tasks: TaskGroup,
    roll: RefCell<Roll<Weak<C>>>,
    /// The second in which an operator was last told that connections are closed.
    told: Cell<i64>,
    /// When the other loops were last asked for a descriptor that a file needs.
    asked: Cell<Option<Instant>>,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self { tasks: TaskGroup::new(), roll: RefCell::default(), told: Cell::new(0), asked: Cell::new(None) }
    }
}

impl<C> Connections<C> {
    /// How many there are.
    #[expect(clippy::len_without_is_empty, reason = "nobody asks whether there are none")]
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Runs what belongs to no connection and is counted as one: a loop that ends waits for it.
    pub fn run_beside(&self, subject: Subject, future: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(subject, future);
    }

    /// Whether the loop is about to end: who waits for a request is told to go.
    pub fn is_stopping(&self) -> bool {
        self.tasks.is_stopping()
    }

    /// Gives a client its place; it leaves it when it is dropped.
    pub fn enter(&self, client: Weak<C>) -> Place {
        self.roll.borrow_mut().enter(client)
    }

    /// Forgets a client.
    pub fn leave(&self, place: &Place) {
        self.roll.borrow_mut().leave(place);
    }

    /// Asks the eighth of the waiting connections that waits longest to close, at most `CLOSE_AT_ONCE` (nginx's
    /// numbers).
    pub fn close_waiting(&self) -> Room {
        let mut roll = self.roll.borrow_mut();
        let count = (roll.waiting() / 8).clamp(1, CLOSE_AT_ONCE);
        let mut room = Room::None;
        for _ in 0..count {
            let Some(waker) = roll.call() else { break };
            waker.wake();
            room = Room::Made;
        }
        room
    }
}

impl<C: Connected> Connections<C> {
    /// The client of a connection, by its number. Looks at all of them.
    pub(super) fn client(&self, id: u64) -> Option<Rc<C>> {
        self.roll.borrow().all().filter_map(Weak::upgrade).find(|client| client.id() == id)
    }
}

/// Whether there is room, or will be once the tasks that were woken have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Room {
    /// There is, or will be.
    Made,
    /// Nothing can be closed.
    None,
}

/// One of the `worker_connections` of a loop, taken by a connection to an upstream server until this is dropped.
#[derive(Debug)]
pub struct ConnectionPermit(Arc<Tally>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.upstream_open.sub(1);
    }
}

/// Error of a loop whose `worker_connections` are all in use, none of them idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionsExhausted {
    limit: u64,
}

impl fmt::Display for ConnectionsExhausted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} worker_connections are not enough", self.limit)
    }
}

impl<A: Application> Loop<A> {
    /// Takes one of `worker_connections` for a connection to an upstream server.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub fn reserve_upstream_connection(&self) -> Result<ConnectionPermit, ConnectionsExhausted> {
        self.ensure_room()?;
        self.tally.upstream_open.add(1);
        Ok(ConnectionPermit(self.tally.share()))
    }

    /// Sees to it that one more connection can be opened, closing idle ones if all are in use.
    ///
    /// # Errors
    /// All are in use, and none is idle.
    pub(super) fn ensure_room(&self) -> Result<(), ConnectionsExhausted> {
        let limit = self.connections_max();
        if self.connections_in_use() >= limit && self.make_room(limit) == Room::None {
            return Err(ConnectionsExhausted { limit });
        }
        Ok(())
    }

    /// Connections to clients and to upstream servers.
    pub(super) fn connections_in_use(&self) -> u64 {
        self.connections.len() as u64 + self.tally.upstream_open.value()
    }

    /// Makes room for a connection where `limit` are open.
    // DIFF(nginx): nginx begins when less than a sixteenth is free, because a connection it closes may linger.
    fn make_room(&self, limit: u64) -> Room {
        // DIFF(nginx): idle connections to upstream servers are closed, too, and first.
        let room = match self.app.close_idle_upstream() {
            Room::Made => Room::Made,
            Room::None => self.connections.close_waiting(),
        };
        if room == Room::Made {
            self.tell(format_args!("{limit} worker_connections are not enough, reusing connections"));
        }
        room
    }

    /// Makes room for a connection that could not be accepted, if that was for want of a descriptor.
    // DIFF(nginx): nginx only waits until there is one.
    pub(super) fn free_descriptors(&self, error: AcceptError) -> Room {
        if !error.is_exhaustion() {
            return Room::None;
        }
        let room = self.free_own_descriptors();
        match room {
            Room::Made => self.tell(format_args!("{error}, reusing connections")),
            Room::None => {
                self.ask_siblings_for_descriptors();
            }
        }
        room
    }

    /// Makes room for a file that could not be opened, or made, for want of a descriptor. Returns when it is worth trying
    /// again, or at once if there is nothing that could be closed.
    pub async fn free_descriptor(&self) -> Room {
        if self.free_own_descriptors() == Room::Made {
            // Connections close when their tasks run.
            tw_rt::requeue().await;
            return Room::Made;
        }
        let now = tw_rt::clock::now();
        let is_due = |asked: Instant| now.saturating_duration_since(asked) >= SIBLING_TIME;
        if self.connections.asked.get().is_none_or(is_due) {
            self.connections.asked.set(Some(now));
            if self.ask_siblings_for_descriptors() == Asked::Nobody {
                return Room::None;
            }
        }
        tokio::time::sleep(SIBLING_TIME).await;
        Room::Made
    }

    /// Does what it can for a loop that has nothing to close.
    pub(super) fn help_out(&self) {
        if self.free_own_descriptors() == Room::Made {
            // It pauses before it asks again.
            let generation = self.generation();
            tw_log::warn!(generation.error_log, "another loop has no descriptor left, reusing connections");
        }
    }

    fn free_own_descriptors(&self) -> Room {
        match self.app.free_descriptor() {
            Room::Made => Room::Made,
            Room::None => self.connections.close_waiting(),
        }
    }

    /// Warns once a second.
    fn tell(&self, message: fmt::Arguments<'_>) {
        let now = tw_rt::clock::unix().secs;
        if self.connections.told.replace(now) != now {
            tw_log::warn!(self.generation().error_log, "{message}");
        }
    }
}

/// A connection that can be closed to make room, as long as this lives.
pub struct Expendable<'c, C> {
    connections: &'c Connections<C>,
    place: &'c Place,
    has_begun: bool,
}

impl<'c, C> Expendable<'c, C> {
    /// From the first [`poll_called`](Self::poll_called) on, in which it goes to the end of the queue.
    pub fn new(connections: &'c Connections<C>, place: &'c Place) -> Self {
        Self { connections, place, has_begun: false }
    }

    /// Ready when the connection is to be closed. The task of the first call is woken then.
    pub fn poll_called(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut roll = self.connections.roll.borrow_mut();
        if !self.has_begun {
            self.has_begun = true;
            roll.wait(self.place, cx.waker().clone());
        }
        if roll.waits(self.place) { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl<C> Drop for Expendable<'_, C> {
    fn drop(&mut self) {
        if self.has_begun {
            self.connections.roll.borrow_mut().go_on(self.place);
        }
    }
}
