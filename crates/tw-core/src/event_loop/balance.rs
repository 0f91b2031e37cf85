//! `connection_balance`: passes connections to less loaded loops.
//!
//! A loop that accepts more than its share passes some of it on: the socket travels by message, and the other loop serves it
//! as if it had accepted it. Each loop publishes what it does, its time in turns and its connections, in numbers that it
//! alone writes. A loop that accepts looks at those of all at most every `LOOK_EVERY`; between two looks a connection
//! costs a comparison.
//!
//! ```text
//! load = share of time in turns + COUNT_WEIGHT · connections / mean of connections
//!        as seen over SMOOTH     what they may cost later
//! ```
//!
//! A loop whose load is above the mean raises the part that it passes on, step by step; one below lowers it. So what
//! connections cost that live long is made up by short ones, and an even load moves nothing.

use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::sync::mpsc::channel;
use tw_net::{Accepted, Addr};
use tw_rt::LoopStats;

use super::application::Application;
use super::loop_core::LoopCore;
use super::running::Running;
use super::siblings::{LOOK_EVERY, Message, PASSED_ON_MAX, Sibling};
use crate::process::ConnectionBalance;

/// Result of asking other loops to close descriptors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SiblingRequest {
    /// They have been asked.
    Sent,
    /// There is none.
    NoSiblings,
}

impl LoopCore {
    /// Lets the other loops know of this one.
    pub(super) fn join_siblings(&self, stats: &Arc<LoopStats>) {
        let (sender, receiver) = channel(PASSED_ON_MAX);
        let sibling = Arc::new(Sibling {
            index: self.index,
            tally: self.tally.share(),
            stats: stats.clone(),
            inbox: sender,
        });
        self.balance.inbox.replace(Some(receiver));
        self.balance.me.replace(Some(sibling.clone()));
        self.counts.siblings.change(|all| all.push(sibling));
    }

    /// Nanoseconds that this loop has worked until `now`; `None` before its siblings know it.
    pub(super) fn busy_until(&self, now: Instant) -> Option<u64> {
        self.balance.me.borrow().as_ref().map(|me| me.stats.busy.until(now))
    }

    /// Lets the other loops pass nothing on to this one any more.
    pub(super) fn leave_siblings(&self) {
        let Some(me) = self.balance.me.take() else { return };
        self.counts.siblings.change(|all| all.retain(|sibling| !Arc::ptr_eq(sibling, &me)));
        self.balance.loads.borrow_mut().clear();
        if let Some(inbox) = &mut *self.balance.inbox.borrow_mut() {
            inbox.close();
        }
        // Its sessions get no more datagrams from other loops, but its connections do.
        self.refuse_new_datagrams();
    }

    /// Returns true if other loops serve clients.
    pub fn has_siblings(&self) -> bool {
        self.counts.siblings.all().iter().any(|sibling| sibling.index != self.index)
    }

    /// Lets the other loops close what they can spare.
    pub(super) fn request_descriptors_from_siblings(&self) -> SiblingRequest {
        let me = self.balance.me.borrow();
        let mut outcome = SiblingRequest::NoSiblings;
        for sibling in self.counts.siblings.all.lock().iter() {
            if !me.as_ref().is_some_and(|me| Arc::ptr_eq(me, sibling)) {
                // A sibling whose queue is full will run out of descriptors itself and notice that.
                let _ = sibling.inbox.try_send(Message::WantsDescriptors);
                outcome = SiblingRequest::Sent;
            }
        }
        outcome
    }

    /// Passes a connection on, if a loop that does less takes it; otherwise gives it back.
    pub(super) fn pass_on(&self, accepted: Accepted, listen: &Addr) -> Option<Accepted> {
        let (generation, limit) = {
            let generation = self.process.borrow();
            if generation.main.connection_balance == ConnectionBalance::Off {
                return Some(accepted);
            }
            (generation.id, generation.main.worker_connections)
        };
        let now = tw_rt::clock::now();
        let is_due = |looked: Instant| now.saturating_duration_since(looked) >= LOOK_EVERY;
        if self.balance.looked.get().is_none_or(is_due)
            && let Some(me) = &*self.balance.me.borrow()
        {
            self.balance.rebalance(me, &self.counts.siblings, now);
        }
        let Some(sibling) = self.balance.next() else { return Some(accepted) };
        // A loop that a reload has not reached yet may not know the address, and one that is full has no use for more.
        if sibling.tally.generation.value() != generation || sibling.tally.connections() >= limit {
            return Some(accepted);
        }
        match sibling.inbox.try_send(Message::PassedOn(accepted, listen.clone())) {
            Ok(()) => {
                self.tally.passed_on.add(1);
                None
            }
            Err(refused) => match refused.into_inner() {
                Message::PassedOn(accepted, _) => Some(accepted),
                Message::WantsDescriptors => None,
            },
        }
    }
}

impl<A: Application> Running<A> {
    /// Serves what other loops still passed on when this one left them. Waits at most until a loop that is about to has done
    /// so.
    pub(super) async fn take_over_rest(&self) {
        let Some(mut inbox) = self.balance.inbox.take() else { return };
        while let Some(message) = inbox.recv().await {
            self.take_over(message);
        }
    }

    /// Serves what other loops pass on, until it leaves them.
    pub(super) async fn take_over_all(self) {
        loop {
            let next = poll_fn(|cx| match &mut *self.balance.inbox.borrow_mut() {
                Some(inbox) => inbox.poll_recv(cx),
                None => Poll::Ready(None),
            });
            let Some(message) = next.await else { return };
            self.take_over(message);
        }
    }

    fn take_over(&self, message: Message) {
        match message {
            Message::PassedOn(accepted, listen) => {
                self.tally.taken_over.add(1);
                self.serve_accepted(accepted, &Rc::new(listen));
            }
            // The other one tries again after its pause, whatever there was.
            Message::WantsDescriptors => self.free_descriptors_for_sibling(),
        }
    }
}
