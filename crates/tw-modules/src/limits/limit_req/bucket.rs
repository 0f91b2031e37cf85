//! One leaky bucket per key: its excess runs off at the rate, and every request adds 1000 thousandths.
//!
//! Source: nginx 1.31, `ngx_http_limit_req_lookup`, `_account`, `_expire`. Time is an argument.

use std::sync::LazyLock;
use std::time::Instant;

use tw_fleet::RateShare;
use tw_module_support::zone::{Id, Zone, ZoneTable, slab_cost};

/// Thousandths of a request.
pub(super) const REQUEST: i64 = 1000;
/// Size of an entry in nginx besides its key.
const ENTRY_SIZE: usize = 80;
/// A bucket that is empty and this old makes room, in milliseconds.
const IDLE_MS: i64 = 60_000;
/// Before all time, in milliseconds: a bucket that was last used then is empty at any rate.
const NEVER: i64 = -(1 << 44);

/// Rate of a key, or the share of it that this node of a fleet has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rate {
    /// Thousandths of a request per second.
    whole: i64,
    share: RateShare,
}

impl Rate {
    /// Rate in thousandths of a request per second.
    const fn new(whole: i64) -> Self {
        Self { whole, share: RateShare::WHOLE }
    }

    /// Rate in requests per second.
    pub(super) const fn per_second(requests: i64) -> Self {
        Self::new(requests * REQUEST)
    }

    /// Reads `10r/s` or `30r/m`.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (number, scale) = match text.strip_suffix(b"r/m") {
            Some(number) => (number, 60),
            None => (text.strip_suffix(b"r/s").unwrap_or(text), 1),
        };
        let number = i64::try_from(tw_conf::units::number(number)?).ok().filter(|number| *number > 0)?;
        Some(Self::new(number.saturating_mul(REQUEST) / scale))
    }

    /// Thousandths of a request per second, of all nodes.
    pub(super) fn thousandths(self) -> u64 {
        self.whole.unsigned_abs()
    }

    /// This share of the rate.
    pub(super) fn with_share(self, share: RateShare) -> Self {
        Self { share, ..self }
    }

    /// Excess that runs off in `ms` milliseconds.
    fn outflow(self, ms: i64) -> i64 {
        if self.share == RateShare::WHOLE {
            return self.whole.saturating_mul(ms) / 1000;
        }
        // A share of a low rate is less than a thousandth of a request in a second.
        let outflow = self.share.apply(i128::from(self.whole) * i128::from(ms)) / 1000;
        i64::try_from(outflow).unwrap_or(if ms < 0 { i64::MIN } else { i64::MAX })
    }

    /// Excess whose time at the whole rate is that of `excess` at this share.
    fn at_whole(self, excess: i64) -> i64 {
        match self.share {
            RateShare::WHOLE => excess,
            share => i64::try_from(share.divide(i128::from(excess))).unwrap_or(i64::MAX),
        }
    }

    /// Whole seconds after which `excess` has run off; at least 1.
    pub(super) fn wait_seconds(self, excess: i64) -> u32 {
        let rate = self.whole.max(1);
        let excess = self.at_whole(excess);
        let seconds = excess / rate + i64::from(excess % rate > 0);
        u32::try_from(seconds.max(1)).unwrap_or(u32::MAX)
    }

    /// Milliseconds in which `excess` runs off; 0 if there is none.
    pub(super) fn delay_ms(self, excess: i64) -> i64 {
        // A rate of less than a thousandth per second never gets here: parse() would make it 0 only for 0 requests.
        if excess <= 0 { 0 } else { self.at_whole(excess).saturating_mul(1000) / self.whole.max(1) }
    }
}

/// State of a key.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bucket {
    /// Time of the last request counted, in milliseconds of [`millis`].
    last: i64,
    excess: i64,
    /// Number of requests about to be counted; the bucket is not removed before.
    pending_requests: u32,
}

impl Bucket {
    /// Excess with one more request at `now`, and the milliseconds since the last one.
    fn with_one(&self, rate: Rate, now: i64) -> (i64, i64) {
        let (remaining, ms) = self.excess_at(rate, now);
        (remaining.saturating_add(REQUEST).max(0), ms)
    }

    /// Excess with a cost that is due at `now`, and the milliseconds since the last request.
    fn with_cost(&self, cost: i64, rate: Rate, now: i64) -> (i64, i64) {
        let (remaining, ms) = self.excess_at(rate, now);
        // The time before, however long, has not paid for it.
        (remaining.max(0).saturating_add(cost), ms)
    }

