//! Rate of requests that all nodes of a fleet share, as loops use it: they count requests by key, and read the share of this node.
//!
//! The table has the keys that are asked most; the others have an equal share. Everything is an atomic, so no loop waits for the thread
//! that computes shares.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use aws_lc_rs::digest;

use crate::fleet::Fleet;
use crate::status::SharedRateState;

/// Slots that a key may be in.
const WAYS: usize = 8;
/// Weight of one request in a slot, so that halves of it are left for a while.
const REQUEST: u32 = 16;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Keys of a rate that a fleet shares whose demand a node knows.
    const SLOTS: usize = 4096, count, "a key that is rarely asked has an equal share of the rate";
    /// Name of a zone whose rate a fleet shares.
    ///
    /// Longest name of a rate: it is in every announcement.
    pub const RATE_NAME_SIZE_MAX: usize = 128, bytes, "the configuration is refused";
}

/// Part of a rate that a node has; never nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateShare(u32);

impl RateShare {
    /// All of the rate.
    pub const WHOLE: Self = Self(1 << 24);

    /// Equal share of one of so many nodes.
    pub const fn one_of(nodes: u32) -> Self {
        let share = Self::WHOLE.0 / if nodes == 0 { 1 } else { nodes };
        Self(if share == 0 { 1 } else { share })
    }

    /// Share of this part, from 0 to 1.
    pub(crate) fn of(part: f64) -> Self {
        // A cast of a float saturates.
        Self(((part * f64::from(Self::WHOLE.0)) as u32).clamp(1, Self::WHOLE.0))
    }

    /// This share of a number.
    pub fn apply(self, number: i128) -> i128 {
        number.saturating_mul(i128::from(self.0)) / i128::from(Self::WHOLE.0)
    }

    /// The number of which this share is `number`.
    pub fn divide(self, number: i128) -> i128 {
        number.saturating_mul(i128::from(Self::WHOLE.0)) / i128::from(self.0)
    }

    /// The share as a part of 1.
    pub fn part(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE.0)
    }
}

/// Key of requests as nodes tell it to each other: a part of its SHA-256, so that nobody can make a key that counts as another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateKey(u64);

impl RateKey {
    /// Key of a text.
    pub fn of(text: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, text);
        let first = digest.as_ref().first_chunk::<8>().copied().unwrap_or_default();
        // 0 is no key.
        Self(u64::from_be_bytes(first).max(1))
    }

    #[cfg(test)]
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

/// One key with its demand and the share of this node.
#[derive(Default)]
struct Slot {
    /// 0 while it is free.
    key: AtomicU64,
    /// Requests, weighted by their age.
    demand: AtomicU32,
    /// 0 for an equal share.
    share: AtomicU32,
}

/// Rate of one zone. It outlives configurations that do not change it.
pub struct SharedRate {
    name: Box<str>,
    fleet: Arc<Fleet>,
    /// Thousandths of a request in a second, for all nodes.
    rate: u64,
    /// Secret odd number, so that clients cannot choose keys of one set.
    multiplier: u64,
    slots: Box<[Slot]>,
    /// Share for keys without one.
    equal: AtomicU32,
    /// Time until which shares of keys are used, in milliseconds of [`tw_rt::clock::millis`].
    valid_until_ms: AtomicU64,
    nodes: AtomicU32,
    away: AtomicU32,
    keys: AtomicU32,
    is_shared: AtomicBool,
    /// Time whose demand is left in the table, in milliseconds; 0 before demand was taken.
    left_ms: AtomicU64,
}

impl fmt::Debug for SharedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedRate({})", self.name)
    }
}

impl SharedRate {
    /// Rate with this name in thousandths of a request per second. All of it belongs to this node until the agent knows others.
    pub fn new(name: &str, fleet: Arc<Fleet>, rate: u64) -> Self {
        Self::with_multiplier(name, fleet, rate, RandomState::new().hash_one(0_u64))
    }

    pub(crate) fn with_multiplier(name: &str, fleet: Arc<Fleet>, rate: u64, multiplier: u64) -> Self {
        Self {
            name: name.into(),
            fleet,
            rate,
            multiplier: multiplier | 1,
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            equal: AtomicU32::new(RateShare::WHOLE.0),
            valid_until_ms: AtomicU64::new(0),
            nodes: AtomicU32::new(1),
            away: AtomicU32::new(0),
            keys: AtomicU32::new(0),
            is_shared: AtomicBool::new(false),
            left_ms: AtomicU64::new(0),
        }
    }

    /// Name, which is that of the zone.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fleet whose nodes share the rate.
    pub fn fleet(&self) -> &Arc<Fleet> {
        &self.fleet
    }

