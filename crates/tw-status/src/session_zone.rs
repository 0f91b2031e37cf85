//! `status_zone` of `stream` and `mail`: connections, sessions and bytes by server (nginx: ngx_stream_core_module, of its commercial
//! edition). Its counters grow while sessions run, have a set for each loop, and outlive configurations.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use tw_base::FatalMutex;
use tw_base::hist::{Histogram, Snapshot};
use tw_conf::{Args, ConfError, Directive, MAIL_SERVER, STREAM_SERVER, Setting, Word, record};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind, Samples, Scrape};
use tw_core::module::{Protocol, Settings};
use tw_core::session_meter::{ServerCounters, SessionEnd};
use tw_log::Text;
use tw_module_support::loop_sets::LoopSets;

use crate::status_zone::ZONES_MAX;

/// A protocol whose servers have zones of sessions.
pub trait ZoneProtocol: Protocol {
    /// Version that has the directive in this protocol.
    const SINCE: &'static str;
    /// Metrics of its zones: those of [`metrics`], and its own.
    const ZONE_METRICS: &'static [Metric];
    /// Counters of one loop that only zones of this protocol have.
    type Details: Default + Send + Sync;

    /// Has the sessions of a server counted in its zone.
    fn count_sessions(plan: &mut Self::Plan, zone: Arc<SessionZone<Self>>);
}

/// Names of the metrics of zones of one protocol.
pub(crate) struct ZoneMetricNames {
    pub(crate) connections: &'static str,
    pub(crate) active: &'static str,
    pub(crate) sessions: &'static str,
    pub(crate) discarded: &'static str,
    pub(crate) received: &'static str,
    pub(crate) sent: &'static str,
    pub(crate) seconds: &'static str,
}

/// Classes of statuses of sessions, as nginx has them.
pub(crate) const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// `status_zone` as written.
#[derive(Default)]
pub struct Raw {
    zone: Setting<Word>,
}

/// Zone of one server.
pub struct SessionStatusZone<P: ZoneProtocol> {
    zone: Option<Arc<SessionZone<P>>>,
    /// Names of all zones of the configuration.
    names: Arc<FatalMutex<BTreeSet<Box<[u8]>>>>,
}

/// A zone.
pub struct SessionZone<P: ZoneProtocol> {
    pub(crate) name: Box<str>,
    sets: LoopSets<Set<P::Details>>,
}

/// Counters of one loop.
#[derive(Default)]
struct Set<D> {
    accepted: AtomicU64,
    discarded: AtomicU64,
    /// Sessions that are over, by [`CLASSES`].
    sessions: [AtomicU64; CLASSES.len()],
    received: AtomicU64,
    sent: AtomicU64,
    times: Histogram,
    details: D,
}

/// Numbers of a zone at one moment.
pub(crate) struct SessionZoneSnapshot {
    /// Accepted connections.
    pub(crate) accepted: u64,
    /// Sessions that go on.
    pub(crate) active: u64,
    /// Sessions that are over, by [`CLASSES`].
    pub(crate) sessions: [u64; CLASSES.len()],
    /// Connections that ended before their session was served.
    pub(crate) discarded: u64,
    /// Bytes of clients.
    pub(crate) received: u64,
    /// Bytes for clients.
    pub(crate) sent: u64,
}

impl<P: ZoneProtocol> Settings<P> for SessionStatusZone<P> {
    type Raw = Raw;

    // DIFF(nginx): free, and read by `metrics` and `status_page`.
    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("status_zone", "name", STREAM_SERVER | MAIL_SERVER, Args::exact(1))
            .since(P::SINCE)
            .doc(
                "Collects statistics of the sessions of a server under this name: connections, statuses, bytes and times. Several \
                 servers may share a zone.",
            )
            .set(|raw, node, _| {
                let word = node.arg(0)?;
                if word.bytes.is_empty() {
                    return Err(node.invalid_parameter(word));
                }
                raw.zone.set_once(node, word.clone())
            })];

    const METRICS: &'static [Metric] = P::ZONE_METRICS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let names = outer.map_or_else(Arc::default, |outer| outer.names.clone());
        let zone = raw.zone.take().map(|word| zone(&word, &mut names.lock(), cx)).transpose()?;
        Ok(Self { zone, names })
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if let Some(zone) = &self.zone {
            P::count_sessions(plan, zone.clone());
        }
    }
}

