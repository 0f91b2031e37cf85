//! Removal of an entry whose body differs from its checksums.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tw_cache::Key;
use tw_cache::format::FormatError;
use tw_log::{Level, Text};

use super::zone::Cache;
use crate::http::files::DamageReport;
use crate::http::request::Request;

/// Entry whose file is open.
pub(super) struct CheckedEntry {
    pub(super) cache: Arc<Cache>,
    pub(super) key: Key,
    /// Sequence number in the index.
    pub(super) sequence: AtomicU64,
}

impl DamageReport for CheckedEntry {
    fn report(&self, r: &Request, offset: u64) {
        let path = self.cache.place.path(self.key);
        let (shown, why) = (Text(path.to_bytes()), FormatError::Body);
        r.log(Level::Crit, format_args!("cache file \"{shown}\" is damaged at offset {offset}: {why}"));
        let sequence = self.sequence.load(Relaxed);
        let index = self.cache.index();
        let gone = index.and_then(|index| index.remove_if_sequence(self.key, sequence));
        // Otherwise another request was faster, or the entry was validated: then the next one finds the damage.
        self.cache.zone.counts.damaged.add(u64::from(gone.is_some()));
        self.cache.remove_evicted(r, gone);
    }
}
