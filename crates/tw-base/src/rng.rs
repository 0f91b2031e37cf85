//! Random numbers for balancing, jitter and faults on purpose: quick, small, seeded by the caller. Not for secrets.

/// A generator, for one loop or one list of faults. Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
#[derive(Clone, Debug, Default)]
pub struct Rng(u64);

impl Rng {
    /// A generator that always gives the same numbers for the same seed.
    pub const fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; zero if that is zero. Its bias is below `end` in 2^64.
    pub const fn below(&mut self, end: u64) -> u64 {
        ((self.next() as u128 * end as u128) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_seed_and_spread() {
        // The first numbers of the reference implementation for the seed 1234567.
        let mut rng = Rng::seeded(1_234_567);
        assert_eq!([rng.next(), rng.next()], [6_457_827_717_110_365_317, 3_203_168_211_198_807_973]);
        let mut seen_values = [0; 7];
        for _ in 0..7000 {
            seen_values[rng.below(7) as usize] += 1;
        }
        assert!(seen_values.iter().all(|n| (850..1150).contains(n)), "{seen_values:?}");
        assert_eq!(rng.below(0), 0);
    }
}
