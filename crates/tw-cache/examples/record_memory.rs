//! Memory of an index for responses in segments, and the first lookup from a snapshot of it in a file:
//! `cargo run --release -p tw-cache --example record_memory -- 10000000 /var/tmp/pages`.

#![expect(clippy::print_stdout, reason = "a program that measures prints what it measured")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Instant;

use tw_cache::{
    Index, Key, LoadedRecord, RecordOutcome, RecordSnapshot, RecordSnapshotWriter, SNAPSHOT_BLOCK_SIZE,
    SegmentAddress, Sequence, SnapshotPart,
};

const SEED: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];

fn new_index(seed: [u64; 2]) -> Index {
    Index::new(u64::MAX / 2, seed, Arc::new(Sequence::starting(1_000, 0)))
}

/// Writes a snapshot of an index, and looks a key up by it.
fn first_lookup(index: Index, path: &str, key: Key) -> std::io::Result<()> {
    let mut writer = RecordSnapshotWriter::new(1_000, 1);
    let file = File::create(path)?;
    let began = Instant::now();
    loop {
        match writer.step(&index) {
            SnapshotPart::More => {}
            SnapshotPart::Write { offset, bytes } => file.write_all_at(&bytes, offset)?,
            SnapshotPart::Done => break,
        }
    }
    file.sync_all()?;
    let entries = writer.entries();
    let size = file.metadata()?.len();
    println!("snapshot: {entries} entries, {size} bytes, written in {:?}", began.elapsed());
    drop((file, index));
    let file = File::open(path)?;
    let began = Instant::now();
    let mut block = vec![0; SNAPSHOT_BLOCK_SIZE];
    file.read_exact_at(&mut block, 0)?;
    let snapshot = RecordSnapshot::open(&block).map_err(std::io::Error::other)?;
    let index = new_index(snapshot.seed());
    let number = snapshot.block_of(&index, key).unwrap_or(0);
    file.read_exact_at(&mut block, u64::from(number) * SNAPSHOT_BLOCK_SIZE as u64)?;
    let rows = snapshot.rows(number, &block).unwrap_or_default();
    index.restore_records(&snapshot, number, &rows, |_| true, 1_000);
    let address = index.peek(key).and_then(|entry| entry.address);
    println!("first lookup: {:?}, {address:?}", began.elapsed());
    let began = Instant::now();
    for number in 1..snapshot.blocks() {
        file.read_exact_at(&mut block, u64::from(number) * SNAPSHOT_BLOCK_SIZE as u64)?;
        let rows = snapshot.rows(number, &block).unwrap_or_default();
        index.restore_records(&snapshot, number, &rows, |_| true, 1_000);
    }
    println!("all {} entries: {:?}", index.len(), began.elapsed());
    Ok(())
}

/// Bytes of memory that the process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let index = new_index(SEED);
    let before = resident();
    let began = Instant::now();
    let mut lost = 0;
    for number in 0..count {
        let address =
            SegmentAddress { segment: (number >> 16) as u32, block: (number & 0xffff) as u32 + 1, blocks: 1 };
        let key = Key::of(&number.to_le_bytes());
        let record = LoadedRecord { key, sequence: number, address, valid_until: 0 };
        if let RecordOutcome::Outdated(removed_entry) = index.load_record(&record, 1_000) {
            removed_entry.deleted();
            lost += 1;
        }
    }
    let loaded = began.elapsed();
    let memory = resident() - before;
    let began = Instant::now();
    let found_value =
        (0..count).filter(|number| index.lookup(Key::of(&number.to_le_bytes()), 1_000).is_some()).count();
    println!(
        "{count} entries: {:.2} bytes each, {:.2} as counted, {:.0} ns to add, {:.0} ns to find, {found_value} found, {lost} share a tag",
        memory as f64 / count as f64,
        index.memory() as f64 / count as f64,
        loaded.as_nanos() as f64 / count as f64,
        began.elapsed().as_nanos() as f64 / count as f64,
    );
    if let Some(path) = std::env::args().nth(2)
        && let Err(error) = first_lookup(index, &path, Key::of(&(count / 2).to_le_bytes()))
    {
        println!("{path}: {error}");
    }
}
