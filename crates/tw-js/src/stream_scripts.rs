//! Module `js` of stream (nginx: ngx_stream_js_module): scripts decide about sessions, compute variables and filter bytes.

use std::sync::Arc;

use tw_conf::{ConfError, Directive};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::reach::Reach;
use tw_script::CallKind;
use tw_stream::Stream;
use tw_stream::config::ServerSettings;
use tw_stream::plan::Plan;

use crate::block_scripts::BlockScripts;
use crate::directives::DIRECTIVES;
use crate::periodic::Periodic;
use crate::raw::Raw;
use crate::session_exit::{ExitStep, ReleaseStep};
use crate::session_filter::ScriptFilter;
use crate::session_phase::ScriptStep;
use crate::stream_periodic::ServerPeriodic;

/// Scripts of one block of stream.
pub struct StreamScripts {
    block: BlockScripts,
    access: Option<Arc<str>>,
    preread: Option<Arc<str>>,
    filter: Option<Arc<str>>,
    /// `js_periodic`; not inherited.
    periodics: Box<[Periodic]>,
}

impl Settings<Stream> for StreamScripts {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] = DIRECTIVES;

    fn resolve(mut raw: Raw, outer: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let block = BlockScripts::resolve(&mut raw, outer.map(|outer| &outer.block), cx)?;
        let inherited = |own: Option<Arc<str>>, outer: Option<&Option<Arc<str>>>| {
            own.or_else(|| outer.cloned().flatten())
        };
        let access = block.own_function(raw.access.take(), "js_access")?;
        let preread = block.own_function(raw.preread.take(), "js_preread")?;
        let filter = block.own_function(raw.filter.take(), "js_filter")?;
        let periodics = block.periodics(&raw.periodics, cx)?;
        Ok(Self {
            access: inherited(access, outer.map(|outer| &outer.access)),
            preread: inherited(preread, outer.map(|outer| &outer.preread)),
            filter: inherited(filter, outer.map(|outer| &outer.filter)),
            periodics,
            block,
        })
    }

    fn are_shared(&self) -> bool {
        self.periodics.is_empty()
    }

    fn reach(&self, _: &ServerSettings, reach: &mut Reach) {
        self.block.reach(reach);
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        let Some(part) = &self.block.part else { return };
        plan.parts.put(part.clone());
        plan.add_release_step(Arc::new(ReleaseStep));
        plan.add_end_step(Arc::new(ExitStep));
        let step = |name, kind| Arc::new(ScriptStep { function: part.function(name), kind });
        if let Some(name) = &self.access {
            plan.add_access_step(step(name, CallKind::StreamAccess));
        }
        if let Some(name) = &self.preread {
            plan.add_preread_step(step(name, CallKind::StreamPreread));
        }
        if let Some(name) = &self.filter {
            plan.set_filter(Arc::new(ScriptFilter(part.function(name))));
        }
        for periodic in &self.periodics {
            let function = part.function(&periodic.function);
            plan.add_task(Arc::new(ServerPeriodic { periodic: periodic.clone(), function }));
        }
    }
}