/// Metrics of the zones of a protocol that those of every protocol have.
pub(crate) const fn metrics<P: ZoneProtocol>(names: &ZoneMetricNames) -> [Metric; 7] {
    [
        Metric {
            name: names.connections,
            kind: MetricKind::Counter,
            labels: &["zone"],
            doc: "Connections accepted in a zone of status_zone in the block of this protocol.",
            read: |scrape, out| values::<P>(scrape, out, |zone| zone.accepted),
        },
        Metric {
            name: names.active,
            kind: MetricKind::Gauge,
            labels: &["zone"],
            doc: "Sessions of a zone that go on.",
            read: |scrape, out| values::<P>(scrape, out, |zone| zone.active),
        },
        Metric {
            name: names.sessions,
            kind: MetricKind::Counter,
            labels: &["zone", "class"],
            doc: "Sessions of a zone that are over, by class of their status: 2xx, 4xx and 5xx.",
            read: |scrape, out| {
                for zone in zones::<P>(scrape) {
                    let sessions = zone.snapshot().sessions;
                    for (class, count) in CLASSES.into_iter().zip(sessions) {
                        out.value(&[&zone.name, class], count);
                    }
                }
            },
        },
        Metric {
            name: names.discarded,
            kind: MetricKind::Counter,
            labels: &["zone"],
            doc: "Connections of a zone that ended before their session was served: their client left, or sent nothing in time.",
            read: |scrape, out| values::<P>(scrape, out, |zone| zone.discarded),
        },
        Metric {
            name: names.received,
            kind: MetricKind::Counter,
            labels: &["zone"],
            doc: "Bytes of the clients of a zone. Counted while sessions run.",
            read: |scrape, out| values::<P>(scrape, out, |zone| zone.received),
        },
        Metric {
            name: names.sent,
            kind: MetricKind::Counter,
            labels: &["zone"],
            doc: "Bytes that the clients of a zone have taken. Counted while sessions run.",
            read: |scrape, out| values::<P>(scrape, out, |zone| zone.sent),
        },
        Metric {
            name: names.seconds,
            kind: MetricKind::Histogram,
            labels: &["zone"],
            doc: "Time from accept to the end of a session in a zone.",
            read: |scrape, out| {
                zones::<P>(scrape).for_each(|zone| out.histogram(&[&zone.name], || zone.times()));
            },
        },
    ]
}

/// Takes a zone into use.
fn zone<P: ZoneProtocol>(
    word: &Word,
    names: &mut BTreeSet<Box<[u8]>>,
    cx: &mut Resolve<'_, P>,
) -> Result<Arc<SessionZone<P>>, ConfError> {
    let name = &word.bytes;
    names.insert(name.clone());
    if names.len() > ZONES_MAX {
        let name = Text(name);
        return Err(ConfError::new(format!(
            "too many zones of status_zone: \"{name}\" is one more than {ZONES_MAX}"
        ))
        .at(word.span)
        .hint("servers may share a zone"));
    }
    let make = || SessionZone { name: String::from_utf8_lossy(name).into(), sets: LoopSets::default() };
    Ok(cx.keep(name, |_| true, make))
}

impl<P: ZoneProtocol> ServerCounters for SessionZone<P> {
    fn begin(&self, index: usize) {
        self.sets.of_loop(index).accepted.fetch_add(1, Relaxed);
    }