    /// Excess that is left at `now`, less than 0 if more could have run off, and the milliseconds since the last request.
    fn excess_at(&self, rate: Rate, now: i64) -> (i64, i64) {
        // Loops see time in turns of their own, so it may run backwards a little.
        let ms = match now.saturating_sub(self.last) {
            ms if ms < -IDLE_MS => 1,
            ms => ms.max(0),
        };
        (self.excess.saturating_sub(rate.outflow(ms)), ms)
    }

    fn count(&mut self, excess: i64, ms: i64, now: i64) {
        self.excess = excess;
        if ms > 0 {
            self.last = now;
        }
    }
}

/// Result of one request in one zone.
pub(super) enum BucketDecision<'z> {
    /// Counted; the excess with it.
    Counted(i64),
    /// Within the limit; counted when all zones agree.
    Held(HeldBucket<'z>),
    /// Within the limit; its cost is counted when it is known.
    Admitted,
    /// Above the limit; the excess with it.
    Refused(i64),
    /// There is no room.
    Full,
}

/// A bucket that stays until the request was counted in it, or dropped.
pub(super) struct HeldBucket<'z> {
    zone: &'z Zone<Bucket>,
    shard: usize,
    id: Id,
}

impl HeldBucket<'_> {
    /// Counts the request; returns the excess with it.
    pub(super) fn count(self, rate: Rate, now: Instant) -> i64 {
        let now = millis(now);
        let mut table = self.zone.lock(self.shard);
        let bucket = table.get(self.id);
        let (excess, ms) = bucket.with_one(rate, now);
        bucket.count(excess, ms, now);
        excess
    }
}

impl Drop for HeldBucket<'_> {
    fn drop(&mut self) {
        self.zone.lock(self.shard).get(self.id).pending_requests -= 1;
    }
}

/// Milliseconds since a moment of this process.
fn millis(now: Instant) -> i64 {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let span = |span: std::time::Duration| i64::try_from(span.as_millis()).unwrap_or(i64::MAX);
    // The first caller may have read the clock before that; rounded down there as well.
    match now.checked_duration_since(*START) {
        Some(since) => span(since),
        None => -span(START.saturating_duration_since(now)) - 1,
    }
}

/// Asks the bucket of `key` for a request, and counts it if `is_last`. Locks a part of the zone.
pub(super) fn take<'z>(
    zone: &'z Zone<Bucket>,
    key: &[u8],
    rate: Rate,
    burst: i64,
    now: Instant,
    is_last: bool,
) -> BucketDecision<'z> {
    let now = millis(now);
    let shard = zone.shard_of(key);
    let mut table = zone.lock(shard);
    let Some(id) = table.find(key) else {
        let bucket = if is_last {
            Bucket { last: now, excess: 0, pending_requests: 0 }
        } else {
            Bucket { last: NEVER, excess: 0, pending_requests: 1 }
        };
        return match add(zone, &mut table, key, bucket, rate, now) {
            None => BucketDecision::Full,
            Some(_) if is_last => BucketDecision::Counted(0),
            Some(id) => BucketDecision::Held(HeldBucket { zone, shard, id }),
        };
    };
    table.touch(id);
    let bucket = table.get(id);
    let (excess, ms) = bucket.with_one(rate, now);
    if excess > burst {
        return BucketDecision::Refused(excess);
    }
    if is_last {
        bucket.count(excess, ms, now);
        return BucketDecision::Counted(excess);
    }
    bucket.pending_requests += 1;
    BucketDecision::Held(HeldBucket { zone, shard, id })
}

/// Asks the bucket of `key` whether a request is admitted whose cost is known later. Counts nothing; locks a part of the zone.
pub(super) fn look<'z>(
    zone: &'z Zone<Bucket>,
    key: &[u8],
    rate: Rate,
    burst: i64,
    now: Instant,
) -> BucketDecision<'z> {
    let mut table = zone.lock(zone.shard_of(key));
    let Some(id) = table.find(key) else { return BucketDecision::Admitted };
    table.touch(id);
    match table.get(id).excess_at(rate, millis(now)) {
        (excess, _) if excess > burst => BucketDecision::Refused(excess),
        _ => BucketDecision::Admitted,
    }
}

/// The zone has no room for the key of a cost.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NoRoom;

