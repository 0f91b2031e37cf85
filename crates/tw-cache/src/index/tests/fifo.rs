//! `s3fifo` compared with a literal model, and its hit ratio.

use std::collections::{HashMap, VecDeque};

use tw_testkit::Random;

use super::*;

fn fifo(entries_max: u64) -> Arc<Index> {
    let index = index(entries_max);
    index.set_policy(EvictionPolicy::S3Fifo);
    index
}

/// An entry of the model.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    /// Of the file, if there is one.
    file: Option<(u64, u64)>,
    lately: u8,
    uses: u16,
    claims: u32,
}

/// A shard of the model: queues with the newest in front.
#[derive(Default)]
struct Part {
    small: VecDeque<Key>,
    main: VecDeque<Key>,
    ghost: VecDeque<Key>,
}

impl Part {
    fn live(&self) -> u64 {
        (self.small.len() + self.main.len()) as u64
    }

    fn forget(&mut self, key: Key) {
        for queue in [&mut self.small, &mut self.main, &mut self.ghost] {
            queue.retain(|other| *other != key);
        }
    }
}

struct Pair {
    index: Arc<Index>,
    entries: HashMap<Key, Entry>,
    parts: Vec<Part>,
    entries_max: u64,
    hand: usize,
    keys: Vec<Key>,
    claims: Vec<Claim>,
    random: Random,
    now: u32,
}

impl Pair {
    fn new(seed: u64) -> Self {
        let entries_max = 90;
        let index = fifo(entries_max);
        // All keys are in three shards, so that queues are long.
        let shard = |key: &Key| index.seed.hash(*key) >> (u64::BITS - SHARD_BITS);
        let keys = (0..).map(key).filter(|key| shard(key) < 3).take(200).collect();
        Self {
            index,
            entries: HashMap::new(),
            parts: (0..SHARDS).map(|_| Part::default()).collect(),
            entries_max,
            hand: 0,
            keys,
            claims: Vec::new(),
            random: Random::new(seed),
            now: 1000,
        }
    }

    fn part(&mut self, key: Key) -> &mut Part {
        let shard = self.index.seed.hash(key) >> (u64::BITS - SHARD_BITS);
        &mut self.parts[shard as usize]
    }

    /// Entry of a key, made if it is missing, or restored from the ghosts.
    fn found_or_new(&mut self, key: Key) -> &mut Entry {
        let is_new = !self.entries.contains_key(&key);
        let part = self.part(key);
        if is_new {
            part.small.push_front(key);
        } else if part.ghost.contains(&key) {
            part.forget(key);
            part.main.push_front(key);
            self.entries.get_mut(&key).unwrap().lately = 0;
        }
        self.entries.entry(key).or_default()
    }

    fn remove(&mut self, key: Key) -> Option<(u64, u64)> {
        self.part(key).forget(key);
        self.entries.remove(&key).unwrap().file
    }

    fn sum(&self, keys: &VecDeque<Key>) -> u64 {
        keys.iter().filter_map(|key| self.entries[key].file).map(|(_, size)| size).sum()
    }

    fn ghosts(&self) -> u64 {
        self.parts.iter().map(|part| part.ghost.len() as u64).sum()
    }

    fn take_ghost(&mut self) -> bool {
        let hand = self.hand % SHARDS;
        self.hand += 1;
        let order = (hand..SHARDS).chain(0..hand);
        let mut order = order;
        let ghost = order.find_map(|shard| self.parts[shard].ghost.back().copied());
        ghost.map(|key| self.remove(key)).is_some()
    }

    /// Entries to evict, in order.
    fn take(&mut self, by_bytes: bool, work: usize, mut remaining: u64) -> Vec<Key> {
        let live_max = self.entries_max - self.entries_max / 9;
        let mut gone_keys = Vec::new();
        for _ in 0..work {
            let live: u64 = self.parts.iter().map(Part::live).sum();
            if !by_bytes && live <= live_max && self.ghosts() > 0 {
                self.take_ghost();
                remaining -= 1;
                if remaining == 0 {
                    break;
                }
                continue;
            }
            let weight = |keys: &VecDeque<Key>| if by_bytes { self.sum(keys) } else { keys.len() as u64 };
            let small: u64 = self.parts.iter().map(|part| weight(&part.small)).sum();
            let main: u64 = self.parts.iter().map(|part| weight(&part.main)).sum();
            let is_small = main == 0 || (small > 0 && small * 10 >= small + main);
            let weight_of = |part: &Part| weight(if is_small { &part.small } else { &part.main });
            let (shard, part) =
                self.parts.iter().enumerate().max_by_key(|(_, part)| weight_of(part)).unwrap();
            if weight_of(part) == 0 {
                break;
            }
            let queue = if is_small { &part.small } else { &part.main };
            let key = *queue.back().unwrap();
            let entry = self.entries[&key];
            let part = &mut self.parts[shard];
            part.forget(key);
            if entry.claims > 0 {
                let queue = if is_small { &mut part.small } else { &mut part.main };
                queue.push_front(key);
                continue;
            }
            if is_small && entry.lately > 1 {
                part.main.push_front(key);
                self.entries.get_mut(&key).unwrap().lately = 0;
                continue;
            }
            if !is_small && entry.lately > 0 {
                part.main.push_front(key);
                self.entries.get_mut(&key).unwrap().lately -= 1;
                continue;
            }
            if is_small && entry.file.is_some() {
                part.ghost.push_front(key);
                let entry = self.entries.get_mut(&key).unwrap();
                (entry.file, entry.lately) = (None, 0);
            } else {
                self.entries.remove(&key);
            }
            while self.parts[shard].ghost.len() as u64 > self.parts[shard].live() {
                let ghost = *self.parts[shard].ghost.back().unwrap();
                self.remove(ghost);
            }
            if entry.file.is_some() {
                gone_keys.push(key);
            }
            while self.entries.len() as u64 > self.entries_max && self.take_ghost() {}
            remaining =
                remaining.saturating_sub(if by_bytes { entry.file.map_or(0, |(_, size)| size) } else { 1 });
            if remaining == 0 {
                break;
            }
        }
        gone_keys
    }

