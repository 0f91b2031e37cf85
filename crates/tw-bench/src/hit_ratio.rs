//! `cargo xtask bench hit-ratio`: share of requests that a cache of a given size answers, by eviction policy, for generated traces.
//!
//! The traces go through the real index (`tw_cache::Index`) with `lru` and `s3fifo`, and through two references: the optimal
//! choice, which knows the future (Belady 1966), and a clock, as the simplest policy of a table in memory. All responses have one
//! size. The seeds are fixed, so each run prints the same numbers.

use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

use serde_json::{Value, json};
use tw_cache::{EntryState, EvictionPolicy, EvictionTarget, Index, Key, Progress, Purges};
use tw_testkit::random::Random;

use super::Outcome;
use super::options::Options;
use super::report::Table;

/// Bytes of one response on the disk.
const SIZE: u64 = 4096;
/// Requests in a second of the clock of the index.
const RATE: usize = 1000;
/// Bytes of the index for a response (`keys_zone`).
const ENTRY_SIZE: u64 = 96;

/// One trace: numbers of responses in the order of the requests.
struct Trace {
    name: &'static str,
    requests: Vec<u32>,
}

/// Requests and responses, of a quick run and otherwise.
const QUICK: (usize, usize) = (100_000, 10_000);
const USUAL: (usize, usize) = (1_000_000, 100_000);

/// Numbers of requests and of responses, unless the options say others.
pub(super) fn sizes(is_quick: bool) -> (usize, usize) {
    if is_quick { QUICK } else { USUAL }
}

/// Measures and prints.
pub(super) fn run(args: &[String]) -> Outcome {
    let options = Options::parse(args, &["requests", "objects"], &[])?;
    let (requests, objects) = sizes(options.flag("quick"));
    let requests = options.number("requests", requests)?;
    let objects = options.number("objects", objects)?;
    each_table(requests, objects, |table, _| println!("{}", table.text()));
    Ok(())
}

/// Measures with so many requests for so many responses, and shows the table of each size of the cache, and the same as numbers.
pub(super) fn each_table(requests: usize, objects: usize, mut show: impl FnMut(&Table, Value)) {
    for capacity in [objects / 100, objects / 10] {
        let columns = ["optimal", "lru", "s3fifo", "clock"];
        let mut table = Table::new(format!("cache of {capacity} responses, hit ratio in percent"), &columns);
        let mut numbers = Vec::new();
        for trace in traces(requests, objects, capacity) {
            let share = |hits: usize| 100.0 * hits as f64 / trace.requests.len() as f64;
            let hits = [
                optimal(&trace.requests, capacity),
                through_index(&trace.requests, capacity, EvictionPolicy::Lru),
                through_index(&trace.requests, capacity, EvictionPolicy::S3Fifo),
                clock(&trace.requests, capacity),
            ]
            .map(share);
            table.row(trace.name, hits.map(|percent| format!("{percent:.1}")).to_vec());
            let [optimal, lru, s3fifo, clock] = hits;
            numbers.push(json!({
                "name": trace.name, "optimal": optimal, "lru": lru, "s3fifo": s3fifo, "clock": clock,
            }));
        }
        show(&table, Value::Array(numbers));
    }
}

fn traces(count: usize, objects: usize, capacity: usize) -> Vec<Trace> {
    let mut random = Random::new(1);
    let zipf = Zipf::new(objects, 0.8);
    let steep = Zipf::new(objects, 1.0);
    // Numbers of scans and loops are behind those of all other responses.
    let first = objects as u32;
    let mut next = first;
    let mut scan = |random: &mut Random| {
        if random.happens(25) {
            next += 1;
            return next;
        }
        zipf.choose(random)
    };
    let loop_len = capacity + capacity / 10;
    vec![
        Trace { name: "Zipf 0.8", requests: (0..count).map(|_| zipf.choose(&mut random)).collect() },
        Trace { name: "Zipf 1.0", requests: (0..count).map(|_| steep.choose(&mut random)).collect() },
        Trace {
            name: "Zipf 0.8 and a crawler (a quarter of the requests, each page once)",
            requests: (0..count).map(|_| scan(&mut random)).collect(),
        },
        Trace {
            name: "loop, a tenth larger than the cache",
            requests: (0..count).map(|nth| first + (nth % loop_len) as u32).collect(),
        },
        Trace {
            // Ten times, what is popular is replaced as a whole.
            name: "Zipf 1.0, all popular responses change ten times",
            requests: (0..count)
                .map(|nth| steep.choose(&mut random) + first * (nth * 10 / count) as u32)
                .collect(),
        },
    ]
}

/// Zipf's distribution: the response of rank n is requested 1/n^s times as often as the first.
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(objects: usize, exponent: f64) -> Self {
        let mut sum = 0.0;
        let weights = (1..=objects).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self(weights.collect())
    }

    fn choose(&self, random: &mut Random) -> u32 {
        let total = self.0.last().copied().unwrap_or(1.0);
        let at = (random.next_number() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        self.0.partition_point(|sum| *sum <= at).min(self.0.len() - 1) as u32
    }
}

