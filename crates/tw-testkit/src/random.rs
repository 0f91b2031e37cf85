//! Reproducible pseudo-random numbers: a failure with a seed repeats with it.

/// A sequence of numbers (SplitMix64: small, and good enough to choose faults).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if that is 0.
    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next_number() % (end.max(1) as u64)).unwrap_or(0)
    }

    /// True `percent` times out of 100.
    pub fn happens(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    /// One of these.
    ///
    /// # Panics
    /// There are none.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        *all.get(self.below(all.len())).expect("there is one to choose")
    }

    /// So many bytes that do not compress.
    #[must_use]
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.next_number().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_seeds_give_equal_sequences() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (random.next_number(), random.below(1000), random.bytes(11))
        };
        assert_eq!(numbers(1), numbers(1));
        assert_ne!(numbers(1), numbers(2));
        assert_eq!(numbers(1).2.len(), 11);
    }

    #[test]
    fn every_choice_occurs() {
        let mut random = Random::new(7);
        let mut counts = [0; 4];
        (0..4000).for_each(|_| counts[random.one_of(&[0, 1, 2, 3])] += 1);
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
        assert_eq!((random.below(0), random.happens(0), random.happens(100)), (0, false, true));
    }
}
