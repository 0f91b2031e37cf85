//! Sessions over datagrams of a loop, and the client end of each: its queue, its place among those that are idle, and its end.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustix::net::SocketAddrAny;
use tw_core::event_loop::{
    ConnectionList, ConnectionSlot, Counts, DatagramListener, Eviction, IdleResources, LoopCore,
};
use tw_log::Level;
use tw_net::Addr;
use tw_rt::{OutgoingMessage, SendOutcome};

use crate::session_record::InheritedSession;

/// Part of `worker_connections` that sessions over datagrams may be: each has a connection to an upstream server beside it.
const SESSIONS_PART: u64 = 2;

/// Time after a change of the number of loops in which a loop may not have heard of it.
const CHANGE_TIME: Duration = Duration::from_secs(1);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Sessions over UDP on one loop: half as many.
    directive "worker_connections", "the session ends that has been idle longest";
    /// Datagrams of a client that wait for its session.
    const QUEUED_DATAGRAMS_MAX: usize = 64, count, "further ones are dropped, and counted";
    /// Bytes of datagrams of a client that wait for its session.
    const QUEUED_BYTES_MAX: usize = 256 << 10, bytes, "further ones are dropped, and counted";
    /// Bytes of datagrams that wait for all sessions of one loop.
    const QUEUED_OF_LOOP_MAX: usize = 16 << 20, bytes, "further ones are dropped, and counted";
}

/// Addresses that a session is known by, on whichever loop.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct SessionKey {
    /// Listening address of the configuration.
    listen: Addr,
    pub(crate) peer: Addr,
    local: Option<IpAddr>,
}

/// Origin of the datagrams of a session.
pub(crate) struct Origin {
    pub(crate) listener: Rc<DatagramListener>,
    pub(crate) peer: Option<SocketAddrAny>,
    /// Address that answers come from; `None` if the socket has one address.
    pub(crate) from: Option<IpAddr>,
    pub(crate) listen: Rc<Addr>,
    /// `None` for a Unix socket without a name: each of its datagrams is a session.
    pub(crate) key: Option<SessionKey>,
}

/// Sessions over datagrams of one loop.
pub(crate) struct DatagramSessions {
    /// Sessions that take further datagrams.
    by_key: RefCell<HashMap<SessionKey, Rc<DatagramClient>>>,
    /// All sessions, the longest idle first.
    all: RefCell<ConnectionList<Weak<DatagramClient>>>,
    /// Bytes in all queues.
    queued: Cell<usize>,
    /// Time until which other loops may have older sessions that they have not counted.
    forwards_until: Cell<Option<Instant>>,
    /// Listening sockets whose datagrams are on their way through other loops.
    listeners: RefCell<Vec<Weak<DatagramListener>>>,
    counts: Arc<Counts>,
    core: Weak<LoopCore>,
    /// Beginner of sessions by the current configuration.
    starter: OnceCell<Weak<dyn DatagramStarter>>,
}

/// Beginner of sessions over datagrams by the current configuration of the loop.
pub(crate) trait DatagramStarter {
    /// Begins another session with what is left in the queue of a client, unless there is none to be begun.
    fn begin_next(&self, client: &DatagramClient);
}

/// End of a session that does not come from the session itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatagramEnding {
    /// Need of its place.
    Evicted,
    /// The address it came by is not listened on any more.
    AddressGone,
}

/// Client end of a session over datagrams.
pub struct DatagramClient {
    pub(crate) origin: Rc<Origin>,
    queue: RefCell<Queue>,
    slot: ConnectionSlot,
    is_address_gone: Cell<bool>,
    /// True if it is older than the present number of loops, so that its datagrams may arrive on another one.
    is_moved: Cell<bool>,
    /// State of a session that another process has begun, until the content handler has it.
    pub(crate) inherited: Cell<Option<Box<InheritedSession>>>,
    pub(crate) sessions: Rc<DatagramSessions>,
}

/// Datagrams that wait for the session.
#[derive(Default)]
struct Queue {
    datagrams: VecDeque<Bytes>,
    bytes: usize,
    /// Task of the session, once it has looked at the queue.
    waker: Option<Waker>,
}

