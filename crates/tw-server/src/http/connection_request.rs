//! Requests that connections answer, and their lines in the access log when the connection is cut in the middle of one
//! (`worker_shutdown_timeout`).

use std::thread;

use super::application::Http;
use super::phases;
use super::request::Request;
use super::wire::Wire;

/// A request of a connection. Dropped before it was given back, it is written into the log as it stands.
pub(crate) struct ConnectionRequest(Option<Box<Request>>);

impl ConnectionRequest {
    /// An empty one.
    pub(crate) fn take(app: &Http) -> Self {
        Self(Some(app.take_request()))
    }

    /// The request.
    pub(crate) fn request(&mut self) -> &mut Request {
        self.0.as_mut().expect("it is there until it is given back")
    }

    /// Lets another connection have its memory.
    pub(crate) fn give_back(mut self, app: &Http) {
        if let Some(r) = self.0.take() {
            app.give_back(r);
        }
    }
}

impl Drop for ConnectionRequest {
    fn drop(&mut self) {
        // What has panicked may be half changed.
        if let Some(r) = self.0.as_mut().filter(|r| r.state.is_log_due && !thread::panicking()) {
            if r.costs.sent.head == 0 {
                // As in nginx: no status was sent. A stream of HTTP/2 counts as one that its client has closed.
                let status = if matches!(r.wire(), Wire::H2(_)) { 499 } else { 0 };
                (r.out.status, r.state.error_status) = (status, None);
            }
            phases::log(r);
        }
    }
}
