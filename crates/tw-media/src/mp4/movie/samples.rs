//! The samples of a movie, one by one, in the order of decoding. Nothing is expanded: a cursor walks along the tables, whose
//! rows may claim billions of samples.
//!
//! Cost: finding a time or a sample takes a pass over the rows before it; going on takes a few steps.

use std::ops::Range;

use super::Part;
use super::boxes::Moov;
use super::chunks;
use super::fault::Fault;
use super::times::{RUN_LEN, behind_key_frame, run_of};
use super::track::{self, ChunkOffsets, SampleSizes, Track};

/// Longest shift of a track by its edit list that is respected, in milliseconds: the delay of the first picture or of the
/// encoder of sound. A longer one cuts off a beginning.
const SHIFT_MS_MAX: i64 = 1_000;

/// A movie whose tables have been found.
pub(crate) struct Movie {
    moov: Moov,
    tracks: Vec<SampleTable>,
}

/// The tables of one track.
#[derive(Debug, Clone)]
pub(crate) struct SampleTable {
    /// `vide`, `soun` or another kind.
    pub(crate) handler: [u8; 4],
    /// Units in a second; not 0.
    pub(crate) timescale: u32,
    /// Time in those units at which the first sample is shown; the edit list says so.
    pub(crate) shift: i64,
    stsd: Range<usize>,
    stts: Range<usize>,
    stss: Option<Range<usize>>,
    ctts: Option<Range<usize>>,
    stsc: Range<usize>,
    sizes: SampleSizes,
    offsets: ChunkOffsets,
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Time of decoding, in units of the track.
    pub(crate) time: u64,
    /// Offset of its presentation.
    pub(crate) offset: i32,
    /// Bytes of the file, which may not be there.
    pub(crate) place: Range<u64>,
    pub(crate) is_key: bool,
}

impl Movie {
    /// Finds the tables of a movie; `moov` is the content of that box.
    pub(crate) fn parse(moov: Vec<u8>) -> Result<Self, Fault> {
        let mut moov = Moov::new(moov);
        let parsed = track::parse(&mut moov, &Part::WHOLE)?;
        let tracks = parsed
            .tracks
            .iter()
            .filter_map(|track| SampleTable::of(&moov, track, parsed.timescale))
            .collect();
        Ok(Self { moov, tracks })
    }

    /// Bytes of its description.
    pub(crate) fn size(&self) -> usize {
        self.moov.len()
    }

    /// The tracks that have samples.
    pub(crate) fn tracks(&self) -> &[SampleTable] {
        &self.tracks
    }

    /// Descriptions of the samples of a track: the content of `stsd`.
    pub(crate) fn description(&self, track: &SampleTable) -> &[u8] {
        self.moov.slice(track.stsd.clone())
    }

    /// End of the last sample of a track, in milliseconds, rounded up.
    pub(crate) fn duration_ms(&self, track: &SampleTable) -> u64 {
        let mut end = TimeCursor::new(&self.moov, track);
        end.go_to_sample(&self.moov, u64::MAX);
        let ms = (u128::from(end.time) * 1000).div_ceil(track.timescale.into());
        u64::try_from(ms).unwrap_or(u64::MAX)
    }

    /// Position of the beginning of a track.
    pub(crate) fn times(&self, track: &SampleTable) -> TimeCursor {
        TimeCursor::new(&self.moov, track)
    }

    /// Goes on to the first sample at or behind a time.
    pub(crate) fn go_to_time(&self, cursor: &mut TimeCursor, time: u64) {
        cursor.go_to_time(&self.moov, time);
    }

