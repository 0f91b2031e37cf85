//! Logs with variables in their path: files are opened when a line needs them, and kept open by
//! `open_log_file_cache`. Everything here runs on a writer thread and may wait.

use std::collections::hash_map::Entry as Slot;
use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, Stat, fstat, stat};
use rustix::io::{Errno, writev};

use crate::frame;
use crate::target::{CacheConfig, Links, NamedFiles, OpenFailure, Opener};

/// Parts of one `writev`: the kernel's `IOV_MAX`.
const PARTS_MAX: usize = 1024;
/// Time limit for a file that is not ready (a pipe) before its lines are dropped.
const READY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Line with its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    /// The file.
    pub(crate) path: &'a [u8],
    /// The directory that must exist for the line to be written.
    pub(crate) root: &'a [u8],
    pub(crate) links: Links,
    pub(crate) text: &'a [u8],
}

/// Length of the header before path, root and text of a line.
pub(crate) const HEAD: usize = 13;

/// The head of a line.
pub(crate) fn head(path: &[u8], root: &[u8], links: Links) -> [u8; HEAD] {
    let len = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_le_bytes();
    let (kind, from) = match links {
        Links::Follow => (0, 0),
        Links::Refuse(from) => (1, from),
        Links::SameOwner(from) => (2, from),
    };
    let mut head = [kind; HEAD];
    head[1..5].copy_from_slice(&from.to_le_bytes());
    head[5..9].copy_from_slice(&len(path));
    head[9..].copy_from_slice(&len(root));
    head
}

/// The line of a message.
fn line(message: &[u8]) -> Option<Line<'_>> {
    let (kind, rest) = message.split_first()?;
    let (from, rest) = rest.split_first_chunk::<4>()?;
    let (path, rest) = rest.split_first_chunk::<4>()?;
    let (root, rest) = rest.split_first_chunk::<4>()?;
    let (path, rest) = rest.split_at_checked(u32::from_le_bytes(*path) as usize)?;
    let (root, text) = rest.split_at_checked(u32::from_le_bytes(*root) as usize)?;
    let from = u32::from_le_bytes(*from);
    let links = match kind {
        0 => Links::Follow,
        1 => Links::Refuse(from),
        _ => Links::SameOwner(from),
    };
    Some(Line { path, root, links, text })
}

/// Lines that could not be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LostLines {
    pub(crate) lines: u64,
    pub(crate) why: FailedOperation,
    /// The file or directory.
    pub(crate) path: Vec<u8>,
    pub(crate) failure: OpenFailure,
}

/// Failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FailedOperation {
    /// The root directory of the request is not there.
    Root,
    Open,
    Write,
}

/// The files of one log.
#[derive(Debug)]
pub(crate) struct Opened {
    opener: Opener,
    cache: Option<Cache>,
}

impl Opened {
    pub(crate) fn new(files: &NamedFiles) -> Self {
        Self { opener: files.opener, cache: files.cache.map(Cache::new) }
    }

    /// Writes a batch of messages; `lost` learns what could not be written. Returns the bytes written.
    pub(crate) fn write(&mut self, messages: &[u8], mut lost: impl FnMut(LostLines)) -> u64 {
        let mut roots: HashMap<&[u8], Result<(), Errno>> = HashMap::new();
        let mut written_len = 0;
        for (first, texts) in by_file(messages) {
            let lines = texts.len() as u64;
            let is_there = *roots.entry(first.root).or_insert_with(|| test_directory(first.root));
            let (why, path, failure) = match is_there {
                Err(errno) => (FailedOperation::Root, first.root, errno.into()),
                Ok(()) => match self.write_file(&first, &texts) {
                    Ok(bytes) => {
                        written_len += bytes;
                        continue;
                    }
                    Err((why, failure)) => (why, first.path, failure),
                },
            };
            lost(LostLines { lines, why, path: path.to_vec(), failure });
        }
        written_len
    }

    fn write_file(
        &mut self,
        first: &Line<'_>,
        texts: &[&[u8]],
    ) -> Result<u64, (FailedOperation, OpenFailure)> {
        let open = |opener: Opener| open(opener, first).map_err(|failure| (FailedOperation::Open, failure));
        let write =
            |file: &OwnedFd| write_all(file, texts).map_err(|errno| (FailedOperation::Write, errno.into()));
        match &mut self.cache {
            None => write(&open(self.opener)?),
            Some(cache) => {
                let now = Instant::now();
                let file = match cache.take(first.path, now) {
                    Some(file) => file,
                    None => open(self.opener)?,
                };
                let wrote = write(&file);
                cache.put(first.path, file, texts.len() as u64, now);
                wrote
            }
        }
    }

    /// Closes every file: the names may lead to others now.
    pub(crate) fn close(&mut self) {
        if let Some(cache) = &mut self.cache {
            *cache = Cache::new(cache.config);
        }
    }

