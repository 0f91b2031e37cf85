//! Open connections of the process by what they do.

use tw_core::event_loop::Counts;

/// Open connections by what they do.
pub struct Connections {
    /// All of them.
    pub active: u64,
    /// Connections of which a part of a request's head has been read.
    pub reading: u64,
    /// Connections with a request that is being served.
    pub writing: u64,
    /// Connections that wait for a request.
    pub waiting: u64,
}

impl Connections {
    /// The numbers now. Each is read for itself, so their sum may be off by what happens meanwhile.
    pub fn of(counts: &Counts) -> Self {
        let active = counts.total(|tally| &tally.open);
        let reading = counts.total(|tally| &tally.reading);
        let waiting = counts.total(|tally| &tally.waiting);
        Self { active, reading, writing: active.saturating_sub(reading + waiting), waiting }
    }
}
