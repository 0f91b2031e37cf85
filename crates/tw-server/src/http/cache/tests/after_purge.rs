//! Responses that were stored or validated after a purge: they are used.

use super::*;

fn used_after_a_purge() {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        for page in 0..4 {
            process.store(process.begin(&truth, page)).await;
        }
        // In the same segment as what was purged.
        process.cache.purge_prefix(process.held(), &process.disk, b"", Purge::Hard).await.unwrap();
        for page in 0..2 {
            assert!(process.find(page).await.is_none(), "{page}");
            process.store(process.begin(&truth, page)).await;
        }
        assert_eq!((process.get(&truth, 0).await, process.get(&truth, 1).await), (Some(5), Some(6)));
        assert!(process.find(2).await.is_none());
        process.manager.sweep(process.held()).await;
        assert_eq!((process.get(&truth, 0).await, process.get(&truth, 1).await), (Some(5), Some(6)));
        process.compare(&sim).unwrap();
        drop(process);
        // Another process: a soft purge makes stale what is older, until it is validated.
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        process.load().await;
        let is_stale = async |page: usize| process.find(page).await.unwrap().1.is_stale;
        process.cache.purge_prefix(process.held(), &process.disk, b"/p/00", Purge::Soft).await.unwrap();
        assert!(is_stale(0).await && !is_stale(1).await);
        process.refresh(&truth, 0, 1).await;
        assert!(!is_stale(0).await);
        process.hot.borrow_mut().clear();
        assert!(!is_stale(0).await, "its head in the file is young");
        process.manager.sweep(process.held()).await;
        assert!(!is_stale(0).await);
        process
            .cache
            .purge_tags(process.held(), &process.disk, &[b"tag1".to_vec()], Purge::Hard)
            .await
            .unwrap();
        process.manager.sweep(process.held()).await;
        assert!(process.find(1).await.is_none());
        assert_eq!(process.get(&truth, 0).await, Some(5));
        assert_eq!(process.held().purges.counts(), [0, 0, 0], "nothing is left that it concerns");
        process.compare(&sim).unwrap();
    });
}

#[test]
fn file_is_used_that_was_stored_after_a_purge() {
    used_after_a_purge();
}

#[test]
fn record_is_used_that_was_stored_after_a_purge() {
    STORE.set(LOG);
    used_after_a_purge();
}
