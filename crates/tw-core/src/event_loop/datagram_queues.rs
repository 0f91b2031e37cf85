//! Queues of the loops for datagrams that another loop or process has received.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use rustix::net::SocketAddrAny;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tw_base::FatalMutex;
use tw_net::Addr;

/// Loops that can have a number, which is a byte.
const LOOPS_MAX: usize = 256;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Datagrams on their way from other loops and worker processes to one loop.
    ///
    /// Datagrams on their way to one loop: of 1.5 KiB each, some 800 KiB.
    const PASSED_DATAGRAMS_MAX: usize = 512, count, "further ones are dropped, and counted";
}

/// A datagram that another loop or process has received.
pub struct PassedDatagram {
    /// Content.
    pub bytes: Bytes,
    /// Sender, as an answer needs it.
    pub peer: SocketAddrAny,
    /// Local address that it was sent to, if the socket tells.
    pub local: Option<IpAddr>,
    /// Listening address of the configuration that it belongs to.
    pub listen: Addr,
    /// Mark of explicit congestion notification; 0 for none.
    pub ecn: u8,
    /// Search for its session; `None` if the receiver is known.
    pub(super) search: Option<SessionSearch>,
}

/// Search for the session of a datagram on all loops.
pub(super) struct SessionSearch {
    /// Number of the listening socket of the loop that has received it.
    pub(super) listener: u64,
    /// Numbers of the loops that it still passes, the next one last; the first one is the loop that has received it.
    pub(super) path: Vec<u8>,
}

/// Result of passing a datagram on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassOutcome {
    /// The datagram is on its way.
    Sent,
    /// The datagram is lost: the queue of the loop is full, or the loop has ended.
    Lost,
}

/// Queues of all loops, by their numbers.
#[derive(Default)]
pub(super) struct DatagramQueues(FatalMutex<Vec<Option<Queue>>>);

/// Queue of one loop.
pub(super) struct Queue {
    /// `None` once its loop takes no more.
    pub(super) sender: Option<Sender<PassedDatagram>>,
    /// True once its loop is about to end.
    pub(super) is_leaving: bool,
}

impl PassedDatagram {
    /// A datagram for a connection.
    pub fn new(bytes: &[u8], peer: SocketAddr, local: Option<IpAddr>, listen: Addr, ecn: u8) -> Self {
        let bytes = Bytes::copy_from_slice(bytes);
        Self { bytes, peer: peer.into(), local, listen, ecn, search: None }
    }

    /// Returns true if no other loop has the session.
    pub fn has_passed_all(&self) -> bool {
        self.search.as_ref().is_none_or(|search| search.path.is_empty())
    }

    /// Number of the listening socket that has received it, for one that searches its session.
    pub fn listener(&self) -> Option<u64> {
        self.search.as_ref().map(|search| search.listener)
    }
}

impl DatagramQueues {
    /// Gives a loop the first number that is free; `None` if all are in use.
    pub(super) fn claim(&self) -> Option<(u8, Receiver<PassedDatagram>)> {
        let (sender, receiver) = channel(PASSED_DATAGRAMS_MAX);
        let mut all = self.0.lock();
        let number = all.iter().position(Option::is_none).unwrap_or(all.len());
        if number >= LOOPS_MAX {
            return None;
        }
        if number == all.len() {
            all.push(None);
        }
        let slot = all.get_mut(number)?;
        *slot = Some(Queue { sender: Some(sender), is_leaving: false });
        Some((u8::try_from(number).ok()?, receiver))
    }

    pub(super) fn change(&self, number: u8, change: impl FnOnce(&mut Option<Queue>)) {
        if let Some(slot) = self.0.lock().get_mut(usize::from(number)) {
            change(slot);
        }
    }

    pub(super) fn has(&self, number: u8) -> bool {
        self.0.lock().get(usize::from(number)).is_some_and(is_open)
    }

    /// Numbers of the loops that go on, without `own`.
    pub(super) fn others(&self, own: u8) -> Vec<u8> {
        let all = self.0.lock();
        let goes_on = |queue: &Option<Queue>| queue.as_ref().is_some_and(|queue| !queue.is_leaving);
        let others = (0..=u8::MAX).zip(&*all).filter(|(number, queue)| *number != own && goes_on(queue));
        others.map(|(number, _)| number).collect()
    }

