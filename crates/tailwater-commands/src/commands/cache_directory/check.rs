//! `tailwater cache check`: every checksum of a cache.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use tw_cache::segment::{PREFIX_SIZE, REMOVED_MARK, RecordPrefix};
use tw_cache::{RecordSnapshot, SNAPSHOT_BLOCK_SIZE, SnapshotReader, SnapshotStep};

use super::body::{BodyRead, read_body};
use super::directory::{DAMAGED, FAILED, GOOD, PURGES, RECORDS, SNAPSHOT, directories, lacks_device, purges};
use super::pace::Pace;
use super::segment_file::{OpenedSegment, SegmentFile, SegmentPlace};
use super::stored::{HeadError, StoredPlace, StoredResponse, read_up_to};
use super::text;
use super::walk::{CacheFile, walk};
use crate::cli::CacheCheckOptions;
use crate::output::console::Console;

/// Files that wait for a thread.
const QUEUE: usize = 256;

/// Something that a thread has found out.
enum Finding {
    Damaged {
        path: PathBuf,
        offset: u64,
        why: &'static str,
        /// The key, or the name of the file in its place.
        key: Option<String>,
        removal: Option<io::Result<()>>,
    },
    /// A record at the end of a segment that is not complete.
    Torn {
        path: PathBuf,
        offset: u64,
    },
    Failed {
        path: PathBuf,
        error: io::Error,
    },
}

/// Numbers of what was checked.
#[derive(Default)]
struct Checked {
    responses: AtomicU64,
    unsummed: AtomicU64,
    /// Files and segments.
    files: AtomicU64,
}

struct Checker<'a> {
    pace: &'a Pace,
    checked: &'a Checked,
    removes: bool,
    to: Sender<Finding>,
}

/// Checks each directory, and lists what is damaged.
pub(super) fn run(options: &CacheCheckOptions, console: &Console) -> u8 {
    let mut status = GOOD;
    for dir in directories(&options.directories) {
        status = status.max(check(&dir, options, console));
    }
    status
}

fn check(dir: &Path, options: &CacheCheckOptions, console: &Console) -> u8 {
    let pace = Pace::new(options.rate);
    let checked = Checked::default();
    let (to, findings) = channel();
    let mut tally = Tally::default();
    let (files, queue) = sync_channel(QUEUE);
    let queue = Mutex::new(queue);
    thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            let queue = &queue;
            let to = to.clone();
            let pace = &pace;
            let checked = &checked;
            let removes = options.removes;
            scope.spawn(move || Checker { pace, checked, removes, to }.work(queue));
        }
        scope.spawn(move || search(dir, files, to));
        for finding in findings {
            tally.add(finding, console);
        }
    });
    let of = |number: &AtomicU64| text::count(number.load(Relaxed));
    let mut line = format!(
        "{}: {} responses in {} files and segments checked, {} read, {} damaged",
        dir.display(),
        of(&checked.responses),
        of(&checked.files),
        text::bytes(pace.bytes()),
        text::count(tally.damaged),
    );
    for (count, what) in [
        (tally.removed, "removed"),
        (tally.torn, "segments end in an incomplete record"),
        (checked.unsummed.load(Relaxed), "without checksums of their bodies"),
        (tally.failed, "could not be read"),
    ] {
        if count > 0 {
            line += &format!(", {} {what}", text::count(count));
        }
    }
    crate::output::stdout::write_out(&format!("{line}\n"));
    if lacks_device(dir, console) {
        return FAILED;
    }
    match (tally.failed, tally.damaged) {
        (0, 0) => GOOD,
        (0, _) => DAMAGED,
        _ => FAILED,
    }
}

/// Numbers of findings.
#[derive(Default)]
struct Tally {
    damaged: u64,
    removed: u64,
    torn: u64,
    failed: u64,
}

impl Tally {
    /// Counts a finding and shows it.
    fn add(&mut self, finding: Finding, console: &Console) {
        match finding {
            Finding::Damaged { path, offset, why, key, removal } => {
                self.damaged += 1;
                let key = key.map_or_else(String::new, |key| format!(", key {key}"));
                let end = match removal {
                    None => String::new(),
                    Some(Ok(())) => {
                        self.removed += 1;
                        ", removed".to_owned()
                    }
                    Some(Err(error)) => {
                        self.failed += 1;
                        format!(", not removed: {error}")
                    }
                };
                crate::output::stdout::write_out(&format!(
                    "{} at offset {offset}: {why}{key}{end}\n",
                    path.display()
                ));
            }
            Finding::Torn { path, offset } => {
                self.torn += 1;
                crate::output::stdout::write_out(&format!(
                    "{} at offset {offset}: incomplete record, no damage\n",
                    path.display()
                ));
            }
            Finding::Failed { path, error } => {
                self.failed += 1;
                console.plain(format_args!("{}: {error}", path.display()));
            }
        }
    }
}

