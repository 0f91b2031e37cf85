//! Scheduler of response pieces among the streams of a connection. The bytes made and not yet sent are bounded for all streams
//! together, and the most urgent stream makes the next piece (RFC 9218).
//!
//! ```text
//! a stream ── poll: room, and no stream before it? ──► StreamPermit: makes a piece ──► frames ──► socket
//!    ▲                                                                                              │
//!    └────────────────────────── the next one is woken ◄── room ◄───────────────────────────────────┘
//! ```
//! A stream that waits for anything but its turn, such as a disk, another server or its own window, is not in the queue.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tw_core::event_loop::BodySize;
use tw_http::Priority;
use tw_http::priority::URGENCIES;

/// Bytes of all responses of a connection that may wait for its socket before more is made. One turn makes as much, so that it
/// leaves in one write: waking the client is 13 % of what sending costs in pieces of 32 KiB, 7 % in these.
pub(super) const WAITING_MAX: usize = 128 << 10;
/// Limit for all connections of a loop until each has tried to write its part: new bytes are still in the caches of the
/// processor then.
pub(super) const MADE_MAX: usize = 512 << 10;
/// Priorities that a client may change before and while their streams are there.
pub(super) const UPDATES_MAX: usize = 128;

/// Of clients that say nothing of priorities all streams go on together.
const UNSAID: Priority = Priority { urgency: 3, incremental: true };

/// The turns of a connection.
#[derive(Default)]
pub(super) struct StreamScheduler {
    /// Bytes that were gathered for the socket.
    gathered: Cell<usize>,
    queue: RefCell<Vec<Waiter>>,
    /// Turns that were given: a number for each.
    given: Cell<u64>,
    /// For each urgency, the last turn of those that come one after the other.
    last: [Cell<u64>; URGENCIES],
    /// Priorities of PRIORITY_UPDATE frames, by stream.
    updates: RefCell<BTreeMap<u32, Priority>>,
}

/// Priority and turns of a stream.
pub(super) struct StreamPriority {
    /// The stream.
    pub(super) id: u32,
    priority: Cell<Priority>,
    /// Last turn; 0 before the first one, which comes soon.
    last: Cell<u64>,
    /// Size of the body for which the stream waits.
    pub(super) size: Cell<BodySize>,
}

/// Bytes made by a loop that no connection has tried to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MadeBytes {
    /// Less than [`MADE_MAX`].
    Little,
    Enough,
}

struct Waiter {
    share: Rc<StreamPriority>,
    waker: Waker,
}

/// Order of turns: urgency, then the last turn, then the stream number.
type Rank = (u8, u64, u32);

impl StreamPriority {
    pub(super) fn new(id: u32) -> Rc<Self> {
        Rc::new(Self {
            id,
            priority: Cell::new(UNSAID),
            last: Cell::new(0),
            size: Cell::new(BodySize::Small),
        })
    }

    /// Takes over the priority of a request.
    pub(super) fn set_from_request(&self, value: &[u8]) {
        self.priority.set(Priority::default().with(value));
    }

    /// Takes over the priority of a response, which overrides that of the request (RFC 9218 section 8).
    pub(super) fn set_from_response(&self, value: &[u8]) {
        self.priority.set(self.priority.get().with(value));
    }
}

impl StreamScheduler {
    /// Returns true if there is room for a piece.
    pub(super) fn has_room(&self) -> bool {
        self.gathered.get() < WAITING_MAX
    }

    /// Says how many bytes are gathered for the socket.
    pub(super) fn gathered(&self, bytes: usize) {
        let before = self.gathered.replace(bytes);
        if bytes < before {
            self.call();
        }
    }

