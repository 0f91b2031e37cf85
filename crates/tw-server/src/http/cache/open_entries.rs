//! What one loop has open of its caches: heads that were read, files, and the bodies of small responses.
//!
//! An entry is as good as the index says: it has the number under which it was stored, and whoever stored it anew has another.
//! So a hit needs no look at the disk, but one a second, beside the requests, whether the file is still in its place: somebody
//! else may have removed it. A clock over the entries: when there are too many, those go first that were not used since
//! the hand last passed.

use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use foldhash::fast::RandomState;
use tokio::sync::Notify;
use tw_base::Limit;
use tw_cache::format::Meta;
use tw_cache::{Key, Tag};

use super::zone::{Zone, ZoneId};
use crate::http::files::OpenFile;

/// Entries that one loop keeps open.
const ENTRIES_MAX: usize = 1024;
/// The largest body that is kept in memory, bytes.
pub(super) const BODY_MAX: usize = 64 << 10;

/// Greatest age of the last look at the place of a file for a hit.
const SEEN: Duration = Duration::from_secs(1);
/// Age at which the next look begins, beside the requests: what is asked for all the time never waits for one.
const SEEN_AHEAD: Duration = Duration::from_millis(500);
/// Longest wait of a hit for a look that is due: a disk that does not answer must not hold up what is in memory.
const LOOK_PATIENCE: Duration = Duration::from_millis(50);

pub(crate) const LIMITS: &[Limit] = &[
    Limit::micros(
        "SEEN",
        SEEN.as_micros() as u64,
        "Time for which a cached response that is open is given out without a look whether its file is still there",
        "a look, which is begun after half of that beside the requests",
    ),
    Limit::micros(
        "LOOK_PATIENCE",
        LOOK_PATIENCE.as_micros() as u64,
        "Time for which a hit waits for such a look",
        "the response is given out as it is in memory",
    ),
    Limit::count(
        "ENTRIES_MAX",
        ENTRIES_MAX as u64,
        "Entries of caches that one loop keeps open; a quarter of its share of descriptors if that is less",
        "one that was not asked for lately is closed",
    ),
    Limit::bytes(
        "BODY_MAX",
        BODY_MAX as u64,
        "Bytes of a cached response that is kept in memory, within `hot_files_size`",
        "larger ones are read from the page cache",
    ),
];

/// An entry that is open.
pub(super) struct Entry {
    pub(super) meta: Meta,
    pub(super) file: Rc<OpenFile>,
    /// What it can be purged by.
    pub(super) tags: Box<[Tag]>,
    /// Bytes of the body.
    pub(super) len: u64,
    /// The body, if it is small.
    pub(super) body: Option<Bytes>,
    /// Under which number the index has it.
    pub(super) sequence: u64,
    /// When it began to be fetched, as its file tells.
    pub(super) written: u64,
    /// Looks at the place of its file.
    pub(super) look: Look,
}

/// Looks of one loop at the place of a file, one at a time.
pub(super) struct Look {
    /// Time at which the file was last found in its place.
    seen: Cell<Instant>,
    /// Time at which the look that goes on began.
    begun: Cell<Option<Instant>>,
    over: Notify,
}

/// Duty of a request about the file of an open entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Nothing: it was seen a moment ago, or the disk does not answer.
    Nothing,
    /// Begin a look, and go on.
    Begin,
    /// Begin a look, and wait for its end until then.
    BeginAndWait(Instant),
    /// Wait until then for the end of the look that goes on.
    Wait(Instant),
}

impl Look {
    /// The file has just been seen.
    pub(super) fn new() -> Self {
        Self { seen: Cell::new(tw_rt::clock::now()), begun: Cell::new(None), over: Notify::new() }
    }

    /// Returns the duty at `now`.
    pub(super) fn due(&self, now: Instant) -> Due {
        let age = now.saturating_duration_since(self.seen.get());
        match self.begun.get() {
            _ if age < SEEN_AHEAD => Due::Nothing,
            None if age < SEEN => Due::Begin,
            None => Due::BeginAndWait(now + LOOK_PATIENCE),
            Some(begun) if age >= SEEN && now < begun + LOOK_PATIENCE => Due::Wait(begun + LOOK_PATIENCE),
            Some(_) => Due::Nothing,
        }
    }

    /// A look begins.
    pub(super) fn begin(&self, now: Instant) {
        self.begun.set(Some(now));
    }

    /// The look that began last has ended, and has not found that the file is gone.
    pub(super) fn saw(&self) {
        self.seen.set(self.begun.take().unwrap_or_else(tw_rt::clock::now));
        self.over.notify_waiters();
    }

    /// The file is not there any more.
    pub(super) fn lost(&self) {
        self.over.notify_waiters();
    }