/// Finds what is to be checked, and checks the files of the cache itself.
fn search(dir: &Path, files: SyncSender<CacheFile>, to: Sender<Finding>) {
    // The channel closes only when the command ends.
    let mut send = |found_one| files.send(found_one).map_err(io::Error::other);
    if let Err(error) = walk(dir, &mut send) {
        // The error names the path.
        let _ = to.send(Finding::Failed { path: dir.to_owned(), error });
        return;
    }
    if let Err(why) = purges(dir) {
        let path = dir.join(PURGES);
        let finding = match fs::metadata(&path) {
            Ok(_) => Finding::Damaged { path, offset: 0, why: "purges", key: Some(why), removal: None },
            Err(error) => Finding::Failed { path, error },
        };
        let _ = to.send(finding);
    }
    check_snapshot(&dir.join(SNAPSHOT), snapshot_damage, &to);
    check_snapshot(&dir.join(RECORDS), record_snapshot_damage, &to);
}

/// Offset of the first damage of a snapshot, and a word for it.
type SnapshotDamage = Option<(u64, &'static str)>;

fn check_snapshot(
    path: &Path,
    damage: fn(&fs::File, &[u8]) -> io::Result<SnapshotDamage>,
    to: &Sender<Finding>,
) {
    let check = || -> io::Result<SnapshotDamage> {
        match fs::File::open(path) {
            Ok(file) => damage(&file, &read_up_to(&file, 0, SNAPSHOT_BLOCK_SIZE as u64)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    };
    let path = path.to_owned();
    let finding = match check() {
        Ok(None) => return,
        Ok(Some((offset, why))) => Finding::Damaged { path, offset, why, key: None, removal: None },
        Err(error) => Finding::Failed { path, error },
    };
    let _ = to.send(finding);
}

fn snapshot_damage(file: &fs::File, first: &[u8]) -> io::Result<SnapshotDamage> {
    let Ok(mut reader) = SnapshotReader::open(first) else { return Ok(Some((0, "snapshot"))) };
    loop {
        match reader.step() {
            SnapshotStep::Read { offset, len } => reader.supply(&read_up_to(file, offset, len as u64)?),
            SnapshotStep::Entry(_) => {}
            SnapshotStep::Done => break,
        }
    }
    Ok((reader.damaged_blocks() > 0).then_some((0, "snapshot-block")))
}

fn record_snapshot_damage(file: &fs::File, first: &[u8]) -> io::Result<SnapshotDamage> {
    let Ok(snapshot) = RecordSnapshot::open(first) else { return Ok(Some((0, "snapshot"))) };
    for block in 1..snapshot.blocks() {
        let offset = u64::from(block) * SNAPSHOT_BLOCK_SIZE as u64;
        let bytes = read_up_to(file, offset, SNAPSHOT_BLOCK_SIZE as u64)?;
        if snapshot.rows(block, &bytes).is_none() {
            return Ok(Some((offset, "snapshot-block")));
        }
    }
    Ok(None)
}

impl Checker<'_> {
    /// Checks files until there are no more.
    fn work(&self, queue: &Mutex<Receiver<CacheFile>>) {
        loop {
            let next = match queue.lock() {
                Ok(queue) => queue.recv(),
                Err(_) => return,
            };
            let Ok(cache_file) = next else { return };
            let path = match &cache_file {
                CacheFile::Response(file) => file.path.clone(),
                CacheFile::Segment(place) => place.path.clone(),
                CacheFile::Unfinished { .. } => continue,
            };
            self.checked.files.fetch_add(1, Relaxed);
            if let Err(error) = self.check(&cache_file) {
                self.send(Finding::Failed { path, error });
            }
        }
    }

    fn send(&self, finding: Finding) {
        // Sending cannot fail: the receiver lives as long as this.
        let _ = self.to.send(finding);
    }

    fn check(&self, cache_file: &CacheFile) -> io::Result<()> {
        match cache_file {
            CacheFile::Response(file) => match StoredResponse::open(file)? {
                Some(stored) => self.check_response(&stored),
                None => Ok(()),
            },
            CacheFile::Segment(place) => self.check_segment(place),
            CacheFile::Unfinished { .. } => Ok(()),
        }
    }

    fn check_segment(&self, place: &SegmentPlace) -> io::Result<()> {
        let path = &*place.path;
        let damaged =
            |offset, why| Finding::Damaged { path: path.to_owned(), offset, why, key: None, removal: None };
        let mut segment = match SegmentFile::open(place)? {
            OpenedSegment::Open(segment) => segment,
            OpenedSegment::Nothing => return Ok(()),
            OpenedSegment::Damaged(why) => {
                self.send(damaged(place.base, why.word()));
                return Ok(());
            }
        };
        let records = segment.records()?;
        if let Some((offset, why)) = records.damage {
            self.send(damaged(offset, why));
        }
        if let Some(offset) = records.torn {
            self.send(Finding::Torn { path: path.to_owned(), offset });
        }
        let last = records.rows.len().saturating_sub(1);
        for (nth, row) in records.rows.iter().enumerate() {
            let stored = segment.response(row);
            // The end of a segment that a crash has left may be missing.
            let may_be_torn = !records.is_complete && records.torn.is_none() && nth == last;
            self.check_stored(&stored, may_be_torn)?;
        }
        Ok(())
    }

    fn check_response(&self, stored: &StoredResponse) -> io::Result<()> {
        self.check_stored(stored, false)
    }

    fn check_stored(&self, stored: &StoredResponse, may_be_torn: bool) -> io::Result<()> {
        let head = match stored.head() {
            Ok(head) => head,
            Err(HeadError::Gone) => return Ok(()),
            Err(HeadError::Io(error)) => return Err(error),
            Err(HeadError::Damaged { offset, .. }) if may_be_torn => {
                self.send(Finding::Torn { path: stored.path.clone(), offset });
                return Ok(());
            }
            Err(HeadError::Damaged { offset, why }) => {
                self.checked.responses.fetch_add(1, Relaxed);
                let key = String::from_utf8_lossy(&stored.key.hex()).into_owned();
                self.damaged(stored, offset, why, key);
                return Ok(());
            }
        };
        self.checked.responses.fetch_add(1, Relaxed);
        match read_body(stored, &head, self.pace, &mut |_| Ok(()))? {
            BodyRead::Whole => {}
            BodyRead::Unsummed => _ = self.checked.unsummed.fetch_add(1, Relaxed),
            BodyRead::Damaged { offset, .. } if may_be_torn => {
                self.send(Finding::Torn { path: stored.path.clone(), offset });
            }
            BodyRead::Damaged { offset, why } => {
                self.damaged(stored, offset, why, text::key(&head.meta.key_text));
            }
        }
        Ok(())
    }

    fn damaged(&self, stored: &StoredResponse, offset: u64, why: &'static str, key: String) {
        let removal = self.removes.then(|| remove(stored));
        self.send(Finding::Damaged { path: stored.path.clone(), offset, why, key: Some(key), removal });
    }
}

/// Removes a damaged response: its file, or its record by a mark. A server that runs takes it for a miss.
fn remove(stored: &StoredResponse) -> io::Result<()> {
    match stored.place {
        StoredPlace::Whole { .. } => {
            let checked = stored.file.metadata()?;
            let now = fs::symlink_metadata(&stored.path)?;
            // The server may have stored it again meanwhile.
            if (checked.dev(), checked.ino()) == (now.dev(), now.ino()) {
                fs::remove_file(&stored.path)?;
            }
            Ok(())
        }
        StoredPlace::Record { header, address, base } => {
            let offset = base + address.offset();
            let prefix = read_up_to(&stored.file, offset, PREFIX_SIZE)?;
            // A damaged prefix is none: nothing finds that record.
            if RecordPrefix::decode(&prefix, &header, address.block).is_err() {
                return Ok(());
            }
            // Written through at once: a server bypasses the page cache of a device, whose blocks must not be written
            // later.
            let flags = i32::from_ne_bytes(rustix::fs::OFlags::DSYNC.bits().to_ne_bytes());
            let file = OpenOptions::new().write(true).custom_flags(flags).open(&stored.path)?;
            let checked = stored.file.metadata()?;
            let now = file.metadata()?;
            if (checked.dev(), checked.ino()) == (now.dev(), now.ino()) {
                file.write_all_at(&REMOVED_MARK, offset)?;
            }
            Ok(())
        }
    }
}
