//! `js_set`: variables whose values are results of functions. A template cannot wait for a script, so the value is computed before the handler
//! that reads it, or by the script process if a script reads it.

use std::sync::Arc;

use tw_conf::{ConfError, Span};
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::vars::{AwaitVariable, Computed, SlotKind, Value};
use tw_log::Level;

use crate::script_session::ScriptSession;
use crate::script_variables::{self, ScriptVariable, ScriptVariables};

impl ScriptVariable {
    /// Defines the variable.
    ///
    /// # Errors
    /// nginx's: another function was set, or nothing may change the variable.
    pub(crate) fn define<P: Protocol<Session: ScriptSession>>(
        self,
        name: &str,
        at: Span,
        cx: &mut Resolve<'_, P>,
    ) -> Result<(), ConfError> {
        let variables = cx.keep(P::Session::VARIABLES, |_| false, ScriptVariables::default);
        {
            let mut variables = variables.0.lock();
            match variables.get(&self.name) {
                Some(known) if known.function != self.function => {
                    let message = format!("variable \"{name}\" is redeclared with different function name");
                    return Err(ConfError::new(message).at(at));
                }
                _ => _ = variables.insert(self.name.clone(), self.clone()),
            }
        }
        let compute = |slot| self.awaited(slot);
        cx.vars.define_awaited(name, self.kind(), compute, at)?;
        Ok(())
    }

    /// Kind of its slot: without a value where no script can run.
    fn kind<S: ScriptSession>(&self) -> SlotKind<S> {
        let name = self.name.clone();
        let compute: Computed<S> = Arc::new(move |s: &S, _: &mut Vec<u8>| {
            let slot = s.slots().of(&name);
            let is_known = slot.is_some_and(|slot| script_variables::is_missing(s, slot));
            if !is_known && !script_variables::note_missing(slot) {
                s.log(
                    Level::Error,
                    format_args!("variable \"{name}\" of \"js_set\" is read where no script can run"),
                );
            }
            Value::Missing
        });
        SlotKind::Volatile(compute)
    }

    /// Computation of its slot.
    fn awaited<S: ScriptSession>(&self, slot: u16) -> AwaitVariable<S> {
        let variable = self.clone();
        Arc::new(move |s| {
            let variable = variable.clone();
            Box::pin(async move { variable.compute(s, slot).await })
        })
    }

    // DIFF(nginx): a function runs before the handlers that may read its variable, not when one reads it.
    /// Computes the value for `s` and stores it, unless that was done.
    async fn compute<S: ScriptSession>(&self, s: &mut S, slot: u16) {
        if !self.is_volatile && script_variables::is_computed(s, slot) {
            return;
        }
        let value = s.call_for_value(self.function.clone()).await;
        script_variables::store(s, slot, value);
    }
}

/// Logs that a variable has no scripts in its block.
pub(crate) fn log_missing_scripts<S: ScriptSession>(s: &S, function: &str) {
    s.log(
        Level::Error,
        format_args!(
            "no \"js_import\" directives found for \"js_set\" handler \"{function}\" in the current scope"
        ),
    );
}
