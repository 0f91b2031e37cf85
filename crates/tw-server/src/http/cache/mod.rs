//! Caches: responses of upstream servers that are kept on a disk, and answer for them (nginx: ngx_http_file_cache).
//!
//! ```text
//! visit: key ─► index ─► entry: hot, or opened ─► fresh? ─► the response
//!                 │                                 │ no
//!                 └─ nothing ─► lead or follow ◄────┘
//!                                 │       └─► fill: as it comes
//!                                 └─► the upstream server ─► fill ◄─ writer ─► a file, and a place in the index
//! ```
//! No operation on a file is done by a loop. What may be kept and used is decided in `tw_cache::policy`, which knows neither
//! requests nor files; what a gateway does with it stands in `settings`.

mod cache_headers;
pub mod cache_path;
pub mod directives;
mod entry;
mod explain;
mod feed;
mod fill;
mod head;
mod invalidate;
mod lookup;
mod manager;
mod metrics;
mod miss_reason;
pub(crate) mod open_entries;
mod purge;
mod purge_rule;
pub mod settings;
mod store;
mod store_response;
mod temp_file;
#[cfg(test)]
mod tests;
mod times;
mod writer;
mod zone;

pub(crate) use cache_headers::set_cache_headers;
pub(crate) use fill::Continuation;
pub use invalidate::discard;
pub(crate) use invalidate::invalidate;
pub use lookup::{Conditions, Lookup};
pub(crate) use lookup::{LookupResult, Ready};
pub(crate) use manager::run as manage;
pub(crate) use metrics::METRICS;
pub use metrics::{Look, Sum};
pub use miss_reason::Reason;
pub use purge::{PURGES_MAX, Purged, Scope};
pub use settings::CacheSettings;
pub(crate) use store_response::StoreDecision;
pub(crate) use times::{first_byte, over};
pub use tw_cache::Purge;
pub(crate) use writer::{Arrival, Origin};
pub use zone::{Cache, Caches};

pub use super::cache_info::{CacheInfo, Status};

pub(crate) const LIMITS: &[&[tw_base::Limit]] = &[
    lookup::LIMITS,
    fill::LIMITS,
    fill::SUPPLY_LIMITS,
    writer::LIMITS,
    temp_file::LIMITS,
    open_entries::LIMITS,
    manager::LIMITS,
    purge::LIMITS,
];

/// Seconds of the clock on the wall, as the index has them.
fn seconds(unix: i64) -> u32 {
    u32::try_from(unix.max(0)).unwrap_or(u32::MAX)
}
