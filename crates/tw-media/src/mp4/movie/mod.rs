//! Cuts a part out of an MP4 file (ISO/IEC 14496-12): a new description of the movie, and the bytes of the file that
//! follow it. Bytes in, bytes out: no input and output, and nothing a file holds can panic.
//!
//! ```text
//! moov ─ parse ─→ tracks ─ cut each ─→ tables of what is left ─ write ─→ ftyp, moov, header of mdat
//! ```

mod boxes;
mod chunks;
mod fault;
mod part;
mod samples;
mod times;
mod track;
mod write;

use std::ops::Range;

pub(crate) use boxes::{HEADER_MAX, ParsedHeader, read_header};
pub(crate) use fault::Fault;
pub(crate) use part::{Part, PartStart};
pub(crate) use samples::{Movie, Sample, SampleCursor, SampleTable};

use boxes::Moov;
use track::Track;

/// Length of the header of a box that is written.
const HEADER_LEN: usize = 8;

/// Layout of the file around its `moov`.
#[derive(Debug)]
pub(crate) struct FileLayout {
    /// Length of the file.
    pub(crate) file_size: u64,
    /// Content of `ftyp`, if there is one.
    pub(crate) ftyp: Option<Vec<u8>>,
    /// End of the content of `mdat` in the file, if there is one.
    pub(crate) mdat_end: Option<u64>,
}

/// Response: `head`, then these bytes of the file.
#[derive(Debug)]
pub(crate) struct Piece {
    /// `ftyp`, `moov` and the header of `mdat`.
    pub(crate) head: Vec<u8>,
    /// Bytes of the file: inside it, and not empty.
    pub(crate) data: Range<u64>,
}

/// Cuts `part` out of a movie; `moov` is the content of that box. Cost: some passes over the tables, about 10 ns an entry.
pub(crate) fn cut(moov: Vec<u8>, around: &FileLayout, part: &Part) -> Result<Piece, Fault> {
    let mut moov = Moov::new(moov);
    let parsed = track::parse(&mut moov, part)?;
    if parsed.tracks.is_empty() {
        return Err(Fault::In("no mp4 trak atoms were found"));
    }
    let Some(mdat_end) = around.mdat_end else {
        return Err(Fault::In("no mp4 mdat atom was found"));
    };
    let mut tracks = Vec::with_capacity(parsed.tracks.len());
    let mut data = around.file_size..0;
    for track in parsed.tracks {
        let cut = cut_track(&mut moov, track, around.file_size, mdat_end, part)?;
        data.start = data.start.min(cut.1.start);
        data.end = data.end.max(cut.1.end);
        tracks.push(cut.0);
    }
    if data.end <= data.start {
        return Err(Fault::In("no data between start time and end time"));
    }
    if data.start >= mdat_end {
        return Err(Fault::In("start time is out mp4 mdat atom"));
    }
    let head = write::head(&moov, around.ftyp.as_deref(), parsed.mvhd.as_ref(), &tracks, &data);
    Ok(Piece { head, data })
}

/// Cuts the tables of a track; returns the bytes of the file that its samples span.
fn cut_track(
    moov: &mut Moov,
    mut track: Track,
    file_size: u64,
    mdat_end: u64,
    part: &Part,
) -> Result<(Track, Range<u64>), Fault> {
    let samples = times::cut(moov, &mut track, part)?;
    times::cut_sync(moov, &mut track, &samples, part);
    times::cut_offsets(moov, &mut track, &samples, part);
    let chunks = chunks::cut(moov, &mut track, &samples, part)?;
    let sizes = chunks::cut_sizes(moov, &mut track, &samples, &chunks, file_size, part)?;
    let edges = chunks::Edges { file_size, mdat_end };
    let data = chunks::cut_places(moov, &mut track, &chunks, &sizes, &edges, part)?;
    Ok((track, data))
}

#[cfg(test)]
mod tests;
