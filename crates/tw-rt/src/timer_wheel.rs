//! A hashed, hierarchical timing wheel: timers by the tick at which they fire.
//!
//! A timer is put where its tick first differs from the current one, read as digits of six bits. Level 0 has one slot for each of the
//! next ticks, a slot of level 1 covers 64 ticks, one of level 2 covers 64 of those. When the time enters a slot of an upper level, its
//! timers move down. Inserting, moving and removing cost the same with one timer as with a million.
//!
//! ```text
//! level 1   │ 0..63 │ 64..127 │ 128..191 │ …    now = 70: a timer of tick 140 waits here
//! level 0             │64│65│…│70│71│…│127│     and one of tick 71 here
//! ```

use std::task::Waker;

use tw_base::Slab;

const LEVEL_BITS: u32 = 6;
const LEVELS: usize = 6;
const SLOTS: usize = 1 << LEVEL_BITS;
/// Ticks that the levels cover. A later timer waits in the last slot of the top level and is placed again from there.
const SPAN: u64 = 1 << (LEVEL_BITS * LEVELS as u32);
/// End of a list.
const NONE: u32 = u32::MAX;
/// Place of a timer that has fired.
const FIRED: u16 = u16::MAX;

/// Timers of one loop.
#[derive(Debug)]
pub(crate) struct TimerWheel {
    entries: Slab<Entry>,
    /// First timer of each slot, level by level.
    heads: [u32; LEVELS * SLOTS],
    /// One bit a slot that has timers, for each level.
    occupied: [u64; LEVELS],
    /// All timers up to this tick have fired.
    now: u64,
}

#[derive(Debug)]
struct Entry {
    tick: u64,
    /// Index of the slot's head, or [`FIRED`].
    place: u16,
    previous: u32,
    next: u32,
    waker: Option<Waker>,
}

impl TimerWheel {
    /// A wheel without timers at tick 0.
    pub(crate) fn new() -> Self {
        Self { entries: Slab::default(), heads: [NONE; LEVELS * SLOTS], occupied: [0; LEVELS], now: 0 }
    }

    /// Adds a timer; returns its number. A tick that has passed counts as the next one.
    pub(crate) fn insert(&mut self, tick: u64, waker: Waker) -> u32 {
        let entry = Entry { tick, place: FIRED, previous: NONE, next: NONE, waker: Some(waker) };
        let number = self.entries.insert(entry);
        self.place(number, tick);
        number
    }

    /// Moves a timer to another tick and task. Returns the waker it had, which is to be dropped when nothing is borrowed: it may be the
    /// last owner of a task.
    #[must_use]
    pub(crate) fn reset(&mut self, number: u32, tick: u64, waker: Waker) -> Option<Waker> {
        self.unlink(number);
        let entry = self.entries.get_mut(number)?;
        entry.tick = tick;
        let old = entry.waker.replace(waker);
        self.place(number, tick);
        old
    }

    /// Removes a timer and returns its waker.
    #[must_use]
    pub(crate) fn remove(&mut self, number: u32) -> Option<Waker> {
        self.unlink(number);
        self.entries.remove(number)?.waker
    }

    /// Fires all timers up to `now`: their wakers go to `fired`.
    pub(crate) fn advance(&mut self, now: u64, fired: &mut Vec<Waker>) {
        while let Some((index, start)) = self.first_slot()
            && start <= now
        {
            self.now = self.now.max(start);
            let mut number = std::mem::replace(&mut self.heads[index], NONE);
            self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
            while let Some(entry) = self.entries.get_mut(number) {
                let (tick, next) = (entry.tick, entry.next);
                entry.place = FIRED;
                if tick > self.now {
                    self.place(number, tick);
                } else {
                    fired.extend(entry.waker.take());
                }
                number = next;
            }
        }
        self.now = self.now.max(now);
    }

    /// The tick at which the wheel has to be advanced next: that of the first timer, or one before it. `None` without timers.
    pub(crate) fn next_tick(&self) -> Option<u64> {
        self.first_slot().map(|(_, start)| start)
    }

    /// The occupied slot whose span begins first, and that beginning.
    fn first_slot(&self) -> Option<(usize, u64)> {
        let level = self.occupied.iter().position(|slots| *slots != 0)?;
        let shift = LEVEL_BITS * level as u32;
        let current = (self.now >> shift) % SLOTS as u64;
        // Slots behind the current one exist at the top level only: they belong to the next round.
        let ahead = self.occupied[level].rotate_right(current as u32).trailing_zeros();
        let start = ((self.now >> shift) + u64::from(ahead)) << shift;
        let slot = (current as usize + ahead as usize) % SLOTS;
        Some((level * SLOTS + slot, start))
    }

    /// Puts a timer that is in no list into the slot of its tick.
    fn place(&mut self, number: u32, tick: u64) {
        let tick = tick.clamp(self.now + 1, self.now + SPAN - 1 - SPAN / SLOTS as u64);
        let differing = (self.now ^ tick) | 1;
        let level = ((63 - differing.leading_zeros()) / LEVEL_BITS).min(LEVELS as u32 - 1);
        let slot = (tick >> (LEVEL_BITS * level)) as usize % SLOTS;
        let index = level as usize * SLOTS + slot;
        self.occupied[level as usize] |= 1 << slot;
        let next = std::mem::replace(&mut self.heads[index], number);
        if let Some(entry) = self.entries.get_mut(next) {
            entry.previous = number;
        }
        if let Some(entry) = self.entries.get_mut(number) {
            entry.place = index as u16;
            entry.previous = NONE;
            entry.next = next;
        }
    }

