//! From samples to bytes of the file: their chunks (`stsc`), their sizes (`stsz`), and the offsets of chunks (`stco`,
//! `co64`).

use std::ops::Range;

use super::Part;
use super::boxes::Moov;
use super::fault::Fault;
use super::times::Samples;
use super::track::{OffsetWidth, Track};

/// Length of a row of `stsc`: first chunk, samples of each, description.
pub(super) const ROW_LEN: usize = 12;

/// The chunks of a part, counted from 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chunks {
    /// The first.
    start: u64,
    /// Samples of it in front of the part.
    skipped: u64,
    /// Behind the last.
    end: u64,
    /// Samples of the last one that are in the part.
    last: u64,
}

/// Bytes of the samples at the edges.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EdgeSizes {
    /// Of those in the first chunk that are in front of the part.
    skipped: u64,
    /// Of those in the last chunk that are in the part.
    last: u64,
}

/// Ends of the file and its `mdat`.
pub(super) struct Edges {
    pub(super) file_size: u64,
    pub(super) mdat_end: u64,
}

/// Position of a sample in `stsc`.
pub(super) struct SamplePosition {
    pub(super) row: usize,
    chunk: u32,
    pub(super) samples: u32,
    id: u32,
    /// The first chunk of the next row.
    pub(super) next: u64,
    /// Samples from the first chunk of the row up to the sample.
    within: u64,
    /// Samples of the chunk in front of the row.
    before: u32,
}

impl SamplePosition {
    /// The chunk of the sample, from 0, and the samples in front of it there.
    pub(super) fn place(&self) -> (u64, u32) {
        let samples = u64::from(self.samples);
        (u64::from(self.chunk) - 1 + self.within / samples, (self.within % samples) as u32)
    }
}

pub(super) fn find(
    moov: &Moov,
    rows: Range<usize>,
    mut within: u64,
    chunk_count: u64,
    out: &'static str,
) -> Result<SamplePosition, Fault> {
    let mut before = 0;
    for row in rows.clone().step_by(ROW_LEN) {
        let chunk = moov.u32(row);
        let samples = moov.u32(row + 4);
        let id = moov.u32(row + 8);
        let is_last = row + ROW_LEN >= rows.end;
        let next = if is_last { chunk_count + 1 } else { moov.u32(row + ROW_LEN).into() };
        let Some(chunks) = next.checked_sub(chunk.into()) else {
            return Err(Fault::In("unordered mp4 stsc chunks"));
        };
        let in_row = chunks.saturating_mul(samples.into());
        if within < in_row || is_last && within == in_row {
            if samples == 0 {
                return Err(Fault::In("zero number of samples"));
            }
            if chunk == 0 {
                return Err(Fault::In("zero chunk"));
            }
            return Ok(SamplePosition { row, chunk, samples, id, next, within, before });
        }
        if is_last {
            break;
        }
        within -= in_row;
        if chunks > 0 {
            before = samples;
        }
    }
    Err(Fault::In(out))
}

/// Cuts `stsc`, and counts from the new first chunk.
pub(super) fn cut(
    moov: &mut Moov,
    track: &mut Track,
    samples: &Samples,
    part: &Part,
) -> Result<Chunks, Fault> {
    let chunk_count = track.places.as_ref().map_or(0, |places| places.count());
    let Some(table) = track.stsc.as_mut() else { return Err(Fault::In("no mp4 stsc atoms were found")) };
    if table.rows.is_empty() {
        return Err(Fault::In("zero number of entries in stsc atom"));
    }
    let out = "start time is out mp4 stsc chunks";
    let sample_position = find(moov, table.rows.clone(), samples.start, chunk_count, out)?;
    let (first, skipped) = sample_position.place();
    table.rows.start = sample_position.row;
    moov.put_u32(sample_position.row, (first as u32).wrapping_add(1));
    if skipped > 0 {
        let remaining = sample_position.samples - skipped;
        if first + 2 == sample_position.next {
            moov.put_u32(sample_position.row + 4, remaining);
        } else {
            track.first_chunk = Some([1, remaining, sample_position.id]);
            moov.put_u32(sample_position.row, (first as u32).wrapping_add(2));
        }
    }
    let mut chunks = Chunks { start: first, skipped: skipped.into(), end: chunk_count, last: 0 };
    if part.has_end() {
        cut_end(moov, track, samples.len(), chunk_count, &mut chunks)?;
    }
    if let Some(table) = &track.stsc {
        for row in table.rows.clone().step_by(ROW_LEN) {
            let chunk = moov.u32(row);
            moov.put_u32(row, chunk.wrapping_sub(first as u32));
        }
    }
    Ok(chunks)
}

