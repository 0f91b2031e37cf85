//! `vhost_traffic_status`: requests by server and by keys of one's own, as JSON, HTML and Prometheus text (nginx-module-vts,
//! a module of others). Preaccess phase for limits, content phase for the display, log handler.
//!
//! A request is counted once, when it is over. What the server counts in any case, such as requests to upstream servers
//! and hits of caches, is read when it is shown.

mod control;
mod directives;
mod display;
mod limit;
mod node;
mod prometheus;
mod report;
mod stat;
mod traffic_zone;
mod upstreams;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_core::vars::write::put_number;
use tw_log::Level;
use tw_rt::clock;
use tw_server::http::Http;
use tw_server::http::plan::{LogHandler, Phase, Plan};
use tw_server::http::request::Request;
use tw_server::load::Resolve;
use tw_server::vars::{Computed, SlotKind, Template, Value, VarDef};

pub(crate) use self::directives::Raw;
use self::directives::{RawFilter, RawSet};
use self::display::{Display, DisplayFormat};
use self::limit::{LimitHandler, TrafficLimit};
use self::node::{Average, AverageMethod, BUCKETS_MAX, FinishedRequest};
use self::stat::Stat;
use self::traffic_zone::{KEY_MAX, NodeName, TrafficZone, write_filter_key};
use crate::shared::zone;

/// Owner of the name of the zone.
const OWNER: &str = "vhost_traffic_status";
/// Name of a server without a name.
const NAMELESS: &[u8] = b"_";

/// Settings of one block.
pub(crate) struct Vts {
    block: Block,
    zone: Option<Arc<TrafficZone>>,
    by_upstream: bool,
    is_on: bool,
    /// Set if the block answers with the counters; inherited only by blocks that are parts of it.
    display: bool,
    format: DisplayFormat,
    jsonp: Arc<[u8]>,
    sum_key: Arc<[u8]>,
    average: Average,
    buckets: Arc<[u64]>,
    filter: bool,
    by_host: bool,
    /// Filters of `http`, and those of the server or location.
    filters: [Arc<[TrafficFilter]>; 2],
    check_filters: bool,
    limit: bool,
    /// Limits of `http`, and those of the server or location.
    limits: [Arc<[TrafficLimit]>; 2],
    check_limits: bool,
    bypass_limit: bool,
    bypass_stats: bool,
    set: Arc<[SetVariable]>,
}

/// Block that settings belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Http,
    Inner,
}

/// `vhost_traffic_status_filter_by_set_key`
struct TrafficFilter {
    key: Template,
    /// Without one, the key counts as a server.
    group: Option<Template>,
}

/// `vhost_traffic_status_set_by_filter`
struct SetVariable {
    slot: u16,
    compute: Computed,
}

impl Average {
    /// Without a directive.
    const DEFAULT: Self = Self { method: AverageMethod::Arithmetic, period_ms: 60_000 };
}

tw_base::limits! {
    /// Limits of this module.
    const LIMITS;

    /// Bytes of keys and counters of one zone.
    parameter "vhost_traffic_status_zone", "zone=name:", "a size that must be given",
        "requests with new keys are not counted, and a line in the error log";
    /// A key that is counted.
    constant bytes KEY_MAX, "the request is not counted, and a line in the error log";
    /// Bounds of `vhost_traffic_status_histogram_buckets`.
    constant count BUCKETS_MAX, "the configuration is refused";
}

impl Settings<Http> for Vts {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = directives::DIRECTIVES;

    const VARIABLES: &'static [VarDef] = stat::VARIABLES;

    const LIMITS: &'static [Limit] = LIMITS;

