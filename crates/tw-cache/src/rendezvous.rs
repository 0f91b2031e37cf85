//! Choice of the member of a cache that has a key, by rendezvous hashing with weights (Thaler and Ravishankar, 1998).
//!
//! Each member gets a number for each key, and the largest one wins. The numbers of a member depend on nothing else, so a
//! member that is added takes keys over from all others in proportion to its weight, and those of a removed one go to
//! all others; no other key moves.

use crate::Key;

/// Member of a cache, as the choice sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct RendezvousMember {
    seed: u64,
    weight: f64,
}

impl RendezvousMember {
    /// A member with this name and weight. With weight 0 it gets no key.
    #[must_use]
    pub fn new(name: &[u8], weight: u64) -> Self {
        let [a, b, c, d, e, f, g, h, ..] = Key::of(name).0;
        // Exact up to 2^53, and beyond that no member is so small that it matters.
        Self { seed: u64::from_le_bytes([a, b, c, d, e, f, g, h]), weight: weight as f64 }
    }

    /// Number of the member for a key; the largest of all members wins.
    fn score(&self, key: Key) -> f64 {
        let [.., a, b, c, d, e, f, g, h] = key.0;
        let hash = mix(self.seed ^ u64::from_le_bytes([a, b, c, d, e, f, g, h]));
        // Above 0 and below 1: 52 bits and a half.
        let share = ((hash >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
        -self.weight / share.ln()
    }
}

/// Position of the member that has this key; `None` if no member has any weight.
#[must_use]
pub fn rendezvous(members: &[RendezvousMember], key: Key) -> Option<usize> {
    let mut best = None;
    for (at, member) in members.iter().enumerate().filter(|(_, member)| member.weight > 0.0) {
        let score = member.score(key);
        if best.is_none_or(|(most, _)| score > most) {
            best = Some((score, at));
        }
    }
    best.map(|(_, at)| at)
}

/// Finalizer of MurmurHash3: each bit of the input changes each bit of the output with a probability of a half.
fn mix(mut hash: u64) -> u64 {
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYS: usize = 40_000;

    fn members(weights: &[(&str, u64)]) -> Vec<RendezvousMember> {
        weights.iter().map(|(name, weight)| RendezvousMember::new(name.as_bytes(), *weight)).collect()
    }

    /// Name of the member of each key.
    fn names<'a>(weights: &[(&'a str, u64)]) -> Vec<&'a str> {
        let members = members(weights);
        let key = |nth: usize| Key::of(format!("/{nth}").as_bytes());
        (0..KEYS).map(|nth| weights[rendezvous(&members, key(nth)).unwrap()].0).collect()
    }

    fn share(names: &[&str], of: &str) -> f64 {
        names.iter().filter(|name| **name == of).count() as f64 / KEYS as f64
    }

    #[test]
    fn members_get_keys_by_their_weights() {
        let names = names(&[("/a", 1), ("/b", 2), ("/c", 5)]);
        for (name, expected) in [("/a", 0.125), ("/b", 0.25), ("/c", 0.625)] {
            let share = share(&names, name);
            assert!((share - expected).abs() < 0.01, "{name}: {share}");
        }
        assert_eq!(rendezvous(&members(&[("/a", 0), ("/b", 1)]), Key::of(b"x")), Some(1));
        assert_eq!(rendezvous(&members(&[("/a", 0)]), Key::of(b"x")), None);
        assert_eq!(rendezvous(&[], Key::of(b"x")), None);
    }

    /// Keys that moved, and all of them to or from the member of this name.
    fn moved(before: &[&str], after: &[&str], member: &str) -> f64 {
        let moved = before.iter().zip(after).filter(|(before, after)| before != after);
        let moved: Vec<_> = moved.collect();
        assert!(moved.iter().all(|(before, after)| **before == member || **after == member));
        moved.len() as f64 / KEYS as f64
    }

    #[test]
    fn only_the_share_of_a_member_moves() {
        let three = names(&[("/a", 3), ("/b", 3), ("/c", 3)]);
        // Added, in whatever position; removed; drained.
        let four = names(&[("/d", 3), ("/c", 3), ("/a", 3), ("/b", 3)]);
        let share_moved = moved(&three, &four, "/d");
        assert!((share_moved - 0.25).abs() < 0.01, "{share_moved}");
        assert_eq!(moved(&four, &three, "/d"), share_moved);
        assert_eq!(names(&[("/a", 3), ("/b", 3), ("/c", 3), ("/d", 0)]), three);
        // Replaced: no key of others moves to another one.
        let replaced = names(&[("/a", 3), ("/b", 3), ("/e", 3)]);
        for (before, after) in three.iter().zip(&replaced) {
            assert!(before == after || *before == "/c" || *after == "/e", "{before} {after}");
        }
        // A larger weight gains just the share that it has more.
        let larger = names(&[("/a", 3), ("/b", 3), ("/c", 6)]);
        let share_moved = moved(&three, &larger, "/c");
        assert!((share_moved - (0.5 - 1.0 / 3.0)).abs() < 0.01, "{share_moved}");
    }
}
