//! `status_zone`: requests and responses by server or location (nginx: ngx_http_api_module, of its commercial edition).
//! Log handler.
//!
//! A finished request is counted in the zone of its server and in that of its last location. A zone has a set of
//! counters for each loop, which are added up on reading, and outlives configurations.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU16, AtomicU64,
    Ordering::{Relaxed, Release},
};

use tw_base::hist::{Histogram, Snapshot};
use tw_base::{FatalMutex, Limit};
use tw_conf::{Args, ConfError, Directive, IF_IN_LOCATION, LOCATION, SERVER, Setting, record};
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_core::module::Settings;
use tw_module_support::loop_sets::LoopSets;
use tw_request::plan::{LogHandler, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_rt::clock;

/// `status_zone` as written.
#[derive(Default)]
pub struct Raw {
    zone: Setting<RawStatusZone>,
}

/// The argument of `status_zone`.
enum RawStatusZone {
    /// `off`
    Off,
    /// The name of a zone.
    Named(Box<[u8]>),
}

/// Zones of one block.
pub struct StatusZone {
    block: Block,
    server: Option<Arc<Zone>>,
    location: Option<Arc<Zone>>,
    /// All zones of the configuration.
    names: Arc<FatalMutex<BTreeSet<Box<[u8]>>>>,
}

/// Block that settings belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Http,
    Server,
    /// Or a part of one.
    Location,
}

/// Kind of a zone: zones of different kinds may have one name.
#[derive(Clone, Copy)]
enum ZoneKind {
    Server,
    Location,
}

/// A zone. Each loop has its own set of counters.
struct Zone {
    of: ZoneKind,
    name: Box<str>,
    sets: LoopSets<Set>,
}

/// Counters of one loop.
#[derive(Default)]
struct Set {
    received: AtomicU64,
    sent: AtomicU64,
    statuses: [Status; STATUSES_MAX],
    /// Requests with other statuses.
    others: AtomicU64,
    times: Histogram,
}

/// Number of requests that ended with a status; 0 is a free place. Places are taken in order and kept.
#[derive(Default)]
struct Status {
    code: AtomicU16,
    count: AtomicU64,
}

/// A request that is over.
struct FinishedRequest {
    status: u16,
    received: u64,
    sent: u64,
    time_ns: u64,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Zones of `status_zone` in one configuration.
    ///
    /// Zones of one configuration. Each takes some 3 KiB for every loop that served one of its requests.
    pub(crate) const ZONES_MAX: usize = 256, count, "the configuration is refused";
    /// Different statuses that a zone of `status_zone` tells apart.
    const STATUSES_MAX: usize = 32, count, "further ones are counted together";
}

impl Settings<Http> for StatusZone {
    type Raw = Raw;

    const LIMITS: &'static [Limit] = LIMITS;