    /// Takes a timer out of its slot, if it is in one.
    fn unlink(&mut self, number: u32) {
        let Some(entry) = self.entries.get_mut(number) else { return };
        let place = std::mem::replace(&mut entry.place, FIRED);
        if place == FIRED {
            return;
        }
        let (previous, next) = (entry.previous, entry.next);
        if let Some(entry) = self.entries.get_mut(next) {
            entry.previous = previous;
        }
        match self.entries.get_mut(previous) {
            Some(entry) => entry.next = next,
            None => {
                let index = usize::from(place);
                self.heads[index] = next;
                if next == NONE {
                    self.occupied[index / SLOTS] &= !(1 << (index % SLOTS));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::Wake;

    #[derive(Default)]
    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    /// Numbers that look random, the same in each run (xorshift).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % end
        }
    }

    /// A wheel beside a sorted set that has the same timers.
    struct Pair {
        wheel: TimerWheel,
        sorted: BTreeSet<(u64, u32)>,
        ticks: Vec<(u32, u64, Arc<Count>)>,
        now: u64,
    }

    impl Pair {
        fn insert(&mut self, after: u64) {
            let count = Arc::new(Count::default());
            let tick = self.now + after;
            let number = self.wheel.insert(tick, Arc::clone(&count).into());
            self.sorted.insert((tick, number));
            self.ticks.push((number, tick, count));
        }

        fn advance(&mut self, by: u64) {
            self.now += by;
            let mut fired = Vec::new();
            self.wheel.advance(self.now, &mut fired);
            fired.into_iter().for_each(Waker::wake);
            let due: Vec<_> = self.sorted.range(..=(self.now, u32::MAX)).copied().collect();
            for timer in &due {
                self.sorted.remove(timer);
            }
            for (number, tick, count) in &self.ticks {
                let expected = u64::from(due.contains(&(*tick, *number)));
                assert_eq!(
                    count.0.swap(0, Relaxed),
                    expected,
                    "timer {number} of tick {tick} at {}",
                    self.now
                );
            }
            match (self.wheel.next_tick(), self.sorted.first()) {
                (Some(next), Some((tick, _))) => assert!(next > self.now && next <= *tick, "{next} {tick}"),
                (None, None) => (),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn wheel_fires_what_a_sorted_set_would() {
        let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
        for start in [0, 63, 4095, SPAN - 70, 3 * SPAN + 12_345] {
            let mut pair =
                Pair { wheel: TimerWheel::new(), sorted: BTreeSet::new(), ticks: Vec::new(), now: 0 };
            pair.advance(start);
            for _ in 0..2000 {
                let spans = [3, 70, 5000, 300_000, 1 << 25, 1 << 37];
                let span = spans[numbers.below(spans.len() as u64) as usize];
                let chosen = numbers.below(pair.ticks.len().max(1) as u64) as usize;
                match numbers.below(8) {
                    0..=2 => pair.insert(1 + numbers.below(span)),
                    3 if !pair.ticks.is_empty() => {
                        let (number, tick, _count) = pair.ticks.swap_remove(chosen);
                        pair.sorted.remove(&(tick, number));
                        let _ = pair.wheel.remove(number);
                    }
                    4 if !pair.ticks.is_empty() => {
                        let tick = pair.now + 1 + numbers.below(span);
                        let (number, old, count) = &mut pair.ticks[chosen];
                        pair.sorted.remove(&(*old, *number));
                        pair.sorted.insert((tick, *number));
                        let _ = pair.wheel.reset(*number, tick, Arc::clone(count).into());
                        *old = tick;
                    }
                    _ => pair.advance(numbers.below(span.min(1 << 26))),
                }
            }
        }
    }

    #[test]
    fn past_tick_counts_as_the_next_one() {
        let mut wheel = TimerWheel::new();
        let mut fired = Vec::new();
        wheel.advance(1000, &mut fired);
        wheel.insert(3, Waker::noop().clone());
        assert_eq!(wheel.next_tick(), Some(1001));
        wheel.advance(1001, &mut fired);
        assert_eq!(fired.len(), 1);
    }

    #[test]
    fn fired_timer_can_be_set_again_and_removed() {
        let mut wheel = TimerWheel::new();
        let mut fired = Vec::new();
        let number = wheel.insert(5, Waker::noop().clone());
        wheel.advance(5, &mut fired);
        assert_eq!((fired.len(), wheel.next_tick()), (1, None));
        assert!(wheel.reset(number, 9, Waker::noop().clone()).is_none(), "the waker has left with the event");
        assert_eq!(wheel.next_tick(), Some(9));
        assert!(wheel.remove(number).is_some());
        assert_eq!(wheel.next_tick(), None);
    }
}
