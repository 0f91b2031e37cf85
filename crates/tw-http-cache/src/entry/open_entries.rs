//! Open cache entries of one loop: their heads, files, and the bodies of small responses.
//!
//! An entry is current if the index has its sequence number: a newer response has another one. So a hit needs no disk access,
//! except that one check a second, in the background, finds files that others have removed. When there are too many entries,
//! S3-FIFO chooses which are closed ([`HotTable`]).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tw_cache::format::Meta;
use tw_cache::{Index, IndexEntry, Key, SegmentAddress, Tag};

use super::ZoneId;
use super::hot_table::HotTable;
use super::refresh_pace::RefreshPace;
use crate::guard::quota::ConfirmedQuota;
use tw_request::files::OpenFile;

/// Age at which the next check starts in the background: an entry in constant use never waits for one.
const SEEN_AHEAD: Duration = Duration::from_millis(500);

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time for which a cached response that is open is given out without a look whether its file is still there.
    const SEEN: Duration = Duration::from_secs(1), time, "a look, which is begun after half of that beside the requests";
    /// Time for which a hit waits for such a look.
    ///
    /// Longest wait of a hit for a check that is due: a hanging disk must not delay what is in memory.
    const LOOK_TIMEOUT: Duration = Duration::from_millis(50), time, "the response is given out as it is in memory";
    /// Entries of caches that one loop keeps open; a quarter of its share of descriptors if that is less.
    const ENTRIES_MAX: usize = 1024, count, "one that was not asked for lately is closed";
    /// Bytes of a cached response that is kept in memory, within `hot_files_size`.
    pub(crate) const BODY_MAX: usize = 64 << 10, bytes, "larger ones are read from the page cache";
    /// Bytes of checksums of open entries that one loop keeps in memory.
    const SUMS_MAX: usize = 32 << 20, bytes, "an entry that was not asked for lately is closed";
}

/// Open entry.
pub(crate) struct OpenEntry {
    pub(crate) meta: Meta,
    pub(crate) file: Rc<OpenFile>,
    /// Tags by which the entry can be purged.
    pub(crate) tags: Box<[Tag]>,
    /// Address of the record; `None` if the entry has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
    /// Offset of the entry in the file.
    pub(crate) offset: u64,
    /// Length of the body.
    pub(crate) len: u64,
    /// Body, if it is small.
    pub(crate) body: Option<Bytes>,
    /// Sequence number in the index.
    pub(crate) sequence: u64,
    /// Sequence number of its fetch, from its file.
    pub(crate) file_sequence: u64,
    /// No purge up to this number concerns it, as this loop knows.
    pub(crate) confirmed: Cell<u64>,
    /// Quota in which it is counted, as this loop knows.
    pub(crate) quota: Cell<Option<ConfirmedQuota>>,
    /// Checks of the path of its file.
    pub(crate) path_check: PathCheck,
    /// Updates before it becomes stale.
    pub(crate) refresh_pace: RefreshPace,
}

/// Checks by one loop that a file is at its path, one at a time.
pub(crate) struct PathCheck {
    /// Time at which the file was last found at its path.
    checked_at: Cell<Instant>,
    /// Start of the check in progress.
    begun: Cell<Option<Instant>>,
    over: Notify,
}

/// Check that a request has to start or wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DueCheck {
    /// None: the file was seen a moment ago, or the disk does not answer.
    Nothing,
    /// Start a check, and go on.
    Begin,
    /// Start a check, and wait for it until then.
    BeginAndWait(Instant),
    /// Wait until then for the check in progress.
    Wait(Instant),
}

impl PathCheck {
    /// Creates the state of a file that has just been opened.
    pub(crate) fn new() -> Self {
        Self { checked_at: Cell::new(tw_rt::clock::now()), begun: Cell::new(None), over: Notify::new() }
    }

    /// Returns the check that is due at `now`.
    pub(crate) fn due(&self, now: Instant) -> DueCheck {
        let age = now.saturating_duration_since(self.checked_at.get());
        match self.begun.get() {
            _ if age < SEEN_AHEAD => DueCheck::Nothing,
            None if age < SEEN => DueCheck::Begin,
            None => DueCheck::BeginAndWait(now + LOOK_TIMEOUT),
            Some(begun) if age >= SEEN && now < begun + LOOK_TIMEOUT => DueCheck::Wait(begun + LOOK_TIMEOUT),
            Some(_) => DueCheck::Nothing,
        }
    }

    /// Notes the start of a check.
    pub(crate) fn begin(&self, now: Instant) {
        self.begun.set(Some(now));
    }

    /// Notes the end of a check that has not found the file gone.
    pub(crate) fn passed(&self) {
        self.checked_at.set(self.begun.take().unwrap_or_else(tw_rt::clock::now));
        self.over.notify_waiters();
    }

    /// Notes that the file is gone.
    pub(crate) fn failed(&self) {
        self.over.notify_waiters();
    }

    /// Waits for the check in progress, until `until` at most.
    pub(crate) async fn wait(&self, until: Instant) {
        let _ = tw_rt::time::timeout_at(until, self.over.notified()).await;
    }
}