/// Adds the cost of a request that is over to the bucket of `key`; returns the excess with it. Locks a part of the zone.
pub(super) fn charge(
    zone: &Zone<Bucket>,
    key: &[u8],
    rate: Rate,
    cost: i64,
    now: Instant,
) -> Result<i64, NoRoom> {
    let now = millis(now);
    let mut table = zone.lock(zone.shard_of(key));
    let Some(id) = table.find(key) else {
        let bucket = Bucket { last: now, excess: cost, pending_requests: 0 };
        return add(zone, &mut table, key, bucket, rate, now).map(|_| cost).ok_or(NoRoom);
    };
    table.touch(id);
    let bucket = table.get(id);
    let (excess, ms) = bucket.with_cost(cost, rate, now);
    bucket.count(excess, ms, now);
    Ok(excess)
}

/// Adds a bucket, for which idle ones make room, and the oldest if need be.
fn add(
    zone: &Zone<Bucket>,
    table: &mut ZoneTable<Bucket>,
    key: &[u8],
    bucket: Bucket,
    rate: Rate,
    now: i64,
) -> Option<Id> {
    let cost = slab_cost(ENTRY_SIZE + key.len());
    for forced in [0, 1] {
        evict(zone, table, rate, now, forced);
        if let Some(id) = table.insert(key, cost, bucket) {
            zone.entries.add(1);
            return Some(id);
        }
    }
    None
}

