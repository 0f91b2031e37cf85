//! Quotas of a cache: responses are counted when they were stored or found, and are removed if they take more than their quota.

use std::ffi::CString;
use std::sync::atomic::Ordering::Acquire;

use tw_cache::{EntryState, Key, RemovedEntry};

use super::Cache;
use crate::cache_path::WHOLE;
use crate::entry::open_entries::OpenEntry;
use crate::guard::quota::{ConfirmedQuota, QuotaClaim};
use crate::store::place::on_disk;

/// Name of the file in the directory of a cache.
pub(crate) const NAME: &str = "quotas";

impl Cache {
    /// Part of a quota that counts here: all of it, or the share of a member.
    fn share_of(&self, claim: &QuotaClaim) -> u64 {
        let share = u128::from(claim.max) * u128::from(self.place.share) / u128::from(WHOLE);
        u64::try_from(share).unwrap_or(u64::MAX)
    }

    /// Returns true if a response of so many bytes takes more than the quota of its owner.
    pub(crate) fn is_above_quota(&self, claim: &QuotaClaim, size: u64) -> bool {
        on_disk(size) > self.share_of(claim)
    }

    /// Counts a response that was stored, or found without being counted. One that takes more than its quota is removed from the
    /// index instead, and nothing else of its owner; the caller removes its file.
    #[must_use]
    pub(crate) fn count_in_quota(&self, key: Key, claim: &QuotaClaim) -> Option<RemovedEntry> {
        let index = self.index()?;
        // Before the table is locked: the locks of both are never held together.
        let entry = index.peek(key).filter(|entry| entry.holds == EntryState::File)?;
        if self.is_above_quota(claim, entry.size) {
            let removed_entry = index.remove_if_sequence(key, entry.sequence);
            self.zone.quotas.evicted.add(u64::from(removed_entry.is_some()));
            return removed_entry;
        }
        self.zone.quotas.table.lock().add(key, entry.size, claim.owner, self.share_of(claim));
        None
    }

    /// Counts a response that was found, if it is not counted: it may have been stored before a crash. Returns it if it takes more
    /// than its quota, as [`count_in_quota`](Self::count_in_quota) does.
    #[must_use]
    pub(crate) fn confirm_quota(
        &self,
        key: Key,
        entry: &OpenEntry,
        claim: &QuotaClaim,
    ) -> Option<RemovedEntry> {
        let confirmed = ConfirmedQuota { owner: claim.owner, share: self.share_of(claim) };
        if entry.quota.get() == Some(confirmed) {
            return None;
        }
        let is_counted = self.zone.quotas.table.lock().confirm(key, claim.owner, self.share_of(claim));
        if !is_counted && !self.zone.quotas.is_restored.load(Acquire) {
            return None;
        }
        // Once for all hits of a loop: the lock of the table is that of all loops.
        entry.quota.set(Some(confirmed));
        if is_counted { None } else { self.count_in_quota(key, claim) }
    }

    /// Path of the file with the owners of responses.
    pub(crate) fn quotas_path(&self) -> CString {
        self.place.own_file(NAME)
    }
}
