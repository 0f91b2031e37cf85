//! History of the status page: the plots of the last ten minutes, a moment every second, and the counters of a minute ago, from
//! which its tables count. It is kept whether a page is open or not.
//!
//! One loop records moments. A series belongs to one plot and has up to two numbers each moment, which the page would compute
//! from two answers of the server in the same way. Counters are kept as the text that the page gets.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tw_base::FatalMutex;
use tw_base::hist::Snapshot;

use super::disk;
use super::metric::{Metric, seconds};
use super::text::json_string;
use crate::event_loop::Counts;
use crate::pools::Disks;

/// Time between two moments.
pub const KEPT_EVERY: Duration = Duration::from_secs(1);
/// Time between two texts of counters.
pub const COUNTERS_EVERY: Duration = Duration::from_secs(10);
/// Age of the counters from which the tables count.
const COUNTERS_AGE: Duration = Duration::from_secs(60);

tw_base::limits! {
    /// Limits of this module.
    pub(super) const LIMITS;

    /// Bytes of the counters that the status page keeps every ten seconds of the last minute, for its tables.
    ///
    /// Bytes of one text of counters: some thousands of upstream servers. Seven texts are kept.
    pub const COUNTERS_SIZE_MAX: usize = 1 << 20, bytes, "the tables count from the opening of the page";
    /// Moments of the status page's history, one a second.
    ///
    /// Moments that are kept: ten minutes.
    const MOMENTS_KEPT: usize = 600, count, "the oldest is forgotten";
    /// Plots of the status page that have a history: loops, traffic, pools and devices.
    ///
    /// Series that are kept: 5 KiB each.
    const SERIES_KEPT: usize = 128, count, "further plots begin when the page is opened";
}

/// Numbers of one series at one moment; NaN is unknown.
type Pair = [f32; 2];
const UNKNOWN: Pair = [f32::NAN; 2];

/// The last moments of every series, and the counters of the last minute.
#[derive(Default)]
pub struct History {
    past: FatalMutex<Past>,
    counted: Vec<&'static Metric>,
    /// Texts of counters, the oldest first.
    counters: FatalMutex<VecDeque<(Instant, Bytes)>>,
}

#[derive(Default)]
struct Past {
    moments: usize,
    series: BTreeMap<String, VecDeque<Pair>>,
    last: Option<Levels>,
}

/// Counters at one moment.
struct Levels {
    at: Instant,
    loops: Vec<Snapshot>,
    answered: u64,
    failed: u64,
    sent: u64,
    received: u64,
    /// Service and queue of each pool.
    pools: BTreeMap<String, [Snapshot; 2]>,
    devices: BTreeMap<String, Snapshot>,
}

impl Levels {
    fn read(counts: &Counts, disks: &Disks, at: Instant) -> Self {
        let pools = disks.pools().map(|disk| {
            let stats = disk.pool().stats();
            let mut both = [Snapshot::empty(), Snapshot::empty()];
            for op in &stats.ops {
                both[0].merge(&op.service);
                both[1].merge(&op.queue);
            }
            (stats.name.to_string(), both)
        });
        let class = |class: usize| counts.total(|tally| &tally.by_class[class]);
        Self {
            at,
            loops: counts.loops().iter().map(|stats| stats.blocked.snapshot()).collect(),
            answered: (0..6).map(class).sum(),
            failed: class(5),
            sent: counts.total(|tally| &tally.sent),
            received: counts.total(|tally| &tally.received),
            pools: pools.collect(),
            devices: tw_disk::devices().into_iter().map(|d| (disk::name(&d), d.service)).collect(),
        }
    }

