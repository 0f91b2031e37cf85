//! Priorities that a client has set with PRIORITY_UPDATE frames (RFC 9218 section 7).

use std::cell::RefCell;
use std::collections::BTreeMap;

use tw_http::Priority;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Streams of one connection of HTTP/2 or HTTP/3 whose priority its client changes (PRIORITY_UPDATE), before and while they are open.
    const UPDATES_MAX: usize = 128, count, "the oldest one has the priority that its request has asked for";
}

/// Priority of a stream whose client has set none: such streams share the connection.
pub(crate) const UNSET_PRIORITY: Priority = Priority { urgency: 3, incremental: true };

/// Changed priorities by stream. A stream need not have begun.
#[derive(Default)]
pub(crate) struct PriorityUpdates(RefCell<BTreeMap<u64, Priority>>);

impl PriorityUpdates {
    /// Takes over the value of a frame, and returns the priority.
    pub(crate) fn insert(&self, stream: u64, value: &[u8]) -> Priority {
        let priority = Priority::default().with(value);
        let mut updates = self.0.borrow_mut();
        if updates.len() >= UPDATES_MAX && !updates.contains_key(&stream) {
            // The oldest stream has most likely ended.
            updates.pop_first();
        }
        updates.insert(stream, priority);
        priority
    }

    /// Priority that the client has set for a stream.
    pub(crate) fn get(&self, stream: u64) -> Option<Priority> {
        self.0.borrow().get(&stream).copied()
    }

    /// Forgets a stream that has ended.
    pub(crate) fn forget(&self, stream: u64) {
        let mut updates = self.0.borrow_mut();
        if !updates.is_empty() {
            updates.remove(&stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_stream_is_forgotten_at_the_limit() {
        let updates = PriorityUpdates::default();
        for stream in 0..UPDATES_MAX as u64 {
            updates.insert(stream, b"u=1");
        }
        updates.insert(5, b"u=2, i");
        assert_eq!(updates.get(5), Some(Priority { urgency: 2, incremental: true }));
        assert_eq!(updates.get(0), Some(Priority { urgency: 1, incremental: false }));
        updates.insert(1000, b"");
        assert_eq!([updates.get(0), updates.get(1000)], [None, Some(Priority::default())]);
        updates.forget(1000);
        assert_eq!(updates.get(1000), None);
    }
}
