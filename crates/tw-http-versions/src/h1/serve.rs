//! The life of a connection: request after request, until it is closed.
//!
//! ```text
//!          ┌──────────── keep-alive, nothing of a buffer is held ────────────┐
//!          ▼                                                                 │
//! accept → idle ─ readable → head ─ complete ─→ lifecycle::serve ─────────────┤
//!                              │                                             │
//!                              └─ malformed → its status ─────────→ close ◄──┘  (lingering, if the client may still send)
//! ```

use std::rc::Rc;

use tw_base::memory::MemoryHolder;

use super::Http1Connection;
use super::body::{begin_body, end_body};
use super::keepalive::Woken;
use super::request_head::{self, ReadHead};
use crate::admission::{self, Admission, Verdict};
use crate::lingering_close::{LAST_WAIT, linger_close};
use tw_phases::lifecycle::{self, ActiveRequest};
use tw_request::config::location::LingeringClose;
use tw_request::http_version::HttpVersion;
use tw_request::local_future::boxed;
use tw_request::request::{After, Request, RequestWire};
use tw_request::request_body::{self, Drained};

/// Status of a request for which there is no memory.
const SERVICE_UNAVAILABLE: u16 = 503;

/// Serves a connection until it is closed; `early` was read of its first request already.
///
/// The future is most of what an idle connection costs, see `Http1Connection::idle`. So it is no `async fn`, which would have its
/// arguments twice, and everything but waiting is on the heap while it runs. Every connection has the pointer to `early`, few the bytes.
pub fn serve(conn: Rc<Http1Connection>, mut early: Option<Box<Vec<u8>>>) -> impl Future<Output = ()> {
    early.take_if(|early| early.is_empty());
    async move {
        {
            let generation = conn.client.event_loop.generation();
            let Some(group) = conn.client.group(&generation) else { return };
            let timeout = generation.server(group.default_server).settings.client_header_timeout;
            conn.keepalive_timeout.set(timeout);
        }
        // The first read is tried before the loop reports that the socket is readable.
        let mut is_try = conn.transport.may_have_input();
        let timeout = || conn.client.left_of_head(conn.keepalive_timeout.get());
        while early.is_some() || matches!(conn.idle(timeout()).await, Woken::Readable) {
            let is_first_try = std::mem::take(&mut is_try);
            match boxed(|| serve_readable(&conn, early.take(), is_first_try)).await {
                ConnectionState::KeepAlive => {}
                ConnectionState::Closed => return,
            }
        }
        if conn.client.event_loop.connections.is_stopping() {
            // The client may not know yet that the connection closes. Requests that it still sends would cause a reset,
            // which discards responses that it has not read yet.
            Box::pin(linger_close(&conn.client, &conn.transport, LAST_WAIT, LAST_WAIT)).await;
        }
    }
}

/// State of a connection after the requests that were there.
enum ConnectionState {
    KeepAlive,
    Closed,
}

/// Serves the requests that are there, in a request's memory, which is given back afterwards. The loop learns from the first
/// try if the first bytes were there.
#[expect(clippy::box_collection, reason = "as the connection has it")]
async fn serve_readable(
    conn: &Rc<Http1Connection>,
    early: Option<Box<Vec<u8>>>,
    is_first_try: bool,
) -> ConnectionState {
    let event_loop = &conn.client.event_loop;
    let admission = match admission::verdict(&conn.client, MemoryHolder::Http1) {
        Verdict::Begin => Admission::Admitted,
        Verdict::Wait | Verdict::Refuse => Box::pin(admission::wait(&conn.client)).await,
    };
    let memory = admission::hold_request(&conn.client, MemoryHolder::Http1);
    let mut active = ActiveRequest::new(&conn.client, RequestWire::new(conn.clone()), memory);
    let r = active.request();
    if let Some(early) = early {
        r.head.push(&early);
    }
    let after = serve_buffered(conn, r, admission).await;
    if is_first_try {
        event_loop.record_first_bytes(after != After::KeepAlive || conn.client.requests.get() > 0);
    }
    let linger = (after == After::Close).then(|| r.plan().core.lingering);
    let unread = !r.head.rest().is_empty() || r.body.is_pending();
    active.finish(event_loop);
    let lingering = match linger {
        None if after == After::KeepAlive => return ConnectionState::KeepAlive,
        None => return ConnectionState::Closed,
        Some(lingering) => lingering,
    };
    let is_wanted = match lingering.close {
        LingeringClose::Off => false,
        LingeringClose::On => unread || conn.transport.may_have_input(),
        LingeringClose::Always => true,
    };
    if is_wanted {
        let Http1Connection { client, transport, .. } = &**conn;
        Box::pin(linger_close(client, transport, lingering.time, lingering.timeout)).await;
    }
    ConnectionState::Closed
}

/// Serves requests until the buffer holds nothing of a next one. A refused one is answered with 503, and is the last.
async fn serve_buffered(conn: &Rc<Http1Connection>, r: &mut Request, admission: Admission) -> After {
    let client = &conn.client;
    loop {
        r.begin();
        let head = match request_head::read(conn, r).await {
            ReadHead::Complete if admission == Admission::Refused => {
                admission::count_refused(client);
                r.state.after = After::Close;
                begin_body(conn, r);
                Err(SERVICE_UNAVAILABLE)
            }
            ReadHead::Complete => {
                r.state.after = if r.head.keep_alive() { After::KeepAlive } else { After::Close };
                begin_body(conn, r);
                Ok(())
            }
            ReadHead::Bad(status) => {
                r.state.after = After::Close;
                Err(status)
            }
            ReadHead::NotBegun => return After::KeepAlive,
            ReadHead::Closed => return After::Abort,
            ReadHead::Gone(status) => {
                lifecycle::count_request(client, HttpVersion::Http1);
                lifecycle::abandon(r, status);
                return After::Abort;
            }
        };
        lifecycle::count_request(client, HttpVersion::Http1);
        lifecycle::serve(r, head).await;
        if r.state.after == After::KeepAlive && request_body::read::drain(r).await == Drained::No {
            r.state.after = After::Abort;
        }
        end_body(r);
        if r.state.after != After::KeepAlive {
            return r.state.after;
        }
        let keepalive = r.plan().core.keepalive;
        conn.keepalive_timeout.set(keepalive.timeout);
        conn.keepalive_min_timeout.set(keepalive.min_timeout);
        r.head.next_request();
        if r.head.is_idle() {
            return After::KeepAlive;
        }
        r.clear();
        // Other clients are served before the next pipelined request of this one.
        tw_rt::yield_now().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_future<A, B, F>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    /// The memory that a connection takes while it has a request, without that request.
    #[test]
    fn future_of_requests_is_small() {
        let size =
            size_of_future(|conn: &'static Rc<Http1Connection>, early| serve_readable(conn, early, false));
        assert!(size <= 832, "{size}");
    }
}
