//! A cache as requests know it that have used it.

use tw_core::pools::Disks;
use tw_disk::Disk;

use super::Cache;
use tw_request::cache_info::{CountedResponse, HitFrom, UsedCache};

impl UsedCache for Cache {
    fn own_disk<'d>(&self, disks: &'d Disks) -> Option<&'d Disk> {
        Self::own_disk(self, disks)
    }

    fn record_hit(&self, index: usize, from: HitFrom, ns: u64) {
        self.zone.stats.record_hit(index, from, ns);
    }

    fn count_response(&self, index: usize, response: CountedResponse) {
        self.zone.counts.by_status[response.status as usize].add(1);
        self.zone.stats.count_bytes(index, response);
    }
}
