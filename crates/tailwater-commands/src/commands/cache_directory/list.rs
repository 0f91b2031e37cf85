//! Responses of a cache that a server would use: the newest of each key, without purged ones.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use tw_cache::segment::SegmentRow;
use tw_cache::{Key, Purge, Purges, Subject, Tag, Verdict};

use super::segment_file::{OpenedSegment, SegmentFile, SegmentPlace};
use super::stored::{HeadError, StoredHead, StoredResponse};
use super::walk::{CacheFile, walk};

/// Response of a cache.
pub(super) struct Listed<'a> {
    pub(super) stored: &'a StoredResponse,
    pub(super) head: &'a StoredHead,
    /// True if a soft purge has made it stale.
    pub(super) is_purged_soft: bool,
}

/// Number of what was left out.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    pub(super) damaged: u64,
    pub(super) purged: u64,
}

/// Visits the responses whose keys begin with `prefix`. Needs about 50 bytes of memory for each record in segments.
///
/// # Errors
/// The directory cannot be read, or `visit` has failed.
pub(super) fn list(
    dir: &Path,
    prefix: &[u8],
    purges: Option<&Purges>,
    visit: &mut dyn FnMut(Listed<'_>) -> io::Result<()>,
) -> io::Result<LeftOut> {
    let mut lister = Lister { prefix, purges, left_out: LeftOut::default(), visit };
    let newest = newest_records(dir)?;
    walk(dir, &mut |cache_file| match cache_file {
        CacheFile::Response(file) => match StoredResponse::open(&file)? {
            Some(stored) => lister.response(&stored, newest.get(&file.key).map(|newest| newest.0)),
            None => Ok(()),
        },
        CacheFile::Segment(place) => lister.segment(&place, &newest),
        CacheFile::Unfinished { .. } => Ok(()),
    })?;
    Ok(lister.left_out)
}

/// Sequence number, segment and block of the newest record of each key; of a newer file the number alone.
type Newest = HashMap<Key, (u64, Option<(u32, u32)>)>;

fn newest_records(dir: &Path) -> io::Result<Newest> {
    let mut newest = Newest::new();
    let mut files = Vec::new();
    walk(dir, &mut |cache_file| {
        match cache_file {
            CacheFile::Response(file) => files.push(file),
            CacheFile::Segment(place) => {
                let OpenedSegment::Open(mut segment) = SegmentFile::open(&place)? else { return Ok(()) };
                let number = place.number;
                for row in segment.records()?.rows {
                    let place = (row.sequence, Some((number, row.block)));
                    let known_row = newest.entry(row.key).or_insert(place);
                    if known_row.0 < row.sequence {
                        *known_row = place;
                    }
                }
            }
            CacheFile::Unfinished { .. } => {}
        }
        Ok(())
    })?;
    // A response may have become too large for a record, or small enough.
    for file in files {
        let Some(known_row) = newest.get_mut(&file.key) else { continue };
        let Some(stored) = StoredResponse::open(&file)? else { continue };
        match stored.head() {
            Ok(head) if head.sequence > known_row.0 => *known_row = (head.sequence, None),
            _ => {}
        }
    }
    Ok(newest)
}

struct Lister<'a, 'v> {
    prefix: &'a [u8],
    purges: Option<&'a Purges>,
    left_out: LeftOut,
    visit: &'v mut dyn FnMut(Listed<'_>) -> io::Result<()>,
}

impl Lister<'_, '_> {
    fn segment(&mut self, place: &SegmentPlace, newest: &Newest) -> io::Result<()> {
        let number = place.number;
        let mut segment = match SegmentFile::open(place)? {
            OpenedSegment::Open(segment) => segment,
            OpenedSegment::Nothing => return Ok(()),
            OpenedSegment::Damaged(_) => {
                self.left_out.damaged += 1;
                return Ok(());
            }
        };
        let is_newest = |row: &SegmentRow| {
            // A record that was stored since the search is new as well.
            newest.get(&row.key).is_none_or(|newest| match newest.1 {
                Some(place) => place == (number, row.block),
                None => false,
            })
        };
        for row in segment.records()?.rows.iter().filter(|row| is_newest(row)) {
            self.response(&segment.response(row), None)?;
        }
        Ok(())
    }

    /// Visits a response, unless a record with the number `other` is newer.
    fn response(&mut self, stored: &StoredResponse, other: Option<u64>) -> io::Result<()> {
        let head = match stored.head() {
            Ok(head) => head,
            Err(HeadError::Gone) => return Ok(()),
            Err(HeadError::Io(error)) => return Err(super::walk::named(&stored.path, &error)),
            Err(HeadError::Damaged { .. }) => {
                self.left_out.damaged += 1;
                return Ok(());
            }
        };
        let meta = &head.meta;
        if other.is_some_and(|other| other > head.sequence) || !meta.key_text.starts_with(self.prefix) {
            return Ok(());
        }
        let tags: Vec<Tag> = meta.tags.iter().map(Tag::of).collect();
        let subject = Subject { key: meta.key, text: &meta.key_text, tags: &tags };
        let verdict = self.purges.map(|purges| purges.verdict(head.sequence, &subject));
        if matches!(verdict, Some(Verdict::Purged(Purge::Hard))) {
            self.left_out.purged += 1;
            return Ok(());
        }
        let is_purged_soft = matches!(verdict, Some(Verdict::Purged(Purge::Soft)));
        (self.visit)(Listed { stored, head: &head, is_purged_soft })
    }
}
