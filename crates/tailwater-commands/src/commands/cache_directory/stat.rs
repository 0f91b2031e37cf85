//! `tailwater cache stat`: size, number, age and places of stored responses. Of files only names, sizes and times are read, of records
//! in segments the heads, because only these tell which of them were removed.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tw_cache::format::WrittenBy;
use tw_cache::segment::SegmentRow;
use tw_cache::{RecordSnapshot, SNAPSHOT_BLOCK_SIZE, SnapshotError, SnapshotReader};

use super::device::{Device, size_of};
use super::directory::{FAILED, GOOD, RECORDS, SNAPSHOT, directories, now, purges};
use super::response_file::ResponseFile;
use super::segment_file::{OpenedSegment, SegmentFile, SegmentPlace};
use super::stored::{HeadError, StoredHead, StoredResponse, read_up_to};
use super::text;
use super::walk::{CacheFile, named, walk};
use crate::cli::CacheStatOptions;
use crate::output::console::Console;

/// Longest ages of the groups that are counted, in seconds; the last group has no bound.
const AGES: [i64; 5] = [60, 3600, 86_400, 7 * 86_400, 30 * 86_400];

/// Numbers of one directory.
#[derive(Debug, Default)]
struct Summary {
    files: u64,
    file_bytes: u64,
    unfinished: u64,
    unfinished_bytes: u64,
    foreign_files: u64,
    segments: Segments,
    ages: [u64; AGES.len() + 1],
    oldest: Option<i64>,
    newest: Option<i64>,
    largest: Option<Largest>,
    /// The device that has the segments, or the reason why it is not read.
    device: Option<Result<Device, String>>,
}

#[derive(Debug, Default)]
struct Segments {
    count: u64,
    bytes: u64,
    /// Segments without a table: they are written to, or were at a crash.
    open: u64,
    damaged: u64,
    records: u64,
    removed: u64,
    damaged_records: u64,
    live_bytes: u64,
    /// Segments by the share of their bytes that is in use, in tenths.
    shares: [u64; 11],
}

#[derive(Debug)]
struct Largest {
    bytes: u64,
    path: PathBuf,
    place: LargestPlace,
}

#[derive(Debug)]
enum LargestPlace {
    File(ResponseFile),
    Record(SegmentPlace, SegmentRow),
}

/// Shows the numbers of each directory.
pub(super) fn run(options: &CacheStatOptions, console: &Console) -> u8 {
    let mut status = GOOD;
    let mut all = Vec::new();
    for dir in directories(&options.directories) {
        match Summary::of(&dir, options.is_quick) {
            Ok(summary) if options.is_json => all.push(summary.json(&dir, options.is_quick)),
            Ok(summary) => crate::output::stdout::write_out(&summary.text(&dir, options.is_quick)),
            Err(error) => {
                console.plain(format_args!("{error}"));
                status = FAILED;
            }
        }
    }
    if options.is_json {
        let shown: String = all.iter().map(|value| format!("{value}\n")).collect();
        crate::output::stdout::write_out(&shown);
    }
    status
}

impl Summary {
    fn of(dir: &Path, is_quick: bool) -> io::Result<Self> {
        let mut all = Self::default();
        let now = now();
        let foreign_files = walk(dir, &mut |cache_file| {
            match cache_file {
                CacheFile::Response(file) => all.file(file, now),
                CacheFile::Unfinished { size } => {
                    all.unfinished += 1;
                    all.unfinished_bytes += size;
                }
                CacheFile::Segment(place) => all.segment(&place, is_quick, now)?,
            }
            Ok(())
        })?;
        all.foreign_files = foreign_files.0;
        all.device = Device::of(dir);
        Ok(all)
    }

    fn file(&mut self, file: ResponseFile, now: i64) {
        self.files += 1;
        self.file_bytes += file.size;
        self.age(now - file.changed);
        if self.largest.as_ref().is_none_or(|largest| largest.bytes < file.size) {
            let bytes = file.size;
            let path = file.path.clone();
            self.largest = Some(Largest { bytes, path, place: LargestPlace::File(file) });
        }
    }

