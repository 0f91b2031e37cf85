mod fifo;
mod model;
mod records;
mod threads;

use super::*;

const SEED: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

fn index(entries_max: u64) -> Arc<Index> {
    Arc::new(Index::new(entries_max * ENTRY_SIZE, SEED, Arc::new(Sequence::starting(1000, 0))))
}

fn key(number: u32) -> Key {
    Key::of(&number.to_le_bytes())
}

/// Fetches and stores without anything in between.
fn store(index: &Arc<Index>, key: Key, size: u64, now: u32) -> Option<RemovedEntry> {
    index.claim(key, now).commit().unwrap().store(size, now + 60, now).unwrap()
}

fn keys(removed_entries: &[RemovedEntry]) -> Vec<Key> {
    removed_entries.iter().map(|removed_entry| removed_entry.key).collect()
}

fn assert_whole(index: &Index) {
    let mut sums = Sums::default();
    for place in index.shards.iter() {
        let shard = place.shard.lock();
        shard.assert_whole();
        assert_eq!(place.oldest_use.load(Relaxed), shard.oldest_use());
        let part = shard.sums();
        sums.entries += part.entries;
        sums.files += part.files;
        sums.bytes += part.bytes;
        sums.packed_bytes += part.packed_bytes;
        sums.ghosts += part.ghosts;
        sums.compact += part.compact;
        sums.memory += part.memory;
    }
    let IndexCounts { entries, files, bytes, memory, .. } = index.counts();
    let ghosts = index.ghosts.load(Relaxed);
    let packed_bytes = index.packed_bytes();
    let compact = index.compact.load(Relaxed);
    assert_eq!(sums, Sums { entries, files, bytes, packed_bytes, ghosts, compact, memory });
}

#[test]
fn uses_are_counted_until_it_is_stored() {
    let index = index(100);
    assert_eq!(index.lookup(key(1), 5), None);
    let counted = index.count_use(key(1), 5);
    assert!(counted.uses == 1 && counted.pushed_out.is_none());
    assert_eq!(index.count_use(key(1), 6).uses, 2);
    let entry = index.lookup(key(1), 7).unwrap();
    assert_eq!((entry.holds, entry.uses, entry.used, entry.size), (EntryState::Count, 2, 6, 0));
    store(&index, key(1), 4096, 8);
    let entry = index.peek(key(1)).unwrap();
    assert_eq!((entry.holds, entry.size, entry.valid_until, entry.used), (EntryState::File, 4096, 68, 8));
    // The file is removed, but the counted uses stay.
    assert!(index.remove_if_sequence(key(1), entry.sequence + 1).is_none());
    assert_eq!(
        index.remove_if_sequence(key(1), entry.sequence).map(|removed_entry| removed_entry.size),
        Some(4096)
    );
    assert_eq!(index.peek(key(1)).map(|entry| (entry.holds, entry.uses)), Some((EntryState::Count, 2)));
    assert_eq!((index.len(), index.bytes_on_disk()), (1, 0));
}

#[test]
fn replacing_an_entry_updates_the_sums() {
    let index = index(100);
    store(&index, key(1), 4096, 1);
    store(&index, key(1), 512, 2);
    assert_eq!((index.bytes_on_disk(), index.len()), (512, 1));
    assert_eq!(index.remove(key(1)).map(|removed_entry| removed_entry.size), Some(512));
    assert_eq!((index.bytes_on_disk(), index.len(), index.counts().files), (0, 0, 0));
}

#[test]
fn a_claim_holds_its_entry_and_leaves_nothing_behind() {
    let index = index(100);
    let claim = index.claim(key(1), 1);
    assert_eq!(
        index.lookup(key(1), 1).map(|entry| (entry.holds, entry.claims)),
        Some((EntryState::Count, 1))
    );
    let mut removed_entries = Vec::new();
    assert_eq!(index.evict(EvictionTarget::Entries(5), 2, &mut removed_entries), Progress::Done);
    index.remove(key(1));
    assert_eq!((index.len(), removed_entries.len()), (1, 0));
    drop(claim);
    assert_eq!(index.len(), 0);
    let commit = index.claim(key(1), 1).commit().unwrap();
    drop(commit);
    assert!(index.is_empty());
}

