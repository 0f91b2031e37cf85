//! Work of the manager for a member of a cache with several directories.

use std::fmt;
use std::time::{Duration, Instant};

use tw_log::Level;

use crate::upkeep::CacheMaintenance;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Time after which a member of a cache is written to, to see whether its disk works.
    const PROBE_INTERVAL: Duration = Duration::from_secs(5), time, "a member that fails is left out";
}

impl CacheMaintenance {
    /// Saves what a member lacks, and looks at times whether its disk works. Returns false while that is left alone. Does
    /// nothing for a cache with one directory.
    pub(crate) async fn maintain_member(&self, probed_at: &mut Option<Instant>) -> bool {
        let Some(group) = self.cache.zone.member.group() else { return true };
        let log = |level: Level, message: fmt::Arguments<'_>| (self.log)(level, message);
        let path = self.cache.place.dir.to_bytes();
        if !self.cache.note_probe(None, &log) {
            group.set_out(path, true);
            return false;
        }
        let now = tw_rt::clock::now();
        let is_probe = probed_at.is_none_or(|at| now.saturating_duration_since(at) >= PROBE_INTERVAL);
        if is_probe {
            *probed_at = Some(now);
        }
        let settled = self.cache.settle_member(&self.disk, is_probe).await;
        let is_used = self.cache.note_probe(Some(&settled).filter(|_| is_probe || settled.is_err()), &log);
        group.set_out(path, !is_used);
        is_used
    }
}