/// Open entries of a loop.
pub struct OpenEntries {
    table: HotTable<(ZoneId, Key), EntrySlot>,
    bytes: usize,
    /// Bytes of checksums.
    sums: usize,
    entries_max: usize,
    bytes_max: usize,
}

struct EntrySlot {
    index: Arc<Index>,
    entry: Rc<OpenEntry>,
    used: Cell<Instant>,
}

impl OpenEntries {
    /// Creates a table with room for `descriptors` entries at most, and for `bytes_max` bytes of bodies.
    pub fn new(descriptors: usize, bytes_max: usize) -> Self {
        let entries_max = ENTRIES_MAX.min(descriptors).max(1);
        Self { table: HotTable::new(entries_max), bytes: 0, sums: 0, entries_max, bytes_max }
    }

    /// Returns the entry, if it is the one that the index has.
    pub(crate) fn get(&self, zone: ZoneId, key: Key, entry: &IndexEntry) -> Option<Rc<OpenEntry>> {
        let slot = self.table.get_if(&(zone, key), |slot| slot.entry.is_current(entry))?;
        slot.used.set(tw_rt::clock::now());
        Some(slot.entry.clone())
    }

    /// Removes an entry whose file is gone.
    pub(crate) fn forget(&mut self, zone: ZoneId, key: Key, entry: &Rc<OpenEntry>) {
        let at = (zone, key);
        if self.table.peek(&at).is_some_and(|slot| Rc::ptr_eq(&slot.entry, entry)) {
            let entry_slot = self.table.remove(&at);
            self.subtract(entry_slot);
        }
    }

    /// Adds an entry; it replaces one of the same key.
    pub(crate) fn put(&mut self, zone: ZoneId, index: &Arc<Index>, key: Key, entry: Rc<OpenEntry>) {
        let (at, size, sums) = ((zone, key), entry.size(), entry.sums_size());
        if size > self.bytes_max || sums > SUMS_MAX {
            let slot = self.table.remove(&at);
            self.subtract(slot);
            return;
        }
        let used = Cell::new(tw_rt::clock::now());
        self.bytes += size;
        self.sums += sums;
        let replaced = self.table.insert(at, EntrySlot { index: index.clone(), entry, used });
        self.subtract(replaced);
        while self.table.len() > self.entries_max || self.bytes > self.bytes_max || self.sums > SUMS_MAX {
            let slot = self.table.evict();
            self.subtract(slot);
        }
    }

    /// Closes entries that are not current any more or were not used for `inactive`, so that the blocks of removed files are
    /// freed.
    pub fn sweep(&mut self, inactive: Duration) {
        let now = tw_rt::clock::now();
        let is_kept = |(_, key): &(ZoneId, Key), slot: &EntrySlot| {
            let is_current = slot.index.peek(*key).is_some_and(|entry| slot.entry.is_current(&entry));
            is_current && now.saturating_duration_since(slot.used.get()) < inactive
        };
        let (bytes, sums) = (&mut self.bytes, &mut self.sums);
        self.table.retain(is_kept, |entry_slot| {
            *bytes -= entry_slot.entry.size();
            *sums -= entry_slot.entry.sums_size();
        });
    }

    /// Removes all entries; files are closed when the last response that uses them ends.
    pub fn clear(&mut self) {
        (self.bytes, self.sums) = (0, 0);
        self.table.clear();
    }

    /// Closes one entry. Returns false if there is none.
    pub fn close_one(&mut self) -> bool {
        let slot = self.table.evict();
        let has_closed = slot.is_some();
        self.subtract(slot);
        has_closed
    }

    fn subtract(&mut self, entry_slot: Option<EntrySlot>) {
        let Some(slot) = entry_slot else { return };
        self.bytes -= slot.entry.size();
        self.sums -= slot.entry.sums_size();
    }
}

impl OpenEntry {
    /// Copies the entry with another head.
    pub(crate) fn with(&self, meta: Meta) -> Self {
        let Self { file, address, offset, tags, len, body, sequence, file_sequence, .. } = self;
        let (file, tags, body) = (file.clone(), tags.clone(), body.clone());
        let path_check = PathCheck::new();
        Self {
            meta,
            file,
            address: *address,
            offset: *offset,
            tags,
            len: *len,
            body,
            sequence: *sequence,
            file_sequence: *file_sequence,
            confirmed: self.confirmed.clone(),
            quota: self.quota.clone(),
            path_check,
            refresh_pace: RefreshPace::default(),
        }
    }

    /// Returns true if the index has this response at this place.
    fn is_current(&self, entry: &IndexEntry) -> bool {
        (self.sequence, self.address) == (entry.sequence, entry.address)
    }

    /// Offset of the body in the file.
    pub(crate) fn body_offset(&self) -> u64 {
        self.offset + u64::from(self.meta.header_size)
    }

    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }

    /// Bytes of its checksums in memory.
    fn sums_size(&self) -> usize {
        self.file.check().map_or(0, |check| check.memory())
    }
}