    // DIFF(nginx): free, and read by `metrics` and `status_page`.
    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("status_zone", "name | off", SERVER | LOCATION | IF_IN_LOCATION, Args::exact(1))
            .since("1.13.12")
            .doc(
                "Collects statistics of a server, or of requests that end in a location, under this name: statuses, bytes and \
                 times. Several servers, or several locations, may share a zone. `off` disables it for a location.",
            )
            .set(|raw, node, _| {
                let word = node.arg(0)?;
                if word.bytes.is_empty() {
                    return Err(node.invalid_parameter(word));
                }
                let status_zone = if word.is("off") { RawStatusZone::Off } else { RawStatusZone::Named(word.bytes.clone()) };
                raw.zone.set_once(node, status_zone)
            })];

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "zone_requests_total",
            kind: MetricKind::Counter,
            labels: &["of", "zone"],
            doc: "Requests in a zone of status_zone, of a server or a location.",
            read: |scrape, out| for_each_zone(scrape, |zone, labels| out.value(labels, zone.times().count())),
        },
        Metric {
            name: "zone_responses_total",
            kind: MetricKind::Counter,
            labels: &["of", "zone", "status"],
            doc: "Requests in a zone of status_zone by their status.",
            read: |scrape, out| for_each_zone(scrape, |zone, labels| statuses(zone, labels, out)),
        },
        Metric {
            name: "zone_received_bytes_total",
            kind: MetricKind::Counter,
            labels: &["of", "zone"],
            doc: "Bytes of the requests in a zone of status_zone: heads, and bodies as they came over the wire.",
            read: |scrape, out| totals(scrape, out, |set| &set.received),
        },
        Metric {
            name: "zone_sent_bytes_total",
            kind: MetricKind::Counter,
            labels: &["of", "zone"],
            doc: "Bytes of the responses in a zone of status_zone, heads included, as they went over the wire.",
            read: |scrape, out| totals(scrape, out, |set| &set.sent),
        },
        Metric {
            name: "zone_request_seconds",
            kind: MetricKind::Histogram,
            labels: &["of", "zone"],
            doc: "Time from the first byte of a request in a zone of status_zone to the end of its response.",
            read: |scrape, out| for_each_zone(scrape, |zone, labels| out.histogram(labels, || zone.times())),
        },
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let Some(outer) = outer else {
            return Ok(Self { block: Block::Http, server: None, location: None, names: Arc::default() });
        };
        let span = raw.zone.span();
        let (block, of, inherited) = match outer.block {
            Block::Http => (Block::Server, ZoneKind::Server, None),
            Block::Server | Block::Location => (Block::Location, ZoneKind::Location, outer.location.clone()),
        };
        let zone = match raw.zone.take() {
            Some(RawStatusZone::Named(name)) => {
                let zone = zone(of, &name, &mut outer.names.lock(), cx);
                Some(zone.map_err(|error| match span {
                    Some(span) => error.at(span),
                    None => error,
                })?)
            }
            Some(RawStatusZone::Off) => None,
            None => inherited,
        };
        let (server, location) = match of {
            ZoneKind::Server => (zone, None),
            ZoneKind::Location => (outer.server.clone(), zone),
        };
        Ok(Self { block, server, location, names: outer.names.clone() })
    }

    fn are_shared(&self) -> bool {
        // A server has to know that it is one.
        self.block != Block::Http
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.server.is_some() || self.location.is_some() {
            plan.add_log(self.clone());
        }
    }
}

impl LogHandler for StatusZone {
    fn log(&self, r: &Request) {
        // A part of a response is counted with it.
        if r.is_subrequest() {
            return;
        }
        // Most requests begin and end in one turn, for which the clock of the loop stands still.
        let time = clock::precise().saturating_duration_since(r.context.started.at);
        let over = FinishedRequest {
            status: r.response.status,
            received: r.head.read_len() as u64 + r.body.wire(),
            sent: r.costs.sent.bytes,
            time_ns: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
        };
        for zone in [&self.server, &self.location].into_iter().flatten() {
            zone.sets.of_loop(r.client().event_loop.index).count(&over);
        }
    }
}

/// Takes a zone into use.
fn zone(
    of: ZoneKind,
    name: &[u8],
    names: &mut BTreeSet<Box<[u8]>>,
    cx: &mut Resolve<'_>,
) -> Result<Arc<Zone>, ConfError> {
    let key = [of.word().as_bytes(), b" ", name].concat();
    names.insert(key.clone().into());
    if names.len() > ZONES_MAX {
        let name = tw_log::Text(name);
        return Err(ConfError::new(format!(
            "too many zones of status_zone: \"{name}\" is one more than {ZONES_MAX}"
        ))
        .hint("servers and locations may share a zone"));
    }
    Ok(cx.keep(&key, |_| true, || Zone::new(of, name)))
}

impl ZoneKind {
    /// In metrics.
    const fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Location => "location",
        }
    }
}

