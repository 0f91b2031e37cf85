//! The files of one loop: looking them up, keeping them, and letting them go.

use std::ffi::CStr;
use std::rc::Rc;
use std::time::Duration;

use tw_disk::{Disk, Errno, File, FileKind, FileMeta, Links, Now, OpenOptions};

use super::content_cache::ContentCache;
use super::open_file::OpenFile;
use super::table::{OpenResult, PathCheck, PathEntry, PathLinks, Setting, Table, setting_of};
use crate::config::location::OpenFileCache;

/// The most entries that one sweep looks at: some 100 µs, should all of them be closed.
const SWEEP_MAX: usize = 256;
/// Every entry is looked at this often, and so stays at most this much longer than it should.
const SWEEP_ROUND: Duration = Duration::from_secs(2);
/// Files that are closed when the process has no descriptor left.
const EXHAUSTED_CLOSE: usize = 32;

/// For the first look at a path: it fails with `ELOOP` where there is a link.
const WITHOUT_LINKS: OpenOptions = OpenOptions { links: Links::Refuse { from: 0 }, ..OpenOptions::PATH };

/// Sharing of one look at a path between requests of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckSharing {
    /// The request may let others go first.
    First,
    /// The request has let others go first.
    Waited,
}

/// For whom a path is looked up.
pub(super) struct FileUser<'a> {
    pub(super) disk: &'a Disk,
    pub(super) options: &'a OpenOptions,
    pub(super) cache: Option<&'a OpenFileCache>,
    /// Time at which the head of the request was complete, in ticks.
    pub(super) read: u64,
    pub(super) turn: CheckSharing,
}

/// Cached knowledge about a path.
pub(super) enum CachedPath {
    /// Valid entry.
    Valid(Result<Rc<OpenFile>, Errno>),
    /// No entry: the path has to be looked up.
    Unknown,
    /// Entry whose validity cannot be checked without waiting for the disk.
    Cold,
    /// A look of this turn came too early for the request: others that are ready should be read first.
    Shared,
}

/// A look-up that may be answered without waiting.
pub type FileLookup = Now<Rc<OpenFile>>;

/// The files of one loop.
pub struct FileTable {
    /// The first is for those without `open_file_cache`.
    pub(super) tables: Vec<Table>,
    pub(super) hot: ContentCache,
    /// Files that stay open without `open_file_cache`, and for how long.
    default: (usize, Duration),
    /// Counts requests read and looks taken, so that their order is known.
    ticks: u64,
}

impl FileTable {
    /// Knows nothing yet; may keep `hot_max` bytes of contents, and without `open_file_cache` so many files open, for so long.
    pub fn new(hot_max: usize, default: (usize, Duration)) -> Self {
        Self { tables: vec![Table::new(None, default)], hot: ContentCache::new(hot_max), default, ticks: 0 }
    }

    /// Forgets every file, and goes by these settings from now on: memory for contents, and the time after which a file without
    /// `open_file_cache` is closed. Looks that go on may still bring one back.
    #[must_use = "files are closed when this is dropped, which takes long for many of them"]
    pub fn forget(&mut self, hot_max: usize, inactive: Duration) -> Forgotten {
        let default = (self.default.0, inactive);
        let Self { tables, hot, .. } = self;
        let mut entries: Vec<_> = tables.iter_mut().flat_map(Table::empty).collect();
        entries.retain(|entry| matches!(entry.result, OpenResult::File(_)));
        for entry in &entries {
            let_go(hot, entry);
        }
        (self.tables, self.hot, self.default) =
            (vec![Table::new(None, default)], ContentCache::new(hot_max), default);
        Forgotten(entries)
    }

    /// Bytes of contents kept in memory, without those that only a response still holds.
    pub fn hot_bytes(&self) -> usize {
        self.hot.bytes()
    }

    /// Paths of which something is known.
    pub fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// Returns true if there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that a request has been read; what is looked at from now on is as new as it needs.
    pub fn tick(&mut self) -> u64 {
        self.ticks += 1;
        self.ticks
    }

    /// Notes that a look begins. Every look is noted before it is taken, however long it lasts.
    pub(super) fn look(&mut self) -> PathCheck {
        PathCheck { tick: self.tick(), at: tw_rt::clock::now() }
    }

