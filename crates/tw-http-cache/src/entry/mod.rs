//! Entries that are open: what a loop keeps of them in memory.

pub(crate) mod hot_table;
pub(crate) mod open_entries;
pub(crate) mod refresh_pace;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of the next zone.
static NEXT_ZONE: AtomicU32 = AtomicU32::new(0);

/// Number of a zone in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ZoneId(u32);

impl ZoneId {
    /// A number that no other zone has.
    pub(crate) fn new() -> Self {
        Self(NEXT_ZONE.fetch_add(1, Relaxed))
    }
}
