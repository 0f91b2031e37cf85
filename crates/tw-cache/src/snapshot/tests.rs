use std::sync::Arc;

use super::block::{ROWS_PER_BLOCK, STARTS_PER_BLOCK};
use super::*;
use crate::{
    EvictionPolicy, EvictionTarget, Index, LoadedEntry, Progress, RestoreOutcome, ScanCursor, Sequence,
};
use tw_testkit::Random;

const NOW: u32 = 1_800_000_000;

fn index(entries_max: u64, policy: EvictionPolicy) -> Arc<Index> {
    let index = Arc::new(Index::new(entries_max * 96, [3, 5], Arc::new(Sequence::starting(1000, 0))));
    index.set_policy(policy);
    index
}

fn key(number: u32) -> Key {
    Key::of(&number.to_le_bytes())
}

fn store(index: &Arc<Index>, number: u32, used: u32) {
    let claim = index.claim(key(number), used);
    assert!(claim.commit().unwrap().store(u64::from(number) + 4096, NOW + 60, used).unwrap().is_none());
}

/// Index with entries that were last used one second after the other, the last one at `NOW - 1`.
fn filled(count: u32, policy: EvictionPolicy) -> Arc<Index> {
    let index = index(u64::from(count) * 2, policy);
    for number in 0..count {
        store(&index, number, NOW - count + number);
    }
    index
}

/// The file of a snapshot.
fn write(index: &Index, now: u32) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(now, 77);
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

/// The entries of a file, and the number of damaged blocks.
fn read(file: &[u8]) -> Result<(Vec<SnapshotEntry>, u64), SnapshotError> {
    let mut reader = SnapshotReader::open(file)?;
    let mut entries = Vec::new();
    loop {
        match reader.step() {
            SnapshotStep::Read { offset, len } => {
                assert!(len > 0 && len % BLOCK_SIZE == 0);
                let begin = file.len().min(offset as usize);
                reader.supply(&file[begin..file.len().min(begin + len)]);
            }
            SnapshotStep::Entry(entry) => entries.push(entry),
            SnapshotStep::Done => return Ok((entries, reader.damaged_blocks())),
        }
    }
}

#[test]
fn snapshot_has_all_entries_the_last_used_first() {
    for count in [0, 1, 115, 116, 117, 7424, 7425, 30_000] {
        let index = filled(count, EvictionPolicy::Lru);
        let file = write(&index, NOW);
        let (entries, damaged) = read(&file).unwrap();
        assert_eq!((entries.len(), damaged), (count as usize, 0));
        assert_eq!(SnapshotReader::open(&file).unwrap().entries(), u64::from(count));
        for (nth, entry) in entries.iter().enumerate() {
            let number = count - 1 - nth as u32;
            assert_eq!((entry.key, entry.idle_s), (key(number), nth as u32 + 1));
            assert_eq!((entry.location, entry.valid_until), (u64::from(number) + 4096, NOW + 60));
        }
    }
}

#[test]
fn entries_without_a_file_are_not_in_a_snapshot() {
    let index = filled(10, EvictionPolicy::Lru);
    index.count_use(key(50), NOW);
    let _held = index.claim(key(51), NOW);
    drop(index.remove(key(3)));
    assert_eq!(read(&write(&index, NOW)).unwrap().0.len(), 9);
}

#[test]
fn restored_index_evicts_in_the_same_order() {
    let before = filled(2000, EvictionPolicy::Lru);
    before.lookup(key(7), NOW);
    let (entries, _) = read(&write(&before, NOW)).unwrap();
    // An hour later: the time in between does not count.
    let after = index(4000, EvictionPolicy::Lru);
    for entry in &entries {
        assert_eq!(after.restore(entry, NOW + 3600), RestoreOutcome::Added);
        assert_eq!(after.restore(entry, NOW + 3600), RestoreOutcome::Known);
    }
    assert_eq!((after.len(), after.bytes_on_disk()), (2000, before.bytes_on_disk()));
    assert_eq!(after.peek(key(1999)).map(|index_entry| index_entry.used), Some(NOW + 3599));
    let evicted = |index: &Index, now| {
        let mut removed_entries = Vec::new();
        while index.evict(EvictionTarget::Entries(100), now, &mut removed_entries) == Progress::More
            && removed_entries.len() < 1000
        {}
        removed_entries.into_iter().map(|removed_entry| removed_entry.key).collect::<Vec<_>>()
    };
    assert_eq!(evicted(&before, NOW + 1), evicted(&after, NOW + 3601));
    assert!(before.peek(key(7)).is_some() && after.peek(key(7)).is_some());
}

