//! Session cache shared by all threads (`ssl_session_cache shared:name:size`).
//!
//! Bounded in bytes; the least recently used session is evicted. Locks are held only for a lookup or a change.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use rustls::server::StoresServerSessions;
use tw_base::{Counter, FatalMutex};

use crate::Clock;

/// nginx: "One megabyte can store about 4000 sessions".
const ENTRY_COST: usize = 256;
/// Overhead of an entry besides its key and value: two nodes of maps, two reference counters.
const ENTRY_OVERHEAD: usize = 160;
/// As many as there may be loops that look at the same time.
const SHARDS: usize = 16;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a shared cache of sessions, at least 256 for each.
    parameter "ssl_session_cache", "shared", "no default", "the session used longest ago is dropped";
}

/// A cache of sessions.
pub struct Cache {
    shards: Box<[FatalMutex<Shard>]>,
    hasher: RandomState,
    /// Bytes of each shard.
    size: usize,
    /// Seconds.
    lifetime: u64,
    clock: Clock,
    stored: Counter,
    hits: Counter,
    misses: Counter,
    expired: Counter,
    evicted: Counter,
}

/// Statistics of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheStats {
    /// Sessions now.
    pub sessions: u64,
    /// Bytes now, as they are counted against the size.
    pub bytes: u64,
    /// Sessions that were put in.
    pub stored: u64,
    /// Looks that found one.
    pub hits: u64,
    /// Looks that found none, or one whose time was over.
    pub misses: u64,
    /// Sessions that were found after their time.
    pub expired: u64,
    /// Sessions that made room for others.
    pub evicted: u64,
}

#[derive(Default)]
struct Shard {
    entries: HashMap<Arc<[u8]>, Entry>,
    /// Keys by when they were used last: a number that grows.
    used: BTreeMap<u64, Arc<[u8]>>,
    next: u64,
    bytes: usize,
}

struct Entry {
    value: Vec<u8>,
    used: u64,
    /// Seconds since 1970.
    stored_at: u64,
}

impl Shard {
    fn remove(&mut self, key: &[u8]) -> Option<Entry> {
        let (key, entry) = self.entries.remove_entry(key)?;
        self.used.remove(&entry.used);
        self.bytes -= cost(&key, &entry.value);
        Some(entry)
    }

    fn touch(&mut self, key: &[u8]) {
        let Some((key, entry)) =
            self.entries.get_key_value(key).map(|(key, entry)| (Arc::clone(key), entry.used))
        else {
            return;
        };
        self.used.remove(&entry);
        self.next += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = self.next;
        }
        self.used.insert(self.next, key);
    }
}

impl Cache {
    /// An empty one of so many bytes, which keeps sessions for `lifetime` seconds.
    pub fn new(size: usize, lifetime: u32, clock: Clock) -> Self {
        // A small cache has few shards: each has room for some dozens.
        let shards = (size / (64 * ENTRY_COST)).clamp(1, SHARDS);
        Self {
            shards: (0..shards).map(|_| FatalMutex::default()).collect(),
            hasher: RandomState::new(),
            size: size / shards,
            lifetime: u64::from(lifetime),
            clock,
            stored: Counter::new(),
            hits: Counter::new(),
            misses: Counter::new(),
            expired: Counter::new(),
            evicted: Counter::new(),
        }
    }

    /// Statistics of the cache. Takes every lock once.
    pub fn stats(&self) -> CacheStats {
        let mut sessions = 0;
        let mut bytes = 0;
        for shard in &self.shards {
            let shard = shard.lock();
            sessions += shard.entries.len() as u64;
            bytes += shard.bytes as u64;
        }
        CacheStats {
            sessions,
            bytes,
            stored: self.stored.value(),
            hits: self.hits.value(),
            misses: self.misses.value(),
            expired: self.expired.value(),
            evicted: self.evicted.value(),
        }
    }

    fn shard(&self, key: &[u8]) -> Option<&FatalMutex<Shard>> {
        self.shards.get(self.hasher.hash_one(key) as usize % self.shards.len())
    }

    /// A value, if its time is not over: a copy, or all of it.
    fn find(&self, key: &[u8], find: impl FnOnce(&mut Shard) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        let now = (self.clock)();
        let mut shard = self.shard(key)?.lock();
        let age = shard.entries.get(key).map(|entry| now.saturating_sub(entry.stored_at));
        let value = match age {
            Some(age) if age < self.lifetime => find(&mut shard),
            Some(_) => {
                shard.remove(key);
                self.expired.add(1);
                None
            }
            None => None,
        };
        drop(shard);
        if value.is_some() {
            self.hits.add(1)
        } else {
            self.misses.add(1)
        }
        value
    }
}

