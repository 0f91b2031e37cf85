//! Datagrams for connections of other loops. The kernel chooses the loop that receives a datagram by its addresses, and a client may move;
//! its connection stays where it began. Each loop has a number among those of the process, which connection IDs tell.
//!
//! ```text
//! datagram ─► loop that receives it ─ number in its connection ID ─► inbox of that loop ─► Application::receive_passed
//! ```
//! A loop that is about to end keeps its inbox for the connections it still has. A new connection goes to a loop that goes on.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::mpsc::{Receiver, Sender, channel};
use tw_base::{FatalMutex, Limit};
use tw_rt::watch::Subject;

use super::{Application, Counts, LoopCore, PassedDatagram, Running};

/// Datagrams on their way to one loop: of 1.5 KiB each, some 400 KiB.
const PASSED_DATAGRAMS_MAX: usize = 256;
/// Loops that can have a number, which is a byte.
const LOOPS_MAX: usize = 256;

pub(super) const LIMIT: Limit = Limit::count(
    "PASSED_DATAGRAMS_MAX",
    PASSED_DATAGRAMS_MAX as u64,
    "Datagrams of connections on their way from other loops to one loop",
    "further ones are dropped, and counted",
);

/// Inboxes of all loops, by their numbers.
#[derive(Default)]
pub(super) struct DatagramInboxes(FatalMutex<Vec<Option<Inbox>>>);

struct Inbox {
    sender: Sender<PassedDatagram>,
    /// False once its loop is about to end.
    takes_connections: bool,
}

/// Number of a loop among those that have an inbox. Dropping it gives it up.
struct InboxNumber {
    counts: Arc<Counts>,
    number: u8,
}

impl Drop for InboxNumber {
    fn drop(&mut self) {
        self.counts.datagram_inboxes.change(self.number, |slot| *slot = None);
    }
}

impl DatagramInboxes {
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
        *slot = Some(Inbox { sender, takes_connections: true });
        Some((u8::try_from(number).ok()?, receiver))
    }

    fn change(&self, number: u8, change: impl FnOnce(&mut Option<Inbox>)) {
        if let Some(slot) = self.0.lock().get_mut(usize::from(number)) {
            change(slot);
        }
    }

    fn has(&self, number: u8) -> bool {
        self.0.lock().get(usize::from(number)).is_some_and(Option::is_some)
    }

    /// Passes a datagram on. False if it is lost.
    fn pass(&self, number: u8, datagram: PassedDatagram) -> bool {
        let all = self.0.lock();
        let inbox = all.get(usize::from(number)).and_then(Option::as_ref);
        inbox.is_some_and(|inbox| inbox.sender.try_send(datagram).is_ok())
    }

    /// Passes a datagram on that begins a connection: those of one client to the same loop. False if it is lost.
    fn pass_new(&self, own: u8, datagram: PassedDatagram) -> bool {
        let all = self.0.lock();
        let others = all.iter().enumerate().filter(|(number, _)| *number != usize::from(own));
        let open: Vec<_> =
            others.filter_map(|(_, inbox)| inbox.as_ref()).filter(|inbox| inbox.takes_connections).collect();
        let by_client = usize::from(datagram.peer.port()) % open.len().max(1);
        open.get(by_client).is_some_and(|inbox| inbox.sender.try_send(datagram).is_ok())
    }
}

impl LoopCore {
    /// Number of this loop that connection IDs tell; `None` if there are too many loops.
    pub fn datagram_number(&self) -> Option<u8> {
        self.datagram_number.get()
    }

    /// Returns true if a loop has this number.
    pub fn has_loop(&self, number: u8) -> bool {
        self.counts.datagram_inboxes.has(number)
    }

    /// Passes a datagram on to the loop with this number. What cannot be passed on is lost, as in the network, and counted.
    pub fn pass_datagram(&self, number: u8, datagram: PassedDatagram) {
        self.count_passed(self.counts.datagram_inboxes.pass(number, datagram));
    }

    /// Passes a datagram on that begins a connection, because this loop is about to end.
    pub fn pass_new_datagram(&self, datagram: PassedDatagram) {
        if let Some(own) = self.datagram_number.get() {
            self.counts.datagram_inboxes.change(own, |slot| {
                if let Some(inbox) = slot {
                    inbox.takes_connections = false;
                }
            });
            self.count_passed(self.counts.datagram_inboxes.pass_new(own, datagram));
        }
    }

    fn count_passed(&self, has_passed: bool) {
        let count = if has_passed { &self.tally.datagrams_passed_on } else { &self.tally.datagrams_dropped };
        count.add(1);
    }
}

impl<A: Application> Running<A> {
    /// Starts the task that takes datagrams from other loops, as long as the loop lives.
    pub(super) fn start_taking_datagrams(&self) {
        let Some((number, mut inbox)) = self.counts.datagram_inboxes.claim() else { return };
        let owner = InboxNumber { counts: self.counts.clone(), number };
        self.datagram_number.set(Some(number));
        let app = self.app.clone();
        let taking = async move {
            let _owner = owner;
            while let Some(datagram) = inbox.recv().await {
                // What panics with one datagram keeps nobody from taking the next; the hook has told it.
                let _ = catch_unwind(AssertUnwindSafe(|| app.receive_passed(&datagram)));
            }
        };
        drop(tw_rt::spawn_local(Subject { kind: "datagrams", id: self.index as u64 }, taking));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tw_net::Addr;

    fn datagram(port: u16) -> PassedDatagram {
        let peer = ([127, 0, 0, 1], port).into();
        PassedDatagram { bytes: [].into(), peer, local: None, listen: Addr::Unix(None), ecn: 0 }
    }

    #[test]
    fn datagrams_reach_the_loop_of_their_number() {
        let inboxes = DatagramInboxes::default();
        let (first, mut of_first) = inboxes.claim().unwrap();
        let (second, mut of_second) = inboxes.claim().unwrap();
        assert_eq!((first, second), (0, 1));
        assert!(inboxes.pass(second, datagram(1)) && !inboxes.pass(9, datagram(2)));
        assert_eq!(of_second.try_recv().unwrap().peer.port(), 1);
        for _ in 0..PASSED_DATAGRAMS_MAX {
            assert!(inboxes.pass(first, datagram(3)));
        }
        assert!(!inboxes.pass(first, datagram(3)), "the inbox is full");
        // A number that was given up is used again.
        inboxes.change(first, |slot| *slot = None);
        assert!(!inboxes.pass(first, datagram(3)));
        while of_first.try_recv().is_ok() {}
        assert_eq!(inboxes.claim().unwrap().0, first);
    }

    #[test]
    fn new_connections_go_to_loops_that_go_on() {
        let inboxes = DatagramInboxes::default();
        let mut all: Vec<_> = (0..3).map(|_| inboxes.claim().unwrap()).collect();
        inboxes.change(1, |slot| slot.as_mut().unwrap().takes_connections = false);
        for port in 0..10 {
            assert!(inboxes.pass_new(0, datagram(port)));
        }
        assert_eq!((all[0].1.len(), all[1].1.len(), all[2].1.len()), (0, 0, 10));
        inboxes.change(2, |slot| *slot = None);
        assert!(!inboxes.pass_new(0, datagram(1)));
        all.clear();
    }
}
