//! Invariants for any `charset_map` and any text: no panic, the same text however it is split, bounded growth, and
//! unmapped ASCII is kept.
//!
//! The first line is a table of words, two for each character, and then comes the text.

use super::table::{CharsetMap, Recoder, RecodingTable};

/// Largest size of one converted byte: `&#55296;` for a sequence, `?` for an invalid one, three bytes of UTF-8.
const GROWTH_MAX: usize = 4;
/// Additional size of a text of one sequence.
const MORE: usize = 8;

pub(crate) fn check(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let (lines, text) = (&data[..end], data.get(end + 1..).unwrap_or_default());
    let words: Vec<&[u8]> = lines.split(|byte| *byte == b' ').collect();
    for mut map in [CharsetMap::of_bytes(), CharsetMap::of_utf8()] {
        for pair in words.chunks_exact(2) {
            if let Err(word) = map.add(pair[0], pair[1]) {
                assert!(pair.contains(&word));
            }
        }
        for table in [&map.forth, &map.back] {
            split(table, text);
        }
    }
    let plain = CharsetMap::of_utf8();
    let ascii: Vec<u8> = text.iter().copied().filter(u8::is_ascii).collect();
    assert_eq!(recoded(&plain.forth, &[&ascii]), ascii);
    assert_eq!(recoded(&plain.back, &[&ascii]), ascii);
}

fn split(table: &RecodingTable, text: &[u8]) {
    let whole = recoded(table, &[text]);
    assert!(whole.len() <= text.len() * GROWTH_MAX + MORE);
    if let RecodingTable::Bytes(_) = table {
        assert_eq!(whole.len(), text.len());
    }
    let step = (text.len() / 100).max(1);
    for at in (0..text.len()).step_by(step) {
        let (first, second) = text.split_at(at);
        assert_eq!(recoded(table, &[first, second]), whole, "split at {at}");
    }
    let bytes: Vec<&[u8]> = text.chunks(1).collect();
    assert_eq!(recoded(table, &bytes), whole, "byte by byte");
}

fn recoded(table: &RecodingTable, pieces: &[&[u8]]) -> Vec<u8> {
    let (mut recoder, mut out) = (Recoder::default(), Vec::new());
    pieces.iter().for_each(|piece| recoder.push(table, piece, &mut out));
    out
}
