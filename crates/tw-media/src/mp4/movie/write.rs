//! The new head: `ftyp`, `moov` with the rest of its tracks, and the header of `mdat`.

use std::ops::Range;

use super::HEADER_LEN;
use super::boxes::Moov;
use super::track::{OffsetWidth, TableBox, Track};

/// Offset that is added to the places of chunks once it is known.
struct OffsetRows {
    /// Rows in the head.
    rows: Range<usize>,
    width: OffsetWidth,
}

/// Writes everything that stands in front of the samples, which are `data` of the old file.
pub(super) fn head(
    moov: &Moov,
    ftyp: Option<&[u8]>,
    mvhd: Option<&Range<usize>>,
    tracks: &[Track],
    data: &Range<u64>,
) -> Vec<u8> {
    let mut writer = Writer { moov, out: Vec::with_capacity(moov.len() + 128), places: Vec::new() };
    if let Some(ftyp) = ftyp {
        writer.nested(*b"ftyp", |w| w.out.extend_from_slice(ftyp));
    }
    writer.nested(*b"moov", |w| {
        w.whole(*b"mvhd", mvhd);
        tracks.iter().for_each(|track| w.track(track));
    });
    let Writer { mut out, places, .. } = writer;
    let len = data.end.saturating_sub(data.start);
    match u32::try_from(len + HEADER_LEN as u64) {
        Ok(size) => {
            out.extend_from_slice(&size.to_be_bytes());
            out.extend_from_slice(b"mdat");
        }
        Err(_) => {
            out.extend_from_slice(&1_u32.to_be_bytes());
            out.extend_from_slice(b"mdat");
            out.extend_from_slice(&(len + 2 * HEADER_LEN as u64).to_be_bytes());
        }
    }
    let moved = (out.len() as u64).wrapping_sub(data.start);
    for place in places {
        let Some(rows) = out.get_mut(place.rows) else { continue };
        match place.width {
            OffsetWidth::Four => rows.as_chunks_mut().0.iter_mut().for_each(|row| {
                *row = u32::from_be_bytes(*row).wrapping_add(moved as u32).to_be_bytes();
            }),
            OffsetWidth::Eight => rows.as_chunks_mut().0.iter_mut().for_each(|row| {
                *row = u64::from_be_bytes(*row).wrapping_add(moved).to_be_bytes();
            }),
        }
    }
    out
}

struct Writer<'a> {
    moov: &'a Moov,
    out: Vec<u8>,
    places: Vec<OffsetRows>,
}

impl Writer<'_> {
    /// A box with what `content` writes.
    fn nested(&mut self, name: [u8; 4], content: impl FnOnce(&mut Self)) {
        let start = self.out.len();
        self.out.extend_from_slice(&[0; 4]);
        self.out.extend_from_slice(&name);
        content(self);
        // A box is not larger than the one it comes from, but for a few bytes.
        let size = u32::try_from(self.out.len() - start).unwrap_or(u32::MAX);
        if let Some(place) = self.out.get_mut(start..).and_then(|rest| rest.first_chunk_mut()) {
            *place = size.to_be_bytes();
        }
    }

    /// A box as it was, if there was one.
    fn whole(&mut self, name: [u8; 4], content: Option<&Range<usize>>) {
        if let Some(content) = content {
            self.nested(name, |w| w.out.extend_from_slice(w.moov.slice(content.clone())));
        }
    }

    /// A table with `count` rows.
    fn table(&mut self, name: [u8; 4], table: &TableBox, count: usize, rows: impl FnOnce(&mut Self)) {
        self.nested(name, |w| {
            w.out.extend_from_slice(w.moov.slice(table.flags..table.flags + 4));
            w.number(u32::try_from(count).unwrap_or(u32::MAX));
            rows(w);
        });
    }

    /// A table of which rows of `row_len` bytes are left as they stand in `moov`.
    fn rows(&mut self, name: [u8; 4], table: Option<&TableBox>, row_len: usize) {
        if let Some(table) = table {
            self.table(name, table, table.rows.len() / row_len, |w| {
                w.out.extend_from_slice(w.moov.slice(table.rows.clone()));
            });
        }
    }

    fn number(&mut self, number: u32) {
        self.out.extend_from_slice(&number.to_be_bytes());
    }

    fn track(&mut self, track: &Track) {
        self.nested(*b"trak", |w| {
            w.whole(*b"tkhd", track.tkhd.as_ref());
            w.edit_list(track);
            w.nested(*b"mdia", |w| {
                w.whole(*b"mdhd", track.mdhd.as_ref());
                w.whole(*b"hdlr", track.hdlr.as_ref());
                w.nested(*b"minf", |w| {
                    if let Some((name, content)) = &track.media {
                        w.whole(*name, Some(content));
                    }
                    w.whole(*b"dinf", track.dinf.as_ref());
                    w.nested(*b"stbl", |w| w.tables(track));
                });
            });
        });
    }

    /// Writes the edit list that hides the samples in front of the part.
    fn edit_list(&mut self, track: &Track) {
        if track.prefix == 0 {
            return;
        }
        self.nested(*b"edts", |w| {
            w.nested(*b"elst", |w| {
                // Version 1, one entry.
                w.out.extend_from_slice(&[1, 0, 0, 0, 0, 0, 0, 1]);
                w.out.extend_from_slice(&track.movie_duration.to_be_bytes());
                w.out.extend_from_slice(&track.prefix.to_be_bytes());
                // The media rate is normal speed.
                w.out.extend_from_slice(&[0, 1, 0, 0]);
            });
        });
    }

    fn tables(&mut self, track: &Track) {
        self.whole(*b"stsd", track.stsd.as_ref());
        self.rows(*b"stts", track.stts.as_ref(), 8);
        self.rows(*b"stss", track.stss.as_ref(), 4);
        self.rows(*b"ctts", track.ctts.as_ref(), 8);
        if let Some(table) = &track.stsc {
            let first = track.first_chunk;
            let last = track.last_chunk;
            let edges = usize::from(first.is_some()) + usize::from(last.is_some());
            self.table(*b"stsc", table, table.rows.len() / 12 + edges, |w| {
                first.iter().flatten().for_each(|number| w.number(*number));
                w.out.extend_from_slice(w.moov.slice(table.rows.clone()));
                last.iter().flatten().for_each(|number| w.number(*number));
            });
        }
        if let Some(sizes) = &track.stsz {
            self.nested(*b"stsz", |w| {
                w.out.extend_from_slice(w.moov.slice(sizes.table.flags..sizes.table.flags + 4));
                w.number(sizes.uniform);
                w.number(sizes.count);
                w.out.extend_from_slice(w.moov.slice(sizes.table.rows.clone()));
            });
        }
        if let Some(places) = &track.places {
            let name = if places.width == OffsetWidth::Four { *b"stco" } else { *b"co64" };
            self.rows(name, Some(&places.table), places.row_len());
            let end = self.out.len();
            self.places.push(OffsetRows { rows: end - places.table.rows.len()..end, width: places.width });
        }
    }
}