    /// Goes on to the first key frame at or behind a sample; `false` if there is none.
    pub(crate) fn go_to_key(&self, track: &SampleTable, cursor: &mut TimeCursor) -> bool {
        if let Some(rows) = &track.stss {
            let from = cursor.key.max(rows.start);
            let is_due = |row: &usize| u64::from(self.moov.u32(*row)) > cursor.sample;
            let Some(row) = (from..rows.end).step_by(4).find(is_due) else { return false };
            cursor.key = row;
            cursor.go_to_sample(&self.moov, u64::from(self.moov.u32(row)) - 1);
        }
        !cursor.is_at_end()
    }

    /// Position of the last key frame at or before a position.
    pub(crate) fn key_before(&self, track: &SampleTable, cursor: &TimeCursor) -> Result<TimeCursor, Fault> {
        let back = match &track.stss {
            Some(rows) => behind_key_frame(&self.moov, rows.clone(), cursor.sample)?,
            None => 0,
        };
        let mut key = self.times(track);
        key.go_to_sample(&self.moov, cursor.sample.saturating_sub(back));
        Ok(key)
    }

    /// Walk over the samples from a position on.
    pub(crate) fn samples_from(&self, track: &SampleTable, times: TimeCursor) -> Result<SampleCursor, Fault> {
        SampleCursor::new(&self.moov, track, times)
    }

    /// The next sample of a walk; `None` at the end.
    pub(crate) fn next(
        &self,
        track: &SampleTable,
        cursor: &mut SampleCursor,
    ) -> Result<Option<Sample>, Fault> {
        cursor.next(&self.moov, track)
    }
}

impl SampleTable {
    /// The tables of a track, unless one is missing or the track has no samples.
    fn of(moov: &Moov, track: &Track, movie_scale: u32) -> Option<Self> {
        let handler =
            track.hdlr.as_ref().and_then(|hdlr| moov.slice(hdlr.clone()).get(8..12)?.try_into().ok())?;
        if track.timescale == 0 || track.stsz.as_ref()?.count == 0 {
            return None;
        }
        Some(Self {
            handler,
            timescale: track.timescale,
            shift: shift(moov, track, movie_scale).unwrap_or(0),
            stsd: track.stsd.clone()?,
            stts: track.stts.as_ref()?.rows.clone(),
            stss: track.stss.as_ref().map(|table| table.rows.clone()),
            ctts: track.ctts.as_ref().map(|table| table.rows.clone()),
            stsc: track.stsc.as_ref()?.rows.clone(),
            sizes: track.stsz.clone()?,
            offsets: track.places.clone()?,
        })
    }

    /// The first unit of the millisecond `ms`.
    pub(crate) fn units(&self, ms: u64) -> u64 {
        let units = (u128::from(ms) * u128::from(self.timescale)).div_ceil(1000);
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The millisecond of a time.
    pub(crate) fn milliseconds(&self, time: u64) -> u64 {
        u64::try_from(u128::from(time) * 1000 / u128::from(self.timescale)).unwrap_or(u64::MAX)
    }

    /// The size of a sample.
    fn size(&self, moov: &Moov, sample: u64) -> u64 {
        match self.sizes.uniform {
            0 => moov.u32(self.sizes.table.rows.start + sample as usize * 4).into(),
            size => size.into(),
        }
    }
}

/// Shift of a track: its edit list begins with empty entries, or with a time of the media other than 0.
fn shift(moov: &Moov, track: &Track, movie_scale: u32) -> Option<i64> {
    let mut rest = track.edts.clone()?;
    let (_, content) = moov.next_box(&mut rest).ok()?.filter(|(name, _)| name == b"elst")?;
    let is_long = moov.byte(content.start) == 1;
    let row_len = if is_long { 20 } else { 12 };
    let count = (content.len().saturating_sub(8) / row_len).min(moov.u32(content.start + 4) as usize);
    let mut delay = 0_i64;
    for row in (0..count).map(|row| content.start + 8 + row * row_len) {
        let (duration, media_time) = if is_long {
            (i64::try_from(moov.u64(row)).ok()?, moov.u64(row + 8) as i64)
        } else {
            (moov.u32(row).into(), i64::from(moov.u32(row + 4) as i32))
        };
        if media_time != -1 {
            let timescale = i128::from(track.timescale);
            let delay = i128::from(delay) * timescale / i128::from(movie_scale.max(1));
            let shift = i64::try_from(delay - i128::from(media_time)).ok()?;
            let most = SHIFT_MS_MAX * i64::from(track.timescale) / 1000;
            return (-most..=most).contains(&shift).then_some(shift);
        }
        delay = delay.checked_add(duration)?;
    }
    None
}

/// Position in `stts`.
#[derive(Debug, Clone)]
pub(crate) struct TimeCursor {
    /// The next row.
    rows: Range<usize>,
    /// Samples left of the row before, and the duration of each.
    remaining: u32,
    duration: u32,
    /// The next sample, counted from 0, and its time.
    sample: u64,
    time: u64,
    /// Samples of the track.
    count: u64,
    /// Row of `stss` of the key frame that was found last.
    key: usize,
}

impl TimeCursor {
    fn new(moov: &Moov, track: &SampleTable) -> Self {
        let mut new = Self {
            rows: track.stts.clone(),
            remaining: 0,
            duration: 0,
            sample: 0,
            time: 0,
            count: track.sizes.count.into(),
            key: 0,
        };
        new.settle(moov);
        new
    }

