//! `limit_conn`: concurrent requests with the same key (nginx: ngx_http_limit_conn_module,
//! ngx_stream_limit_conn_module). Preaccess phase, in every protocol.
//!
//! Counts are held with the session and released at its end, however it ends.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::Counter;
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, LOCATION, Node, SERVER, STREAM, STREAM_SERVER, Setting, Span,
    Word, record,
};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{Template, VarDef};
use tw_log::{Level, Text};

use crate::refusal::{self, LEVELS, LimitRefusal, read_status};
use crate::zone::{self, Zone, ZoneCounters, ZoneMessages, ZoneParameter, slab_cost};

const OF_HTTP: Contexts = HTTP | SERVER | LOCATION;
const ALL: Contexts = OF_HTTP | STREAM | STREAM_SERVER;

/// The longest key; a longer one is not counted.
const KEY_MAX: usize = 255;
/// The highest limit.
const LIMIT_MAX: u64 = 65_535;
/// Size of an entry in nginx besides its key.
const ENTRY_SIZE: usize = 36;
/// Texts of messages about its zones.
const WORDS: ZoneMessages =
    ZoneMessages { owner: "limit_conn", directive: "limit_conn_zone", keyed: "limit_conn_zone" };
/// Variable with the decision about a request.
const STATUS: &str = "limit_conn_status";

/// Limits as written.
#[derive(Default)]
pub(crate) struct Raw {
    zones: Vec<RawZone>,
    limits: Setting<Vec<RawLimit>>,
    refusal: refusal::Raw,
}

/// `limit_conn_zone` as written.
struct RawZone {
    key: Word,
    zone: ZoneParameter,
    span: Span,
}

/// `limit_conn` as written.
struct RawLimit {
    zone: Box<[u8]>,
    most: u32,
    span: Span,
}

/// Limits of one block.
pub(crate) struct LimitConn<S> {
    zones: Arc<Zones<S>>,
    limits: Arc<[ConnLimit<S>]>,
    refusal: LimitRefusal,
    slot: u16,
}

/// The zones of a configuration by name.
type Zones<S> = HashMap<Box<[u8]>, Arc<ConnZone<S>>>;

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

impl<P: Protocol> Settings<P> for LimitConn<P::Session>
where
    P::Plan: AccessPlan<P::Session>,
{
    type Raw = Raw;

    const LIMITS: &'static [tw_base::Limit] = &[
        tw_base::Limit::parameter(
            "limit_conn_zone",
            "zone=name:",
            "a size that must be given",
            "Bytes of keys and counters of one zone",
            "the request is rejected",
        ),
        tw_base::Limit::bytes(
            "KEY_MAX",
            KEY_MAX as u64,
            "A key that is counted",
            "the request is not counted, and a line in the error log",
        ),
    ];

    const DIRECTIVES: &'static [Directive<Raw>] = &[
        record::new("limit_conn_zone", "key zone=name:size", HTTP | STREAM, Args::exact(2))
            .doc("Declares where requests that are served are counted by key.")
            .set(|raw, node, _| {
                raw.zones.push(RawZone::read(node)?);
                Ok(())
            }),
        record::new("limit_conn", "zone number", ALL, Args::exact(2))
            .doc("The most requests with the same key that are served at a time.")
            .set(|raw, node, _| {
                let limit = RawLimit::read(node, raw.limits.get())?;
                raw.limits.push(node, limit);
                Ok(())
            }),
        record::new("limit_conn_log_level", "info | notice | warn | error", ALL, Args::exact(1))
            .default("error")
            .since("0.8.18")
            .doc("Level at which a refusal is logged.")
            .set(|raw, node, _| raw.refusal.level.set_one_of(node, LEVELS)),
        record::new("limit_conn_status", "code", OF_HTTP, Args::exact(1))
            .default("503")
            .since("1.3.15")
            .doc("Status of a refusal, 400 to 599.")
            .set(|raw, node, _| raw.refusal.status.set_with(node, read_status)),
        record::flag("limit_conn_dry_run", ALL)
            .default("off")
            .since("1.17.6")
            .doc("Counts and logs, but limits nothing.")
            .set(|raw, node, _| raw.refusal.dry_run.set_flag(node)),
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
        let limits = match (raw.limits.take(), outer) {
            (Some(limits), _) => {
                let used = |limit: RawLimit| match zones.get(&limit.zone) {
                    Some(zone) => Ok(ConnLimit { zone: zone.clone(), most: limit.most }),
                    None => {
                        zone::claim(cx, &limit.zone, "limit_conn")?;
                        Err(zone::undeclared(&limit.zone, limit.span))
                    }
                };
                limits.into_iter().map(used).collect::<Result<_, _>>()?
            }
            (None, Some(outer)) => outer.limits.clone(),
            (None, None) => [].into(),
        };
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
fn declare<P: Protocol>(raw: Vec<RawZone>, cx: &mut Resolve<'_, P>) -> Result<Zones<P::Session>, ConfError> {
    let mut zones = Zones::new();
    for RawZone { key, zone: written, span } in raw {
        let known = zones.get(&written.name).map(|known| &*known.numbers);
        let make = |zone| ConnCounters { zone, rejected: Counter::default() };
        let (key, numbers) = zone::declare(cx, &WORDS, (&key, &written, span), known, make)?;
        zones.insert(written.name, Arc::new(ConnZone { key, numbers }));
    }
    Ok(zones)
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let word = node.arg(1)?;
        let value = word.param("zone").ok_or_else(|| node.invalid_parameter(word))?;
        let zone = ZoneParameter::read(node, word, value)?.ok_or_else(|| zone::missing(node))?;
        Ok(Self { key: node.arg(0)?.clone(), zone, span: node.span })
    }
}

