//! The index compared with a plain, slow map.

use std::collections::HashMap;

use tw_testkit::Random;

use super::*;

const KEYS: usize = 200;
const STEPS: usize = 4000;

struct Pair {
    index: Arc<Index>,
    model: HashMap<Key, IndexEntry>,
    claims: Vec<Claim>,
    random: Random,
    now: u32,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        Self { index: index(120), model: HashMap::new(), claims: Vec::new(), random, now: 1000 }
    }

    fn key(&mut self) -> Key {
        key(self.random.below(KEYS) as u32)
    }

    fn entry(&mut self, key: Key, since: u64) -> &mut IndexEntry {
        self.model.entry(key).or_insert(IndexEntry {
            holds: EntryState::Count,
            sequence: 0,
            checked: 0,
            since,
            size: 0,
            address: None,
            valid_until: 0,
            used: self.now,
            uses: 0,
            hits: 0,
            claims: 0,
            is_own: false,
        })
    }

    fn step(&mut self) {
        let key = self.key();
        let now = self.now;
        match self.random.below(100) {
            0..20 => {
                let index_entry = self.index.lookup(key, now);
                assert_eq!(index_entry, self.model.get(&key).copied());
                self.model.entry(key).and_modify(|entry| {
                    entry.used = now;
                    if entry.holds == EntryState::File {
                        entry.hits = entry.hits.saturating_add(1);
                    }
                });
            }
            20..35 => {
                let since = self.index.sequence.last();
                let counted = self.index.count_use(key, now);
                let entry = self.entry(key, since);
                (entry.uses, entry.used) = (entry.uses + 1, now);
                assert_eq!(counted.uses, entry.uses);
                self.made_room(counted.pushed_out);
            }
            35..50 => {
                let claim = self.index.claim(key, now);
                self.entry(key, claim.sequence()).claims += 1;
                self.claims.push(claim);
            }
            50..75 if !self.claims.is_empty() => {
                let claim = self.claims.swap_remove(self.random.below(self.claims.len()));
                self.end(claim);
            }
            75..80 => {
                let removed_entry = self.index.remove(key);
                assert_eq!(removed_entry.as_ref().map(File::of), self.take_file(key));
            }
            80..84 => {
                let purged = self.index.purge(key);
                assert_eq!(purged.removed_entry.as_ref().map(File::of), self.take_file(key));
                self.model.entry(key).and_modify(|entry| entry.since = purged.sequence);
            }
            84..88 => self.load(key),
            88..91 => self.evict(),
            91..93 => self.expire(),
            93..97 => self.now += self.random.below(20) as u32,
            _ => self.index.set_memory_max((40 + self.random.below(KEYS) as u64) * ENTRY_SIZE),
        }
    }

    fn end(&mut self, claim: Claim) {
        let key = claim.key();
        let sequence = claim.sequence();
        let now = self.now;
        let size = self.random.below(9) as u64 * 512;
        let entry = self.model.get_mut(&key).unwrap();
        let expected = if sequence < entry.since {
            Some(ClaimRefused::Purged)
        } else if entry.holds == EntryState::File && sequence < entry.sequence {
            Some(ClaimRefused::Older)
        } else {
            None
        };
        match claim.commit() {
            Err(refused) => {
                assert_eq!(Some(refused), expected);
                self.give_up(key);
            }
            Ok(commit) if self.random.happens(20) => {
                let purged = self.index.purge(key);
                drop(commit.store(size, 0, now).unwrap_err());
                self.take_file(key);
                self.model.get_mut(&key).unwrap().since = purged.sequence;
                self.give_up(key);
            }
            Ok(commit) => {
                assert_eq!(expected, None);
                (entry.holds, entry.sequence, entry.checked, entry.size) =
                    (EntryState::File, sequence, sequence, size);
                (entry.used, entry.valid_until, entry.hits) = (now, now + 60, 0);
                let pushed_out = commit.store(size, now + 60, now).unwrap();
                self.made_room(pushed_out);
                // Once no claim held it, the stored entry may have been the only one that could be evicted.
                self.give_up(key);
            }
        }
    }

    fn give_up(&mut self, key: Key) {
        let entry = self.model.get_mut(&key).unwrap();
        entry.claims -= 1;
        if entry.claims == 0 && entry.uses == 0 && entry.holds == EntryState::Count {
            self.model.remove(&key);
        }
    }

    fn take_file(&mut self, key: Key) -> Option<File> {
        let entry = self.model.get_mut(&key)?;
        let gone_file = file(key, entry);
        if entry.claims == 0 && entry.uses == 0 {
            self.model.remove(&key);
        } else {
            (entry.holds, entry.sequence, entry.checked) = (EntryState::Count, 0, 0);
            (entry.size, entry.valid_until, entry.hits) = (0, 0, 0);
        }
        gone_file
    }

    fn load(&mut self, key: Key) {
        let loaded_entry = LoadedEntry { key, sequence: 3, since: 3, size: 1024, valid_until: 5 };
        let is_new = self.model.get(&key).is_none_or(|entry| entry.holds == EntryState::Count);
        match self.index.load(&loaded_entry, self.now) {
            LoadOutcome::Known => assert!(!is_new),
            LoadOutcome::Added(pushed_out) => {
                assert!(is_new);
                let entry = self.entry(key, 3);
                (entry.holds, entry.sequence, entry.checked) = (EntryState::File, 3, 3);
                (entry.size, entry.valid_until) = (1024, 5);
                self.made_room(pushed_out);
            }
        }
    }

    fn evict(&mut self) {
        let count = self.random.below(8) as u64;
        let is_bytes = self.random.happens(50);
        let excess =
            if is_bytes { EvictionTarget::Bytes(count * 512) } else { EvictionTarget::Entries(count) };
        let mut removed_entries = Vec::new();
        let progress = self.index.evict(excess, self.now, &mut removed_entries);
        let taken = self.take_missing(&removed_entries);
        if is_bytes {
            let sum: u64 = removed_entries.iter().map(|removed_entry| removed_entry.size).sum();
            let last = removed_entries.last().map_or(0, |removed_entry| removed_entry.size);
            assert!(sum - last <= count * 512);
            let is_held = |entry: &IndexEntry| entry.claims > 0 || entry.used == self.now;
            assert!(sum >= count * 512 || progress == Progress::More || self.model.values().all(is_held));
        } else {
            let could: usize = self.model.values().filter(|entry| entry.claims == 0).count();
            assert!(taken as u64 <= count);
            // Held entries count as used now. Where all others were used in this second as well, held ones may precede
            // them in the queue.
            let is_in_the_way = self.model.values().all(|entry| entry.used == self.now);
            assert!(taken as u64 == count || could == 0 || is_in_the_way, "{taken} of {count}, {could} left");
        }
    }

    fn expire(&mut self) {
        let inactive = 1 + self.random.below(400) as u32;
        let mut removed_entries = Vec::new();
        while self.index.expire(self.now, inactive, &mut removed_entries) == Progress::More {}
        self.take_missing(&removed_entries);
        let is_left = |entry: &IndexEntry| self.now - entry.used >= inactive;
        assert!(!self.model.values().any(is_left));
    }

    fn made_room(&mut self, pushed_out: Option<RemovedEntry>) {
        let removed_entries: Vec<_> = pushed_out.into_iter().collect();
        assert!(self.take_missing(&removed_entries) <= 1);
    }

    /// Removes from the model the entries that the index has evicted, if they were the oldest. Returns their number.
    fn take_missing(&mut self, removed_entries: &[RemovedEntry]) -> usize {
        let is_there = |key: &Key| self.index.peek(*key).is_some();
        let missing: Vec<Key> = self.model.keys().copied().filter(|key| !is_there(key)).collect();
        let mut youngest = 0;
        let mut files = Vec::new();
        for key in &missing {
            let entry = self.model.remove(key).unwrap();
            assert_eq!(entry.claims, 0);
            youngest = youngest.max(entry.used);
            files.extend(file(*key, &entry));
        }
        let mut removed: Vec<_> = removed_entries.iter().map(File::of).collect();
        removed.sort_by_key(|gone_file| gone_file.key);
        files.sort_by_key(|gone_file| gone_file.key);
        assert_eq!(removed, files);
        for (key, entry) in &mut self.model {
            if entry.claims == 0 {
                assert!(missing.is_empty() || entry.used >= youngest);
            } else {
                // Held, and so as if used.
                let used = self.index.peek(*key).unwrap().used;
                assert!(used == entry.used || used == self.now);
                entry.used = used;
            }
        }
        missing.len()
    }

    fn assert_same(&self) {
        assert_whole(&self.index);
        for (key, entry) in &self.model {
            assert_eq!(self.index.peek(*key), Some(*entry));
        }
        let files = self.model.values().filter(|entry| entry.holds == EntryState::File);
        let (count, bytes) = files.fold((0, 0), |(count, bytes), entry| (count + 1, bytes + entry.size));
        let counts = self.index.counts();
        assert_eq!((counts.entries, counts.files, counts.bytes), (self.model.len() as u64, count, bytes));
    }
}

/// File of an entry, as it is reported when the entry goes.
#[derive(Debug, PartialEq)]
struct File {
    key: Key,
    sequence: u64,
    size: u64,
}

impl File {
    fn of(removed_entry: &RemovedEntry) -> Self {
        Self { key: removed_entry.key, sequence: removed_entry.sequence, size: removed_entry.size }
    }
}

fn file(key: Key, entry: &IndexEntry) -> Option<File> {
    (entry.holds == EntryState::File).then_some(File { key, sequence: entry.sequence, size: entry.size })
}

#[test]
fn index_equals_a_plain_map() {
    for seed in 0..20 {
        println!("seed {seed}");
        let mut pair = Pair::new(seed);
        let mut most = 0;
        for step in 0..STEPS {
            pair.step();
            most = most.max(pair.index.len());
            if step % 50 == 0 {
                pair.assert_same();
            }
        }
        while let Some(claim) = pair.claims.pop() {
            pair.end(claim);
        }
        pair.assert_same();
        assert!(most > 60, "there was little to compare: {most}");
    }
}