    fn segment(&mut self, place: &SegmentPlace, is_quick: bool, now: i64) -> io::Result<()> {
        let path = &*place.path;
        let number = place.number;
        let mut segment = match SegmentFile::open(place)? {
            OpenedSegment::Nothing => return Ok(()),
            OpenedSegment::Damaged(_) => {
                self.segments.count += 1;
                self.segments.damaged += 1;
                self.segments.bytes += size_of(place);
                return Ok(());
            }
            OpenedSegment::Open(segment) => segment,
        };
        let records = segment.records()?;
        let mut live = 0;
        for row in &records.rows {
            let bytes = row.address(number).size();
            if !is_quick {
                match segment.response(row).head() {
                    Ok(head) => self.age(now - head.meta.lifetime.responded),
                    Err(HeadError::Gone) => {
                        self.segments.removed += 1;
                        continue;
                    }
                    Err(HeadError::Damaged { .. }) => {
                        self.segments.damaged_records += 1;
                        continue;
                    }
                    Err(HeadError::Io(error)) => return Err(named(path, &error)),
                }
            }
            live += bytes;
            self.segments.records += 1;
            if self.largest.as_ref().is_none_or(|largest| largest.bytes < bytes) {
                let place = LargestPlace::Record(place.clone(), *row);
                self.largest = Some(Largest { bytes, path: path.to_owned(), place });
            }
        }
        let all = &mut self.segments;
        all.count += 1;
        all.open += u64::from(!records.is_complete);
        all.bytes += segment.size;
        all.live_bytes += live;
        let tenth = usize::try_from((live * 10).checked_div(segment.size).unwrap_or(0)).unwrap_or(10);
        if let Some(share) = all.shares.get_mut(tenth) {
            *share += 1;
        }
        Ok(())
    }

    fn age(&mut self, age: i64) {
        let group = AGES.iter().position(|longest| age < *longest).unwrap_or(AGES.len());
        if let Some(count) = self.ages.get_mut(group) {
            *count += 1;
        }
        self.oldest = Some(self.oldest.map_or(age, |oldest| oldest.max(age)));
        self.newest = Some(self.newest.map_or(age, |newest| newest.min(age)));
    }

    fn responses(&self) -> u64 {
        self.files + self.segments.records
    }

    fn bytes(&self) -> u64 {
        self.file_bytes + self.segments.bytes
    }