fn cut_end(
    moov: &mut Moov,
    track: &mut Track,
    mut samples: u64,
    chunk_count: u64,
    chunks: &mut Chunks,
) -> Result<(), Fault> {
    let Some(table) = track.stsc.as_mut() else { return Ok(()) };
    // DIFF(nginx): where a part ends with its first chunk, nginx leaves that chunk out of the data.
    let mut in_first = 0;
    if let Some([_, first, _]) = &mut track.first_chunk {
        *first = (*first).min(u32::try_from(samples).unwrap_or(u32::MAX));
        in_first = *first;
        samples -= u64::from(in_first);
    }
    let sample_position =
        find(moov, table.rows.clone(), samples, chunk_count, "end time is out mp4 stsc chunks")?;
    let (target, partly) = sample_position.place();
    (table.rows.end, chunks.last) = match sample_position.within {
        0 if sample_position.row == table.rows.start => (sample_position.row, in_first.into()),
        0 => (sample_position.row, sample_position.before.into()),
        _ => (sample_position.row + ROW_LEN, sample_position.samples.into()),
    };
    chunks.end = target;
    if partly > 0 {
        chunks.end = target + 1;
        chunks.last = partly.into();
        if target + 1 == u64::from(sample_position.chunk) {
            moov.put_u32(sample_position.row + 4, partly);
        } else {
            let chunk = chunks.end.saturating_sub(chunks.start) as u32;
            track.last_chunk = Some([chunk, partly, sample_position.id]);
        }
    }
    Ok(())
}

/// Cuts `stsz`.
pub(super) fn cut_sizes(
    moov: &mut Moov,
    track: &mut Track,
    samples: &Samples,
    chunks: &Chunks,
    file_size: u64,
    part: &Part,
) -> Result<EdgeSizes, Fault> {
    let Some(sizes) = track.stsz.as_mut() else { return Ok(EdgeSizes::default()) };
    let uniform = u64::from(sizes.uniform);
    let rows = sizes.table.rows.clone();
    // Bytes of `count` samples in front of sample `end`.
    let sum = |count: u64, end: u64| {
        if uniform > 0 {
            return uniform.saturating_mul(count);
        }
        let row = |sample: u64| rows.start + (sample as usize) * 4;
        (row(end.saturating_sub(count))..row(end)).step_by(4).map(|row| u64::from(moov.u32(row))).sum()
    };
    // DIFF(nginx): nginx does not cut a table of samples that all have the same size.
    let Some(remaining) =
        u64::from(sizes.count).checked_sub(samples.start).filter(|remaining| *remaining > 0)
    else {
        return Err(Fault::In("start time is out mp4 stsz samples"));
    };
    let mut edges = EdgeSizes { skipped: sum(chunks.skipped, samples.start), last: 0 };
    if edges.skipped > file_size {
        return Err(Fault::In("too large mp4 start samples size"));
    }
    let mut count = remaining;
    if part.has_end() {
        if samples.len() > remaining {
            return Err(Fault::In("end time is out mp4 stsz samples"));
        }
        count = samples.len();
        edges.last = sum(chunks.last, samples.end);
        if edges.last > file_size {
            return Err(Fault::In("too large mp4 end samples size"));
        }
    }
    // The new count is at most the old one, so the cast is exact.
    sizes.count = count as u32;
    if uniform == 0 {
        sizes.table.rows.start += samples.start as usize * 4;
        sizes.table.rows.end = sizes.table.rows.start + count as usize * 4;
    }
    Ok(edges)
}

/// Cuts `stco` or `co64`; returns the bytes of the file that the part spans, nothing if there is no chunk in it.
pub(super) fn cut_places(
    moov: &mut Moov,
    track: &mut Track,
    chunks: &Chunks,
    sizes: &EdgeSizes,
    edges: &Edges,
    part: &Part,
) -> Result<Range<u64>, Fault> {
    let Some(places) = track.places.as_mut() else { return Err(Fault::In("no mp4 stco atoms were found")) };
    let is_short = places.width == OffsetWidth::Four;
    let start_out = "start time is out mp4 stco chunks";
    let end_out = "end time is out mp4 stco chunks";
    let out = |short: &'static str, long: &'static str| Fault::In(if is_short { short } else { long });
    let count = places.count();
    if chunks.start >= count {
        return Err(out(start_out, "start time is out mp4 co64 chunks"));
    }
    let behind = |place: u64, size: u64| {
        let end = place.checked_add(size).filter(|end| *end <= edges.file_size);
        let end = end.filter(|end| !is_short || u32::try_from(*end).is_ok());
        end.ok_or(Fault::In("too large chunk offset"))
    };
    let width = places.row_len();
    places.table.rows.start += chunks.start as usize * width;
    let first = places.table.rows.start;
    let start = behind(places.get(moov, first), sizes.skipped)?;
    places.put(moov, first, start);
    let end = if part.has_end() {
        if chunks.end > count {
            return Err(out(end_out, "end time is out mp4 co64 chunks"));
        }
        let remaining = chunks.end.saturating_sub(chunks.start) as usize;
        places.table.rows.end = first + remaining * width;
        if remaining == 0 {
            return Ok(edges.file_size..0);
        }
        behind(places.get(moov, places.table.rows.end - width), sizes.last)?
    } else {
        edges.mdat_end
    };
    Ok(start..end)
}
