//! State of one loop that does not depend on a protocol.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::accepting::Accepting;
use super::budget::CopyBudget;
use super::buffers::Buffers;
use super::connections::{Connections, Eviction, IdleResources};
use super::counts::{ClientLookup, Counts};
use super::datagram_listener::{DatagramBuffer, DatagramListener};
use super::session_handover::{HandoverPhase, HandoverVerdict, OfferedSession};
use super::siblings::Balance;
use super::tally::OwnTally;
use crate::config_thread::GenerationRef;
use crate::generation::{LoopGeneration, ProcessConfig, ProcessGeneration};

/// Share of one loop in work that all loops divide among themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopShare {
    /// Number of the loop.
    pub index: usize,
    /// Number of loops, at least 1.
    pub loops: usize,
}

impl LoopShare {
    /// Returns true if the piece of work with this number is the loop's.
    pub fn has(self, number: usize) -> bool {
        number % self.loops == self.index % self.loops
    }
}

/// State of one loop that does not depend on a protocol.
pub struct LoopCore {
    /// Number of the loop.
    pub index: usize,
    /// Counters of the process.
    pub counts: Arc<Counts>,
    /// Counters of this loop.
    pub tally: OwnTally,
    /// Open connections of this loop.
    pub connections: Connections,
    /// Reusable buffers.
    pub buffers: Buffers,
    /// Bytes that one turn may copy.
    pub budget: CopyBudget,
    /// Room for datagrams.
    pub datagrams: DatagramBuffer,
    /// Listening datagram sockets of the loop.
    pub(super) listeners: RefCell<Vec<Weak<DatagramListener>>>,
    pub(super) handover: RefCell<HandoverPhase>,
    pub(super) process: RefCell<Rc<LoopGeneration<ProcessConfig>>>,
    pub(super) idle_resources: RefCell<Vec<Weak<dyn IdleResources>>>,
    pub(super) datagram_number: Cell<Option<u8>>,
    pub(super) accepting: Accepting,
    pub(super) balance: Balance,
}

impl LoopCore {
    /// Creates the state of the current thread's loop.
    pub fn new(index: usize, counts: Arc<Counts>, process: GenerationRef<ProcessGeneration>) -> Rc<Self> {
        Rc::new(Self {
            index,
            tally: counts.tallies.claim(),
            accepting: Accepting::new(&counts.accept_mutex),
            balance: Balance::default(),
            counts,
            connections: Connections::default(),
            buffers: Buffers::new(),
            budget: CopyBudget::new(),
            datagrams: DatagramBuffer::default(),
            listeners: RefCell::default(),
            handover: RefCell::default(),
            process: RefCell::new(LoopGeneration::new(process)),
            idle_resources: RefCell::default(),
            datagram_number: Cell::default(),
        })
    }

    /// Returns the part of the current configuration that belongs to no protocol: settings of the process, logs, pools.
    pub fn process(&self) -> Rc<LoopGeneration<ProcessConfig>> {
        self.process.borrow().clone()
    }

    /// Lets the loop close idle connections and files of a protocol when it runs out of connections or descriptors.
    pub fn add_idle_resources(&self, resources: Weak<dyn IdleResources>) {
        self.idle_resources.borrow_mut().push(resources);
    }

    /// Evicts something of the first protocol that has something idle.
    pub(super) fn evict_resource(&self, evict: impl Fn(&dyn IdleResources) -> Eviction) -> Eviction {
        let all = self.idle_resources.borrow();
        let mut protocols = all.iter().filter_map(Weak::upgrade);
        if protocols.any(|protocol| evict(&*protocol) == Eviction::Done) {
            Eviction::Done
        } else {
            Eviction::NothingIdle
        }
    }

    /// `worker_connections`
    pub(super) fn connections_max(&self) -> u64 {
        self.process.borrow().main.worker_connections
    }

    /// Records the state of the handover. Sessions see it when they are woken.
    pub(super) fn set_handover(&self, phase: HandoverPhase) {
        *self.handover.borrow_mut() = phase;
    }

    /// Returns true if it is not known yet if the next process takes sessions.
    pub fn expects_handover(&self) -> bool {
        matches!(*self.handover.borrow(), HandoverPhase::Expected)
    }

    /// Returns true if sessions can be offered to the next process.
    pub fn can_offer_sessions(&self) -> bool {
        matches!(*self.handover.borrow(), HandoverPhase::Open(_))
    }

    /// Offers a session to the next process, and returns what tells the decision. `None` if there is no next process or it takes no more. Never waits.
    pub fn offer_session(
        &self,
        record: Vec<u8>,
        socket: OwnedFd,
    ) -> Option<oneshot::Receiver<HandoverVerdict>> {
        let mut phase = self.handover.borrow_mut();
        let HandoverPhase::Open(offers) = &*phase else { return None };
        let (verdict, decision) = oneshot::channel();
        let offered = OfferedSession { loop_index: self.index, record, socket, verdict };
        if offers.0.try_send(offered).is_err() {
            *phase = HandoverPhase::Closed;
            return None;
        }
        Some(decision)
    }
}

impl ClientLookup for LoopCore {
    fn address_of(&self, id: u64) -> Option<Box<str>> {
        self.connections.client(id).map(|client| client.address().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_of_work_has_one_loop() {
        for loops in [1, 2, 3] {
            for number in 0..7 {
                let owners = (0..loops).filter(|index| LoopShare { index: *index, loops }.has(number));
                assert_eq!(owners.collect::<Vec<_>>(), [number % loops], "{number} of {loops} loops");
            }
        }
        assert!(LoopShare { index: 5, loops: 2 }.has(1), "a reload may leave fewer loops than there were");
    }
}
