//! Effect of purges, as two sequence numbers.

/// Kind of a purge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Hard: matching entries are not used again.
    Hard,
    /// Soft: matching entries become stale; they are validated before use, or used where stale responses are
    /// permitted.
    Soft,
}

/// Entries with a sequence number below `hard` are purged, those below `soft` are stale. Zero purges nothing.
///
/// Repeated purges of the same subject reduce to one of these, because only the last one counts, and the maximum of
/// both numbers never purges less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PurgeEffect {
    pub(super) hard: u64,
    pub(super) soft: u64,
}

impl PurgeEffect {
    pub(super) const fn of(purge: Purge, sequence: u64) -> Self {
        match purge {
            Purge::Hard => Self { hard: sequence, soft: 0 },
            Purge::Soft => Self { hard: 0, soft: sequence },
        }
    }

    /// Combined effect of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self { hard: self.hard.max(other.hard), soft: self.soft.max(other.soft) }
    }

    /// Part of this effect that `other` does not have.
    pub(super) fn without(self, other: Self) -> Self {
        Self {
            hard: if self.hard > other.hard { self.hard } else { 0 },
            soft: if self.soft > other.newest() { self.soft } else { 0 },
        }
    }

    /// The number of the last purge that is in it.
    pub(super) fn newest(self) -> u64 {
        self.hard.max(self.soft)
    }

    /// Effect on an entry with this sequence number.
    pub(super) fn purges(self, sequence: u64) -> Option<Purge> {
        if sequence < self.hard {
            Some(Purge::Hard)
        } else if sequence < self.soft {
            Some(Purge::Soft)
        } else {
            None
        }
    }

    /// Without what concerns only things that began before `oldest`.
    pub(super) fn forget(self, oldest: u64) -> Self {
        Self {
            hard: if self.hard > oldest { self.hard } else { 0 },
            soft: if self.soft > oldest { self.soft } else { 0 },
        }
    }

    pub(super) fn is_nothing(self) -> bool {
        self == Self::default()
    }
}
