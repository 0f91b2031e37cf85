//! Contexts of one request: all its calls run in one script process and share global variables there, as in nginx.

use std::cell::RefCell;
use std::ptr;
use std::rc::Rc;

use tw_request::request::Request;
use tw_script::HostMessage;

use crate::script_call::Contexts;

/// Contexts of one request. They are released when the request ends.
pub(crate) struct RequestScripts {
    /// Address of the request. A subrequest sees the extensions of its parent and has contexts of its own.
    owner: usize,
    contexts: RefCell<Option<Contexts>>,
}

impl RequestScripts {
    /// The contexts of `r`.
    pub(crate) fn of(r: &mut Request) -> Rc<Self> {
        let owner = ptr::from_ref(&*r).addr();
        match r.extensions.get::<Self>() {
            Some(own) if own.owner == owner => own,
            _ => {
                let own = Rc::new(Self { owner, contexts: RefCell::default() });
                r.extensions.put(own.clone());
                own
            }
        }
    }

    /// Contexts of an earlier call, if its process lives.
    pub(crate) fn contexts(&self) -> Option<Contexts> {
        self.contexts.borrow().clone().filter(|contexts| !contexts.connection.is_closed())
    }

    /// Keeps the contexts of a call for the next ones.
    pub(crate) fn keep(&self, contexts: &Contexts) {
        let mut own = self.contexts.borrow_mut();
        let is_known = own.as_ref().is_some_and(|own| {
            own.context == contexts.context && Rc::ptr_eq(&own.connection, &contexts.connection)
        });
        if !is_known && let Some(old) = own.replace(contexts.clone()) {
            release(&old);
        }
    }
}

fn release(contexts: &Contexts) {
    // The process may be gone, and the contexts with it.
    let _ = contexts.connection.send(&HostMessage::Release { context: contexts.context });
}

impl Drop for RequestScripts {
    fn drop(&mut self) {
        if let Some(contexts) = self.contexts.get_mut() {
            release(contexts);
        }
    }
}
