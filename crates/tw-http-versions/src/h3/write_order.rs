//! Order in which the streams of a connection write to the transport. The transport sends what it has by priority, but all streams share
//! its send window: a stream that fills it leaves no room for more urgent ones.
//!
//! ```text
//! begin: makes a piece ─► poll_write: no more urgent stream is active? ─► writes ─┬─► end: all is written
//!                            ▲                                                    └─► end: the transport has no room
//!                            └──────────── the most urgent one that waits ◄─────────────┘
//! ```
//! A stream that waits for anything else, such as a disk, another server or room in the transport, holds up no other one.

use std::cell::RefCell;
use std::task::{Context, Poll, Waker};

use tw_quic::StreamId;

/// Streams that write, or are about to.
#[derive(Default)]
pub(super) struct WriteOrder {
    /// Streams that make pieces or write them, and their priorities in the transport.
    active: RefCell<Vec<(StreamId, i32)>>,
    /// Streams that wait for more urgent ones.
    waiting: RefCell<Vec<Waiting>>,
}

struct Waiting {
    stream: StreamId,
    priority: i32,
    waker: Waker,
}

impl WriteOrder {
    /// Notes that a stream is about to write.
    pub(super) fn begin(&self, stream: StreamId, priority: i32) {
        let mut active = self.active.borrow_mut();
        match active.iter_mut().find(|(other, _)| *other == stream) {
            Some(row) => row.1 = priority,
            None => active.push((stream, priority)),
        }
    }

    /// Ready while no more urgent stream is about to write. A call that is not of a task may be pending, but does not wait.
    pub(super) fn poll_write(&self, stream: StreamId, priority: i32, cx: &Context<'_>) -> Poll<()> {
        let is_held_up = self.active.borrow().iter().any(|(_, other)| *other > priority);
        let mut waiting = self.waiting.borrow_mut();
        let place = waiting.iter().position(|waiting| waiting.stream == stream);
        if !is_held_up {
            place.map(|place| waiting.swap_remove(place));
            return Poll::Ready(());
        }
        if !cx.waker().will_wake(Waker::noop()) {
            let entry = Waiting { stream, priority, waker: cx.waker().clone() };
            match place.and_then(|place| waiting.get_mut(place)) {
                Some(known_waiting) => *known_waiting = entry,
                None => waiting.push(entry),
            }
        }
        Poll::Pending
    }

    /// Notes that a stream has written, or has to wait for something else. The most urgent one that waits is polled next.
    pub(super) fn end(&self, stream: StreamId) {
        self.active.borrow_mut().retain(|(other, _)| *other != stream);
        let waiting = self.waiting.borrow();
        if let Some(next) = waiting.iter().max_by_key(|waiting| waiting.priority) {
            next.waker.wake_by_ref();
        }
    }

    /// Frees unused memory.
    pub(super) fn shrink(&self) {
        self.active.borrow_mut().shrink_to_fit();
        self.waiting.borrow_mut().shrink_to_fit();
    }

    /// Forgets a stream that has ended.
    pub(super) fn forget(&self, stream: StreamId) {
        self.waiting.borrow_mut().retain(|waiting| waiting.stream != stream);
        self.end(stream);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Streams with the priorities 30, 20, 20 and 10, which all are about to write.
    struct Streams {
        order: WriteOrder,
        wakes: [Arc<Wakes>; 4],
    }

    const PRIORITIES: [i32; 4] = [30, 20, 20, 10];

    fn id(stream: usize) -> StreamId {
        StreamId::from_value(stream as u64 * 4)
    }

    impl Streams {
        fn new() -> Self {
            let streams = Self { order: WriteOrder::default(), wakes: Default::default() };
            PRIORITIES
                .iter()
                .enumerate()
                .for_each(|(stream, priority)| streams.order.begin(id(stream), *priority));
            streams
        }

        fn may_write(&self, stream: usize) -> bool {
            let waker = Waker::from(self.wakes[stream].clone());
            let cx = Context::from_waker(&waker);
            self.order.poll_write(id(stream), PRIORITIES[stream], &cx).is_ready()
        }

        fn wakes(&self) -> [usize; 4] {
            [0, 1, 2, 3].map(|stream| self.wakes[stream].0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn less_urgent_streams_wait_for_the_most_urgent_one() {
        let streams = Streams::new();
        assert_eq!([0, 1, 2, 3].map(|stream| streams.may_write(stream)), [true, false, false, false]);
        streams.order.end(id(0));
        assert_eq!(streams.wakes()[1] + streams.wakes()[2], 1, "one of the next is woken");
        assert_eq!([1, 2, 3].map(|stream| streams.may_write(stream)), [true, true, false]);
        streams.order.end(id(1));
        assert!(!streams.may_write(3), "one of the same priority is left");
        streams.order.end(id(2));
        assert!(streams.may_write(3));
    }

    #[test]
    fn stream_that_ends_is_not_waited_for() {
        let streams = Streams::new();
        assert!(!streams.may_write(1) && !streams.may_write(3));
        streams.order.forget(id(2));
        assert_eq!(streams.wakes(), [0, 1, 0, 0]);
        streams.order.forget(id(1));
        assert_eq!(streams.wakes(), [0, 1, 0, 1]);
        streams.order.forget(id(0));
        assert!(streams.may_write(3));
    }

    #[test]
    fn call_without_a_task_does_not_wait() {
        let streams = Streams::new();
        let noop = Context::from_waker(Waker::noop());
        assert!(streams.order.poll_write(id(1), 20, &noop).is_pending());
        assert!(!streams.may_write(3));
        streams.order.end(id(0));
        assert_eq!(streams.wakes(), [0, 0, 0, 1]);
    }
}