#[test]
fn younger_of_two_fills_wins() {
    let index = index(100);
    let first = index.claim(key(1), 1);
    let second = index.claim(key(1), 1);
    let sequence = second.sequence();
    let second = second.commit().unwrap();
    // While a file is being placed, no other fill may place one.
    let third = index.claim(key(1), 1);
    assert_eq!(third.commit().unwrap_err(), ClaimRefused::Busy);
    // A fill may wait for its turn.
    let fourth = index.claim(key(1), 1);
    let Err(CommitRefused::Busy(fourth)) = fourth.try_commit() else { panic!("not its turn") };
    second.store(4096, 10, 1).unwrap();
    assert_eq!(index.peek(key(1)).map(|entry| entry.sequence), Some(sequence));
    let sequence = fourth.sequence();
    fourth.try_commit().unwrap().store(4096, 10, 1).unwrap();
    assert_eq!(first.commit().unwrap_err(), ClaimRefused::Older);
    assert_eq!(index.peek(key(1)).map(|entry| (entry.sequence, entry.claims)), Some((sequence, 0)));
}

#[test]
fn a_purge_is_not_undone_by_fills_that_began_before() {
    let index = index(100);
    store(&index, key(1), 4096, 1);
    let early = index.claim(key(1), 1);
    let late = index.claim(key(1), 1).commit().unwrap();
    let purged = index.purge(key(1));
    assert_eq!(purged.removed_entry.map(|removed_entry| removed_entry.size), Some(4096));
    assert_eq!(index.bytes_on_disk(), 0);
    let after = index.claim(key(1), 1);
    // The purge refuses a fill that has not committed yet, and one that is placing its file.
    assert_eq!(early.commit().unwrap_err(), ClaimRefused::Purged);
    drop(late.store(4096, 10, 1).unwrap_err());
    assert_eq!(index.bytes_on_disk(), 0);
    after.commit().unwrap().store(512, 10, 1).unwrap();
    assert!(index.peek(key(1)).is_some_and(|entry| entry.sequence > purged.sequence));
    // A purge of an unknown key leaves no entry.
    assert!(index.purge(key(2)).removed_entry.is_none());
    assert_eq!(index.len(), 1);
}

#[test]
fn file_removal_may_hit_the_successor() {
    let index = index(100);
    store(&index, key(1), 4096, 1);
    let mut removed_entries = Vec::new();
    index.evict(EvictionTarget::Entries(1), 1, &mut removed_entries);
    // No entry has taken the place of the removed one.
    assert!(index.unlinked(key(1)).is_none());
    // A file stored meanwhile may have been removed or not, depending on the order, so its entry goes as well.
    store(&index, key(1), 4096, 2);
    assert!(index.unlinked(key(1)).is_some());
    assert_eq!((index.len(), index.bytes_on_disk()), (0, 0));
    assert!(index.unlinked(key(1)).is_none());
    // A fill that is placing its file has no file to lose yet; the purge reports it, and refuses it.
    let commit = index.claim(key(1), 3).commit().unwrap();
    assert!(index.unlinked(key(1)).is_none());
    assert!(index.purge(key(1)).is_placing);
    drop(commit.store(4096, 10, 3).unwrap_err());
    assert!(index.is_empty());
    // A later fill is not concerned.
    let commit = index.claim(key(1), 3).commit().unwrap();
    assert!(index.unlinked(key(1)).is_none());
    drop(commit);
    store(&index, key(1), 512, 4);
    assert!(!index.purge(key(1)).is_placing);
}

