//! From `moov` to tracks: positions of all tables. Durations are cut on the way, because they decide which tracks
//! remain.

use std::ops::Range;

use super::boxes::Moov;
use super::fault::Fault;
use super::part::Part;

/// Content of `moov`.
pub(super) struct Parsed {
    /// Content of `mvhd`, with its new duration.
    pub(super) mvhd: Option<Range<usize>>,
    /// Units in a second, of the movie.
    pub(super) timescale: u32,
    /// Tracks that are not over when the part begins.
    pub(super) tracks: Vec<Track>,
}

/// A table: version and flags, then rows.
#[derive(Debug, Clone)]
pub(super) struct TableBox {
    /// Offset of version and flags.
    pub(super) flags: usize,
    /// Bytes of the rows that are left.
    pub(super) rows: Range<usize>,
}

/// Sizes of samples.
#[derive(Debug, Clone)]
pub(super) struct SampleSizes {
    /// Version and flags, and the sizes; none if all are the same.
    pub(super) table: TableBox,
    /// The size of all samples, or 0.
    pub(super) uniform: u32,
    /// Samples.
    pub(super) count: u32,
}

/// Places of chunks.
#[derive(Debug, Clone)]
pub(super) struct ChunkOffsets {
    pub(super) table: TableBox,
    pub(super) width: OffsetWidth,
}

/// Width of an offset in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OffsetWidth {
    /// `stco`
    Four,
    /// `co64`
    Eight,
}

/// One track. Boxes are ranges of their content in `moov`.
#[derive(Debug, Default)]
pub(super) struct Track {
    /// Boxes seen.
    box_names: Vec<&'static str>,
    pub(super) tkhd: Option<Range<usize>>,
    pub(super) edts: Option<Range<usize>>,
    pub(super) mdhd: Option<Range<usize>>,
    pub(super) hdlr: Option<Range<usize>>,
    /// `vmhd` or `smhd`.
    pub(super) media: Option<([u8; 4], Range<usize>)>,
    pub(super) dinf: Option<Range<usize>>,
    pub(super) stsd: Option<Range<usize>>,
    pub(super) stts: Option<TableBox>,
    pub(super) stss: Option<TableBox>,
    pub(super) ctts: Option<TableBox>,
    pub(super) stsc: Option<TableBox>,
    pub(super) stsz: Option<SampleSizes>,
    pub(super) places: Option<ChunkOffsets>,
    /// Duration of the part in the scale of the movie.
    pub(super) movie_duration: u64,
    /// Units in a second.
    pub(super) timescale: u32,
    /// Duration of the part in that scale.
    pub(super) duration: u64,
    /// Offset of the duration in `mdhd`.
    pub(super) duration_at: Option<DurationField>,
    /// Duration in front of the part, in that scale.
    pub(super) prefix: u64,
    /// A row of `stsc` before those that are left.
    pub(super) first_chunk: Option<[u32; 3]>,
    /// A row of `stsc` behind those that are left.
    pub(super) last_chunk: Option<[u32; 3]>,
}

/// Fate of a track in the part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum TrackFate {
    Yes,
    /// Dropped: it is over when the part begins.
    No,
}

pub(super) fn parse(moov: &mut Moov, part: &Part) -> Result<Parsed, Fault> {
    let mut parsed = Parsed { mvhd: None, timescale: 0, tracks: Vec::new() };
    let mut rest = 0..moov.len();
    while let Some((name, content)) = moov.next_box(&mut rest)? {
        match &name {
            b"mvhd" => {
                if parsed.mvhd.is_some() {
                    return Err(Fault::Duplicate("mvhd"));
                }
                let place = DurationField::of(moov, &content, "mvhd", 100)?;
                let timescale = moov.u32(place.timescale);
                parsed.timescale = timescale;
                let duration = place.get(moov);
                if duration < part.start(timescale) {
                    return Err(Fault::StartExceeds);
                }
                place.put(moov, part.rest(duration, timescale));
                parsed.mvhd = Some(content);
            }
            b"trak" => {
                let mut track = Track::default();
                if track.parse(moov, content, parsed.timescale, part)? == TrackFate::Yes {
                    parsed.tracks.push(track);
                }
            }
            b"cmov" => return Err(Fault::Compressed),
            _ => {}
        }
    }
    Ok(parsed)
}

