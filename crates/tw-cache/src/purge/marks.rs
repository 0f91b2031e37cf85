//! Purges by number: tags and single keys. A bounded table.

use std::collections::HashMap;
use std::sync::Arc;

use super::cut::PurgeEffect;

/// Marks whose purges are remembered one by one, of each kind: 1.6 MB.
pub(super) const MARKS_MAX: usize = 65_536;
/// Number of marks in one generation.
const GENERATION: usize = MARKS_MAX / 2;

/// Purges by mark, in two generations. When the young one is full, it becomes the old one, whose purges are merged
/// into one of all marks: more is purged than requested, never less, and nothing is moved while the lock is held.
#[derive(Clone, Debug, Default)]
pub(super) struct Marks {
    young: Generation,
    /// Old generation, which no longer changes: a copy is another handle.
    old: Arc<Generation>,
    /// Effect on every mark.
    floor: PurgeEffect,
}

#[derive(Clone, Debug, Default)]
struct Generation {
    cuts: HashMap<u64, PurgeEffect>,
    /// All of them together.
    all: PurgeEffect,
}

impl Marks {
    /// Adds a purge.
    pub(super) fn add(&mut self, mark: u64, cut: PurgeEffect) {
        if self.young.cuts.len() >= GENERATION && !self.young.cuts.contains_key(&mark) {
            self.floor = self.floor.and(self.old.all);
            self.old = Arc::new(std::mem::take(&mut self.young));
        }
        let entry = self.young.cuts.entry(mark).or_default();
        *entry = entry.and(cut);
        self.young.all = self.young.all.and(cut);
    }

    /// Adds a purge of all marks.
    pub(super) fn add_floor(&mut self, cut: PurgeEffect) {
        self.floor = self.floor.and(cut);
    }

    /// Effect on one mark.
    pub(super) fn of(&self, mark: u64) -> PurgeEffect {
        let of = |generation: &Generation| generation.cuts.get(&mark).copied().unwrap_or_default();
        self.floor.and(of(&self.young)).and(of(&self.old))
    }

    /// All together: an entry that this does not purge is purged by none.
    pub(super) fn all(&self) -> PurgeEffect {
        self.floor.and(self.young.all).and(self.old.all)
    }

    /// Effect on all marks.
    pub(super) fn floor(&self) -> PurgeEffect {
        self.floor
    }

    /// Marks with their purges, the old ones first; a mark may occur twice.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, PurgeEffect)> {
        self.old.cuts.iter().chain(&self.young.cuts).map(|(mark, cut)| (*mark, *cut))
    }

    /// Number of items of [`iter`](Self::iter).
    pub(super) fn len(&self) -> usize {
        self.old.cuts.len() + self.young.cuts.len()
    }

    /// Forgets the generations that concern only what began before `oldest`.
    pub(super) fn forget(&mut self, oldest: u64) {
        self.floor = self.floor.forget(oldest);
        if self.young.all.newest() <= oldest {
            self.young = Generation::default();
        }
        if self.old.all.newest() <= oldest {
            self.old = Arc::default();
        }
    }
}
