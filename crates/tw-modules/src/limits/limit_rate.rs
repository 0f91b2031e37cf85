//! `limit_rate_shared`: bytes per second that all responses with the same key share. Header filter.
//!
//! nginx has `limit_rate`, the rate of one response: a client that opens ten connections gets ten times as much. Here an address or
//! an account has one rate, over all its connections, protocols and loops; its downloads take turns.

use std::sync::Arc;
use std::time::Instant;

use tw_conf::{
    Args, ConfError, Directive, HTTP, IF_IN_LOCATION, LOCATION, Node, SERVER, Setting, Span, Word, record,
    units,
};
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::Settings;
use tw_core::vars::Template;
use tw_log::Level;
use tw_module_support::zone::{
    self, RawLimit, Zone, ZoneCounters, ZoneMessages, ZoneParameter, ZoneTable, Zones, slab_cost,
};
use tw_request::body::Body;
use tw_request::key_bandwidth::{KeyBandwidth, KeySchedule};
use tw_request::plan::{HeaderFilter, Plan};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;

const ALL: u32 = HTTP | SERVER | LOCATION | IF_IN_LOCATION;

/// The longest key; a longer one has no limit.
const KEY_MAX: usize = 65_535;
/// Size of an entry besides its key, as it is counted.
const ENTRY_SIZE: usize = 64;
/// Entries in use that are passed over to find room for a key.
const USED_MAX: usize = 16;
/// Texts of messages about zones.
const WORDS: ZoneMessages =
    ZoneMessages { owner: "limit_rate", directive: "limit_rate_zone", keyed: "limit_rate" };

/// Settings as written.
#[derive(Default)]
pub(crate) struct Raw {
    zones: Vec<RawZone>,
    /// Empty: `off`.
    limits: Setting<Vec<RawLimit<()>>>,
}

/// `limit_rate_zone` as written.
struct RawZone {
    key: Word,
    zone: ZoneParameter,
    rate: Word,
    /// Bytes.
    burst: u64,
    span: Span,
}

/// Rates of one block.
pub(crate) struct LimitRate {
    zones: Arc<Zones<RateZone>>,
    limits: Arc<[Arc<RateZone>]>,
}

/// A zone as one configuration uses it.
struct RateZone {
    key: Template<Request>,
    /// Bytes per second; no limit if that is 0 or no size.
    rate: Template<Request>,
    burst: u64,
    schedules: Arc<Schedules>,
}

/// A zone with its schedules, which outlives configurations.
struct Schedules {
    zone: Zone<Arc<KeySchedule>>,
}

impl ZoneCounters for Schedules {
    type Value = Arc<KeySchedule>;

    fn zone(&self) -> &Zone<Arc<KeySchedule>> {
        &self.zone
    }
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and counters of one zone.
    parameter "limit_rate_zone", "zone=name:", "a size that must be given",
        "the key used longest ago is forgotten, unless a response uses it; if all are used, a response has the rate for itself";
    /// A key that is counted.
    constant bytes KEY_MAX, "the request is not counted, and a line in the error log";
}

impl Settings<Http> for LimitRate {
    type Raw = Raw;

    const LIMITS: &'static [tw_base::Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("limit_rate_zone", "key zone=name:size rate=rate [burst=size]", HTTP, Args::range(3, 4))
            .since("Tailwater 0.2")
            .doc(
                "Declares a zone of rates by key: the bytes per second that all responses with one key share. The rate may hold variables; \
                 0 or nothing means no limit. After a pause, burst bytes more may leave at once.",
            )
            .set(|raw, node, _| {
                raw.zones.push(RawZone::read(node)?);
                Ok(())
            }),
        record::new("limit_rate_shared", "zone=name | off", ALL, Args::exact(1))
            .default("off")
            .since("Tailwater 0.2")
            .doc(
                "Limits the rate of responses together with all others that have the same key in the zone, on whatever connection. Several \
                 zones may be named; each limits.",
            )
            .set(read_limit),
    ];

    const METRICS: &'static [Metric] = &[Metric {
        name: "limit_rate_entries",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Keys in a zone of limit_rate_zone.",
        read: |scrape, out| zone::values::<Schedules>(scrape, out, |s| s.zone.entries.value()),
    }];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let zones = match outer {
            Some(outer) => outer.zones.clone(),
            None => Arc::new(declare(raw.zones, cx)?),
        };
        let outer_limits = outer.map(|o| &o.limits);
        let limits =
            zone::resolve_limits(raw.limits, outer_limits, &zones, WORDS.owner, cx, |zone, (), _| Ok(zone))?;
        Ok(Self { zones, limits })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.limits.is_empty() {
            plan.add_header_filter(self.clone());
        }
    }
}

