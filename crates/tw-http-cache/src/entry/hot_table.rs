//! Table in memory whose owner evicts by S3-FIFO (Yang et al.: FIFO queues are all you need for cache eviction, SOSP 2023).
//!
//! ```text
//! new ─► small ─┬─ used twice ─► main ─┬─ used ─► main, from its beginning
//!               │                ▲     └─ not ──► gone
//!               └─ not ─► ghost ─┘ comes again
//! ```
//! A use only counts. `cargo xtask bench hit-ratio` compares the policy with a clock.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

use foldhash::fast::RandomState;

/// One in so many values is the share of the small queue.
const SMALL_SHARE: usize = 10;
/// Uses of a new value after which it is one of the main queue, and the largest number that is counted.
const USES_MAIN: u8 = 2;
const USES_MAX: u8 = 3;
/// Removed values whose places in a queue are kept: the queues are tidied when there are more, for as many as the values.
const GONE_MIN: usize = 64;

/// Queue of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HotQueue {
    Small,
    Main,
}

struct HotSlot<V> {
    value: V,
    uses: Cell<u8>,
    queue: HotQueue,
    /// Number of its place in the queue.
    ticket: u64,
}

/// Values by key. The owner calls [`evict`](Self::evict) when there are too many.
pub(crate) struct HotTable<K, V> {
    slots: HashMap<K, HotSlot<V>, RandomState>,
    /// Places in the queues, oldest first; those of removed values are skipped.
    small: VecDeque<(K, u64)>,
    main: VecDeque<(K, u64)>,
    /// Number of values in the small queue.
    small_len: usize,
    /// Keys that were evicted from the small queue, oldest first, and the number of the place of each.
    ghost_order: VecDeque<(K, u64)>,
    ghosts: HashMap<K, u64, RandomState>,
    ghosts_max: usize,
    next_ticket: u64,
}

impl<K: Copy + Eq + Hash, V> HotTable<K, V> {
    /// Creates an empty table that remembers `ghosts_max` evicted keys.
    pub(crate) fn new(ghosts_max: usize) -> Self {
        Self {
            slots: HashMap::default(),
            small: VecDeque::new(),
            main: VecDeque::new(),
            small_len: 0,
            ghost_order: VecDeque::new(),
            ghosts: HashMap::default(),
            ghosts_max,
            next_ticket: 0,
        }
    }

    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns a value without counting a use.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.slots.get(key).map(|slot| &slot.value)
    }

    /// Returns a value, if `is_it` is true for it, and counts a use.
    pub(crate) fn get_if(&self, key: &K, is_it: impl FnOnce(&V) -> bool) -> Option<&V> {
        let slot = self.slots.get(key).filter(|slot| is_it(&slot.value))?;
        slot.uses.set(USES_MAX.min(slot.uses.get() + 1));
        Some(&slot.value)
    }

    /// Adds a value, and returns the one that it replaces, whose place it takes.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        if let Some(slot) = self.slots.get_mut(&key) {
            return Some(std::mem::replace(&mut slot.value, value));
        }
        let queue = if self.ghosts.remove(&key).is_some() { HotQueue::Main } else { HotQueue::Small };
        let ticket = self.enqueue(key, queue);
        self.slots.insert(key, HotSlot { value, uses: Cell::new(0), queue, ticket });
        self.tidy();
        None
    }

    /// Removes a value.
    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.slots.remove(key)?;
        self.small_len -= usize::from(slot.queue == HotQueue::Small);
        Some(slot.value)
    }

    /// Removes the value that is needed least. `None` if the table is empty.
    pub(crate) fn evict(&mut self) -> Option<V> {
        // Each step removes a place, or takes a use off one.
        while !self.slots.is_empty() {
            let is_small = self.small_len > 0 && self.small_len * SMALL_SHARE >= self.slots.len();
            let queue = if is_small { &mut self.small } else { &mut self.main };
            let (key, ticket) = match queue.pop_front() {
                Some(place) => place,
                // All values are in the other one.
                None => (if is_small { &mut self.main } else { &mut self.small }).pop_front()?,
            };
            let Some(slot) = self.slots.get(&key).filter(|slot| slot.ticket == ticket) else { continue };
            let (queue, uses) = (slot.queue, slot.uses.get());
            let remaining = match queue {
                HotQueue::Small if uses >= USES_MAIN => 0,
                HotQueue::Main if uses > 0 => uses - 1,
                HotQueue::Small => {
                    self.add_ghost(key);
                    return self.remove(&key);
                }
                HotQueue::Main => return self.remove(&key),
            };
            self.small_len -= usize::from(queue == HotQueue::Small);
            let ticket = self.enqueue(key, HotQueue::Main);
            if let Some(slot) = self.slots.get_mut(&key) {
                slot.uses.set(remaining);
                (slot.queue, slot.ticket) = (HotQueue::Main, ticket);
            }
        }
        None
    }

    /// Removes all values for which `is_kept` is false, and hands them to `on_removal`.
    pub(crate) fn retain(&mut self, is_kept: impl Fn(&K, &V) -> bool, mut on_removal: impl FnMut(V)) {
        let keys: Vec<K> =
            self.slots.iter().filter(|(key, slot)| !is_kept(key, &slot.value)).map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| self.remove(key)).for_each(&mut on_removal);
        self.tidy();
    }

    /// Removes all values and ghosts.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.ghosts_max);
    }

    /// Makes a key the newest of a queue. Returns the number of its place.
    fn enqueue(&mut self, key: K, queue: HotQueue) -> u64 {
        self.next_ticket += 1;
        match queue {
            HotQueue::Small => {
                self.small_len += 1;
                self.small.push_back((key, self.next_ticket));
            }
            HotQueue::Main => self.main.push_back((key, self.next_ticket)),
        }
        self.next_ticket
    }

    fn add_ghost(&mut self, key: K) {
        self.next_ticket += 1;
        self.ghosts.insert(key, self.next_ticket);
        self.ghost_order.push_back((key, self.next_ticket));
        while self.ghost_order.len() > self.ghosts_max
            && let Some((oldest, ticket)) = self.ghost_order.pop_front()
        {
            // It may have come again, and have left again since.
            if self.ghosts.get(&oldest) == Some(&ticket) {
                self.ghosts.remove(&oldest);
            }
        }
    }

    /// Removes the places of removed values from the queues, if there are too many.
    fn tidy(&mut self) {
        let removed_count = (self.small.len() + self.main.len()).saturating_sub(self.slots.len());
        if removed_count > GONE_MIN.max(self.slots.len()) {
            let slots = &self.slots;
            let is_there =
                |(key, ticket): &(K, u64)| slots.get(key).is_some_and(|slot| slot.ticket == *ticket);
            self.small.retain(is_there);
            self.main.retain(is_there);
        }
    }
}