#[test]
fn inactive_time_goes_on_where_it_stood() {
    let (entries, _) = read(&write(&filled(100, EvictionPolicy::Lru), NOW)).unwrap();
    let after = index(200, EvictionPolicy::Lru);
    let later = NOW + 100_000;
    entries.iter().for_each(|entry| assert_eq!(after.restore(entry, later), RestoreOutcome::Added));
    let mut removed_entries = Vec::new();
    while after.expire(later, 61, &mut removed_entries) == Progress::More {}
    // Numbers 0 to 39 were used 61 seconds before the snapshot, or earlier.
    assert_eq!((removed_entries.len(), after.len()), (40, 60));
}

#[test]
fn entries_of_requests_are_younger_than_restored_ones() {
    let (entries, _) = read(&write(&filled(50, EvictionPolicy::Lru), NOW)).unwrap();
    let after = index(200, EvictionPolicy::Lru);
    store(&after, 1000, NOW);
    store(&after, 30, NOW);
    after.count_use(key(31), NOW);
    for entry in &entries {
        let expected = if entry.key == key(30) { RestoreOutcome::Known } else { RestoreOutcome::Added };
        assert_eq!(after.restore(entry, NOW), expected);
    }
    assert_eq!(after.counts().files, 51);
    let mut removed_entries = Vec::new();
    while after.evict(EvictionTarget::Entries(48), NOW, &mut removed_entries) == Progress::More
        && removed_entries.len() < 48
    {}
    let rest: Vec<u32> = (0..50).chain([1000]).filter(|n| after.peek(key(*n)).is_some()).collect();
    assert_eq!(rest, [30, 31, 1000]);
}

#[test]
fn index_with_less_room_takes_the_entries_used_last() {
    let (entries, _) = read(&write(&filled(1000, EvictionPolicy::Lru), NOW)).unwrap();
    let after = index(300, EvictionPolicy::Lru);
    let added = entries.iter().take_while(|entry| after.restore(entry, NOW) == RestoreOutcome::Added).count();
    assert_eq!((added, after.len()), (300, 300));
    assert!((700..1000).all(|number| after.peek(key(number)).is_some()));
}

#[test]
fn main_queue_of_s3fifo_is_restored() {
    let before = filled(100, EvictionPolicy::S3Fifo);
    for number in 0..40 {
        before.lookup(key(number), NOW);
        before.lookup(key(number), NOW);
    }
    let mut removed_entries = Vec::new();
    while before.evict(EvictionTarget::Entries(50), NOW, &mut removed_entries) == Progress::More
        && removed_entries.len() < 50
    {}
    let (entries, _) = read(&write(&before, NOW)).unwrap();
    let main = entries.iter().filter(|entry| entry.is_main).count();
    assert!(main > 0 && main < entries.len(), "{main}");
    for policy in [EvictionPolicy::S3Fifo, EvictionPolicy::Lru] {
        let after = index(200, policy);
        entries.iter().for_each(|entry| assert_eq!(after.restore(entry, NOW), RestoreOutcome::Added));
        let copied = read(&write(&after, NOW)).unwrap().0;
        let expected = if policy == EvictionPolicy::S3Fifo { main } else { 0 };
        assert_eq!(copied.iter().filter(|entry| entry.is_main).count(), expected);
    }
}

#[test]
fn files_that_were_not_seen_are_reported() {
    let (entries, _) = read(&write(&filled(100, EvictionPolicy::Lru), NOW)).unwrap();
    let after = index(200, EvictionPolicy::Lru);
    entries.iter().for_each(|entry| assert_eq!(after.restore(entry, NOW), RestoreOutcome::Added));
    for number in 0..97 {
        let loaded_entry = LoadedEntry { key: key(number), sequence: 0, since: 0, size: 512, valid_until: 0 };
        assert!(matches!(after.load(&loaded_entry, NOW), crate::LoadOutcome::Known));
    }
    // A fill puts another file there.
    store(&after, 98, NOW);
    let mut cursor = ScanCursor::default();
    let mut unseen = Vec::new();
    while after.unseen(&mut cursor, &mut unseen) == Progress::More {}
    let mut keys: Vec<Key> = unseen.iter().map(|entry| entry.key).collect();
    keys.sort();
    let mut expected = [key(97), key(99)];
    expected.sort();
    assert_eq!(keys, expected);
    assert_eq!(after.peek(key(5)).map(|index_entry| index_entry.size), Some(512));
    for entry in unseen {
        after.remove_missing(entry.key, entry.sequence);
    }
    assert_eq!(after.len(), 98);
}

#[test]
fn restored_entry_has_no_bound_for_variants_until_it_is_stored() {
    let (entries, _) = read(&write(&filled(1, EvictionPolicy::Lru), NOW)).unwrap();
    let after = index(10, EvictionPolicy::Lru);
    assert_eq!(after.restore(&entries[0], NOW), RestoreOutcome::Added);
    assert_eq!(after.peek(key(0)).map(|entry| (entry.sequence, entry.since)), Some((0, 0)));
    store(&after, 0, NOW);
    let entry = after.peek(key(0)).unwrap();
    assert!(entry.sequence > 0 && entry.since == entry.sequence);
}

