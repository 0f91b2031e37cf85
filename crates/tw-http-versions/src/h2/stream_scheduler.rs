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
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use tw_base::memory;
use tw_core::event_loop::BodySize;
use tw_http::Priority;
use tw_http::priority::URGENCIES;

use super::untried_bytes::MadeBytes;
use crate::streams::{PriorityUpdates, UNSET_PRIORITY};

/// Bytes of all responses of a connection that may wait for its socket before more is made. One turn makes as much, so that it
/// leaves in one write: waking the client is 13 % of what sending costs in pieces of 32 KiB, 7 % in these.
pub(super) const WAITING_MAX: usize = 128 << 10;
/// Limit of these bytes while little memory is left.
const WAITING_LOW: usize = 16 << 10;

/// Bytes of all responses of a connection that may wait for its socket now.
pub(super) fn waiting_max() -> usize {
    if memory::is_low() { WAITING_LOW } else { WAITING_MAX }
}

/// Turns of the streams of a connection.
#[derive(Default)]
pub(super) struct StreamScheduler {
    /// Bytes that were gathered for the socket.
    gathered: Cell<usize>,
    queue: RefCell<Vec<Waiter>>,
    /// Turns that were given: a number for each.
    given: Cell<u64>,
    /// For each urgency, the last turn of those that come one after the other.
    last: [Cell<u64>; URGENCIES],
    /// Priorities of PRIORITY_UPDATE frames.
    updates: PriorityUpdates,
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

struct Waiter {
    stream: Rc<StreamPriority>,
    waker: Waker,
}

/// Order of turns: urgency, then the last turn, then the stream number.
type Rank = (u8, u64, u32);

impl StreamPriority {
    pub(super) fn new(id: u32) -> Rc<Self> {
        Rc::new(Self {
            id,
            priority: Cell::new(UNSET_PRIORITY),
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
        self.gathered.get() < waiting_max()
    }

    /// Sets the number of bytes that are gathered for the socket.
    pub(super) fn set_gathered(&self, bytes: usize) {
        let before = self.gathered.replace(bytes);
        if bytes < before {
            self.wake_next();
        }
    }

    /// Ready when it is the turn of this stream, which then makes the piece that it can make at once. A stream that waits no
    /// longer has to [stop waiting](Self::stop_waiting). If the loop has made enough for now, the stream waits for other connections.
    pub(super) fn poll(
        &self,
        stream: &Rc<StreamPriority>,
        made: MadeBytes,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        let is_next = self.is_next(stream);
        if is_next && made == MadeBytes::Little {
            let mut queue = self.queue.borrow_mut();
            if let Some(place) = queue.iter().position(|waiter| waiter.stream.id == stream.id) {
                queue.swap_remove(place);
            }
            self.given.set(self.given.get() + 1);
            let priority = self.priority(stream);
            let last = if priority.incremental { &stream.last } else { self.line(priority) };
            last.set(self.given.get());
            return Poll::Ready(());
        }
        if is_next {
            // Connections that have something to write are polled before.
            cx.waker().wake_by_ref();
        }
        self.wait(stream, cx);
        Poll::Pending
    }

    /// Returns true if there is room, and no stream before this one.
    pub(super) fn is_next(&self, stream: &StreamPriority) -> bool {
        let mine = self.rank(stream);
        self.has_room() && !self.queue.borrow().iter().any(|waiter| self.rank(&waiter.stream) < mine)
    }

    /// Notes that a stream waits for its turn.
    pub(super) fn wait(&self, stream: &Rc<StreamPriority>, cx: &Context<'_>) {
        let mut queue = self.queue.borrow_mut();
        match queue.iter_mut().find(|waiter| waiter.stream.id == stream.id) {
            Some(waiter) => waiter.waker.clone_from(cx.waker()),
            None => queue.push(Waiter { stream: stream.clone(), waker: cx.waker().clone() }),
        }
    }

    /// Removes a stream from the queue; returns false if it is not there.
    pub(super) fn stop_waiting(&self, id: u32) -> bool {
        let mut queue = self.queue.borrow_mut();
        let Some(place) = queue.iter().position(|waiter| waiter.stream.id == id) else { return false };
        queue.swap_remove(place);
        drop(queue);
        self.wake_next();
        true
    }

    /// Returns true if the stream that [`wake_next`](Self::wake_next) wakes has a large body.
    pub(super) fn is_next_large(&self) -> bool {
        let queue = self.queue.borrow();
        let next = queue.iter().min_by_key(|waiter| self.rank(&waiter.stream));
        next.is_some_and(|waiter| waiter.stream.size.get() == BodySize::Large)
    }

    /// Wakes the next stream, if there is room.
    pub(super) fn wake_next(&self) {
        let queue = self.queue.borrow();
        if !queue.is_empty() && self.has_room() {
            let next = queue.iter().min_by_key(|waiter| self.rank(&waiter.stream));
            next.inspect(|waiter| waiter.waker.wake_by_ref());
        }
    }

    /// Takes over a PRIORITY_UPDATE frame, also for a stream that has not begun (RFC 9218 section 7).
    pub(super) fn update(&self, id: u32, value: &[u8]) {
        self.updates.insert(id.into(), value);
    }

    /// Drops the priority update of a stream that has ended.
    pub(super) fn forget(&self, id: u32) {
        self.updates.forget(id.into());
    }

    fn priority(&self, stream: &StreamPriority) -> Priority {
        self.updates.get(stream.id.into()).unwrap_or_else(|| stream.priority.get())
    }

    fn line(&self, priority: Priority) -> &Cell<u64> {
        self.last.get(usize::from(priority.urgency)).unwrap_or(&self.last[URGENCIES - 1])
    }

    /// Rank of a stream. Streams that are not incremental take turns like one stream, in order of their begin.
    fn rank(&self, stream: &StreamPriority) -> Rank {
        let priority = self.priority(stream);
        let last = if priority.incremental { &stream.last } else { self.line(priority) };
        (priority.urgency, last.get(), stream.id)
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

    fn streams(priorities: &[&str]) -> Vec<Rc<StreamPriority>> {
        let ids = (1..).step_by(2);
        ids.zip(priorities)
            .map(|(id, value)| {
                let stream = StreamPriority::new(id);
                if !value.is_empty() {
                    stream.set_from_request(value.as_bytes());
                }
                stream
            })
            .collect()
    }

    /// Order of turns while all streams want one, with room for one piece at a time.
    fn order(scheduler: &StreamScheduler, streams: &[Rc<StreamPriority>], count: usize) -> Vec<u32> {
        let mut cx = Context::from_waker(Waker::noop());
        scheduler.set_gathered(WAITING_MAX);
        for stream in streams {
            assert!(scheduler.poll(stream, MadeBytes::Little, &mut cx).is_pending());
        }
        let mut order = Vec::new();
        for _ in 0..count {
            scheduler.set_gathered(0);
            let next = streams
                .iter()
                .find(|stream| scheduler.poll(stream, MadeBytes::Little, &mut cx).is_ready())
                .unwrap();
            order.push(next.id);
            scheduler.set_gathered(WAITING_MAX);
            assert!(scheduler.poll(next, MadeBytes::Little, &mut cx).is_pending());
        }
        order
    }

    #[test]
    fn most_urgent_stream_is_first() {
        for (priorities, expected) in [
            (&["", "", ""][..], [1, 3, 5, 1, 3, 5]),
            (&["u=3", "u=3", "u=3"], [1, 1, 1, 1, 1, 1]),
            (&["u=5", "u=1", "u=3"], [3, 3, 3, 3, 3, 3]),
            (&["u=2, i", "u=2, i", "u=4"], [1, 3, 1, 3, 1, 3]),
            // Streams that are not incremental together take the turns of one stream.
            (&["i", "", ""], [1, 3, 5, 1, 3, 5]),
            (&["u=3", "u=3", ""], [1, 5, 1, 5, 1, 5]),
        ] {
            assert_eq!(
                order(&StreamScheduler::default(), &streams(priorities), 6),
                expected,
                "{priorities:?}"
            );
        }
    }

    #[test]
    fn priority_update_overrides_the_request() {
        let scheduler = StreamScheduler::default();
        let streams = streams(&["u=5", "u=1", ""]);
        scheduler.update(1, b"u=0");
        assert_eq!(order(&scheduler, &streams, 2), [1, 1]);
        scheduler.forget(1);
        scheduler.set_gathered(0);
        assert_eq!(order(&scheduler, &streams, 2), [3, 3]);
    }

    #[test]
    fn priority_of_a_response_overrides_the_request() {
        let streams = streams(&["u=5", "u=4"]);
        streams[0].set_from_response(b"u=2");
        assert_eq!(order(&StreamScheduler::default(), &streams, 2), [1, 1]);
    }

    #[test]
    fn next_stream_is_woken() {
        let scheduler = StreamScheduler::default();
        let streams = streams(&["u=5", "u=1"]);
        let calls = [(); 2].map(|()| Arc::new(Calls::default()));
        let called = |which: usize| calls[which].0.load(Ordering::Relaxed);
        scheduler.set_gathered(WAITING_MAX + 1);
        for (stream, calls) in streams.iter().zip(&calls) {
            let waker = Waker::from(calls.clone());
            let mut cx = Context::from_waker(&waker);
            assert!(scheduler.poll(stream, MadeBytes::Little, &mut cx).is_pending());
        }
        scheduler.set_gathered(WAITING_MAX);
        assert_eq!([called(0), called(1)], [0, 0], "there is no room yet");
        scheduler.set_gathered(WAITING_MAX - 1);
        assert_eq!([called(0), called(1)], [0, 1]);
        scheduler.stop_waiting(3);
        assert_eq!([called(0), called(1)], [1, 1], "the other one is woken when the next one stops waiting");
        scheduler.stop_waiting(1);
        scheduler.stop_waiting(1);
        assert!(scheduler.queue.borrow().is_empty());
    }

    #[test]
    fn stream_waits_while_the_loop_has_made_enough() {
        let scheduler = StreamScheduler::default();
        let streams = streams(&["u=1", "u=5"]);
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(calls.clone());
        let mut cx = Context::from_waker(&waker);
        assert!(scheduler.poll(&streams[0], MadeBytes::Enough, &mut cx).is_pending());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "the next stream is polled again");
        assert!(scheduler.poll(&streams[1], MadeBytes::Enough, &mut cx).is_pending());
        assert_eq!(calls.0.load(Ordering::Relaxed), 1, "another one waits until it is the next");
        assert!(scheduler.poll(&streams[0], MadeBytes::Little, &mut cx).is_ready());
    }
}
