//! `limit_req`: rate of requests with the same key (nginx: ngx_http_limit_req_module). Preaccess phase; in `mail`, rate of logins.
//!
//! A leaky bucket for each key: requests beyond the rate are its excess, in thousandths of a request. Up to `delay=` a
//! request is served at once, up to `burst=` after a delay, beyond that it is refused. With `cost=`, a request is admitted while
//! the excess is not beyond `burst=`, and its cost is added in the log phase.

mod bucket;
mod cost;
mod fleet;
mod logins;

use std::sync::Arc;
use std::time::Duration;

use tw_base::Counter;
use tw_conf::{
    Args, ConfError, Contexts, Directive, HTTP, LOCATION, MAIL, MAIL_SERVER, Node, SERVER, Setting, Span,
    Word, record,
};
use tw_core::access_check::AccessDecision;
use tw_core::load::Resolve;
use tw_core::metrics::{Metric, MetricKind};
use tw_core::module::{Protocol, Settings};
use tw_core::session::Session;
use tw_core::vars::{Template, VarDef};
use tw_fleet::{RateKey, SharedRate};
use tw_log::Level;
use tw_module_support::refusal::{self, HasRefusal, LimitRefusal};
use tw_module_support::zone::{self, RawLimit, Zone, ZoneCounters, ZoneMessages, ZoneParameter, Zones};
use tw_phases::phases;
use tw_request::plan::{Handler, Outcome, Phase, Plan, Step};
use tw_request::protocol::Http;
use tw_request::request::Request;

use self::bucket::{Bucket, BucketDecision, HeldBucket, REQUEST, Rate};
use self::cost::PendingCosts;

const IN_HTTP: Contexts = HTTP | SERVER | LOCATION;
const ALL: Contexts = IN_HTTP | MAIL | MAIL_SERVER;

/// The longest key; a longer one is not counted.
const KEY_MAX: usize = 65_535;
/// Variable with the decision about a request.
const STATUS: &str = "limit_req_status";
/// Texts of messages about its zones.
const WORDS: ZoneMessages =
    ZoneMessages { owner: "limit_req", directive: "limit_req_zone", keyed: "limit_req" };

/// Limits as written.
#[derive(Default)]
pub(crate) struct Raw {
    zones: Vec<RawZone>,
    limits: Setting<Vec<RawLimit<RawValues>>>,
    refusal: refusal::Raw,
}

/// Parameters of `limit_req` besides its zone, as written.
struct RawValues {
    /// `burst` in thousandths of a request.
    burst: i64,
    /// `delay` in thousandths of a request.
    delay: i64,
    cost: Option<Word>,
}

/// `limit_req_zone` as written.
struct RawZone {
    key: Word,
    zone: ZoneParameter,
    rate: Rate,
    /// Fleet whose nodes share the rate.
    fleet: Option<Word>,
    span: Span,
}

/// Limits of one block.
pub(crate) struct LimitReq<S> {
    zones: Arc<Zones<ReqZone<S>>>,
    limits: Arc<[ReqLimit<S>]>,
    refusal: LimitRefusal,
    slot: u16,
}

/// A zone as one configuration uses it.
struct ReqZone<S> {
    key: Template<S>,
    rate: Rate,
    buckets: Arc<Buckets>,
    /// Share of this node, if the nodes of a fleet share the rate.
    shared: Option<Arc<SharedRate>>,
}

/// A zone with its counters, which outlives configurations.
struct Buckets {
    zone: Zone<Bucket>,
    delayed: Counter,
    rejected: Counter,
    /// Costs, in thousandths of a request.
    charged: Counter,
}

impl HasRefusal for Raw {
    fn refusal(&mut self) -> &mut refusal::Raw {
        &mut self.refusal
    }
}

impl ZoneCounters for Buckets {
    type Value = Bucket;

    fn zone(&self) -> &Zone<Bucket> {
        &self.zone
    }
}

/// One `limit_req`.
struct ReqLimit<S> {
    zone: Arc<ReqZone<S>>,
    /// Highest excess that is served.
    burst: i64,
    /// Highest excess that is served at once.
    delay: i64,
    /// `cost`, known in the log phase. Without it, a request costs one when it is admitted.
    cost: Option<Template<S>>,
}