#[test]
fn variants_are_purged_with_their_key() {
    let index = index(100);
    let variant = key(1).variant(b"gzip");
    let claim = index.claim(key(1), 1);
    let gzip = claim.variant(variant, 1).unwrap();
    gzip.commit().unwrap().store(512, 10, 1).unwrap();
    claim.commit().unwrap().store(512, 10, 1).unwrap();
    let is_used = || {
        let since = index.peek(key(1)).unwrap().since;
        index.peek(variant).unwrap().sequence >= since
    };
    assert!(is_used());
    // A younger one of the same key leaves it; a purge does not, also when the key is stored anew.
    store(&index, key(1), 512, 2);
    assert!(is_used());
    index.purge(key(1));
    store(&index, key(1), 512, 3);
    assert!(!is_used());
}

#[test]
fn the_oldest_go_whatever_their_shard() {
    let index = index(1000);
    for number in 0..500 {
        store(&index, key(number), 1, number);
    }
    assert!(index.lookup(key(0), 500).is_some());
    let mut removed_entries = Vec::new();
    assert_eq!(index.evict(EvictionTarget::Bytes(3), 500, &mut removed_entries), Progress::Done);
    assert_eq!(keys(&removed_entries), [key(1), key(2), key(3)]);
    removed_entries.clear();
    assert_eq!(index.expire(600, 595, &mut removed_entries), Progress::Done);
    assert_eq!(keys(&removed_entries), [key(4), key(5)]);
    // Entries expire in batches.
    removed_entries.clear();
    assert_eq!(index.expire(10_000, 10, &mut removed_entries), Progress::More);
    assert!(
        removed_entries.len() <= BATCH_ENTRIES
            && removed_entries.is_sorted_by_key(|removed_entry| removed_entry.sequence),
        "{}",
        removed_entries.len()
    );
    while index.expire(10_000, 10, &mut removed_entries) == Progress::More {}
    assert_eq!((removed_entries.len(), index.len(), index.bytes_on_disk()), (495, 0, 0));
    assert_whole(&index);
}

#[test]
fn full_zone_evicts_the_oldest_entry() {
    let index = index(10);
    for number in 0..10 {
        assert!(store(&index, key(number), 1, number).is_none());
    }
    assert_eq!(store(&index, key(10), 1, 10).map(|removed_entry| removed_entry.key), Some(key(0)));
    assert_eq!(index.count_use(key(11), 11).pushed_out.map(|removed_entry| removed_entry.key), Some(key(1)));
    // The limit is raised, then lowered: no entry is dropped at once.
    index.set_memory_max(20 * ENTRY_SIZE);
    assert!(index.count_use(key(12), 12).pushed_out.is_none());
    index.set_memory_max(5 * ENTRY_SIZE);
    let counts = index.counts();
    assert_eq!((counts.entries, counts.entries_max), (11, 5));
    let mut removed_entries = Vec::new();
    assert_eq!(index.evict(EvictionTarget::Entries(6), 12, &mut removed_entries), Progress::Done);
    assert_eq!((index.len(), removed_entries.len()), (5, 6));
    // Entries that are being filled stay above the limit, and that is no error.
    let claims: Vec<_> = (100..150).map(|number| index.claim(key(number), 13)).collect();
    assert_eq!(index.len(), 55);
    drop(claims);
    assert_eq!(index.len(), 5);
}

#[test]
fn a_million_entries_take_96_bytes_each() {
    let index = index(2_000_000);
    let count = 1_000_000;
    let find_known =
        |number| LoadedEntry { key: spread(number), sequence: 1, since: 1, size: 512, valid_until: 0 };
    for number in 0..count {
        index.load(&find_known(number), 1);
    }
    assert_eq!((index.len(), index.bytes_on_disk()), (u64::from(count), 512 * u64::from(count)));
    let per_entry = index.memory() as f64 / f64::from(count);
    println!("{per_entry:.2} bytes of memory per entry");
    assert!(per_entry <= ENTRY_SIZE as f64, "{per_entry}");
    // Memory of removed entries is released, except for a piece or two for each shard and kind.
    let mut removed_entries = Vec::new();
    while index.evict(EvictionTarget::Entries(u64::MAX), 1, &mut removed_entries) == Progress::More {
        removed_entries.clear();
    }
    assert_eq!((index.len(), index.bytes_on_disk()), (0, 0));
    assert!(index.memory() < 2_000_000, "{}", index.memory());
}

