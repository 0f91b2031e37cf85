//! `limit_conn`: concurrent requests with the same key (nginx: ngx_http_limit_conn_module,
//! ngx_stream_limit_conn_module). Preaccess phase, in every protocol.
//!
//! Counts are held with the session and released at its end, however it ends.

use std::rc::Rc;
use std::sync::Arc;

use tw_base::Counter;
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, LOCATION, MAIL, MAIL_SERVER, Node, SERVER, STREAM,
    STREAM_SERVER, Setting, Span, Word, record,
};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{Template, VarDef};
use tw_log::Level;
use tw_module_support::refusal::{self, HasRefusal, LimitRefusal};
use tw_module_support::zone::{
    self, RawLimit, Zone, ZoneCounters, ZoneMessages, ZoneParameter, Zones, slab_cost,
};

const OF_HTTP: Contexts = HTTP | SERVER | LOCATION;
const ALL: Contexts = OF_HTTP | STREAM | STREAM_SERVER | MAIL | MAIL_SERVER;

/// The longest key; a longer one is not counted.
const KEY_MAX: usize = 255;
/// The highest limit.
const LIMIT_MAX: u64 = 65_535;
/// Size of an entry in nginx besides its key.
const ENTRY_SIZE: usize = 36;
/// Texts of messages about its zones.
const WORDS: ZoneMessages =
    ZoneMessages { owner: "limit_conn", directive: "limit_conn_zone", keyed: "limit_conn_zone" };
/// Seconds until a refused client may try again; the end of the requests that are counted is not known.
const RETRY_AFTER: u32 = 1;
/// Variable with the decision about a request.
const STATUS: &str = "limit_conn_status";

/// Limits as written.
#[derive(Default)]
pub(crate) struct Raw {
    zones: Vec<RawZone>,
    limits: Setting<Vec<RawLimit<u32>>>,
    refusal: refusal::Raw,
}

/// `limit_conn_zone` as written.
struct RawZone {
    key: Word,
    zone: ZoneParameter,
    span: Span,
}

/// Limits of one block.
pub(crate) struct LimitConn<S> {
    zones: Arc<Zones<ConnZone<S>>>,
    limits: Arc<[ConnLimit<S>]>,
    refusal: LimitRefusal,
    slot: u16,
}

/// A zone as one configuration uses it.
pub(crate) struct ConnZone<S> {
    key: Template<S>,
    numbers: Arc<ConnCounters>,
}

/// A zone with its counters, which outlives configurations.
struct ConnCounters {
    zone: Zone<u32>,
    rejected: Counter,
}

impl HasRefusal for Raw {
    fn refusal(&mut self) -> &mut refusal::Raw {
        &mut self.refusal
    }
}

impl ZoneCounters for ConnCounters {
    type Value = u32;

    fn zone(&self) -> &Zone<u32> {
        &self.zone
    }
}

/// One `limit_conn`.
pub(crate) struct ConnLimit<S> {
    zone: Arc<ConnZone<S>>,
    most: u32,
}

/// Counts of one client, held until this is dropped.
#[derive(Default)]
pub(crate) struct HeldCounts(Vec<ZoneCount>);

/// Count of one zone.
struct ZoneCount {
    numbers: Arc<ConnCounters>,
    shard: usize,
    key: Box<[u8]>,
}

/// Decision of the limits.
pub(crate) enum ConnDecision {
    /// No key was counted.
    NotCounted,
    /// Served, while this is held.
    Passed(HeldCounts),
    /// Too many.
    Rejected,
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and counters of one zone.
    parameter "limit_conn_zone", "zone=name:", "a size that must be given",
        "the request is rejected";
    /// A key that is counted.
    constant bytes KEY_MAX, "the request is not counted, and a line in the error log";
}

