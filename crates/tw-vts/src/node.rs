//! Counters of one server or filter.

use std::fmt::Write as _;

use tw_request::cache_info::UpstreamCacheStatus;
use tw_rt::clock;

/// Requests whose times make the average.
pub(super) const SAMPLES_MAX: usize = 64;
/// Bounds of histogram buckets, at most.
pub(super) const BUCKETS_MAX: usize = 32;

/// Words of the cache statuses, in the order in which they are counted. nginx's `SCARCE` does not occur here.
pub(super) const CACHE_WORDS: [&str; 8] =
    ["miss", "bypass", "expired", "stale", "updating", "revalidated", "hit", "scarce"];
/// Words of the classes of statuses.
pub(super) const CLASS_WORDS: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// Number of times that a counter has overflowed: never, with 64 bits.
const OVER_COUNTS: &str = r#"{"maxIntegerSize":18446744073709551615,"requestCounter":0,"inBytes":0,"outBytes":0,"1xx":0,"2xx":0,"3xx":0,"4xx":0,"5xx":0,"miss":0,"bypass":0,"expired":0,"stale":0,"updating":0,"revalidated":0,"hit":0,"scarce":0,"requestMsecCounter":0}"#;

/// A request that is over.
pub(super) struct FinishedRequest {
    pub(super) status: u16,
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) cache: Option<UpstreamCacheStatus>,
    /// Duration in milliseconds.
    pub(super) time_ms: u64,
    /// Time of the end, in milliseconds since 1970.
    pub(super) at_ms: u64,
}

/// Counters of one key.
#[derive(Clone, Default)]
pub(super) struct TrafficNode {
    pub(super) requests: u64,
    pub(super) received: u64,
    pub(super) sent: u64,
    /// Responses by the first digit of their status.
    pub(super) classes: [u64; CLASS_WORDS.len()],
    /// Responses by cache status.
    pub(super) cache: [u64; CACHE_WORDS.len()],
    /// Sum of all durations in milliseconds.
    pub(super) time_ms: u64,
    /// Last requests; a ring once it is full.
    samples: Vec<TimeSample>,
    /// Index of the oldest sample of a full ring.
    oldest: usize,
    pub(super) buckets: Vec<Bucket>,
}

/// Duration of one request.
#[derive(Clone, Copy)]
struct TimeSample {
    at_ms: u64,
    time_ms: u64,
}

/// Requests that took at most so long.
#[derive(Clone, Copy)]
pub(super) struct Bucket {
    /// Bound in milliseconds.
    pub(super) bound_ms: u64,
    pub(super) count: u64,
}

/// `vhost_traffic_status_average_method`
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Average {
    pub(super) method: AverageMethod,
    /// Age in milliseconds from which on a request does not count; 0 is no limit.
    pub(super) period_ms: u64,
}

/// Formula of an average.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AverageMethod {
    /// Arithmetic mean.
    Arithmetic,
    /// Weights grow with the number of a request: the last one counts most.
    Weighted,
}

impl TrafficNode {
    /// Counts a request. The first one decides about the bounds of the histogram.
    pub(super) fn count(&mut self, request: &FinishedRequest, bounds: &[u64]) {
        self.requests += 1;
        self.received += request.received;
        self.sent += request.sent;
        let class = usize::from(request.status / 100).wrapping_sub(1);
        if let Some(count) = self.classes.get_mut(class) {
            *count += 1;
        }
        if let Some(status) = request.cache {
            self.cache[status as usize] += 1;
        }
        self.time_ms += request.time_ms;
        let sample = TimeSample { at_ms: request.at_ms, time_ms: request.time_ms };
        if self.samples.len() < SAMPLES_MAX {
            self.samples.push(sample);
        } else {
            self.samples[self.oldest] = sample;
            self.oldest = (self.oldest + 1) % SAMPLES_MAX;
        }
        if self.buckets.is_empty() {
            self.buckets = bounds.iter().map(|bound_ms| Bucket { bound_ms: *bound_ms, count: 0 }).collect();
        }
        for bucket in self.buckets.iter_mut().filter(|bucket| request.time_ms <= bucket.bound_ms) {
            bucket.count += 1;
        }
    }

