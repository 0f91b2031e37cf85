//! Variables that a block defines: `js_set` and `js_var`.

use std::sync::Arc;

use tw_conf::ConfError;
use tw_core::load::Resolve;
use tw_core::module::Protocol;
use tw_core::vars::{Computed, SlotKind, Value};

use crate::raw::{RawSet, RawVar};
use crate::script_session::ScriptSession;
use crate::script_variables::{ChangeableVariables, ScriptVariable};

/// Defines a variable of `js_set`.
pub(crate) fn define_script_variable<P: Protocol<Session: ScriptSession>>(
    set: &RawSet,
    cx: &mut Resolve<'_, P>,
) -> Result<(), ConfError> {
    let variable = ScriptVariable {
        name: set.variable.to_ascii_lowercase().into(),
        function: set.function.as_str().into(),
        is_volatile: set.is_volatile,
    };
    variable.define(&set.variable, set.span, cx)
}

/// Defines a variable of `js_var`: its value until a script sets another one.
pub(crate) fn define_variable<P: Protocol<Session: ScriptSession>>(
    var: &RawVar,
    cx: &mut Resolve<'_, P>,
) -> Result<(), ConfError> {
    let template = var.value.as_ref().map(|value| cx.template(value)).transpose()?;
    let computed: Computed<P::Session> = Arc::new(move |s: &P::Session, out: &mut Vec<u8>| {
        if let Some(template) = &template {
            template.eval(s, out);
        }
        Value::Found
    });
    cx.vars.compute(&var.variable, SlotKind::Computed(computed), var.span)?;
    let names = cx.keep(P::Session::VARIABLES, |_| false, ChangeableVariables::default);
    let mut names = names.0.lock();
    let name = var.variable.to_ascii_lowercase();
    if !names.contains(&name) {
        names.push(name);
    }
    Ok(())
}