impl<P: Protocol> Settings<P> for LimitConn<P::Session>
where
    P::Plan: AccessPlan<P::Session>,
{
    type Raw = Raw;

    const LIMITS: &'static [tw_base::Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("limit_conn_zone", "key zone=name:size", HTTP | STREAM | MAIL, Args::range(2, 3))
            .doc("Declares where requests that are served are counted by key.")
            .set(|raw, node, _| {
                raw.zones.push(RawZone::read(node)?);
                Ok(())
            }),
        record::new("limit_conn", "zone number", ALL, Args::exact(2))
            .doc("The most requests with the same key that are served at a time.")
            .set(|raw, node, _| {
                let limit = read_limit(node, &raw.limits)?;
                raw.limits.push(node, limit);
                Ok(())
            }),
        refusal::log_level("limit_conn_log_level", ALL, "Level at which a refusal is logged."),
        refusal::status("limit_conn_status", OF_HTTP),
        refusal::dry_run("limit_conn_dry_run", ALL, "1.17.6"),
        refusal::retry_after("limit_conn_retry_after", OF_HTTP),
    ];

    const VARIABLES: &'static [VarDef<P::Session>] =
        &[VarDef::stored(STATUS, "What limit_conn decided: PASSED, REJECTED or REJECTED_DRY_RUN.")];

    const METRICS: &'static [Metric] = &[
        Metric {
            name: "limit_conn_entries",
            kind: MetricKind::Gauge,
            labels: &["zone"],
            doc: "Keys in a zone of limit_conn.",
            read: |scrape, out| zone::values::<ConnCounters>(scrape, out, |n| n.zone.entries.value()),
        },
        Metric {
            name: "limit_conn_rejected_total",
            kind: MetricKind::Counter,
            labels: &["zone"],
            doc: "Requests that limit_conn refused; with dry run: would have refused.",
            read: |scrape, out| zone::values::<ConnCounters>(scrape, out, |n| n.rejected.value()),
        },
    ];

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, P>) -> Result<Self, ConfError> {
        let zones = match outer {
            Some(outer) => outer.zones.clone(),
            None => Arc::new(declare(raw.zones, cx)?),
        };
        let outer_limits = outer.map(|o| &o.limits);
        let limits =
            zone::resolve_limits(raw.limits, outer_limits, &zones, "limit_conn", cx, |zone, most, _| {
                Ok(ConnLimit { zone, most })
            })?;
        Ok(Self {
            zones,
            limits,
            refusal: LimitRefusal::resolve(raw.refusal, outer.map(|o| &o.refusal)),
            slot: cx.slot(STATUS),
        })
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut P::Plan) {
        if !self.limits.is_empty() {
            plan.add_access_check(AccessStage::Limits, self.clone());
        }
    }
}

/// Takes the zones of a configuration into use.
fn declare<P: Protocol>(
    raw: Vec<RawZone>,
    cx: &mut Resolve<'_, P>,
) -> Result<Zones<ConnZone<P::Session>>, ConfError> {
    let mut zones: Zones<ConnZone<_>> = Zones::new();
    for RawZone { key, zone: zone_parameter, span } in raw {
        let conn_counters = zones.get(&zone_parameter.name).map(|conn_zone| &*conn_zone.numbers);
        let make = |zone| ConnCounters { zone, rejected: Counter::default() };
        let (key, numbers) = zone::declare(cx, &WORDS, &key, &zone_parameter, span, conn_counters, make)?;
        zones.insert(zone_parameter.name, Arc::new(ConnZone { key, numbers }));
    }
    Ok(zones)
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        if let Some(word) = node.args.get(2) {
            let error = match word.param("fleet") {
                // A number of connections cannot be split as a rate can: most nodes would have a share of less than one.
                Some(_) => {
                    node.fail("\"fleet\" is not supported: nodes share rates, not numbers of connections")
                }
                None => node.invalid_parameter(word),
            };
            return Err(error.at(word.span).hint("limit_req_zone … fleet=name shares a rate of requests"));
        }
        let word = node.arg(1)?;
        let value = word.param("zone").ok_or_else(|| node.invalid_parameter(word))?;
        let zone = ZoneParameter::read(node, word, value)?.ok_or_else(|| zone::missing(node))?;
        Ok(Self { key: node.arg(0)?.clone(), zone, span: node.span })
    }
}

/// Reads `limit_conn`.
fn read_limit(node: &Node, others: &Setting<Vec<RawLimit<u32>>>) -> Result<RawLimit<u32>, ConfError> {
    let [zone, most] = node.words()?;
    RawLimit::refuse_duplicate(others, &zone.bytes, node)?;
    match most.number() {
        None | Some(0) => Err(node.fail(format!("invalid number of connections \"{most}\"")).at(most.span)),
        Some(number @ 1..=LIMIT_MAX) => {
            Ok(RawLimit { zone: zone.bytes.clone(), values: number as u32, span: node.span })
        }
        Some(_) => Err(node.fail("connection limit must be less 65536").at(most.span)),
    }
}

impl<S: Session> AccessCheck<S> for LimitConn<S> {
    fn check(&self, s: &mut S) -> AccessDecision {
        let LimitRefusal { level, dry_run, .. } = self.refusal;
        let dry_run = if dry_run { ", dry run," } else { "" };
        let decide = |s: &S, key: &mut Vec<u8>| hold(s, &self.limits, key, level, dry_run);
        let Some(decision) = refusal::decide_once(s, self.slot, decide) else { return AccessDecision::Pass };
        let (status, decision) = match decision {
            ConnDecision::NotCounted => return AccessDecision::Pass,
            ConnDecision::Passed(held_counts) => {
                s.hold(Rc::new(held_counts));
                ("PASSED", AccessDecision::Pass)
            }
            ConnDecision::Rejected => self.refusal.decision(RETRY_AFTER),
        };
        s.set_slot(self.slot, status);
        decision
    }
}

