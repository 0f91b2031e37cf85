//! Bits that flip on the disk.

use super::*;

/// Path of a page's file, and its parts: used bytes of the head, all of the head, and the end of the body.
fn parts(process: &Process, sim: &Sim, page: usize) -> (std::ffi::CString, [usize; 3]) {
    let path = process.cache.place.path(key(page));
    let content = sim.content(&path).unwrap();
    let used = format::needed(&content).unwrap();
    let meta = format::decode(&content.clone().into(), content.len() as u64).unwrap();
    let head = meta.header_size as usize;
    (path, [used, head, head + meta.body_len.unwrap() as usize])
}

fn flip(sim: &Sim, path: &CStr, at: usize, bit: usize) {
    let mut content = sim.content(path).unwrap();
    content[at] ^= 1 << bit;
    sim.put(path, &content).unwrap();
}

/// A process with all pages, some of which were written in several parts, or updated, or copied.
async fn filled(sim: &Arc<Sim>, pool: &Pool, truth: &Truth, random: &mut Random) -> Process {
    let process = Process::start(door(sim, pool), 1_800_000_000_000).await;
    process.load().await;
    for page in 0..PAGES {
        let mut filling = process.begin(truth, page);
        for _ in 0..random.below(3) {
            filling = process.write(filling, random.below(40_000)).await.unwrap();
        }
        process.store(filling).await;
        if random.happens(50) {
            process.refresh(truth, page, random.below(1000)).await;
        }
    }
    process
}

#[test]
fn no_bit_that_flipped_is_served() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    let mut seen_values = [0; 4];
    for seed in 0..400 {
        let (sim, truth, mut random) = (new_sim(seed), Truth::default(), Random::new(seed));
        block_on(async {
            let process = filled(&sim, &pool, &truth, &mut random).await;
            let page = random.below(PAGES);
            let (path, [used, head, end]) = parts(&process, &sim, page);
            let len = sim.content(&path).unwrap().len();
            let part = random.below(4);
            let places = [0..used, used..head, head..end, end..len][part].clone();
            if places.is_empty() {
                return;
            }
            let at = places.start + random.below(places.len());
            flip(&sim, &path, at, random.below(8));
            drop(process);
            let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
            process.load().await;
            for other in 0..PAGES {
                // What is found has been compared with what was stored.
                let value = process.get(&truth, other).await;
                let is_damaged = other == page && part != 1;
                assert_eq!(value.is_none(), is_damaged, "seed {seed}: page {other}, {part} at {at}");
            }
            seen_values[part] += 1;
        });
    }
    assert!(seen_values.iter().all(|count| *count > 10), "{seen_values:?}");
}

#[test]
fn entry_with_damage_in_its_first_block_is_removed() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    // A body that is kept in memory, and one that is not; the table of that.
    for (page, is_table) in [(0, false), (4, false), (4, true)] {
        let (sim, truth, mut random) = (new_sim(1), Truth::default(), Random::new(1));
        block_on(async {
            let process = filled(&sim, &pool, &truth, &mut random).await;
            let (path, [_, head, end]) = parts(&process, &sim, page);
            flip(&sim, &path, if is_table { end } else { head + 7 }, 0);
            assert!(process.find(page).await.is_none(), "{page}");
            assert_eq!((sim.content(&path), process.cache.zone.counts.damaged.value()), (None, 1));
            process.compare(&sim).unwrap();
            process.store(process.begin(&truth, page)).await;
            assert_eq!(process.get(&truth, page).await, Some(truth.versions.get()));
        });
    }
}

#[test]
fn damaged_body_is_not_copied() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    let (sim, truth) = (new_sim(1), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        process.store(process.begin(&truth, 4)).await;
        let (path, [_, head, _]) = parts(&process, &sim, 4);
        flip(&sim, &path, head + 68_000, 3);
        // The first block is as it was: the entry is found, and the next head has no room in its file.
        assert!(process.find(4).await.is_some());
        process.refresh(&truth, 4, 2000).await;
        assert_eq!((sim.content(&path), process.cache.zone.counts.damaged.value()), (None, 1));
        assert!(process.find(4).await.is_none());
        process.compare(&sim).unwrap();
    });
}

#[test]
fn file_without_checksums_gets_them_with_a_new_file() {
    let pool = Pool::new("sim", 1, 1000).unwrap();
    let (sim, truth) = (new_sim(1), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        for page in [0, 4] {
            process.store(process.begin(&truth, page)).await;
            let (path, [_, head, end]) = parts(&process, &sim, page);
            let content = sim.content(&path).unwrap();
            let mut meta = format::decode(&content.clone().into(), content.len() as u64).unwrap();
            meta.body_sum = None;
            let mut old = Vec::new();
            format::encode(&meta, &mut old).unwrap();
            old.extend_from_slice(&content[head..end]);
            sim.put(&path, &old).unwrap();
            let version = process.get(&truth, page).await;
            assert_eq!(version, Some(truth.versions.get()), "{page}");
            // In place, and then to a new file.
            for (room, expected) in [(1, 1), (2000, 2)] {
                process.refresh(&truth, page, room).await;
                assert_eq!(process.get(&truth, page).await, version, "{page} {room}");
                assert_eq!(sim.content(&path).unwrap()[8], expected, "{page} {room}");
            }
        }
        process.compare(&sim).unwrap();
    });
}
