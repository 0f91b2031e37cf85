//! Hand-made MP4 files, and a reader that lists the samples of a file, so that a cut file can be compared sample by
//! sample.

/// Parameter sets of a track of H.264.
pub const SPS: &[u8] = &[0x67, 1];
/// See [`SPS`].
pub const PPS: &[u8] = &[0x68, 2];

/// A sample as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Decoding time, in units of the track.
    pub time: u64,
    /// Duration, in units of the track.
    pub duration: u32,
    /// Offset of its presentation.
    pub offset: u32,
    /// True for a key frame.
    pub is_key: bool,
    /// Number of the description of its chunk.
    pub description: u32,
    /// Bytes of the sample.
    pub data: Vec<u8>,
}

/// A track as a file has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadTrack {
    /// Duration by its header, in units of the track.
    pub duration: u64,
    /// Start of the edit list, in units of the track; 0 without one.
    pub media_time: u64,
    /// Samples of the track.
    pub samples: Vec<Sample>,
}

/// A track to be written. Sample `n` of it is `sizes[n % sizes.len()]` bytes long, and so on.
#[derive(Debug, Clone)]
pub struct Track {
    /// Units in a second.
    pub timescale: u32,
    /// Samples.
    pub count: u32,
    /// Durations, in turn.
    pub durations: Vec<u32>,
    /// Sizes, in turn; a single one makes a table without sizes.
    pub sizes: Vec<u32>,
    /// Samples per chunk, in turn.
    pub per_chunk: Vec<u32>,
    /// Every so many samples is a key frame; 0 makes no table of them.
    pub key_every: u32,
    /// Offsets of presentation, in turn; none makes no table.
    pub offsets: Vec<u32>,
    /// True for 64-bit offsets and durations.
    pub is_long: bool,
    /// Kind of the media: `vide`, `soun`.
    pub handler: [u8; 4],
    /// Description of the samples; empty for none that means anything.
    pub description: Vec<u8>,
    /// Start of the edit list, in units of the track; 0 makes none.
    pub media_time: u32,
}

/// Position of the movie header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoovPosition {
    /// In front of the samples.
    Front,
    /// After the samples.
    Back,
}

/// A box.
pub fn boxed(name: &[u8; 4], content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut out = (content.len() as u32 + 8).to_be_bytes().to_vec();
    out.extend_from_slice(name);
    out.extend_from_slice(content);
    out
}

/// Boxes of one another.
pub fn boxed_all(name: &[u8; 4], parts: &[Vec<u8>]) -> Vec<u8> {
    boxed(name, parts.concat())
}

/// A table of 32-bit numbers, with how many rows it has.
pub fn table(name: &[u8; 4], rows: usize, numbers: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut content = vec![0; 4];
    content.extend_from_slice(&(rows as u32).to_be_bytes());
    numbers.into_iter().for_each(|number| content.extend_from_slice(&number.to_be_bytes()));
    boxed(name, content)
}

/// A file with these tracks; every movie has 1000 units in a second.
pub fn movie(tracks: &[Track], order: MoovPosition) -> Vec<u8> {
    let ftyp = boxed(b"ftyp", b"isom\0\0\x02\0isommp41");
    let (chunks, data) = interleaved(tracks);
    let at = |base: usize| {
        let traks: Vec<Vec<u8>> =
            tracks.iter().zip(&chunks).map(|(track, chunks)| track.write(chunks, base as u64)).collect();
        let duration = tracks.iter().map(Track::in_movie).max().unwrap_or(0);
        let mut mvhd = vec![0; 100];
        mvhd[12..16].copy_from_slice(&1000_u32.to_be_bytes());
        mvhd[16..20].copy_from_slice(&(duration as u32).to_be_bytes());
        boxed(b"moov", [boxed(b"mvhd", mvhd), traks.concat(), boxed(b"udta", b"x")].concat())
    };
    let free = boxed(b"free", b"nothing");
    match order {
        MoovPosition::Front => {
            let base = ftyp.len() + at(0).len() + free.len() + 8;
            [ftyp, at(base), free, boxed(b"mdat", data)].concat()
        }
        MoovPosition::Back => {
            let base = ftyp.len() + free.len() + 8;
            [ftyp, free, boxed(b"mdat", data), at(base)].concat()
        }
    }
}

