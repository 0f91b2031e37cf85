//! From times to samples: `stts`, and the tables indexed by samples, `stss` and `ctts`.

use std::ops::Range;

use super::boxes::Moov;
use super::fault::Fault;
use super::part::{Part, PartStart, scaled};
use super::track::Track;

/// Length of a row of `stts` and `ctts`: how many samples, and their duration or offset.
pub(super) const RUN_LEN: usize = 8;

/// The samples of a part, counted from 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Samples {
    /// The first.
    pub(super) start: u64,
    /// Behind the last; of no meaning for a part that goes on to the end.
    pub(super) end: u64,
}

impl Samples {
    pub(super) fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Position of a time in a table.
struct TimePosition {
    /// The row.
    row: usize,
    /// Samples in front of it.
    before: u64,
    /// Samples of the row in front of the time; fewer than it has.
    within: u32,
}

/// Looks for a time; the error is the number of samples.
fn find(moov: &Moov, rows: Range<usize>, mut time: u64) -> Result<TimePosition, u64> {
    let mut before = 0;
    for row in rows.step_by(RUN_LEN) {
        let count = moov.u32(row);
        let duration = moov.u32(row + 4);
        let length = u64::from(count) * u64::from(duration);
        if time < length {
            // The result is less than `count`, which has 32 bits; a duration of 0 does not get here.
            let within = (time / u64::from(duration)) as u32;
            return Ok(TimePosition { row, before, within });
        }
        time -= length;
        before += u64::from(count);
    }
    Err(before)
}

/// Cuts `stts`; the duration of the track is final then.
pub(super) fn cut(moov: &mut Moov, track: &mut Track, part: &Part) -> Result<Samples, Fault> {
    let Some(table) = track.stts.as_mut() else { return Err(Fault::In("no mp4 stts atoms were found")) };
    let all = table.rows.clone();
    let Ok(time_position) = find(moov, all.clone(), part.start(track.timescale)) else {
        return Err(Fault::In("start time is out mp4 stts samples"));
    };
    let mut start = time_position.before + u64::from(time_position.within);
    let mut back = match (part.begin, &track.stss) {
        (PartStart::AtKeyFrame, Some(sync)) => behind_key_frame(moov, sync.rows.clone(), start)?,
        _ => 0,
    };
    start = start.saturating_sub(back);
    let mut row = time_position.row;
    let mut within = u64::from(time_position.within);
    while within < back && row > all.start {
        track.prefix = track.prefix.saturating_add(within * u64::from(moov.u32(row + 4)));
        back -= within;
        row -= RUN_LEN;
        within = moov.u32(row).into();
    }
    track.prefix = track.prefix.saturating_add(back.saturating_mul(moov.u32(row + 4).into()));
    track.duration = track.duration.saturating_add(track.prefix);
    let within = within.saturating_sub(back) as u32;
    moov.put_u32(row, moov.u32(row).saturating_sub(within));
    table.rows.start = row;

    let mut samples = Samples { start, end: u64::MAX };
    if part.has_end() {
        let time = scaled(part.length_ms, track.timescale).saturating_add(track.prefix);
        samples.end = start
            + match find(moov, table.rows.clone(), time) {
                Ok(time_position) => {
                    moov.put_u32(time_position.row, time_position.within);
                    table.rows.end = time_position.row + RUN_LEN;
                    time_position.before + u64::from(time_position.within)
                }
                Err(all) => all,
            };
    }
    if let Some(place) = track.duration_at {
        place.put(moov, track.duration);
    }
    Ok(samples)
}

/// Number of samples from the last key frame at or before `start` to it; 0 without one.
pub(super) fn behind_key_frame(moov: &Moov, rows: Range<usize>, start: u64) -> Result<u64, Fault> {
    let mut back = 0;
    for row in rows.step_by(4) {
        // Sample numbers in `stss` count from 1.
        let Some(sample) = u64::from(moov.u32(row)).checked_sub(1) else {
            return Err(Fault::In("zero sync sample"));
        };
        match start.checked_sub(sample) {
            Some(behind) => back = behind,
            None => break,
        }
    }
    Ok(back)
}

/// Cuts `stss`, and counts from the new start.
pub(super) fn cut_sync(moov: &mut Moov, track: &mut Track, samples: &Samples, part: &Part) {
    let Some(table) = track.stss.as_mut() else { return };
    let from = |moov: &Moov, rows: Range<usize>, sample: u64| {
        let end = rows.end;
        rows.step_by(4).find(|row| u64::from(moov.u32(*row)) > sample).unwrap_or(end)
    };
    table.rows.start = from(moov, table.rows.clone(), samples.start);
    if part.has_end() {
        table.rows.end = from(moov, table.rows.clone(), samples.end);
    }
    for row in table.rows.clone().step_by(4) {
        let sample = moov.u32(row);
        moov.put_u32(row, sample.wrapping_sub(samples.start as u32));
    }
}

/// Cuts `ctts`, and removes it if nothing is left.
pub(super) fn cut_offsets(moov: &mut Moov, track: &mut Track, samples: &Samples, part: &Part) {
    let Some(table) = track.ctts.as_mut() else { return };
    match run_of(moov, table.rows.clone(), samples.start) {
        Some((row, within)) => {
            moov.put_u32(row, moov.u32(row).saturating_sub(within));
            table.rows.start = row;
        }
        None => {
            track.ctts = None;
            return;
        }
    }
    if part.has_end()
        && let Some((row, within)) = run_of(moov, table.rows.clone(), samples.len())
    {
        moov.put_u32(row, within);
        table.rows.end = row + RUN_LEN;
    }
}

/// The row of a sample, and how many samples of the row are in front of it.
pub(super) fn run_of(moov: &Moov, rows: Range<usize>, mut sample: u64) -> Option<(usize, u32)> {
    for row in rows.step_by(RUN_LEN) {
        let count = moov.u32(row);
        if sample < u64::from(count) {
            return Some((row, sample as u32));
        }
        sample -= u64::from(count);
    }
    None
}
