//! Who is connected to a loop, and whose connection waits for a request, the longest waiting first (nginx:
//! `reusable_connections_queue`).
//!
//! Each client has a place as long as it is there, and the places of those that wait are linked. Coming, leaving, beginning
//! and ending to wait, and finding who waits longest take the same short time however many there are.

use std::task::Waker;

/// A place that is none: the end of a chain.
const NONE: u32 = u32::MAX;

/// The clients of a loop.
#[derive(Debug)]
pub(super) struct Roll<T> {
    slots: Vec<Slot<T>>,
    /// Who waits longest.
    first: u32,
    /// Who waits for the shortest time.
    last: u32,
    /// A free slot; the others follow by `after`.
    free: u32,
    present: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Slot<T> {
    /// `None` in a slot that is free.
    who: Option<T>,
    /// While it waits, and is not yet called.
    waker: Option<Waker>,
    before: u32,
    after: u32,
}

/// A client's place. It is no other's before it has left.
#[derive(Debug)]
pub struct Place(u32);

impl<T> Default for Roll<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), first: NONE, last: NONE, free: NONE, present: 0, waiting: 0 }
    }
}

impl<T> Roll<T> {
    /// Gives `who` a place.
    pub(super) fn enter(&mut self, who: T) -> Place {
        self.present += 1;
        let slot = Slot { who: Some(who), waker: None, before: NONE, after: NONE };
        let free = self.free;
        match self.slots.get_mut(free as usize) {
            Some(old) => {
                self.free = std::mem::replace(old, slot).after;
                Place(free)
            }
            None => {
                let at = u32::try_from(self.slots.len()).expect("fewer clients than descriptors");
                self.slots.push(slot);
                Place(at)
            }
        }
    }

    /// Takes somebody away.
    pub(super) fn leave(&mut self, place: &Place) {
        self.go_on(place);
        let free = self.free;
        let Some(slot) = self.slots.get_mut(place.0 as usize) else { return };
        if slot.who.take().is_none() {
            return;
        }
        slot.after = free;
        self.free = place.0;
        self.present -= 1;
        if self.present == 0 {
            // The memory of a peak goes with the last of it.
            *self = Self::default();
        }
    }

    /// Begins to wait, behind those who do so already. Whoever is called is woken, and waits no longer.
    pub(super) fn wait(&mut self, place: &Place, waker: Waker) {
        self.go_on(place);
        let last = self.last;
        let Some(slot) = self.slots.get_mut(place.0 as usize) else { return };
        slot.waker = Some(waker);
        (slot.before, slot.after) = (last, NONE);
        match self.slots.get_mut(last as usize) {
            Some(before) => before.after = place.0,
            None => self.first = place.0,
        }
        self.last = place.0;
        self.waiting += 1;
    }

    /// Whether it waits, and was not called.
    pub(super) fn waits(&self, place: &Place) -> bool {
        self.slots.get(place.0 as usize).is_some_and(|slot| slot.waker.is_some())
    }

    /// Waits no longer. Nothing, if it does not.
    pub(super) fn go_on(&mut self, place: &Place) {
        self.unlink(place.0);
    }