    /// The numbers of every plot between `before` and this moment.
    fn since(&self, before: &Self, out: &mut BTreeMap<String, Pair>) {
        let seconds = self.at.saturating_duration_since(before.at).as_secs_f64();
        let rate = |now: u64, then: u64| (now.saturating_sub(then) as f64 / seconds) as f32;
        for (at, (now, then)) in self.loops.iter().zip(&before.loops).enumerate() {
            let spans = now.since(then);
            out.insert(format!("loops/{at}"), [quantile(&spans, 1.0), quantile(&spans, 0.99)]);
        }
        let requests = [rate(self.answered, before.answered), rate(self.failed, before.failed)];
        out.insert("traffic/requests".to_owned(), requests);
        let bytes = [rate(self.sent, before.sent), rate(self.received, before.received)];
        out.insert("traffic/bytes".to_owned(), bytes);
        for (name, [service, queue]) in &self.pools {
            if let Some([service_then, queue_then]) = before.pools.get(name) {
                let service = service.since(service_then);
                let queue = queue.since(queue_then);
                out.insert(format!("pools/{name}"), [quantile(&service, 0.99), quantile(&queue, 0.99)]);
            }
        }
        for (name, service) in &self.devices {
            if let Some(then) = before.devices.get(name) {
                let spans = service.since(then);
                out.insert(format!("devices/{name}"), [quantile(&spans, 0.99), quantile(&spans, 0.5)]);
            }
        }
    }
}

/// A quantile in seconds.
fn quantile(spans: &Snapshot, q: f64) -> f32 {
    spans.quantile_ns(q).map_or(f32::NAN, |ns| seconds(ns) as f32)
}

impl History {
    /// A history that also keeps the counters `counted`.
    pub fn new(counted: Vec<&'static Metric>) -> Self {
        Self { counted, ..Self::default() }
    }

    /// The metrics whose counters are kept.
    pub fn counted(&self) -> impl Iterator<Item = &'static Metric> + use<> {
        self.counted.clone().into_iter()
    }

    /// Keeps the counters of this moment, and of those before what the last minute needs.
    pub fn keep_counters(&self, text: String, now: Instant) {
        let mut counters = self.counters.lock();
        counters.push_back((now, text.into()));
        let is_old = |(at, _): &(Instant, Bytes)| now.saturating_duration_since(*at) >= COUNTERS_AGE;
        while counters.get(1).is_some_and(is_old) {
            counters.pop_front();
        }
    }

    /// Discards all counters, because those of this moment are too many.
    pub fn discard_counters(&self) {
        self.counters.lock().clear();
    }

    /// The counters of a minute ago, or the oldest ones if they are younger.
    pub fn counters(&self) -> Option<Bytes> {
        self.counters.lock().front().map(|(_, text)| text.clone())
    }

    /// Records this moment. `resident_bytes` is the process's memory, if it is known.
    pub fn record(&self, counts: &Counts, disks: &Disks, resident_bytes: Option<u64>, now: Instant) {
        let levels = Levels::read(counts, disks, now);
        let mut moment = BTreeMap::new();
        let open = counts.total(|tally| &tally.open) as f32;
        moment.insert("traffic/connections".to_owned(), [open, f32::NAN]);
        // The page has this plot only then.
        if counts.total(|tally| &tally.quic_accepted) > 0 {
            let open = counts.total(|tally| &tally.quic_open) as f32;
            moment.insert("traffic/quic".to_owned(), [open, f32::NAN]);
        }
        let memory = resident_bytes.map_or(f32::NAN, |bytes| bytes as f32);
        moment.insert("traffic/memory".to_owned(), [memory, f32::NAN]);
        let mut past = self.past.lock();
        if let Some(last) = past.last.take() {
            levels.since(&last, &mut moment);
        }
        past.last = Some(levels);
        past.push(moment);
    }

    /// The series that are kept.
    pub fn names(&self) -> Vec<String> {
        self.past.lock().series.keys().cloned().collect()
    }

    /// Appends one series as a member of a JSON object: `"loops/0":[[longest, …],[99 of 100, …]]`, the oldest moment first, `null`
    /// where nothing is known. Nothing if it is not kept any more.
    pub fn write(&self, name: &str, out: &mut String) {
        let past = self.past.lock();
        let Some(series) = past.series.get(name) else { return };
        json_string(name, out);
        out.push_str(":[");
        for line in 0..2 {
            out.push_str(if line == 0 { "[" } else { ",[" });
            for (at, pair) in series.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                // Writing into a string cannot fail.
                let _ = match pair[line] {
                    unknown if unknown.is_nan() => write!(out, "null"),
                    0.0 => write!(out, "0"),
                    number => write!(out, "{number:.2e}"),
                };
            }
            out.push(']');
        }
        out.push(']');
    }
}