/// Places of the chunks of each track in the data, and the data: one chunk of each track after the other.
fn interleaved(tracks: &[Track]) -> (Vec<Vec<u64>>, Vec<u8>) {
    let mut places = vec![Vec::new(); tracks.len()];
    let mut data = Vec::new();
    let mut next = vec![0; tracks.len()];
    for round in 0.. {
        if tracks.iter().zip(&next).all(|(track, next)| *next >= track.count) {
            break;
        }
        for (number, track) in tracks.iter().enumerate() {
            if next[number] >= track.count {
                continue;
            }
            places[number].push(data.len() as u64);
            let end = track.count.min(next[number] + turn(&track.per_chunk, round));
            for sample in next[number]..end {
                data.append(&mut track.sample(sample, number as u8));
            }
            next[number] = end;
        }
    }
    (places, data)
}

fn turn(list: &[u32], n: u32) -> u32 {
    list[n as usize % list.len()]
}

impl Track {
    /// A track of `count` samples of `duration` units.
    pub fn new(timescale: u32, count: u32, duration: u32) -> Self {
        Self {
            timescale,
            count,
            durations: vec![duration],
            sizes: vec![10, 7, 30],
            per_chunk: vec![4],
            key_every: 0,
            offsets: Vec::new(),
            is_long: false,
            handler: *b"vide",
            description: Vec::new(),
            media_time: 0,
        }
    }

    /// A track of H.264 pictures of `duration` units, the first of which parameter sets precede. Each sample is one NAL unit.
    pub fn h264(timescale: u32, count: u32, duration: u32) -> Self {
        let sets = [&[1, 0x64, 0, 30, 0xff, 0xe1, 0, 2][..], SPS, &[1, 0, 2], PPS].concat();
        let entry = boxed(b"avc1", [vec![0; 78], boxed(b"avcC", sets)].concat());
        Self { description: entry, ..Self::new(timescale, count, duration) }
    }

    /// A track of AAC frames of 1024 samples at 44.1 kHz, in stereo.
    pub fn aac(count: u32) -> Self {
        let config = [5, 2, 0x12, 0x10];
        let decoder = [&[4, 17, 0x40][..], &[0; 12], &config].concat();
        let esds = [&[0, 0, 0, 0, 3, 22, 0, 1, 0][..], &decoder].concat();
        let entry = boxed(b"mp4a", [vec![0; 28], boxed(b"esds", esds)].concat());
        Self { handler: *b"soun", description: entry, ..Self::new(44_100, count, 1024) }
    }

    /// Bytes of sample `n`: one NAL unit in a track of H.264, otherwise anything. Samples differ, so that one taken for another is
    /// found.
    fn sample(&self, n: u32, track: u8) -> Vec<u8> {
        let mut data = vec![track; turn(&self.sizes, n) as usize];
        let mut front = n.to_be_bytes().to_vec();
        if self.description.get(4..8) == Some(b"avc1") {
            let is_key = self.key_every == 0 || n.is_multiple_of(self.key_every);
            let len = (data.len() as u32).saturating_sub(4).to_be_bytes();
            front = [&len[..], &[if is_key { 0x65 } else { 0x41 }], &front].concat();
        }
        let room = data.len().min(front.len());
        let skipped = if room < 4 { front.len() - room } else { 0 };
        data[..room].copy_from_slice(&front[skipped..skipped + room]);
        data
    }

    fn duration(&self) -> u64 {
        (0..self.count).map(|n| u64::from(turn(&self.durations, n))).sum()
    }

    fn in_movie(&self) -> u64 {
        self.duration() * 1000 / u64::from(self.timescale)
    }