    /// Opens `path` if that needs no waiting.
    pub(super) fn open_now(&mut self, path: &CStr, by: &FileUser<'_>) -> FileLookup {
        match self.valid_entry(path, by) {
            CachedPath::Valid(open_file) => return Now::Ready(open_file),
            CachedPath::Cold | CachedPath::Shared => return Now::Cold,
            CachedPath::Unknown => {}
        }
        let look = self.look();
        let mut opened = by.disk.open_now(path, by.options);
        if let Now::Ready(Err(errno)) = opened
            && self.made_room(errno)
        {
            opened = by.disk.open_now(path, by.options);
        }
        match opened {
            Now::Cold => Now::Cold,
            Now::Ready(Ok(file)) => Now::Ready(Ok(self.opened(path, file, by.options, by.cache, look))),
            Now::Ready(Err(errno)) => {
                self.failed(path, errno, by.cache, look);
                Now::Ready(Err(errno))
            }
        }
    }

    /// Entry of a path, after a check that it is still valid.
    pub(super) fn valid_entry(&mut self, path: &CStr, by: &FileUser<'_>) -> CachedPath {
        let index = self.table(setting_of(by.cache));
        let Some(at) = self.tables[index].find(path) else { return CachedPath::Unknown };
        let now = tw_rt::clock::now();
        let is_inactive = self.tables[index].is_inactive(at, now);
        let entry = self.tables[index].at(at);
        let believed = match by.cache {
            Some(cache) => now.saturating_duration_since(entry.look.at) < cache.valid,
            // A look of another turn is not believed even where its request was read long ago.
            None => entry.look.at == now && entry.look.tick > by.read,
        };
        let file = match &entry.result {
            OpenResult::File(file) if file.options == *by.options => file.clone(),
            OpenResult::Failed(errno) if believed => return CachedPath::Valid(Err(*errno)),
            OpenResult::Counting if !is_inactive => return CachedPath::Unknown,
            OpenResult::File(_) | OpenResult::Failed(_) | OpenResult::Counting => {
                self.remove(index, at);
                return CachedPath::Unknown;
            }
        };
        if !believed {
            if entry.look.at == now && by.turn == CheckSharing::First && by.cache.is_none() {
                return CachedPath::Shared;
            }
            self.ticks += 1;
            entry.look = match recheck(by.disk, path, &file.file, &mut entry.way) {
                Now::Ready(Ok(meta)) if meta.is_same_version(file.meta()) => {
                    PathCheck { tick: self.ticks, at: now }
                }
                Now::Cold => return CachedPath::Cold,
                Now::Ready(_) => {
                    self.remove(index, at);
                    return CachedPath::Unknown;
                }
            };
        }
        entry.used = now;
        entry.recent = true;
        self.hot.used(by.disk, &file, now);
        CachedPath::Valid(Ok(file))
    }

    /// Keeps a file that was opened, and returns it.
    pub(super) fn opened(
        &mut self,
        path: &CStr,
        file: File,
        options: &OpenOptions,
        cache: Option<&OpenFileCache>,
        look: PathCheck,
    ) -> Rc<OpenFile> {
        let file = Rc::new(OpenFile::new(file, *options));
        if file.meta().kind == FileKind::File || cache.is_some() {
            let index = self.table(setting_of(cache));
            let table = &mut self.tables[index];
            let uses = 1 + table.find(path).map_or(0, |at| table.at(at).uses);
            let is_enough = cache.is_none_or(|c| uses >= c.min_uses);
            let open_result = if is_enough { OpenResult::File(file.clone()) } else { OpenResult::Counting };
            self.insert(index, path, open_result, uses, look);
        }
        file
    }

    /// Keeps the failure to open a path, if the location wants that.
    pub(super) fn failed(
        &mut self,
        path: &CStr,
        errno: Errno,
        cache: Option<&OpenFileCache>,
        look: PathCheck,
    ) {
        if cache.is_some_and(|c| c.errors) && !is_exhausted(errno) {
            let index = self.table(setting_of(cache));
            self.insert(index, path, OpenResult::Failed(errno), 1, look);
        }
    }

    /// The table of a setting: one of very few.
    fn table(&mut self, setting: Setting) -> usize {
        self.tables.iter().position(|table| table.setting == setting).unwrap_or_else(|| {
            self.tables.push(Table::new(setting, self.default));
            self.tables.len() - 1
        })
    }

