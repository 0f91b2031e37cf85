//! Files as one loop knows them: open descriptors, validators and the contents of small files that are asked for often.
//!
//! Without `open_file_cache` every use of a path is checked against the file system with one look that cannot wait
//! ([`Disk::probe_now`]): a file that was changed, replaced or removed is never answered from here. With
//! `open_file_cache`, an entry is believed for `open_file_cache_valid`.
//!
//! A look is shared by every request that had been read when it was taken. When a second request of a turn asks for the
//! same file, it lets the other ready connections read theirs first; then one look answers for all of them.
//!
//! The table is a clock: an entry that was used since the hand last passed stays.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_disk::{Disk, DiskError, Errno, File, Kind, Links, Meta, Now, Op, Open};
use tw_http::condition::Etag;

use super::body::Source;
use super::request::Request;
use crate::core::location::{OpenFileCache, Symlinks};

/// Files a loop keeps open without `open_file_cache`.
pub const FILES_MAX: usize = 1024;
/// Largest file whose contents are kept in memory, bytes. Above it, copying dominates and the page cache does as well.
pub const HOT_FILE_MAX: u64 = 64 << 10;
/// A file younger than this is not kept in memory: two changes within one tick of the file system's clock would look alike.
const SETTLED: Duration = Duration::from_secs(2);
/// Entries not used for so long are closed, without `open_file_cache`.
const INACTIVE: Duration = Duration::from_secs(20);

/// An open file or directory.
pub struct OpenFile {
    file: File,
    etag: Bytes,
    content: OnceCell<Bytes>,
    how: Open,
}

impl OpenFile {
    fn new(file: File, how: Open) -> Self {
        let meta = file.meta();
        let etag = match meta.kind {
            Kind::File => Bytes::copy_from_slice(Etag::of_file(meta.mtime_sec, meta.size).as_bytes()),
            _ => Bytes::new(),
        };
        Self { file, etag, content: OnceCell::new(), how }
    }

    /// What is known of it.
    pub fn meta(&self) -> &Meta {
        self.file.meta()
    }

    /// The descriptor.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its entity tag.
    pub fn etag(&self) -> &Bytes {
        &self.etag
    }

    /// The whole contents, if they are kept in memory.
    pub fn content(&self) -> Option<&Bytes> {
        self.content.get()
    }

    /// Reads up to `want` bytes at `offset`; nothing at the end of the file. May wait for the disk.
    pub async fn read(&self, offset: u64, want: usize, source: &mut Source<'_>) -> io::Result<Bytes> {
        if let Some(content) = self.content.get() {
            let start = usize::try_from(offset).unwrap_or(usize::MAX).min(content.len());
            return Ok(content.slice(start..content.len().min(start.saturating_add(want))));
        }
        let buf = source.disk.read(source.account, &self.file, offset, vec![0; want]).await;
        buf.map(Bytes::from).map_err(|e| match e.errno() {
            Some(errno) => io::Error::from(errno),
            None => io::Error::other(e),
        })
    }
}

/// The files of one loop.
pub struct Files {
    entries: Vec<Entry>,
    by_path: HashMap<Rc<CStr>, usize>,
    free: Vec<usize>,
    hand: usize,
    hot_bytes: usize,
    hot_max: usize,
    files_max: usize,
    /// Counts requests read and looks taken, so that their order is known.
    ticks: u64,
}

/// Whether a request may let others go first to share a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It may.
    First,
    /// It has.
    Waited,
}

/// For whom a path is looked up.
struct Asker<'a> {
    disk: &'a Disk,
    how: &'a Open,
    cache: Option<&'a OpenFileCache>,
    /// When its request had been read, in ticks.
    read: u64,
    turn: Turn,
}

struct Entry {
    path: Option<Rc<CStr>>,
    found: Found,
    checked: Instant,
    /// The same in ticks.
    looked: u64,
    used: Instant,
    inactive: Duration,
    uses: u64,
    recent: Cell<bool>,
}

