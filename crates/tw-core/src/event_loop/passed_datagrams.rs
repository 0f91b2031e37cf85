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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use tokio::task::JoinHandle;
use tw_rt::watch::Subject;

use super::application::Application;
use super::counts::Counts;
use super::datagram_listener::ReceivedDatagram;
use super::datagram_queues::{PassOutcome, PassedDatagram, SessionSearch};
use super::loop_core::LoopCore;
use super::process_links::LinkOutcome;
use super::running::Running;

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

    /// Returns true if another process with this identity was told of, whether it lives or not.
    pub fn knows_process(&self, process: u32) -> bool {
        self.counts.links.is_known(process)
    }

    /// Passes a datagram to another process, for its loop with this number. What cannot be passed on is lost, as in the network, and counted.
    pub fn pass_to_process(&self, process: u32, number: u8, datagram: &PassedDatagram) -> LinkOutcome {
        let outcome = self.counts.links.pass(process, number, datagram, tw_rt::clock::now());
        match outcome {
            LinkOutcome::Sent => self.tally.datagrams_passed_to_processes.add(1),
            LinkOutcome::Lost => self.tally.datagrams_dropped.add(1),
            LinkOutcome::Gone => {}
        }
        outcome
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