    fn make_room(&mut self, pushed_out: Option<RemovedEntry>) {
        let live: u64 = self.parts.iter().map(Part::live).sum();
        let live_max = self.entries_max - self.entries_max / 9;
        let gone_keys = if self.entries.len() as u64 <= self.entries_max && live <= live_max {
            Vec::new()
        } else {
            self.take(false, STEP_ENTRIES, 1)
        };
        assert_eq!(keys(&pushed_out.into_iter().collect::<Vec<_>>()), gone_keys);
    }

    fn give_up(&mut self, key: Key) {
        let entry = self.entries.get_mut(&key).unwrap();
        entry.claims -= 1;
        if entry.claims == 0 && entry.uses == 0 && entry.file.is_none() {
            self.remove(key);
        }
    }

    fn step(&mut self) {
        let nth = self.random.below(self.keys.len()).min(self.random.below(self.keys.len()));
        let key = self.keys[nth];
        let now = self.now;
        match self.random.below(100) {
            0..35 => {
                let index_entry = self.index.lookup(key, now);
                assert_eq!(index_entry.is_some(), self.entries.contains_key(&key));
                if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.file.is_some()) {
                    entry.lately = 3.min(entry.lately + 1);
                }
            }
            35..40 => {
                let counted = self.index.count_use(key, now);
                let entry = self.found_or_new(key);
                entry.uses += 1;
                assert_eq!(counted.uses, entry.uses);
                self.make_room(counted.pushed_out);
            }
            40..60 => {
                self.claims.push(self.index.claim(key, now));
                self.found_or_new(key).claims += 1;
            }
            60..85 if !self.claims.is_empty() => {
                let claim = self.claims.swap_remove(self.random.below(self.claims.len()));
                let key = claim.key();
                let sequence = claim.sequence();
                if let Ok(commit) = claim.commit() {
                    let size = 1 + self.random.below(9) as u64;
                    let pushed_out = commit.store(size, 0, now).unwrap();
                    self.entries.get_mut(&key).unwrap().file = Some((sequence, size));
                    self.make_room(pushed_out);
                }
                self.give_up(key);
            }
            85..88 => {
                let removed_entry = self.index.remove(key);
                let file = self.entries.get(&key).and_then(|entry| entry.file);
                assert_eq!(
                    removed_entry.map(|removed_entry| (removed_entry.sequence, removed_entry.size)),
                    file
                );
                match self.entries.get_mut(&key) {
                    Some(entry) if entry.claims > 0 || entry.uses > 0 => entry.file = None,
                    Some(_) => {
                        self.remove(key);
                    }
                    None => {}
                }
            }
            88..98 => {
                let by_bytes = self.random.happens(70);
                let count = 1 + self.random.below(12) as u64;
                let excess =
                    if by_bytes { EvictionTarget::Bytes(count) } else { EvictionTarget::Entries(count) };
                let mut removed_entries = Vec::new();
                self.index.evict(excess, now, &mut removed_entries);
                assert_eq!(keys(&removed_entries), self.take(by_bytes, BATCH_ENTRIES, count));
            }
            _ => self.now += 1,
        }
    }

    fn assert_same(&self) {
        assert_whole(&self.index);
        for (key, entry) in &self.entries {
            let index_entry = self.index.peek(*key).unwrap();
            let file =
                (index_entry.holds == EntryState::File).then_some((index_entry.sequence, index_entry.size));
            assert_eq!((file, index_entry.uses, index_entry.claims), (entry.file, entry.uses, entry.claims));
        }
        let bytes = self.entries.values().filter_map(|entry| entry.file).map(|(_, size)| size).sum();
        assert_eq!((self.index.len(), self.index.bytes_on_disk()), (self.entries.len() as u64, bytes));
        assert_eq!(self.index.ghosts.load(Relaxed), self.ghosts());
    }
}

