//! A segment, with the records that its table or its blocks tell.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tw_cache::segment::{
    BLOCK_SIZE, PREFIX_SIZE, RecordPrefix, RecordState, SegmentError, SegmentHeader, SegmentRow, decode_table,
};

use super::pace::pause;
use super::stored::{StoredPlace, StoredResponse, read_up_to};

/// Bytes that are read at once while records are searched.
const SCAN_READ: u64 = 1 << 20;
/// Number of readings of a segment before it counts as damaged, and the time between two of them: records may be arriving.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(50);

/// Place of a segment: a file, or a slot of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SegmentPlace {
    /// Path of the file or the device.
    pub(super) path: PathBuf,
    /// Number of the segment.
    pub(super) number: u32,
    /// Offset of the segment in the file or on the device.
    pub(super) base: u64,
    /// Bytes of the slot; `None` for a file.
    pub(super) size: Option<u64>,
}

/// Segment that is open.
#[derive(Debug)]
pub(super) struct SegmentFile {
    place: SegmentPlace,
    file: Arc<File>,
    header: SegmentHeader,
    pub(super) size: u64,
}

/// Result of opening a segment.
#[derive(Debug)]
pub(super) enum OpenedSegment {
    Open(SegmentFile),
    /// Removed, or without content so far.
    Nothing,
    /// Segment with a damaged header: none of its records can be used.
    Damaged(SegmentError),
}

/// Records of a segment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SegmentRecords {
    pub(super) rows: Vec<SegmentRow>,
    /// Offset of a part that is damaged, and a word for it.
    pub(super) damage: Option<(u64, &'static str)>,
    /// Offset of the end that is not complete: a record that is being written, or was at a crash.
    pub(super) torn: Option<u64>,
    /// True if the segment has a table: nothing is added to it any more.
    pub(super) is_complete: bool,
}

impl SegmentFile {
    /// Opens the segment at this place.
    pub(super) fn open(place: &SegmentPlace) -> io::Result<OpenedSegment> {
        let file = match File::open(&place.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(OpenedSegment::Nothing),
            Err(error) => return Err(error),
        };
        let mut tries = 0;
        loop {
            let first = read_up_to(&file, place.base, BLOCK_SIZE)?;
            let size = place.size.map_or_else(|| file.metadata().map(|meta| meta.len()), Ok)?;
            tries += 1;
            match SegmentHeader::decode(&first, place.number) {
                Ok(header) => {
                    let place = place.clone();
                    let file = Arc::new(file);
                    return Ok(OpenedSegment::Open(Self { place, file, header, size }));
                }
                Err(_) if first.is_empty() => return Ok(OpenedSegment::Nothing),
                // The slot was freed, or has another segment.
                Err(SegmentError::Magic | SegmentError::Place) if place.size.is_some() => {
                    return Ok(OpenedSegment::Nothing);
                }
                Err(why) if tries >= TRIES => return Ok(OpenedSegment::Damaged(why)),
                Err(_) => pause(PAUSE),
            }
        }
    }

    /// Records that the table names, or that are found if there is no table, or a damaged one.
    pub(super) fn records(&mut self) -> io::Result<SegmentRecords> {
        let mut tries = 0;
        loop {
            tries += 1;
            let records = self.read_records()?;
            if records.damage.is_none() && records.torn.is_none() || tries >= TRIES {
                return Ok(records);
            }
            pause(PAUSE);
            // Records may have been added, or the table.
            if let OpenedSegment::Open(again) = Self::open(&self.place)? {
                *self = again;
            }
        }
    }

    fn read_records(&self) -> io::Result<SegmentRecords> {
        let Some(table) = self.header.table else {
            let (rows, damaged, torn) = self.search(self.size)?;
            let damage = damaged.map(|offset| (self.place.base + offset, "record"));
            // A slot has the end of an earlier segment behind the last record.
            let torn = torn.filter(|_| self.place.size.is_none()).map(|offset| self.place.base + offset);
            return Ok(SegmentRecords { rows, damage, torn, is_complete: false });
        };
        let offset = u64::from(table.block) * BLOCK_SIZE;
        // A damaged header may have any offset.
        let bytes = if offset + table.len() <= self.size {
            read_up_to(&self.file, self.place.base + offset, table.len())?
        } else {
            Vec::new()
        };
        match decode_table(&bytes, &table) {
            Ok(rows) => Ok(SegmentRecords { rows, is_complete: true, ..SegmentRecords::default() }),
            Err(why) => {
                let why = match why {
                    SegmentError::Checksum => "table-checksum",
                    _ => "table",
                };
                let (rows, ..) = self.search(offset.min(self.size))?;
                let damage = Some((self.place.base + offset, why));
                Ok(SegmentRecords { rows, damage, torn: None, is_complete: true })
            }
        }
    }

    /// Finds the records before `end` that were not removed; the offset of what is between two of them and is none; and the
    /// offset behind the last one, if there is something that is none.
    fn search(&self, end: u64) -> io::Result<(Vec<SegmentRow>, Option<u64>, Option<u64>)> {
        let mut rows = Vec::new();
        let mut damaged = None;
        let mut lost = None;
        let mut window = Vec::new();
        let mut window_at = 0;
        let mut block = 1_u32;
        loop {
            let offset = u64::from(block) * BLOCK_SIZE;
            if offset + PREFIX_SIZE > end {
                break;
            }
            if offset < window_at || offset + PREFIX_SIZE > window_at + window.len() as u64 {
                let len = SCAN_READ.min(end - offset);
                (window, window_at) = (read_up_to(&self.file, self.place.base + offset, len)?, offset);
            }
            // The difference is no more than a window.
            let from = usize::try_from(offset - window_at).unwrap_or(usize::MAX);
            let bytes = window.get(from..).unwrap_or_default();
            if bytes.len() < usize::try_from(PREFIX_SIZE).unwrap_or(0) {
                break;
            }
            match RecordPrefix::decode(bytes, &self.header, block) {
                Ok((prefix, state)) if offset + PREFIX_SIZE + prefix.len <= end => {
                    damaged = damaged.or(lost.take());
                    if state == RecordState::Stored {
                        let RecordPrefix { key, sequence, valid_until, .. } = prefix;
                        let blocks = prefix.blocks();
                        rows.push(SegmentRow { key, block, blocks, sequence, valid_until });
                    }
                    block = block.saturating_add(prefix.blocks());
                }
                _ => {
                    lost.get_or_insert(offset);
                    block = block.saturating_add(1);
                }
            }
        }
        Ok((rows, damaged, lost))
    }

    /// The response of a row.
    pub(super) fn response(&self, row: &SegmentRow) -> StoredResponse {
        let header = self.header;
        let base = self.place.base;
        let place = StoredPlace::Record { header, address: row.address(header.number), base };
        StoredResponse { path: self.place.path.clone(), file: self.file.clone(), key: row.key, place }
    }
}