/// Counts a client in all zones, or in none if there are too many in one. `key` is scratch; `dry_run` a part of the log
/// line of a refusal, which has this level.
pub(crate) fn hold<S: Session>(
    s: &S,
    limits: &[ConnLimit<S>],
    key: &mut Vec<u8>,
    level: Level,
    dry_run: &str,
) -> ConnDecision {
    let mut held_counts = HeldCounts(Vec::with_capacity(limits.len()));
    for ConnLimit { zone, most } in limits {
        let numbers = &zone.numbers;
        if !zone::eval_key(s, &zone.key, &numbers.zone, KEY_MAX, key) {
            continue;
        }
        match ZoneCount::take(numbers, key, *most) {
            Ok(hold) => held_counts.0.push(hold),
            Err(why) => {
                numbers.rejected.add(1);
                let name = &numbers.zone.name;
                match why {
                    CountError::TooMany => {
                        s.log(level, format_args!("limiting connections{dry_run} by zone \"{name}\""));
                    }
                    CountError::Full => s.log(
                        Level::Crit,
                        format_args!("ngx_slab_alloc() failed: no memory in limit_conn_zone \"{name}\""),
                    ),
                }
                return ConnDecision::Rejected;
            }
        }
    }
    if held_counts.0.is_empty() { ConnDecision::NotCounted } else { ConnDecision::Passed(held_counts) }
}

/// Why one more is not counted.
#[derive(Debug, PartialEq, Eq)]
enum CountError {
    TooMany,
    /// The zone has no room for the key.
    Full,
}

impl ZoneCount {
    fn take(numbers: &Arc<ConnCounters>, key: &[u8], most: u32) -> Result<Self, CountError> {
        let zone = &numbers.zone;
        let shard = zone.shard_of(key);
        let mut table = zone.lock(shard);
        match table.find(key) {
            Some(id) => {
                let number = table.get(id);
                if *number >= most {
                    return Err(CountError::TooMany);
                }
                *number += 1;
            }
            None => {
                let cost = slab_cost(ENTRY_SIZE + key.len());
                table.insert(key, cost, 1).ok_or(CountError::Full)?;
                zone.entries.add(1);
            }
        }
        drop(table);
        Ok(Self { numbers: numbers.clone(), shard, key: key.into() })
    }
}

impl Drop for ZoneCount {
    fn drop(&mut self) {
        let zone = &self.numbers.zone;
        let mut table = zone.lock(self.shard);
        let Some(id) = table.find(&self.key) else { return };
        let number = table.get(id);
        *number -= 1;
        if *number == 0 {
            table.remove(id);
            zone.entries.sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Arc<ConnCounters> {
        Arc::new(ConnCounters { zone: Zone::new(b"a", 32 << 10, "$key"), rejected: Counter::default() })
    }

    #[test]
    fn concurrent_requests_are_limited() {
        let numbers = numbers();
        let take = |key: &[u8], most| ZoneCount::take(&numbers, key, most);
        let first = take(b"k", 2).ok();
        let second = take(b"k", 2).ok();
        assert!(first.is_some() && second.is_some());
        assert_eq!(take(b"k", 2).err(), Some(CountError::TooMany));
        assert!(take(b"k", 3).is_ok(), "was given back at once");
        assert!(take(b"other", 1).is_ok());
        assert_eq!(numbers.zone.entries.value(), 1);
        drop(first);
        assert!(take(b"k", 2).is_ok());
        drop(second);
        assert_eq!(numbers.zone.entries.value(), 0);
        assert_eq!(numbers.zone.lock(0).oldest(), None);
    }

    #[test]
    fn full_zone_keeps_its_entries() {
        let numbers = numbers();
        let zone_counts: Vec<_> =
            (0..600_u32).map(|n| ZoneCount::take(&numbers, &n.to_le_bytes(), 1)).collect();
        assert_eq!(zone_counts.iter().filter(|zone_count| zone_count.is_ok()).count(), 512, "64 bytes each");
        assert_eq!(
            zone_counts.last().and_then(|zone_count| zone_count.as_ref().err()),
            Some(&CountError::Full)
        );
        drop(zone_counts);
        assert!(ZoneCount::take(&numbers, b"k", 1).is_ok());
    }
}