/// Decision of the limits.
#[derive(Debug, PartialEq, Eq)]
enum ReqDecision<'l> {
    /// No key was counted.
    NotCounted,
    /// Served at once.
    Passed,
    /// Served after this time; the excess and the name of the zone are for the log.
    Delayed(Duration, i64, &'l str),
    /// Not served: too many. The excess, the name of the zone, and the seconds until the zone would let it pass.
    Rejected(i64, &'l str, u32),
    /// Not served: the zone has no room for the key.
    Full(&'l str),
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and counters of one zone.
    parameter "limit_req_zone", "zone=name:", "a size that must be given",
        "the one counted longest ago is forgotten; if that is too little, the request is rejected";
    /// A key that is counted.
    constant bytes KEY_MAX, "the request is not counted, and a line in the error log";
    /// Cost of one request (`limit_req … cost=`).
    constant count cost::COST_MAX, "a higher one counts as this";
}

/// Records of the directives, for every protocol.
const DIRECTIVES: &[Directive<Raw>] = &[
    record::new("limit_req_zone", "key zone=name:size rate=rate [fleet=name]", HTTP | MAIL, Args::range(3, 4))
        .doc(
            "Declares where excess is counted by key, and the rate: so many requests per second (r/s) or minute (r/m). With fleet=, the \
             nodes of the fleet share the rate.",
        )
        .set(|raw, node, _| {
            raw.zones.push(RawZone::read(node)?);
            Ok(())
        }),
    record::new(
        "limit_req",
        "zone=name [burst=number] [nodelay | delay=number | cost=$variable]",
        ALL,
        Args::range(1, 4),
    )
        .doc(
            "Limits requests: up to burst more than the rate allows are delayed, the others refused. With cost=, a request is \
             admitted while the costs of those before are not beyond burst, and its own cost is charged when it is over: the number \
             that the variable has then.",
        )
        .set(|raw, node, _| {
            let limit = read_limit(node)?;
            RawLimit::refuse_duplicate(&raw.limits, &limit.zone, node)?;
            raw.limits.push(node, limit);
            Ok(())
        }),
    refusal::log_level(
        "limit_req_log_level",
        ALL,
        "Level at which a refusal is logged; a delay is logged one level lower.",
    ),
    refusal::status("limit_req_status", IN_HTTP),
    refusal::dry_run("limit_req_dry_run", ALL, "1.17.1"),
    refusal::retry_after("limit_req_retry_after", IN_HTTP),
];

/// Text about [`STATUS`].
const STATUS_DOC: &str =
    "What limit_req decided: PASSED, DELAYED, REJECTED, DELAYED_DRY_RUN or REJECTED_DRY_RUN.";

/// Metrics of the zones of every protocol.
const METRICS: &[Metric] = &[
    Metric {
        name: "limit_req_entries",
        kind: MetricKind::Gauge,
        labels: &["zone"],
        doc: "Keys in a zone of limit_req.",
        read: |scrape, out| zone::values::<Buckets>(scrape, out, |b| b.zone.entries.value()),
    },
    Metric {
        name: "limit_req_delayed_total",
        kind: MetricKind::Counter,
        labels: &["zone"],
        doc: "Requests that limit_req delayed; with dry run: would have delayed.",
        read: |scrape, out| zone::values::<Buckets>(scrape, out, |b| b.delayed.value()),
    },
    Metric {
        name: "limit_req_rejected_total",
        kind: MetricKind::Counter,
        labels: &["zone"],
        doc: "Requests that limit_req refused; with dry run: would have refused.",
        read: |scrape, out| zone::values::<Buckets>(scrape, out, |b| b.rejected.value()),
    },
    Metric {
        name: "limit_req_cost_total",
        kind: MetricKind::Counter,
        labels: &["zone"],
        doc: "Costs that limit_req has charged (cost=), in whole numbers.",
        read: |scrape, out| {
            zone::values::<Buckets>(scrape, out, |b| b.charged.value() / REQUEST.unsigned_abs());
        },
    },
    fleet::SHARED,
    fleet::NODES,
    fleet::AWAY,
    fleet::KEYS,
];

impl<S: Session> LimitReq<S> {
    /// Resolves the directives. `cost` resolves that parameter.
    fn resolve_for<P: Protocol<Session = S>>(
        raw: Raw,
        outer: Option<&Self>,
        cx: &mut Resolve<'_, P>,
        cost: impl Fn(&Word, &ReqZone<S>, &mut Resolve<'_, P>) -> Result<Template<S>, ConfError>,
    ) -> Result<Self, ConfError> {
        let zones = match outer {
            Some(outer) => outer.zones.clone(),
            None => Arc::new(declare(raw.zones, cx)?),
        };
        let outer_limits = outer.map(|o| &o.limits);
        let limits = zone::resolve_limits(
            raw.limits,
            outer_limits,
            &zones,
            "limit_req",
            cx,
            |zone, RawValues { burst, delay, cost: written_word }, cx| {
                let cost = written_word.map(|word| cost(&word, &zone, cx)).transpose()?;
                Ok(ReqLimit { zone, burst, delay, cost })
            },
        )?;
        Ok(Self {
            zones,
            limits,
            refusal: LimitRefusal::resolve(raw.refusal, outer.map(|o| &o.refusal)),
            slot: cx.slot(STATUS),
        })
    }
}

impl Settings<Http> for LimitReq<Request> {
    type Raw = Raw;

    const LIMITS: &'static [tw_base::Limit] = LIMITS;

    const DIRECTIVES: &'static [Directive<Raw>] = DIRECTIVES;

    const VARIABLES: &'static [VarDef<Request>] = &[VarDef::stored(STATUS, STATUS_DOC)];

    const METRICS: &'static [Metric] = METRICS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Http>) -> Result<Self, ConfError> {
        Self::resolve_for(raw, outer, cx, cost::resolve)
    }

    fn are_shared(&self) -> bool {
        true
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.limits.is_empty() {
            plan.add(Phase::Preaccess, self.clone());
        }
    }
}

/// Takes the zones of a configuration into use.
fn declare<P: Protocol>(
    raw: Vec<RawZone>,
    cx: &mut Resolve<'_, P>,
) -> Result<Zones<ReqZone<P::Session>>, ConfError> {
    let mut zones: Zones<ReqZone<_>> = Zones::new();
    for RawZone { key, zone: zone_parameter, rate, fleet, span } in raw {
        let known_buckets = zones.get(&zone_parameter.name).map(|req_zone| &*req_zone.buckets);
        let make = |zone| Buckets {
            zone,
            delayed: Counter::default(),
            rejected: Counter::default(),
            charged: Counter::default(),
        };
        let (key, buckets) = zone::declare(cx, &WORDS, &key, &zone_parameter, span, known_buckets, make)?;
        let shared = fleet.map(|fleet| fleet::share(&zone_parameter.name, rate, &fleet, cx)).transpose()?;
        zones.insert(zone_parameter.name, Arc::new(ReqZone { key, rate, buckets, shared }));
    }
    Ok(zones)
}

impl RawZone {
    fn read(node: &Node) -> Result<Self, ConfError> {
        let mut zone = None;
        let mut rate = Rate::per_second(1);
        let mut fleet = None;
        for word in node.args.iter().skip(1) {
            if let Some(value) = word.param("zone") {
                zone = ZoneParameter::read(node, word, value)?;
            } else if let Some(value) = word.param("rate") {
                rate = Rate::parse(value).ok_or_else(|| {
                    node.fail(format!("invalid rate \"{word}\""))
                        .at(word.span)
                        .hint("requests per second or per minute are expected: rate=10r/s or rate=30r/m")
                })?;
            } else if word.param("fleet").is_some() {
                fleet = Some(word.clone());
            } else {
                return Err(node.invalid_parameter(word));
            }
        }
        let zone = zone.ok_or_else(|| zone::missing(node))?;
        Ok(Self { key: node.arg(0)?.clone(), zone, rate, fleet, span: node.span })
    }
}

/// Reads `limit_req`.
fn read_limit(node: &Node) -> Result<RawLimit<RawValues>, ConfError> {
    let mut zone = None;
    let mut burst = 0;
    let mut delay = 0;
    let mut cost = None;
    for word in &node.args {
        let invalid = |what: &str| node.fail(format!("invalid {what} value \"{word}\"")).at(word.span);
        if let Some(name) = word.param("zone") {
            zone = Some(name.into());
        } else if let Some(value) = word.param("burst") {
            burst = thousandths(value).ok_or_else(|| invalid("burst"))?;
        } else if let Some(value) = word.param("delay") {
            delay = thousandths(value).ok_or_else(|| invalid("delay"))?;
        } else if word.is("nodelay") {
            delay = i64::MAX;
        } else if let Some(value) = word.param("cost") {
            cost = Some(Word { bytes: value.into(), ..word.clone() });
        } else {
            return Err(node.invalid_parameter(word));
        }
    }
    if let Some(cost) = &cost
        && node.args.iter().any(|word| word.param("delay").is_some())
    {
        return Err(node.fail("\"delay\" cannot be combined with \"cost\"").at(cost.span).hint(
            "the cost of a request is known when it is over: it is admitted at once or refused, never delayed",
        ));
    }
    let zone = zone.ok_or_else(|| zone::missing(node))?;
    Ok(RawLimit { zone, values: RawValues { burst, delay, cost }, span: node.span })
}

/// A number of requests above 0, in thousandths.
fn thousandths(text: &[u8]) -> Option<i64> {
    let number = i64::try_from(tw_conf::units::number(text)?).ok().filter(|number| *number > 0)?;
    Some(number.saturating_mul(REQUEST))
}

impl Handler for LimitReq<Request> {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let decide = |r: &Request, key: &mut Vec<u8>| decide(r, &self.limits, key);
        let Some(decision) = refusal::decide_once(r, self.slot, decide) else { return Step::PASS };
        if self.refusal.dry_run || !matches!(decision, ReqDecision::Rejected(..) | ReqDecision::Full(_)) {
            PendingCosts::begin(&self.limits, r);
        }
        let dry_run = if self.refusal.dry_run { ", dry run" } else { "" };
        let (status, decision) = match decision {
            ReqDecision::NotCounted => return Step::PASS,
            ReqDecision::Passed => ("PASSED", AccessDecision::Pass),
            ReqDecision::Delayed(span, excess, zone) => {
                let requests = excess / REQUEST;
                let rest = excess % REQUEST;
                r.log(
                    lower(self.refusal.level),
                    format_args!(
                        "delaying request{dry_run}, excess: {requests}.{rest:03}, by zone \"{zone}\""
                    ),
                );
                if self.refusal.dry_run {
                    ("DELAYED_DRY_RUN", AccessDecision::Pass)
                } else {
                    r.set_slot(self.slot, "DELAYED");
                    return Step::Wait(Box::pin(async move {
                        match r.wire().clone().sleep(span).await {
                            Ok(()) => Outcome::Pass,
                            Err(error) => phases::client_closed(r, &error),
                        }
                    }));
                }
            }
            ReqDecision::Rejected(excess, zone, seconds) => {
                let requests = excess / REQUEST;
                let rest = excess % REQUEST;
                r.log(
                    self.refusal.level,
                    format_args!(
                        "limiting requests{dry_run}, excess: {requests}.{rest:03} by zone \"{zone}\""
                    ),
                );
                self.refusal.decision(seconds)
            }
            ReqDecision::Full(zone) => {
                r.log(Level::Alert, format_args!("could not allocate node in limit_req zone \"{zone}\""));
                self.refusal.decision(1)
            }
        };
        r.set_slot(self.slot, status);
        Step::by(decision, r)
    }
}

/// The level below, at which delays are logged.
fn lower(level: Level) -> Level {
    match level {
        Level::Error => Level::Warn,
        Level::Warn => Level::Notice,
        _ => Level::Info,
    }
}

/// Counts a request of `s` in all zones, or in none if one refuses it. `key` is scratch.
fn decide<'l, S: Session>(s: &S, limits: &'l [ReqLimit<S>], key: &mut Vec<u8>) -> ReqDecision<'l> {
    let now = tw_rt::clock::now();
    let mut held_buckets: Vec<(&ReqLimit<S>, HeldBucket<'l>, Rate)> = Vec::new();
    let mut worst = None;
    let mut counted = false;
    for (at, limit) in limits.iter().enumerate() {
        let ReqZone { key: template, rate, buckets, shared } = &*limit.zone;
        if !zone::eval_key(s, template, &buckets.zone, KEY_MAX, key) {
            continue;
        }
        counted = true;
        let rate = match shared {
            None => *rate,
            Some(shared) => rate.with_share(shared.count(RateKey::of(key), tw_rt::clock::millis())),
        };
        let is_last = at + 1 == limits.len();
        let decision = match &limit.cost {
            None => bucket::take(&buckets.zone, key, rate, limit.burst, now, is_last),
            Some(_) => bucket::look(&buckets.zone, key, rate, limit.burst, now),
        };
        match decision {
            BucketDecision::Admitted => {}
            BucketDecision::Counted(excess) => worst = Some((limit, excess, rate)),
            BucketDecision::Held(one) => held_buckets.push((limit, one, rate)),
            BucketDecision::Refused(excess) => {
                buckets.rejected.add(1);
                let seconds = rate.wait_seconds(excess.saturating_sub(limit.burst));
                return ReqDecision::Rejected(excess, &buckets.zone.name, seconds);
            }
            BucketDecision::Full => {
                buckets.rejected.add(1);
                return ReqDecision::Full(&buckets.zone.name);
            }
        }
    }
    if !counted {
        return ReqDecision::NotCounted;
    }
    let mut longest: Option<(i64, i64, &ReqLimit<S>)> = None;
    let held_buckets =
        held_buckets.into_iter().rev().map(|(limit, one, rate)| (limit, one.count(rate, now), rate));
    for (limit, excess, rate) in worst.into_iter().chain(held_buckets) {
        let delay = rate.delay_ms(excess.saturating_sub(limit.delay));
        if delay > longest.map_or(0, |(delay, ..)| delay) {
            longest = Some((delay, excess, limit));
        }
    }
    match longest {
        None => ReqDecision::Passed,
        Some((delay, excess, limit)) => {
            let buckets = &limit.zone.buckets;
            buckets.delayed.add(1);
            ReqDecision::Delayed(Duration::from_millis(delay.unsigned_abs()), excess, &buckets.zone.name)
        }
    }
}