    /// The time of the next sample.
    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// Returns true if no sample is left.
    pub(crate) fn is_at_end(&self) -> bool {
        self.remaining == 0 || self.sample >= self.count
    }

    /// Goes on to a row that has samples.
    fn settle(&mut self, moov: &Moov) {
        while self.remaining == 0 && !self.rows.is_empty() {
            self.remaining = moov.u32(self.rows.start);
            self.duration = moov.u32(self.rows.start + 4);
            self.rows.start += RUN_LEN;
        }
    }

    /// Goes on by `count` samples of this row, which it has.
    fn skip(&mut self, moov: &Moov, count: u32) {
        self.remaining -= count;
        self.sample += u64::from(count);
        self.time = self.time.saturating_add(u64::from(count) * u64::from(self.duration));
        self.settle(moov);
    }

    fn go_to_time(&mut self, moov: &Moov, time: u64) {
        while !self.is_at_end() && self.time < time {
            let needed = match self.duration {
                0 => u64::MAX,
                duration => (time - self.time).div_ceil(duration.into()),
            };
            self.skip(moov, u32::try_from(needed).unwrap_or(u32::MAX).min(self.remaining));
        }
    }

    fn go_to_sample(&mut self, moov: &Moov, sample: u64) {
        let sample = sample.min(self.count);
        while !self.is_at_end() && self.sample < sample {
            let needed = sample - self.sample;
            self.skip(moov, u32::try_from(needed).unwrap_or(u32::MAX).min(self.remaining));
        }
    }
}

/// Position in all tables of a track.
#[derive(Debug, Clone)]
pub(crate) struct SampleCursor {
    times: TimeCursor,
    /// The next row of `ctts`, and the rest of the one before.
    ctts: Range<usize>,
    offsets_left: u32,
    offset: i32,
    /// Row of `stsc`, and the first chunk of the next row, counted from 1.
    stsc_row: usize,
    next_row_chunk: u64,
    /// Samples of each chunk of the row.
    per_chunk: u32,
    /// Chunk of the next sample, counted from 0, and its samples that are left.
    chunk: u64,
    left_in_chunk: u32,
    /// Place of the next sample.
    place: u64,
    /// Next row of `stss`.
    key_row: usize,
}

impl SampleCursor {
    fn new(moov: &Moov, track: &SampleTable, times: TimeCursor) -> Result<Self, Fault> {
        let sample = times.sample;
        let chunk_count = track.offsets.count();
        let sample_position =
            chunks::find(moov, track.stsc.clone(), sample, chunk_count, "sample is out mp4 stsc chunks")?;
        let (chunk, before) = sample_position.place();
        let start = place_of(moov, track, chunk)?;
        let sizes = (sample - u64::from(before)..sample).map(|sample| track.size(moov, sample));
        let place = start.saturating_add(match track.sizes.uniform {
            0 => sizes.sum(),
            size => u64::from(size) * u64::from(before),
        });
        let rows = track.ctts.clone().unwrap_or(0..0);
        let (ctts, offsets_left, offset) = match run_of(moov, rows, sample) {
            Some((row, within)) => {
                let end = track.ctts.as_ref().map_or(0, |rows| rows.end);
                (row + RUN_LEN..end, moov.u32(row) - within, moov.u32(row + 4) as i32)
            }
            None => (0..0, 0, 0),
        };
        Ok(Self {
            ctts,
            offsets_left,
            offset,
            stsc_row: sample_position.row,
            next_row_chunk: sample_position.next,
            per_chunk: sample_position.samples,
            chunk,
            left_in_chunk: sample_position.samples - before,
            place,
            key_row: track.stss.as_ref().map_or(0, |rows| rows.start),
            times,
        })
    }