impl DatagramSessions {
    pub(crate) fn new(core: &Rc<LoopCore>) -> Rc<Self> {
        let sessions = Rc::new(Self {
            by_key: RefCell::default(),
            all: RefCell::default(),
            queued: Cell::new(0),
            // If a reload has added this loop, other loops may have sessions already.
            forwards_until: Cell::new(core.has_siblings().then(|| tw_rt::clock::now() + CHANGE_TIME)),
            listeners: RefCell::default(),
            counts: core.counts.clone(),
            core: Rc::downgrade(core),
            starter: OnceCell::new(),
        });
        let resources: Weak<dyn IdleResources> = Rc::downgrade(&(sessions.clone() as Rc<dyn IdleResources>));
        core.add_idle_resources(resources);
        sessions
    }

    /// Sets what begins sessions by the current configuration. Called once.
    pub(crate) fn set_starter(&self, starter: Weak<dyn DatagramStarter>) {
        let _ = self.starter.set(starter);
    }

    /// Ends all sessions of the listening sockets that `is_of` selects.
    pub(crate) fn end(&self, is_of: impl Fn(u64) -> bool) {
        let all: Vec<_> = self.all.borrow().iter().filter_map(Weak::upgrade).collect();
        for client in all.iter().filter(|client| is_of(client.origin.listener.id)) {
            client.is_address_gone.set(true);
            client.wake();
        }
    }

    /// Records that the number of loops has changed.
    pub(crate) fn mark_moved(&self) {
        self.forwards_until.set(Some(tw_rt::clock::now() + CHANGE_TIME));
        let all: Vec<_> = self.all.borrow().iter().filter_map(Weak::upgrade).collect();
        all.iter().for_each(|client| client.mark_moved());
    }

    /// Returns true if the session of a datagram may be on another loop.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        if self.counts.moved_datagram_sessions.load(Relaxed) > 0 {
            return true;
        }
        match self.forwards_until.get() {
            Some(until) if tw_rt::clock::now() < until => true,
            Some(_) => {
                self.forwards_until.set(None);
                false
            }
            None => false,
        }
    }

    /// Remembers a listening socket while its datagrams are elsewhere.
    pub(crate) fn remember(&self, listener: &Rc<DatagramListener>) {
        let mut listeners = self.listeners.borrow_mut();
        listeners.retain(|known| known.upgrade().is_some_and(|known| known.id != listener.id));
        listeners.push(Rc::downgrade(listener));
    }

    pub(crate) fn listener(&self, id: u64) -> Option<Rc<DatagramListener>> {
        self.listeners.borrow().iter().filter_map(Weak::upgrade).find(|listener| listener.id == id)
    }

    pub(crate) fn find(&self, key: Option<&SessionKey>) -> Option<Rc<DatagramClient>> {
        let client = self.by_key.borrow().get(key?).cloned();
        // A session that is about to end, but has not run since, would lose the datagram.
        client.filter(|client| client.ending().is_none())
    }

    /// Ends the session that has been idle longest.
    fn evict_oldest(&self) -> Eviction {
        let Some(waker) = self.all.borrow_mut().evict_oldest() else { return Eviction::NothingIdle };
        waker.wake();
        if let Some(core) = self.core.upgrade() {
            core.tally.datagram_sessions_evicted.add(1);
        }
        Eviction::Done
    }

    // DIFF(nginx): an older session ends, not the new one.
    /// Makes room for one more session.
    pub(crate) fn make_room(&self, core: &LoopCore) {
        let max = (core.process().main.worker_connections / SESSIONS_PART).max(1);
        if self.all.borrow().idle_count() as u64 >= max && self.evict_oldest() == Eviction::Done {
            core.log_once_a_second(
                Level::Warn,
                format_args!(
                    "{max} sessions over UDP are not enough (worker_connections), reusing the longest idle"
                ),
            );
        }
    }
}

impl IdleResources for DatagramSessions {
    fn close_idle_upstream(&self) -> Eviction {
        self.evict_oldest()
    }

    fn free_descriptor(&self) -> Eviction {
        self.evict_oldest()
    }
}

