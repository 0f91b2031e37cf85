//! A table by key within a number of bytes, its entries in the order of their last use.

use std::collections::HashMap;
use std::sync::Arc;

/// Handle of an entry, valid until the entry is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Id(u32);

const NONE: u32 = u32::MAX;

/// Entries by key, and their order: the one used last is the first.
pub struct ZoneTable<V> {
    by_key: HashMap<Arc<[u8]>, Id>,
    nodes: Vec<Node<V>>,
    free: Vec<Id>,
    first: u32,
    last: u32,
    used: u64,
    capacity: u64,
}

struct Node<V> {
    key: Arc<[u8]>,
    value: V,
    cost: u64,
    /// The one used next after it; `NONE` at the first.
    newer: u32,
    /// The one used before it; `NONE` at the last.
    older: u32,
}

impl<V> ZoneTable<V> {
    /// An empty table for `capacity` bytes.
    pub fn new(capacity: u64) -> Self {
        Self {
            by_key: HashMap::new(),
            nodes: Vec::new(),
            free: Vec::new(),
            first: NONE,
            last: NONE,
            used: 0,
            capacity,
        }
    }

    /// The entry of `key`.
    pub fn find(&self, key: &[u8]) -> Option<Id> {
        self.by_key.get(key).copied()
    }

    /// The value of an entry.
    pub fn get(&mut self, id: Id) -> &mut V {
        &mut self.node(id.0).value
    }

    /// Makes an entry the one used last.
    pub fn touch(&mut self, id: Id) {
        if self.first != id.0 {
            self.unlink(id.0);
            self.link_first(id.0);
        }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns `true` if there is no entry.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Bytes that the entries take.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Keys of all entries, in no order.
    pub fn keys(&self) -> impl Iterator<Item = &Arc<[u8]>> {
        self.by_key.keys()
    }

    /// The entry whose last use is longest ago.
    pub fn oldest(&self) -> Option<Id> {
        (self.last != NONE).then_some(Id(self.last))
    }

    /// Adds an entry, which is the one used last. `None` if there is no room for its `cost`; `key` must not be there.
    pub fn insert(&mut self, key: &[u8], cost: u64, value: V) -> Option<Id> {
        self.try_insert(key, cost, value).ok()
    }

    /// As [`insert`](Self::insert), but returns the value if there is no room.
    pub fn try_insert(&mut self, key: &[u8], cost: u64, value: V) -> Result<Id, V> {
        let id = match self.free.last() {
            Some(id) => id.0,
            None => u32::try_from(self.nodes.len()).unwrap_or(NONE),
        };
        if self.used + cost > self.capacity || id == NONE {
            return Err(value);
        }
        let key: Arc<[u8]> = key.into();
        let node = Node { key: key.clone(), value, cost, newer: NONE, older: NONE };
        match self.free.pop() {
            Some(_) => *self.node(id) = node,
            None => self.nodes.push(node),
        }
        self.used += cost;
        self.by_key.insert(key, Id(id));
        self.link_first(id);
        Ok(Id(id))
    }

    /// Removes an entry.
    pub fn remove(&mut self, id: Id) {
        self.unlink(id.0);
        let node = self.node(id.0);
        let key = std::mem::replace(&mut node.key, Arc::new([]));
        let cost = node.cost;
        self.by_key.remove(&key);
        self.used -= cost;
        self.free.push(id);
    }

    fn node(&mut self, at: u32) -> &mut Node<V> {
        &mut self.nodes[at as usize]
    }

    /// Puts a node that is in no place into the first.
    fn link_first(&mut self, at: u32) {
        let second = std::mem::replace(&mut self.first, at);
        let node = self.node(at);
        (node.newer, node.older) = (NONE, second);
        match second {
            NONE => self.last = at,
            second => self.node(second).newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let node = self.node(at);
        let newer = node.newer;
        let older = node.older;
        match newer {
            NONE => self.first = older,
            newer => self.node(newer).older = older,
        }
        match older {
            NONE => self.last = newer,
            older => self.node(older).newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_makes_room() {
        let mut table = ZoneTable::new(30);
        let [a, b, c] = ["a", "b", "c"].map(|key| table.insert(key.as_bytes(), 10, 0).unwrap());
        assert_eq!(table.insert(b"d", 1, 0), None);
        assert_eq!(table.oldest(), Some(a));
        table.touch(a);
        assert_eq!(table.oldest(), Some(b));
        table.touch(c);
        table.touch(c);
        assert_eq!(table.oldest(), Some(b));
        table.remove(b);
        assert_eq!((table.find(b"b"), table.oldest()), (None, Some(a)));
        let d = table.insert(b"d", 10, 7).unwrap();
        assert_eq!((table.find(b"d"), *table.get(d)), (Some(d), 7));
        for id in [a, d, c] {
            table.remove(id);
        }
        assert_eq!((table.oldest(), table.used), (None, 0));
        assert!(table.insert(b"", 30, 1).is_some());
        assert!(table.insert(b"e", 1, 1).is_none());
    }

    #[test]
    fn entries_are_ordered_by_use() {
        let mut table = ZoneTable::new(1000);
        let mut order: Vec<u32> = (0..50).collect();
        for key in &order {
            table.insert(&key.to_le_bytes(), 1, *key).unwrap();
        }
        // Any sequence of uses serves the test.
        for step in 0..500_u32 {
            let key = step.wrapping_mul(2_654_435_761) >> 16 & 63;
            if let Some(id) = table.find(&key.to_le_bytes()) {
                table.touch(id);
                order.retain(|candidate| *candidate != key);
                order.push(key);
            }
        }
        for key in order {
            let oldest = table.oldest().unwrap();
            assert_eq!(*table.get(oldest), key);
            table.remove(oldest);
        }
        assert_eq!(table.oldest(), None);
    }
}
