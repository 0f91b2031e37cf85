//! A slab: values at numbers that stay until they are removed, and are used again then.

/// Slots of one page.
const PAGE: usize = 256;

/// Values at numbers. It grows by pages, so nothing is moved, and an insertion never takes longer because there are many values.
///
/// ```
/// let mut slab = tw_base::Slab::default();
/// let (one, two) = (slab.insert("one"), slab.insert("two"));
/// assert_eq!((slab.remove(one), slab.get(two), slab.len()), (Some("one"), Some(&"two"), 1));
/// assert_eq!(slab.insert("three"), one);
/// ```
#[derive(Debug)]
pub struct Slab<T> {
    /// All pages but the last one are full of slots.
    pages: Vec<Vec<Slot<T>>>,
    /// First free slot.
    free: Option<u32>,
    len: usize,
}

#[derive(Debug)]
enum Slot<T> {
    Free { next: Option<u32> },
    Used(T),
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), free: None, len: 0 }
    }
}

impl<T> Slab<T> {
    /// Stores a value and returns its number, which is below the largest number of values that there have been at once.
    ///
    /// Panics with more than 2^32 values.
    pub fn insert(&mut self, value: T) -> u32 {
        self.len += 1;
        if let Some(at) = self.free
            && let Some(slot) = self.slot_mut(at)
        {
            if let Slot::Free { next } = std::mem::replace(slot, Slot::Used(value)) {
                self.free = next;
            }
            return at;
        }
        if self.pages.last().is_none_or(|page| page.len() == PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        let first = (self.pages.len() - 1) * PAGE;
        let page = self.pages.last_mut().expect("a page was added if there was none");
        page.push(Slot::Used(value));
        u32::try_from(first + page.len() - 1).expect("fewer values than numbers")
    }

    /// Removes the value at a number. The memory of a peak is returned with the last value.
    pub fn remove(&mut self, at: u32) -> Option<T> {
        let next = self.free;
        let slot = self.slot_mut(at)?;
        let value = match std::mem::replace(slot, Slot::Free { next }) {
            Slot::Used(value) => value,
            free => {
                *slot = free;
                return None;
            }
        };
        self.free = Some(at);
        self.len -= 1;
        if self.len == 0 {
            // The first page stays: it is soon used again.
            self.pages.truncate(1);
            self.pages.iter_mut().for_each(Vec::clear);
            self.free = None;
        }
        Some(value)
    }

    /// The value at a number.
    pub fn get(&self, at: u32) -> Option<&T> {
        match self.pages.get(at as usize / PAGE)?.get(at as usize % PAGE)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// The value at a number, to be changed.
    pub fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        match self.slot_mut(at)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All values, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten().filter_map(|slot| match slot {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        })
    }

    fn slot_mut(&mut self, at: u32) -> Option<&mut Slot<T>> {
        self.pages.get_mut(at as usize / PAGE)?.get_mut(at as usize % PAGE)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::Rng;

    #[test]
    fn a_slab_is_a_map_whose_numbers_are_used_again() {
        for seed in 0..20 {
            let mut rng = Rng::seeded(seed);
            let mut slab = Slab::default();
            let mut model = HashMap::new();
            let mut peak = 0;
            for value in 0..3000 {
                // Grows for a while, and shrinks to nothing then.
                if rng.below(100) < if value < 1500 { 70 } else { 20 } {
                    let at = slab.insert(value);
                    assert_eq!(model.insert(at, value), None);
                    peak = peak.max(model.len());
                    assert!((at as usize) < peak);
                } else {
                    let at = u32::try_from(rng.below(peak.max(1) as u64)).unwrap();
                    assert_eq!(slab.remove(at), model.remove(&at));
                }
                let at = u32::try_from(rng.below(2000)).unwrap();
                assert_eq!(slab.get(at), model.get(&at));
                assert_eq!(slab.get_mut(at), model.get_mut(&at));
                assert_eq!((slab.len(), slab.is_empty()), (model.len(), model.is_empty()));
            }
            let (mut all, mut expected): (Vec<_>, Vec<_>) =
                (slab.iter().copied().collect(), model.values().copied().collect());
            all.sort_unstable();
            expected.sort_unstable();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_slot_is_as_small_as_a_waker() {
        assert_eq!(size_of::<Slot<std::task::Waker>>(), size_of::<std::task::Waker>());
    }

    #[test]
    fn memory_of_a_peak_goes_with_the_last_value() {
        let mut slab = Slab::default();
        let all: Vec<u32> = (0..10 * PAGE).map(|value| slab.insert(value)).collect();
        all.iter().for_each(|at| assert!(slab.remove(*at).is_some()));
        assert_eq!((slab.pages.len(), slab.pages[0].len(), slab.insert(7)), (1, 0, 0));
    }
}
