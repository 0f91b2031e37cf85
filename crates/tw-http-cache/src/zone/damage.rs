//! Removal of an entry whose body differs from its checksums.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_cache::format::FormatError;
use tw_cache::{Key, SegmentAddress};
use tw_log::Level;

use super::Cache;
use crate::store::place::StoredPlace;
use tw_request::files::DamageReport;
use tw_request::request::Request;

/// Entry whose file is open.
pub(crate) struct CheckedEntry {
    pub(crate) cache: Arc<Cache>,
    pub(crate) key: Key,
    /// Address of the record; `None` if it has a file of its own.
    pub(crate) address: Option<SegmentAddress>,
    /// Sequence number in the index.
    pub(crate) sequence: AtomicU64,
}

impl DamageReport for CheckedEntry {
    fn report(&self, r: &Request, offset: u64) {
        if self.cache.zone.store.is_place_lost(self.address) {
            // Its place on the device is used again: the client was slower than the cache is small.
            r.log(Level::Info, format_args!("the response was evicted while it was sent"));
            return;
        }
        let place = StoredPlace { place: &self.cache.place, key: self.key, address: self.address };
        let why = FormatError::Body;
        r.log(Level::Crit, format_args!("{place} is damaged at offset {offset}: {why}"));
        let sequence = self.sequence.load(Relaxed);
        let index = self.cache.index();
        let removed_entry = index.and_then(|index| index.remove_if_sequence(self.key, sequence));
        // Otherwise another request was faster, or the entry was validated: then the next one finds the damage.
        self.cache.zone.counts.damaged.add(u64::from(removed_entry.is_some()));
        self.cache.remove_evicted(r, removed_entry);
    }
}
