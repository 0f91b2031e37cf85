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
//! requests nor files; what a gateway does with it stands in `gateway`.

pub mod directives;
mod draft;
mod entry;
mod explain;
mod facts;
mod feed;
mod fill;
mod head;
pub(crate) mod hot;
mod invalidate;
mod keeping;
mod manager;
mod metrics;
pub mod place;
mod purge;
mod purge_rule;
mod reason;
pub mod settings;
mod store;
mod tell;
#[cfg(test)]
mod tests;
mod times;
mod visit;
mod writer;
mod zone;

pub use facts::{Facts, Status};
pub use invalidate::discard;
pub(crate) use invalidate::invalidate;
pub(crate) use keeping::Keeping;
pub(crate) use manager::run as manage;
pub(crate) use metrics::METRICS;
pub use metrics::{Look, Sum};
pub use purge::{PURGES_MAX, Purged, Scope};
pub use reason::Reason;
pub use settings::CacheSettings;
pub(crate) use tell::tell;
pub(crate) use times::{first_byte, over};
pub use tw_cache::Purge;
pub use visit::{Conditions, Visit};
pub(crate) use visit::{Ready, Visited};
pub(crate) use writer::{Arrival, Origin};
pub use zone::{Cache, Caches};

pub(crate) const LIMITS: &[&[tw_base::Limit]] = &[
    visit::LIMITS,
    fill::LIMITS,
    fill::SUPPLY_LIMITS,
    writer::LIMITS,
    draft::LIMITS,
    hot::LIMITS,
    manager::LIMITS,
    purge::LIMITS,
];

/// Seconds of the clock on the wall, as the index has them.
fn seconds(unix: i64) -> u32 {
    u32::try_from(unix.max(0)).unwrap_or(u32::MAX)
}