    /// Ready when it is the turn of this stream, which then makes the piece that it can make at once. A stream that waits no
    /// longer has to [leave](Self::leave). If the loop has made enough for now, the stream waits for other connections.
    pub(super) fn poll(&self, share: &Rc<StreamPriority>, made: MadeBytes, cx: &mut Context<'_>) -> Poll<()> {
        let is_next = self.is_next(share);
        if is_next && made == MadeBytes::Little {
            let mut queue = self.queue.borrow_mut();
            if let Some(place) = queue.iter().position(|waiter| waiter.share.id == share.id) {
                queue.swap_remove(place);
            }
            self.given.set(self.given.get() + 1);
            let priority = self.priority(share);
            let last = if priority.incremental { &share.last } else { self.line(priority) };
            last.set(self.given.get());
            return Poll::Ready(());
        }
        if is_next {
            // Connections that have something to write are asked before.
            cx.waker().wake_by_ref();
        }
        self.wait(share, cx);
        Poll::Pending
    }

    /// Returns true if there is room, and no stream before this one.
    pub(super) fn is_next(&self, share: &StreamPriority) -> bool {
        let mine = self.rank(share);
        self.has_room() && !self.queue.borrow().iter().any(|waiter| self.rank(&waiter.share) < mine)
    }

    /// Takes note that a stream waits for its turn.
    pub(super) fn wait(&self, share: &Rc<StreamPriority>, cx: &Context<'_>) {
        let mut queue = self.queue.borrow_mut();
        match queue.iter_mut().find(|waiter| waiter.share.id == share.id) {
            Some(waiter) => waiter.waker.clone_from(cx.waker()),
            None => queue.push(Waiter { share: share.clone(), waker: cx.waker().clone() }),
        }
    }

    /// Forgets that a stream waits; returns false if it does not.
    pub(super) fn leave(&self, id: u32) -> bool {
        let mut queue = self.queue.borrow_mut();
        let Some(place) = queue.iter().position(|waiter| waiter.share.id == id) else { return false };
        queue.swap_remove(place);
        drop(queue);
        self.call();
        true
    }

    /// Returns true if the stream that [`call`](Self::call) wakes has a large body.
    pub(super) fn is_next_large(&self) -> bool {
        let queue = self.queue.borrow();
        let next = queue.iter().min_by_key(|waiter| self.rank(&waiter.share));
        next.is_some_and(|waiter| waiter.share.size.get() == BodySize::Large)
    }

    /// Wakes the next stream, if there is room.
    pub(super) fn call(&self) {
        let queue = self.queue.borrow();
        if !queue.is_empty() && self.has_room() {
            let next = queue.iter().min_by_key(|waiter| self.rank(&waiter.share));
            next.inspect(|waiter| waiter.waker.wake_by_ref());
        }
    }

    /// Takes over a PRIORITY_UPDATE frame, also for a stream that has not begun (RFC 9218 section 7).
    pub(super) fn update(&self, id: u32, value: &[u8]) {
        let mut updates = self.updates.borrow_mut();
        if updates.len() >= UPDATES_MAX && !updates.contains_key(&id) {
            // Most likely the oldest stream has gone.
            updates.pop_first();
        }
        updates.insert(id, Priority::default().with(value));
    }

    /// Drops the priority update of a stream that has ended.
    pub(super) fn forget(&self, id: u32) {
        let mut updates = self.updates.borrow_mut();
        if !updates.is_empty() {
            updates.remove(&id);
        }
    }

    fn priority(&self, share: &StreamPriority) -> Priority {
        let updates = self.updates.borrow();
        match updates.get(&share.id) {
            Some(priority) => *priority,
            None => share.priority.get(),
        }
    }

    fn line(&self, priority: Priority) -> &Cell<u64> {
        self.last.get(usize::from(priority.urgency)).unwrap_or(&self.last[URGENCIES - 1])
    }

