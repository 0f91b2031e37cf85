//! `js_set`: variables whose values are results of functions. A template cannot wait for a script, so the value is computed before the handler
//! that reads it, or by the script process if a script reads it.

use std::sync::Arc;

use tw_conf::{ConfError, Span};
use tw_core::vars::{AwaitVariable, Value};
use tw_log::Level;
use tw_request::protocol::Resolve;
use tw_request::request::Request;
use tw_request::vars::{Computed, SlotKind};
use tw_script::{ByteBuf, CallKind};

use crate::request_call::{Failed, Progress, RequestCall};
use crate::script_variables::{self, SCRIPT_VARIABLES, ScriptVariable, ScriptVariables};
use crate::set_of_plan::SetOfPlan;
use crate::snapshot;

impl ScriptVariable {
    /// Defines the variable.
    ///
    /// # Errors
    /// nginx's: another function was set, or nothing may change the variable.
    pub(crate) fn define(self, name: &str, at: Span, cx: &mut Resolve<'_>) -> Result<(), ConfError> {
        let variables = cx.keep(SCRIPT_VARIABLES, |_| false, ScriptVariables::default);
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
    fn kind(&self) -> SlotKind {
        let name = self.name.clone();
        let compute: Computed = Arc::new(move |r: &Request, _: &mut Vec<u8>| {
            let slot = r.generation().slots.of(&name);
            let is_known = slot.is_some_and(|slot| script_variables::is_missing(r, slot));
            if !is_known && !script_variables::note_missing(slot) {
                r.log(
                    Level::Error,
                    format_args!("variable \"{name}\" of \"js_set\" is read where no script can run"),
                );
            }
            Value::Missing
        });
        SlotKind::Volatile(compute)
    }

    /// Computation of its slot.
    fn awaited(&self, slot: u16) -> AwaitVariable<Request> {
        let variable = self.clone();
        Arc::new(move |r| {
            let variable = variable.clone();
            Box::pin(async move { variable.compute(r, slot).await })
        })
    }

    // DIFF(nginx): a function runs before the handlers that may read its variable, not when one reads it.
    /// Computes the value for `r` and stores it, unless that was done.
    async fn compute(&self, r: &mut Request, slot: u16) {
        if !self.is_volatile && script_variables::is_computed(r, slot) {
            return;
        }
        let value = self.call(r).await.ok();
        script_variables::store(r, slot, value);
    }

    async fn call(&self, r: &mut Request) -> Result<Vec<u8>, Failed> {
        let Some(scripts) = r.plan().parts.get::<SetOfPlan>() else {
            let function = &self.function;
            r.log(
                Level::Error,
                format_args!("no \"js_import\" directives found for \"js_set\" handler \"{function}\" in the current scope"),
            );
            return Err(Failed { status: 500 });
        };
        let function = scripts.function(&self.function);
        let snapshot = snapshot::of_request(r, None);
        let mut call = RequestCall::start(r, &function, CallKind::Set, snapshot).await?;
        loop {
            // Other effects are those of a response, which a variable does not make.
            if let Progress::Done(value) = call.next(r).await? {
                return Ok(value.map(ByteBuf::into_vec).unwrap_or_default());
            }
        }
    }
}
