//! Bounded queue of requests that wait until a peer may be free (`queue`).
//!
//! A returned permit wakes the first waiting request. It selects again, and keeps its position if another request was
//! faster. A request that leaves the queue after it was woken wakes the next one, and so does one that cannot use the
//! free peer because it has failed there before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use tw_base::FatalMutex;

/// Queue of one group, shared by all loops. It outlives a reload with the states of the peers.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    /// Number of waiting requests; read without the lock.
    len: AtomicUsize,
    entries: FatalMutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    next: u64,
    /// In the order of their tickets.
    waiting: VecDeque<Entry>,
}

#[derive(Debug)]
struct Entry {
    ticket: u64,
    is_woken: bool,
    waker: Option<Waker>,
}

/// Position in the queue. Dropping it leaves the queue.
#[derive(Debug)]
#[must_use]
pub struct QueuedRequest {
    queue: Arc<RequestQueue>,
    ticket: u64,
}

impl RequestQueue {
    /// Joins the end of the queue, unless `max` requests wait.
    pub(crate) fn join(self: &Arc<Self>, max: usize) -> Option<QueuedRequest> {
        let mut entries = self.entries.lock();
        if entries.waiting.len() >= max {
            return None;
        }
        let ticket = entries.next;
        entries.next += 1;
        entries.waiting.push_back(Entry { ticket, is_woken: false, waker: None });
        self.len.store(entries.waiting.len(), SeqCst);
        Some(QueuedRequest { queue: self.clone(), ticket })
    }

    /// Number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// Wakes the first request that is not woken yet. Costs one load if none waits.
    pub(crate) fn wake_one(&self) {
        if self.len() > 0 {
            self.wake(0, 1);
        }
    }

    /// Wakes all requests, because the list of peers has changed.
    pub(crate) fn wake_all(&self) {
        if self.len() > 0 {
            self.wake(0, usize::MAX);
        }
    }

    /// Wakes the first `most` requests that are not woken yet, from this ticket on.
    fn wake(&self, from: u64, most: usize) {
        let mut entries = self.entries.lock();
        let is_selected = |entry: &&mut Entry| !entry.is_woken && entry.ticket >= from;
        let selected = entries.waiting.iter_mut().filter(is_selected).take(most);
        let wakers: Vec<Waker> = selected
            .filter_map(|entry| {
                entry.is_woken = true;
                entry.waker.take()
            })
            .collect();
        // A waker may run code of its own, and must not find the lock held.
        drop(entries);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Entries {
    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }
}

impl QueuedRequest {
    /// Ready once for each wake-up: the request then selects again, and polls again if there is no peer. Takes the
    /// lock of the queue.
    pub fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut entries = self.queue.entries.lock();
        let entry = entries.position(self.ticket).and_then(|at| entries.waiting.get_mut(at));
        match entry {
            Some(entry) if !entry.is_woken => {
                entry.waker = Some(cx.waker().clone());
                Poll::Pending
            }
            Some(entry) => {
                entry.is_woken = false;
                Poll::Ready(())
            }
            None => Poll::Ready(()),
        }
    }

    /// Passes a wake-up that [`poll_woken`](Self::poll_woken) has reported to the next request behind this one, if
    /// this one cannot use the free peer. At the end of the queue it is lost: no request there can use the peer.
    pub fn wake_next(&self) {
        self.queue.wake(self.ticket + 1, 1);
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut entries = self.queue.entries.lock();
        let entry = entries.position(self.ticket).and_then(|at| entries.waiting.remove(at));
        self.queue.len.store(entries.waiting.len(), SeqCst);
        drop(entries);
        if entry.is_some_and(|entry| entry.is_woken) {
            self.queue.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn poll(place: &mut QueuedRequest, count: &Arc<Count>) -> bool {
        let waker = Waker::from(count.clone());
        place.poll_woken(&mut Context::from_waker(&waker)).is_ready()
    }

    #[test]
    fn first_request_is_woken_first_and_passes_the_wake_up_on() {
        let queue = Arc::new(RequestQueue::default());
        let count = Arc::new(Count::default());
        let mut first = queue.join(2).unwrap();
        let mut second = queue.join(2).unwrap();
        assert!(queue.join(2).is_none());
        assert!(!poll(&mut first, &count) && !poll(&mut second, &count));
        queue.wake_one();
        assert_eq!(count.0.load(SeqCst), 1);
        // The first request finds no peer, goes on waiting, and is still the first.
        assert!(poll(&mut first, &count) && !poll(&mut first, &count));
        queue.wake_one();
        assert!(!poll(&mut second, &count));
        drop(first);
        assert!(poll(&mut second, &count));
        drop(second);
        assert_eq!((queue.len(), count.0.load(SeqCst)), (0, 3));
        queue.wake_one();
    }

    #[test]
    fn unusable_wake_up_passes_down_the_queue_and_ends_there() {
        let queue = Arc::new(RequestQueue::default());
        let count = Arc::new(Count::default());
        let mut places: Vec<_> = (0..3).map(|_| queue.join(9).unwrap()).collect();
        queue.wake_one();
        for called in 0..places.len() {
            let calls: Vec<_> = places.iter_mut().map(|place| poll(place, &count)).collect();
            assert_eq!(calls.iter().position(|is_woken| *is_woken), Some(called));
            assert_eq!(calls.iter().filter(|is_woken| **is_woken).count(), 1);
            places[called].wake_next();
        }
        assert!(!places.iter_mut().any(|place| poll(place, &count)));
    }

    #[test]
    fn wake_up_is_consumed_by_its_receiver() {
        let queue = Arc::new(RequestQueue::default());
        let count = Arc::new(Count::default());
        let mut first = queue.join(9).unwrap();
        let mut second = queue.join(9).unwrap();
        queue.wake_one();
        assert!(poll(&mut first, &count));
        drop(first);
        assert!(!poll(&mut second, &count));
        let mut third = queue.join(9).unwrap();
        queue.wake_all();
        assert!(poll(&mut second, &count) && poll(&mut third, &count));
    }
}