    fn resolve(raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let default;
        let (block, outer) = match outer {
            Some(outer) => (Block::Inner, outer),
            None => {
                default = Self::of_http(&raw, cx)?;
                (Block::Http, &default)
            }
        };
        if let (None, Some(span)) = (&outer.zone, raw.needs_zone) {
            let message = "traffic is not counted: \"vhost_traffic_status_zone\" is missing in \"http\"";
            return Err(ConfError::new(message).at(span));
        }
        let check_filters = raw.check_filters.or(Some(outer.check_filters), true);
        let check_limits = raw.check_limits.or(Some(outer.check_limits), true);
        let filters = inherit(block, &outer.filters, filters(raw.filters, check_filters, cx)?);
        let limits = inherit(block, &outer.limits, limit::resolve(raw.limits, check_limits, cx)?);
        let display = raw.display || (cx.block.is_nameless() && outer.display);
        let mut settings = Self {
            block,
            zone: outer.zone.clone(),
            by_upstream: outer.by_upstream,
            is_on: raw.is_on.or(Some(outer.is_on), true),
            display,
            format: raw.format.or(Some(outer.format), DisplayFormat::Json),
            jsonp: raw.jsonp.take().map_or_else(|| outer.jsonp.clone(), Arc::from),
            sum_key: raw.sum_key.take().map_or_else(|| outer.sum_key.clone(), Arc::from),
            average: raw.average.or(Some(outer.average), Average::DEFAULT),
            buckets: raw.buckets.take().unwrap_or_else(|| outer.buckets.clone()),
            filter: raw.filter.or(Some(outer.filter), true),
            by_host: raw.by_host.or(Some(outer.by_host), false),
            filters,
            check_filters,
            limit: raw.limit.or(Some(outer.limit), true),
            limits,
            check_limits,
            bypass_limit: raw.bypass_limit.or(Some(outer.bypass_limit), false),
            bypass_stats: raw.bypass_stats.or(Some(outer.bypass_stats), false),
            set: outer.set.clone(),
        };
        if !raw.set.is_empty() {
            settings.set = settings.variables(raw.set, cx)?;
        }
        Ok(settings)
    }

    fn are_shared(&self) -> bool {
        self.zone.is_none() || (self.block == Block::Inner && !self.display)
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if self.zone.is_none() {
            return;
        }
        plan.parts.put(self.clone());
        for variable in &*self.set {
            plan.compute(variable.slot, variable.compute.clone());
        }
        if self.limit && !self.bypass_limit && self.limits.iter().any(|limits| !limits.is_empty()) {
            plan.add(Phase::Preaccess, LimitHandler(self.clone()));
        }
        if self.display {
            plan.set_content(Display(self.clone()));
        }
        if self.is_on && !self.bypass_stats {
            plan.add_log(self.clone());
        }
    }
}

impl LogHandler for Vts {
    fn log(&self, r: &Request) {
        let Some(zone) = &self.zone else { return };
        // A part of a response is counted with it.
        if r.is_subrequest() {
            return;
        }
        // Most requests begin and end in one turn, for which the clock of the loop stands still.
        let time = clock::precise().saturating_duration_since(r.context.started.at);
        let request = FinishedRequest {
            status: r.response.status,
            received: r.head.read_len() as u64 + r.body.wire(),
            sent: r.costs.sent.bytes,
            cache: r.upstream.cache.status,
            time_ms: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            at_ms: now_ms(),
        };
        let mut key = r.scratch().take();
        key.clear();
        self.server_name(r).write_key(&mut key);
        self.count(r, zone, &key, &request);
        if self.filter {
            for filter in self.filters.iter().flat_map(|filters| filters.iter()) {
                key.clear();
                if filter.write_key(r, &mut key) {
                    self.count(r, zone, &key, &request);
                }
            }
        }
        r.scratch().set(key);
    }
}

impl Vts {
    /// Settings of `http` that no other block has, and defaults.
    fn of_http(raw: &Raw, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let max_node = raw.max_node.get().and_then(Option::as_ref);
        let zone = match (raw.zone.get(), raw.zone.span()) {
            (Some(written), Some(span)) => {
                zone::claim(cx, &written.name, OWNER).map_err(|error| error.at(span))?;
                let fits = |known: &TrafficZone| known.fits(written.size, max_node);
                let make = || TrafficZone::new(&written.name, written.size, max_node.cloned());
                Some(cx.keep(&written.name, fits, make))
            }
            _ => None,
        };
        Ok(Self {
            block: Block::Http,
            zone,
            by_upstream: raw.by_upstream.get().copied().unwrap_or(true),
            is_on: true,
            display: false,
            format: DisplayFormat::Json,
            jsonp: b"ngx_http_vhost_traffic_status_jsonp_callback".as_slice().into(),
            sum_key: b"*".as_slice().into(),
            average: Average::DEFAULT,
            buckets: [].into(),
            filter: true,
            by_host: false,
            filters: [Arc::from([]), Arc::from([])],
            check_filters: true,
            limit: true,
            limits: [Arc::from([]), Arc::from([])],
            check_limits: true,
            bypass_limit: false,
            bypass_stats: false,
            set: [].into(),
        })
    }