/// What an entry holds.
enum Found {
    /// An open file.
    File(Rc<OpenFile>),
    /// It could not be opened.
    Failed(Errno),
    /// Nothing yet: it was not used often enough (`open_file_cache_min_uses`).
    Counting,
}

/// What the table says of a path.
enum Known {
    /// It is valid.
    Valid(Result<Rc<OpenFile>, Errno>),
    /// It has to be looked up.
    Unknown,
    /// Whether it is still valid is not in memory.
    Cold,
    /// A look of this turn came too early for the request: others that are ready should be read first.
    Shared,
}

/// A look-up that may be answered without waiting.
pub type Lookup = Now<Rc<OpenFile>>;

impl Files {
    /// An empty table that may keep `hot_max` bytes of contents and `files_max` descriptors.
    pub fn new(hot_max: usize, files_max: usize) -> Self {
        Self {
            entries: Vec::new(),
            by_path: HashMap::new(),
            free: Vec::new(),
            hand: 0,
            hot_bytes: 0,
            hot_max,
            files_max,
            ticks: 0,
        }
    }

    /// Bytes of contents in memory.
    pub fn hot_bytes(&self) -> usize {
        self.hot_bytes
    }

    /// Files kept open.
    pub fn len(&self) -> usize {
        self.by_path.len()
    }

    /// Whether no file is kept.
    pub fn is_empty(&self) -> bool {
        self.by_path.is_empty()
    }

    /// Notes that a request has been read; what is looked at from now on is as new as it needs.
    pub(crate) fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Opens `path` if that needs no waiting.
    fn open_now(&mut self, path: &CStr, by: &Asker<'_>) -> Lookup {
        match self.known(path, by) {
            Known::Valid(found) => Now::Ready(found),
            Known::Cold | Known::Shared => Now::Cold,
            Known::Unknown => match by.disk.open_now(path, by.how) {
                Now::Cold => Now::Cold,
                Now::Ready(Ok(file)) => Now::Ready(Ok(self.opened(path, file, by.how, by.cache))),
                Now::Ready(Err(errno)) => {
                    self.failed(path, errno, by.cache);
                    Now::Ready(Err(errno))
                }
            },
        }
    }

    fn known(&mut self, path: &CStr, by: &Asker<'_>) -> Known {
        let Some(&at) = self.by_path.get(path) else { return Known::Unknown };
        let now = tw_rt::clock::now();
        let entry = &mut self.entries[at];
        let believed = match by.cache {
            Some(cache) => now.saturating_duration_since(entry.checked) < cache.valid,
            None => entry.looked > by.read,
        };
        let file = match &entry.found {
            Found::File(file) if file.how == *by.how => file.clone(),
            Found::Failed(errno) if believed => return Known::Valid(Err(*errno)),
            Found::Counting if now.saturating_duration_since(entry.used) <= entry.inactive => {
                return Known::Unknown;
            }
            Found::File(_) | Found::Failed(_) | Found::Counting => {
                self.remove(at);
                return Known::Unknown;
            }
        };
        if !believed {
            if entry.checked == now && by.turn == Turn::First && by.cache.is_none() {
                return Known::Shared;
            }
            self.ticks += 1;
            match by.disk.recheck_now(path, &file.file) {
                Now::Ready(Ok(meta)) if meta.is_same_version(file.meta()) => {
                    entry.checked = now;
                    entry.looked = self.ticks;
                }
                Now::Cold => return Known::Cold,
                Now::Ready(_) => {
                    self.remove(at);
                    return Known::Unknown;
                }
            }
        }
        entry.used = now;
        entry.recent.set(true);
        if file.content.get().is_none() && file.meta().size <= HOT_FILE_MAX {
            self.warm(by.disk, &file);
        }
        Known::Valid(Ok(file))
    }

