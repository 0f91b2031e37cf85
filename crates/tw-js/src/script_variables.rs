//! Variables of `js_set` of a configuration, and their values in one request.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tw_base::FatalMutex;
use tw_core::session::Session;
use tw_request::request::Request;

/// Name of [`ScriptVariables`] among the shared objects of a configuration.
pub(crate) const SCRIPT_VARIABLES: &[u8] = b"js_set";

thread_local! {
    /// Slot of the first variable that an evaluation on trial has found missing; `None` outside of such.
    static TRIAL: Cell<Option<Option<u16>>> = const { Cell::new(None) };
}

/// Variables of `js_set` of a configuration, by name.
#[derive(Default)]
pub(crate) struct ScriptVariables(pub(crate) FatalMutex<HashMap<Arc<str>, ScriptVariable>>);

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
struct MissingVariables(RefCell<Vec<u16>>);

impl MissingVariables {
    fn of(r: &mut Request) -> Rc<Self> {
        // Subrequests share the values of variables, and these.
        r.extensions.get::<Self>().unwrap_or_else(|| {
            let own = Rc::new(Self::default());
            r.extensions.put_common(own.clone());
            own
        })
    }

    fn has(r: &Request, slot: u16) -> bool {
        r.extensions.get::<Self>().is_some_and(|own| own.0.borrow().contains(&slot))
    }
}

/// A variable of `js_set` without a value.
pub(crate) struct MissingVariable {
    pub(crate) slot: u16,
    pub(crate) function: String,
}

/// The variable of `js_set` that has to be computed before `evaluate` gives the value of the variable `name`. `evaluate` runs on trial.
pub(crate) fn missing_for(
    r: &Request,
    name: &str,
    evaluate: impl FnOnce(&Request),
) -> Option<MissingVariable> {
    let variables = r.generation().process.shared_objects.find::<ScriptVariables>(SCRIPT_VARIABLES)?;
    let slots = &r.generation().slots;
    let is_volatile = variables.0.lock().get(name).is_some_and(|variable| variable.is_volatile);
    let slot = if is_volatile {
        slots.of(name).filter(|slot| !is_missing(r, *slot))
    } else {
        TRIAL.set(Some(None));
        r.bindings.peek(|| evaluate(r));
        TRIAL.take().flatten()
    }?;
    let function = variables.0.lock().get(slots.name(slot))?.function.to_string();
    Some(MissingVariable { slot, function })
}

/// Stores a value that a script process has computed; false if this is no variable of `js_set`.
pub(crate) fn store(r: &mut Request, slot: u16, value: Option<Vec<u8>>) -> bool {
    let generation = r.generation().clone();
    let variables = generation.process.shared_objects.find::<ScriptVariables>(SCRIPT_VARIABLES);
    let name = generation.slots.name(slot);
    if !variables.is_some_and(|variables| variables.0.lock().contains_key(name)) {
        return false;
    }
    let missing = MissingVariables::of(r);
    missing.0.borrow_mut().retain(|known| *known != slot);
    match value {
        Some(value) => r.set_slot(slot, value),
        None => missing.0.borrow_mut().push(slot),
    }
    true
}

/// Returns true if the variable was computed for `r` already, also without a value.
pub(crate) fn is_computed(r: &Request, slot: u16) -> bool {
    r.stored(slot, &mut Vec::new()).is_some() || is_missing(r, slot)
}

/// Returns true if the computation for `r` has given no value.
pub(crate) fn is_missing(r: &Request, slot: u16) -> bool {
    MissingVariables::has(r, slot)
}

/// Notes a variable that an evaluation reads without a value. Returns false outside of an evaluation on trial.
pub(crate) fn note_missing(slot: Option<u16>) -> bool {
    let Some(trial) = TRIAL.get() else { return false };
    TRIAL.set(Some(trial.or(slot)));
    true
}