#[cfg(test)]
mod tests {
    use tw_testkit::random::Random;

    use super::*;

    const ROOM: usize = 100;

    /// Requests a number, which is added if it is not there. Returns true for a hit.
    fn request(table: &mut HotTable<u32, u32>, number: u32) -> bool {
        if table.get_if(&number, |_| true).is_some() {
            return true;
        }
        while table.len() >= ROOM {
            table.evict().unwrap();
        }
        assert_eq!(table.insert(number, number), None);
        false
    }

    #[test]
    fn scan_does_not_push_out_what_is_used() {
        let mut table = HotTable::new(ROOM);
        for number in (0..50).chain(0..50).chain(0..50) {
            request(&mut table, number);
        }
        for number in 1000..3000 {
            request(&mut table, number);
        }
        let hits = (0..50).filter(|number| request(&mut table, *number)).count();
        assert_eq!(hits, 50);
    }

    #[test]
    fn new_favourites_replace_old_ones() {
        let mut table = HotTable::new(ROOM);
        let mut random = Random::new(1);
        for round in 0..20_u32 {
            let favourite = |random: &mut Random| round * 1000 + random.below(80) as u32;
            for _ in 0..2000 {
                request(&mut table, favourite(&mut random));
            }
            let hits = (0..200).filter(|_| request(&mut table, favourite(&mut random))).count();
            assert!(hits > 190, "round {round}: {hits} of 200");
        }
    }

    #[test]
    fn ghost_goes_to_the_main_queue() {
        let mut table = HotTable::new(ROOM);
        for number in 0..ROOM as u32 + 1 {
            request(&mut table, number);
        }
        assert!(table.peek(&0).is_none());
        assert!(!request(&mut table, 0));
        // Unused, but not evicted with those of the small queue.
        for number in 1000..1000 + 2 * ROOM as u32 {
            request(&mut table, number);
        }
        assert!(table.peek(&0).is_some());
    }

    #[test]
    fn queues_and_ghosts_are_bounded() {
        let mut table: HotTable<u32, u32> = HotTable::new(ROOM);
        for number in 0..100_000 {
            // Removed by other means than eviction.
            table.insert(number % 7, number);
            table.remove(&(number % 7));
            request(&mut table, 100 + number);
        }
        assert!(table.small.len() + table.main.len() <= 2 * ROOM + GONE_MIN + 1);
        assert!(table.ghosts.len() <= ROOM && table.ghost_order.len() <= ROOM);
        let (len, mut removed_count) = (table.len(), 0);
        table.retain(|number, _| number % 2 == 0, |_| removed_count += 1);
        assert_eq!(
            (table.len() + removed_count, table.small_len),
            (len, table.small.len().min(table.small_len))
        );
        while table.evict().is_some() {}
        assert_eq!((table.len(), table.small_len), (0, 0));
    }

    #[test]
    fn successor_takes_the_place() {
        let mut table = HotTable::new(ROOM);
        request(&mut table, 1);
        (0..3).for_each(|_| assert!(request(&mut table, 1)));
        assert_eq!(table.insert(1, 2), Some(1));
        for number in 10..10 + 2 * ROOM as u32 {
            request(&mut table, number);
        }
        assert_eq!(table.peek(&1), Some(&2));
    }
}