    /// Waits until the look that goes on has ended, until `until` at most.
    pub(super) async fn wait(&self, until: Instant) {
        let _ = tokio::time::timeout_at(until.into(), self.over.notified()).await;
    }
}

/// The entries a loop has open.
pub(crate) struct OpenEntries {
    places: HashMap<(ZoneId, Key), usize, RandomState>,
    slots: Vec<Slot>,
    bytes: usize,
    hand: usize,
    entries_max: usize,
    bytes_max: usize,
}

struct Slot {
    zone: Arc<Zone>,
    key: Key,
    entry: Rc<Entry>,
    is_recent: Cell<bool>,
    used: Cell<Instant>,
}

impl OpenEntries {
    /// Room for so many entries, a quarter of the `descriptors` of the loop at most, and so many bytes of bodies.
    pub(crate) fn new(descriptors: usize, bytes_max: usize) -> Self {
        let entries_max = ENTRIES_MAX.min(descriptors).max(1);
        Self { places: HashMap::default(), slots: Vec::new(), bytes: 0, hand: 0, entries_max, bytes_max }
    }

    /// The entry, if it is the one that was stored under this number.
    pub(super) fn get(&self, zone: ZoneId, key: Key, sequence: u64) -> Option<Rc<Entry>> {
        let slot = self.slots.get(*self.places.get(&(zone, key))?)?;
        if slot.entry.sequence != sequence {
            return None;
        }
        slot.is_recent.set(true);
        slot.used.set(tw_rt::clock::now());
        Some(slot.entry.clone())
    }

    /// Forgets an entry whose file is not in its place.
    pub(super) fn forget(&mut self, zone: ZoneId, key: Key, entry: &Rc<Entry>) {
        if let Some(at) = self.places.get(&(zone, key)).copied()
            && self.slots.get(at).is_some_and(|slot| Rc::ptr_eq(&slot.entry, entry))
        {
            self.take(at);
        }
    }

    /// Keeps an entry, in the place of one of the same key.
    pub(super) fn put(&mut self, zone: &Arc<Zone>, key: Key, entry: Rc<Entry>) {
        if let Some(at) = self.places.get(&(zone.id, key)) {
            self.take(*at);
        }
        let size = entry.size();
        if size > self.bytes_max {
            return;
        }
        while !self.slots.is_empty()
            && (self.slots.len() >= self.entries_max || self.bytes + size > self.bytes_max)
        {
            self.evict();
        }
        self.bytes += size;
        self.places.insert((zone.id, key), self.slots.len());
        let (is_recent, used) = (Cell::new(false), Cell::new(tw_rt::clock::now()));
        self.slots.push(Slot { zone: zone.clone(), key, entry, is_recent, used });
    }

    /// Closes the files of entries that are no longer what their cache has, or were not used for `inactive`: what was removed
    /// gives its blocks back.
    pub(crate) fn sweep(&mut self, inactive: Duration) {
        let now = tw_rt::clock::now();
        let mut at = self.slots.len();
        while at > 0 {
            at -= 1;
            let slot = &self.slots[at];
            let is_current = slot.zone.held().is_some_and(|held| {
                held.index.peek(slot.key).is_some_and(|found| found.sequence == slot.entry.sequence)
            });
            if !is_current || now.saturating_duration_since(slot.used.get()) >= inactive {
                self.take(at);
            }
        }
    }

    /// Forgets everything; files are closed when nobody sends them any more.
    pub(crate) fn clear(&mut self) {
        (self.bytes, self.hand) = (0, 0);
        self.places.clear();
        self.slots.clear();
    }

    /// Closes the file of one entry, if there is one.
    pub(crate) fn close_one(&mut self) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        self.evict();
        true
    }

    fn evict(&mut self) {
        loop {
            self.hand %= self.slots.len();
            if !self.slots[self.hand].is_recent.take() {
                return self.take(self.hand);
            }
            self.hand += 1;
        }
    }

    fn take(&mut self, at: usize) {
        let slot = self.slots.swap_remove(at);
        self.bytes -= slot.entry.size();
        self.places.remove(&(slot.zone.id, slot.key));
        if let Some(moved) = self.slots.get(at) {
            self.places.insert((moved.zone.id, moved.key), at);
        }
    }
}

impl Entry {
    /// The same body with another head.
    pub(super) fn with(&self, meta: Meta) -> Self {
        let Self { file, tags, len, body, sequence, written, .. } = self;
        let (file, tags, body) = (file.clone(), tags.clone(), body.clone());
        let look = Look::new();
        Self { meta, file, tags, len: *len, body, sequence: *sequence, written: *written, look }
    }

    fn size(&self) -> usize {
        self.body.as_ref().map_or(0, Bytes::len)
    }
}