#[test]
fn s3fifo_equals_the_model() {
    let mut most_ghosts = 0;
    for seed in 0..20 {
        println!("seed {seed}");
        let mut pair = Pair::new(seed);
        for step in 0..4000 {
            pair.step();
            most_ghosts = most_ghosts.max(pair.ghosts());
            if step % 50 == 0 {
                pair.assert_same();
            }
        }
        pair.assert_same();
    }
    assert!(most_ghosts > 5, "{most_ghosts}");
}

/// Hit ratio for requests of some popular pages among four times as many that are requested once.
fn answered(policy: EvictionPolicy) -> f64 {
    const PAGES: usize = 500;
    const ROOM: u64 = 1000;
    let index = index(100_000);
    let mut random = Random::new(1);
    let mut removed_entries = Vec::new();
    index.set_policy(policy);
    let mut hits = 0;
    let mut lookups = 0;
    let mut now = 0;
    let mut look_up = |key: Key, now: u32| {
        let is_hit = index.lookup(key, now).is_some_and(|entry| entry.holds == EntryState::File);
        if !is_hit {
            store(&index, key, 1, now);
            while index.bytes_on_disk() > ROOM {
                index.evict(EvictionTarget::Bytes(index.bytes_on_disk() - ROOM), now, &mut removed_entries);
            }
        }
        is_hit
    };
    for round in 0..20_000_u32 {
        let is_hit = look_up(key(random.below(PAGES) as u32), now);
        // Hits count once the cache has learned which keys are requested.
        if round > 5000 {
            (hits, lookups) = (hits + u32::from(is_hit), lookups + 1);
        }
        for nth in 0..4 {
            now += 1;
            look_up(key(1_000_000 + round * 4 + nth), now);
        }
    }
    assert_whole(&index);
    f64::from(hits) / f64::from(lookups)
}

#[test]
fn one_time_requests_do_not_evict_popular_entries() {
    let lru = answered(EvictionPolicy::Lru);
    let s3fifo = answered(EvictionPolicy::S3Fifo);
    println!("lru {lru:.3}, s3fifo {s3fifo:.3}");
    assert!(s3fifo > 0.95, "{s3fifo}");
    assert!(lru < 0.5, "{lru}");
}

#[test]
fn unused_entries_expire() {
    let index = fifo(10_000);
    for number in 0..3000 {
        store(&index, key(number), 1, number / 10);
    }
    let claim = index.claim(key(0), 0);
    index.lookup(key(1), 1000);
    let mut removed_entries = Vec::new();
    // Up to a sixteenth late, and never early.
    while index.expire(1100, 1000, &mut removed_entries) == Progress::More {}
    assert!(
        removed_entries.iter().all(|removed_entry| index.peek(removed_entry.key).is_none())
            && removed_entries.len() <= 1010,
        "{}",
        removed_entries.len()
    );
    while index.expire(1400, 1000, &mut removed_entries) == Progress::More {}
    assert_eq!((removed_entries.len(), index.len()), (2998, 2));
    drop(claim);
    while index.expire(3000, 1000, &mut removed_entries) == Progress::More {}
    assert!(index.is_empty());
    assert_whole(&index);
}

#[test]
fn the_policy_may_change() {
    let index = fifo(1000);
    let mut removed_entries = Vec::new();
    for number in 0..200 {
        store(&index, key(number), 1, number);
    }
    index.evict(EvictionTarget::Bytes(50), 200, &mut removed_entries);
    assert_eq!((index.bytes_on_disk(), removed_entries.len()), (150, 50));
    assert!(index.len() > 150, "there are ghosts");
    index.set_policy(EvictionPolicy::Lru);
    assert_whole(&index);
    assert_eq!((index.len(), index.bytes_on_disk()), (150, 150));
    let oldest = (0..200).map(key).find(|key| index.peek(*key).is_some()).unwrap();
    removed_entries.clear();
    index.evict(EvictionTarget::Bytes(1), 200, &mut removed_entries);
    assert_eq!(keys(&removed_entries), [oldest]);
    index.set_policy(EvictionPolicy::S3Fifo);
    assert_whole(&index);
}

#[test]
fn ghosts_are_bounded_and_take_part_of_the_zone() {
    let index = fifo(900);
    let mut removed_entries = Vec::new();
    for number in 0..20_000 {
        store(&index, key(number), 1, 1);
        index.evict(
            EvictionTarget::Bytes(index.bytes_on_disk().saturating_sub(300)),
            1,
            &mut removed_entries,
        );
        let ghosts = index.ghosts.load(Relaxed);
        assert!(index.len() <= 900 && ghosts <= index.live() + SHARDS as u64, "{ghosts}");
    }
    // Without a limit of bytes, the limit of entries holds.
    for number in 30_000..40_000 {
        store(&index, key(number), 1, 1);
        assert!(index.len() <= 900 && index.live() <= index.live_max(), "{}", index.live());
    }
    assert!(index.ghosts.load(Relaxed) >= 90);
    assert_whole(&index);
}
