//! `request_timeout`: the time of a whole request. It counts from the first byte of the request, over retries, internal redirects,
//! error pages and subrequests, to the last byte of the response.
//!
//! ```text
//! the request waits for its body   408, and the connection is closed
//! no response has begun            504, by its error page if it has one
//! the response has begun           the connection or the stream is reset
//! ```
//! The future of the request is dropped, as when its client goes away.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tw_http::Version;
use tw_log::Level;
use tw_rt::{Deadline, Elapsed};

use crate::error_response;
use crate::phases;
use crate::send_response;
use tw_request::request::{After, ErrorPages, Request};
use tw_request::request_body;
use tw_request::request_deadline::RequestDeadline;

tw_base::limits! {
    /// Limits of this module.
    pub(super) const ERROR_LIMIT;

    /// Time for the error page, until its last byte, of a request that "request_timeout" has ended.
    const ERROR_TIME: Duration = Duration::from_secs(5), time, "the connection or the stream is reset";
}

const REQUEST_TIMEOUT: u16 = 408;
const GATEWAY_TIMEOUT: u16 = 504;

/// Answers `r` by `respond` within the time that its location grants.
pub(super) async fn limit(r: &mut Request, respond: impl AsyncFnOnce(&mut Request)) {
    let deadline = Rc::new(RequestDeadline::new(r.context.started.at));
    deadline.set(r.plan().core.request_timeout);
    r.body.note_waits(&deadline);
    r.context.deadline = Some(deadline.clone());
    let answered = before(&deadline, respond(r)).await;
    // No location sets the deadline from here on.
    r.context.deadline = None;
    if answered.is_err() {
        end(r, &deadline).await;
    }
}

/// Waits for `future` until the deadline, which `future` may move.
async fn before<F: Future>(deadline: &RequestDeadline, future: F) -> Result<F::Output, Elapsed> {
    let mut timer = Deadline::new();
    let mut future = pin!(future);
    poll_fn(|cx| {
        if let Poll::Ready(output) = future.as_mut().poll(cx) {
            return Poll::Ready(Ok(output));
        }
        match deadline.at() {
            Some(at) => timer.set_at(at),
            None => timer.clear(),
        }
        timer.poll_elapsed(cx).map(|()| Err(Elapsed))
    })
    .await
}

/// Ends a request whose time is over.
async fn end(r: &mut Request, deadline: &RequestDeadline) {
    r.upstream.time_out();
    if has_begun(r) {
        r.log(Level::Warn, format_args!("\"request_timeout\" is over while sending response to client"));
        return cut(r);
    }
    let status = if deadline.awaits_body() { REQUEST_TIMEOUT } else { GATEWAY_TIMEOUT };
    match status {
        REQUEST_TIMEOUT => {
            r.log(Level::Info, format_args!("\"request_timeout\" is over while reading client request body"));
        }
        _ => r.log(Level::Error, format_args!("\"request_timeout\" is over before the response has begun")),
    }
    // The beginning of the next request may be unknown, and the response made so far is not sent.
    r.state.after = After::Close;
    r.state.error_pages = ErrorPages::Allowed;
    r.state.error_status = None;
    r.state.retry_after = None;
    r.response.reset(200);
    deadline.set_at(tw_rt::clock::now() + ERROR_TIME);
    let answered = before(deadline, async {
        let body = match status {
            // A client that is slow gets no page of a location, which might wait for it again.
            REQUEST_TIMEOUT => {
                let _ = request_body::read::discard(r);
                error_response::builtin(r, status)
            }
            _ => phases::replace_response(r, status).await,
        };
        send_response::send::<true>(r, body).await;
    })
    .await;
    if answered.is_err() {
        r.log(
            Level::Warn,
            format_args!("\"request_timeout\" is over, and so is the time for its error page"),
        );
        if !has_begun(r) {
            (r.response.status, r.state.error_status) = (status, None);
        }
        cut(r);
    }
}

/// Returns true if the head of the response was sent, or a part of it.
fn has_begun(r: &Request) -> bool {
    let sent = r.costs.sent;
    // Early hints are no part of it, and HTTP/0.9 has no heads.
    sent.bytes > 0 && (sent.head > 0 || r.head.version() == Version::HTTP_09)
}

/// Ends the response where it is. The client sees that the rest is missing.
fn cut(r: &mut Request) {
    r.state.after = After::Abort;
    if let Some(wire) = r.wire().get() {
        wire.reset_on_close();
    }
}
