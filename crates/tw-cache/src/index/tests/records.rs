//! Entries of records, which are compact as long as nothing happens to them.

use std::collections::HashMap;

use super::*;
use crate::snapshot::{BLOCK_SIZE, RecordSnapshot, RecordSnapshotWriter, SnapshotEntry, SnapshotPart};

fn at(number: u32) -> SegmentAddress {
    SegmentAddress { segment: number >> 10, block: (number & 1023) + 1, blocks: number % 256 + 1 }
}

/// Fetches and stores a record without anything in between.
fn store_record(index: &Arc<Index>, key: Key, address: SegmentAddress, now: u32) -> Option<RemovedEntry> {
    index.claim(key, now).commit().unwrap().store_at(address.into(), now + 60, now).unwrap().replaced
}

fn compact(index: &Index) -> u64 {
    index.compact.load(Relaxed)
}

fn slots(index: &Index) -> u64 {
    index.slots()
}

/// Two keys that share a compact entry.
fn twins(index: &Index) -> (Key, Key) {
    // The tag and the shard are the 42 upper bits of the hash; a birthday would take millions, so the keys are made.
    let Seed([a, b]) = index.seed;
    let of = |low: u64, high: u64| Key((u128::from(low ^ a) | u128::from(high ^ b) << 64).to_ne_bytes());
    // Products 1 · x: the hash is x, so the lower 22 bits do not count.
    (of(1, 5 << 40 | 1), of(1, 5 << 40 | 2))
}

#[test]
fn plain_records_take_no_slot() {
    let index = index(100);
    for number in 0..50 {
        assert!(store_record(&index, key(number), at(number), 10).is_none());
    }
    assert_eq!((compact(&index), slots(&index), index.counts().files), (50, 0, 50));
    let entry = index.lookup(key(7), 11).unwrap();
    assert_eq!((entry.holds, entry.address, entry.hits), (EntryState::File, Some(at(7)), 0));
    assert_eq!(index.lookup(key(7), 12).map(|again| (again.hits, again.sequence)), Some((1, entry.sequence)));
    assert_eq!(index.last_use_of_segment(0), 12);
    // A fill makes a slot of it, which has the same number.
    let claim = index.claim(key(7), 13);
    let claimed = index.peek(key(7)).unwrap();
    assert_eq!((claimed.sequence, claimed.address, claimed.claims), (entry.sequence, Some(at(7)), 1));
    assert_eq!((compact(&index), slots(&index)), (49, 1));
    drop(claim);
    assert_eq!((compact(&index), slots(&index)), (50, 0));
    // Validated in place: another version at the same address.
    let commit = index.claim(key(7), 14).commit().unwrap();
    commit.refresh_at(at(7), 99, 14).unwrap();
    assert_ne!(index.peek(key(7)).map(|entry| entry.sequence), Some(entry.sequence));
    assert!(index.remove_if_sequence(key(7), entry.sequence).is_none());
    let replaced = store_record(&index, key(7), at(60), 15).unwrap();
    assert_eq!((replaced.key, replaced.address), (key(7), Some(at(7))));
    assert_eq!(
        index.purge(key(7)).removed_entry.and_then(|removed_entry| removed_entry.address),
        Some(at(60))
    );
    assert_eq!((index.peek(key(7)), index.len()), (None, 49));
    // Entries counted for `min_uses`, files and responses with variants need full slots.
    index.count_use(key(100), 16);
    store(&index, key(101), 4096, 16);
    let commit = index.claim(key(102), 16).commit().unwrap();
    commit.set_varies(true);
    let since = commit.sequence();
    commit.store_at(at(70).into(), 99, 16).unwrap();
    assert_eq!((compact(&index), slots(&index)), (49, 3));
    store_record(&index, key(102), at(71), 17);
    assert_eq!(index.peek(key(102)).map(|entry| entry.since), Some(since));
    assert_whole(&index);
}

#[test]
fn younger_fill_wins_also_over_a_compact_entry() {
    let index = index(100);
    let main = key(1);
    let variant = key(2);
    let early = index.claim(main, 1);
    store_record(&index, variant, at(1), 1);
    assert_eq!(compact(&index), 1);
    let late = early.variant(variant, 2).unwrap();
    assert_eq!(late.commit().unwrap_err(), ClaimRefused::Older);
    let after = index.claim(main, 1);
    assert!(after.variant(variant, 2).unwrap().commit().is_ok());
}

