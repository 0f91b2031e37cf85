//! List of the clients of a loop, with a linked list of the idle ones, the longest idle first (nginx:
//! `reusable_connections_queue`).
//!
//! Each client has a slot while it is connected; the slots of idle clients are linked. Adding, removing, marking as
//! idle or busy and finding the longest idle client all take constant time.

use std::task::Waker;

use tw_base::Slab;

/// Slot of no client: the end of the list.
const NONE: u32 = u32::MAX;

/// The clients of a loop.
#[derive(Debug)]
pub struct ConnectionList<T> {
    entries: Slab<Entry<T>>,
    /// The client that has been idle longest.
    first: u32,
    /// The client that became idle last.
    last: u32,
    idle_count: usize,
}

#[derive(Debug)]
struct Entry<T> {
    client: T,
    /// Set while the client is idle and has not been evicted.
    waker: Option<Waker>,
    before: u32,
    after: u32,
}

/// Slot of one client. It is reused only after `ConnectionList::remove`.
#[derive(Debug)]
pub struct ConnectionSlot(u32);

impl<T> Default for ConnectionList<T> {
    fn default() -> Self {
        Self { entries: Slab::default(), first: NONE, last: NONE, idle_count: 0 }
    }
}

impl<T> ConnectionList<T> {
    /// Adds `client` and returns its slot.
    pub fn insert(&mut self, client: T) -> ConnectionSlot {
        ConnectionSlot(self.entries.insert(Entry { client, waker: None, before: NONE, after: NONE }))
    }

    /// Removes a client.
    pub fn remove(&mut self, slot: &ConnectionSlot) {
        self.mark_busy(slot);
        self.entries.remove(slot.0);
    }

    /// Marks a client as idle, behind those that are idle already. `waker` is returned when it is evicted.
    pub fn mark_idle(&mut self, slot: &ConnectionSlot, waker: Waker) {
        self.mark_busy(slot);
        let last = self.last;
        let Some(entry) = self.entries.get_mut(slot.0) else { return };
        entry.waker = Some(waker);
        (entry.before, entry.after) = (last, NONE);
        match self.entries.get_mut(last) {
            Some(before) => before.after = slot.0,
            None => self.first = slot.0,
        }
        self.last = slot.0;
        self.idle_count += 1;
    }

    /// Returns true if the client is idle and has not been evicted.
    pub fn is_idle(&self, slot: &ConnectionSlot) -> bool {
        self.entries.get(slot.0).is_some_and(|entry| entry.waker.is_some())
    }

    /// Marks a client as busy. No effect if it is not idle.
    pub(super) fn mark_busy(&mut self, slot: &ConnectionSlot) {
        self.unlink(slot.0);
    }

    /// Evicts the client that has been idle longest, and returns its waker.
    pub fn evict_oldest(&mut self) -> Option<Waker> {
        self.unlink(self.first)
    }

    /// Number of idle clients.
    pub fn idle_count(&self) -> usize {
        self.idle_count
    }

    /// All clients, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter().map(|entry| &entry.client)
    }

    fn unlink(&mut self, at: u32) -> Option<Waker> {
        let entry = self.entries.get_mut(at)?;
        let waker = entry.waker.take()?;
        let before = entry.before;
        let after = entry.after;
        match self.entries.get_mut(before) {
            Some(entry) => entry.after = after,
            None => self.first = after,
        }
        match self.entries.get_mut(after) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
        self.idle_count -= 1;
        Some(waker)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    /// Waker that records whose turn it was.
    struct TurnWaker(u64, Arc<AtomicU64>);

    impl Wake for TurnWaker {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0, Relaxed);
        }
    }

    /// List under test, with a simple model of it.
    #[derive(Default)]
    struct Checked {
        list: ConnectionList<u64>,
        there: Vec<(u64, ConnectionSlot)>,
        queue: VecDeque<u64>,
        rung: Arc<AtomicU64>,
    }

    impl Checked {
        fn insert(&mut self, client: u64) {
            let slot = self.list.insert(client);
            assert!(self.there.iter().all(|(_, other)| other.0 != slot.0));
            self.there.push((client, slot));
        }

        fn remove(&mut self, at: usize) {
            let (client, slot) = self.there.swap_remove(at);
            self.list.remove(&slot);
            self.queue.retain(|other| *other != client);
        }

        fn mark_idle(&mut self, at: usize) {
            let (client, slot) = &self.there[at];
            self.list.mark_idle(slot, Arc::new(TurnWaker(*client, self.rung.clone())).into());
            self.queue.retain(|other| other != client);
            self.queue.push_back(*client);
        }

        fn mark_busy(&mut self, at: usize) {
            let (client, slot) = &self.there[at];
            self.list.mark_busy(slot);
            self.queue.retain(|other| other != client);
        }

        fn evict_oldest(&mut self) {
            let expected = self.queue.pop_front();
            self.rung.store(u64::MAX, Relaxed);
            let called = self.list.evict_oldest().map(|waker| {
                waker.wake();
                self.rung.load(Relaxed)
            });
            assert_eq!(called, expected);
        }

        fn check(&self) {
            assert_eq!(self.list.idle_count(), self.queue.len());
            for (client, slot) in &self.there {
                assert_eq!(self.list.is_idle(slot), self.queue.contains(client), "{client}");
            }
            let mut all: Vec<u64> = self.list.iter().copied().collect();
            let mut there: Vec<u64> = self.there.iter().map(|(client, _)| *client).collect();
            all.sort_unstable();
            there.sort_unstable();
            assert_eq!(all, there);
        }
    }

    #[test]
    fn client_idle_longest_is_evicted_first() {
        let mut checked = Checked::default();
        (0..4).for_each(|client| checked.insert(client));
        [2, 0, 3, 1].into_iter().for_each(|at| checked.mark_idle(at));
        // A client that becomes idle again moves to the end of the queue.
        checked.mark_idle(0);
        assert_eq!(checked.queue, [2, 3, 1, 0]);
        checked.evict_oldest();
        checked.mark_busy(3);
        checked.check();
        checked.remove(1);
        checked.evict_oldest();
        checked.evict_oldest();
        checked.check();
    }

    #[test]
    fn list_matches_model_under_random_operations() {
        // Marsaglia's xorshift64, the same sequence every time.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound.max(1) as u64) as usize
        };
        let mut checked = Checked::default();
        for client in 0..20_000 {
            let count = checked.there.len();
            // Phases of growth and of shrinking alternate.
            let grows = (client / 400) % 2 == 0;
            match below(8) {
                0 | 1 if grows => checked.insert(client),
                0..=2 if count > 0 && !grows => checked.remove(below(count)),
                3..=5 if count > 0 => checked.mark_idle(below(count)),
                6 if count > 0 => checked.mark_busy(below(count)),
                7 => checked.evict_oldest(),
                _ => {}
            }
            if client % 16 == 0 {
                checked.check();
            }
        }
        while !checked.there.is_empty() {
            checked.remove(0);
        }
        checked.check();
    }

    #[test]
    fn entry_takes_at_most_32_bytes() {
        assert!(size_of::<Entry<std::rc::Weak<u64>>>() <= 32);
    }
}
