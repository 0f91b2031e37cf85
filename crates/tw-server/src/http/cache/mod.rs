//! Caches: responses of upstream servers are stored on a disk and served from there (nginx: ngx_http_file_cache).
//!
//! ```text
//! lookup: key ─► index ─► entry: open, or opened now ─► fresh? ─► serve_hit: the response
//!                  │                                      │ no        ▲
//!                  └─ miss ─► a fill to join? ◄───────────┘           │
//!                               │ no    └─ yes ─► fill ───────────────┘
//!                               └─► upstream server ─► fill ─► writer ─► file and entry in the index
//! ```
//! The proxy calls the cache, never the other way round. Event loops do no file operations that can wait. The rules for storing
//! and using responses are in `tw_cache::policy`, which has neither requests nor files; `settings` has those of a location.
//!
//! Each loop keeps recently used entries open and small bodies in memory, valid while the index has their sequence number, so a hot hit needs
//! no disk access. An entry is added after its file is in place and removed before its file is. A purge is a sequence number: a response
//! whose fetch began before it is neither used nor stored.
//!
//! With `store=log`, small responses are records of segments (`segments`): files, or slots of a block device. The entry of a record is
//! compact (13 bytes, without the key, which the record has) as long as nothing happens to it, and a lookup after a start reads the one page of
//! the snapshot that has it. The master opens a device while it loads the configuration, holds it exclusively beside the locks of directories,
//! and passes the descriptor on like files of data. A member whose device or directory is missing is left out. Quotas (`cache_quota`) are counted in a
//! table beside the index (`tw_cache::QuotaTable`), by the value of a variable.

mod background;
mod breaker;
mod cache_device;
mod cache_headers;
pub mod cache_path;
mod cached_response;
mod conditions;
pub mod damage;
mod device_format;
mod directives;
mod entry;
mod explain;
mod feed;
mod file_head;
mod fill;
mod fleet;
mod fleet_metrics;
mod follow;
mod hedge;
mod hot_table;
mod invalidate;
mod lookup;
mod manager;
mod member_file;
mod member_group;
mod member_path;
mod member_state;
mod members;
mod metrics;
pub mod miss_reason;
pub(crate) mod open_entries;
mod purge;
mod purge_rule;
mod put_queue;
mod quota;
mod record_snapshot;
mod refresh_ahead;
mod segments;
mod serve_hit;
pub mod settings;
mod snapshot;
mod stats;
mod store;
mod store_purge;
mod store_response;
mod temp_file;
#[cfg(test)]
mod tests;
mod writer;
mod zone;

pub use background::background_max;
pub(crate) use cache_headers::set_cache_headers;
pub use conditions::{CONDITIONAL, UpstreamConditions};
pub use device_format::{FormattedDevice, check_device, format_device};
pub use fleet_metrics::{FLEET_METRICS, write_fleets};
pub use invalidate::discard;
pub(crate) use invalidate::invalidate;
pub use lookup::{Lookup, look_up};
pub(crate) use manager::run as manage;
pub use member_state::{MemberSnapshot, MemberState};
pub(crate) use metrics::METRICS;
pub use metrics::{CacheSnapshot, ResponseTotals};
pub use miss_reason::MissReason;
pub use purge::{PURGES_MAX, PurgeOutcome, PurgeScope};
pub use quota::RawQuota;
pub use refresh_ahead::RefreshAhead;
pub(crate) use serve_hit::{evaluate_conditions, head_body, serve_hit};
pub use settings::{CacheSettings, SentBody};
pub(crate) use store_response::StoreDecision;
pub use tw_cache::Purge;
pub(crate) use writer::{BodyOrigin, BodyReport};
pub use zone::{Cache, Caches};

pub use crate::http::cache_info::{CacheInfo, UpstreamCacheStatus};

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    use follow::LIMITS;
    use fill::LIMITS;
    use fleet_metrics::LIMITS;
    use fill::SUPPLY_LIMITS;
    use writer::LIMITS;
    use put_queue::LIMITS;
    use temp_file::LIMITS;
    use open_entries::LIMITS;
    use manager::LIMITS;
    use breaker::LIMITS;
    use background::LIMITS;
    use hedge::LIMITS;
    use refresh_ahead::LIMITS;
    use purge::LIMITS;
    use snapshot::LIMITS;
    use zone::LIMITS;
    use member_path::LIMITS;
    use member_group::LIMITS;
    use segments::LIMITS;
}

/// Converts Unix time in seconds to the numbers of the index.
fn seconds(unix: i64) -> u32 {
    u32::try_from(unix.max(0)).unwrap_or(u32::MAX)
}