impl Zone {
    fn new(of: ZoneKind, name: &[u8]) -> Self {
        Self { of, name: String::from_utf8_lossy(name).into(), sets: LoopSets::default() }
    }

    fn times(&self) -> Snapshot {
        let mut times = Snapshot::empty();
        self.sets.iter().for_each(|set| times.merge(&set.times.snapshot()));
        times
    }

    /// Requests by status.
    fn statuses(&self) -> BTreeMap<u16, u64> {
        let mut results = BTreeMap::new();
        for status in self.sets.iter().flat_map(|set| &set.statuses) {
            let count = status.count.load(Relaxed);
            if count > 0 {
                *results.entry(status.code.load(Relaxed)).or_default() += count;
            }
        }
        results
    }
}

impl Set {
    fn count(&self, over: &FinishedRequest) {
        self.received.fetch_add(over.received, Relaxed);
        self.sent.fetch_add(over.sent, Relaxed);
        self.place(over.status).fetch_add(1, Relaxed);
        self.times.record_ns(over.time_ns);
    }

    /// Counter of a status. The most frequent ones come early and are found first.
    fn place(&self, status: u16) -> &AtomicU64 {
        for known_status in &self.statuses {
            let code = match known_status.code.load(Relaxed) {
                0 if status != 0 => {
                    known_status.code.compare_exchange(0, status, Release, Relaxed).err().unwrap_or(status)
                }
                code => code,
            };
            if code == status && status != 0 {
                return &known_status.count;
            }
        }
        &self.others
    }
}

fn statuses(zone: &Zone, labels: &[&str; 2], out: &mut Samples<'_>) {
    let [of, name] = *labels;
    for (code, count) in zone.statuses() {
        out.value(&[of, name, &code.to_string()], count);
    }
    let others = zone.sets.total(|set| &set.others);
    if others > 0 {
        out.value(&[of, name, "other"], others);
    }
}

/// Calls `read` with every zone and its labels, servers after locations, in the order of their names.
fn for_each_zone(scrape: &Scrape<'_>, mut read: impl FnMut(&Zone, &[&str; 2])) {
    for zone in scrape.shared_objects::<Zone>() {
        read(zone, &[zone.of.word(), &zone.name]);
    }
}

/// A number of every zone.
fn totals(scrape: &Scrape<'_>, out: &mut Samples<'_>, which: impl Fn(&Set) -> &AtomicU64) {
    for_each_zone(scrape, |zone, labels| out.value(labels, zone.sets.total(&which)));
}

#[cfg(test)]
mod tests {
    use tw_module_support::loop_sets::SETS;

    use super::*;

    #[test]
    fn loops_count_for_themselves_and_are_added_up() {
        let zone = Zone::new(ZoneKind::Server, b"a");
        let over = |status| FinishedRequest { status, received: 3, sent: 5, time_ns: 1_000_000 };
        for (index, status) in [(0, 200), (1, 200), (SETS, 404), (7, 200), (7, 0)] {
            zone.sets.of_loop(index).count(&over(status));
        }
        assert_eq!(zone.sets.iter().count(), 3, "loop {SETS} counts where loop 0 does");
        assert_eq!(zone.statuses().into_iter().collect::<Vec<_>>(), [(200, 3), (404, 1)]);
        assert_eq!(zone.sets.total(|set| &set.others), 1, "0 is no status");
        assert_eq!((zone.sets.total(|set| &set.received), zone.sets.total(|set| &set.sent)), (15, 25));
        assert_eq!(zone.times().count(), 5);
    }

    #[test]
    fn statuses_beyond_the_limit_are_counted_together() {
        let set = Set::default();
        let first = 300 + STATUSES_MAX as u16;
        for status in (300..first + 2).chain([300]) {
            set.place(status).fetch_add(1, Relaxed);
        }
        assert_eq!(set.statuses[0].count.load(Relaxed), 2);
        assert_eq!(set.others.load(Relaxed), 2);
    }
}