    /// The time of the next sample, if there is one.
    pub(crate) fn time(&self) -> Option<u64> {
        (!self.times.is_at_end()).then_some(self.times.time)
    }

    fn next(&mut self, moov: &Moov, track: &SampleTable) -> Result<Option<Sample>, Fault> {
        let Some(time) = self.time() else { return Ok(None) };
        let number = self.times.sample;
        if self.left_in_chunk == 0 {
            self.next_chunk(moov, track)?;
        }
        let start = self.place;
        let end = start.checked_add(track.size(moov, number)).ok_or(Fault::In("too large chunk offset"))?;
        while self.offsets_left == 0 && !self.ctts.is_empty() {
            self.offsets_left = moov.u32(self.ctts.start);
            self.offset = moov.u32(self.ctts.start + 4) as i32;
            self.ctts.start += RUN_LEN;
        }
        let offset = if self.offsets_left > 0 { self.offset } else { 0 };
        let is_key = match &track.stss {
            None => true,
            Some(rows) => {
                while self.key_row < rows.end && u64::from(moov.u32(self.key_row)) <= number {
                    self.key_row += 4;
                }
                self.key_row < rows.end && u64::from(moov.u32(self.key_row)) == number + 1
            }
        };
        self.place = end;
        self.left_in_chunk -= 1;
        self.offsets_left = self.offsets_left.saturating_sub(1);
        self.times.skip(moov, 1);
        Ok(Some(Sample { time, offset, place: start..end, is_key }))
    }

    fn next_chunk(&mut self, moov: &Moov, track: &SampleTable) -> Result<(), Fault> {
        self.chunk += 1;
        while self.chunk + 1 >= self.next_row_chunk && self.stsc_row + chunks::ROW_LEN < track.stsc.end {
            self.stsc_row += chunks::ROW_LEN;
            let next = self.stsc_row + chunks::ROW_LEN;
            self.per_chunk = moov.u32(self.stsc_row + 4);
            self.next_row_chunk = if next < track.stsc.end { moov.u32(next).into() } else { u64::MAX };
        }
        if self.per_chunk == 0 {
            return Err(Fault::In("zero number of samples"));
        }
        self.left_in_chunk = self.per_chunk;
        self.place = place_of(moov, track, self.chunk)?;
        Ok(())
    }
}

/// The place of a chunk in the file.
fn place_of(moov: &Moov, track: &SampleTable, chunk: u64) -> Result<u64, Fault> {
    if chunk >= track.offsets.count() {
        return Err(Fault::In("sample is out mp4 stco chunks"));
    }
    // The row is inside the table, because `chunk` is below its count.
    let row = track.offsets.table.rows.start + chunk as usize * track.offsets.row_len();
    Ok(track.offsets.get(moov, row))
}