/// Takes the zones of a configuration into use.
fn declare(raw: Vec<RawZone>, cx: &mut Resolve<'_>) -> Result<Zones<RateZone>, ConfError> {
    let mut zones: Zones<RateZone> = Zones::new();
    for RawZone { key, zone: zone_parameter, rate, burst, span } in raw {
        let known_schedules = zones.get(&zone_parameter.name).map(|rate_zone| &*rate_zone.schedules);
        let make = |zone| Schedules { zone };
        let (key, schedules) = zone::declare(cx, &WORDS, &key, &zone_parameter, span, known_schedules, make)?;
        let rate = cx.template(&rate)?;
        zones.insert(zone_parameter.name, Arc::new(RateZone { key, rate, burst, schedules }));
    }
    Ok(zones)
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let mut zone = None;
        let mut rate = None;
        let mut burst = 0;
        for word in node.args.iter().skip(1) {
            let invalid = |what: &str| node.fail(format!("invalid {what} \"{word}\"")).at(word.span);
            if let Some(value) = word.param("zone") {
                zone = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("rate") {
                let is_fixed = !value.contains(&b'$');
                if is_fixed && units::size(value).is_none_or(|rate| rate == 0) {
                    return Err(invalid("rate").hint("bytes per second, such as \"rate=1m\""));
                }
                rate = Some(Word { bytes: value.into(), ..word.clone() });
            } else if let Some(value) = word.param("burst") {
                burst = units::size(value).ok_or_else(|| invalid("burst"))?;
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let zone = zone.ok_or_else(|| zone::missing(node))?;
        let rate = rate.ok_or_else(|| node.fail("\"limit_rate_zone\" must have \"rate\" parameter"))?;
        Ok(Self { key: node.arg(0)?.clone(), zone, rate, burst, span: node.span })
    }
}

/// Reads `limit_rate_shared`.
fn read_limit(raw: &mut Raw, node: &Node, _: &mut tw_conf::Cx<'_>) -> Result<(), ConfError> {
    let word = node.arg(0)?;
    if word.is("off") {
        return raw.limits.set_once(node, Vec::new());
    }
    let name = word.param("zone").ok_or_else(|| node.invalid_parameter(word))?;
    if raw.limits.get().is_some_and(Vec::is_empty) {
        return Err(node.error("is duplicate").hint("\"limit_rate_shared off\" stands in the same block"));
    }
    RawLimit::refuse_duplicate(&raw.limits, name, node)?;
    raw.limits.push(node, RawLimit { zone: name.into(), values: (), span: node.span });
    Ok(())
}

impl HeaderFilter for LimitRate {
    fn filter(&self, r: &mut Request, body: Body) -> Body {
        // The client gets the response to its own request, not to a subrequest.
        if !r.is_subrequest() {
            let rates: Vec<_> = self.limits.iter().filter_map(|zone| zone.rate(r)).collect();
            r.costs.key_bandwidths = rates;
        }
        body
    }
}

impl RateZone {
    /// The rate of `r`; `None` if it has none.
    fn rate(&self, r: &Request) -> Option<KeyBandwidth> {
        let mut key = Vec::new();
        if !zone::eval_key(r, &self.key, &self.schedules.zone, KEY_MAX, &mut key) {
            return None;
        }
        let rate = units::size(&self.rate.value(r)).filter(|rate| *rate > 0)?;
        let schedule = self.schedules.of(&key, tw_rt::clock::now()).unwrap_or_else(|Full| {
            let name = &self.schedules.zone.name;
            r.log(Level::Alert, format_args!("could not allocate node in limit_rate zone \"{name}\""));
            Arc::default()
        });
        Some(KeyBandwidth::new(schedule, rate, self.burst))
    }
}

/// All keys of a zone are in use.
#[derive(Debug)]
struct Full;

impl Schedules {
    /// The schedule of `key`. Locks a part of the zone.
    fn of(&self, key: &[u8], now: Instant) -> Result<Arc<KeySchedule>, Full> {
        let mut table = self.zone.lock(self.zone.shard_of(key));
        if let Some(id) = table.find(key) {
            table.touch(id);
            return Ok(table.get(id).clone());
        }
        let cost = slab_cost(ENTRY_SIZE + key.len());
        let schedule: Arc<KeySchedule> = Arc::default();
        // Two idle keys are removed for each new one, so that a zone that was full once does not stay full.
        self.forget(&mut table, now, 2);
        for _ in 0..=USED_MAX {
            if table.insert(key, cost, schedule.clone()).is_some() {
                self.zone.entries.add(1);
                return Ok(schedule);
            }
            let Some(oldest) = table.oldest() else { break };
            if is_used(table.get(oldest)) {
                table.touch(oldest);
            } else {
                table.remove(oldest);
                self.zone.entries.sub(1);
            }
        }
        Err(Full)
    }

    /// Removes up to `count` of the oldest keys whose time is over.
    fn forget(&self, table: &mut ZoneTable<Arc<KeySchedule>>, now: Instant, count: usize) {
        for _ in 0..count {
            let Some(oldest) = table.oldest() else { return };
            let schedule = table.get(oldest);
            if is_used(schedule) {
                table.touch(oldest);
                continue;
            }
            if !schedule.is_idle(now) {
                return;
            }
            table.remove(oldest);
            self.zone.entries.sub(1);
        }
    }
}

/// Returns true if a response uses a schedule of the table.
fn is_used(schedule: &Arc<KeySchedule>) -> bool {
    Arc::strong_count(schedule) > 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_use_stay() {
        let schedules = Schedules { zone: Zone::new(b"a", 32 << 10, "$key") };
        let now = Instant::now();
        let used = schedules.of(b"used", now).unwrap();
        // Far more than have room.
        for number in 0..10_000_u32 {
            schedules.of(&number.to_be_bytes(), now).unwrap();
        }
        assert!(Arc::ptr_eq(&used, &schedules.of(b"used", now).unwrap()));
        assert!(schedules.zone.entries.value() < 10);
        // A key larger than the whole zone has no room.
        schedules.of(&[b'x'; 40_000], now).unwrap_err();
    }

    #[test]
    fn full_zone_has_no_room_while_all_keys_are_used() {
        let schedules = Schedules { zone: Zone::new(b"a", 32 << 10, "$key") };
        let now = Instant::now();
        let mut used = Vec::new();
        for number in 0..1000_u32 {
            match schedules.of(&number.to_be_bytes(), now) {
                Ok(schedule) => used.push(schedule),
                Err(Full) => break,
            }
        }
        assert!((100..1000).contains(&used.len()), "{}", used.len());
        used.clear();
        schedules.of(b"another", now).unwrap();
    }
}
