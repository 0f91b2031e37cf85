//! Look-up of `geo`: disjoint intervals in one sorted list, the compiled form of networks and ranges.

use std::net::IpAddr;

/// A value is absent.
const NONE: u32 = u32::MAX;

/// An address as a number.
pub(super) trait Number: Copy + Ord {
    /// The next number, if there is one.
    fn next(self) -> Option<Self>;
}

impl Number for u32 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

impl Number for u128 {
    fn next(self) -> Option<Self> {
        self.checked_add(1)
    }
}

/// Values of intervals. A look-up is a binary search; an interval costs the size of a number and 4 bytes.
#[derive(Debug)]
pub(super) struct Intervals<N> {
    /// Beginnings of the intervals; each ends where the next one begins.
    starts: Vec<N>,
    values: Vec<u32>,
}

impl<N> Default for Intervals<N> {
    fn default() -> Self {
        Self { starts: Vec::new(), values: Vec::new() }
    }
}

impl<N: Number> Intervals<N> {
    /// Compiles intervals (first, last, value) of which each is inside another one or beside it, sorted by their first
    /// numbers and outer ones first. The innermost holds.
    pub(super) fn nested(list: impl IntoIterator<Item = (N, N, u32)>) -> Self {
        let mut built = Self::default();
        let mut outer: Vec<(N, u32)> = Vec::new();
        for (first, last, value) in list {
            built.close(&mut outer, Some(first));
            built.begin(first, value);
            outer.push((last, value));
        }
        built.close(&mut outer, None);
        built.starts.shrink_to_fit();
        built.values.shrink_to_fit();
        built
    }

    /// Ends the intervals that end before `until`.
    fn close(&mut self, outer: &mut Vec<(N, u32)>, until: Option<N>) {
        while let Some(&(last, _)) = outer.last() {
            if until.is_some_and(|until| last >= until) {
                return;
            }
            outer.pop();
            if let Some(after) = last.next() {
                self.begin(after, outer.last().map_or(NONE, |(_, value)| *value));
            }
        }
    }

    fn begin(&mut self, at: N, value: u32) {
        if self.starts.last() == Some(&at) {
            self.starts.pop();
            self.values.pop();
        }
        if self.values.last().copied().unwrap_or(NONE) != value {
            self.starts.push(at);
            self.values.push(value);
        }
    }

    /// The value at `at`.
    pub(super) fn find(&self, at: N) -> Option<u32> {
        let after = self.starts.partition_point(|start| *start <= at);
        self.values.get(after.checked_sub(1)?).copied().filter(|value| *value != NONE)
    }
}

/// Values by address.
#[derive(Debug, Default)]
pub(crate) struct GeoTable {
    pub(super) v4: Intervals<u32>,
    pub(super) v6: Intervals<u128>,
    /// All values, each once.
    pub(super) values: Vec<Box<[u8]>>,
    /// Value of addresses without another one.
    pub(super) default: Option<u32>,
}

impl GeoTable {
    /// The value of an address; `None` stands for a client that has none, or for text that is no address, which nginx
    /// takes for 255.255.255.255.
    pub(crate) fn find(&self, addr: Option<IpAddr>) -> &[u8] {
        let found_value = match addr.map(|addr| addr.to_canonical()) {
            Some(IpAddr::V4(addr)) => self.v4.find(addr.to_bits()),
            Some(IpAddr::V6(addr)) => self.v6.find(addr.to_bits()),
            None => self.v4.find(u32::MAX),
        };
        let value = found_value.or(self.default).and_then(|at| self.values.get(at as usize));
        value.map(|value| &**value).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn innermost_interval_wins() {
        let max = u32::MAX;
        let intervals = Intervals::nested([
            (0, max, 0),
            (10, 19, 1),
            (10, 11, 2),
            (12, 12, 2),
            (19, 19, 3),
            (30, 39, 4),
            (max, max, 5),
        ]);
        for (at, expected) in [
            (0, 0),
            (9, 0),
            (10, 2),
            (11, 2),
            (12, 2),
            (13, 1),
            (18, 1),
            (19, 3),
            (20, 0),
            (30, 4),
            (39, 4),
            (40, 0),
            (max - 1, 0),
            (max, 5),
        ] {
            assert_eq!(intervals.find(at), Some(expected), "{at}");
        }
        assert_eq!(intervals.starts.len(), 8, "neighbours with one value are one interval");
    }

    #[test]
    fn addresses_outside_have_no_value() {
        let intervals = Intervals::nested([(5u128, 6, 1), (7, 7, 1), (u128::MAX, u128::MAX, 2)]);
        for (at, expected) in
            [(4, None), (5, Some(1)), (7, Some(1)), (8, None), (u128::MAX - 1, None), (u128::MAX, Some(2))]
        {
            assert_eq!(intervals.find(at), expected, "{at}");
        }
        assert_eq!(Intervals::<u32>::default().find(0), None);
    }

    /// Against a look through all networks.
    #[test]
    fn many_networks() {
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        let mut list: Vec<(u32, u32, u32)> = (0..500)
            .map(|value| {
                let size = 1 << (random() % 12);
                let first = (random() % 65536) & !(size - 1);
                (first, first + size - 1, value)
            })
            .collect();
        list.sort_by_key(|&(first, last, _)| (first, std::cmp::Reverse(last)));
        list.dedup_by_key(|&mut (first, last, _)| (first, last));
        let intervals = Intervals::nested(list.iter().copied());
        for at in 0..70_000 {
            let innermost = list.iter().filter(|(first, last, _)| (*first..=*last).contains(&at));
            let expected = innermost.min_by_key(|(first, last, _)| last - first).map(|(_, _, value)| *value);
            assert_eq!(intervals.find(at), expected, "{at}");
        }
    }
}