    /// Thousandths of a request in a second, for all nodes together.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// State, for metrics.
    pub fn state(&self) -> SharedRateState {
        SharedRateState {
            nodes: self.nodes.load(Relaxed),
            away: self.away.load(Relaxed),
            keys: self.keys.load(Relaxed),
            is_shared: self.is_shared.load(Acquire),
        }
    }

    /// Counts a request of a key, and returns the share of this node. `now_ms` is of [`tw_rt::clock::millis`]. Costs some atomic
    /// reads and one addition.
    pub fn count(&self, key: RateKey, now_ms: u64) -> RateShare {
        let equal = RateShare(self.equal.load(Relaxed));
        let mut weakest: Option<(&Slot, u64, u32)> = None;
        for slot in self.set_of(key.0) {
            let known_value = slot.key.load(Relaxed);
            if known_value == key.0 {
                slot.demand.fetch_add(REQUEST, Relaxed);
                // A thread that hangs has shares from before.
                let is_valid = now_ms < self.valid_until_ms.load(Relaxed);
                let share = slot.share.load(Relaxed);
                return if is_valid && share > 0 { RateShare(share) } else { equal };
            }
            let demand = if known_value == 0 { 0 } else { slot.demand.load(Relaxed) };
            if weakest.is_none_or(|(_, _, least)| demand < least) {
                weakest = Some((slot, known_value, demand));
            }
        }
        if let Some((slot, known_value, demand)) = weakest {
            if demand == 0 {
                slot.share.store(0, Relaxed);
                // Another loop may have taken the slot, in which case this request is not counted.
                if slot.key.compare_exchange(known_value, key.0, Relaxed, Relaxed).is_ok() {
                    slot.demand.store(REQUEST, Relaxed);
                }
            } else {
                // Keys that come once, as an attacker makes them, do not displace one that comes often.
                let less = |demand: u32| Some(demand.saturating_sub(REQUEST));
                let _ = slot.demand.fetch_update(Relaxed, Relaxed, less);
            }
        }
        equal
    }

    /// Slots that a key may be in.
    fn set_of(&self, key: u64) -> &[Slot] {
        const SETS: usize = SLOTS / WAYS;
        let mixed = key.wrapping_mul(self.multiplier) >> (64 - SETS.trailing_zeros());
        let at = usize::try_from(mixed).unwrap_or(0) * WAYS;
        self.slots.get(at..at + WAYS).unwrap_or_default()
    }

    /// Demand of each known key in thousandths of a request per second, from what was counted in the last so many milliseconds.
    /// Half of it is left for the next call, at most half of the rate, so that a key that was asked far too often is soon another node's.
    pub(crate) fn take_demand(&self, interval_ms: u64) -> Vec<(u64, u64)> {
        // Half of the earlier demand is counted again, in an interval that may have had another length.
        let left_ms = match self.left_ms.load(Relaxed) {
            0 => interval_ms,
            remaining => remaining,
        };
        let counted_ms = interval_ms.saturating_add(left_ms).max(1);
        self.left_ms.store(counted_ms / 2, Relaxed);
        // Thousandths of a request at the rate in the time that is left.
        let whole = self.rate.saturating_mul(counted_ms / 2) / 1000;
        let left_max = (whole.saturating_mul(u64::from(REQUEST)) / 1000).max(u64::from(REQUEST));
        let left_max = u32::try_from(left_max).unwrap_or(u32::MAX);
        let mut results = Vec::new();
        for slot in &self.slots {
            let key = slot.key.load(Relaxed);
            if key == 0 {
                continue;
            }
            let counted = slot.demand.load(Relaxed);
            // Loops may have added to it since.
            let remaining = (counted / 2).min(left_max);
            let less = |demand: u32| Some(demand.saturating_sub(counted - remaining));
            let _ = slot.demand.fetch_update(Relaxed, Relaxed, less);
            if counted == 0 {
                slot.share.store(0, Relaxed);
                let _ = slot.key.compare_exchange(key, 0, Relaxed, Relaxed);
                continue;
            }
            let requests = u64::from(counted) * 1000 / u64::from(REQUEST);
            results.push((key, (requests * 1000 / counted_ms).min(self.rate)));
        }
        results
    }

    /// Sets the shares of keys that are in the table. Those for which `share` has nothing have an equal one.
    pub(crate) fn set_shares(&self, share: impl Fn(u64) -> Option<RateShare>, valid_until_ms: u64) {
        let mut keys = 0;
        for slot in &self.slots {
            let key = slot.key.load(Relaxed);
            if key == 0 {
                continue;
            }
            let share = share(key);
            keys += u32::from(share.is_some());
            slot.share.store(share.map_or(0, |share| share.0), Relaxed);
        }
        self.keys.store(keys, Relaxed);
        self.valid_until_ms.store(valid_until_ms, Relaxed);
    }

