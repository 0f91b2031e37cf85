//! Eviction: of unused entries, and of others when there are too many.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::entry::{EvictionTarget, Progress, RemovedEntry};
use super::queue::{Queue, QueueLoad, SMALL_SHARE};
use super::shard::{Evicted, NEVER, Shard};
use super::{AlignedShard, BATCH_ENTRIES, Index, SHARDS, STEP_ENTRIES};

impl Index {
    /// Takes entries that were not used for `inactive` seconds, the oldest first, and adds their files to `removed_entries`. At
    /// most 256 (`BATCH_ENTRIES`) in one call. By `s3fifo` in any order, and up to a sixteenth of the time later.
    pub fn expire(&self, now: u32, inactive: u32, removed_entries: &mut Vec<RemovedEntry>) -> Progress {
        if self.is_fifo.load(SeqCst) {
            return self.expire_in_any_order(now, inactive, removed_entries);
        }
        let is_over = |used: u32| now.saturating_sub(used) >= inactive;
        self.take_oldest(now, BATCH_ENTRIES, is_over, |_| Progress::More, removed_entries)
    }

    fn expire_in_any_order(
        &self,
        now: u32,
        inactive: u32,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        // Looking at all of a shard is work: it is done a few times in that span, and not for each entry.
        let late = inactive.saturating_add(inactive / 16);
        let is_due = |place: &&AlignedShard| now.saturating_sub(place.oldest_use.load(Relaxed)) >= late;
        let mut work = BATCH_ENTRIES;
        for place in self.shards.iter().filter(is_due) {
            loop {
                let count = STEP_ENTRIES.min(work);
                let before = now.saturating_sub(inactive);
                let is_done =
                    self.change(place, |shard| shard.take_unused(before, count as u32, removed_entries));
                work -= count;
                match (is_done, work) {
                    (_, 0) => return Progress::More,
                    (true, _) => break,
                    (false, _) => {}
                }
            }
        }
        Progress::Done
    }

    /// Evicts entries in the order of the eviction policy until the target is reached, and adds them to `removed_entries`.
    /// Evicts at most 256 (`BATCH_ENTRIES`) in one call.
    pub fn evict(
        &self,
        excess: EvictionTarget,
        now: u32,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        let mut remaining = match excess {
            EvictionTarget::Bytes(count) | EvictionTarget::Entries(count) => count,
        };
        if remaining == 0 {
            return Progress::Done;
        }
        let count = |taken: Option<&RemovedEntry>| {
            remaining = remaining.saturating_sub(match excess {
                EvictionTarget::Bytes(_) => taken.map_or(0, |removed_entry| removed_entry.size),
                EvictionTarget::Entries(_) => 1,
            });
            if remaining == 0 { Progress::Done } else { Progress::More }
        };
        if self.is_fifo.load(SeqCst) {
            return self.take_next(
                matches!(excess, EvictionTarget::Bytes(_)),
                BATCH_ENTRIES,
                count,
                removed_entries,
            );
        }
        self.take_oldest(now, BATCH_ENTRIES, |_| true, count, removed_entries)
    }