    fn received(&self, index: usize, bytes: u64) {
        self.sets.of_loop(index).received.fetch_add(bytes, Relaxed);
    }

    fn sent(&self, index: usize, bytes: u64) {
        self.sets.of_loop(index).sent.fetch_add(bytes, Relaxed);
    }

    fn end(&self, index: usize, end: SessionEnd) {
        let set = self.sets.of_loop(index);
        let counter = match end {
            SessionEnd::Discarded => &set.discarded,
            SessionEnd::Finished { status, time } => {
                set.times.record_ns(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
                let [successful, client_error, server_error] = &set.sessions;
                match status / 100 {
                    0..=3 => successful,
                    4 => client_error,
                    _ => server_error,
                }
            }
        };
        counter.fetch_add(1, Release);
    }
}

impl<P: ZoneProtocol> SessionZone<P> {
    /// The counters of a loop that only this protocol has.
    pub(crate) fn details_of_loop(&self, index: usize) -> &P::Details {
        &self.sets.of_loop(index).details
    }

    /// Sum of one of those counters over all loops.
    pub(crate) fn total_of(&self, which: impl Fn(&P::Details) -> &AtomicU64) -> u64 {
        self.sets.total(|set| which(&set.details))
    }

    /// The numbers now. Each is read for itself; a session that ends meanwhile is still active.
    pub(crate) fn snapshot(&self) -> SessionZoneSnapshot {
        let ended = |which: &dyn Fn(&Set<P::Details>) -> &AtomicU64| {
            self.sets.iter().fold(0, |sum: u64, set| sum.wrapping_add(which(set).load(Acquire)))
        };
        let sessions = [0, 1, 2].map(|class| ended(&|set| &set.sessions[class]));
        let discarded = ended(&|set| &set.discarded);
        // Read last: every session that is over was accepted before.
        let accepted = self.sets.total(|set| &set.accepted);
        let active = accepted.saturating_sub(sessions.iter().sum::<u64>() + discarded);
        let received = self.sets.total(|set| &set.received);
        let sent = self.sets.total(|set| &set.sent);
        SessionZoneSnapshot { accepted, active, sessions, discarded, received, sent }
    }

    fn times(&self) -> Snapshot {
        let mut times = Snapshot::empty();
        self.sets.iter().for_each(|set| times.merge(&set.times.snapshot()));
        times
    }
}

/// All zones of the configuration, in the order of their names.
pub(crate) fn zones<'a, P: ZoneProtocol>(scrape: &Scrape<'a>) -> impl Iterator<Item = &'a SessionZone<P>> {
    scrape.shared_objects::<SessionZone<P>>()
}

/// A number of every zone.
fn values<P: ZoneProtocol>(scrape: &Scrape<'_>, out: &mut Samples<'_>, of: fn(&SessionZoneSnapshot) -> u64) {
    for zone in zones::<P>(scrape) {
        out.value(&[&zone.name], of(&zone.snapshot()));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tw_stream::Stream;

    use super::*;

    #[test]
    fn sessions_are_active_until_they_end() {
        let zone = SessionZone::<Stream> { name: "a".into(), sets: LoopSets::default() };
        let time = Duration::from_millis(5);
        let ends = [
            SessionEnd::Discarded,
            SessionEnd::Finished { status: 200, time },
            SessionEnd::Finished { status: 403, time },
            SessionEnd::Finished { status: 502, time },
        ];
        for index in 0..6 {
            zone.begin(index);
        }
        // A session may end where another loop has taken the place of its own.
        for (index, end) in ends.into_iter().enumerate() {
            zone.end(index + 1, end);
        }
        zone.received(0, 3);
        zone.received(1, 4);
        zone.sent(1, 5);
        let now = zone.snapshot();
        assert_eq!((now.accepted, now.active, now.sessions, now.discarded), (6, 2, [1, 1, 1], 1));
        assert_eq!((now.received, now.sent, zone.times().count()), (7, 5, 3));
    }
}