    /// Keeps a file that was opened, and returns it.
    fn opened(&mut self, path: &CStr, file: File, how: &Open, cache: Option<&OpenFileCache>) -> Rc<OpenFile> {
        let file = Rc::new(OpenFile::new(file, *how));
        if file.meta().kind == Kind::File || cache.is_some() {
            let uses = 1 + self.by_path.get(path).map_or(0, |at| self.entries[*at].uses);
            let enough = cache.is_none_or(|c| uses >= c.min_uses);
            let found = if enough { Found::File(file.clone()) } else { Found::Counting };
            self.insert(path, found, uses, cache);
        }
        file
    }

    fn failed(&mut self, path: &CStr, errno: Errno, cache: Option<&OpenFileCache>) {
        if cache.is_some_and(|c| c.errors) {
            self.insert(path, Found::Failed(errno), 1, cache);
        }
    }

    /// Reads the contents of a small file into memory, if they are in the page cache and have settled.
    fn warm(&mut self, disk: &Disk, file: &OpenFile) {
        let meta = file.meta();
        let size = meta.size as usize;
        let age = tw_rt::clock::unix().secs.saturating_sub(meta.ctime_sec.max(meta.mtime_sec));
        if meta.kind != Kind::File || age <= SETTLED.as_secs() as i64 || self.hot_max < size {
            return;
        }
        if file.how.direct_from <= meta.size {
            return;
        }
        let mut content = vec![0; size];
        if size > 0 && disk.read_now(&file.file, 0, &mut content) != Now::Ready(Ok(size)) {
            return;
        }
        while self.hot_bytes + size > self.hot_max && self.evict() {}
        if file.content.set(Bytes::from(content)).is_ok() {
            self.hot_bytes += size;
        }
    }

    fn insert(&mut self, path: &CStr, found: Found, uses: u64, cache: Option<&OpenFileCache>) {
        if let Some(&at) = self.by_path.get(path) {
            self.remove(at);
        }
        let max = cache.map_or(self.files_max, |c| c.max);
        while self.by_path.len() >= max && self.evict() {}
        if max == 0 {
            return;
        }
        let path: Rc<CStr> = path.into();
        let now = tw_rt::clock::now();
        self.ticks += 1;
        let entry = Entry {
            path: Some(path.clone()),
            found,
            checked: now,
            looked: self.ticks,
            used: now,
            inactive: cache.map_or(INACTIVE, |c| c.inactive),
            uses,
            recent: Cell::new(false),
        };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.by_path.insert(path, at);
    }

    fn remove(&mut self, at: usize) {
        let entry = &mut self.entries[at];
        let Some(path) = entry.path.take() else { return };
        self.by_path.remove(&path);
        if let Found::File(file) = std::mem::replace(&mut entry.found, Found::Counting) {
            self.hot_bytes -= file.content.get().map_or(0, Bytes::len);
        }
        self.free.push(at);
    }

    /// Removes one entry that was not used since the hand last passed; `false` when there is none at all.
    fn evict(&mut self) -> bool {
        if self.by_path.is_empty() {
            return false;
        }
        loop {
            let at = self.hand % self.entries.len();
            self.hand = at + 1;
            let entry = &self.entries[at];
            if entry.path.is_some() && !entry.recent.replace(false) {
                self.remove(at);
                return true;
            }
        }
    }

    /// Closes entries that were not used for long, looking at `count` of them.
    pub fn sweep(&mut self, count: usize) {
        let now = tw_rt::clock::now();
        for _ in 0..count.min(self.entries.len()) {
            let at = self.hand % self.entries.len();
            self.hand = at + 1;
            let entry = &self.entries[at];
            if entry.path.is_some() && now.saturating_duration_since(entry.used) > entry.inactive {
                self.remove(at);
            }
        }
    }
}