    /// Rank of a stream. Streams that are not incremental take turns like one stream, in order of their begin.
    fn rank(&self, share: &StreamPriority) -> Rank {
        let priority = self.priority(share);
        let last = if priority.incremental { &share.last } else { self.line(priority) };
        (priority.urgency, last.get(), share.id)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Calls(AtomicUsize);

    impl Wake for Calls {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shares(priorities: &[&str]) -> Vec<Rc<StreamPriority>> {
        let ids = (1..).step_by(2);
        ids.zip(priorities)
            .map(|(id, value)| {
                let share = StreamPriority::new(id);
                if !value.is_empty() {
                    share.set_from_request(value.as_bytes());
                }
                share
            })
            .collect()
    }

    /// Order of turns while all streams want one, with room for one piece at a time.
    fn order(turns: &StreamScheduler, shares: &[Rc<StreamPriority>], count: usize) -> Vec<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        turns.gathered(WAITING_MAX);
        for share in shares {
            assert!(turns.poll(share, MadeBytes::Little, &mut cx).is_pending());
        }
        let mut order = Vec::new();
        for _ in 0..count {
            turns.gathered(0);
            let next =
                shares.iter().find(|share| turns.poll(share, MadeBytes::Little, &mut cx).is_ready()).unwrap();
            order.push(next.id);
            turns.gathered(WAITING_MAX);
            assert!(turns.poll(next, MadeBytes::Little, &mut cx).is_pending());
        }
        order
    }

    #[test]
    fn the_most_urgent_goes_first() {
        for (priorities, expected) in [
            (&["", "", ""][..], [1, 3, 5, 1, 3, 5]),
            (&["u=3", "u=3", "u=3"], [1, 1, 1, 1, 1, 1]),
            (&["u=5", "u=1", "u=3"], [3, 3, 3, 3, 3, 3]),
            (&["u=2, i", "u=2, i", "u=4"], [1, 3, 1, 3, 1, 3]),
            // Those that come one after the other are one among others.
            (&["i", "", ""], [1, 3, 5, 1, 3, 5]),
            (&["u=3", "u=3", ""], [1, 5, 1, 5, 1, 5]),
        ] {
            assert_eq!(
                order(&StreamScheduler::default(), &shares(priorities), 6),
                expected,
                "{priorities:?}"
            );
        }
    }

    #[test]
    fn a_client_may_change_its_mind() {
        let turns = StreamScheduler::default();
        let shares = shares(&["u=5", "u=1", ""]);
        turns.update(1, b"u=0");
        assert_eq!(order(&turns, &shares, 2), [1, 1]);
        turns.forget(1);
        turns.gathered(0);
        assert_eq!(order(&turns, &shares, 2), [3, 3]);
        for id in 0..1000 {
            turns.update(id, b"i");
        }
        assert_eq!(turns.updates.borrow().len(), UPDATES_MAX);
    }

    #[test]
    fn priority_of_a_response_overrides_the_request() {
        let shares = shares(&["u=5", "u=4"]);
        shares[0].set_from_response(b"u=2");
        assert_eq!(order(&StreamScheduler::default(), &shares, 2), [1, 1]);
    }

    #[test]
    fn next_stream_is_woken() {
        let turns = StreamScheduler::default();
        let shares = shares(&["u=5", "u=1"]);
        let calls = [(); 2].map(|()| Arc::new(Calls::default()));
        let called = |which: usize| calls[which].0.load(Ordering::Relaxed);
        turns.gathered(WAITING_MAX + 1);
        for (share, calls) in shares.iter().zip(&calls) {
            let waker = Waker::from(calls.clone());
            let mut cx = Context::from_waker(&waker);
            assert!(turns.poll(share, MadeBytes::Little, &mut cx).is_pending());
        }
        turns.gathered(WAITING_MAX);
        assert_eq!([called(0), called(1)], [0, 0], "there is no room yet");
        turns.gathered(WAITING_MAX - 1);
        assert_eq!([called(0), called(1)], [0, 1]);
        turns.leave(3);
        assert_eq!([called(0), called(1)], [1, 1], "nobody is forgotten when the next one leaves");
        turns.leave(1);
        turns.leave(1);
        assert!(turns.queue.borrow().is_empty());
    }

    #[test]
    fn a_loop_that_has_made_enough_waits() {
        let (turns, shares) = (StreamScheduler::default(), shares(&["u=1", "u=5"]));
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(calls.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(turns.poll(&shares[0], MadeBytes::Enough, &mut cx).is_pending());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "who is next asks again");
        assert!(turns.poll(&shares[1], MadeBytes::Enough, &mut cx).is_pending());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "who is not waits until it is");
        assert!(turns.poll(&shares[0], MadeBytes::Little, &mut cx).is_ready());
    }
}
