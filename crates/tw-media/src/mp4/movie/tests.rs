//! Parts of movies made by hand, compared sample by sample with what a plain reading of the whole gives; and bad files.

use std::ops::Range;
use std::path::PathBuf;

use tw_testkit::mp4::{MoovPosition, Track, boxed, boxed_all, boxes, expected, find, movie, read, table};

use crate::mp4::movie::{self, Fault, FileLayout, Movie, Part, PartStart, Piece, SampleTable};

#[path = "../../../../../fuzz/checks/mp4.rs"]
mod check;

/// Cuts a part out of a whole file.
fn cut(file: &[u8], start_ms: u64, length_ms: u64, begin: PartStart) -> Result<Piece, Fault> {
    let moov = find(file, &[b"moov"]).unwrap().to_vec();
    let around = FileLayout {
        file_size: file.len() as u64,
        ftyp: find(file, &[b"ftyp"]).map(<[u8]>::to_vec),
        mdat_end: find(file, &[b"mdat"])
            .map(|mdat| (mdat.as_ptr() as usize - file.as_ptr() as usize + mdat.len()) as u64),
    };
    movie::cut(moov, &around, &Part { start_ms, length_ms, begin })
}

fn whole(file: &[u8], piece: Piece) -> Vec<u8> {
    let Range { start, end } = piece.data;
    [piece.head, file[start as usize..end as usize].to_vec()].concat()
}

fn tracks() -> Vec<Vec<Track>> {
    let video = Track { key_every: 5, offsets: vec![0, 3, 3], ..Track::new(600, 40, 100) };
    let long = Track {
        is_long: true,
        durations: vec![90, 90, 30],
        per_chunk: vec![3, 3, 1],
        ..Track::new(600, 50, 0)
    };
    let uniform = Track { sizes: vec![4], per_chunk: vec![7, 7, 2], ..Track::new(1000, 60, 100) };
    let single = Track { per_chunk: vec![1], ..Track::new(1000, 12, 500) };
    let one_chunk = Track { per_chunk: vec![100], key_every: 4, ..Track::new(30, 30, 5) };
    vec![
        vec![video.clone()],
        vec![uniform.clone()],
        vec![single.clone(), video.clone()],
        vec![long, video, uniform],
        vec![one_chunk, single],
    ]
}

#[test]
fn every_part_has_its_samples() {
    let mut cut_count = 0;
    for tracks in tracks() {
        for order in [MoovPosition::Front, MoovPosition::Back] {
            let file = movie(&tracks, order);
            let all = read(&file);
            for begin in [PartStart::Exactly, PartStart::AtKeyFrame] {
                for start in (0..7_000).step_by(170) {
                    for length in [0, 1, 90, 100, 400, 500, 1_330, 2_000, 10_000] {
                        let expected: Vec<_> = tracks
                            .iter()
                            .zip(&all)
                            .filter_map(|(track, read)| {
                                expected(read, track.timescale, start, length, begin == PartStart::AtKeyFrame)
                            })
                            .collect();
                        let what = format!("{order:?} {begin:?} {start} {length}");
                        match cut(&file, start, length, begin) {
                            Ok(piece) => {
                                assert_eq!(read(&whole(&file, piece)), expected, "{what}");
                                cut_count += 1;
                            }
                            Err(Fault::In("no data between start time and end time")) => {
                                assert!(expected.iter().all(|track| track.samples.is_empty()), "{what}");
                            }
                            Err(Fault::StartExceeds | Fault::In("no mp4 trak atoms were found")) => {
                                assert_eq!(expected, [], "{what}");
                            }
                            Err(other) => panic!("{what}: {other:?}"),
                        }
                    }
                }
            }
        }
    }
    assert!(cut_count > 3_000, "{cut_count}");
}