#[test]
fn keys_that_share_a_tag_do_not_push_each_other_out_for_ever() {
    let index = index(100);
    let (one, other) = twins(&index);
    assert!(index.share_record_entry(one, other));
    store_record(&index, one, at(1), 1);
    // Reading the record shows that it belongs to another key.
    assert_eq!(index.lookup(other, 2).and_then(|entry| entry.address), Some(at(1)));
    index.set_apart(other, at(1), 2);
    assert_eq!(index.peek(other).map(|entry| entry.holds), Some(EntryState::Count));
    store_record(&index, other, at(2), 3);
    let address = |key| index.peek(key).and_then(|entry| entry.address);
    assert_eq!((address(one), address(other)), (Some(at(1)), Some(at(2))));
    store_record(&index, one, at(3), 4);
    assert_eq!((address(one), address(other)), (Some(at(3)), Some(at(2))));
    // A fill that begins before the record was read takes the entry, and gives it back.
    index.remove(other);
    let claim = index.claim(other, 5);
    assert_eq!((address(one), address(other)), (None, Some(at(3))));
    index.set_apart(other, at(3), 5);
    assert_eq!((address(one), address(other)), (Some(at(3)), None));
    drop(claim);
    assert_whole(&index);
}

#[test]
fn sweep_finds_entries_that_change_their_form() {
    let index = index(1000);
    for number in 0..200 {
        store_record(&index, key(number), at(number), 1);
    }
    let latest = index.sequence.next();
    store_record(&index, key(500), at(500), 1);
    let mut cursor = index.sweep(latest);
    let mut records = Vec::new();
    let mut entries = Vec::new();
    // The entry is a slot before the scan of compact entries reaches it, and a compact entry afterwards.
    let claim = index.claim(key(3), 2);
    while index.scan_records(&mut cursor, &mut records) == Progress::More {}
    drop(claim);
    let mut cursor = ScanCursor::default();
    while index.scan(&mut cursor, &mut entries) == Progress::More {}
    let addresses: Vec<_> = entries.iter().filter_map(|entry| entry.state.address).collect();
    assert!(addresses.contains(&at(3)) && addresses.len() == 1, "{addresses:?}");
    assert_eq!(records.len(), 200);
    assert!(records.iter().all(
        |record| (record.checked < latest) == (record.address != at(500)) || record.address.segment == 0
    ));
    // Afterwards it is compact again, and known to be checked.
    index.confirm_all(latest);
    index.end_sweep();
    let mut cursor = ScanCursor::default();
    while index.pack(&mut cursor) == Progress::More {}
    assert_eq!((slots(&index), compact(&index)), (0, 201));
    assert!((0..200).all(|number| index.peek(key(number)).unwrap().checked >= latest));
    // A record that does not exist, and one of a segment that is removed.
    assert!(
        index.is_record_of(&records[0], key((0..200).find(|n| at(*n) == records[0].address).unwrap_or(500)))
    );
    index.forget_record(&records[0]);
    assert_eq!(
        index.take_record(&records[1]).and_then(|removed_entry| removed_entry.address),
        Some(records[1].address)
    );
    assert!(index.take_record(&records[1]).is_none());
    assert_eq!(compact(&index), 199);
    assert_whole(&index);
}

fn snapshot_of(index: &Index) -> Vec<u8> {
    let mut writer = RecordSnapshotWriter::new(5, 77);
    let mut file = Vec::new();
    loop {
        match writer.step(index) {
            SnapshotPart::More => {}
            SnapshotPart::Write { offset, bytes } => {
                let end = offset as usize + bytes.len();
                file.resize(file.len().max(end), 0);
                file[offset as usize..end].copy_from_slice(&bytes);
            }
            SnapshotPart::Done => return file,
        }
    }
}