    fn store(&self) -> &'static str {
        if self.segments.count > 0 || self.device.is_some() { "log" } else { "files" }
    }

    /// Head of the largest response.
    fn largest_head(&self) -> Option<StoredHead> {
        let largest = self.largest.as_ref()?;
        let stored = match &largest.place {
            LargestPlace::File(file) => StoredResponse::open(file).ok()??,
            LargestPlace::Record(place, row) => match SegmentFile::open(place).ok()? {
                OpenedSegment::Open(segment) => segment.response(row),
                _ => return None,
            },
        };
        stored.head().ok()
    }

    fn text(&self, dir: &Path, is_quick: bool) -> String {
        let mut out = String::new();
        let mut row = |name: &str, value: String| {
            // Writing into a String does not fail.
            let _ = writeln!(out, "{name:<13}{value}");
        };
        row("directory", dir.display().to_string());
        let head = self.largest_head();
        let format = head.as_ref().map_or_else(String::new, |head| format!(", format {}", format(head)));
        row("store", format!("{}{format}", self.store()));
        let places = match self.segments.count {
            0 => String::new(),
            _ => format!(
                ", {} in segments, {} in files",
                text::count(self.segments.records),
                text::count(self.files)
            ),
        };
        row("responses", format!("{}{places}", text::count(self.responses())));
        row("bytes", text::bytes(self.bytes()));
        if let Some(largest) = &self.largest {
            let key =
                head.map_or_else(String::new, |head| format!(", key {}", text::key(&head.meta.key_text)));
            row("largest", format!("{}{key}", text::bytes(largest.bytes)));
            row("", largest.path.display().to_string());
        }
        if let (Some(oldest), Some(newest)) = (self.oldest, self.newest) {
            row("age", format!("{} to {}", text::span(newest), text::span(oldest)));
            row("", self.ages_text());
        }
        if self.segments.count > 0 {
            for line in self.segments.lines(is_quick) {
                row(if line.0 { "segments" } else { "" }, line.1);
            }
        }
        match &self.device {
            Some(Ok(device)) => {
                let path = device.path.display();
                let number = &device.number;
                row("device", format!("{path}, number {number}"));
                let slots = device.superblock.slots;
                let size = text::bytes(device.superblock.slot_size);
                row("", format!("{} of {} slots of {size} in use", self.segments.count, slots));
            }
            Some(Err(why)) => row("device", format!("segments are on {why}")),
            None => {}
        }
        if self.unfinished > 0 {
            let count = text::count(self.unfinished);
            let bytes = text::bytes(self.unfinished_bytes);
            row("unfinished", format!("{count}, {bytes}"));
        }
        if let Some(free) = free(dir) {
            row("free", format!("{} on this disk", text::bytes(free)));
        }
        row("snapshot", Snapshot::of_files(dir).text());
        let records = Snapshot::of_records(dir);
        if !records.is_missing() {
            row("", format!("of records: {}", records.text()));
        }
        row("purges", purges_text(dir));
        if self.foreign_files > 0 {
            row("others", format!("{} files that do not belong to a cache", text::count(self.foreign_files)));
        }
        out.push('\n');
        out
    }

    fn ages_text(&self) -> String {
        let names = ["a minute", "an hour", "a day", "a week", "30 days"];
        let mut parts = Vec::new();
        for (count, name) in self.ages.iter().zip(names).filter(|(count, _)| **count > 0) {
            parts.push(format!("{} under {name}", text::count(*count)));
        }
        if let Some(count) = self.ages.last().filter(|count| **count > 0) {
            parts.push(format!("{} older", text::count(*count)));
        }
        parts.join(", ")
    }

    fn json(&self, dir: &Path, is_quick: bool) -> Value {
        let segments = &self.segments;
        let snapshot = Snapshot::of_files(dir);
        let records = Snapshot::of_records(dir);
        let purges = purges(dir);
        let marks = purges.as_ref().ok().and_then(|purges| purges.as_ref().map(|purges| purges.counts()));
        let head = self.largest_head();
        let live = |number: u64| if is_quick { Value::Null } else { number.into() };
        json!({
            "directory": dir.display().to_string(),
            "store": self.store(),
            "responses": self.responses(),
            "bytes": self.bytes(),
            "files": { "count": self.files, "bytes": self.file_bytes },
            "segments": {
                "count": segments.count,
                "bytes": segments.bytes,
                "without_table": segments.open,
                "damaged": segments.damaged,
                "records": segments.records,
                "damaged_records": live(segments.damaged_records),
                "removed_records": live(segments.removed),
                "live_bytes": live(segments.live_bytes),
                "by_live_tenths": if is_quick { Value::Null } else { json!(segments.shares) },
            },
            "device": match &self.device {
                None => Value::Null,
                Some(Err(why)) => json!({ "error": why }),
                Some(Ok(device)) => json!({
                    "path": device.path.display().to_string(),
                    "number": device.number,
                    "slots": device.superblock.slots,
                    "slot_bytes": device.superblock.slot_size,
                }),
            },
            "unfinished": { "count": self.unfinished, "bytes": self.unfinished_bytes },
            "age_seconds": {
                "oldest": self.oldest,
                "newest": self.newest,
                "groups": AGES.iter().map(|age| Some(*age)).chain([None]).zip(self.ages)
                    .map(|(under, count)| json!({ "under": under, "count": count }))
                    .collect::<Vec<_>>(),
            },
            "largest": self.largest.as_ref().map(|largest| json!({
                "bytes": largest.bytes,
                "path": largest.path.display().to_string(),
                "key": head.as_ref().map(|head| text::key(&head.meta.key_text)),
                "format": head.as_ref().map(format),
            })),
            "free_bytes": free(dir),
            "snapshot": snapshot.json(),
            "record_snapshot": records.json(),
            "purges": match (&purges, marks) {
                (Err(why), _) => json!({ "error": why }),
                (Ok(_), None) => Value::Null,
                (Ok(_), Some([prefixes, tags, keys])) =>
                    json!({ "prefixes": prefixes, "tags": tags, "keys": keys }),
            },
            "other_files": self.foreign_files,
        })
    }
}