    /// Variables of the enclosing blocks and of this one.
    fn variables(&self, raw: Vec<RawSet>, cx: &mut Resolve<'_>) -> Result<Arc<[SetVariable]>, ConfError> {
        let Some(zone) = &self.zone else { return Ok([].into()) };
        let outer = self.set.iter().map(|set| SetVariable { slot: set.slot, compute: set.compute.clone() });
        let mut all: Vec<_> = outer.collect();
        for RawSet { variable, node, is_filter, stat } in raw {
            let name = variable.lossy();
            let name = name.strip_prefix('$').unwrap_or(&name);
            // Blocks without the directive have no value.
            let slot = cx.vars.compute(name, SlotKind::Volatile(Arc::new(missing)), variable.span)?;
            let template = cx.template(&node)?;
            let zone = zone.clone();
            let average = self.average;
            let compute = move |r: &Request, out: &mut Vec<u8>| {
                let mut text = Vec::new();
                let mut key = Vec::new();
                template.eval(r, &mut text);
                name_of(&text, is_filter).write_key(&mut key);
                put_number(out, zone.with(&key, |node| stat.of(node, average, now_ms())).unwrap_or(0))
            };
            all.retain(|set| set.slot != slot);
            all.push(SetVariable { slot, compute: Arc::new(compute) });
        }
        Ok(all.into())
    }

    /// Name under which the server of a request counts.
    fn server_name<'a>(&self, r: &'a Request) -> NodeName<'a> {
        let host: &[u8] = if self.filter && self.by_host { &r.route.host } else { b"" };
        let name = if host.is_empty() { &*r.generation().server(r.route.server).settings.name } else { host };
        NodeName::Server(if name.is_empty() { NAMELESS } else { name })
    }

    fn count(&self, r: &Request, zone: &TrafficZone, key: &[u8], request: &FinishedRequest) {
        if key.len() > KEY_MAX {
            let shown = tw_log::Text(key);
            r.log(Level::Error, format_args!("key of traffic has more than {KEY_MAX} bytes: \"{shown}\""));
        } else if zone.count(key, request, &self.buckets).is_err() {
            let message = format_args!(
                "ngx_slab_alloc() failed: no memory in vhost_traffic_status_zone \"{}\"",
                zone.name
            );
            r.log(Level::Crit, message);
        }
    }

    /// Appends a number of the server of a request.
    fn put_server_stat(&self, r: &Request, stat: Stat, out: &mut Vec<u8>) -> Value {
        let Some(zone) = &self.zone else { return Value::Missing };
        let mut key = Vec::new();
        self.server_name(r).write_key(&mut key);
        put_number(out, zone.with(&key, |node| stat.of(node, self.average, now_ms())).unwrap_or(0))
    }
}

impl TrafficFilter {
    /// Appends the key for a request. Returns false if it is empty.
    fn write_key(&self, r: &Request, out: &mut Vec<u8>) -> bool {
        let group = |out: &mut Vec<u8>| {
            if let Some(group) = &self.group {
                group.eval(r, out);
            }
        };
        write_filter_key(out, group, |out| self.key.eval(r, out))
    }
}

/// Name of a node as limits and variables write it: `group@name` of a filter.
fn name_of(text: &[u8], is_filter: bool) -> NodeName<'_> {
    match text.iter().position(|byte| *byte == b'@') {
        Some(at) if is_filter => NodeName::Filter { group: &text[..at], name: &text[at + 1..] },
        _ => NodeName::Server(text),
    }
}

/// Lists of `http` and of the innermost block that has some.
fn inherit<T>(block: Block, outer: &[Arc<[T]>; 2], own: Vec<T>) -> [Arc<[T]>; 2] {
    let [of_http, inner] = outer;
    match block {
        Block::Http => [own.into(), inner.clone()],
        Block::Inner if own.is_empty() => [of_http.clone(), inner.clone()],
        Block::Inner => [of_http.clone(), own.into()],
    }
}

fn filters(
    raw: Vec<RawFilter>,
    is_checked: bool,
    cx: &mut Resolve<'_>,
) -> Result<Vec<TrafficFilter>, ConfError> {
    let mut filters = Vec::with_capacity(raw.len());
    for (at, RawFilter { key, group }) in raw.iter().enumerate() {
        let is_same = |other: &RawFilter| {
            other.key.bytes == key.bytes
                && other.group.as_ref().map(|word| &word.bytes) == group.as_ref().map(|word| &word.bytes)
        };
        if is_checked && raw[..at].iter().any(is_same) {
            continue;
        }
        let group = group.as_ref().map(|word| cx.template(word)).transpose()?;
        filters.push(TrafficFilter { key: cx.template(key)?, group });
    }
    Ok(filters)
}

/// Value of a variable in blocks that do not define it.
fn missing(_: &Request, _: &mut Vec<u8>) -> Value {
    Value::Missing
}

/// Milliseconds since 1970.
fn now_ms() -> u64 {
    let now = clock::unix();
    now.secs.unsigned_abs() * 1000 + u64::from(now.msec)
}
