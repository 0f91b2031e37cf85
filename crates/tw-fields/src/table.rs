//! The dynamic table (RFC 7541 sections 2.3.2 and 4, RFC 9204 section 3.2): fields that the peer has indexed, the newest first.
//!
//! The texts of all entries lie in one buffer, one after the other: an entry costs twelve bytes beside its texts and no
//! allocation of its own. Texts of evicted entries go when the
//! buffer would grow otherwise.

use std::collections::VecDeque;

/// Bytes that an entry counts in addition to its texts (section 4.1).
pub const ENTRY_OVERHEAD: usize = 32;

/// Bytes by which the buffer of texts grows at least. Not by its double: it is kept as long as the connection, and what a
/// browser indexes is mostly below 1 KiB.
const TEXTS_STEP: usize = 256;

/// The dynamic table; allocates nothing while it is empty.
#[derive(Debug)]
pub struct DynamicTable {
    /// The newest first.
    entries: VecDeque<Entry>,
    /// The texts: some that were evicted, then those of the entries, the newest last.
    texts: Vec<u8>,
    /// Bytes that have ever been removed from the front of `texts`, modulo 2^32.
    removed: u32,
    /// The size of the entries, as the RFC counts.
    size: usize,
    /// The most that `size` may be: what the peer has chosen.
    limit: usize,
}

/// An entry: its name and, behind it, its value.
#[derive(Debug)]
struct Entry {
    /// Bytes that had ever been put into `texts` before it, modulo 2^32: what is in `texts` is far shorter.
    start: u32,
    name_len: u32,
    value_len: u32,
}

impl DynamicTable {
    /// An empty table of at most `limit` bytes, as the RFC counts.
    pub const fn new(limit: usize) -> Self {
        Self { entries: VecDeque::new(), texts: Vec::new(), removed: 0, size: 0, limit }
    }

    /// Name and value at an index from 0 on, which is the newest; `None` for an entry that was evicted or never added.
    #[inline]
    pub fn entry(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let entry = self.entries.get(index)?;
        let (_, from) = self.texts.split_at_checked(self.place(entry))?;
        let (name, behind) = from.split_at_checked(entry.name_len as usize)?;
        Some((name, behind.get(..entry.value_len as usize)?))
    }

    /// Adds an entry; evicts the oldest until it fits. One that is larger than the whole table empties it (section 4.4).
    pub fn insert(&mut self, name: &[u8], value: &[u8]) {
        let len = name.len() + value.len();
        let size = len + ENTRY_OVERHEAD;
        let (Some(remaining), Ok(name_len), Ok(value_len)) =
            (self.limit.checked_sub(size), u32::try_from(name.len()), u32::try_from(value.len()))
        else {
            return self.clear();
        };

        self.evict(remaining);
        if self.texts.capacity() - self.texts.len() < len {
            self.make_room(len);
        }
        let start = self.removed.wrapping_add(self.texts.len() as u32);
        self.texts.extend_from_slice(name);
        self.texts.extend_from_slice(value);
        self.entries.push_front(Entry { start, name_len, value_len });
        self.size += size;
    }

    /// Sets the most that the table may hold; evicts what is too much. A table of nothing keeps no memory.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.evict(limit);
        if limit == 0 {
            self.clear();
        }
    }

    /// The size of the entries, as the RFC counts.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Largest size of the entries, as the RFC counts.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Bytes that are allocated.
    pub fn allocated(&self) -> usize {
        self.texts.capacity() + self.entries.capacity() * size_of::<Entry>()
    }

    /// Evicts the oldest until at most `remaining` bytes are held.
    fn evict(&mut self, remaining: usize) {
        while self.size > remaining {
            let Some(entry) = self.entries.pop_back() else { break };
            self.size -= (entry.name_len + entry.value_len) as usize + ENTRY_OVERHEAD;
        }
    }

    /// Makes room for `len` bytes of texts: removes those of evicted entries when they are a quarter of the buffer, so that
    /// three bytes at most are moved for each that was evicted; makes the buffer larger if that is not enough.
    fn make_room(&mut self, len: usize) {
        let evicted = self.entries.back().map_or(self.texts.len(), |oldest| self.place(oldest));
        if evicted >= self.texts.len() / 4 {
            self.texts.drain(..evicted);
            self.removed = self.removed.wrapping_add(evicted as u32);
        }
        if self.texts.capacity() - self.texts.len() < len {
            self.texts.reserve_exact(len.max(TEXTS_STEP));
        }
    }

    /// Forgets all entries and gives their memory back.
    fn clear(&mut self) {
        *self = Self::new(self.limit);
    }

    /// Returns the offset of an entry's texts.
    const fn place(&self, entry: &Entry) -> usize {
        entry.start.wrapping_sub(self.removed) as usize
    }
}
