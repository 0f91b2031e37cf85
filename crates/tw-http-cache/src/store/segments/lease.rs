//! Leases of slots of a device: a slot is not used again before the last write to it has ended.

use std::sync::Arc;

/// Lease of a slot: it is not used again as long as somebody else has one. Writes keep theirs until they have ended.
#[derive(Clone, Default)]
pub(super) struct SlotLease(Arc<()>);

impl SlotLease {
    /// Returns true if nobody else has a lease of the slot.
    pub(super) fn is_last(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// Bytes of a write, with a lease.
pub(super) struct LeasedBytes<B> {
    bytes: B,
    _lease: SlotLease,
}

impl<B> LeasedBytes<B> {
    pub(super) fn new(bytes: B, lease: &SlotLease) -> Self {
        Self { bytes, _lease: lease.clone() }
    }
}

impl<B: AsRef<[u8]>> AsRef<[u8]> for LeasedBytes<B> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}
