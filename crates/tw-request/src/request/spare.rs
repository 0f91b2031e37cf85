//! Reuse of the memory of requests: a loop gives a request that has ended to the next one.

use super::Request;
use crate::event_loop::Loop;

impl Loop {
    /// Returns a request without a client, in the memory of one that has ended if there is some.
    pub fn take_request(&self) -> Box<Request> {
        let spare = self.requests.borrow_mut().take();
        spare.unwrap_or_else(|| Box::new(Request::new()))
    }

    /// Takes the memory of a request that has ended.
    pub fn give_back(&self, mut r: Box<Request>) {
        r.unbind();
        self.requests.borrow_mut().put(r);
    }
}
