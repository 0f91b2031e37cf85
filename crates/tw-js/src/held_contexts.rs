//! Contexts of one request or session, held until its end: all its calls run in one script process and share global variables there, as in
//! nginx.

use std::cell::RefCell;
use std::rc::Rc;

use tw_script::HostMessage;

use crate::script_call::Contexts;

/// Contexts of one request or session. They are released when it ends.
#[derive(Default)]
pub(crate) struct HeldContexts(RefCell<Option<Contexts>>);

impl HeldContexts {
    /// Contexts of an earlier call, if its process lives.
    pub(crate) fn contexts(&self) -> Option<Contexts> {
        self.0.borrow().clone().filter(|contexts| !contexts.connection.is_closed())
    }

    /// Keeps the contexts of a call for the next ones.
    pub(crate) fn keep(&self, contexts: &Contexts) {
        let mut own = self.0.borrow_mut();
        let is_known = own.as_ref().is_some_and(|own| {
            own.context == contexts.context && Rc::ptr_eq(&own.connection, &contexts.connection)
        });
        if !is_known && let Some(old) = own.replace(contexts.clone()) {
            release(&old);
        }
    }

    /// Releases the contexts.
    pub(crate) fn release(&self) {
        if let Some(contexts) = self.0.take() {
            release(&contexts);
        }
    }
}

fn release(contexts: &Contexts) {
    // The process may be gone, and the contexts with it.
    let _ = contexts.connection.send_later(&HostMessage::Release { context: contexts.context });
}

impl Drop for HeldContexts {
    fn drop(&mut self) {
        self.release();
    }
}