#[test]
fn boxes_around_the_samples_are_kept() {
    let file = movie(&[Track::new(1000, 20, 100)], MoovPosition::Back);
    let piece = cut(&file, 1_000, 500, PartStart::Exactly).unwrap();
    let part = whole(&file, piece);
    let names: Vec<_> = boxes(&part).iter().map(|(name, _)| *name).collect();
    assert_eq!(names, [*b"ftyp", *b"moov", *b"mdat"]);
    assert_eq!(find(&part, &[b"ftyp"]), find(&file, &[b"ftyp"]));
    let moov = find(&part, &[b"moov"]).unwrap();
    assert_eq!(boxes(moov).iter().map(|(name, _)| *name).collect::<Vec<_>>(), [*b"mvhd", *b"trak"]);
    let duration = |path: &[&[u8; 4]], at: usize| find(moov, path).unwrap()[at..at + 4].to_vec();
    assert_eq!(duration(&[b"mvhd"], 16), 500_u32.to_be_bytes());
    assert_eq!(duration(&[b"trak", b"tkhd"], 20), 500_u32.to_be_bytes());
    assert_eq!(duration(&[b"trak", b"mdia", b"mdhd"], 16), 500_u32.to_be_bytes());
}

fn parsed(file: &[u8]) -> Movie {
    Movie::parse(find(file, &[b"moov"]).unwrap().to_vec()).unwrap()
}

/// Time, offset, key frame and bytes of each sample from a time on.
fn walk(movie: &Movie, table: &SampleTable, file: &[u8], time: u64) -> Vec<(u64, u32, bool, Vec<u8>)> {
    let mut times = movie.times(table);
    movie.go_to_time(&mut times, time);
    if times.is_at_end() {
        return Vec::new();
    }
    let mut cursor = movie.samples_from(table, times).unwrap();
    let mut all = Vec::new();
    while let Some(sample) = movie.next(table, &mut cursor).unwrap() {
        let data = file[sample.place.start as usize..sample.place.end as usize].to_vec();
        all.push((sample.time, sample.offset as u32, sample.is_key, data));
    }
    all
}

#[test]
fn walks_find_every_sample() {
    for tracks in tracks() {
        for order in [MoovPosition::Front, MoovPosition::Back] {
            let file = movie(&tracks, order);
            let movie = parsed(&file);
            for (table, track) in movie.tracks().iter().zip(read(&file)) {
                for time in (0..track.duration + 2).step_by(7) {
                    let wanted_values = track.samples.iter().filter(|sample| sample.time >= time);
                    let expected: Vec<_> = wanted_values
                        .map(|sample| (sample.time, sample.offset, sample.is_key, sample.data.clone()))
                        .collect();
                    assert_eq!(walk(&movie, table, &file, time), expected, "{time}");
                }
                assert_eq!(
                    movie.duration_ms(table),
                    (track.duration * 1000).div_ceil(table.timescale.into())
                );
            }
        }
    }
}

#[test]
fn key_frames_are_found_in_both_directions() {
    let video = Track { key_every: 4, durations: vec![2, 0, 3], ..Track::new(10, 30, 1) };
    for video in [Track { key_every: 0, ..video.clone() }, video] {
        let file = movie(&[video], MoovPosition::Back);
        let movie = parsed(&file);
        let all = read(&file);
        let table = &movie.tracks()[0];
        let samples = &all[0].samples;
        for time in 0..=all[0].duration {
            let mut at = movie.times(table);
            movie.go_to_time(&mut at, time);
            let Some(first) = samples.iter().position(|sample| sample.time >= time) else {
                assert!(at.is_at_end());
                continue;
            };
            assert_eq!(at.time(), samples[first].time);
            let before = samples[..=first].iter().rfind(|sample| sample.is_key).unwrap();
            assert_eq!(movie.key_before(table, &at).unwrap().time(), before.time);
            let next = samples[first..].iter().find(|sample| sample.is_key);
            assert_eq!(movie.go_to_key(table, &mut at).then(|| at.time()), next.map(|sample| sample.time));
        }
    }
}

#[test]
fn short_edit_lists_shift_a_track() {
    for (media_time, expected) in [(0, 0), (60, -60), (600, -600), (601, 0)] {
        let file = movie(&[Track { media_time, ..Track::new(600, 40, 100) }], MoovPosition::Back);
        assert_eq!(parsed(&file).tracks()[0].shift, expected);
    }
}

#[test]
fn walks_of_wrong_tables_end() {
    let file = movie(&[Track { key_every: 5, ..Track::new(600, 40, 100) }], MoovPosition::Back);
    let moov = find(&file, &[b"moov"]).unwrap();
    for at in 0..moov.len() {
        for value in [0, 1, 0xff] {
            let mut broken = moov.to_vec();
            broken[at] = value;
            let Ok(movie) = Movie::parse(broken) else { continue };
            for table in movie.tracks() {
                let mut times = movie.times(table);
                movie.go_to_time(&mut times, 500);
                let _ = movie.key_before(table, &times);
                let _ = movie.go_to_key(table, &mut times);
                let Ok(mut cursor) = movie.samples_from(table, times) else { continue };
                for _ in 0..100 {
                    if !matches!(movie.next(table, &mut cursor), Ok(Some(_))) {
                        break;
                    }
                }
            }
        }
    }
}