#[test]
fn snapshot_is_read_one_block_at_a_time() {
    let index = index(1_000_000);
    for number in 0..30_000 {
        store_record(&index, key(number), at(number), 1);
    }
    let commit = index.claim(key(30_000), 1).commit().unwrap();
    commit.set_varies(true);
    commit.store_at(at(30_000).into(), 9, 1).unwrap();
    let file = snapshot_of(&index);
    let snapshot = RecordSnapshot::open(&file[..BLOCK_SIZE]).unwrap();
    assert_eq!((snapshot.entries(), snapshot.seed()), (30_001, SEED));
    assert_eq!(snapshot.blocks() as usize * BLOCK_SIZE, file.len());
    let block_at = |block: u32| &file[block as usize * BLOCK_SIZE..(block as usize + 1) * BLOCK_SIZE];
    let next = self::index(1_000_000);
    // Segment 3 does not exist any more.
    let restore = |block: u32| {
        let rows = snapshot.rows(block, block_at(block)).unwrap();
        next.restore_records(&snapshot, block, &rows, |segment| segment != 3, 9)
    };
    for number in (0..=30_000).step_by(1000) {
        if let Some(block) = snapshot.block_of(&next, key(number)) {
            assert!(restore(block) > 0);
            assert_eq!(restore(block), 0);
        }
        assert_eq!(snapshot.block_of(&next, key(number)), None);
        let address = next.peek(key(number)).and_then(|entry| entry.address);
        assert_eq!(address, (number >> 10 != 3).then(|| at(number)));
    }
    assert!(next.len() < 10_000, "{}", next.len());
    // A response that was stored meanwhile stays.
    store_record(&next, key(77), at(40_000), 9);
    (1..snapshot.blocks()).for_each(|block| _ = restore(block));
    assert_eq!(next.peek(key(77)).and_then(|entry| entry.address), Some(at(40_000)));
    assert_eq!(next.len(), 30_001 - 1024);
    // Records that are found by their segments stay, the others go.
    for number in 0..10_000 {
        let record = LoadedRecord { key: key(number), sequence: 5, address: at(number), valid_until: 0 };
        match next.load_record(&record, 9) {
            RecordOutcome::Known => assert_ne!(number >> 10, 3),
            RecordOutcome::Added(_) => assert_eq!(number >> 10, 3),
            RecordOutcome::Outdated(removed_entry) => {
                assert_eq!((number, removed_entry.address), (77, Some(at(77))))
            }
        }
    }
    let mut cursor = ScanCursor::default();
    while next.forget_unseen_records(&mut cursor) == Progress::More {}
    assert_eq!(next.len(), 10_000);
    assert_whole(&next);
}

#[test]
fn snapshot_of_an_earlier_version_has_records_with_their_keys() {
    let index = index(1000);
    let entry = |number: u32| SnapshotEntry {
        key: key(number),
        location: Location::record(at(number)).to_bits(),
        valid_until: 77,
        idle_s: 5,
        uses: 3,
        lately: 2,
        is_main: false,
    };
    for number in 0..100 {
        assert_eq!(index.restore(&entry(number), 100), RestoreOutcome::Added);
        assert_eq!(index.restore(&entry(number), 100), RestoreOutcome::Known);
    }
    assert_eq!((compact(&index), slots(&index)), (100, 0));
    assert_eq!(index.uses_of_record(key(7), at(7)), Some(2));
    // The segment has the sequence number; until it is read, every purge may concern the record.
    assert_eq!(
        index.peek(key(7)).map(|index_entry| (index_entry.address, index_entry.checked)),
        Some((Some(at(7)), 0))
    );
    let record = LoadedRecord { key: key(7), sequence: 55, address: at(7), valid_until: 77 };
    assert!(matches!(index.load_record(&record, 100), RecordOutcome::Known));
    index.set_segment_floor(0, 55);
    assert_eq!(index.peek(key(7)).map(|index_entry| index_entry.checked), Some(55));
    let mut cursor = ScanCursor::default();
    while index.forget_unseen_records(&mut cursor) == Progress::More {}
    assert_eq!(index.len(), 1);
    assert_whole(&index);
}

