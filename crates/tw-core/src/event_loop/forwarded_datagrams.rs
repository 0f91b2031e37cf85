//! Datagrams on their way from the loop that has received them to the loop with their session. The kernel sends the datagrams of a client
//! to one loop, but to another one once the number of listening sockets has changed.
//!
//! ```text
//! receive: no session here ─► the other loops, one after the other ─► the one with the session
//!                                                                  └► none: back to the loop that has received it
//! ```

use std::cell::RefCell;
use std::net::IpAddr;

use bytes::Bytes;
use rustix::net::SocketAddrAny;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tw_base::Limit;
use tw_net::Addr;

use super::{LoopCore, ReceivedDatagram};

/// Datagrams on their way to one loop.
const FORWARDED_MAX: usize = 512;

pub(super) const LIMIT: Limit = Limit::count(
    "FORWARDED_MAX",
    FORWARDED_MAX as u64,
    "Datagrams on their way from other loops to one loop, after the number of loops has changed",
    "further ones are dropped, and counted",
);

/// A datagram on its way.
pub struct ForwardedDatagram {
    /// Content.
    pub bytes: Bytes,
    /// Sender, as an answer needs it.
    pub peer: SocketAddrAny,
    /// Local address that it was sent to, if the socket takes those of several.
    pub local: Option<IpAddr>,
    /// Listening address of the configuration that it belongs to.
    pub listen: Addr,
    /// Number of the listening socket of the loop that has received it.
    pub listener: u64,
    /// The loops that it still passes, the next one last; the first one is the loop that has received it.
    path: Vec<Sender<Self>>,
}

/// Result of sending a datagram to the next loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardOutcome {
    /// The datagram is on its way.
    Sent,
    /// The datagram is lost: the queue of the next loop is full, or the loop has left.
    Lost,
}

/// Queue of one loop for the datagrams of others.
pub(super) struct ForwardingQueue {
    sender: Sender<ForwardedDatagram>,
    receiver: RefCell<Option<Receiver<ForwardedDatagram>>>,
}

impl Default for ForwardingQueue {
    fn default() -> Self {
        let (sender, receiver) = channel(FORWARDED_MAX);
        Self { sender, receiver: RefCell::new(Some(receiver)) }
    }
}

impl ForwardingQueue {
    pub(super) fn sender(&self) -> &Sender<ForwardedDatagram> {
        &self.sender
    }

    /// The receiving half, until the loop has left the others.
    pub(super) fn receiver(&self) -> &RefCell<Option<Receiver<ForwardedDatagram>>> {
        &self.receiver
    }
}

impl ForwardedDatagram {
    /// A datagram that passes all other loops; `None` if there is none, or its sender has no address.
    pub fn new(core: &LoopCore, listener: u64, datagram: &ReceivedDatagram<'_>) -> Option<Self> {
        let others = core.counts.siblings.all();
        let others = others.iter().filter(|sibling| sibling.index != core.index);
        let mut path = vec![core.forwarding.sender().clone()];
        path.extend(others.map(|sibling| sibling.datagrams.clone()));
        (path.len() > 1).then_some(Self {
            bytes: Bytes::copy_from_slice(datagram.bytes),
            peer: datagram.peer.cloned()?,
            local: datagram.local,
            listen: (**datagram.listen).clone(),
            listener,
            path,
        })
    }

    /// Returns true if no other loop has the session.
    pub fn has_passed_all(&self) -> bool {
        self.path.is_empty()
    }

    /// Sends the datagram to the next loop.
    pub fn forward(mut self) -> ForwardOutcome {
        match self.path.pop() {
            Some(next) if next.try_send(self).is_ok() => ForwardOutcome::Sent,
            _ => ForwardOutcome::Lost,
        }
    }
}

impl LoopCore {
    /// Returns true if other loops serve clients.
    pub fn has_siblings(&self) -> bool {
        self.counts.siblings.all().iter().any(|sibling| sibling.index != self.index)
    }
}