/// Offset of a duration, in one of the two versions of a box.
#[derive(Debug, Clone, Copy)]
pub(super) struct DurationField {
    timescale: usize,
    at: usize,
    is_long: bool,
}

impl DurationField {
    /// Of `mvhd` or `mdhd`; `len` is that of the content in version 0.
    fn of(moov: &Moov, content: &Range<usize>, name: &'static str, len: usize) -> Result<Self, Fault> {
        let is_long = moov.byte(content.start) != 0;
        let needed = if is_long { len + 12 } else { len };
        if content.len() < len || content.len() < needed {
            return Err(Fault::TooSmall(name));
        }
        Ok(Self::at(content.start, is_long, 0))
    }

    /// Of `tkhd`, which has a number and something unused in front of it, and no scale.
    fn of_track(moov: &Moov, content: &Range<usize>) -> Result<Self, Fault> {
        let is_long = moov.byte(content.start) != 0;
        if content.len() < if is_long { 96 } else { 84 } {
            return Err(Fault::TooSmall("tkhd"));
        }
        Ok(Self::at(content.start, is_long, 4))
    }

    fn at(start: usize, is_long: bool, skipped: usize) -> Self {
        let timescale = start + if is_long { 20 } else { 12 };
        Self { timescale, at: timescale + 4 + skipped, is_long }
    }

    fn get(self, moov: &Moov) -> u64 {
        if self.is_long { moov.u64(self.at) } else { moov.u32(self.at).into() }
    }

    pub(super) fn put(self, moov: &mut Moov, duration: u64) {
        match self.is_long {
            true => moov.put_u64(self.at, duration),
            // Cutting only shortens a duration, so one that was read from 32 bits still fits.
            false => moov.put_u32(self.at, duration as u32),
        }
    }
}

impl Track {
    /// The second box of a kind is an error.
    fn mark_seen(&mut self, name: &'static str) -> Result<(), Fault> {
        if self.box_names.contains(&name) {
            return Err(Fault::Duplicate(name));
        }
        self.box_names.push(name);
        Ok(())
    }

    fn parse(
        &mut self,
        moov: &mut Moov,
        mut rest: Range<usize>,
        movie_scale: u32,
        part: &Part,
    ) -> Result<TrackFate, Fault> {
        while let Some((name, content)) = moov.next_box(&mut rest)? {
            match &name {
                b"tkhd" => {
                    let place = DurationField::of_track(moov, &content)?;
                    let duration = place.get(moov);
                    if duration <= part.start(movie_scale) {
                        return Ok(TrackFate::No);
                    }
                    self.mark_seen("tkhd")?;
                    self.movie_duration = part.rest(duration, movie_scale);
                    place.put(moov, self.movie_duration);
                    self.tkhd = Some(content);
                }
                b"edts" => self.edts = Some(content),
                b"mdia" => {
                    self.mark_seen("mdia")?;
                    if self.parse_media(moov, content, part)? == TrackFate::No {
                        return Ok(TrackFate::No);
                    }
                }
                _ => {}
            }
        }
        Ok(TrackFate::Yes)
    }

    fn parse_media(
        &mut self,
        moov: &mut Moov,
        mut rest: Range<usize>,
        part: &Part,
    ) -> Result<TrackFate, Fault> {
        while let Some((name, content)) = moov.next_box(&mut rest)? {
            match &name {
                b"mdhd" => {
                    let place = DurationField::of(moov, &content, "mdhd", 24)?;
                    let timescale = moov.u32(place.timescale);
                    let duration = place.get(moov);
                    if duration <= part.start(timescale) {
                        return Ok(TrackFate::No);
                    }
                    self.mark_seen("mdhd")?;
                    (self.timescale, self.duration) = (timescale, part.rest(duration, timescale));
                    (self.mdhd, self.duration_at) = (Some(content), Some(place));
                }
                b"hdlr" => {
                    self.mark_seen("hdlr")?;
                    self.hdlr = Some(content);
                }
                b"minf" => {
                    self.mark_seen("minf")?;
                    self.parse_information(moov, content)?;
                }
                _ => {}
            }
        }
        Ok(TrackFate::Yes)
    }