    fn write(&self, chunks: &[u64], base: u64) -> Vec<u8> {
        let (start, len) = if self.is_long { (28, 96) } else { (20, 84) };
        let mut tkhd = vec![0; len];
        put(&mut tkhd, start, self.in_movie(), self.is_long);
        let (start, len) = if self.is_long { (24, 36) } else { (16, 24) };
        let mut mdhd = vec![0; len];
        mdhd[start - 4..start].copy_from_slice(&self.timescale.to_be_bytes());
        put(&mut mdhd, start, self.duration(), self.is_long);
        let stsd = if self.description.is_empty() {
            vec![0; 16]
        } else {
            [&[0, 0, 0, 0, 0, 0, 0, 1], &self.description[..]].concat()
        };
        let mut tables = vec![boxed(b"stsd", stsd)];
        tables.push(runs(b"stts", (0..self.count).map(|n| turn(&self.durations, n))));
        if self.key_every > 0 {
            let keys: Vec<u32> = (0..self.count).step_by(self.key_every as usize).map(|n| n + 1).collect();
            tables.push(table(b"stss", keys.len(), keys));
        }
        if !self.offsets.is_empty() {
            tables.push(runs(b"ctts", (0..self.count).map(|n| turn(&self.offsets, n))));
        }
        tables.push(self.chunk_table(chunks.len()));
        let mut sizes = vec![0; 4];
        let uniform = if self.sizes.len() == 1 { self.sizes[0] } else { 0 };
        sizes.extend_from_slice(&uniform.to_be_bytes());
        sizes.extend_from_slice(&self.count.to_be_bytes());
        if uniform == 0 {
            (0..self.count).for_each(|n| sizes.extend_from_slice(&turn(&self.sizes, n).to_be_bytes()));
        }
        tables.push(boxed(b"stsz", sizes));
        let mut places = vec![0; 4];
        places.extend_from_slice(&(chunks.len() as u32).to_be_bytes());
        for chunk in chunks {
            if self.is_long {
                places.extend_from_slice(&(base + chunk).to_be_bytes())
            } else {
                places.extend_from_slice(&((base + chunk) as u32).to_be_bytes())
            }
        }
        tables.push(boxed(if self.is_long { b"co64" } else { b"stco" }, places));
        let media = boxed(b"smhd", [0; 8]);
        let minf = boxed_all(b"minf", &[media, boxed(b"dinf", b"d"), boxed_all(b"stbl", &tables)]);
        let hdlr = [&[0; 8][..], &self.handler, &[0; 12]].concat();
        let mdia = boxed_all(b"mdia", &[boxed(b"mdhd", mdhd), boxed(b"hdlr", hdlr), minf]);
        let mut parts = vec![boxed(b"tkhd", tkhd)];
        if self.media_time > 0 {
            // Version 1, one entry, at normal speed.
            let duration = self.in_movie().to_be_bytes();
            let media_time = u64::from(self.media_time).to_be_bytes();
            let elst = [&[1, 0, 0, 0, 0, 0, 0, 1][..], &duration, &media_time, &[0, 1, 0, 0]].concat();
            parts.push(boxed_all(b"edts", &[boxed(b"elst", elst)]));
        }
        parts.push(mdia);
        boxed_all(b"trak", &parts)
    }

    /// `stsc`; the last chunk may hold fewer samples. Chunks have descriptions 1 and 2 in turn, by how many they hold.
    fn chunk_table(&self, count: usize) -> Vec<u8> {
        let mut rows: Vec<[u32; 3]> = Vec::new();
        let mut remaining = self.count;
        for chunk in 0..count as u32 {
            let samples = turn(&self.per_chunk, chunk).min(remaining);
            remaining -= samples;
            if rows.last().is_none_or(|row| row[1] != samples) {
                rows.push([chunk + 1, samples, samples % 2 + 1]);
            }
        }
        table(b"stsc", rows.len(), rows.concat())
    }
}

fn put(bytes: &mut [u8], at: usize, value: u64, is_long: bool) {
    if is_long {
        bytes[0] = 1;
        bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
    } else {
        bytes[at..at + 4].copy_from_slice(&(value as u32).to_be_bytes());
    }
}

/// A table of runs of equal values.
fn runs(name: &[u8; 4], values: impl Iterator<Item = u32>) -> Vec<u8> {
    let mut runs: Vec<[u32; 2]> = Vec::new();
    for value in values {
        match runs.last_mut() {
            Some(run) if run[1] == value => run[0] += 1,
            _ => runs.push([1, value]),
        }
    }
    table(name, runs.len(), runs.concat())
}

/// The boxes of some bytes: name and content.
///
/// # Panics
/// If they are not boxes to their end.
pub fn boxes(bytes: &[u8]) -> Vec<([u8; 4], &[u8])> {
    let mut results = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let mut size = u64::from(number(rest, 0));
        let mut head = 8;
        if size == 1 {
            (size, head) = (u64::from(number(rest, 8)) << 32 | u64::from(number(rest, 12)), 16);
        }
        let (one, others) = rest.split_at(size as usize);
        results.push((one[4..8].try_into().expect("four bytes"), &one[head..]));
        rest = others;
    }
    results
}

/// The content of the first box that a path of names leads to.
pub fn find<'a>(bytes: &'a [u8], path: &[&[u8; 4]]) -> Option<&'a [u8]> {
    let Some((name, rest)) = path.split_first() else { return Some(bytes) };
    let inner = boxes(bytes).into_iter().find(|(candidate, _)| candidate == *name)?;
    find(inner.1, rest)
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize, is_long: bool) -> u64 {
    let high = u64::from(number(bytes, at));
    if is_long { high << 32 | u64::from(number(bytes, at + 4)) } else { high }
}