#[test]
fn damaged_block_costs_its_own_entries() {
    let index = filled(9000, EvictionPolicy::Lru);
    let file = write(&index, NOW);
    let (all, _) = read(&file).unwrap();
    let mut random = Random::new(1);
    let blocks = file.len() / BLOCK_SIZE;
    for block in 1..blocks {
        let mut damaged = file.clone();
        let at = block * BLOCK_SIZE + random.below(BLOCK_SIZE);
        damaged[at] ^= 1 << random.below(8);
        let (entries, count) = read(&damaged).unwrap();
        assert_eq!(count, 1, "block {block}");
        let is_table = block == blocks - 1;
        let least = if is_table { 0 } else { all.len() - ROWS_PER_BLOCK };
        assert!(entries.len() >= least && entries.len() < all.len(), "block {block}: {}", entries.len());
        // The remaining entries are among those written, in the same order.
        let mut snapshot_entries = all.iter();
        assert!(entries.iter().all(|entry| snapshot_entries.any(|other| other == entry)));
    }
    let mut damaged = file.clone();
    damaged[30] ^= 1;
    assert_eq!(read(&damaged).err(), Some(SnapshotError::Checksum));
}

#[test]
fn blocks_of_another_snapshot_are_not_taken() {
    let index = filled(1000, EvictionPolicy::Lru);
    let file = write(&index, NOW);
    let mut other = Vec::new();
    let mut writer = SnapshotWriter::new(NOW, 78);
    loop {
        match writer.step(&index) {
            SnapshotPart::More => {}
            SnapshotPart::Write { offset, bytes } => {
                other.resize(other.len().max(offset as usize + bytes.len()), 0);
                other[offset as usize..offset as usize + bytes.len()].copy_from_slice(&bytes);
            }
            SnapshotPart::Done => break,
        }
    }
    let mixed =
        [&file[..2 * BLOCK_SIZE], &other[2 * BLOCK_SIZE..3 * BLOCK_SIZE], &file[3 * BLOCK_SIZE..]].concat();
    let (entries, damaged) = read(&mixed).unwrap();
    assert_eq!((entries.len(), damaged), (1000 - ROWS_PER_BLOCK, 1));
}

#[test]
fn cut_and_foreign_files_are_errors_or_fewer_entries() {
    let file = write(&filled(5000, EvictionPolicy::Lru), NOW);
    for len in (0..file.len()).step_by(997) {
        match read(&file[..len]) {
            // The table is at the end.
            Ok((entries, damaged)) => assert!(entries.is_empty() && damaged == 1),
            Err(error) => assert!(len < BLOCK_SIZE, "{len}: {error}"),
        }
    }
    assert_eq!(read(b"").err(), Some(SnapshotError::NotOne));
    assert_eq!(read(&[0; 3 * BLOCK_SIZE]).err(), Some(SnapshotError::NotOne));
    let mut newer = file;
    newer[24] = 2;
    assert_eq!(read(&newer).err(), Some(SnapshotError::Version(2)));
}

#[test]
fn random_bytes_behind_valid_checksums_are_harmless() {
    // A faulty writer could make such files.
    let mut random = Random::new(2);
    for _ in 0..300 {
        let mut file = write(&filled(500, EvictionPolicy::Lru), NOW);
        for _ in 0..random.below(4) + 1 {
            let block = random.below(file.len() / BLOCK_SIZE) * BLOCK_SIZE;
            let at = block + 4 + random.below(120);
            file[at] = random.below(256) as u8;
            let checksum = crc32fast::hash(&file[block + 4..block + BLOCK_SIZE]);
            file[block..block + 4].copy_from_slice(&checksum.to_le_bytes());
        }
        let after = index(1000, EvictionPolicy::S3Fifo);
        if let Ok((entries, _)) = read(&file) {
            entries.iter().for_each(|entry| _ = after.restore(entry, NOW));
        }
    }
}

#[test]
fn table_of_many_runs_takes_many_blocks() {
    // Runs of one entry, as a writer would make them that is asked for a part after each.
    let header = block::Header { stamp: 5, taken: NOW, entries: 3000, table: 3001, runs: 3000 };
    let mut file = block::encode_header(&header);
    let entry = read(&write(&filled(1, EvictionPolicy::Lru), NOW)).unwrap().0[0];
    for number in 0..3000 {
        let entry = SnapshotEntry { key: key(number), idle_s: (number * 7919) % 3001, ..entry };
        file.extend(block::encode_rows(number + 1, &header, &[entry]));
    }
    let starts: Vec<u32> = (1..=3000).collect();
    for (nth, starts) in starts.chunks(STARTS_PER_BLOCK).enumerate() {
        file.extend(block::encode_table(3001 + nth as u32, &header, starts));
    }
    let (entries, damaged) = read(&file).unwrap();
    assert_eq!((entries.len(), damaged), (3000, 0));
    assert!(entries.is_sorted_by_key(|entry| entry.idle_s));
}