/// A key without MD5, which takes its time in a test.
fn spread(number: u32) -> Key {
    Key((u128::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_ne_bytes())
}

#[test]
fn similar_keys_are_spread() {
    let index = index(100_000);
    for number in 0..64_000u32 {
        index.count_use(Key(u128::from(number).to_ne_bytes()), 1);
    }
    for place in index.shards.iter() {
        let len = place.shard.lock().len();
        assert!((800..1200).contains(&len), "{len}");
    }
}

#[test]
fn scan_finds_remaining_entries_during_removals() {
    let index = index(10_000);
    for number in 0..5000 {
        store(&index, key(number), 1, 1);
    }
    let mut cursor = ScanCursor::default();
    let mut entries = Vec::new();
    let mut number = 0;
    while index.scan(&mut cursor, &mut entries) == Progress::More {
        // Some keys with even numbers are removed, and new ones are stored.
        index.remove(key(number * 2));
        store(&index, key(10_000 + number), 1, 1);
        number += 1;
    }
    let keys: std::collections::HashSet<_> = entries.iter().map(|entry| entry.key).collect();
    assert!((0..2500).all(|number| keys.contains(&key(number * 2 + 1))));
    assert!(number > 100 && entries.len() < 8000);
    // The scan begins again.
    entries.clear();
    while index.scan(&mut cursor, &mut entries) == Progress::More {}
    assert_eq!(entries.len() as u64, index.len());
}

#[test]
fn sweep_reports_purges_that_still_apply() {
    let index = index(100);
    store(&index, key(1), 1, 1);
    let claim = index.claim(key(2), 1);
    let stored = index.peek(key(1)).unwrap().sequence;
    let latest = index.sequence.next();
    let sweep = || {
        let mut cursor = index.sweep(latest);
        let mut entries = Vec::new();
        while index.scan(&mut cursor, &mut entries) == Progress::More {}
        entries.iter().filter_map(ScannedEntry::alive_since).min()
    };
    assert_eq!(sweep(), Some(stored));
    index.confirm(key(1), stored, latest);
    index.confirm(key(1), stored + 1, latest + 10);
    assert_eq!(index.peek(key(1)).map(|entry| (entry.sequence, entry.checked)), Some((stored, latest)));
    assert_eq!(sweep(), Some(claim.sequence()));
    // After the sweep no older fill is accepted.
    assert_eq!(claim.variant(key(3), 1).unwrap_err(), ClaimRefused::Swept);
    drop(claim);
    assert_eq!(sweep(), Some(latest));
    assert!(index.claim(key(2), 1).variant(key(3), 1).is_ok());
}

#[test]
fn loaded_entries_count_as_older_than_known_ones() {
    let index = index(100);
    let entry = LoadedEntry { key: key(1), sequence: 7, since: 5, size: 512, valid_until: 90 };
    assert!(matches!(index.load(&entry, 3), LoadOutcome::Added(None)));
    let index_entry = index.peek(key(1)).unwrap();
    assert_eq!(
        (index_entry.sequence, index_entry.checked, index_entry.since, index_entry.valid_until),
        (7, 7, 5, 90)
    );
    assert!(matches!(index.load(&LoadedEntry { size: 1024, ..entry }, 3), LoadOutcome::Known));
    // A file is added to an entry whose uses were counted, but not to one that is being filled.
    index.count_use(key(2), 3);
    assert!(matches!(index.load(&LoadedEntry { key: key(2), ..entry }, 3), LoadOutcome::Added(None)));
    let commit = index.claim(key(3), 3).commit().unwrap();
    assert!(matches!(index.load(&LoadedEntry { key: key(3), ..entry }, 3), LoadOutcome::Known));
    commit.store(512, 9, 3).unwrap();
    assert_eq!((index.bytes_on_disk(), index.counts().files), (3 * 512, 3));
}