    pub(super) fn pass(&self, number: u8, datagram: PassedDatagram) -> PassOutcome {
        let all = self.0.lock();
        let queue = all.get(usize::from(number)).and_then(Option::as_ref);
        match queue.and_then(|queue| queue.sender.as_ref()) {
            Some(sender) if sender.try_send(datagram).is_ok() => PassOutcome::Sent,
            _ => PassOutcome::Lost,
        }
    }

    /// Passes a datagram of a connection on that another process has received. Any loop tells the client of one whose loop has ended that its
    /// connection is lost.
    pub(super) fn pass_received(&self, number: u8, datagram: PassedDatagram) -> PassOutcome {
        let first = || self.0.lock().iter().position(is_open).and_then(|number| number.try_into().ok());
        match self.has(number).then_some(number).or_else(first) {
            Some(number) => self.pass(number, datagram),
            None => PassOutcome::Lost,
        }
    }

    /// Passes a datagram on that begins a connection: those of one client to the same loop.
    pub(super) fn pass_new(&self, own: u8, by: usize, datagram: PassedDatagram) -> PassOutcome {
        let others = self.others(own);
        match others.get(by % others.len().max(1)) {
            Some(number) => self.pass(*number, datagram),
            None => PassOutcome::Lost,
        }
    }
}

/// Returns true if the loop of a queue takes datagrams.
fn is_open(queue: &Option<Queue>) -> bool {
    queue.as_ref().is_some_and(|queue| queue.sender.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagram(port: u16) -> PassedDatagram {
        PassedDatagram::new(b"", ([127, 0, 0, 1], port).into(), None, Addr::Unix(None), 0)
    }

    fn port(datagram: &PassedDatagram) -> Option<u16> {
        Addr::from(Some(datagram.peer.clone())).inet().map(|peer| peer.port())
    }

    #[test]
    fn datagrams_reach_the_loop_of_their_number() {
        let queues = DatagramQueues::default();
        let (first, mut of_first) = queues.claim().unwrap();
        let (second, mut of_second) = queues.claim().unwrap();
        assert_eq!((first, second), (0, 1));
        assert_eq!(queues.pass(second, datagram(1)), PassOutcome::Sent);
        assert_eq!(queues.pass(9, datagram(2)), PassOutcome::Lost);
        assert_eq!(port(&of_second.try_recv().unwrap()), Some(1));
        for _ in 0..PASSED_DATAGRAMS_MAX {
            assert_eq!(queues.pass(first, datagram(3)), PassOutcome::Sent);
        }
        assert_eq!(queues.pass(first, datagram(3)), PassOutcome::Lost, "the queue is full");
        // A number that was given up is used again.
        queues.change(first, |slot| *slot = None);
        assert_eq!(queues.pass(first, datagram(3)), PassOutcome::Lost);
        // A datagram from another process is taken by any loop.
        assert_eq!(queues.pass_received(first, datagram(4)), PassOutcome::Sent);
        assert_eq!(port(&of_second.try_recv().unwrap()), Some(4));
        while of_first.try_recv().is_ok() {}
        assert_eq!(queues.claim().unwrap().0, first);
    }

    #[test]
    fn new_connections_go_to_loops_that_go_on() {
        let queues = DatagramQueues::default();
        let mut all: Vec<_> = (0..3).map(|_| queues.claim().unwrap()).collect();
        queues.change(1, |slot| slot.as_mut().unwrap().is_leaving = true);
        assert_eq!((queues.others(0), queues.others(1)), (vec![2], vec![0, 2]));
        for port in 0..10 {
            assert_eq!(queues.pass_new(0, port.into(), datagram(port)), PassOutcome::Sent);
        }
        assert_eq!((all[0].1.len(), all[1].1.len(), all[2].1.len()), (0, 0, 10));
        queues.change(2, |slot| *slot = None);
        assert_eq!(queues.pass_new(0, 1, datagram(1)), PassOutcome::Lost);
        all.clear();
    }
}
