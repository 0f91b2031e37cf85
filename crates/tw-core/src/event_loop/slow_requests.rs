//! Slowest requests of the last minute, for the status page.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tw_base::FatalMutex;
use tw_rt::clock::UnixTime;

/// Time for which they are remembered, in milliseconds.
const AGE_MAX_MS: u64 = 60_000;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Slowest requests of the last minute that are remembered.
    const SLOW_REQUESTS_KEPT: usize = 24, count, "the fastest of them is forgotten";
}

/// The slowest requests of all loops.
#[derive(Default)]
pub struct SlowRequests {
    /// Least time of a request that is taken, in nanoseconds; 0 while there is room.
    least_ns: AtomicU64,
    /// Moment from which the oldest one is forgotten, in milliseconds of `tw_rt::clock::millis`.
    full_until_ms: AtomicU64,
    /// Slowest first.
    kept: FatalMutex<Vec<SlowRequest>>,
}

/// A request that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlowRequest {
    /// End of the request.
    pub at: UnixTime,
    /// End of the request in milliseconds of `tw_rt::clock::millis`.
    pub at_ms: u64,
    /// Number of the loop.
    pub worker: usize,
    /// Time from its first byte to the end of its response.
    pub time: Duration,
    /// Time that it waited for the disk.
    pub disk_wait: Duration,
    /// Status of the response.
    pub status: u16,
    /// Protocol, as `HTTP/1.1`.
    pub protocol: Box<str>,
    /// Address of the client.
    pub client: Box<str>,
    /// Host that was asked for; empty if none.
    pub host: Box<str>,
    /// Method and path, perhaps cut off. The query string is left out, because it may hold secrets.
    pub request: Box<str>,
}

impl SlowRequests {
    /// Returns true if a request that ends now and took `time` is one of them. Takes no lock.
    pub fn takes(&self, time: Duration, now_ms: u64) -> bool {
        nanos(time) >= self.least_ns.load(Relaxed) || now_ms >= self.full_until_ms.load(Relaxed)
    }

    /// Adds a request in the place of the fastest one.
    pub fn add(&self, request: SlowRequest) {
        let mut kept = self.kept.lock();
        forget_old(&mut kept, request.at_ms);
        let place = kept.partition_point(|slow_request| slow_request.time >= request.time);
        kept.insert(place, request);
        kept.truncate(SLOW_REQUESTS_KEPT);
        self.publish_bounds(&kept);
    }

    /// The requests, slowest first.
    pub fn slowest(&self, now_ms: u64) -> Vec<SlowRequest> {
        let mut kept = self.kept.lock();
        forget_old(&mut kept, now_ms);
        self.publish_bounds(&kept);
        kept.clone()
    }

    fn publish_bounds(&self, kept: &[SlowRequest]) {
        let fastest = kept.last().filter(|_| kept.len() >= SLOW_REQUESTS_KEPT);
        let oldest = kept.iter().map(|request| request.at_ms).min().unwrap_or_default();
        self.least_ns.store(fastest.map_or(0, |request| nanos(request.time).saturating_add(1)), Relaxed);
        self.full_until_ms.store(oldest.saturating_add(AGE_MAX_MS), Relaxed);
    }
}

fn forget_old(kept: &mut Vec<SlowRequest>, now_ms: u64) {
    kept.retain(|request| now_ms.saturating_sub(request.at_ms) < AGE_MAX_MS);
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_ms: u64, time_ms: u64) -> SlowRequest {
        SlowRequest {
            at: UnixTime { secs: 0, msec: 0 },
            at_ms,
            worker: 0,
            time: Duration::from_millis(time_ms),
            disk_wait: Duration::ZERO,
            status: 200,
            protocol: "HTTP/1.1".into(),
            client: "::1".into(),
            host: "".into(),
            request: "GET /".into(),
        }
    }

    fn times(slow: &SlowRequests, now_ms: u64) -> Vec<u128> {
        slow.slowest(now_ms).iter().map(|request| request.time.as_millis()).collect()
    }

    #[test]
    fn slowest_requests_of_the_last_minute_are_kept() {
        let slow = SlowRequests::default();
        let kept = SLOW_REQUESTS_KEPT as u64;
        let takes = |time_ms: u64, now_ms: u64| slow.takes(Duration::from_millis(time_ms), now_ms);
        assert!(takes(0, 1000));
        for time in 1..=kept + 1 {
            slow.add(request(1000 + time, time));
        }
        // The fastest one was forgotten, and one as fast as the fastest is not taken.
        assert_eq!(times(&slow, 2000).first(), Some(&u128::from(kept + 1)));
        assert_eq!(times(&slow, 2000).last(), Some(&2));
        assert!(!takes(2, 2000) && takes(3, 2000));
        // The oldest one is the one of 2 ms.
        let old = 1002 + AGE_MAX_MS;
        assert!(!takes(2, old - 1) && takes(0, old));
        slow.add(request(old, 0));
        assert_eq!(times(&slow, old).last(), Some(&0));
        assert_eq!(times(&slow, old + AGE_MAX_MS), [0; 0]);
        assert!(takes(0, old + AGE_MAX_MS));
    }
}
