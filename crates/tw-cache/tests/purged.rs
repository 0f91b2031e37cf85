//! Index and purges together, as a cache uses them: a request after a purge gets nothing older than the purge, while
//! other threads fetch, store, sweep and forget.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use tw_cache::{
    EntryState, EvictionTarget, Index, Key, Progress, Purge, Purges, RemovalState, RemovedEntry, ScanCursor,
    ScannedEntry, Subject, Tag, Verdict,
};
use tw_testkit::Random;

const GROUPS: usize = 4;
const KEYS_PER_GROUP: usize = 6;
const LOOPS: u64 = 4;
const REQUESTS: usize = 6000;

/// Cache whose disk is a map, and whose origin returns a growing number.
struct Cache {
    index: Arc<Index>,
    purges: Purges,
    disk: Mutex<HashMap<Key, File>>,
    groups: [Group; GROUPS],
    hits: AtomicUsize,
    purged: AtomicUsize,
    is_over: AtomicBool,
}

#[derive(Clone)]
struct File {
    text: String,
    tags: Vec<Tag>,
    content: u64,
}

#[derive(Default)]
struct Group {
    content: AtomicU64,
    /// Sequence number of the last acknowledged purge: nothing older may be returned.
    least: AtomicU64,
}

impl Cache {
    fn new() -> Self {
        let purges = Purges::new(1000);
        let index = Arc::new(Index::new(96 * 20, [3, 5], Arc::clone(purges.sequence())));
        Self {
            index,
            purges,
            disk: Mutex::default(),
            groups: Default::default(),
            hits: AtomicUsize::new(0),
            purged: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    fn disk(&self) -> MutexGuard<'_, HashMap<Key, File>> {
        self.disk.lock().expect("nothing panics while it holds the map")
    }

    /// Sequence number of the file on disk, unless it was purged.
    fn hit(&self, key: Key) -> Option<u64> {
        let entry = self.index.lookup(key, 1)?;
        if entry.holds == EntryState::Count {
            return None;
        }
        let Some(file) = self.disk().get(&key).cloned() else {
            // Another thread deletes the file.
            self.index.remove_missing(key, entry.sequence);
            return None;
        };
        let subject = Subject { key, text: file.text.as_bytes(), tags: &file.tags };
        match self.purges.verdict(entry.checked, &subject) {
            Verdict::Kept(checked) => {
                self.index.confirm(key, entry.sequence, checked);
                Some(file.content)
            }
            Verdict::Purged(_) => {
                self.purged.fetch_add(1, SeqCst);
                self.delete_if_sequence(key, entry.sequence);
                None
            }
        }
    }

    fn delete_if_sequence(&self, key: Key, sequence: u64) {
        self.delete(self.index.remove_if_sequence(key, sequence));
    }

    fn delete(&self, removed_entry: Option<RemovedEntry>) {
        if let Some(removed_entry) = removed_entry {
            self.disk().remove(&removed_entry.key);
            removed_entry.deleted();
        }
    }

    fn fetch(&self, key: Key, text: String, group: usize) {
        let claim = self.index.claim(key, 1);
        let content = self.groups[group].content.load(SeqCst);
        thread::yield_now();
        let Ok(commit) = claim.commit() else { return };
        let tags = vec![Tag(group as u64)];
        self.disk().insert(key, File { text, tags, content });
        match commit.store(512, 10, 1) {
            Ok(pushed_out) => self.delete(pushed_out),
            Err(commit) => {
                self.disk().remove(&key);
                drop(commit);
            }
        }
    }

    fn request(&self, random: &mut Random) {
        let group = random.below(GROUPS);
        let text = format!("/{group}/{}", random.below(KEYS_PER_GROUP));
        let key = Key::of(text.as_bytes());
        let least = self.groups[group].least.load(SeqCst);
        match self.hit(key) {
            Some(content) => {
                assert!(content >= least, "{text}: {content} after a purge of what is before {least}");
                self.hits.fetch_add(1, SeqCst);
            }
            None => self.fetch(key, text, group),
        }
    }

    fn purge(&self, random: &mut Random) {
        let group = random.below(GROUPS);
        let content = self.groups[group].content.fetch_add(1, SeqCst) + 1;
        match random.below(3) {
            0 => drop(self.purges.purge_prefix(format!("/{group}/").as_bytes(), Purge::Hard)),
            1 => drop(self.purges.purge_tag(Tag(group as u64), Purge::Hard)),
            _ => {
                for number in 0..KEYS_PER_GROUP {
                    let key = Key::of(format!("/{group}/{number}").as_bytes());
                    if random.happens(50) {
                        self.purges.purge_key(key, Purge::Hard);
                    } else {
                        self.delete(self.index.purge(key).removed_entry);
                    }
                }
            }
        }
        self.groups[group].least.fetch_max(content, SeqCst);
    }

    /// Sweep as documented in `purge`.
    fn sweep(&self) {
        let latest = self.purges.latest();
        let mut cursor = self.index.sweep(latest);
        let mut entries = Vec::new();
        while self.index.scan(&mut cursor, &mut entries) == Progress::More {}
        let mut oldest = latest;
        for entry in entries {
            if entry.state.holds == EntryState::File && entry.state.checked < latest {
                self.visit(&entry);
            }
            // The state before the visit is no younger than the current one, except for purges that the visit has
            // applied.
            oldest = oldest.min(entry.claimed_since.unwrap_or(latest));
        }
        let departures = self.index.removals();
        while self.index.removal_state(departures) == RemovalState::Files {
            thread::yield_now();
        }
        self.purges.forget(oldest);
    }

    fn visit(&self, entry: &ScannedEntry) {
        let file = self.disk().get(&entry.key).cloned();
        match file {
            Some(file) => {
                let subject = Subject { key: entry.key, text: file.text.as_bytes(), tags: &file.tags };
                match self.purges.verdict(entry.state.checked, &subject) {
                    Verdict::Kept(checked) => self.index.confirm(entry.key, entry.state.sequence, checked),
                    Verdict::Purged(_) => self.delete_if_sequence(entry.key, entry.state.sequence),
                }
            }
            None => self.index.remove_missing(entry.key, entry.state.sequence),
        }
    }
}

#[test]
fn purged_entries_are_never_returned() {
    let cache = Cache::new();
    thread::scope(|scope| {
        let loops: Vec<_> = (0..LOOPS)
            .map(|seed| {
                let cache = &cache;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for _ in 0..REQUESTS {
                        cache.request(&mut random);
                        if random.happens(3) {
                            cache.purge(&mut random);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !cache.is_over.load(SeqCst) {
                cache.sweep();
                thread::yield_now();
            }
        });
        let ends: Vec<_> = loops.into_iter().map(thread::ScopedJoinHandle::join).collect();
        // The flag is set even if a thread has panicked.
        cache.is_over.store(true, SeqCst);
        assert!(ends.iter().all(Result::is_ok));
    });
    let counts = (cache.hits.into_inner(), cache.purged.load(SeqCst));
    assert!(counts.0 > 500 && counts.1 > 50, "there was something to see: {counts:?}");
}

#[test]
fn one_purge_covers_a_hundred_thousand_entries() {
    let purges = Purges::new(1000);
    let index = Arc::new(Index::new(96 << 20, [3, 5], Arc::clone(purges.sequence())));
    for number in 0..100_000u32 {
        let claim = index.claim(Key::of(&number.to_le_bytes()), 1);
        claim.commit().unwrap().store(512, 10, 1).unwrap();
    }
    let before = index.counts();
    // A purge by prefix changes nothing in the index.
    let sequence = purges.purge_prefix(b"", Purge::Soft);
    assert_eq!((index.counts(), purges.counts()), (before, [1, 0, 0]));
    let mut cursor = ScanCursor::default();
    let mut entries = Vec::new();
    while index.scan(&mut cursor, &mut entries) == Progress::More {}
    assert_eq!(entries.len(), 100_000);
    for entry in &entries {
        let subject = Subject { key: entry.key, text: b"/", tags: &[] };
        assert_eq!(purges.verdict(entry.state.checked, &subject), Verdict::Purged(Purge::Soft));
    }
    // Once all entries are gone, the purge concerns nothing.
    let mut removed_entries = Vec::new();
    while index.evict(EvictionTarget::Entries(u64::MAX), 1, &mut removed_entries) == Progress::More {}
    assert_eq!((removed_entries.len(), index.bytes_on_disk()), (100_000, 0));
    purges.forget(sequence);
    assert_eq!(purges.counts(), [0, 0, 0]);
}