#[test]
fn damaged_block_has_no_rows() {
    let index = index(10_000);
    for number in 0..500 {
        store_record(&index, key(number), at(number), 1);
    }
    let file = snapshot_of(&index);
    let snapshot = RecordSnapshot::open(&file).unwrap();
    let one = file[BLOCK_SIZE..2 * BLOCK_SIZE].to_vec();
    let two = &file[2 * BLOCK_SIZE..3 * BLOCK_SIZE];
    assert!(snapshot.rows(1, &one).is_some() && snapshot.rows(2, two).is_some());
    // Invalid: another block, a short one, and any changed byte.
    assert!(snapshot.rows(1, two).is_none() && snapshot.rows(1, &one[..4000]).is_none());
    for byte in [0, 4, 8, 12, 14, 16, 300, 4095] {
        let mut damaged = one.clone();
        damaged[byte] ^= 4;
        assert!(snapshot.rows(1, &damaged).is_none(), "{byte}");
    }
    for byte in [4, 16, 24, 30, 100] {
        let mut damaged = file[..BLOCK_SIZE].to_vec();
        damaged[byte] ^= 4;
        assert!(RecordSnapshot::open(&damaged).is_err(), "{byte}");
    }
}

#[test]
fn memory_is_limited_by_removing_segments() {
    let index = Arc::new(Index::new(16 << 10, SEED, Arc::new(Sequence::starting(1000, 0))));
    for number in 0..900 {
        store_record(&index, key(number), at(number), 1);
    }
    assert!(!index.has_too_many_records());
    for number in 900..1100 {
        store_record(&index, key(number), at(number), 1);
    }
    // Records are not evicted one by one, but with their segment.
    assert!(index.has_too_many_records());
    assert_eq!(compact(&index), 1100);
    let counts = index.counts();
    assert!(counts.entries > counts.entries_max);
    // Slots have their share all the same.
    for number in 0..40 {
        index.count_use(key(5000 + number), 2);
    }
    assert_eq!(slots(&index), (16 << 10) / SLOTS_SHARE / ENTRY_SIZE);
}

/// Random operations beside a plain map of addresses.
#[test]
fn index_of_records_equals_a_plain_map() {
    let index = index(100_000);
    let mut model = HashMap::new();
    let mut claims = Vec::new();
    let mut moves = Vec::new();
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    for number in 0..60_000_u32 {
        let key = key(next(700) as u32);
        match next(12) {
            0..3 => {
                if let Ok(commit) = index.claim(key, number).commit() {
                    commit.set_varies(next(20) == 0);
                    if let Ok(stored) = commit.store_at(at(number).into(), 0, number) {
                        let before = model.insert(key, at(number));
                        assert_eq!(
                            stored.replaced.map(|removed_entry| removed_entry.address),
                            before.map(Some)
                        );
                    }
                }
            }
            3 => assert_eq!(
                index.purge(key).removed_entry.map(|removed_entry| removed_entry.address),
                model.remove(&key).map(Some)
            ),
            4 => claims.push(index.claim(key, number)),
            5 if !claims.is_empty() => drop(claims.swap_remove(next(claims.len() as u64) as usize)),
            6 => {
                let moving = model.get(&key).and_then(|address| index.claim_move(key, *address, number));
                moves.extend(moving);
            }
            7 if !moves.is_empty() => {
                let moving = moves.swap_remove(next(moves.len() as u64) as usize);
                let key = moving.key();
                let is_known = model.contains_key(&key);
                match moving.finish(at(number), number.into()) {
                    Ok(removed_entry) => assert_eq!(removed_entry.address, model.insert(key, at(number))),
                    Err(_) => assert!(!is_known),
                }
            }
            8 => _ = index.count_use(key, number),
            9 => {
                let entry = index.peek(key).filter(|index_entry| index_entry.holds == EntryState::File);
                let removed_entry =
                    entry.and_then(|index_entry| index.remove_if_sequence(key, index_entry.sequence));
                assert_eq!(
                    removed_entry.map(|removed_entry| removed_entry.address),
                    model.remove(&key).map(Some)
                );
            }
            _ => {
                let segment_address = index.lookup(key, number).and_then(|index_entry| index_entry.address);
                assert_eq!(segment_address, model.get(&key).copied());
            }
        }
        if number % 5000 == 0 {
            assert_whole(&index);
        }
    }
    drop((claims, moves));
    assert_eq!(index.counts().files, model.len() as u64);
    assert_eq!(index.counts().bytes, model.values().map(|address| address.size()).sum::<u64>());
    assert!(compact(&index) > slots(&index) / 2);
    assert_whole(&index);
}
