//! Variables of `js_set` of a configuration, and their values in one request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::FatalMutex;

use crate::script_session::ScriptSession;

thread_local! {
    /// Slot of the first variable that an evaluation on trial has found missing; `None` outside of such.
    static TRIAL: Cell<Option<Option<u16>>> = const { Cell::new(None) };
}

/// Variables of `js_set` of a configuration, by name.
#[derive(Default)]
pub(crate) struct ScriptVariables(pub(crate) FatalMutex<HashMap<Arc<str>, ScriptVariable>>);

/// Names of the variables of `js_var` of a configuration, in their order; a shared object with the name of [`ScriptSession::VARIABLES`].
#[derive(Default)]
pub(crate) struct ChangeableVariables(pub(crate) FatalMutex<Vec<String>>);

/// A variable of `js_set`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptVariable {
    pub(crate) name: Arc<str>,
    pub(crate) function: Arc<str>,
    /// True if its value is computed again for each handler that reads it.
    pub(crate) is_volatile: bool,
}

/// Variables of one request that have no value.
#[derive(Default)]
pub(crate) struct MissingVariables(RefCell<Vec<u16>>);

impl MissingVariables {
    fn of<S: ScriptSession>(s: &mut S) -> Rc<Self> {
        s.missing().unwrap_or_else(|| {
            let own = Rc::new(Self::default());
            s.keep_missing(own.clone());
            own
        })
    }
}

/// A variable of `js_set` without a value.
pub(crate) struct MissingVariable {
    pub(crate) slot: u16,
    pub(crate) function: String,
}

/// The variable of `js_set` that has to be computed before `evaluate` gives the value of the variable `name`. `evaluate` runs on trial.
pub(crate) fn missing_for<S: ScriptSession>(
    s: &S,
    name: &str,
    evaluate: impl FnOnce(&S),
) -> Option<MissingVariable> {
    let variables = s.shared_objects().find::<ScriptVariables>(S::VARIABLES)?;
    let slots = s.slots();
    let is_volatile = variables.0.lock().get(name).is_some_and(|variable| variable.is_volatile);
    let slot = if is_volatile {
        slots.of(name).filter(|slot| !is_missing(s, *slot))
    } else {
        TRIAL.set(Some(None));
        s.bindings().peek(|| evaluate(s));
        TRIAL.take().flatten()
    }?;
    let function = variables.0.lock().get(slots.name(slot))?.function.to_string();
    Some(MissingVariable { slot, function })
}

/// Stores a value that a script process has computed; false if this is no variable of `js_set`.
pub(crate) fn store<S: ScriptSession>(s: &mut S, slot: u16, value: Option<Vec<u8>>) -> bool {
    let variables = s.shared_objects().find::<ScriptVariables>(S::VARIABLES);
    let name = s.slots().name(slot);
    if !variables.is_some_and(|variables| variables.0.lock().contains_key(name)) {
        return false;
    }
    let missing = MissingVariables::of(s);
    missing.0.borrow_mut().retain(|known| *known != slot);
    match value {
        Some(value) => s.set_slot(slot, value),
        None => missing.0.borrow_mut().push(slot),
    }
    true
}

/// Returns true if the variable was computed for `s` already, also without a value.
pub(crate) fn is_computed<S: ScriptSession>(s: &S, slot: u16) -> bool {
    s.stored(slot, &mut Vec::new()).is_some() || is_missing(s, slot)
}

/// Returns true if the computation for `s` has given no value.
pub(crate) fn is_missing<S: ScriptSession>(s: &S, slot: u16) -> bool {
    s.missing().is_some_and(|missing| missing.0.borrow().contains(&slot))
}

/// Notes a variable that an evaluation reads without a value. Returns false outside of an evaluation on trial.
pub(crate) fn note_missing(slot: Option<u16>) -> bool {
    let Some(trial) = TRIAL.get() else { return false };
    TRIAL.set(Some(trial.or(slot)));
    true
}
