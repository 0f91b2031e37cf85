//! What a purge does, as two numbers.

/// How a purge is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purge {
    /// What it concerns is not used again.
    Hard,
    /// What it concerns is stale: it is validated before it is used, or used where stale responses may be.
    Soft,
}

/// What began before `hard` is gone, and what began before `soft` is stale. Nothing begins before zero.
///
/// All the purges of one thing come to one of these, because the last one is the one that counts; and to take the larger
/// numbers of two never makes less purged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) hard: u64,
    pub(super) soft: u64,
}

impl Cut {
    pub(super) const fn of(purge: Purge, sequence: u64) -> Self {
        match purge {
            Purge::Hard => Self { hard: sequence, soft: 0 },
            Purge::Soft => Self { hard: 0, soft: sequence },
        }
    }

    /// What both together purge.
    pub(super) fn and(self, other: Self) -> Self {
        Self { hard: self.hard.max(other.hard), soft: self.soft.max(other.soft) }
    }

    /// What this purges and `other` does not.
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

    /// What it means for what began at `sequence`.
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
