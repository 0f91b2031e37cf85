//! Cost of looking up an index entry and of checking it against purges.
//!
//! `cargo run --profile profiling -p tw-cache --example look -- [ENTRIES]`

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use tw_cache::{Index, Key, LoadedEntry, Purge, Purges, Subject, Tag};

const ROUNDS: u32 = 200_000;

/// Runs `work` with numbers below `entries` in five batches and prints the best batch: the others were disturbed.
fn time<R>(what: &str, entries: u32, mut work: impl FnMut(u32) -> R) {
    let mut number = 1u32;
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                black_box(work(((u64::from(number) * u64::from(entries)) >> 32) as u32));
            }
            start.elapsed().as_nanos() as u64 / u64::from(ROUNDS)
        })
        .min()
        .unwrap_or(0);
    show(what, best);
}

#[expect(clippy::print_stdout, reason = "a program that measures prints what it measured")]
fn show(what: &str, ns: u64) {
    println!("{ns:6} ns  {what}");
}

/// A key without MD5, which is not measured here.
fn key(number: u32) -> Key {
    Key((u128::from(number) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835).to_ne_bytes())
}

fn main() {
    let entries = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(1_000_000);
    let purges = Purges::new(1000);
    let index = Arc::new(Index::new(u64::MAX, [3, 5], Arc::clone(purges.sequence())));
    let sequence = purges.sequence().next();
    for number in 0..entries {
        let entry = LoadedEntry { key: key(number), sequence, since: sequence, size: 4096, valid_until: 0 };
        index.load(&entry, 1);
    }
    show("bytes of memory per entry, not ns", index.memory() / u64::from(entries.max(1)));
    time("look, 1000 entries in turn", 1000, |number| index.lookup(key(number), 1));
    time("look, all entries", entries, |number| index.lookup(key(number), 1));
    time("look, none", entries, |number| index.lookup(key(!number), 1));

    let tags = [Tag(1), Tag(2)];
    let text = b"https://example.com/pictures/2026/11/a.jpg";
    let subject = Subject { key: Key::of(text), text, tags: &tags };
    time("verdict, no purges", 1, |_| purges.verdict(sequence, &subject));
    for number in 0..1000 {
        purges.purge_prefix(format!("https://example.com/pages/{number}/").as_bytes(), Purge::Hard);
        purges.purge_tag(Tag(100 + number), Purge::Hard);
    }
    time("verdict, two tags, 1000 purges of prefixes and tags", 1, |_| purges.verdict(sequence, &subject));
    let latest = purges.latest();
    time("verdict, confirmed", 1, |_| purges.verdict(latest, &subject));
    time("claim, commit, store", entries, |number| {
        index.claim(key(number), 1).commit().map(|commit| commit.store(4096, 1, 1))
    });
}