/// Size of an entry as it counts against the limit.
fn cost(key: &[u8], value: &[u8]) -> usize {
    (key.len() + value.len() + ENTRY_OVERHEAD).max(ENTRY_COST)
}

impl StoresServerSessions for Cache {
    fn put(&self, key: Vec<u8>, value: Vec<u8>) -> bool {
        let cost = cost(&key, &value);
        let (Some(shard), true) = (self.shard(&key), cost <= self.size) else { return false };
        let stored_at = (self.clock)();
        let mut shard = shard.lock();
        shard.remove(&key);
        let mut evicted = 0;
        while shard.bytes + cost > self.size {
            let Some((_, oldest)) = shard.used.first_key_value().map(|(used, key)| (*used, Arc::clone(key)))
            else {
                break;
            };
            shard.remove(&oldest);
            evicted += 1;
        }
        shard.next += 1;
        let (used, key): (u64, Arc<[u8]>) = (shard.next, key.into());
        shard.used.insert(used, Arc::clone(&key));
        shard.entries.insert(key, Entry { value, used, stored_at });
        shard.bytes += cost;
        drop(shard);
        self.stored.add(1);
        self.evicted.add(evicted);
        true
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.find(key, |shard| {
            shard.touch(key);
            shard.entries.get(key).map(|entry| entry.value.clone())
        })
    }

    fn take(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.find(key, |shard| shard.remove(key).map(|entry| entry.value))
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("lifetime", &self.lifetime).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestClock;

    fn key(n: usize) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    #[test]
    fn put_get_take() {
        let cache = Cache::new(1 << 20, 300, TestClock::at(1000).clock());
        assert!(cache.can_cache() && cache.put(key(1), vec![1]) && cache.put(key(2), vec![2]));
        assert_eq!(cache.get(&key(1)), Some(vec![1]));
        assert_eq!(cache.get(&key(1)), Some(vec![1]));
        assert_eq!(cache.take(&key(2)), Some(vec![2]));
        assert_eq!(cache.take(&key(2)), None);
        assert!(cache.put(key(1), vec![3]));
        assert_eq!(cache.get(&key(1)), Some(vec![3]));
        let stats = cache.stats();
        assert_eq!((stats.sessions, stats.bytes, stats.stored), (1, 256, 3));
        assert_eq!((stats.hits, stats.misses, stats.expired, stats.evicted), (4, 1, 0, 0));
    }

    #[test]
    fn a_megabyte_has_about_four_thousand() {
        let cache = Cache::new(1 << 20, 300, TestClock::at(1000).clock());
        for n in 0..10_000 {
            assert!(cache.put(key(n), vec![0; 60]));
        }
        let stats = cache.stats();
        assert!((3900..=4096).contains(&stats.sessions), "{stats:?}");
        assert_eq!(stats.evicted + stats.sessions, 10_000);
        assert!(stats.bytes <= 1 << 20);
        for shard in &cache.shards {
            let shard = shard.lock();
            assert_eq!(shard.entries.len(), shard.used.len());
        }
    }

    #[test]
    fn least_recently_used_session_is_evicted() {
        let cache = Cache::new(3 * ENTRY_COST, 300, TestClock::at(1000).clock());
        for n in 0..3 {
            cache.put(key(n), vec![0]);
        }
        assert!(cache.get(&key(0)).is_some());
        cache.put(key(3), vec![0]);
        assert_eq!([0, 1, 2, 3].map(|n| cache.get(&key(n)).is_some()), [true, false, true, true]);
        assert!(!cache.put(key(4), vec![0; 3 * ENTRY_COST]), "larger than all of it");
        assert_eq!(cache.stats().sessions, 3);
    }

    #[test]
    fn sessions_expire() {
        let clock = TestClock::at(1000);
        let cache = Cache::new(1 << 20, 300, clock.clock());
        cache.put(key(1), vec![1]);
        clock.set(1299);
        assert!(cache.get(&key(1)).is_some());
        clock.set(1300);
        assert_eq!((cache.get(&key(1)), cache.stats().sessions, cache.stats().expired), (None, 0, 1));
    }

    #[test]
    fn session_cache_is_shared_by_threads() {
        let cache = Cache::new(64 * 1024, 300, TestClock::at(1000).clock());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    for n in 0..1000 {
                        cache.put(key(thread * 1000 + n), vec![thread as u8; n % 300]);
                        cache.get(&key(n));
                        cache.take(&key(n + 500));
                    }
                });
            }
        });
        let counted: usize = cache
            .shards
            .iter()
            .map(|shard| shard.lock().entries.iter().map(|(k, e)| cost(k, &e.value)).sum::<usize>())
            .sum();
        assert_eq!(cache.stats().bytes, counted as u64);
        assert!(counted <= 64 * 1024);
    }
}
