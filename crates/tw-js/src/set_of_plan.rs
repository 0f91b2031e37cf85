//! Scripts of one plan.

use std::sync::Arc;

use crate::counters::Counters;
use crate::operations::fetch::FetchSettings;
use crate::request_call::ScriptFunction;
use crate::script_set::ScriptSet;

/// Scripts whose functions a plan calls.
pub(crate) struct SetOfPlan {
    pub(crate) set: Arc<ScriptSet>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) fetch: Arc<FetchSettings>,
}

impl SetOfPlan {
    /// A function of the scripts.
    pub(crate) fn function(&self, name: &Arc<str>) -> ScriptFunction {
        ScriptFunction {
            set: self.set.clone(),
            name: name.clone(),
            counters: self.counters.clone(),
            fetch: self.fetch.clone(),
        }
    }
}
