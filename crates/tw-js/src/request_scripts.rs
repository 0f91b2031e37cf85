//! Contexts of one request: all its calls run in one script process and share global variables there, as in nginx.

use std::cell::RefCell;
use std::ops::Deref;
use std::ptr;
use std::rc::Rc;

use tw_request::request::Request;

use crate::held_contexts::HeldContexts;
use crate::request_call::ScriptFunction;

/// Contexts of one request. They are released when the request ends.
pub(crate) struct RequestScripts {
    /// Address of the request. A subrequest sees the extensions of its parent and has contexts of its own.
    owner: usize,
    contexts: HeldContexts,
    /// Scripts that want to be called at the end of the request.
    exit_hooks: RefCell<Vec<ScriptFunction>>,
}

impl Deref for RequestScripts {
    type Target = HeldContexts;

    fn deref(&self) -> &HeldContexts {
        &self.contexts
    }
}

impl RequestScripts {
    /// The contexts of `r`.
    pub(crate) fn of(r: &mut Request) -> Rc<Self> {
        let owner = ptr::from_ref(&*r).addr();
        match r.extensions.get::<Self>() {
            Some(own) if own.owner == owner => own,
            _ => {
                let own = Rc::new(Self {
                    owner,
                    contexts: HeldContexts::default(),
                    exit_hooks: RefCell::default(),
                });
                r.extensions.put(own.clone());
                own
            }
        }
    }

    /// Notes that a script wants to be called at the end of the request.
    pub(crate) fn add_exit_hook(&self, hook: &ScriptFunction) {
        let mut hooks = self.exit_hooks.borrow_mut();
        if !hooks.iter().any(|known| known.set.id == hook.set.id) {
            hooks.push(hook.clone());
        }
    }

    /// Takes the scripts that want to be called at the end of the request.
    pub(crate) fn take_exit_hooks(&self) -> Vec<ScriptFunction> {
        self.exit_hooks.take()
    }
}
