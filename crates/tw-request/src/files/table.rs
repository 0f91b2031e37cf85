//! Tables of paths: one for each `open_file_cache`, and one for locations without it.
//!
//! A table is dense. Its clock evicts entries that were not used since the hand last passed; a second hand finds the ones that
//! were not used for long.

use std::ffi::CStr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use foldhash::{HashMap, HashMapExt};
use tw_disk::Errno;

use super::open_file::OpenFile;
use crate::config::location::OpenFileCache;

/// Entries whose memory is not given back.
const SPARE: usize = 64;

/// Identity of a cache: `max` and `inactive` of `open_file_cache`; `None` is for locations without it.
// DIFF(nginx): two directives with the same parameters share their entries, and so their `max`.
pub(super) type Setting = Option<(usize, Duration)>;

/// The setting of a location.
pub(super) fn setting_of(cache: Option<&OpenFileCache>) -> Setting {
    cache.map(|cache| (cache.max, cache.inactive))
}

/// Begin of a look at the file system.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathCheck {
    /// In the order of requests read and looks taken.
    pub(super) tick: u64,
    /// On the clock.
    pub(super) at: Instant,
}

/// Entry of a path.
pub(super) struct PathEntry {
    pub(super) path: Rc<CStr>,
    pub(super) result: OpenResult,
    /// Links on the way to the file.
    pub(super) way: PathLinks,
    /// The last look that found it so.
    pub(super) look: PathCheck,
    pub(super) used: Instant,
    /// Times it was opened.
    pub(super) uses: u64,
    /// Used since the hand last passed.
    pub(super) recent: bool,
}

/// Result of opening a path.
pub(super) enum OpenResult {
    /// An open file.
    File(Rc<OpenFile>),
    /// The error.
    Failed(Errno),
    /// Nothing yet: it was not used often enough (`open_file_cache_min_uses`).
    Counting,
}

/// Links on the way to an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PathLinks {
    /// Not known yet.
    Unknown,
    /// Directories only: the open file keeps all of their names in memory.
    Plain,
    /// A symbolic link, whose name the open file does not keep in memory.
    Linked,
}

/// A table of paths.
pub(super) struct Table {
    pub(super) setting: Setting,
    max: usize,
    inactive: Duration,
    entries: Vec<PathEntry>,
    /// Clients choose the paths: the seed is random.
    by_path: HashMap<Rc<CStr>, usize>,
    hand: usize,
    sweep_hand: usize,
}

impl Table {
    /// An empty table; without a setting, as `default` says.
    pub(super) fn new(setting: Setting, default: (usize, Duration)) -> Self {
        let (max, inactive) = setting.unwrap_or(default);
        Self { setting, max, inactive, entries: Vec::new(), by_path: HashMap::new(), hand: 0, sweep_hand: 0 }
    }

    /// Entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The place of a path, until the next insertion or removal.
    pub(super) fn find(&self, path: &CStr) -> Option<usize> {
        self.by_path.get(path).copied()
    }

    /// The entry at a place.
    pub(super) fn at(&mut self, at: usize) -> &mut PathEntry {
        &mut self.entries[at]
    }

    /// Returns true if the entry at a place was not used for long.
    pub(super) fn is_inactive(&self, at: usize, now: Instant) -> bool {
        now.saturating_duration_since(self.entries[at].used) > self.inactive
    }

    /// Keeps an entry for a path that has none; `on_removal` gets those that had to make room, or the entry itself if there is
    /// no room at all.
    pub(super) fn insert(&mut self, entry: PathEntry, mut on_removal: impl FnMut(PathEntry)) {
        while self.entries.len() >= self.max {
            match self.evict() {
                Some(evicted) => on_removal(evicted),
                None => return on_removal(entry),
            }
        }
        self.by_path.insert(entry.path.clone(), self.entries.len());
        self.entries.push(entry);
    }

    /// Removes the entry at a place; the last one moves there.
    pub(super) fn remove(&mut self, at: usize) -> PathEntry {
        let entry = self.entries.swap_remove(at);
        self.by_path.remove(&entry.path);
        if let Some(moved) = self.entries.get(at)
            && let Some(place) = self.by_path.get_mut(&moved.path)
        {
            *place = at;
        }
        entry
    }

    /// Removes one entry that was not used since the hand last passed; `None` when there is none at all.
    pub(super) fn evict(&mut self) -> Option<PathEntry> {
        while !self.entries.is_empty() {
            self.hand %= self.entries.len();
            if !std::mem::take(&mut self.entries[self.hand].recent) {
                return Some(self.remove(self.hand));
            }
            self.hand += 1;
        }
        None
    }

    /// Checks the next `count` entries; `on_removal` gets those that were not used for long, and those that `are_over`. The
    /// paths of the others are looked up anew, because a directory may become a link while the file stays the same.
    /// At the end of a round, memory left from a peak is given back.
    pub(super) fn sweep(
        &mut self,
        count: usize,
        now: Instant,
        are_over: impl Fn(&PathEntry) -> bool,
        mut on_removal: impl FnMut(PathEntry),
    ) {
        for _ in 0..count {
            if self.sweep_hand >= self.entries.len() {
                self.sweep_hand = 0;
                self.shrink();
                return;
            }
            if self.is_inactive(self.sweep_hand, now) || are_over(&self.entries[self.sweep_hand]) {
                on_removal(self.remove(self.sweep_hand));
            } else {
                self.entries[self.sweep_hand].way = PathLinks::Unknown;
                self.sweep_hand += 1;
            }
        }
    }

    /// All of its entries, which it forgets.
    pub(super) fn empty(&mut self) -> Vec<PathEntry> {
        self.by_path = HashMap::new();
        std::mem::take(&mut self.entries)
    }

    fn shrink(&mut self) {
        let len = self.entries.len().max(SPARE);
        if self.entries.capacity() > 4 * len {
            self.entries.shrink_to(2 * len);
            self.by_path.shrink_to(2 * len);
        }
    }
}

#[cfg(test)]
impl Table {
    /// Checks that paths and places agree.
    pub(super) fn check(&self) -> &[PathEntry] {
        assert_eq!(self.entries.len(), self.by_path.len());
        assert!(self.entries.len() <= self.max);
        for (at, entry) in self.entries.iter().enumerate() {
            assert_eq!(self.find(&entry.path), Some(at));
        }
        &self.entries
    }

    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity()
    }
}