/// Rows of a table of 32-bit numbers.
fn rows<const N: usize>(content: Option<&[u8]>) -> Vec<[u32; N]> {
    let Some(content) = content else { return Vec::new() };
    let count = number(content, 4) as usize;
    assert_eq!(content.len(), 8 + count * N * 4, "a table has the rows it announces");
    (0..count).map(|row| std::array::from_fn(|n| number(content, 8 + (row * N + n) * 4))).collect()
}

/// Everything a file holds.
///
/// # Panics
/// If it is not a file of the kind [`movie`] makes.
pub fn read(file: &[u8]) -> Vec<ReadTrack> {
    let moov = find(file, &[b"moov"]).expect("a file has a description");
    boxes(moov)
        .into_iter()
        .filter(|(name, _)| name == b"trak")
        .map(|(_, trak)| read_track(file, trak))
        .collect()
}

fn read_track(file: &[u8], trak: &[u8]) -> ReadTrack {
    let mdhd = find(trak, &[b"mdia", b"mdhd"]).expect("a track has a duration");
    let is_long = mdhd[0] == 1;
    let duration = long(mdhd, if is_long { 24 } else { 16 }, is_long);
    let media_time = find(trak, &[b"edts", b"elst"]).map_or(0, |elst| long(elst, 16, true));
    let stbl = find(trak, &[b"mdia", b"minf", b"stbl"]).expect("a track has tables");
    let get = |name| find(stbl, &[name]);
    let flat = |runs: Vec<[u32; 2]>| -> Vec<u32> {
        runs.into_iter().flat_map(|[count, value]| std::iter::repeat_n(value, count as usize)).collect()
    };
    let durations = flat(rows(get(b"stts")));
    let offsets = flat(rows(get(b"ctts")));
    let keys: Option<Vec<[u32; 1]>> = get(b"stss").map(|content| rows(Some(content)));
    let stsz = get(b"stsz").expect("a track has sizes");
    let uniform = number(stsz, 4);
    let count = number(stsz, 8) as usize;
    let places: Vec<u64> = match (get(b"stco"), get(b"co64")) {
        (Some(content), None) => rows::<1>(Some(content)).into_iter().map(|[place]| place.into()).collect(),
        (None, Some(content)) => {
            (0..number(content, 4) as usize).map(|n| long(content, 8 + n * 8, true)).collect()
        }
        _ => panic!("a track has one table of places"),
    };
    let chunk_rows = rows::<3>(get(b"stsc"));
    let mut samples = Vec::new();
    let mut time = 0;
    for (chunk, place) in places.iter().enumerate() {
        let row = chunk_rows.iter().rfind(|row| row[0] as usize <= chunk + 1).expect("a chunk has a row");
        let mut at = *place as usize;
        for _ in 0..row[1] {
            let n = samples.len();
            let size = if uniform > 0 { uniform } else { number(stsz, 12 + n * 4) } as usize;
            samples.push(Sample {
                time,
                duration: durations[n],
                offset: offsets.get(n).copied().unwrap_or(0),
                is_key: keys.as_ref().is_none_or(|keys| keys.contains(&[n as u32 + 1])),
                description: row[2],
                data: file[at..at + size].to_vec(),
            });
            at += size;
            time += u64::from(durations[n]);
        }
    }
    assert_eq!((samples.len(), durations.len()), (count, count), "all tables have the same samples");
    ReadTrack { duration, media_time, samples }
}

/// Expected track after a cut of `length` ms (0: to the end) from `start` ms: `None` if the track ends before it.
pub fn expected(
    track: &ReadTrack,
    timescale: u32,
    start: u64,
    length: u64,
    at_key: bool,
) -> Option<ReadTrack> {
    let units = |ms: u64| ms * u64::from(timescale) / 1000;
    if track.duration <= units(start) {
        return None;
    }
    let due = |sample: &Sample, time: u64| sample.time + u64::from(sample.duration) > time;
    let wanted_number = track.samples.iter().position(|sample| due(sample, units(start)))?;
    let first = if at_key {
        track.samples[..=wanted_number].iter().rposition(|sample| sample.is_key).unwrap_or(wanted_number)
    } else {
        wanted_number
    };
    let media_time = track.samples[wanted_number].time - track.samples[first].time;
    let mut duration = track.duration - units(start);
    let mut end = track.samples.len();
    if length > 0 {
        duration = duration.min(units(length));
        let until = track.samples[wanted_number].time + units(length);
        end = track.samples.iter().position(|sample| due(sample, until)).unwrap_or(end);
    }
    let begin = track.samples[first].time;
    let samples = track.samples[first..end].iter();
    let samples = samples.map(|sample| Sample { time: sample.time - begin, ..sample.clone() }).collect();
    Some(ReadTrack { duration: duration + media_time, media_time, samples })
}