fn key(number: u32) -> Key {
    let mut random = Random::new(number.into());
    Key((u128::from(random.next_number()) << 64 | u128::from(random.next_number())).to_ne_bytes())
}

/// Number of hits with the server's index: as a request does, and as the manager makes room.
fn through_index(requests: &[u32], capacity: usize, policy: EvictionPolicy) -> usize {
    let purges = Purges::new(0);
    // Twice the memory that the files need, for those that `s3fifo` remembers.
    let memory = 2 * ENTRY_SIZE * capacity as u64;
    let index = Arc::new(Index::new(memory, [1, 2], purges.sequence().clone()));
    index.set_policy(policy);
    let max_size = SIZE * capacity as u64;
    let mut hits = 0;
    let mut removed_entries = Vec::new();
    for (nth, number) in requests.iter().enumerate() {
        let key = key(*number);
        let now = (nth / RATE) as u32;
        if index.lookup(key, now).is_some_and(|entry| entry.holds == EntryState::File) {
            hits += 1;
            continue;
        }
        removed_entries.extend(index.count_use(key, now).pushed_out);
        let commit = index.claim(key, now).commit();
        match commit.map(|commit| commit.store(SIZE, u32::MAX, now)) {
            Ok(Ok(pushed_out)) => removed_entries.extend(pushed_out),
            // There are no purges, and no other thread stores.
            Ok(Err(_)) | Err(_) => unreachable!("no response is refused"),
        }
        loop {
            let excess = index.counts().bytes.saturating_sub(max_size);
            if excess == 0
                || index.evict(EvictionTarget::Bytes(excess), now, &mut removed_entries) == Progress::Done
                    && removed_entries.is_empty()
            {
                break;
            }
            removed_entries.drain(..).for_each(tw_cache::RemovedEntry::deleted);
        }
        removed_entries.drain(..).for_each(tw_cache::RemovedEntry::deleted);
    }
    hits
}

/// Number of hits if always that response leaves which is requested again last (Belady: A study of replacement algorithms for a
/// virtual-storage computer, 1966).
fn optimal(requests: &[u32], capacity: usize) -> usize {
    const NEVER: usize = usize::MAX;
    let mut next_use = vec![NEVER; requests.len()];
    let mut seen_values = HashMap::new();
    for (nth, number) in requests.iter().enumerate().rev() {
        if let Some(next) = seen_values.insert(*number, nth) {
            next_use[nth] = next;
        }
    }
    // The next use of each stored response, and the same in order; outdated pairs are skipped.
    let mut stored = HashMap::new();
    let mut order = BinaryHeap::new();
    let mut hits = 0;
    for (number, next) in requests.iter().zip(next_use) {
        hits += usize::from(stored.insert(*number, next).is_some());
        order.push((next, *number));
        while stored.len() > capacity
            && let Some((next, number)) = order.pop()
        {
            if stored.get(&number) == Some(&next) {
                stored.remove(&number);
            }
        }
    }
    hits
}

/// Number of hits with a clock, whose hand closes what was not used since it last passed. A new response takes the place of the
/// one that has left, and the hand goes on behind it.
fn clock(requests: &[u32], capacity: usize) -> usize {
    let mut places: HashMap<u32, usize> = HashMap::new();
    let mut slots: Vec<(u32, bool)> = Vec::new();
    let mut hand = 0;
    let mut hits = 0;
    for number in requests {
        if let Some(at) = places.get(number) {
            slots[*at].1 = true;
            hits += 1;
            continue;
        }
        if slots.len() < capacity {
            places.insert(*number, slots.len());
            slots.push((*number, false));
            continue;
        }
        while std::mem::take(&mut slots[hand].1) {
            hand = (hand + 1) % capacity;
        }
        places.remove(&slots[hand].0);
        places.insert(*number, hand);
        slots[hand] = (*number, false);
        hand = (hand + 1) % capacity;
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optimal_choice_keeps_what_comes_first() {
        // With room for two: 1 and 2 are missed, and one of three in each round of the loop.
        assert_eq!(optimal(&[1, 2, 1, 2], 2), 2);
        assert_eq!(optimal(&[1, 2, 3, 1, 2, 3], 2), 2);
        assert_eq!(optimal(&[1, 2, 3], 3), 0);
        assert_eq!(clock(&[1, 2, 1, 3, 1, 2], 2), 2);
    }

    #[test]
    fn no_policy_is_better_than_the_optimum() {
        for trace in traces(20_000, 2_000, 200) {
            let best = optimal(&trace.requests, 200);
            for policy in [EvictionPolicy::Lru, EvictionPolicy::S3Fifo] {
                let hits = through_index(&trace.requests, 200, policy);
                assert!(hits <= best, "{}: {hits} of {best} by {policy:?}", trace.name);
            }
            assert!(best > 0 && clock(&trace.requests, 200) <= best);
        }
    }
}