/// A `moov` of one track with these tables.
fn moov_of(tables: &[Vec<u8>]) -> Vec<u8> {
    let mut mvhd = vec![0; 100];
    mvhd[12..20].copy_from_slice(&[0, 0, 3, 232, 0, 1, 0, 0]);
    let mut head = vec![0; 84];
    head[20..24].copy_from_slice(&[0, 1, 0, 0]);
    let minf = boxed_all(b"minf", &[boxed_all(b"stbl", tables)]);
    let mdia = boxed_all(b"mdia", &[boxed(b"mdhd", &mvhd[..24]), minf]);
    [boxed(b"mvhd", &mvhd), boxed_all(b"trak", &[boxed(b"tkhd", head), mdia])].concat()
}

fn fault_of(moov: Vec<u8>) -> Fault {
    let around = FileLayout { file_size: 10_000, ftyp: None, mdat_end: Some(10_000) };
    let part = Part { start_ms: 1_000, length_ms: 2_000, begin: PartStart::AtKeyFrame };
    movie::cut(moov, &around, &part).unwrap_err()
}

#[test]
fn tables_that_do_not_fit() {
    let stts = || table(b"stts", 1, [10, 1_000]);
    let stsc = |rows: &[u32]| table(b"stsc", rows.len() / 3, rows.iter().copied());
    let stsz = || boxed(b"stsz", [[0; 4], [0, 0, 0, 8], [0, 0, 0, 10]].concat());
    let stco = |places: &[u32]| table(b"stco", places.len(), places.iter().copied());
    let good = || vec![stts(), stsc(&[1, 5, 1]), stsz(), stco(&[100, 200])];
    let with = |at: usize, table: Vec<u8>| {
        let mut tables = good();
        tables[at] = table;
        moov_of(&tables)
    };
    let around = FileLayout { file_size: 10_000, ftyp: None, mdat_end: Some(10_000) };
    let part = Part { start_ms: 1_000, length_ms: 2_000, begin: PartStart::AtKeyFrame };
    assert_eq!(movie::cut(moov_of(&good()), &around, &part).unwrap().data, 108..124);
    for (moov, expected) in [
        (Vec::new(), Fault::In("no mp4 trak atoms were found")),
        (boxed(b"cmov", []), Fault::Compressed),
        (boxed(b"mvhd", [0; 99]), Fault::TooSmall("mvhd")),
        (boxed(b"mvhd", [1; 100]), Fault::TooSmall("mvhd")),
        (boxed(b"mvhd", [0; 100]).repeat(2), Fault::Duplicate("mvhd")),
        (boxed(b"trak", boxed(b"tkhd", [0; 83])), Fault::TooSmall("tkhd")),
        (moov_of(&[]), Fault::In("no mp4 stts atoms were found")),
        (moov_of(&[stts(), stts()]), Fault::Duplicate("stts")),
        (moov_of(&[stts()]), Fault::In("no mp4 stsc atoms were found")),
        (moov_of(&good()[..3]), Fault::In("start time is out mp4 stsc chunks")),
        (with(0, boxed(b"stts", [0; 7])), Fault::TooSmall("stts")),
        (with(0, table(b"stts", 1 << 28, [1, 2])), Fault::TooSmall("stts")),
        (with(0, table(b"stts", u32::MAX as usize, [1, 2])), Fault::TooSmall("stts")),
        (with(0, table(b"stts", 1, [10, 0])), Fault::In("start time is out mp4 stts samples")),
        (with(0, table(b"stts", 0, [])), Fault::In("start time is out mp4 stts samples")),
        (with(1, stsc(&[])), Fault::In("zero number of entries in stsc atom")),
        (with(1, stsc(&[1, 0, 1])), Fault::In("start time is out mp4 stsc chunks")),
        (with(1, stsc(&[0, 5, 1])), Fault::In("zero chunk")),
        (with(1, stsc(&[2, 5, 1, 1, 5, 1])), Fault::In("unordered mp4 stsc chunks")),
        (with(1, stsc(&[4, 5, 1])), Fault::In("unordered mp4 stsc chunks")),
        (with(2, boxed(b"stsz", [0; 11])), Fault::TooSmall("stsz")),
        (with(2, boxed(b"stsz", [[0; 4], [0; 4], [0, 0, 0, 9]].concat())), Fault::TooSmall("stsz")),
        (with(2, boxed(b"stsz", [0; 12])), Fault::In("start time is out mp4 stsz samples")),
        (
            with(2, boxed(b"stsz", [[0; 4], [255; 4], [0, 0, 0, 10]].concat())),
            Fault::In("too large mp4 start samples size"),
        ),
        (with(3, stco(&[])), Fault::In("start time is out mp4 stsc chunks")),
        (with(3, stco(&[9_999, 200])), Fault::In("too large chunk offset")),
        (with(3, stco(&[100, 200]).repeat(2)), Fault::Duplicate("stco/co64")),
    ] {
        let shown = format!("{moov:?}");
        assert_eq!(fault_of(moov), expected, "{shown}");
    }
    let zero_sync = [good(), vec![table(b"stss", 1, [0])]].concat();
    assert_eq!(fault_of(moov_of(&zero_sync)), Fault::In("zero sync sample"));
}