impl Past {
    fn push(&mut self, mut moment: BTreeMap<String, Pair>) {
        for (name, series) in &mut self.series {
            series.push_back(moment.remove(name).unwrap_or(UNKNOWN));
        }
        for (name, pair) in moment {
            if self.series.len() < SERIES_KEPT {
                let mut series: VecDeque<_> = std::iter::repeat_n(UNKNOWN, self.moments).collect();
                series.push_back(pair);
                self.series.insert(name, series);
            }
        }
        self.moments += 1;
        if self.moments > MOMENTS_KEPT {
            self.moments = MOMENTS_KEPT;
            for series in self.series.values_mut() {
                series.pop_front();
            }
        }
        // A series without a number in all kept moments is over.
        self.series.retain(|_, series| series.iter().flatten().any(|number| !number.is_nan()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::generation;

    #[test]
    fn moments_are_kept_for_ten_minutes_and_series_are_bounded() {
        let mut past = Past::default();
        let moment = |names: std::ops::Range<usize>, n: f32| {
            names.map(|name| (format!("{name:04}"), [n, f32::NAN])).collect::<BTreeMap<_, _>>()
        };
        past.push(moment(0..1, 1.0));
        past.push(moment(1..SERIES_KEPT + 9, 2.0));
        assert_eq!(past.series.len(), SERIES_KEPT);
        let first = &past.series["0001"];
        assert!(first[0][0].is_nan() && first[1][0] == 2.0);
        for _ in 0..MOMENTS_KEPT - 1 {
            past.push(moment(2..3, 3.0));
        }
        // The series of the first moment has no number left: it is removed, and its place is free.
        assert_eq!(past.series.len(), SERIES_KEPT - 1);
        assert!(past.series.values().all(|series| series.len() == MOMENTS_KEPT));
        past.push(moment(2..3, 3.0));
        assert_eq!(past.series.keys().collect::<Vec<_>>(), ["0002"]);
    }

    #[test]
    fn counters_of_a_minute_ago_are_kept() {
        let history = History::default();
        let start = tw_rt::clock::now();
        assert_eq!(history.counters(), None);
        for (seconds, expected) in [(0, 0), (10, 0), (50, 0), (60, 0), (70, 10), (115, 50), (400, 115)] {
            history.keep_counters(seconds.to_string(), start + Duration::from_secs(seconds));
            assert_eq!(history.counters(), Some(expected.to_string().into()), "{seconds}");
        }
        assert!(history.counters.lock().len() <= 7);
        history.discard_counters();
        assert_eq!(history.counters(), None);
    }

    #[test]
    fn a_history_is_written_as_json() {
        let history = History::default();
        let counts = Counts::default();
        let generation = generation();
        let now = tw_rt::clock::now();
        history.record(&counts, &generation.disks, Some(4096), now);
        history.record(&counts, &generation.disks, None, now + KEPT_EVERY);
        let mut out = String::new();
        for name in history.names() {
            history.write(&name, &mut out);
        }
        assert!(out.contains("\"traffic/memory\":[[4.10e3,null],[null,null]]"), "{out}");
        assert!(out.contains("\"traffic/requests\":[[null,0],[null,0]]"), "{out}");
        assert!(!out.contains("traffic/quic"), "{out}");
        history.write("unknown", &mut out);
        assert!(!out.contains("unknown"));
    }
}