    /// Calls who waits longest: it waits no longer, and is to be woken.
    pub(super) fn call(&mut self) -> Option<Waker> {
        self.unlink(self.first)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// All that are there, in no order.
    pub(super) fn all(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(|slot| slot.who.as_ref())
    }

    fn unlink(&mut self, at: u32) -> Option<Waker> {
        let slot = self.slots.get_mut(at as usize)?;
        let waker = slot.waker.take()?;
        let (before, after) = (slot.before, slot.after);
        match self.slots.get_mut(before as usize) {
            Some(slot) => slot.after = after,
            None => self.first = after,
        }
        match self.slots.get_mut(after as usize) {
            Some(slot) => slot.before = before,
            None => self.last = before,
        }
        self.waiting -= 1;
        Some(waker)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use std::task::Wake;

    use super::*;

    /// Tells who was woken.
    struct Bell(u64, Arc<AtomicU64>);

    impl Wake for Bell {
        fn wake(self: Arc<Self>) {
            self.1.store(self.0, Relaxed);
        }
    }

    /// A roll beside what it should be.
    #[derive(Default)]
    struct Checked {
        roll: Roll<u64>,
        there: Vec<(u64, Place)>,
        queue: VecDeque<u64>,
        rung: Arc<AtomicU64>,
    }

    impl Checked {
        fn enter(&mut self, who: u64) {
            let place = self.roll.enter(who);
            assert!(self.there.iter().all(|(_, other)| other.0 != place.0));
            self.there.push((who, place));
        }

        fn leave(&mut self, at: usize) {
            let (who, place) = self.there.swap_remove(at);
            self.roll.leave(&place);
            self.queue.retain(|other| *other != who);
        }

        fn wait(&mut self, at: usize) {
            let (who, place) = &self.there[at];
            self.roll.wait(place, Arc::new(Bell(*who, self.rung.clone())).into());
            self.queue.retain(|other| other != who);
            self.queue.push_back(*who);
        }

        fn go_on(&mut self, at: usize) {
            let (who, place) = &self.there[at];
            self.roll.go_on(place);
            self.queue.retain(|other| other != who);
        }

        fn call(&mut self) {
            let expected = self.queue.pop_front();
            self.rung.store(u64::MAX, Relaxed);
            let called = self.roll.call().map(|waker| {
                waker.wake();
                self.rung.load(Relaxed)
            });
            assert_eq!(called, expected);
        }

        fn check(&self) {
            assert_eq!(self.roll.waiting(), self.queue.len());
            for (who, place) in &self.there {
                assert_eq!(self.roll.waits(place), self.queue.contains(who), "{who}");
            }
            let mut all: Vec<u64> = self.roll.all().copied().collect();
            let mut there: Vec<u64> = self.there.iter().map(|(who, _)| *who).collect();
            all.sort_unstable();
            there.sort_unstable();
            assert_eq!(all, there);
        }
    }

    #[test]
    fn the_longest_waiting_is_called_first() {
        let mut checked = Checked::default();
        (0..4).for_each(|who| checked.enter(who));
        [2, 0, 3, 1].into_iter().for_each(|at| checked.wait(at));
        // Who waits anew waits for the shortest time.
        checked.wait(0);
        assert_eq!(checked.queue, [2, 3, 1, 0]);
        checked.call();
        checked.go_on(3);
        checked.check();
        checked.leave(1);
        checked.call();
        checked.call();
        checked.check();
    }

    #[test]
    fn whatever_happens_it_is_what_it_should_be() {
        // Marsaglia's xorshift64, the same sequence every time.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut below = |bound: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % bound.max(1) as u64) as usize
        };
        let mut checked = Checked::default();
        for who in 0..20_000 {
            let count = checked.there.len();
            // Some hundred come, most of them go, and so on.
            let grows = (who / 400) % 2 == 0;
            match below(8) {
                0 | 1 if grows => checked.enter(who),
                0..=2 if count > 0 && !grows => checked.leave(below(count)),
                3..=5 if count > 0 => checked.wait(below(count)),
                6 if count > 0 => checked.go_on(below(count)),
                7 => checked.call(),
                _ => {}
            }
            if who % 16 == 0 {
                checked.check();
            }
        }
        while !checked.there.is_empty() {
            checked.leave(0);
        }
        checked.check();
    }

    #[test]
    fn places_are_usedagain_and_given_back() {
        let mut roll = Roll::default();
        let places: Vec<Place> = (0..100).map(|who| roll.enter(who)).collect();
        for place in &places[1..] {
            roll.leave(place);
        }
        let again: Vec<Place> = (0..99).map(|who| roll.enter(who)).collect();
        assert_eq!(roll.slots.len(), 100);
        again.iter().chain(&places[..1]).for_each(|place| roll.leave(place));
        assert_eq!((roll.slots.capacity(), roll.all().count()), (0, 0));
    }

    #[test]
    fn a_place_is_small() {
        assert!(size_of::<Slot<std::rc::Weak<u64>>>() <= 32);
    }
}