    /// Adds the counters of `other`; of the samples of both, the last ones stay.
    pub(super) fn add(&mut self, other: &Self) {
        self.requests += other.requests;
        self.received += other.received;
        self.sent += other.sent;
        for (sum, more) in self.classes.iter_mut().zip(&other.classes) {
            *sum += more;
        }
        for (sum, more) in self.cache.iter_mut().zip(&other.cache) {
            *sum += more;
        }
        self.time_ms += other.time_ms;
        self.samples = self.samples().chain(other.samples()).copied().collect();
        self.samples.sort_by_key(|sample| sample.at_ms);
        self.samples.drain(..self.samples.len().saturating_sub(SAMPLES_MAX));
        self.oldest = 0;
        if self.buckets.is_empty() {
            self.buckets.clone_from(&other.buckets);
        } else {
            for (sum, more) in self.buckets.iter_mut().zip(&other.buckets) {
                // A bucket with other bounds cannot be added.
                if sum.bound_ms == more.bound_ms {
                    sum.count += more.count;
                }
            }
        }
    }

    /// Average duration in milliseconds.
    pub(super) fn average(&self, by: Average, now_ms: u64) -> u64 {
        let is_recent =
            |sample: &&TimeSample| by.period_ms == 0 || sample.at_ms.saturating_add(by.period_ms) >= now_ms;
        let mut sum = 0_u64;
        let mut weights = 0_u64;
        for (number, sample) in (1..).zip(self.samples().filter(is_recent)) {
            let weight = match by.method {
                AverageMethod::Arithmetic => 1,
                AverageMethod::Weighted => number,
            };
            sum += sample.time_ms.saturating_mul(weight);
            weights += weight;
        }
        sum.checked_div(weights).unwrap_or(0)
    }

    /// Samples from the oldest to the newest.
    fn samples(&self) -> impl Iterator<Item = &TimeSample> {
        let (newer, older) = self.samples.split_at(self.oldest);
        older.iter().chain(newer)
    }