impl RawLimit {
    fn read(node: &Node, others: Option<&Vec<Self>>) -> Result<Self, ConfError> {
        let [zone, most] = node.words()?;
        if others.is_some_and(|limits| limits.iter().any(|known| known.zone == zone.bytes)) {
            return Err(node.error("is duplicate"));
        }
        match most.number() {
            None | Some(0) => {
                Err(node.fail(format!("invalid number of connections \"{most}\"")).at(most.span))
            }
            Some(number @ 1..=LIMIT_MAX) => {
                Ok(Self { zone: zone.bytes.clone(), most: number as u32, span: node.span })
            }
            Some(_) => Err(node.fail("connection limit must be less 65536").at(most.span)),
        }
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
            ConnDecision::Passed(held) => {
                s.hold(Rc::new(held));
                ("PASSED", AccessDecision::Pass)
            }
            ConnDecision::Rejected => self.refusal.decision(),
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
    let mut held = HeldCounts(Vec::with_capacity(limits.len()));
    for ConnLimit { zone, most } in limits {
        let numbers = &zone.numbers;
        key.clear();
        zone.key.eval(s, key);
        if key.is_empty() {
            continue;
        }
        if key.len() > KEY_MAX {
            let (name, key) = (&numbers.zone.key, Text(key));
            let message = format_args!("the value of the \"{name}\" key is more than 255 bytes: \"{key}\"");
            s.log(Level::Error, message);
            continue;
        }
        match ZoneCount::take(numbers, key, *most) {
            Ok(hold) => held.0.push(hold),
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
    if held.0.is_empty() { ConnDecision::NotCounted } else { ConnDecision::Passed(held) }
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
        let (first, second) = (take(b"k", 2).ok(), take(b"k", 2).ok());
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
        let held: Vec<_> = (0..600_u32).map(|n| ZoneCount::take(&numbers, &n.to_le_bytes(), 1)).collect();
        assert_eq!(held.iter().filter(|held| held.is_ok()).count(), 512, "64 bytes each");
        assert_eq!(held.last().and_then(|held| held.as_ref().err()), Some(&CountError::Full));
        drop(held);
        assert!(ZoneCount::take(&numbers, b"k", 1).is_ok());
    }
}
