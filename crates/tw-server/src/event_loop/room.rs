//! Room for new connections, when `worker_connections` are used up or the process has no descriptor left.
//!
//! Files that nobody reads are closed for a descriptor. Then connections that wait for a request, or only for their client
//! to be done (`lingering_close`), are closed, the longest waiting first. A loop that has neither asks the others.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::{Rc, Weak};
use std::task::{Context, Poll};

use tw_base::Limit;
use tw_disk::Errno;
use tw_net::AcceptError;

use super::Loop;
use super::roll::{Place, Roll};
use crate::http::client::Client;

/// Waiting connections closed at once to make room.
const CLOSE_AT_ONCE: usize = 32;

pub(super) const LIMIT: Limit = Limit::count(
    "CLOSE_AT_ONCE",
    CLOSE_AT_ONCE as u64,
    "Waiting connections closed at once to make room",
    "the next connection closes more",
);

/// Who is connected, and who could go.
#[derive(Default)]
pub(super) struct Clients {
    roll: RefCell<Roll<Weak<Client>>>,
    /// The second in which an operator was last told that connections are closed.
    told: Cell<i64>,
}

/// Whether there is room, or will be once the tasks that were woken have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Room {
    /// There is, or will be.
    Made,
    /// Nothing can be closed.
    None,
}

impl Loop {
    /// Gives a client its place; it leaves it when it is dropped.
    pub(crate) fn enter(&self, client: Weak<Client>) -> Place {
        self.clients.roll.borrow_mut().enter(client)
    }

    /// Forgets a client.
    pub(crate) fn leave(&self, place: &Place) {
        self.clients.roll.borrow_mut().leave(place);
    }

    /// The client of a connection, by its number. Looks at all of them.
    pub(super) fn client(&self, id: u64) -> Option<Rc<Client>> {
        self.clients.roll.borrow().all().filter_map(Weak::upgrade).find(|client| client.id == id)
    }

    /// Makes room for a connection where `limit` are open.
    // DIFF(nginx): nginx begins when less than a sixteenth is free, because a connection it closes may linger.
    pub(super) fn make_room(&self, limit: u64) -> Room {
        let room = self.close_waiting();
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
            Room::None => self.ask_siblings_for_descriptors(),
        }
        room
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
        match self.files.borrow_mut().made_room(Errno::MFILE) {
            true => Room::Made,
            false => self.close_waiting(),
        }
    }

    /// Asks the eighth of the waiting connections that waits longest to close, at most [`CLOSE_AT_ONCE`] (nginx's
    /// numbers).
    pub(crate) fn close_waiting(&self) -> Room {
        let mut roll = self.clients.roll.borrow_mut();
        let count = (roll.waiting() / 8).clamp(1, CLOSE_AT_ONCE);
        let mut room = Room::None;
        for _ in 0..count {
            let Some(waker) = roll.call() else { break };
            waker.wake();
            room = Room::Made;
        }
        room
    }

    /// Warns once a second.
    fn tell(&self, message: fmt::Arguments<'_>) {
        let now = tw_rt::clock::unix().secs;
        if self.clients.told.replace(now) != now {
            tw_log::warn!(self.generation().error_log, "{message}");
        }
    }
}

/// A connection that can be closed to make room, as long as this lives.
pub(crate) struct Expendable<'c> {
    client: &'c Client,
    has_begun: bool,
}

impl<'c> Expendable<'c> {
    /// From the first [`poll_called`](Self::poll_called) on, in which it goes to the end of the queue.
    pub(crate) fn new(client: &'c Client) -> Self {
        Self { client, has_begun: false }
    }

    /// Ready when the connection is to be closed. The task of the first call is woken then.
    pub(crate) fn poll_called(&mut self, cx: &Context<'_>) -> Poll<()> {
        let mut roll = self.client.home.clients.roll.borrow_mut();
        if !self.has_begun {
            self.has_begun = true;
            roll.wait(&self.client.place, cx.waker().clone());
        }
        if roll.waits(&self.client.place) { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl Drop for Expendable<'_> {
    fn drop(&mut self) {
        if self.has_begun {
            self.client.home.clients.roll.borrow_mut().go_on(&self.client.place);
        }
    }
}
