//! Common state of the members of a cache: the purges, and the record of which directories there are.
//!
//! Each member has a copy of both on its disk (`purges`, `member`). At the start all copies are read, and what any of them has
//! counts (`open::group`). A member that does not answer is left out, and its manager tries again; before any of its responses is
//! used, its purges are united with those of the others. A member that was missing while purges were forgotten has all its older
//! responses purged.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{Relaxed, SeqCst},
};
use std::sync::{Arc, OnceLock, Weak};

use tokio::sync::OnceCell;
use tw_base::FatalMutex;
use tw_cache::{Key, Purge, Purges};
use tw_disk::DiskError;

use super::file::{FoundMember, MemberFile, MemberName};
use crate::entry::ZoneId;
use crate::guard::breaker::Breaker;
use crate::store::record_snapshot::FoundRecordSnapshot;
use crate::store::segments::DeviceNumber;

/// Common state of the members of a cache, each of which is a cache `C` of its own.
pub(crate) struct MemberGroup<C> {
    pub(crate) purges: OnceCell<Arc<Purges>>,
    /// Members by the newest configuration.
    members: FatalMutex<Vec<Weak<C>>>,
    pub(crate) record: FatalMutex<GroupRecord>,
    /// Numbers of the newest purges and of the newest record: members have to save them.
    pub(crate) purges_changed: AtomicU64,
    pub(crate) record_changed: AtomicU64,
    /// For each member the oldest number of an entry that the last sweep has found.
    pub(crate) sweeps: FatalMutex<HashMap<ZoneId, u64>>,
}

#[derive(Default)]
pub(crate) struct GroupRecord {
    pub(crate) set: u64,
    pub(crate) members: BTreeSet<MemberName>,
    pub(crate) out: BTreeSet<MemberName>,
    /// Numbers of the devices that members had at the start, with the last number of the purges beside each.
    pub(crate) devices: HashMap<DeviceNumber, u64>,
}

/// State of one member.
pub(crate) struct MemberZone<C> {
    group: OnceLock<Arc<MemberGroup<C>>>,
    /// Files that were found at the start.
    pub(crate) directory_files: FatalMutex<Option<Result<DirectoryFiles, DiskError>>>,
    pub(crate) purges_saved: AtomicU64,
    pub(crate) record_saved: AtomicU64,
    /// Last number of its purge file when it came.
    pub(crate) last: AtomicU64,
    /// True if its files were read, or could not be: its device is noted by then.
    pub(crate) has_answered: AtomicBool,
    /// True if it was left out when it could not be opened, and this was logged.
    pub(crate) is_missing: AtomicBool,
    /// True if another member remembers from before the start that it was left out.
    pub(crate) was_out: AtomicBool,
    /// Breaker of storing: a full or read-only disk can still be read.
    pub(crate) store_breaker: Breaker,
    /// Number of purges of a key that its disk did not finish.
    pub(crate) failed_purges: AtomicU64,
}

/// Files of a directory that are read before it is used.
pub(crate) struct DirectoryFiles {
    pub(crate) member: FoundMember,
    pub(crate) purges: Option<Vec<u8>>,
    /// Number of the device that it had.
    pub(crate) device: Option<DeviceNumber>,
    pub(crate) records: FoundRecordSnapshot,
}

impl<C> MemberZone<C> {
    pub(crate) fn new() -> Self {
        Self {
            group: OnceLock::new(),
            directory_files: FatalMutex::default(),
            purges_saved: AtomicU64::new(0),
            record_saved: AtomicU64::new(0),
            last: AtomicU64::new(0),
            has_answered: AtomicBool::new(false),
            is_missing: AtomicBool::new(false),
            was_out: AtomicBool::new(false),
            store_breaker: Breaker::new(),
            failed_purges: AtomicU64::new(0),
        }
    }

    /// Makes it a member of a group, for ever.
    pub(crate) fn join(&self, group: &Arc<MemberGroup<C>>) {
        // It has one already if it was a member before.
        let _ = self.group.set(group.clone());
    }

    pub(crate) fn group(&self) -> Option<&Arc<MemberGroup<C>>> {
        self.group.get()
    }

    /// Purges a key in a directory that is not open; not saved.
    pub(crate) fn purge_later(&self, key: Key) {
        if let Some(purges) = self.group().and_then(|group| group.purges.get()) {
            purges.purge_key(key, Purge::Hard);
        }
    }

    /// Returns true if the directory could not be opened, or is not the one that it was.
    pub(crate) fn is_missing(&self) -> bool {
        self.is_missing.load(Relaxed)
    }
}

impl<C> Default for MemberGroup<C> {
    fn default() -> Self {
        Self {
            purges: OnceCell::new(),
            members: FatalMutex::default(),
            record: FatalMutex::default(),
            purges_changed: AtomicU64::new(0),
            record_changed: AtomicU64::new(0),
            sweeps: FatalMutex::default(),
        }
    }
}

impl<C> MemberGroup<C> {
    /// Sets the members of the newest configuration.
    pub(crate) fn set_members(&self, members: impl Iterator<Item = Weak<C>>) {
        *self.members.lock() = members.collect();
        self.record_changed.fetch_add(1, SeqCst);
    }

    /// Members of the newest configuration.
    pub(crate) fn members(&self) -> Vec<Arc<C>> {
        self.members.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Notes whether a member is left out, for the next start.
    pub(crate) fn set_out(&self, path: &[u8], is_out: bool) {
        let mut record = self.record.lock();
        let is_changed = if is_out { record.out.insert(path.into()) } else { record.out.remove(path) };
        if is_changed {
            self.record_changed.fetch_add(1, SeqCst);
        }
    }

    /// Unites the purges of a directory with the others, and notes the device that it had, if it is of a member whose purges are
    /// known: the responses on that device need no others.
    pub(crate) fn unite_purges(&self, files: &DirectoryFiles, purges: &Purges) {
        let Some(file) = &files.purges else { return };
        // Its member has to handle an error.
        let Ok(facts) = purges.absorb(file) else { return };
        let (FoundMember::File(member), Some(number)) = (&files.member, &files.device) else { return };
        let mut record = self.record.lock();
        if member.set == record.set {
            // A member that is tried again may have the note of a device that was another's.
            let last = record.devices.entry(number.clone()).or_insert(facts.last);
            *last = facts.last.min(*last);
        }
    }

    /// Contents of the file of a member in this directory.
    pub(crate) fn file_of(&self, path: &[u8]) -> MemberFile {
        let record = self.record.lock();
        let (members, out) = (record.members.clone(), record.out.clone());
        MemberFile { set: record.set, path: path.into(), members, out }
    }
}
