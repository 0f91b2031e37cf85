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
mod settings;
mod stat;
mod traffic_zone;
mod upstreams;
mod variables;

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive};
use tw_core::module::Settings;
use tw_core::session::Session;
use tw_request::plan::{Handler, LogHandler, Phase, Plan, Step};
use tw_request::protocol::{Http, Resolve};
use tw_request::request::Request;
use tw_request::vars::VarDef;
use tw_rt::clock;

use self::directives::DisplayFormat;
pub use self::directives::Raw;
use self::display::Display;
use self::node::{Average, BUCKETS_MAX, FinishedRequest, now_ms};
pub use self::settings::Vts;
use self::settings::{Block, filters, inherit};
use self::traffic_zone::KEY_MAX;

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

    const VARIABLES: &'static [VarDef] = variables::VARIABLES;

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
            cache: r.upstream.cache.report.status,
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

/// Handler of the preaccess phase.
struct LimitHandler(Arc<Vts>);

impl Handler for LimitHandler {
    fn handle<'a>(&'a self, r: &'a mut Request) -> Step<'a> {
        let vts = &self.0;
        let Some(zone) = &vts.zone else { return Step::PASS };
        let mut key = r.scratch().take();
        let server = vts.server_name(r);
        let mut limits = vts.limits.iter().flat_map(|limits| limits.iter());
        let refused = limits.find(|limit| limit.is_exceeded(r, &server, vts.average, zone, &mut key));
        r.scratch().set(key);
        match refused {
            Some(limit) => Step::status(limit.status),
            None => Step::PASS,
        }
    }
}