/// Removes `forced` of the oldest buckets whatever their state, then up to two of those that are empty and idle.
fn evict(zone: &Zone<Bucket>, table: &mut ZoneTable<Bucket>, rate: Rate, now: i64, forced: u32) {
    for step in 0..forced + 2 {
        let Some(id) = table.oldest() else { return };
        let bucket = table.get(id);
        if bucket.pending_requests > 0 {
            return;
        }
        if step >= forced {
            let ms = now.saturating_sub(bucket.last).saturating_abs();
            if ms < IDLE_MS || bucket.excess.saturating_sub(rate.outflow(ms)) > 0 {
                return;
            }
        }
        table.remove(id);
        zone.entries.sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn rates() {
        for (text, expected) in [
            ("10r/s", Some(10_000)),
            ("30r/m", Some(500)),
            ("1r/m", Some(16)),
            ("5", Some(5_000)),
            ("9223372036854775807r/s", Some(i64::MAX)),
            ("0r/s", None),
            ("r/s", None),
            ("-1r/s", None),
            ("1r/h", None),
            ("", None),
        ] {
            assert_eq!(Rate::parse(text.as_bytes()), expected.map(Rate::new), "{text}");
        }
        assert_eq!(Rate::new(16).delay_ms(1000), 62_500);
        assert_eq!(Rate::new(1000).delay_ms(-1), 0);
        assert!(Rate::new(1).delay_ms(i64::MAX) > 0);
        for (rate, excess, expected) in [
            (1000, 1000, 1),
            (1000, 1001, 2),
            (16, 1000, 63),
            (500, 1000, 2),
            (10_000, 1, 1),
            (1000, 0, 1),
            (1000, -5, 1),
            (1, i64::MAX, u32::MAX),
        ] {
            assert_eq!(Rate::new(rate).wait_seconds(excess), expected, "{excess} at {rate}");
        }
    }

    #[test]
    fn shares_of_rates() {
        let whole = RateShare::WHOLE;
        let half = Rate::per_second(10).with_share(RateShare::one_of(2));
        assert_eq!(Rate::per_second(10).with_share(whole), Rate::per_second(10));
        assert_eq!((half.outflow(1000), half.outflow(-1000)), (5000, -5000));
        assert_eq!((half.delay_ms(1000), half.wait_seconds(10_000), half.wait_seconds(10_001)), (200, 2, 3));
        // A thousandth of one request per minute is not nothing.
        assert_eq!(Rate::new(16).with_share(RateShare::one_of(1000)).outflow(3_600_000), 57);
        let extreme = Rate::new(i64::MAX).with_share(RateShare::one_of(2));
        assert_eq!((extreme.outflow(i64::MAX), extreme.outflow(-i64::MAX)), (i64::MAX, i64::MIN));
        assert_eq!(Rate::new(1).with_share(RateShare::one_of(2)).delay_ms(i64::MAX), i64::MAX);
    }

    /// Excess after a request of `key`, or the reason of a refusal.
    fn excess_after(zone: &Zone<Bucket>, key: &[u8], burst: i64, now: Instant) -> Result<i64, &'static str> {
        match take(zone, key, Rate::per_second(10), burst, now, true) {
            BucketDecision::Counted(excess) => Ok(excess),
            BucketDecision::Refused(_) => Err("refused"),
            BucketDecision::Held(_) => Err("held"),
            BucketDecision::Admitted => Err("admitted"),
            BucketDecision::Full => Err("full"),
        }
    }

    #[test]
    fn excess_grows_and_runs_off() {
        let zone = Zone::new(b"a", 32 << 10, "$key");
        let start = Instant::now();
        for (ms, expected) in [
            (0, Ok(0)),
            (0, Ok(1000)),
            (50, Ok(1500)),
            (100, Ok(2000)),
            (100, Err("refused")),
            (200, Ok(2000)),
            (100, Err("refused")),
            (60_000, Ok(0)),
        ] {
            assert_eq!(excess_after(&zone, b"k", 2000, start + Duration::from_millis(ms)), expected, "{ms}");
        }
        assert_eq!(zone.entries.value(), 1);
    }

    #[test]
    fn costs_are_charged_afterwards() {
        let zone = Zone::new(b"a", 32 << 10, "$key");
        let start = Instant::now();
        let rate = Rate::per_second(10);
        let at = |ms| start + Duration::from_millis(ms);
        let is_admitted =
            |burst, ms| matches!(look(&zone, b"k", rate, burst, at(ms)), BucketDecision::Admitted);
        assert!(is_admitted(0, 0));
        assert_eq!(zone.entries.value(), 0, "a key that owes nothing takes no room");
        assert_eq!(charge(&zone, b"k", rate, 5000, at(0)), Ok(5000));
        assert!(!is_admitted(0, 0) && !is_admitted(4999, 0) && is_admitted(5000, 0));
        assert_eq!(charge(&zone, b"k", rate, 2500, at(100)), Ok(6500));
        assert!(!is_admitted(0, 749) && is_admitted(0, 750));
        // An hour without a request is no credit.
        assert_eq!(charge(&zone, b"k", rate, 7000, at(3_600_000)), Ok(7000));
        assert_eq!(charge(&zone, b"k", rate, i64::MAX, at(3_600_000)), Ok(i64::MAX));
        assert!(!is_admitted(i64::MAX - 1, 3_600_000));
        // The same bucket serves limits that count requests.
        assert!(matches!(
            take(&zone, b"k", rate, 1000, at(3_600_000), true),
            BucketDecision::Refused(i64::MAX)
        ));
        assert_eq!(charge(&zone, &[b'x'; 40_000], rate, 1000, at(0)), Err(NoRoom));
    }

    #[test]
    fn oldest_entry_is_evicted_unless_in_use() {
        let zone = Zone::new(b"a", 32 << 10, "$key");
        let now = Instant::now();
        let bucket_decision = take(&zone, b"held", Rate::per_second(1), 0, now, false);
        assert!(matches!(bucket_decision, BucketDecision::Held(_)));
        for n in 0..1000_u32 {
            assert!(matches!(excess_after(&zone, &n.to_le_bytes(), 0, now), Ok(0) | Err("full")), "{n}");
        }
        assert_eq!(zone.entries.value(), 256, "128 bytes each");
        drop(bucket_decision);
        assert_eq!(excess_after(&zone, b"more", 0, now), Ok(0));
        assert_eq!(zone.entries.value(), 256);
        assert_eq!(excess_after(&zone, b"held", 0, now), Ok(0), "it was the oldest");
        let long = vec![b'k'; 65_535];
        assert_eq!(excess_after(&zone, &long, 0, now), Err("full"), "longer than the zone");
        // A minute later, empty buckets are removed, two for each new one.
        let before = zone.entries.value();
        assert_eq!(excess_after(&zone, b"late", 0, now + Duration::from_secs(61)), Ok(0));
        assert!(zone.entries.value() < before);
    }

    #[test]
    fn held_request_is_counted_once() {
        let zone = Zone::new(b"a", 32 << 10, "$key");
        let now = Instant::now();
        let rate = Rate::per_second(10);
        for expected in [0, 1000, 2000] {
            let BucketDecision::Held(held_bucket) = take(&zone, b"k", rate, 9000, now, false) else {
                panic!("not held")
            };
            assert_eq!(held_bucket.count(rate, now), expected);
        }
        let BucketDecision::Held(held_bucket) = take(&zone, b"k", rate, 9000, now, false) else {
            panic!("not held")
        };
        drop(held_bucket);
        assert_eq!(excess_after(&zone, b"k", 9000, now), Ok(3000), "what was dropped was not counted");
        let mut table = zone.lock(0);
        let id = table.find(b"k").unwrap();
        assert_eq!(table.get(id).pending_requests, 0);
    }
}
