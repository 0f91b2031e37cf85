//! Module `js` of http (nginx: ngx_http_js_module): scripts answer, decide, compute variables and filter responses.

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive};
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_request::config::location::Location;
use tw_request::plan::{Phase, Plan};
use tw_request::protocol::Http;
use tw_request::protocol::Resolve;
use tw_script::CallKind;

use crate::access::AccessHandler;
use crate::after_response::AfterResponse;
use crate::block_scripts::BlockScripts;
use crate::content::ContentHandler;
use crate::counters;
use crate::directives::DIRECTIVES;
use crate::filter::ResponseFilter;
use crate::http_periodic::{self, LocationPeriodics};
use crate::limits;
use crate::raw::Raw;

/// Scripts of one block of http.
pub struct HttpScripts {
    block: BlockScripts,
    content: Option<Arc<str>>,
    access: Option<Arc<str>>,
    header_filter: Option<Arc<str>>,
    body_filter: Option<BodyFilter>,
    /// `js_periodic`; not inherited.
    periodics: Arc<LocationPeriodics>,
}

/// `js_body_filter`
#[derive(Clone)]
struct BodyFilter {
    function: Arc<str>,
    /// The kind of call, which says how the function sees pieces.
    kind: CallKind,
}

impl Settings<Http> for HttpScripts {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = DIRECTIVES;

    const METRICS: &'static [Metric] = counters::METRICS;

    const LIMITS: &'static [Limit] = limits::LIMITS;

    fn resolve(mut raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_>) -> Result<Self, ConfError> {
        let block = BlockScripts::resolve(&mut raw, outer.map(|outer| &outer.block), cx)?;
        let own = |word, directive| block.own_function(word, directive);
        let content = own(raw.content.take(), "js_content")?;
        let access =
            own(raw.access.take(), "js_access")?.or_else(|| outer.and_then(|outer| outer.access.clone()));
        let header_filter = own(raw.header_filter.take(), "js_header_filter")?
            .or_else(|| outer.and_then(|outer| outer.header_filter.clone()));
        let filter = raw.body_filter.take();
        let kind = match &filter {
            Some(filter) if filter.is_buffer => CallKind::BodyBufferFilter,
            _ => CallKind::BodyFilter,
        };
        let function = own(filter.map(|filter| filter.function), "js_body_filter")?;
        let body_filter = function.map(|function| BodyFilter { function, kind });
        let body_filter = body_filter.or_else(|| outer.and_then(|outer| outer.body_filter.clone()));
        let periodics = block.periodics(&raw.periodics, cx)?;
        if !periodics.is_empty() {
            cx.keep(b"js_periodic", |_| false, http_periodic::task);
        }
        let periodics = Arc::new(LocationPeriodics(periodics));
        Ok(Self { block, content, access, header_filter, body_filter, periodics })
    }

    fn are_shared(&self) -> bool {
        self.content.is_none() && self.periodics.0.is_empty()
    }

    // A script may ask any server by `ngx.fetch()`.
    fn reach(&self, _: &Location, reach: &mut Reach) {
        self.block.reach(reach);
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(part) = &self.block.part else { return };
        plan.parts.put(part.clone());
        plan.add_log_step(AfterResponse);
        if !self.periodics.0.is_empty() {
            plan.parts.put(self.periodics.clone());
        }
        if let Some(function) = &self.content {
            plan.set_content(ContentHandler(part.function(function)));
        }
        if let Some(function) = &self.access {
            plan.add(Phase::Access, AccessHandler(part.function(function)));
        }
        if self.header_filter.is_some() || self.body_filter.is_some() {
            plan.add_response_step(ResponseFilter {
                header: self.header_filter.as_ref().map(|name| part.function(name)),
                body: self.body_filter.as_ref().map(|filter| (part.function(&filter.function), filter.kind)),
            });
        }
    }
}