/// How the location of `r` opens files.
fn how(r: &Request) -> Open {
    let core = &r.plan().core;
    let files = &core.files;
    let from = |from: &Option<crate::vars::Template>| from.as_ref().map_or(0, |t| t.value(r).len() as u32);
    Open {
        links: match &files.symlinks {
            Symlinks::Follow => Links::Follow,
            Symlinks::Refuse(part) => Links::Refuse { from: from(part) },
            Symlinks::SameOwner(part) => Links::SameOwner { from: from(part) },
        },
        direct_from: files.directio.unwrap_or(u64::MAX),
        direct_align: files.directio_alignment as u32,
        read_ahead: files.read_ahead as u32,
        ..Open::READ
    }
}

/// Opens `path` for `r` if that needs no waiting.
pub fn open_now(r: &Request, path: &CStr) -> Lookup {
    open_in_turn(r, path, Turn::First)
}

fn open_in_turn(r: &Request, path: &CStr, turn: Turn) -> Lookup {
    let Some(disk) = r.disk() else { return Now::Ready(Err(Errno::INVAL)) };
    let how = how(r);
    let cache = r.plan().core.files.open_file_cache.as_ref();
    if how.links != Links::Follow {
        // What a link leads to may change without the file changing: looked at each time.
        return match disk.open_now(path, &how) {
            Now::Ready(opened) => Now::Ready(opened.map(|file| Rc::new(OpenFile::new(file, how)))),
            Now::Cold => Now::Cold,
        };
    }
    let by = Asker { disk, how: &how, cache, read: r.read_at, turn };
    r.conn().worker.files.borrow_mut().open_now(path, &by)
}

/// Opens `path` for `r`, waiting for the disk if need be.
pub async fn open(r: &mut Request, path: &CStr) -> Result<Rc<OpenFile>, DiskError> {
    tw_rt::requeue().await;
    if let Now::Ready(found) = open_in_turn(r, path, Turn::Waited) {
        return found.map_err(|errno| Op::Open.failed(errno));
    }
    let how = how(r);
    let Some(disk) = r.disk().cloned() else {
        return Err(Op::Open.failed(Errno::INVAL));
    };
    let cache = r.plan().core.files.open_file_cache;
    r.account.source = tw_disk::Source::of(path.to_bytes());
    let opened = disk.open_cold(&mut r.account, path, &how).await;
    let worker = r.conn().worker.clone();
    match opened {
        Ok(file) if how.links != Links::Follow => Ok(Rc::new(OpenFile::new(file, how))),
        Ok(file) => Ok(worker.files.borrow_mut().opened(path, file, &how, cache.as_ref())),
        Err(error) => {
            if let Some(errno) = error.errno() {
                worker.files.borrow_mut().failed(path, errno, cache.as_ref());
            }
            Err(error)
        }
    }
}

/// What a path leads to, if that is known without waiting.
pub fn stat_now(r: &Request, path: &CStr) -> Now<Meta> {
    let Some(disk) = r.disk() else { return Now::Ready(Err(Errno::INVAL)) };
    if matches!(r.plan().core.files.symlinks, Symlinks::Follow) {
        let cache = r.plan().core.files.open_file_cache.as_ref();
        let how = how(r);
        let by = Asker { disk, how: &how, cache, read: r.read_at, turn: Turn::Waited };
        if let Known::Valid(found) = r.conn().worker.files.borrow_mut().known(path, &by) {
            return Now::Ready(found.map(|file| *file.meta()));
        }
        return disk.probe_now(path);
    }
    match open_now(r, path) {
        Now::Ready(found) => Now::Ready(found.map(|file| *file.meta())),
        Now::Cold => Now::Cold,
    }
}

/// What a path leads to, waiting for the disk if need be.
pub async fn stat(r: &mut Request, path: CString) -> Result<Meta, DiskError> {
    if !matches!(r.plan().core.files.symlinks, Symlinks::Follow) {
        return open(r, &path).await.map(|file| *file.meta());
    }
    let Some(disk) = r.disk().cloned() else {
        return Err(Op::Stat.failed(Errno::INVAL));
    };
    r.account.source = tw_disk::Source::of(path.to_bytes());
    disk.stat(&mut r.account, &path).await
}
