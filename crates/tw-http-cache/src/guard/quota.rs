//! Quotas of a zone: the bytes that the responses of each owner take, in a table that only caches with quotas have.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use tw_base::{Counter, FatalMutex};
use tw_cache::{EntryState, Index, Key, QuotaOwner, QuotaTable};

/// Owner of one response, with its quota in the whole cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuotaClaim {
    pub(crate) owner: QuotaOwner,
    pub(crate) max: u64,
}

/// Quota in which an open entry is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConfirmedQuota {
    pub(crate) owner: QuotaOwner,
    pub(crate) share: u64,
}

/// Quotas of one zone.
#[derive(Default)]
pub(crate) struct Quotas {
    pub(crate) table: FatalMutex<QuotaTable>,
    /// True if a configuration of this process has quotas for the cache.
    is_on: AtomicBool,
    /// True if the file was read.
    pub(crate) is_restored: AtomicBool,
    /// True if the log says that values share a quota.
    pub(crate) is_full_reported: AtomicBool,
    /// Numbers of the table, for metrics, which take no lock of requests.
    pub(crate) owners: AtomicU64,
    pub(crate) above: AtomicU64,
    /// Responses that were evicted.
    pub(crate) evicted: Counter,
}

impl Quotas {
    /// Begins to count.
    pub(crate) fn switch_on(&self) {
        self.is_on.store(true, Relaxed);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Values that have responses, when the manager last looked.
    pub(crate) fn owners(&self) -> u64 {
        self.owners.load(Relaxed)
    }

    /// Number of values whose responses took more than their quota, when the manager last looked.
    pub(crate) fn above(&self) -> u64 {
        self.above.load(Relaxed)
    }

    /// Counts a response no more that has left the index, unless another one has its key.
    pub(crate) fn forget(&self, index: &Index, key: Key) {
        if self.is_on() && !has_response(index, key) {
            self.table.lock().forget(key);
        }
    }
}

/// Returns true if the index has a response with this key.
pub(crate) fn has_response(index: &Index, key: Key) -> bool {
    index.peek(key).is_some_and(|entry| entry.holds == EntryState::File)
}