    /// Evicts one entry with a file of its own, and what comes before it, if that is to go before a segment: by `lru` if it was not
    /// used after `before`, the time of the last record of the segment; by `s3fifo` by chance, as one of all files and so many
    /// segments.
    pub fn evict_file(
        &self,
        before: u32,
        segments: u64,
        now: u32,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        let is_file = |taken: Option<&RemovedEntry>| match taken {
            Some(removed_entry) if removed_entry.address.is_none() => Progress::Done,
            _ => Progress::More,
        };
        if !self.is_fifo.load(SeqCst) {
            return self.take_oldest(now, BATCH_ENTRIES, |used| used <= before, is_file, removed_entries);
        }
        let files = self.files.load(Relaxed).saturating_sub(self.compact.load(Relaxed));
        let chance = (self.hand.fetch_add(1, Relaxed) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if (chance * (files + segments)) >> 32 >= files {
            return Progress::Done;
        }
        self.take_next(true, BATCH_ENTRIES, is_file, removed_entries)
    }

    /// Evicts by `s3fifo` as long as `next` wants more, at most `work` steps. The fuller queue is evicted from first.
    fn take_next(
        &self,
        by_bytes: bool,
        mut work: usize,
        mut next: impl FnMut(Option<&RemovedEntry>) -> Progress,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        let mut progress = Progress::Done;
        while work > 0 {
            work -= 1;
            // Ghosts are entries, too; they go when no others are too many.
            let is_ghost = !by_bytes && self.live() <= self.live_max() && self.ghosts.load(Relaxed) > 0;
            if is_ghost && self.take_ghost() {
                progress = Progress::More;
                if next(None) == Progress::Done {
                    return Progress::Done;
                }
                continue;
            }
            let sum = |load: fn(&AlignedShard) -> &QueueLoad| -> u64 {
                self.shards.iter().map(|place| load(place).value(by_bytes)).sum()
            };
            let small = sum(|place| &place.small);
            let main = sum(|place| &place.main);
            let is_small = main == 0 || (small > 0 && small * SMALL_SHARE >= small + main);
            let queue = if is_small { Queue::Small } else { Queue::Main };
            let of =
                |place: &&AlignedShard| if is_small { &place.small } else { &place.main }.value(by_bytes);
            let Some(place) = self.shards.iter().max_by_key(of).filter(|place| of(place) > 0) else {
                return progress;
            };
            match self.change(place, |shard| shard.take_next(queue)) {
                // Other threads took the entries of this shard first.
                Evicted::Nothing => {}
                Evicted::Claimed => {}
                Evicted::Kept => progress = Progress::More,
                Evicted::Gone(taken) => {
                    progress = Progress::More;
                    // The evicted entry may have become a ghost, for which there may be no room.
                    while self.slots() > self.slots_max() && self.take_ghost() {}
                    let said = next(taken.as_ref());
                    removed_entries.extend(taken);
                    if said == Progress::Done {
                        return Progress::Done;
                    }
                }
            }
        }
        progress
    }

    fn take_ghost(&self) -> bool {
        let hand = self.hand.fetch_add(1, Relaxed) % SHARDS;
        let Some((before, from)) = self.shards.split_at_checked(hand) else { return false };
        from.iter().chain(before).any(|place| self.change(place, Shard::take_ghost))
    }

    /// Entries that are no ghosts.
    pub(super) fn live(&self) -> u64 {
        self.slots().saturating_sub(self.ghosts.load(Relaxed))
    }

    /// By `s3fifo` a ninth of the room is for ghosts.
    pub(super) fn live_max(&self) -> u64 {
        let max = self.slots_max();
        if self.is_fifo.load(SeqCst) { max - max / 9 } else { max }
    }

    /// Evicts the oldest entry if there are too many.
    pub(super) fn make_room(&self, now: u32) -> Option<RemovedEntry> {
        if self.slots() <= self.slots_max() && self.live() <= self.live_max() {
            return None;
        }
        let mut taken = Vec::new();
        let one = |_: Option<&RemovedEntry>| Progress::Done;
        if self.is_fifo.load(SeqCst) {
            self.take_next(false, STEP_ENTRIES, one, &mut taken);
        } else {
            self.take_oldest(now, STEP_ENTRIES, |_| true, one, &mut taken);
        }
        taken.pop()
    }

    /// Evicts the oldest entries of all shards as long as `is_due` is true for the time of their last use and `next`
    /// wants more. Examines no more than `work`. If all of them are held by fills, stops for now.
    fn take_oldest(
        &self,
        now: u32,
        mut work: usize,
        is_due: impl Fn(u32) -> bool,
        mut next: impl FnMut(Option<&RemovedEntry>) -> Progress,
        removed_entries: &mut Vec<RemovedEntry>,
    ) -> Progress {
        let mut progress = Progress::Done;
        while work > 0 {
            let Some((place, second)) = self.oldest() else { return Progress::Done };
            if !is_due(place.oldest_use.load(Relaxed)) {
                return Progress::Done;
            }
            // Other threads may have emptied the shard meanwhile. That counts as work, too, so that the loop ends.
            work -= 1;
            let is_done = self.change(place, |shard| {
                for _ in 0..STEP_ENTRIES.min(work + 1) {
                    let used = shard.oldest_use();
                    if used == NEVER || used > second || !is_due(used) {
                        break;
                    }
                    work = work.saturating_sub(1);
                    if let Evicted::Gone(taken) = shard.take_oldest(now) {
                        progress = Progress::More;
                        let said = next(taken.as_ref());
                        removed_entries.extend(taken);
                        if said == Progress::Done {
                            return true;
                        }
                    }
                }
                false
            });
            if is_done {
                return Progress::Done;
            }
        }
        progress
    }

    /// The shard with the oldest entry, and when the oldest one of the others was used. Takes no lock.
    fn oldest(&self) -> Option<(&AlignedShard, u32)> {
        let hand = self.hand.fetch_add(1, Relaxed) % SHARDS;
        let (before, from) = self.shards.split_at_checked(hand)?;
        let mut first = None;
        let mut second = NEVER;
        for place in from.iter().chain(before) {
            let used = place.oldest_use.load(Relaxed);
            match first {
                Some((_, oldest)) if used >= oldest => second = second.min(used),
                _ if used == NEVER => {}
                _ => {
                    second = first.map_or(NEVER, |(_, oldest)| oldest);
                    first = Some((place, used));
                }
            }
        }
        first.map(|(place, _)| (place, second))
    }
}
