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
        process.cache.purge_prefix(process.zone_index(), &process.disk, b"", Purge::Hard).await.unwrap();
        for page in 0..2 {
            assert!(process.find(page).await.is_none(), "{page}");
            process.store(process.begin(&truth, page)).await;
        }
        assert_eq!((process.get(&truth, 0).await, process.get(&truth, 1).await), (Some(5), Some(6)));
        assert!(process.find(2).await.is_none());
        process.manager.sweep(process.zone_index()).await;
        assert_eq!((process.get(&truth, 0).await, process.get(&truth, 1).await), (Some(5), Some(6)));
        process.compare(&sim).unwrap();
        drop(process);
        // Another process: a soft purge makes stale what is older, until it is validated.
        sim.restart(Loss::Nothing);
        let process = Process::start(door(&sim, &pool), 1_800_000_100_000).await;
        process.load().await;
        let is_stale = async |page: usize| process.find(page).await.unwrap().1.is_stale;
        process.cache.purge_prefix(process.zone_index(), &process.disk, b"/p/00", Purge::Soft).await.unwrap();
        assert!(is_stale(0).await && !is_stale(1).await);
        process.refresh(&truth, 0, 1).await;
        assert!(!is_stale(0).await);
        process.hot.borrow_mut().clear();
        assert!(!is_stale(0).await, "its head in the file is young");
        process.manager.sweep(process.zone_index()).await;
        assert!(!is_stale(0).await);
        process
            .cache
            .purge_tags(process.zone_index(), &process.disk, &[b"tag1".to_vec()], Purge::Hard)
            .await
            .unwrap();
        process.manager.sweep(process.zone_index()).await;
        assert!(process.find(1).await.is_none());
        assert_eq!(process.get(&truth, 0).await, Some(5));
        assert_eq!(process.zone_index().purges.counts(), [0, 0, 0], "nothing is left that it concerns");
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

/// A head that was rewritten after a soft purge says nothing about the one before it, which other loops have in memory. `is_new_stale` if
/// the new head does not count either until the index knows it.
fn old_head_stays_stale(is_new_stale: bool) {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        process.store(process.begin(&truth, 0)).await;
        let (entry, _) = process.find(0).await.unwrap();
        process.cache.purge_prefix(process.zone_index(), &process.disk, b"", Purge::Soft).await.unwrap();
        let is_stale = async || process.find(0).await.unwrap().1.is_stale;
        assert!(is_stale().await);
        // A validation up to the moment at which its head is on the disk, and the index does not know that.
        let claim = process.zone_index().index.claim(key(0), process.now);
        let mut meta = entry.meta.clone();
        meta.sequence = claim.sequence();
        let mut head = Vec::new();
        format::encode(&meta, &mut head).unwrap();
        let (len, valid_until) = (meta.stored_len().unwrap(), 4_000_000_000);
        let prefix = RecordPrefix { key: key(0), len, sequence: meta.sequence, valid_until };
        let new = NewHead { prefix, head, is_durable: false };
        let context = process.cache.context(&process.disk);
        let mut account = Account::new(JobClass::Fill, JobSource::NONE);
        let was = ValidatedFile::of(&entry);
        let store = &process.cache.zone.store;
        assert_eq!(store.rewrite_head(context, &mut account, &was, new).await.unwrap(), HeadWrite::Done);
        // Another loop reads it.
        let other_loop = FatalCell::new(OpenEntries::new(6, 1 << 20));
        let text = text(0);
        let query =
            EntryQuery { cache: &process.cache, key: key(0), main: key(0), text: text.as_bytes(), since: 0 };
        let (disk, account) = (|| Some(&process.disk), &Account::new(JobClass::Hit, JobSource::NONE));
        let search = EntrySearch { disk: &disk, hot: &other_loop, event_loop: None, account, log: &silent };
        let mut found_entry = FoundEntry::default();
        search.find(&query, &mut found_entry).await;
        assert_eq!(found_entry.entry.unwrap().1.is_stale, is_new_stale);
        assert!(is_stale().await, "the old head is used, although it is purged");
        process.manager.sweep(process.zone_index()).await;
        assert!(is_stale().await, "a sweep has taken the new head for the old one");
        assert_ne!(
            process.zone_index().purges.counts(),
            [0, 0, 0],
            "a power cut may bring the old head back"
        );
        drop(claim);
    });
}

#[test]
fn old_head_of_a_file_stays_stale_while_another_loop_reads_the_new_one() {
    old_head_stays_stale(true);
}

#[test]
fn old_head_of_a_record_stays_stale_while_another_loop_reads_the_new_one() {
    STORE.set(LOG);
    old_head_stays_stale(false);
}

/// A variant of page 1 has the key of page 3.
async fn find_variant(process: &Process, since: u64) -> bool {
    let text = text(1);
    let query = EntryQuery { cache: &process.cache, key: key(3), main: key(1), text: text.as_bytes(), since };
    let account = &Account::new(JobClass::Hit, JobSource::NONE);
    let (disk, hot) = (|| Some(&process.disk), &process.hot);
    let search = EntrySearch { disk: &disk, hot, event_loop: None, account, log: &silent };
    let mut found_entry = FoundEntry::default();
    search.find(&query, &mut found_entry).await;
    found_entry.entry.is_some()
}

fn variants_stay_purged() {
    let (sim, pool, truth) = (new_sim(1), Pool::new("sim", 1, 1000).unwrap(), Truth::default());
    block_on(async {
        let process = Process::start(door(&sim, &pool), 1_800_000_000_000).await;
        process.load().await;
        process.store(process.begin(&truth, 1)).await;
        let claim = process.zone_index().index.claim(key(3), process.now);
        let mut meta = meta(1, truth.next(), claim.sequence());
        (meta.variant, meta.header_size) = (Some(key(3)), 0);
        meta.header_size = format::place(&meta).unwrap();
        let entry = NewEntry { meta: Box::new(meta), claim, copied: None };
        let writer = process.cache.zone.store.begin(process.cache.context(&process.disk), entry);
        writer.commit(BodyPieces { pieces: vec![body(1, 1)], needless: 0 }).await.unwrap();
        let since = process.find(1).await.unwrap().1.since;
        assert!(find_variant(&process, since).await);
        process.cache.purge_key(process.zone_index(), &process.disk, key(1), Purge::Hard).await.unwrap();
        process.store(process.begin(&truth, 1)).await;
        let since = process.find(1).await.unwrap().1.since;
        // A sweep for another purge finds that this one does not concern the variant.
        process.cache.purge_prefix(process.zone_index(), &process.disk, b"/p/09", Purge::Hard).await.unwrap();
        process.manager.sweep(process.zone_index()).await;
        assert!(!find_variant(&process, since).await);
    });
}

#[test]
fn sweep_brings_back_no_variant_of_a_purged_file() {
    variants_stay_purged();
}

#[test]
fn sweep_brings_back_no_variant_of_a_purged_record() {
    STORE.set(LOG);
    variants_stay_purged();
}
