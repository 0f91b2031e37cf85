//! Lifecycle of a client's request, the same for every protocol: from the head to the line in the access log.
//!
//! ```text
//! head ─→ TLS requirements ─→ early body ─→ phases ─→ response ─→ post_action ─→ log
//!   │ malformed    │ refused       │ refused     ▲
//!   └──────────────┴───────────────┴─→ error response
//! ```
//! The protocol reads the head and attaches the body; [`serve`] does the rest. The response leaves through the request's [`Wire`](tw_request::wire::Wire).

mod request_timeout;

use std::rc::Rc;
use std::thread;

use tw_core::event_loop::SlowRequest;

use super::phases;
use super::post_action;
use super::send_response;
use super::start;
use super::tls_requirements;
use tw_request::body::Body;
use tw_request::client::Client;
use tw_request::event_loop::Loop;
use tw_request::http_version::HttpVersion;
use tw_request::memory_share::Hold;
use tw_request::request::{After, Request, RequestWire};
use tw_request::request_body;

tw_base::limits! {
    /// Limits of this module.
    pub(crate) const LIMITS;

    /// Bytes of a host, or of a method and path, that are remembered of a slow request.
    const SLOW_TEXT_MAX: usize = 256, bytes, "the rest is left out";
    use request_timeout::ERROR_LIMIT;
}

/// Request of a client in memory of its loop. A drop before [`finish`](Self::finish), as by `worker_shutdown_timeout`, writes the
/// access log line of a request that has begun.
pub struct ActiveRequest {
    r: Option<Box<Request>>,
    _memory: Hold,
}

impl ActiveRequest {
    /// Empty request of `client`, whose response leaves through `wire`. It holds `memory`.
    pub fn new(client: &Rc<Client>, wire: RequestWire, memory: Hold) -> Self {
        let mut r = client.event_loop.take_request();
        r.bind(client, wire);
        Self { r: Some(r), _memory: memory }
    }

    /// The request.
    pub fn request(&mut self) -> &mut Request {
        self.r.as_mut().expect("it is there until it is given back")
    }

    /// Returns the memory to the loop for the next request.
    pub fn finish(mut self, event_loop: &Loop) {
        if let Some(r) = self.r.take() {
            event_loop.give_back(r);
        }
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        // A panic may have left the request half changed.
        if let Some(r) = self.r.as_mut().filter(|r| r.state.is_log_due && !thread::panicking()) {
            if r.costs.sent.head == 0 {
                let status = r.wire().get().map_or(0, |wire| wire.status_if_cut());
                (r.response.status, r.state.error_status) = (status, None);
            }
            log(r);
        }
    }
}

/// Counts a request whose head was read or has begun to arrive.
pub fn count_request(client: &Client, version: HttpVersion) {
    client.requests.set(client.requests.get() + 1);
    client.event_loop.tally.sessions.add(1);
    client.event_loop.tally.by_version[version as usize].add(1);
    client.event_loop.try_accept_mutex();
}

/// Serves a request whose head was read: answers it and writes its line in the access log. `head` is an error status if the head
/// is malformed.
pub async fn serve(r: &mut Request, head: Result<(), u16>) {
    r.state.is_log_due = true;
    if r.generation().has_request_timeouts {
        Box::pin(request_timeout::limit(r, async |r| respond::<true>(r, head).await)).await;
    } else {
        respond::<false>(r, head).await;
    }
    if r.plan().core.post_action.is_some() && !r.uri.path.is_empty() {
        Box::pin(post_action::run(r)).await;
    }
    if !r.plan().log_steps().is_empty() {
        Box::pin(run_log_steps(r)).await;
    }
    log(r);
}

/// Runs the steps before the log handlers.
async fn run_log_steps(r: &mut Request) {
    let generation = r.generation().clone();
    for step in generation.plan(r.route.plan).log_steps() {
        step.run(r).await;
    }
}

/// Answers a request up to the last byte of its response. Requests with a timeout (`TIMED`) have a copy of the code: with a single
/// caller, that of all others is inlined into it.
async fn respond<const TIMED: bool>(r: &mut Request, head: Result<(), u16>) {
    let admitted = match head.and_then(|()| admit(r)) {
        Ok(()) => request_body::read::read_early(r).await,
        Err(status) => Err(status),
    };
    let body = match admitted {
        Ok(()) => phases::run(r).await,
        Err(status) => phases::fail(r, status).await,
    };
    if let (Body::Upgraded(_), Some(deadline)) = (&body, &r.context.deadline) {
        // A tunnel is not limited by the deadline of its request.
        deadline.set(None);
    }
    send_response::send::<TIMED>(r, body).await;
}

/// Ends a request whose client went away before its head was complete: only the access log gets `status`.
pub fn abandon(r: &mut Request, status: u16) {
    r.response.status = status;
    r.state.after = After::Abort;
    log(r);
}

/// Sets the URI of the request, and checks what its server requires before any phase.
fn admit(r: &mut Request) -> Result<(), u16> {
    start::set_uri(r);
    tls_requirements::check(r).map_or(Ok(()), Err)
}

/// Counts the response and runs the log phase.
fn log(r: &mut Request) {
    r.state.is_log_due = false;
    r.debug(format_args!("http log: {}, {} bytes sent", r.response.status, r.costs.sent.bytes));
    let tally = &r.client().event_loop.tally;
    tally.status(r.response.status);
    tally.received.add(r.head.read_len() as u64 + r.body.wire());
    note_if_slow(r);
    phases::log(r);
    r.end_trace();
}

/// Remembers the request if it is one of the slowest. A tunnel is none: its time is that of the session in it.
fn note_if_slow(r: &Request) {
    let slow = &r.client().event_loop.counts.slow_requests;
    let time = r.elapsed();
    let at_ms = tw_rt::clock::millis();
    if !slow.takes(time, at_ms) || r.response.status == 101 || r.client_method_name() == b"CONNECT" {
        return;
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes.get(..SLOW_TEXT_MAX).unwrap_or(bytes)).into();
    let target = r.head.target().split(|byte| *byte == b'?').next().unwrap_or_default();
    slow.add(SlowRequest {
        at: tw_rt::clock::unix(),
        at_ms,
        worker: r.client().event_loop.index,
        time,
        disk_wait: r.costs.account.wait(),
        status: r.response.status,
        protocol: text(r.head.protocol()),
        client: r.client_text().into(),
        host: text(r.head.host().unwrap_or_default()),
        request: text(&[r.client_method_name(), b" ", target].concat()),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// A request in progress is little more than this future.
    #[test]
    fn future_of_a_request_is_small() {
        let size = size_of_future(|r: &'static mut Request, head| serve(r, head));
        assert!(size <= 704, "{size}");
    }
}