    /// Closes files that were unused for too long. Returns the time until the next sweep.
    pub(crate) fn sweep(&mut self) -> Option<Duration> {
        self.cache.as_mut().and_then(|cache| cache.sweep(Instant::now()))
    }
}

/// The lines of each file together, in their order; files in the order of their first lines.
fn by_file(messages: &[u8]) -> Vec<(Line<'_>, Vec<&[u8]>)> {
    let mut index: HashMap<(&[u8], &[u8]), usize> = HashMap::new();
    let mut files: Vec<(Line<'_>, Vec<&[u8]>)> = Vec::new();
    for line in frame::all(messages).filter_map(line) {
        match index.entry((line.path, line.root)) {
            Slot::Occupied(at) => files[*at.get()].1.push(line.text),
            Slot::Vacant(at) => {
                at.insert(files.len());
                files.push((line, vec![line.text]));
            }
        }
    }
    files
}

fn test_directory(path: &[u8]) -> Result<(), Errno> {
    let file_stat = stat(path)?;
    if FileType::from_raw_mode(file_stat.st_mode) == FileType::Directory {
        Ok(())
    } else {
        Err(Errno::NOTDIR)
    }
}

fn open(opener: Opener, line: &Line<'_>) -> Result<OwnedFd, OpenFailure> {
    // Names with a NUL were refused when the line was pushed.
    let path = CString::new(line.path).map_err(|_| Errno::INVAL)?;
    (opener.0)(&path, line.links)
}

fn write_all(file: &OwnedFd, texts: &[&[u8]]) -> Result<u64, Errno> {
    let mut total = 0;
    for texts in texts.chunks(PARTS_MAX) {
        let mut parts: Vec<IoSlice<'_>> = texts.iter().map(|text| IoSlice::new(text)).collect();
        let mut parts = &mut parts[..];
        while !parts.is_empty() {
            match writev(file, parts) {
                Ok(n) => {
                    total += n as u64;
                    IoSlice::advance_slices(&mut parts, n);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if is_ready(file) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(total)
}

fn is_ready(file: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(&file.as_fd(), PollFlags::OUT)], Some(&READY)).is_ok_and(|ready| ready > 0)
}

/// `open_log_file_cache`: names that were used lately, and files that stay open.
// DIFF(nginx): each log has a cache of its own, which a reopen empties; in nginx those of a location share one.
#[derive(Debug)]
struct Cache {
    config: CacheConfig,
    names: HashMap<Box<[u8]>, Entry>,
    /// Names by when they were last used.
    order: BTreeMap<u64, Box<[u8]>>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    file: Option<OwnedFd>,
    lines: u64,
    order: u64,
    used: Instant,
    /// Time at which the name was last seen to lead to the file.
    checked: Instant,
}

impl Cache {
    fn new(config: CacheConfig) -> Self {
        Self { config, names: HashMap::new(), order: BTreeMap::new(), next: 0 }
    }

    /// The open file of a name, which is given back with [`Cache::put`].
    fn take(&mut self, path: &[u8], now: Instant) -> Option<OwnedFd> {
        self.sweep(now);
        let entry = self.names.get_mut(path)?;
        let file = entry.file.take()?;
        if now.duration_since(entry.checked) < self.config.valid {
            return Some(file);
        }
        entry.checked = now;
        let same = |is: Stat, named: Stat| (is.st_dev, is.st_ino) == (named.st_dev, named.st_ino);
        let is_same = matches!((fstat(&file), stat(path)), (Ok(is), Ok(named)) if same(is, named));
        is_same.then_some(file)
    }

    /// Counts a use of a name by so many lines, and keeps its file if that is often enough.
    fn put(&mut self, path: &[u8], file: OwnedFd, lines: u64, now: Instant) {
        let order = self.next;
        self.next += 1;
        let config = self.config;
        if let Some(entry) = self.names.get_mut(path) {
            entry.lines += lines;
            entry.used = now;
            entry.file = (entry.lines >= config.min_uses).then_some(file);
            let name = self.order.remove(&entry.order);
            entry.order = order;
            self.order.extend(name.map(|name| (order, name)));
            return;
        }
        if self.names.len() >= config.max
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.names.remove(&oldest);
        }
        let file = (lines >= config.min_uses).then_some(file);
        self.names.insert(path.into(), Entry { file, lines, order, used: now, checked: now });
        self.order.insert(order, path.into());
    }

    /// Removes files that were unused for too long. Returns the time until the next sweep.
    fn sweep(&mut self, now: Instant) -> Option<Duration> {
        while let Some(oldest) = self.order.first_entry() {
            let used = self.names.get(oldest.get()).map(|entry| entry.used);
            let idle = used.map(|used| now.duration_since(used));
            match idle.and_then(|idle| self.config.inactive.checked_sub(idle)) {
                Some(remaining) if !remaining.is_zero() => return Some(remaining),
                _ => {
                    let name = oldest.remove();
                    self.names.remove(&name);
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use tw_testkit::TempDir;

    use super::*;

    fn config(max: usize, min_uses: u64) -> CacheConfig {
        let inactive = Duration::from_secs(10);
        let valid = Duration::from_secs(60);
        CacheConfig { max, inactive, min_uses, valid }
    }

    fn null() -> OwnedFd {
        File::open("/dev/null").unwrap().into()
    }

    #[test]
    fn lines_of_a_file_stay_together() {
        let mut messages = Vec::new();
        for (path, text) in [("a", "1\n"), ("b", "2\n"), ("a", "3\n")] {
            let head = head(path.as_bytes(), b"/r", Links::SameOwner(7));
            let message = [&head[..], path.as_bytes(), b"/r", text.as_bytes()].concat();
            messages.extend(frame::head(message.len()));
            messages.extend(message);
        }
        let files = by_file(&messages);
        let texts: Vec<_> = files.iter().map(|(line, texts)| (line.path, texts.concat())).collect();
        assert_eq!(texts, [(&b"a"[..], b"1\n3\n".to_vec()), (b"b", b"2\n".to_vec())]);
        assert_eq!((files[0].0.root, files[0].0.links), (&b"/r"[..], Links::SameOwner(7)));
    }

    #[test]
    fn file_stays_open_after_min_uses_and_the_oldest_is_closed() {
        let mut cache = Cache::new(config(2, 2));
        let now = Instant::now();
        cache.put(b"a", null(), 1, now);
        assert!(cache.take(b"a", now).is_none());
        cache.put(b"a", null(), 1, now);
        let file = cache.take(b"a", now).unwrap();
        cache.put(b"a", file, 1, now);
        cache.put(b"b", null(), 2, now);
        cache.put(b"c", null(), 2, now);
        assert!(cache.take(b"a", now).is_none());
        assert!(cache.take(b"b", now).is_some() && cache.take(b"c", now).is_some());
    }

    #[test]
    fn unused_files_are_closed() {
        let mut cache = Cache::new(config(9, 1));
        let start = Instant::now();
        let later = |secs| start + Duration::from_secs(secs);
        cache.put(b"a", null(), 1, start);
        cache.put(b"b", null(), 1, later(4));
        assert_eq!(cache.sweep(later(9)), Some(Duration::from_secs(1)));
        assert_eq!(cache.sweep(later(10)), Some(Duration::from_secs(4)));
        assert_eq!(cache.names.len(), 1);
        assert_eq!(cache.sweep(later(14)), None);
        assert!(cache.names.is_empty() && cache.order.is_empty());
    }

    #[test]
    fn moved_file_is_reopened_after_valid() {
        let dir = TempDir::new("log").unwrap();
        let path = dir.write("a", "").unwrap();
        let name = path.as_os_str().as_encoded_bytes();
        let mut cache = Cache::new(CacheConfig { inactive: Duration::from_secs(999), ..config(9, 1) });
        let start = Instant::now();
        cache.put(name, File::open(&path).unwrap().into(), 1, start);
        let file = cache.take(name, start + Duration::from_secs(61)).unwrap();
        cache.put(name, file, 1, start + Duration::from_secs(61));
        fs::rename(&path, dir.join("b")).unwrap();
        fs::write(&path, "").unwrap();
        let file = cache.take(name, start + Duration::from_secs(100)).unwrap();
        cache.put(name, file, 1, start + Duration::from_secs(100));
        assert!(cache.take(name, start + Duration::from_secs(130)).is_none());
    }

    #[test]
    fn lost_lines_name_the_failed_operation() {
        let dir = TempDir::new("log").unwrap();
        let root = dir.path().as_os_str().as_encoded_bytes();
        let opener = Opener(|path, _| {
            if path.to_bytes() == b"/full" {
                Ok(File::options().write(true).open("/dev/full")?.into())
            } else {
                Err(OpenFailure { addition: ", denied".into(), ..Errno::ACCESS.into() })
            }
        });
        let mut files = Opened::new(&NamedFiles { name: "n".into(), cache: None, opener });
        let mut messages = Vec::new();
        for (path, root) in
            [(&b"/full"[..], root), (b"/denied", root), (b"/x", b"/no/such"), (b"/x", b"/dev/null")]
        {
            let message = [&head(path, root, Links::Follow)[..], path, root, b"line\n"].concat();
            messages.extend(frame::head(message.len()));
            messages.extend(message);
        }
        let mut lost = Vec::new();
        assert_eq!(files.write(&messages, |why| lost.push((why.why, why.failure, why.lines))), 0);
        assert_eq!(
            lost,
            [
                (FailedOperation::Write, Errno::NOSPC.into(), 1),
                (
                    FailedOperation::Open,
                    OpenFailure { addition: ", denied".into(), ..Errno::ACCESS.into() },
                    1
                ),
                (FailedOperation::Root, Errno::NOENT.into(), 1),
                (FailedOperation::Root, Errno::NOTDIR.into(), 1)
            ]
        );
    }
}
