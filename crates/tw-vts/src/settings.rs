//! Settings of one block, and the nodes for which its requests count.

use std::sync::Arc;

use tw_conf::ConfError;
use tw_core::vars::write::put_number;
use tw_log::Level;
use tw_module_support::zone;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Computed, SlotKind, Template, Value};

use super::directives::{DisplayFormat, Raw, RawFilter, RawSet};
use super::limit::TrafficLimit;
use super::node::{Average, AverageMethod, FinishedRequest, now_ms};
use super::stat::Stat;
use super::traffic_zone::{KEY_MAX, NodeName, TrafficZone, name_of, write_filter_key};

/// Owner of the name of the zone.
const OWNER: &str = "vhost_traffic_status";
/// Name of a server without a name.
const NAMELESS: &[u8] = b"_";

/// Settings of one block.
pub struct Vts {
    pub(super) block: Block,
    pub(super) zone: Option<Arc<TrafficZone>>,
    pub(super) by_upstream: bool,
    pub(super) is_on: bool,
    /// Set if the block answers with the counters; inherited only by blocks that are parts of it.
    pub(super) display: bool,
    pub(super) format: DisplayFormat,
    pub(super) jsonp: Arc<[u8]>,
    pub(super) sum_key: Arc<[u8]>,
    pub(super) average: Average,
    pub(super) buckets: Arc<[u64]>,
    pub(super) filter: bool,
    pub(super) by_host: bool,
    /// Filters of `http`, and those of the server or location.
    pub(super) filters: [Arc<[TrafficFilter]>; 2],
    pub(super) check_filters: bool,
    pub(super) limit: bool,
    /// Limits of `http`, and those of the server or location.
    pub(super) limits: [Arc<[TrafficLimit]>; 2],
    pub(super) check_limits: bool,
    pub(super) bypass_limit: bool,
    pub(super) bypass_stats: bool,
    pub(super) set: Arc<[SetVariable]>,
}

/// Block that settings belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Block {
    Http,
    Inner,
}

/// `vhost_traffic_status_filter_by_set_key`
pub(super) struct TrafficFilter {
    key: Template,
    /// Without one, the key counts as a server.
    group: Option<Template>,
}

/// `vhost_traffic_status_set_by_filter`
pub(super) struct SetVariable {
    pub(super) slot: u16,
    pub(super) compute: Computed,
}

impl Average {
    /// Without a directive.
    pub(super) const DEFAULT: Self = Self { method: AverageMethod::Arithmetic, period_ms: 60_000 };
}

impl Vts {
    /// Settings of `http` that no other block has, and defaults.
    pub(super) fn of_http(raw: &Raw, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let max_node = raw.max_node.get().and_then(Option::as_ref);
        let zone = match (raw.zone.get(), raw.zone.span()) {
            (Some(zone_parameter), Some(span)) => {
                zone::claim(cx, &zone_parameter.name, OWNER).map_err(|error| error.at(span))?;
                let fits = |traffic_zone: &TrafficZone| traffic_zone.fits(zone_parameter.size, max_node);
                let make = || TrafficZone::new(&zone_parameter.name, zone_parameter.size, max_node.cloned());
                Some(cx.keep(&zone_parameter.name, fits, make))
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
    pub(super) fn variables(
        &self,
        raw: Vec<RawSet>,
        cx: &mut Resolve<'_>,
    ) -> Result<Arc<[SetVariable]>, ConfError> {
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
    pub(super) fn server_name<'a>(&self, r: &'a Request) -> NodeName<'a> {
        let host: &[u8] = if self.filter && self.by_host { &r.route.host } else { b"" };
        let name = if host.is_empty() { &*r.generation().server(r.route.server).settings.name } else { host };
        NodeName::Server(if name.is_empty() { NAMELESS } else { name })
    }

    pub(super) fn count(&self, r: &Request, zone: &TrafficZone, key: &[u8], request: &FinishedRequest) {
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
    pub(super) fn put_server_stat(&self, r: &Request, stat: Stat, out: &mut Vec<u8>) -> Value {
        let Some(zone) = &self.zone else { return Value::Missing };
        let mut key = Vec::new();
        self.server_name(r).write_key(&mut key);
        put_number(out, zone.with(&key, |node| stat.of(node, self.average, now_ms())).unwrap_or(0))
    }
}

impl TrafficFilter {
    /// Appends the key for a request. Returns false if it is empty.
    pub(super) fn write_key(&self, r: &Request, out: &mut Vec<u8>) -> bool {
        let group = |out: &mut Vec<u8>| {
            if let Some(group) = &self.group {
                group.eval(r, out);
            }
        };
        write_filter_key(out, group, |out| self.key.eval(r, out))
    }
}

/// Lists of `http` and of the innermost block that has some.
pub(super) fn inherit<T>(block: Block, outer: &[Arc<[T]>; 2], own: Vec<T>) -> [Arc<[T]>; 2] {
    let [of_http, inner] = outer;
    match block {
        Block::Http => [own.into(), inner.clone()],
        Block::Inner if own.is_empty() => [of_http.clone(), inner.clone()],
        Block::Inner => [of_http.clone(), own.into()],
    }
}

pub(super) fn filters(
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