impl SessionKey {
    /// The key of a datagram; `None` for a Unix socket without a name.
    pub(crate) fn new(listen: &Addr, peer: Option<SocketAddrAny>, local: Option<IpAddr>) -> Option<Self> {
        match Addr::from(peer) {
            Addr::Unix(None) => None,
            peer => Some(Self { listen: listen.clone(), peer, local }),
        }
    }
}

impl DatagramClient {
    /// A client of a session that begins. It is added to the sessions of the loop.
    pub(crate) fn new(origin: Rc<Origin>, sessions: &Rc<DatagramSessions>) -> Rc<Self> {
        let client = Rc::new_cyclic(|client| {
            let mut all = sessions.all.borrow_mut();
            let slot = all.insert(client.clone());
            all.mark_idle(&slot, Waker::noop().clone());
            drop(all);
            let queue = RefCell::default();
            let is_address_gone = Cell::new(false);
            let is_moved = Cell::new(false);
            let inherited = Cell::new(None);
            let sessions = sessions.clone();
            Self { origin, queue, slot, is_address_gone, is_moved, inherited, sessions }
        });
        if let Some(key) = &client.origin.key {
            sessions.by_key.borrow_mut().insert(key.clone(), client.clone());
        }
        client
    }

    /// Records that the datagrams of the session may arrive on another loop.
    pub(crate) fn mark_moved(&self) {
        if !self.is_moved.replace(true) {
            self.sessions.counts.moved_datagram_sessions.fetch_add(1, Relaxed);
        }
    }

    /// State of a session that another process has begun.
    pub(crate) fn take_inherited(&self) -> Option<Box<InheritedSession>> {
        self.inherited.take()
    }

    /// Addresses of the session for another process: the listening address, the client, and the address that answers come from. `None` if the
    /// client has no address there.
    pub(crate) fn addresses(&self) -> Option<(SocketAddr, SocketAddr, Option<IpAddr>)> {
        let client = SocketAddr::try_from(self.origin.peer.clone()?).ok()?;
        // A record has no interface, without which such an address is none.
        let has_interface = matches!(client, SocketAddr::V6(client) if client.scope_id() != 0);
        (!has_interface).then_some((self.origin.listen.inet()?, client, self.origin.from))
    }

    /// Returns true if datagrams of the session may arrive on another loop.
    pub(crate) fn is_moved(&self) -> bool {
        self.is_moved.get()
    }