impl Segments {
    /// Lines about segments; true for the first one.
    fn lines(&self, is_quick: bool) -> Vec<(bool, String)> {
        let mut first = format!("{}, {}", text::count(self.count), text::bytes(self.bytes));
        if self.open > 0 {
            // Writing into a String does not fail.
            let _ = write!(first, ", {} without a table", text::count(self.open));
        }
        if self.damaged_records > 0 {
            let _ = write!(first, ", {} damaged records", text::count(self.damaged_records));
        }
        if self.damaged > 0 {
            let _ = write!(first, ", {} with a damaged header", text::count(self.damaged));
        }
        let mut lines = vec![(true, first)];
        if is_quick {
            return lines;
        }
        let share = (self.live_bytes * 100).checked_div(self.bytes).unwrap_or(0);
        let live = text::bytes(self.live_bytes);
        lines.push((
            false,
            format!("{share} % in use ({live}), {} records removed", text::count(self.removed)),
        ));
        let counts = self.shares.iter().enumerate().filter(|(_, count)| **count > 0);
        let groups: Vec<_> =
            counts.map(|(tenth, count)| format!("{} × {} %", text::count(*count), tenth * 10)).collect();
        lines.push((false, format!("by use: {}", groups.join(", "))));
        lines
    }
}

/// Version of the format of a stored response.
fn format(head: &StoredHead) -> &'static str {
    match (head.meta.writer, head.meta.body_sum) {
        (WrittenBy::Nginx, _) => "nginx",
        (WrittenBy::Tailwater, Some(_)) => "2",
        (WrittenBy::Tailwater, None) => "1",
    }
}

/// Word for a snapshot that there is none of.
const MISSING: &str = "none";

/// Snapshot of an index.
struct Snapshot {
    age: Option<i64>,
    entries: Result<u64, String>,
}

impl Snapshot {
    /// Snapshot of the entries with a file of their own.
    fn of_files(dir: &Path) -> Self {
        Self::of(&dir.join(SNAPSHOT), |first| SnapshotReader::open(first).map(|reader| reader.entries()))
    }

    /// Snapshot of the entries with a record in a segment.
    fn of_records(dir: &Path) -> Self {
        Self::of(&dir.join(RECORDS), |first| RecordSnapshot::open(first).map(|snapshot| snapshot.entries()))
    }

    /// Returns true if there is no such file.
    fn is_missing(&self) -> bool {
        self.age.is_none() && self.entries.as_ref().is_err_and(|why| why == MISSING)
    }

    fn of(path: &Path, entries: impl FnOnce(&[u8]) -> Result<u64, SnapshotError>) -> Self {
        let read = || -> io::Result<(i64, Vec<u8>)> {
            let file = fs::File::open(path)?;
            let changed = file.metadata()?.modified()?;
            let age = changed.elapsed().map_or(0, |age| i64::try_from(age.as_secs()).unwrap_or(i64::MAX));
            Ok((age, read_up_to(&file, 0, SNAPSHOT_BLOCK_SIZE as u64)?))
        };
        match read() {
            Ok((age, first)) => {
                Self { age: Some(age), entries: entries(&first).map_err(|why| why.to_string()) }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Self { age: None, entries: Err(MISSING.to_owned()) }
            }
            Err(error) => Self { age: None, entries: Err(error.to_string()) },
        }
    }

    fn text(&self) -> String {
        match (&self.entries, self.age) {
            (Ok(entries), Some(age)) => {
                format!("{} old, {} entries", text::span(age), text::count(*entries))
            }
            (Ok(entries), None) => format!("{} entries", text::count(*entries)),
            (Err(why), _) => why.clone(),
        }
    }

    fn json(&self) -> Value {
        match (&self.entries, self.age) {
            (Ok(entries), age) => json!({ "age_seconds": age, "entries": entries }),
            (Err(_), None) => Value::Null,
            (Err(why), age) => json!({ "age_seconds": age, "error": why }),
        }
    }
}

fn purges_text(dir: &Path) -> String {
    match purges(dir) {
        Ok(None) => "none".to_owned(),
        Ok(Some(purges)) => {
            let [prefixes, tags, keys] = purges.counts().map(|number| text::count(number as u64));
            format!("{prefixes} of prefixes, {tags} of tags, {keys} of keys")
        }
        Err(why) => format!("damaged: {why}"),
    }
}

/// Free bytes of the file system of a directory.
fn free(dir: &Path) -> Option<u64> {
    let file_stat = rustix::fs::statvfs(dir).ok()?;
    Some(file_stat.f_bavail.saturating_mul(file_stat.f_frsize))
}