    fn insert(&mut self, index: usize, path: &CStr, open_result: OpenResult, uses: u64, look: PathCheck) {
        if let Some(at) = self.tables[index].find(path) {
            self.remove(index, at);
        }
        let used = tw_rt::clock::now();
        let entry = PathEntry {
            path: path.into(),
            result: open_result,
            way: PathLinks::Unknown,
            look,
            used,
            uses,
            recent: false,
        };
        let Self { tables, hot, .. } = self;
        tables[index].insert(entry, |path_entry| let_go(hot, &path_entry));
    }

    fn remove(&mut self, index: usize, at: usize) {
        let entry = self.tables[index].remove(at);
        let_go(&mut self.hot, &entry);
    }

    /// Returns true if `errno` means that there are too many open files, and some of those kept here were closed.
    pub fn made_room(&mut self, errno: Errno) -> bool {
        if !is_exhausted(errno) {
            return false;
        }
        let Self { tables, hot, .. } = self;
        let mut closed = 0;
        while closed < EXHAUSTED_CLOSE {
            let largest = tables.iter_mut().max_by_key(|table| table.len());
            let Some(entry) = largest.and_then(Table::evict) else { break };
            // A file that a response still reads stays open until that response ends, so its eviction frees no
            // descriptor yet.
            closed +=
                usize::from(matches!(&entry.result, OpenResult::File(file) if Rc::strong_count(file) == 1));
            let_go(hot, &entry);
        }
        closed > 0
    }

    /// Closes some of the files that were not used for long or have lost their name, unlocks those that were changed, and says
    /// when to come again.
    pub fn sweep(&mut self, disk: &Disk) -> Duration {
        let now = tw_rt::clock::now();
        let steps = self.len().div_ceil(SWEEP_MAX).max(2);
        let Self { tables, hot, .. } = self;
        for table in &mut *tables {
            // With `open_file_cache`, a removed file counts as present for `open_file_cache_valid`, as in nginx.
            let is_cache = table.setting.is_some();
            let is_over = |entry: &PathEntry| {
                let OpenResult::File(file) = &entry.result else { return false };
                file.unlock_if_changed(disk);
                !is_cache && is_nameless(disk, file)
            };
            // Each step looks at one entry more than its share, so that the sweep notices the end of a round.
            table.sweep(table.len().div_ceil(steps) + 1, now, is_over, |path_entry| let_go(hot, &path_entry));
        }
        tables.retain(|table| table.setting.is_none() || table.len() > 0);
        SWEEP_ROUND / u32::try_from(steps).unwrap_or(u32::MAX)
    }
}

/// Files that were forgotten, and are not closed yet.
pub struct Forgotten(Vec<PathEntry>);

impl Forgotten {
    /// Closes some, and says whether there are more.
    pub fn close_some(&mut self) -> bool {
        self.0.truncate(self.0.len().saturating_sub(SWEEP_MAX));
        !self.0.is_empty()
    }
}

/// Returns true if the file was removed and its blocks are freed by closing it, as far as that is known without waiting.
fn is_nameless(disk: &Disk, file: &OpenFile) -> bool {
    matches!(disk.stat_now(&file.file), Now::Ready(Ok(meta)) if meta.nlink == 0)
}

/// The contents of a file go with its entry.
fn let_go(hot: &mut ContentCache, entry: &PathEntry) {
    if let OpenResult::File(file) = &entry.result {
        hot.forget(file);
    }
}

pub(super) fn is_exhausted(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// Looks `path` up in the cheapest way that cannot wait: an open file keeps the names of its directories in memory, but not
/// those of links.
fn recheck(disk: &Disk, path: &CStr, file: &File, way: &mut PathLinks) -> Now<FileMeta> {
    match way {
        PathLinks::Plain => disk.recheck_now(path, file),
        PathLinks::Linked => disk.probe_now(path),
        PathLinks::Unknown => match disk.open_now(path, &WITHOUT_LINKS) {
            Now::Ready(Ok(found_file)) => {
                *way = PathLinks::Plain;
                Now::Ready(Ok(*found_file.meta()))
            }
            Now::Ready(Err(Errno::LOOP)) => {
                *way = PathLinks::Linked;
                disk.probe_now(path)
            }
            Now::Ready(Err(errno)) => Now::Ready(Err(errno)),
            Now::Cold => Now::Cold,
        },
    }
}