    /// Appends the counters as JSON. Writing into a string cannot fail.
    pub(super) fn write_json(&self, by: Average, now_ms: u64, out: &mut String) {
        let Self { requests, received, sent, time_ms, .. } = self;
        let _ = write!(out, r#"{{"requestCounter":{requests},"inBytes":{received},"outBytes":{sent}"#);
        out.push_str(r#","responses":{"#);
        let words = CLASS_WORDS.iter().chain(&CACHE_WORDS);
        write_members(words.zip(self.classes.iter().chain(&self.cache)), out);
        let average = self.average(by, now_ms);
        let _ = write!(out, r#"}},"requestMsecCounter":{time_ms},"requestMsec":{average}"#);
        out.push_str(r#","requestMsecs":{"times":["#);
        write_list(self.samples().map(|sample| sample.at_ms), out);
        out.push_str(r#"],"msecs":["#);
        write_list(self.samples().map(|sample| sample.time_ms), out);
        out.push_str(r#"]},"requestBuckets":"#);
        write_buckets(&self.buckets, out);
        let _ = write!(out, r#","overCounts":{OVER_COUNTS}}}"#);
    }

    /// A copy without samples.
    pub(super) fn without_samples(&self) -> Self {
        let Self { requests, received, sent, classes, cache, time_ms, .. } = *self;
        let buckets = self.buckets.clone();
        Self { requests, received, sent, classes, cache, time_ms, samples: Vec::new(), oldest: 0, buckets }
    }
}

/// Appends members of a JSON object whose names need no escapes.
pub(super) fn write_members<'a>(members: impl Iterator<Item = (&'a &'a str, &'a u64)>, out: &mut String) {
    for (at, (name, value)) in members.enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, "{comma}\"{name}\":{value}");
    }
}

/// Appends elements of a JSON list.
fn write_list(values: impl Iterator<Item = u64>, out: &mut String) {
    for (at, value) in values.enumerate() {
        let comma = if at == 0 { "" } else { "," };
        let _ = write!(out, "{comma}{value}");
    }
}

/// Appends a histogram as JSON.
pub(super) fn write_buckets(buckets: &[Bucket], out: &mut String) {
    out.push_str(r#"{"msecs":["#);
    write_list(buckets.iter().map(|bucket| bucket.bound_ms), out);
    out.push_str(r#"],"counters":["#);
    write_list(buckets.iter().map(|bucket| bucket.count), out);
    out.push_str("]}");
}

/// Milliseconds since 1970.
pub(super) fn now_ms() -> u64 {
    let now = clock::unix();
    now.secs.unsigned_abs() * 1000 + u64::from(now.msec)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(status: u16, time_ms: u64, at_ms: u64) -> FinishedRequest {
        FinishedRequest {
            status,
            received: 10,
            sent: 100,
            cache: Some(UpstreamCacheStatus::Hit),
            time_ms,
            at_ms,
        }
    }

    #[test]
    fn requests_are_counted_by_class_and_bucket() {
        let mut node = TrafficNode::default();
        for (status, time_ms) in [(200, 5), (204, 6), (404, 10), (700, 11), (0, 1)] {
            node.count(&request(status, time_ms, 1000), &[5, 10]);
        }
        assert_eq!((node.requests, node.received, node.sent, node.time_ms), (5, 50, 500, 33));
        assert_eq!(node.classes, [0, 2, 0, 1, 0], "others have no class");
        assert_eq!(node.cache[6], 5);
        let counts: Vec<_> = node.buckets.iter().map(|bucket| (bucket.bound_ms, bucket.count)).collect();
        assert_eq!(counts, [(5, 2), (10, 4)]);
    }

    #[test]
    fn averages_are_of_recent_requests() {
        let mut node = TrafficNode::default();
        let by = |method, period_ms| Average { method, period_ms };
        assert_eq!(node.average(by(AverageMethod::Arithmetic, 0), 0), 0);
        for (time_ms, at_ms) in [(90, 0), (10, 1000), (40, 2000)] {
            node.count(&request(200, time_ms, at_ms), &[]);
        }
        for (method, period, now, expected) in [
            (AverageMethod::Arithmetic, 0, 1_000_000, (90 + 10 + 40) / 3),
            (AverageMethod::Arithmetic, 1000, 2000, (10 + 40) / 2),
            (AverageMethod::Arithmetic, 1000, 9000, 0),
            (AverageMethod::Weighted, 0, 2000, (90 + 2 * 10 + 3 * 40) / 6),
            (AverageMethod::Weighted, 1000, 2000, (10 + 2 * 40) / 3),
        ] {
            assert_eq!(node.average(by(method, period), now), expected, "{method:?} {period}");
        }
        // The ring forgets the oldest ones.
        for at in 0..SAMPLES_MAX as u64 + 1 {
            node.count(&request(200, at, 3000 + at), &[]);
        }
        let times: Vec<_> = node.samples().map(|sample| sample.time_ms).collect();
        assert_eq!((times.len(), times[0], times[63]), (SAMPLES_MAX, 1, 64));
    }

    #[test]
    fn sums_keep_the_last_samples() {
        let mut sum = TrafficNode::default();
        let mut one = TrafficNode::default();
        for at in 0..50 {
            one.count(&request(200, at, at), &[5]);
        }
        sum.add(&one);
        sum.add(&one);
        assert_eq!((sum.requests, sum.buckets[0].count, sum.samples.len()), (100, 12, SAMPLES_MAX));
        assert_eq!(sum.samples().next().map(|sample| sample.at_ms), Some(18));
    }

    #[test]
    fn json_has_the_names_of_the_module() {
        let mut node = TrafficNode::default();
        node.count(&request(301, 7, 9), &[5, 10]);
        let mut out = String::new();
        let by = Average { method: AverageMethod::Arithmetic, period_ms: 0 };
        node.write_json(by, 9, &mut out);
        let expected = r#"{"requestCounter":1,"inBytes":10,"outBytes":100,"responses":{"1xx":0,"2xx":0,"3xx":1,"4xx":0,"5xx":0,"miss":0,"bypass":0,"expired":0,"stale":0,"updating":0,"revalidated":0,"hit":1,"scarce":0},"requestMsecCounter":7,"requestMsec":7,"requestMsecs":{"times":[9],"msecs":[7]},"requestBuckets":{"msecs":[5,10],"counters":[0,1]},"overCounts":{"maxIntegerSize""#;
        assert!(out.starts_with(expected), "{out}");
        assert!(out.ends_with(r#""requestMsecCounter":0}}"#), "{out}");
    }
}
