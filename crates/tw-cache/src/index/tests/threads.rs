//! Many threads at once: the final numbers match the entries, and no purge is undone.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use tw_testkit::Random;

use super::*;

const THREADS: u64 = 6;
const STEPS: usize = 20_000;
const KEYS: usize = 400;

#[test]
fn sums_stay_exact_under_concurrency() {
    let index = index(300);
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let index = &index;
            scope.spawn(move || hammer(index, &mut Random::new(seed)));
        }
        scope.spawn(|| {
            let mut cursor = ScanCursor::default();
            let mut entries = Vec::new();
            let mut removed_entries = Vec::new();
            for now in 0..2000 {
                index.scan(&mut cursor, &mut entries);
                index.expire(now, 50, &mut removed_entries);
                index.evict(EvictionTarget::Bytes(512), now, &mut removed_entries);
                entries.clear();
            }
        });
    });
    assert_whole(&index);
    assert!((0..KEYS as u32).filter_map(|number| index.peek(key(number))).all(|entry| entry.claims == 0));
}

fn hammer(index: &Arc<Index>, random: &mut Random) {
    let mut claims = Vec::new();
    for step in 0..STEPS {
        let key = key(random.below(KEYS) as u32);
        let now = step as u32 / 10;
        match random.below(10) {
            0..4 => {
                index.lookup(key, now);
            }
            4 => {
                index.count_use(key, now);
            }
            5 | 6 => claims.push(index.claim(key, now)),
            7 if random.happens(30) => {
                index.purge(key);
            }
            8 if random.happens(30) => {
                index.remove(key);
            }
            _ => {
                let Some(claim) = claims.pop() else { continue };
                if let Ok(commit) = claim.commit() {
                    // An error is a purge that came between.
                    let _ = commit.store(random.below(9) as u64 * 512, now, now);
                }
            }
        }
    }
}

#[test]
fn no_purge_is_undone() {
    let index = index(10_000);
    let purged: Mutex<HashMap<u32, u64>> = Mutex::default();
    thread::scope(|scope| {
        for seed in 0..THREADS {
            let index = &index;
            let purged = &purged;
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..STEPS / 4 {
                    let number = random.below(5) as u32;
                    if random.happens(30) {
                        let sequence = index.purge(key(number)).sequence;
                        let mut purged = purged.lock().unwrap();
                        let last = purged.entry(number).or_default();
                        *last = sequence.max(*last);
                        continue;
                    }
                    let commit = index.claim(key(number), 1).commit();
                    thread::yield_now();
                    let _ = commit.map(|commit| commit.store(512, 1, 1));
                    // A lookup after a completed purge must not find an older response.
                    let purged = purged.lock().unwrap().get(&number).copied().unwrap_or(0);
                    if let Some(entry) = index.lookup(key(number), 1) {
                        assert!(entry.holds == EntryState::Count || entry.sequence > purged);
                    }
                }
            });
        }
    });
    assert!(purged.into_inner().unwrap().len() == 5);
    assert_whole(&index);
}