    /// Sets the share of keys without one of their own, and the state for metrics. If nothing is shared, all keys have that share
    /// before the state tells so.
    pub(crate) fn set_equal(&self, nodes: u32, away: u32, is_shared: bool) {
        self.equal.store(RateShare::one_of(nodes).0, Relaxed);
        if !is_shared {
            self.valid_until_ms.store(0, Relaxed);
        }
        self.nodes.store(nodes.max(1), Relaxed);
        self.away.store(away, Relaxed);
        self.is_shared.store(is_shared, Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::fleet;

    fn rate(per_second: u64) -> SharedRate {
        SharedRate::with_multiplier("z", fleet("n"), per_second * 1000, 0x9e37_79b9_7f4a_7c15)
    }

    fn key(number: u64) -> RateKey {
        RateKey::of(&number.to_be_bytes())
    }

    fn ask(rate: &SharedRate, key: RateKey, count: usize) {
        for _ in 0..count {
            rate.count(key, 0);
        }
    }

    #[test]
    fn demand_is_requests_per_second() {
        let rate = rate(1000);
        for _ in 0..20 {
            ask(&rate, key(1), 50);
            ask(&rate, key(2), 5);
            rate.take_demand(500);
        }
        ask(&rate, key(1), 50);
        ask(&rate, key(2), 5);
        let demand = rate.take_demand(500);
        let of = |key: RateKey| demand.iter().find(|(candidate, _)| *candidate == key.number()).unwrap().1;
        assert!((99_000..=100_000).contains(&of(key(1))), "{}", of(key(1)));
        assert!((9_000..=10_000).contains(&of(key(2))), "{}", of(key(2)));
        for _ in 0..20 {
            rate.take_demand(500);
        }
        assert!(rate.take_demand(500).is_empty(), "keys that nobody asks leave the table");
    }

    #[test]
    fn demand_is_weighed_by_the_time_in_which_it_was_counted() {
        let rate = rate(1000);
        let mut demand = Vec::new();
        // A hundred requests a second, in intervals as they come.
        for interval_ms in [500, 500, 500, 500, 500, 500, 500, 500, 40, 460, 500, 3000, 10, 500, 20, 20] {
            ask(&rate, key(1), interval_ms / 10);
            demand.push(rate.take_demand(interval_ms as u64)[0].1);
        }
        assert!(demand[7..].iter().all(|demand| (97_000..=101_000).contains(demand)), "{demand:?}");
    }

    #[test]
    fn demand_above_the_rate_counts_as_the_rate() {
        let rate = rate(10);
        ask(&rate, key(1), 100_000);
        for expected in [10_000, 5_000, 2_500] {
            assert_eq!(rate.take_demand(500), [(key(1).number(), expected)]);
        }
    }

    #[test]
    fn shares_are_used_as_long_as_they_are_valid() {
        let rate = rate(10);
        assert_eq!(rate.count(key(1), 0), RateShare::WHOLE, "nobody else is known");
        rate.set_equal(4, 0, true);
        rate.set_shares(|candidate| (candidate == key(1).number()).then_some(RateShare::of(0.75)), 1000);
        assert_eq!(rate.count(key(1), 999).part(), 0.75);
        assert_eq!(rate.count(key(1), 1000).part(), 0.25, "the thread hangs");
        assert_eq!(rate.count(key(2), 0).part(), 0.25);
        assert_eq!(rate.state(), SharedRateState { nodes: 4, away: 0, keys: 1, is_shared: true });
        rate.set_equal(4, 0, false);
        assert_eq!(rate.count(key(1), 999).part(), 0.25, "nothing is shared");
    }

    #[test]
    fn keys_of_a_flood_do_not_displace_busy_ones() {
        let rate = rate(1_000_000);
        rate.set_equal(10, 0, true);
        let mut next = 1000_u64;
        for _ in 0..10 {
            for _ in 0..1000 {
                rate.count(key(1), 0);
                // Fifty keys that come once for each request of the busy one.
                for _ in 0..50 {
                    next += 1;
                    assert_eq!(rate.count(key(next), 0), RateShare::of(0.1), "{next}");
                }
            }
            let demand = rate.take_demand(500);
            assert!(demand.len() <= SLOTS);
            assert!(
                demand.iter().any(|(candidate, demand)| *candidate == key(1).number() && *demand > 500_000)
            );
        }
    }

    #[test]
    fn a_share_is_never_nothing() {
        assert!(RateShare::of(0.0).apply(1 << 40) > 0);
        assert_eq!(RateShare::of(f64::NAN), RateShare(1));
        assert_eq!(RateShare::of(7.0), RateShare::WHOLE);
        assert_eq!((RateShare::of(0.5).apply(1000), RateShare::of(0.5).divide(500)), (500, 1000));
    }
}
