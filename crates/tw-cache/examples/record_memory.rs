//! Memory of an index for responses in segments: `cargo run --release -p tw-cache --example record_memory -- 10000000`.

use std::sync::Arc;
use std::time::Instant;

use tw_cache::{Index, Key, LoadedRecord, RecordOutcome, SegmentAddress, Sequence};

/// Bytes of memory that the process has.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Rss:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn main() {
    let count: u64 = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1_000_000);
    let index = Index::new(u64::MAX / 2, [0x243f_6a88, 0x1319_8a2e], Arc::new(Sequence::starting(1_000, 0)));
    let (before, began) = (resident(), Instant::now());
    let mut lost = 0;
    for number in 0..count {
        let address =
            SegmentAddress { segment: (number >> 16) as u32, block: (number & 0xffff) as u32 + 1, blocks: 1 };
        let key = Key::of(&number.to_le_bytes());
        let known = LoadedRecord { key, sequence: number, address, valid_until: 0 };
        if let RecordOutcome::Outdated(gone) = index.load_record(&known, 1_000) {
            gone.deleted();
            lost += 1;
        }
    }
    let (loaded, memory) = (began.elapsed(), resident() - before);
    let began = Instant::now();
    let found =
        (0..count).filter(|number| index.lookup(Key::of(&number.to_le_bytes()), 1_000).is_some()).count();
    println!(
        "{count} entries: {:.2} bytes each, {:.2} as counted, {:.0} ns to add, {:.0} ns to find, {found} found, {lost} share a tag",
        memory as f64 / count as f64,
        index.memory() as f64 / count as f64,
        loaded.as_nanos() as f64 / count as f64,
        began.elapsed().as_nanos() as f64 / count as f64,
    );
}
