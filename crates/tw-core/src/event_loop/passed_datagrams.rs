//! Datagrams on their way to another loop of the process. The kernel chooses the loop that receives a datagram by its addresses; the
//! connection or session that it belongs to stays where it began.
//!
//! ```text
//! connection: its ID tells the loop ──────────────────────────────────┐
//! session: the other loops, one after the other, until one has it ────┼─► queue of a loop ─► Application::receive_passed
//! first datagram of a connection, while this loop is about to end ────┘
//! ```
//! Each loop has a number among those of the process, and one queue. A loop that is about to end keeps its queue for the connections it still
//! has. A new connection and the search for a session go to loops that go on.

use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use rustix::net::SocketAddrAny;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::task::JoinHandle;
use tw_base::FatalMutex;
use tw_net::Addr;
use tw_rt::watch::Subject;

use super::{Application, Counts, LoopCore, ReceivedDatagram, Running};

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
    search: Option<SessionSearch>,
}

/// Search for the session of a datagram on all loops.
struct SessionSearch {
    /// Number of the listening socket of the loop that has received it.
    listener: u64,
    /// Numbers of the loops that it still passes, the next one last; the first one is the loop that has received it.
    path: Vec<u8>,
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

struct Queue {
    /// `None` once its loop takes no more.
    sender: Option<Sender<PassedDatagram>>,
    /// True once its loop is about to end.
    is_leaving: bool,
}

/// Number of a loop among those that have a queue. Dropping it gives it up.
struct QueueNumber {
    counts: Arc<Counts>,
    number: u8,
}

impl Drop for QueueNumber {
    fn drop(&mut self) {
        self.counts.datagram_queues.change(self.number, |slot| *slot = None);
    }
}

impl PassedDatagram {
    /// A datagram for a connection.
    pub fn new(bytes: &[u8], peer: SocketAddr, local: Option<IpAddr>, listen: Addr, ecn: u8) -> Self {
        let bytes = Bytes::copy_from_slice(bytes);
        Self { bytes, peer: peer.into(), local, listen, ecn, search: None }
    }

    /// A datagram whose session is on one of the other loops; `None` if there is none, or its sender has no address.
    pub fn searching(core: &LoopCore, listener: u64, datagram: &ReceivedDatagram<'_>) -> Option<Self> {
        let own = core.datagram_number()?;
        let mut path = vec![own];
        path.extend(core.counts.datagram_queues.others(own));
        (path.len() > 1).then_some(Self {
            bytes: Bytes::copy_from_slice(datagram.bytes),
            peer: datagram.peer.cloned()?,
            local: datagram.local,
            listen: (**datagram.listen).clone(),
            ecn: datagram.ecn,
            search: Some(SessionSearch { listener, path }),
        })
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
    fn claim(&self) -> Option<(u8, Receiver<PassedDatagram>)> {
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

    fn change(&self, number: u8, change: impl FnOnce(&mut Option<Queue>)) {
        if let Some(slot) = self.0.lock().get_mut(usize::from(number)) {
            change(slot);
        }
    }

    fn has(&self, number: u8) -> bool {
        self.0.lock().get(usize::from(number)).is_some_and(is_open)
    }

    /// Numbers of the loops that go on, without `own`.
    fn others(&self, own: u8) -> Vec<u8> {
        let all = self.0.lock();
        let goes_on = |queue: &Option<Queue>| queue.as_ref().is_some_and(|queue| !queue.is_leaving);
        let others = (0..=u8::MAX).zip(&*all).filter(|(number, queue)| *number != own && goes_on(queue));
        others.map(|(number, _)| number).collect()
    }

    fn pass(&self, number: u8, datagram: PassedDatagram) -> PassOutcome {
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
    fn pass_new(&self, own: u8, by: usize, datagram: PassedDatagram) -> PassOutcome {
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

impl LoopCore {
    /// Number of this loop that connection IDs tell; `None` if there are too many loops.
    pub fn datagram_number(&self) -> Option<u8> {
        self.datagram_number.get()
    }

    /// Returns true if a loop has this number.
    pub fn has_loop(&self, number: u8) -> bool {
        self.counts.datagram_queues.has(number)
    }

    /// Passes a datagram on to the loop with this number. What cannot be passed on is lost, as in the network, and counted.
    pub fn pass_datagram(&self, number: u8, datagram: PassedDatagram) {
        self.count_passed(self.counts.datagram_queues.pass(number, datagram));
    }

    /// Passes a datagram on that begins a connection, because this loop is about to end. `by` is the same for all of one client.
    pub fn pass_new_datagram(&self, by: u16, datagram: PassedDatagram) {
        if let Some(own) = self.datagram_number.get() {
            self.refuse_new_datagrams();
            self.count_passed(self.counts.datagram_queues.pass_new(own, by.into(), datagram));
        }
    }

    /// Passes a datagram that searches its session on to the next loop that has not ended. It is counted by the loop that has the session.
    /// Gives it back if it has passed all.
    pub fn pass_searching(&self, mut datagram: PassedDatagram) -> Option<PassedDatagram> {
        let queues = &self.counts.datagram_queues;
        while let Some(next) = datagram.search.as_mut().and_then(|search| search.path.pop()) {
            if queues.has(next) {
                // A full queue loses it, as in the network.
                if queues.pass(next, datagram) == PassOutcome::Lost {
                    self.tally.datagrams_dropped.add(1);
                }
                return None;
            }
        }
        Some(datagram)
    }

    /// Lets other loops pass nothing on to this one but datagrams of its connections.
    pub(super) fn refuse_new_datagrams(&self) {
        let Some(own) = self.datagram_number.get() else { return };
        self.counts.datagram_queues.change(own, |slot| {
            if let Some(queue) = slot {
                queue.is_leaving = true;
            }
        });
    }

    fn count_passed(&self, outcome: PassOutcome) {
        match outcome {
            PassOutcome::Sent => self.tally.datagrams_forwarded.add(1),
            PassOutcome::Lost => self.tally.datagrams_dropped.add(1),
        }
    }
}

impl<A: Application> Running<A> {
    /// Starts the task that takes datagrams from other loops and processes, until [`close_datagram_queue`](Self::close_datagram_queue).
    pub(super) fn start_taking_datagrams(&self) -> Option<JoinHandle<()>> {
        let (number, mut queue) = self.counts.datagram_queues.claim()?;
        let owner = QueueNumber { counts: self.counts.clone(), number };
        self.datagram_number.set(Some(number));
        let app = self.app.clone();
        let taking = async move {
            let _owner = owner;
            while let Some(datagram) = queue.recv().await {
                // A panic with one datagram must not keep the loop from taking the next; the panic hook has logged it.
                let _ = catch_unwind(AssertUnwindSafe(|| app.receive_passed(datagram)));
            }
        };
        Some(tw_rt::spawn_local(Subject { kind: "datagrams", id: self.index as u64 }, taking))
    }

    /// Takes no more datagrams: `taking` ends when it has taken those that are on their way.
    pub(super) async fn close_datagram_queue(&self, taking: Option<JoinHandle<()>>) {
        let (Some(own), Some(taking)) = (self.datagram_number.get(), taking) else { return };
        self.counts.datagram_queues.change(own, |slot| {
            if let Some(queue) = slot {
                queue.sender = None;
            }
        });
        // A task that panicked has ended, too.
        let _ = taking.await;
    }
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