#[test]
fn boxes_that_do_not_fit() {
    let sized = |size: u64, rest: &[u8]| match u32::try_from(size) {
        Ok(size) => [&size.to_be_bytes()[..], b"mvhd", rest].concat(),
        Err(_) => [&1_u32.to_be_bytes()[..], b"mvhd", &size.to_be_bytes(), rest].concat(),
    };
    for (moov, expected) in [
        (sized(7, &[]), Fault::BoxTooSmall(7)),
        (sized(9, &[]), Fault::BoxTooLarge(9)),
        (sized(u64::from(u32::MAX), &[]), Fault::BoxTooLarge(u64::from(u32::MAX))),
        (sized(u64::MAX, &[]), Fault::BoxTooLarge(u64::MAX)),
        (sized(1 << 32, &[]), Fault::BoxTooLarge(1 << 32)),
        (sized(1, &15_u64.to_be_bytes()), Fault::BoxTooSmall(15)),
        (sized(1, &[0; 7]), Fault::Truncated),
        (vec![0, 0, 1], Fault::Truncated),
        (vec![0, 0, 0, 9, b'm'], Fault::Truncated),
        // A box of size 0 extends to the end, so nothing follows it.
        (vec![0, 0, 0, 0, 1, 2, 3], Fault::In("no mp4 trak atoms were found")),
    ] {
        let shown = format!("{moov:?}");
        assert_eq!(fault_of(moov), expected, "{shown}");
    }
}

#[test]
fn files_that_are_cut_off_or_damaged() {
    let file = movie(&tracks()[3], MoovPosition::Back);
    let moov = find(&file, &[b"moov"]).unwrap();
    for len in 0..moov.len() {
        check::check(&[&[20, 15, 1][..], &moov[..len]].concat());
    }
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/mp4");
    let mut inputs: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| std::fs::read(entry.unwrap().path()).unwrap())
        .collect();
    inputs.sort();
    assert!(inputs.len() >= 5);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |bound: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % bound as u64) as usize
    };
    for input in &inputs {
        check::check(input);
        for _ in 0..2_000 {
            let mut damaged = input.clone();
            for _ in 0..=below(3) {
                let at = below(damaged.len());
                damaged[at] = [0, 1, 8, 0x7f, 0x80, 0xff, damaged[at].wrapping_add(1)][below(7)];
            }
            check::check(&damaged);
        }
    }
}

#[test]
fn log_lines() {
    for (fault, expected) in [
        (Fault::BoxTooSmall(3), "\"/f\" mp4 atom is too small:3"),
        (Fault::Truncated, "\"/f\" mp4 file truncated"),
        (Fault::TooSmall("stts"), "\"/f\" mp4 stts atom too small"),
        (Fault::Duplicate("moov"), "duplicate mp4 moov atom in \"/f\""),
        (Fault::In("zero chunk"), "zero chunk in \"/f\""),
        (
            Fault::MoovTooLarge(5),
            "\"/f\" mp4 moov atom is too large:5, you may want to increase mp4_max_buffer_size",
        ),
    ] {
        assert_eq!(fault.in_file("/f", "mp4_max_buffer_size").to_string(), expected);
    }
}
