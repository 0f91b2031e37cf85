//! Caches: responses of upstream servers are stored on a disk and served from there (nginx: ngx_http_file_cache).
//!
//! ```text
//! lookup: key ─► index ─► entry: open, or opened now ─► fresh? ─► serve_hit: the response
//!                  │                                      │ no        ▲
//!                  └─ miss ─► a fill to join? ◄───────────┘           │
//!                               │ no    └─ yes ─► fill ───────────────┘
//!                               └─► upstream server ─► fill ─► writer ─► file and entry in the index
//! ```
//! | folder, from top to bottom | content |
//! |---|---|
//! | `lookup` | search for a response, decision about it, and its way to the client |
//! | `writer` | task that reads a body and stores it |
//! | `purge` | purges by order, and invalidation by traffic |
//! | `upkeep` | background work: loading, room, sweeps, snapshots, quotas |
//! | `members` | cache of several directories: the owner of a key, and the opening, purges and upkeep of its members |
//! | `metrics` | numbers for metrics, the API and the status page |
//! | `settings` | directives of locations |
//! | `open` | declaration of caches, and the reading of their purges before the first use |
//! | `zone` | a cache and its contents, which outlive configurations |
//! | `member_group` | common state of a cache of several directories |
//! | `fill` | response on its way into the cache, and to the clients that follow it |
//! | `store` | files and segments on the disk |
//! | `entry` | open entries of a loop |
//! | `guard` | states of limits and protections: breaker, hedges, background fetches, quotas |
//! | `cache_path` | directory, limits and devices of a cache, as its directive names them |
//!
//! The proxy calls the cache, never the other way round. Event loops do no file operations that can wait. The rules for storing
//! and using responses are in `tw_cache::policy`, which has neither requests nor files; `settings` has those of a location.
//!
//! Each loop keeps recently used entries open and small bodies in memory, valid while the index has their sequence number, so a hot hit needs
//! no disk access. An entry is added after its file is in place and removed before its file is. A purge is a sequence number: a response
//! whose fetch began before it is neither used nor stored.
//!
//! With `store=log`, small responses are records of segments (`store::segments`): files, or slots of a block device. The entry of a record is
//! compact (13 bytes, without the key, which the record has) as long as nothing happens to it, and a lookup after a start reads the one page of
//! the snapshot that has it. The master opens a device while it loads the configuration, holds it exclusively beside the locks of directories,
//! and passes the descriptor on like files of data. A member whose device or directory is missing is left out. Quotas (`cache_quota`) are counted in a
//! table beside the index (`tw_cache::QuotaTable`), by the value of a variable.

pub mod cache_path;
mod entry;
mod fill;
mod guard;
mod lookup;
mod member_group;
mod members;
mod metrics;
mod open;
mod purge;
pub mod settings;
mod store;
#[cfg(test)]
mod tests;
mod time;
mod upkeep;
mod writer;
mod zone;

pub use cache_path::device_format::{FormattedDevice, check_device, format_device};
pub use entry::open_entries::OpenEntries;
pub use lookup::cache_headers::set_cache_headers;
pub use lookup::conditions::{CONDITIONAL, UpstreamConditions};
pub use lookup::serve_hit::{evaluate_conditions, head_body, serve_hit};
pub use lookup::store_response::StoreDecision;
pub use lookup::{Lookup, look_up};
pub use member_group::state::{MemberSnapshot, MemberState};
pub use metrics::METRICS;
pub use metrics::fleet::{FLEET_METRICS, write_fleets};
pub use metrics::{CacheSnapshot, ResponseTotals};
pub use purge::invalidate::discard;
pub use purge::invalidate::invalidate;
pub use purge::{PURGES_MAX, PurgeOutcome, PurgeScope};
pub use settings::{CacheSettings, SentBody};
pub use upkeep::run as manage;
pub use writer::{BodyOrigin, BodyReport};
pub use zone::{Cache, Caches};

tw_base::limits! {
    /// Limits of this module.
    pub const LIMITS;

    section "caches";
    use lookup::follow::LIMITS;
    use fill::LIMITS;
    use metrics::fleet::LIMITS;
    use fill::SUPPLY_LIMITS;
    use writer::LIMITS;
    use store::files::put_queue::LIMITS;
    use store::files::temp_file::LIMITS;
    use entry::open_entries::LIMITS;
    use upkeep::LIMITS;
    use guard::breaker::LIMITS;
    use guard::background::LIMITS;
    use guard::hedge::LIMITS;
    use lookup::hedge::LIMITS;
    use entry::refresh_pace::LIMITS;
    use purge::LIMITS;
    use upkeep::snapshot::LIMITS;
    use zone::LIMITS;
    use cache_path::member_path::LIMITS;
    use members::open_group::LIMITS;
    use members::upkeep::LIMITS;
    use store::segments::LIMITS;
    use store::segments::append::LIMITS;
    use store::segments::device::LIMITS;
    use store::segments::free::LIMITS;
}
