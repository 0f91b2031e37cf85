//! Module `js` of http (nginx: ngx_http_js_module): scripts answer, decide, compute variables and filter responses.

use std::sync::Arc;

use tw_base::Limit;
use tw_conf::{ConfError, Directive, Word};
use tw_connect::resolving;
use tw_core::metrics::Metric;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_core::vars::Value;
use tw_request::config::location::Location;
use tw_request::plan::{Phase, Plan};
use tw_request::protocol::Http;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Computed, SlotKind};
use tw_script::CallKind;

use crate::access::AccessHandler;
use crate::common::Common;
use crate::content::ContentHandler;
use crate::counters;
use crate::fetch_settings::FetchDirectives;
use crate::filter::ResponseFilter;
use crate::limits;
use crate::raw::{DIRECTIVES, Raw, RawSet, RawVar};
use crate::script_variables::ScriptVariable;
use crate::set_of_plan::SetOfPlan;

/// Scripts of one block of http.
pub struct HttpScripts {
    common: Common,
    /// The part of plans that variables need.
    part: Option<Arc<SetOfPlan>>,
    fetch: FetchDirectives,
    content: Option<Arc<str>>,
    access: Option<Arc<str>>,
    header_filter: Option<Arc<str>>,
    body_filter: Option<BodyFilter>,
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
        let common = Common::resolve(&mut raw, outer.map(|outer| &outer.common), cx)?;
        for set in &raw.sets {
            define_script_variable(set, cx)?;
        }
        for var in &raw.vars {
            define_variable(var, cx)?;
        }
        let own_fetch = FetchDirectives::resolve(raw.fetch, outer.map(|outer| &outer.fetch));
        let outer_part = outer.and_then(|outer| outer.part.as_ref());
        let fetch = own_fetch.clone().or_else(|| outer.map(|outer| outer.fetch.clone()));
        let fetch = fetch.ok_or_else(|| ConfError::new("no settings of ngx.fetch()"))?;
        let part = match (&common.set, outer_part) {
            (Some(set), Some(part)) if Arc::ptr_eq(set, &part.set) && own_fetch.is_none() => {
                Some(part.clone())
            }
            (Some(set), part) => Some(Arc::new(SetOfPlan {
                set: set.clone(),
                counters: common.counters.clone(),
                fetch: match part.filter(|_| own_fetch.is_none()) {
                    Some(part) => part.fetch.clone(),
                    None => fetch.settings(cx)?,
                },
            })),
            (None, _) => None,
        };
        // DIFF(nginx): a function without modules is a mistake of the configuration, not one of each request.
        let name = |word: Word| -> Arc<str> { word.lossy().into() };
        let own = |word: Option<Word>, directive: &str| match (word, &common.set) {
            (Some(word), None) => Err(ConfError::new(format!(
                "no \"js_import\" directives found for \"{directive}\" \"{word}\" in the current scope"
            ))
            .at(word.span)),
            (word, _) => Ok(word.map(name)),
        };
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
        Ok(Self { common, part, fetch, content, access, header_filter, body_filter })
    }

    fn are_shared(&self) -> bool {
        self.content.is_none()
    }

    // A script may ask any server by `ngx.fetch()`.
    fn reach(&self, _: &Location, reach: &mut Reach) {
        if let Some(part) = &self.part {
            reach.connects();
            resolving::reach(reach);
            part.fetch.verified.reach(reach);
        }
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(part) = &self.part else { return };
        plan.parts.put(part.clone());
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

fn define_script_variable(set: &RawSet, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
    let variable = ScriptVariable {
        name: set.variable.to_ascii_lowercase().into(),
        function: set.function.as_str().into(),
        is_volatile: set.is_volatile,
    };
    variable.define(&set.variable, set.span, cx)
}

/// Defines a variable of `js_var`: its value until a script sets another one.
fn define_variable(var: &RawVar, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
    let template = var.value.as_ref().map(|value| cx.template(value)).transpose()?;
    let computed: Computed = Arc::new(move |r: &Request, out: &mut Vec<u8>| {
        if let Some(template) = &template {
            template.eval(r, out);
        }
        Value::Found
    });
    cx.vars.compute(&var.variable, SlotKind::Computed(computed), var.span)?;
    Ok(())
}