    fn parse_information(&mut self, moov: &Moov, mut rest: Range<usize>) -> Result<(), Fault> {
        while let Some((name, content)) = moov.next_box(&mut rest)? {
            match &name {
                b"vmhd" | b"smhd" => {
                    self.mark_seen("vmhd/smhd")?;
                    self.media = Some((name, content));
                }
                b"dinf" => {
                    self.mark_seen("dinf")?;
                    self.dinf = Some(content);
                }
                b"stbl" => {
                    self.mark_seen("stbl")?;
                    self.parse_tables(moov, content)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn parse_tables(&mut self, moov: &Moov, mut rest: Range<usize>) -> Result<(), Fault> {
        while let Some((name, content)) = moov.next_box(&mut rest)? {
            match &name {
                b"stsd" if content.len() < 16 => return Err(Fault::TooSmall("stsd")),
                b"stsd" => {
                    self.mark_seen("stsd")?;
                    self.stsd = Some(content);
                }
                b"stts" => self.stts = Some(self.table(moov, content, "stts", "stts", 8)?),
                b"stss" => self.stss = Some(self.table(moov, content, "stss", "stss", 4)?),
                b"ctts" => self.ctts = Some(self.table(moov, content, "ctts", "ctts", 8)?),
                b"stsc" => self.stsc = Some(self.table(moov, content, "stsc", "stsc", 12)?),
                b"stsz" => self.stsz = Some(self.sizes(moov, content)?),
                b"stco" => {
                    let table = self.table(moov, content, "stco", "stco/co64", 4)?;
                    self.places = Some(ChunkOffsets { table, width: OffsetWidth::Four });
                }
                b"co64" => {
                    let table = self.table(moov, content, "co64", "stco/co64", 8)?;
                    self.places = Some(ChunkOffsets { table, width: OffsetWidth::Eight });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A table of rows of `row_len` bytes.
    fn table(
        &mut self,
        moov: &Moov,
        content: Range<usize>,
        name: &'static str,
        mark_seen: &'static str,
        row_len: usize,
    ) -> Result<TableBox, Fault> {
        self.mark_seen(mark_seen)?;
        let rows = rows(content.clone(), 8, moov.u32(content.start + 4), row_len);
        match rows {
            Some(rows) => Ok(TableBox { flags: content.start, rows }),
            None => Err(Fault::TooSmall(name)),
        }
    }

    fn sizes(&mut self, moov: &Moov, content: Range<usize>) -> Result<SampleSizes, Fault> {
        self.mark_seen("stsz")?;
        let uniform = moov.u32(content.start + 4);
        let count = moov.u32(content.start + 8);
        let listed = if uniform == 0 { count } else { 0 };
        match rows(content.clone(), 12, listed, 4) {
            Some(rows) => Ok(SampleSizes { table: TableBox { flags: content.start, rows }, uniform, count }),
            None => Err(Fault::TooSmall("stsz")),
        }
    }
}

/// Range of `count` rows behind the first `head` bytes of a box; `None` if they do not fit.
fn rows(content: Range<usize>, head: usize, count: u32, row_len: usize) -> Option<Range<usize>> {
    let len = u64::from(count) * row_len as u64 + head as u64;
    if len > content.len() as u64 {
        return None;
    }
    Some(content.start + head..content.start + len as usize)
}

impl ChunkOffsets {
    /// Bytes of a row.
    pub(super) fn row_len(&self) -> usize {
        match self.width {
            OffsetWidth::Four => 4,
            OffsetWidth::Eight => 8,
        }
    }

    /// Chunks.
    pub(super) fn count(&self) -> u64 {
        (self.table.rows.len() / self.row_len()) as u64
    }

    /// The place of the chunk at a row.
    pub(super) fn get(&self, moov: &Moov, row: usize) -> u64 {
        match self.width {
            OffsetWidth::Four => moov.u32(row).into(),
            OffsetWidth::Eight => moov.u64(row),
        }
    }

    /// Writes a place; in 32 bits it must fit.
    pub(super) fn put(&self, moov: &mut Moov, row: usize, place: u64) {
        match self.width {
            OffsetWidth::Four => moov.put_u32(row, place as u32),
            OffsetWidth::Eight => moov.put_u64(row, place),
        }
    }
}
