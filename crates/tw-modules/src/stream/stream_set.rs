//! `set` of `stream`: gives variables a value (nginx: ngx_stream_set_module). Preaccess phase.

use std::sync::Arc;

use tw_conf::{Args, ConfError, Directive, STREAM_SERVER, Word, record};
use tw_core::access_check::{AccessCheck, AccessDecision, AccessPlan, AccessStage};
use tw_core::load::Resolve;
use tw_core::module::Settings;
use tw_core::vars::{Template, VarTarget};
use tw_stream::Stream;
use tw_stream::plan::Plan;
use tw_stream::session::StreamSession;

/// All `set` of a server as written.
#[derive(Default)]
pub(crate) struct Raw {
    assignments: Vec<(String, Word)>,
}

/// All `set` of a server, in their order; not inherited.
pub(crate) struct StreamSet {
    assignments: Vec<(VarTarget<StreamSession>, Template<StreamSession>)>,
}

impl Settings<Stream> for StreamSet {
    type Raw = Raw;

    const DIRECTIVES: &'static [Directive<Raw>] =
        &[record::new("set", "$variable value", STREAM_SERVER, Args::exact(2))
            .since("1.19.3")
            .doc("Gives a variable a value, which is computed when the session begins.")
            .set(|raw, node, _| {
                let [variable, value] = node.words()?;
                raw.assignments
                    .push((tw_module_support::block::variable_name(node, variable)?, value.clone()));
                Ok(())
            })];

    fn resolve(raw: Raw, _: Option<&Self>, cx: &mut Resolve<'_, Stream>) -> Result<Self, ConfError> {
        let assign = |(name, value): (String, Word)| {
            let target = cx.vars.set_target(&name, value.span)?;
            Ok((target, cx.template(&value)?))
        };
        Ok(Self { assignments: raw.assignments.into_iter().map(assign).collect::<Result<_, _>>()? })
    }

    fn install(self: &Arc<Self>, plan: &mut Plan) {
        if !self.assignments.is_empty() {
            plan.add_access_check(AccessStage::Limits, self.clone());
        }
    }
}

impl AccessCheck<StreamSession> for StreamSet {
    fn check(&self, s: &mut StreamSession) -> AccessDecision {
        for (target, value) in &self.assignments {
            let value = value.value(s);
            target.store(s, value);
        }
        AccessDecision::Pass
    }
}
