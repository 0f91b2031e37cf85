//! Progress of a body for observers on other loops.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of bytes of a body that were received so far. Copies share it.
#[derive(Debug, Default, Clone)]
pub struct BodyProgress(Arc<AtomicU64>);

impl BodyProgress {
    /// The number.
    pub fn received(&self) -> u64 {
        self.0.load(Relaxed)
    }

    /// Sets the number of bytes that have been received.
    pub fn set(&self, received: u64) {
        self.0.store(received, Relaxed);
    }

    /// Returns true if both belong to the same body.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
