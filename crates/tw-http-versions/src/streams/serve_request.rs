//! One stream as a request: head and body in, and the end of the stream after the response.

use std::rc::Rc;

use super::request_head::{self, BAD_REQUEST};
use super::stream_end::end;
use super::{Intent, ReceivedHead, RequestStream};
use tw_phases::lifecycle::{self, ActiveRequest};
use tw_request::memory_share::Hold;
use tw_request::request::{Request, RequestWire};

/// Serves the request whose head is `received`, and which holds `memory`.
pub(crate) async fn serve_request<S>(stream: Rc<S>, received: ReceivedHead, memory: Hold)
where
    S: RequestStream + 'static,
{
    let client = stream.client().clone();
    let mut active = ActiveRequest::new(&client, RequestWire::new(stream.clone()), memory);
    let r = active.request();
    r.begin();
    if let Some(peer) = stream.moved_peer() {
        r.set_moved_peer(peer);
    }
    let head = take_head(&stream, r, &received);
    drop(received);
    lifecycle::serve(r, head).await;
    end(&*stream, r.costs.sent.complete, r.response.status);
    active.finish(&client.event_loop);
}

/// Moves the head into the request, and attaches the body. Returns the status of a malformed head as the error.
fn take_head<S>(stream: &Rc<S>, r: &mut Request, received: &ReceivedHead) -> Result<(), u16>
where
    S: RequestStream + 'static,
{
    let taken = request_head::take(r, received, S::PROTOCOL);
    if let Some(priority) = r.head.field("Priority") {
        stream.set_request_priority(priority);
    }
    match taken {
        Ok(()) => match request_head::intent(received) {
            Intent::Answer => request_head::begin_body(stream.clone(), r),
            intent @ Intent::Tunnel => stream.state().set_intent(intent),
        },
        Err(BAD_REQUEST) => stream.state().set_malformed(),
        Err(_) => {}
    }
    taken
}
