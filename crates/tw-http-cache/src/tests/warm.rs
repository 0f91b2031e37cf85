//! Lookups after a start of a cache with segments, before its snapshot has been read.

use super::*;

const PATH: &CStr = c"/cache/pages";

/// Blocks that begin behind each other.
fn blocks(content: &[u8]) -> usize {
    content.len() / 4096
}

/// A disk with four responses, and a snapshot of them.
async fn stored(pool: &Pool, truth: &Truth) -> Arc<Sim> {
    STORE.set(LOG);
    let sim = new_sim(1);
    let process = Process::start(door(&sim, pool), 1_800_000_000_000).await;
    process.load().await;
    for page in 0..4 {
        process.store(process.begin(truth, page)).await;
    }
    process.manager.write_snapshot(process.zone_index()).await.unwrap();
    drop(process);
    sim.restart(Loss::Nothing);
    sim
}

#[test]
fn lookup_reads_its_own_block_of_the_snapshot() {
    let (pool, truth) = (Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let sim = stored(&pool, &truth).await;
        assert!(blocks(&sim.content(PATH).unwrap()) > 1);
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        assert!(process.cache.zone.is_restoring());
        assert_eq!(process.zone_index().index.len(), 0);
        assert_eq!(process.get(&truth, 2).await, Some(3));
        // Others of the same block, and no more.
        assert!(process.zone_index().index.len() < 4, "all blocks were read");
        for page in 0..4 {
            assert_eq!(process.get(&truth, page).await, Some(page as u64 + 1));
        }
        assert_eq!(process.zone_index().index.counts().files, 4);
        // What is removed does not come back with the rest of the snapshot.
        process.cache.purge_key(process.zone_index(), &process.disk, key(2), Purge::Hard).await.unwrap();
        process.store(process.begin(&truth, 1)).await;
        process.restore().await;
        assert!(process.find(2).await.is_none());
        assert_eq!(process.get(&truth, 1).await, Some(5));
        process.load().await;
        assert!(process.find(2).await.is_none());
        process.compare(&sim).unwrap();
    });
}

#[test]
fn purge_of_a_response_that_is_not_known_yet_holds() {
    let (pool, truth) = (Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let sim = stored(&pool, &truth).await;
        for page in [1, 2] {
            let process = Process::start(door(&sim, &pool), 1_800_000_100_000 + page as u64).await;
            process
                .cache
                .purge_key(process.zone_index(), &process.disk, key(page), Purge::Hard)
                .await
                .unwrap();
            assert!(process.find(page).await.is_none(), "{page}");
            drop(process);
            // The server is killed before it knows its segments.
            sim.restart(Loss::Nothing);
        }
        let process = Process::start(door(&sim, &pool), 1_800_000_200_000).await;
        assert!(process.find(1).await.is_none() && process.find(2).await.is_none());
        process.load().await;
        assert!(process.find(1).await.is_none() && process.find(2).await.is_none());
        assert_eq!((process.get(&truth, 0).await, process.get(&truth, 3).await), (Some(1), Some(4)));
        process.compare(&sim).unwrap();
    });
}

#[test]
fn damaged_block_is_replaced_by_the_tables_of_segments() {
    let (pool, truth) = (Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let sim = stored(&pool, &truth).await;
        let whole = sim.content(PATH).unwrap();
        for block in 0..blocks(&whole) {
            let mut damaged = whole.clone();
            damaged[block * 4096 + 40] ^= 1;
            sim.put(PATH, &damaged).unwrap();
            let process = Process::start(door(&sim, &pool), 1_800_000_100_000 + block as u64).await;
            for page in 0..4 {
                let value = process.get(&truth, page).await;
                assert!(value.is_none() || value == Some(page as u64 + 1), "{block} {page}");
            }
            process.load().await;
            for page in 0..4 {
                assert_eq!(process.get(&truth, page).await, Some(page as u64 + 1), "{block} {page}");
            }
            process.compare(&sim).unwrap();
            drop(process);
            sim.restart(Loss::Nothing);
        }
    });
}

#[test]
fn snapshot_of_segments_that_are_gone_leads_nowhere() {
    let (pool, truth) = (Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let sim = stored(&pool, &truth).await;
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        process.load().await;
        let old = sim.content(PATH).unwrap();
        // Other responses come into segments with the same numbers.
        while process.manager.free_segment().await > 0 {}
        drop(process);
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_200_000).await;
        process.load().await;
        for page in 5..9 {
            process.store(process.begin(&truth, page)).await;
        }
        drop(process);
        sim.restart(Loss::Nothing);
        sim.put(PATH, &old).unwrap();
        let process = Process::start(door(&sim, &pool), 1_800_000_300_000).await;
        for page in 0..4 {
            assert!(process.find(page).await.is_none(), "{page}");
        }
        process.load().await;
        for page in 5..9 {
            assert_eq!(process.get(&truth, page).await, Some(page as u64), "{page}");
        }
        process.compare(&sim).unwrap();
    });
}
