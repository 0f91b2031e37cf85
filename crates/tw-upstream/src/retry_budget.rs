//! Retry budget (`next_upstream_budget`): the part of the requests to a group that may be retries at any moment.
//!
//! Retries multiply the load of servers that fail because they have too much of it. With a budget, the servers of a group get at
//! most that part more than without retries, however many requests fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use tw_base::Counter;

/// Bound of the retries of a group that are under way at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryBudget {
    /// Retries for a hundred requests under way.
    pub percent: u32,
    /// Retries that are allowed however few requests are under way.
    pub min: u32,
}

/// Retries of one group, shared by all loops. They outlive a reload.
#[derive(Debug, Default)]
pub(crate) struct Retries {
    active: AtomicU32,
    pub(crate) refused: Counter,
}

/// Permission for one retry. Dropping it ends the retry.
#[derive(Debug)]
#[must_use]
pub struct RetryPermit(Arc<Retries>);

impl RetryBudget {
    /// Number of retries that may be under way beside this number of requests.
    fn most(self, requests: u64) -> u32 {
        let share = requests.saturating_mul(self.percent.into()) / 100;
        u32::try_from(share).unwrap_or(u32::MAX).max(self.min)
    }
}

impl Retries {
    /// Begins a retry, unless as many are under way as `budget` allows beside `requests` under way. Counts a refusal.
    pub(crate) fn begin(self: &Arc<Self>, budget: RetryBudget, requests: u64) -> Option<RetryPermit> {
        let most = budget.most(requests);
        let begin = |active: u32| (active < most).then(|| active + 1);
        if self.active.fetch_update(Relaxed, Relaxed, begin).is_err() {
            self.refused.add(1);
            return None;
        }
        Some(RetryPermit(self.clone()))
    }

    /// Number of retries under way.
    pub(crate) fn active(&self) -> u32 {
        self.active.load(Relaxed)
    }
}

impl Drop for RetryPermit {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_are_a_part_of_the_requests_or_the_minimum() {
        for (percent, min, requests, most) in [
            (20, 3, 0, 3),
            (20, 3, 14, 3),
            (20, 3, 15, 3),
            (20, 3, 20, 4),
            (20, 0, 4, 0),
            (100, 0, 7, 7),
            (0, 1, u64::MAX, 1),
            (100, 0, u64::MAX, u32::MAX),
        ] {
            let budget = RetryBudget { percent, min };
            assert_eq!(budget.most(requests), most, "{budget:?}, {requests} requests");
        }
    }

    #[test]
    fn a_permit_that_is_dropped_makes_room_for_another_retry() {
        let retries = Arc::new(Retries::default());
        let budget = RetryBudget { percent: 50, min: 0 };
        let retry_permits: Vec<_> = (0..3).map(|_| retries.begin(budget, 4)).collect();
        let allowed: Vec<_> = retry_permits.iter().map(Option::is_some).collect();
        assert_eq!((allowed, retries.active(), retries.refused.value()), (vec![true, true, false], 2, 1));
        drop(retry_permits);
        assert!(retries.begin(budget, 4).is_some());
        assert_eq!(retries.active(), 0);
    }
}
