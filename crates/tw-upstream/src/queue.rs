//! A bounded line of requests that wait until a peer may be free (`queue`).
//!
//! A permit that comes back calls the first who waits. Who is called looks again for a peer, and goes on waiting at the same
//! place of the line if another request was faster. Who leaves the line after a call gives the call to the next, and so does
//! who cannot use the peer that is free because it has failed there before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use tw_base::Whole;

/// The line of one group, shared by all loops. It outlives a reload with the states of the peers.
#[derive(Debug, Default)]
pub(crate) struct RequestQueue {
    /// How many wait; looked at without the lock.
    len: AtomicUsize,
    queue: Whole<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
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

/// A place in the line; dropping it leaves the line.
#[derive(Debug)]
#[must_use]
pub struct QueuedRequest {
    line: Arc<RequestQueue>,
    ticket: u64,
}

impl RequestQueue {
    /// A place at the end, unless `max` places are taken.
    pub(crate) fn join(self: &Arc<Self>, max: usize) -> Option<QueuedRequest> {
        let mut queue = self.queue.lock();
        if queue.waiting.len() >= max {
            return None;
        }
        let ticket = queue.next;
        queue.next += 1;
        queue.waiting.push_back(Entry { ticket, is_woken: false, waker: None });
        self.len.store(queue.waiting.len(), SeqCst);
        Some(QueuedRequest { line: self.clone(), ticket })
    }

    /// How many wait.
    pub(crate) fn len(&self) -> usize {
        self.len.load(SeqCst)
    }

    /// Calls the first who waits and is not called yet. One load if nobody waits.
    pub(crate) fn wake_one(&self) {
        if self.len() > 0 {
            self.wake(0, 1);
        }
    }

    /// Calls everybody: there is something new to choose from.
    pub(crate) fn wake_all(&self) {
        if self.len() > 0 {
            self.wake(0, usize::MAX);
        }
    }

    /// Calls the first `most` who are not called yet, from this ticket on.
    fn wake(&self, from: u64, most: usize) {
        let mut queue = self.queue.lock();
        let is_meant = |entry: &&mut Entry| !entry.is_woken && entry.ticket >= from;
        let entries = queue.waiting.iter_mut().filter(is_meant).take(most);
        let wakers: Vec<Waker> = entries
            .filter_map(|entry| {
                entry.is_woken = true;
                entry.waker.take()
            })
            .collect();
        // A waker may run code of its own, and must not find the lock held.
        drop(queue);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Queue {
    fn position(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |entry| entry.ticket).ok()
    }
}

impl QueuedRequest {
    /// Ready once for each call: then look for a peer, and poll again if there is none. Takes the lock of the line.
    pub fn poll_woken(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut queue = self.line.queue.lock();
        let entry = queue.position(self.ticket).and_then(|at| queue.waiting.get_mut(at));
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

    /// Gives a call that [`poll_woken`](Self::poll_woken) has told of to the next one behind this place, for who could not
    /// use it. At the end of the line it is lost: nobody there can use it.
    pub fn wake_next(&self) {
        self.line.wake(self.ticket + 1, 1);
    }
}

impl Drop for QueuedRequest {
    fn drop(&mut self) {
        let mut queue = self.line.queue.lock();
        let entry = queue.position(self.ticket).and_then(|at| queue.waiting.remove(at));
        self.line.len.store(queue.waiting.len(), SeqCst);
        drop(queue);
        if entry.is_some_and(|entry| entry.is_woken) {
            self.line.wake_one();
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
    fn the_first_is_called_first_and_gives_the_call_on() {
        let (line, count) = (Arc::new(RequestQueue::default()), Arc::new(Count::default()));
        let mut first = line.join(2).unwrap();
        let mut second = line.join(2).unwrap();
        assert!(line.join(2).is_none());
        assert!(!poll(&mut first, &count) && !poll(&mut second, &count));
        line.wake_one();
        assert_eq!(count.0.load(SeqCst), 1);
        // It finds no peer, goes on waiting, and is still the first.
        assert!(poll(&mut first, &count) && !poll(&mut first, &count));
        line.wake_one();
        assert!(!poll(&mut second, &count));
        drop(first);
        assert!(poll(&mut second, &count));
        drop(second);
        assert_eq!((line.len(), count.0.load(SeqCst)), (0, 3));
        line.wake_one();
    }

    #[test]
    fn a_call_that_cannot_be_used_goes_down_the_line_and_ends_there() {
        let (line, count) = (Arc::new(RequestQueue::default()), Arc::new(Count::default()));
        let mut places: Vec<_> = (0..3).map(|_| line.join(9).unwrap()).collect();
        line.wake_one();
        for called in 0..places.len() {
            let calls: Vec<_> = places.iter_mut().map(|place| poll(place, &count)).collect();
            assert_eq!(calls.iter().position(|is_woken| *is_woken), Some(called));
            assert_eq!(calls.iter().filter(|is_woken| **is_woken).count(), 1);
            places[called].wake_next();
        }
        assert!(!places.iter_mut().any(|place| poll(place, &count)));
    }

    #[test]
    fn a_call_is_used_up_by_who_took_it() {
        let (line, count) = (Arc::new(RequestQueue::default()), Arc::new(Count::default()));
        let (mut first, mut second) = (line.join(9).unwrap(), line.join(9).unwrap());
        line.wake_one();
        assert!(poll(&mut first, &count));
        drop(first);
        assert!(!poll(&mut second, &count));
        let mut third = line.join(9).unwrap();
        line.wake_all();
        assert!(poll(&mut second, &count) && poll(&mut third, &count));
    }
}
