//! Operations of several tasks at once, which pools execute in any order.

use tokio::task::LocalSet;
use tw_testkit::wait;

use super::*;

const TASKS: u64 = 5;

async fn race(seed: u64, threads: &Pool, inline: &Pool) {
    let (sim, truth, mut random) = (new_sim(seed), Rc::new(Truth::default()), Random::new(seed));
    let when = format!("seed {seed}");
    println!("{when}");
    let door_of_threads = Disk::simulated(threads.clone(), Aio::Threads, sim.clone());
    let process = Rc::new(Process::start(door_of_threads, 1_800_000_000_000).await);
    let tasks = LocalSet::new();
    let cuts_off = random.happens(50);
    if cuts_off {
        sim.fail_power_after(random.below(400) as u64);
    }
    for _ in 0..TASKS {
        let (process, truth) = (process.clone(), truth.clone());
        let mut random = Random::new(random.next_number());
        tasks.spawn_local(async move {
            let fillings = RefCell::new(Vec::new());
            for _ in 0..40 {
                process.step(&truth, &mut random, &fillings).await;
            }
        });
    }
    let learning = process.clone();
    tasks.spawn_local(async move {
        let unfinished = RefCell::new(Vec::new());
        learning.manager.load(learning.zone_index(), &unfinished).await;
        learning.manager.remove_unfinished(learning.zone_index(), &unfinished).await;
    });
    tasks.await;
    if !cuts_off {
        // Temporary files are removed beside everything.
        let mut what = Ok(());
        let is_same = wait::until(wait::TIMEOUT, || {
            what = process.compare(&sim);
            what.is_ok()
        });
        assert!(is_same, "{when}: {what:?}");
    }
    drop(process);
    sim.restart(random.one_of(&[Loss::Nothing, Loss::Ordered]));
    let process = Process::start(door(&sim, inline), 1_800_000_001_000).await;
    recover(&process, &truth, &sim, &mut random, &when).await;
}

#[test]
fn concurrent_operations_lose_and_corrupt_nothing() {
    race_all();
}

#[test]
fn concurrent_operations_on_segments_lose_and_corrupt_nothing() {
    STORE.set(LOG);
    race_all();
}

fn race_all() {
    let (threads, inline) = (Pool::new("threads", 3, 1000).unwrap(), Pool::new("sim", 1, 1000).unwrap());
    for seed in 0..60 {
        block_on(race(seed, &threads, &inline));
    }
}

#[test]
fn update_of_a_file_that_is_gone_is_no_failure() {
    let (sim, truth, pool) = (new_sim(1), Truth::default(), Pool::new("sim", 1, 1000).unwrap());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        let filling = process.begin(&truth, 0);
        process.store(filling).await;
        let (entry, _) = process.find(0).await.unwrap();
        let claim = process.zone_index().index.claim(key(0), process.now);
        sim.remove(&process.cache.place.path(key(0))).unwrap();
        let was = ValidatedFile::of(&entry);
        let meta = entry.meta.clone();
        let updated = process
            .cache
            .zone
            .store
            .refresh(process.cache.context(&process.disk), Box::new(meta), was, claim, &silent)
            .await;
        assert!(updated.is_ok_and(|removed_entries| removed_entries.is_empty()));
        assert!(process.zone_index().index.peek(key(0)).is_none(), "and the entry is gone, too");
    });
}

/// A scan adds the rows of a segment some time after it has read them. `is_marked_first` if the record is marked as removed before its row
/// is added.
fn record_stays_removed(is_marked_first: bool) {
    STORE.set(LOG);
    let (sim, truth, pool) = (new_sim(1), Truth::default(), Pool::new("sim", 1, 1000).unwrap());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        for page in 0..3 {
            process.store(process.begin(&truth, page)).await;
        }
        drop(process);
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_001_000).await;
        let (store, context) = (&process.cache.zone.store, process.cache.context(&process.disk));
        let mut scan = Default::default();
        let part = store.scan(context, &mut scan).await.unwrap().unwrap();
        let add_all = async || {
            for entry in &part.entries {
                let _ = store.admit(context, entry).await.unwrap();
            }
        };
        add_all().await;
        let index = &process.zone_index().index;
        assert!((0..3).all(|page| index.peek(key(page)).is_some()));
        let removed_entry = index.remove(key(1)).unwrap();
        if is_marked_first {
            store.remove(context, removed_entry).await.unwrap();
            add_all().await;
        } else {
            add_all().await;
            assert!(index.peek(key(1)).is_some());
            store.remove(context, removed_entry).await.unwrap();
        }
        assert!(index.peek(key(1)).is_none());
        assert!(index.peek(key(0)).is_some() && index.peek(key(2)).is_some());
        while let Some(part) = store.scan(context, &mut scan).await {
            part.unwrap();
        }
        process.compare(&sim).unwrap();
    });
}

#[test]
fn scan_does_not_bring_back_a_record_that_was_removed() {
    record_stays_removed(true);
}

#[test]
fn record_that_a_scan_has_brought_back_is_removed_with_its_mark() {
    record_stays_removed(false);
}
