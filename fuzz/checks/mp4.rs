//! Invariants for any `moov`: no panic, a part of the file, and a head of whole boxes that is not larger than its
//! source; samples whose times never go back. The first three bytes select the part.

use super::movie::{self, FileLayout, Movie, ParsedHeader, Part, PartStart, read_header};

/// Length of the file that the movie is said to be in.
const FILE_SIZE: u64 = 1 << 20;
/// Bytes that a new head may have more than the old one: its headers, and one row and an edit list for each track.
const MORE: usize = 64;

pub(crate) fn check(data: &[u8]) {
    let Some((&[start, length, begin], moov)) = data.split_first_chunk() else { return };
    let part = Part {
        start_ms: u64::from(start) * 100,
        length_ms: u64::from(length) * 100,
        begin: if begin % 2 == 0 { PartStart::Exactly } else { PartStart::AtKeyFrame },
    };
    walk(moov, part.start_ms);
    let around = FileLayout { file_size: FILE_SIZE, ftyp: None, mdat_end: Some(FILE_SIZE) };
    let Ok(piece) = movie::cut(moov.to_vec(), &around, &part) else { return };
    assert!(piece.data.start < piece.data.end && piece.data.end <= FILE_SIZE);
    assert!(piece.head.len() <= moov.len() + MORE + moov.len() / 8 * MORE);
    let (moov, mdat) = match read_header(&piece.head, u64::MAX) {
        Ok(ParsedHeader::Box(moov)) => piece.head.split_at(moov.size as usize),
        other => panic!("{other:?}"),
    };
    match read_header(mdat, u64::MAX) {
        Ok(ParsedHeader::Box(header)) => {
            assert_eq!(header.size, mdat.len() as u64 + piece.data.end - piece.data.start)
        }
        other => panic!("{other:?}"),
    }
    boxes(&moov[8..]);
}

/// Walks over the first samples behind a time.
fn walk(moov: &[u8], start_ms: u64) {
    let Ok(movie) = Movie::parse(moov.to_vec()) else { return };
    for table in movie.tracks() {
        let mut times = movie.times(table);
        movie.go_to_time(&mut times, table.units(start_ms));
        let Ok(key) = movie.key_before(table, &times) else { continue };
        assert!(key.time() <= times.time());
        let _ = movie.go_to_key(table, &mut times);
        let Ok(mut cursor) = movie.samples_from(table, key) else { continue };
        let mut last = 0;
        for _ in 0..1_000 {
            let Ok(Some(sample)) = movie.next(table, &mut cursor) else { break };
            assert!(sample.time >= last && sample.place.end >= sample.place.start);
            last = sample.time;
        }
    }
}

/// Goes through the boxes that have boxes in them.
fn boxes(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let Ok(ParsedHeader::Box(header)) = read_header(bytes, bytes.len() as u64) else {
            panic!("no box: {bytes:?}")
        };
        let (one, rest) = bytes.split_at(header.size as usize);
        if matches!(&header.name, b"trak" | b"mdia" | b"minf" | b"stbl" | b"edts") {
            boxes(&one[header.header_len as usize..]);
        }
        bytes = rest;
    }
}