    /// Returns true if datagrams wait in the queue.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.borrow().datagrams.is_empty()
    }

    /// Adds a datagram to the queue, or drops it if that is full.
    pub(crate) fn push(&self, core: &LoopCore, datagram: Bytes) {
        let mut queue = self.queue.borrow_mut();
        let len = datagram.len();
        let queued = self.sessions.queued.get();
        let is_full = queue.datagrams.len() >= QUEUED_DATAGRAMS_MAX
            || !queue.datagrams.is_empty() && queue.bytes + len > QUEUED_BYTES_MAX
            || queued + len > QUEUED_OF_LOOP_MAX;
        if is_full {
            return core.tally.datagrams_dropped.add(1);
        }
        self.sessions.queued.set(queued + len);
        queue.bytes += len;
        queue.datagrams.push_back(datagram);
        let waker = queue.waker.as_ref().unwrap_or(Waker::noop());
        // Now: until its task runs, others may need a place.
        self.touch(waker);
        waker.wake_by_ref();
    }

    /// Takes the next datagram out of the queue.
    pub(crate) fn take(&self) -> Option<Bytes> {
        let mut queue = self.queue.borrow_mut();
        let datagram = queue.datagrams.pop_front()?;
        queue.bytes -= datagram.len();
        self.sessions.queued.set(self.sessions.queued.get() - datagram.len());
        Some(datagram)
    }

    /// Wakes the task of `cx` for a datagram, and when the session is to end.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        let waker = &mut self.queue.borrow_mut().waker;
        if !waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *waker = Some(cx.waker().clone());
            self.touch(cx.waker());
        }
    }

    /// Records that something has happened: it is the last one now that is idle.
    pub(crate) fn touch(&self, waker: &Waker) {
        let mut all = self.sessions.all.borrow_mut();
        if all.is_idle(&self.slot) {
            all.mark_idle(&self.slot, waker.clone());
        }
    }

    /// Reason for the session to end now, if there is one.
    pub(crate) fn ending(&self) -> Option<DatagramEnding> {
        if self.is_address_gone.get() {
            return Some(DatagramEnding::AddressGone);
        }
        (!self.sessions.all.borrow().is_idle(&self.slot)).then_some(DatagramEnding::Evicted)
    }

    /// Takes no further datagrams: the next one of this client begins another session, as do those in the queue.
    pub(crate) fn close_queue(&self) {
        self.detach();
        if let Some(starter) = self.sessions.starter.get().and_then(Weak::upgrade) {
            starter.begin_next(self);
        }
    }

    /// Removes the session from those that take further datagrams.
    pub(crate) fn detach(&self) {
        let Some(key) = &self.origin.key else { return };
        let mut by_key = self.sessions.by_key.borrow_mut();
        if by_key.get(key).is_some_and(|known| std::ptr::eq(&**known, self)) {
            by_key.remove(key);
        }
    }

    /// Session that takes the further datagrams of this client now.
    pub(crate) fn successor(&self) -> Option<Rc<Self>> {
        let key = self.origin.key.as_ref()?;
        self.sessions.by_key.borrow().get(key).cloned()
    }

    /// A message for the client.
    pub(crate) fn message<'a>(&'a self, bytes: &'a [u8], segment: Option<u16>) -> OutgoingMessage<'a> {
        OutgoingMessage { bytes, to: self.origin.peer.as_ref(), from: self.origin.from, segment, ecn: 0 }
    }

    /// Sends messages to the client. What the socket does not take is lost, as in the network.
    pub(crate) fn send(&self, messages: &[OutgoingMessage<'_>]) -> SendOutcome {
        self.origin.listener.send(messages)
    }

    /// Address that the datagrams were sent to.
    pub(crate) fn local_addr(&self) -> Addr {
        let address = &self.origin.listener.address;
        match (self.origin.from, address.inet()) {
            (Some(from), Some(address)) => Addr::Inet(SocketAddr::new(from, address.port())),
            _ => (**address).clone(),
        }
    }

    fn wake(&self) {
        if let Some(waker) = &self.queue.borrow().waker {
            waker.wake_by_ref();
        }
    }
}

impl Drop for DatagramClient {
    fn drop(&mut self) {
        if self.is_moved.get() {
            self.sessions.counts.moved_datagram_sessions.fetch_sub(1, Relaxed);
        }
        self.sessions.all.borrow_mut().remove(&self.slot);
        let queued = self.queue.borrow().bytes;
        self.sessions.queued.set(self.sessions.queued.get() - queued);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_is_known_by_all_its_addresses() {
        let inet = |text: &str| Addr::Inet(text.parse().unwrap());
        let peer = |text: &str| Some(SocketAddrAny::from(text.parse::<SocketAddr>().unwrap()));
        let ip = |text: &str| text.parse::<IpAddr>().ok();
        let key =
            |listen: &str, client: &str, local: &str| SessionKey::new(&inet(listen), peer(client), ip(local));
        let known = key("0.0.0.0:53", "192.0.2.9:5000", "192.0.2.1");
        assert!(known.is_some() && known == key("0.0.0.0:53", "192.0.2.9:5000", "192.0.2.1"));
        for (listen, client, local) in [
            ("0.0.0.0:54", "192.0.2.9:5000", "192.0.2.1"),
            ("0.0.0.0:53", "192.0.2.9:5001", "192.0.2.1"),
            ("0.0.0.0:53", "192.0.2.8:5000", "192.0.2.1"),
            ("0.0.0.0:53", "192.0.2.9:5000", "192.0.2.2"),
            ("0.0.0.0:53", "192.0.2.9:5000", ""),
        ] {
            assert!(known != key(listen, client, local), "{listen} {client} {local}");
        }
        // Each datagram of a Unix socket without a name is a session.
        assert!(SessionKey::new(&Addr::Unix(None), None, None).is_none());
    }
}
